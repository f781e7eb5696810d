"""How deep the nodes of decision trees lie: a node takes nanoseconds, where NumPy's calls take microseconds a level."""

from libc.stdint cimport int32_t, uint8_t


def find_levels(
    const int32_t[:, ::1] children not None,
    const uint8_t[::1] is_inner not None,
    const int32_t[::1] roots not None,
    int32_t[::1] tree not None,
    int32_t[::1] levels not None,
    int32_t[::1] above not None,
    int32_t[::1] queue not None,
):
    """Fill `levels`, of -1, with how far below the roots each node lies by the longest way; whether there is no cycle.

    Nodes that no root leads to stay as they are. `tree` becomes the largest of those of a node and what is above it.
    `above`, of zeros, and `queue` are scratch; all have an element for each node, but for `roots`. Places are not
    checked. Cost: linear.
    """
    cdef Py_ssize_t k, side, found = 0, head = 0, left = 0
    cdef int32_t node, child
    for k in range(roots.shape[0]):
        if levels[roots[k]] == -1:
            levels[roots[k]] = -2
            queue[found] = roots[k]
            found += 1
    while head < found:
        node = queue[head]
        head += 1
        if is_inner[node]:
            for side in range(2):
                child = children[node, side]
                above[child] += 1
                if levels[child] == -1:
                    levels[child] = -2
                    queue[found] = child
                    found += 1
    for k in range(found):
        node = queue[k]
        if above[node] == 0:
            levels[node] = 0
            queue[left] = node
            left += 1
    head = 0
    while head < left:
        node = queue[head]
        head += 1
        if is_inner[node]:
            for side in range(2):
                child = children[node, side]
                tree[child] = max(tree[child], tree[node])
                levels[child] = max(levels[child], levels[node] + 1)
                above[child] -= 1
                if above[child] == 0:
                    queue[left] = child
                    left += 1
    return left == found
