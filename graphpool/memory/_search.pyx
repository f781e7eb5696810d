"""Exact search for a plan within a capacity: branch and bound over buffers that rest on one another.

In some best plan every buffer rests on the bottom or on another one. So a node asks one question about one buffer, the
one that can lie lowest: does it rest right there, with nothing unplaced below it? If so it is placed, and all that live
with it go above. If not, it is *blocked*: something unplaced that lives with it must come below, which raises it at
least to the lowest top of those. Both answers together cover every plan once.

A node fails when, at some time, the buffers live then cannot be stacked under the capacity from their lowest offsets
up. Groups of unplaced buffers that share no time are solved apart. Order among equals decides over luck and failure, so
the search restarts under growing limits with three orders, by overflows of a buffer's sections, by crowd, by area, and
with random ones near these.

Sections, decomposition, and the canonical order by rising offset are ideas of Moffitt, "MiniMalloc: a lightweight
memory allocator for hardware-accelerated machine learning" (ASPLOS 2024); stacking from lowest offsets is the
one-machine bound with release dates of scheduling theory; blocking replaces that paper's dominance rules. To go on from
orders near one that succeeded is random-key local search.
"""

import numpy as np

from cpython.exc cimport PyErr_CheckSignals
from libc.limits cimport INT_MAX
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from graphpool.memory._gate cimport clock_ns


cdef extern from *:
    """
    /* Put a buffer on top of what is stacked in sections; returns whether one overflows. Wants vector instructions. */
    #if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
    __attribute__((optimize("O3"), target_clones("avx2", "default")))
    #endif
    static int gp_stack(int *stacked, int *peak, int n, int size, int floor, int capacity) {
        int overflows = 0;
        for (int i = 0; i < n; i++) {
            int height = stacked[i] + size;
            stacked[i] = height;
            height += floor;
            peak[i] = peak[i] > height ? peak[i] : height;
            overflows |= height > capacity;
        }
        return overflows;
    }
    """
    bint gp_stack(int *stacked, int *peak, int n, int size, int floor, int capacity) noexcept nogil

cdef enum:
    INFEASIBLE = 0
    FOUND = 1
    UNKNOWN = -1

MAX_BUFFERS = 4096
"""More buffers than this are left to the greedy passes: the search's tables grow with the square of their number."""

MAX_UNITS = 2**29
"""Arenas of more units than this are left to the greedy passes: offsets are 32-bit, so that vectors hold many."""

NODE_LIMIT = 1000
"""Nodes of one search; at the lowest capacity it has more in every round."""

LOWEST_SHARE = 4
"""How many times the nodes of other capacities the lowest one has."""

SPREAD = 8
"""Capacities of a round that no bisection asks for."""

WALK_SHARE = 2
"""How many times the nodes of a round's other capacities, the lowest left out, are spent near the best order."""

NEAR, WALK_RANGE = 0.05, 0.3
"""By what share keys near the best order differ from its own, and how far below the best plan, of the way to the lowest
capacity, such orders are tried at most."""

GOLDEN_RATIO = 0.6180339887498949
"""Multiples of which, without their whole part, spread evenly however many they are (Steinhaus, 1957)."""

cdef int64_t SIGNALS_NS = 50_000_000    # between two looks for signals


cdef inline int align_up(int offset, int step) noexcept nogil:
    return offset if step == 1 else (offset + step - 1) // step * step


cdef void *table(size_t count, size_t nbytes) except NULL:
    cdef void *memory = calloc(count if count else 1, nbytes)
    if memory == NULL:
        raise MemoryError
    return memory


cdef class Search:
    """Buffers in units and sections, and the tables of the search; for one thread."""

    def __init__(
        self, const int[::1] first, const int[::1] last, const int[::1] size, const int[::1] step, int common,
        int n_sections,
    ):
        cdef int n = <int>size.shape[0], a, b
        cdef size_t pairs = 0, levels = n + 2
        self.n, self.n_sections = n, n_sections
        self.first, self.last = <int *>table(n, sizeof(int)), <int *>table(n, sizeof(int))
        self.size, self.step = <int *>table(n, sizeof(int)), <int *>table(n, sizeof(int))
        self.rounded = <int *>table(n, sizeof(int))
        self.key, self.placed = <double *>table(n, sizeof(double)), <int *>table(n, sizeof(int))
        self.is_open, self.start = <char *>table(n, 1), <int *>table(n + 1, sizeof(int))
        self.floors, self.blocked = <int *>table(levels * n, sizeof(int)), <char *>table(levels * n, 1)
        self.rest, self.parts = <int *>table(levels * n, sizeof(int)), <int *>table(levels * n, sizeof(int))
        self.ends = <int *>table(levels * (n_sections + 1), sizeof(int))
        self.stacked, self.peak = <int *>table(n_sections, sizeof(int)), <int *>table(n_sections, sizeof(int))
        self.group = <int *>table(n_sections + 1, sizeof(int))
        for a in range(n):
            self.first[a], self.last[a], self.size[a], self.step[a] = first[a], last[a], size[a], step[a]
            self.rounded[a] = align_up(size[a], common)
            self.slack = max(self.slack, self.rounded[a] - size[a])
            for b in range(n):
                pairs += a != b and first[a] < last[b] and first[b] < last[a]
        self.neighbours = <int *>table(pairs, sizeof(int))
        pairs = 0
        for a in range(n):
            for b in range(n):
                if a != b and first[a] < last[b] and first[b] < last[a]:
                    self.neighbours[pairs] = b
                    pairs += 1
            self.start[a + 1] = <int>pairs

    def __dealloc__(self):
        tables = [
            <size_t>self.first, <size_t>self.last, <size_t>self.size, <size_t>self.step, <size_t>self.rounded,
            <size_t>self.key, <size_t>self.neighbours, <size_t>self.start, <size_t>self.floors, <size_t>self.blocked,
            <size_t>self.rest, <size_t>self.parts, <size_t>self.ends, <size_t>self.is_open, <size_t>self.placed,
            <size_t>self.stacked, <size_t>self.peak, <size_t>self.group,
        ]
        cdef size_t address
        for address in tables:
            free(<void *>address)

    def probe(self, int capacity, order, double[::1] failures, int64_t node_limit, int64_t deadline_ns):
        """Search from the root for offsets within `capacity`, for so many nodes and so long.

        `order` is a key for each buffer, or None for `failures`, the overflows of each section, which the probe adds
        to. Returns offsets as an array, None when there are none, or False when nodes or time ran out. Raises what a
        signal's handler raises.
        """
        cdef int outcome, a
        cdef double[::1] key
        self.capacity, self.deadline_ns, self.node_limit = capacity, deadline_ns, node_limit
        # Only its own probes teach the order by failures: others overflow elsewhere.
        self.is_learning, self.failures = order is None, &failures[0]
        key = self._sum_failures() if order is None else order
        for a in range(self.n):
            self.key[a] = key[a]
        with nogil:
            outcome = self._run()
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        if outcome == FOUND:
            return np.array([self.placed[a] for a in range(self.n)], dtype=np.int64)
        return None if outcome == INFEASIBLE else False

    def last_order(self):
        """The key of each buffer in the last probe, above 0, so that keys near it differ where it has many of 0."""
        cdef int a
        return np.array([self.key[a] + 1e-9 for a in range(self.n)])

    cdef bint _is_over(self) noexcept nogil:
        """Whether time is up, or a signal's handler has raised; asked rarely."""
        cdef int64_t now = clock_ns()
        if now > self.next_signals_ns:
            self.next_signals_ns = now + SIGNALS_NS
            with gil:
                try:
                    PyErr_CheckSignals()
                except BaseException as error:
                    self.error = error
                    return True
        return now > self.deadline_ns

    def _sum_failures(self):
        """For each buffer how often its sections overflowed."""
        cdef double[::1] total = np.zeros(self.n)
        cdef int a, s
        for a in range(self.n):
            for s in range(self.first[a], self.last[a]):
                total[a] += self.failures[s]
        return total

    cdef int _run(self) noexcept nogil:
        """One search from the root."""
        cdef int a
        self.nodes = 0
        memset(self.floors, 0, self.n * sizeof(int))
        memset(self.blocked, 0, self.n)
        memset(self.is_open, 1, self.n)
        for a in range(self.n):
            self.rest[a] = a
        return self._solve_parts(0, self.rest, self.n, 0, self.n_sections)

    cdef bint _tighten(self, int depth, int *buffers, int m, int lower, int upper) noexcept nogil:
        """Raise blocked buffers, order all by lowest offset, and stack those whose sections changed."""
        cdef int *floors = self.floors + <size_t>depth * self.n
        cdef int i, j, a
        if not self._raise_blocked(depth, buffers, m, &lower, &upper):
            return False
        for i in range(1, m):
            a, j = buffers[i], i
            while j > 0 and floors[buffers[j - 1]] > floors[a]:
                buffers[j] = buffers[j - 1]
                j -= 1
            buffers[j] = a
        return lower >= upper or self._stack(depth, buffers, m, lower, upper)

    cdef bint _raise_blocked(self, int depth, int *buffers, int m, int *lower, int *upper) noexcept nogil:
        """Lift each blocked buffer to the lowest top of what may lie below it, until nothing moves."""
        cdef int *floors = self.floors + <size_t>depth * self.n
        cdef char *blocked = self.blocked + <size_t>depth * self.n
        cdef int i, a, b, k, top
        cdef bint moved = True
        while moved:
            moved = False
            for i in range(m):
                a = buffers[i]
                if not blocked[a]:
                    continue
                top = INT_MAX
                for k in range(self.start[a], self.start[a + 1]):
                    b = self.neighbours[k]
                    if self.is_open[b]:
                        top = min(top, floors[b] + self.size[b])
                top = top if top == INT_MAX else align_up(top, self.step[a])
                if top > self.capacity - self.size[a]:
                    if self.is_learning:
                        for k in range(self.first[a], self.last[a]):
                            self.failures[k] += 1.0 / (self.last[a] - self.first[a])
                    return False
                if top > floors[a]:
                    floors[a] = top
                    lower[0], upper[0] = min(lower[0], self.first[a]), max(upper[0], self.last[a])
                    moved = True
        return True

    cdef bint _stack(self, int depth, int *buffers, int m, int lower, int upper) noexcept nogil:
        """Whether the buffers fit under the capacity in each section of [lower, upper), looked at by itself."""
        cdef int *floors = self.floors + <size_t>depth * self.n
        cdef int i, a, start, end, s
        # Whoever lies below another takes its rounded size; the topmost does not, and nobody knows which that is.
        cdef int capacity = self.capacity + self.slack
        memset(self.stacked + lower, 0, (upper - lower) * sizeof(int))
        memset(self.peak + lower, 0, (upper - lower) * sizeof(int))
        for i in range(m - 1, -1, -1):
            a = buffers[i]
            start, end = max(self.first[a], lower), min(self.last[a], upper)
            if start < end and gp_stack(
                self.stacked + start, self.peak + start, end - start, self.rounded[a], floors[a], capacity
            ):
                if self.is_learning:
                    for s in range(start, end):
                        if self.peak[s] > capacity:
                            self.failures[s] += 1
                return False
        return True

    cdef int _choose(self, int depth, int *buffers, int m) noexcept nogil:
        """The buffer to ask about: the lowest that is not blocked, by key among equals; -1 when all are blocked."""
        cdef int *floors = self.floors + <size_t>depth * self.n
        cdef char *blocked = self.blocked + <size_t>depth * self.n
        cdef int i, a, best = -1
        for i in range(m):
            a = buffers[i]
            if best >= 0 and floors[a] > floors[best]:
                break
            if not blocked[a] and (best < 0 or self.key[a] > self.key[best]):
                best = a
        return best

    cdef int _solve_parts(self, int depth, int *buffers, int m, int lower, int upper) noexcept nogil:
        """Solve the groups that share no time, small ones first; sections outside [lower, upper) have not changed."""
        cdef int *parts = self.parts + <size_t>depth * self.n
        cdef int *ends = self.ends + <size_t>depth * (self.n_sections + 1)
        cdef int n_parts, i, start, nbuffers, wanted = 1, following, outcome
        if m == 0:
            return FOUND
        if not self._tighten(depth, buffers, m, lower, upper):
            return INFEASIBLE
        n_parts = self._split(depth, buffers, m)
        while wanted <= m:
            following, start = m + 1, 0
            for i in range(n_parts):
                nbuffers = ends[i] - start
                if nbuffers == wanted:
                    outcome = self._solve(depth, parts + start, nbuffers)
                    if outcome != FOUND:
                        return outcome
                elif nbuffers > wanted:
                    following = min(following, nbuffers)
                start = ends[i]
            wanted = following
        return FOUND

    cdef int _split(self, int depth, int *buffers, int m) noexcept nogil:
        """Write the buffers to `parts`, group by group in time and in their order; returns the number of groups."""
        cdef int *parts = self.parts + <size_t>depth * self.n
        cdef int *ends = self.ends + <size_t>depth * (self.n_sections + 1)
        cdef int i, s, live = 0, n_parts = 0, lower = self.n_sections, upper = 0
        for i in range(m):
            lower, upper = min(lower, self.first[buffers[i]]), max(upper, self.last[buffers[i]])
        memset(self.group + lower, 0, (upper - lower) * sizeof(int))
        for i in range(m):
            self.group[self.first[buffers[i]]] += 1
            self.group[self.last[buffers[i]] - 1] -= 1
        for s in range(lower, upper):
            live += self.group[s]
            self.group[s] = n_parts
            n_parts += live == 0
        # Count, sum up, and fill: a stable sort by group. Sections that nobody uses make groups of none.
        memset(ends, 0, (n_parts + 1) * sizeof(int))
        for i in range(m):
            ends[self.group[self.first[buffers[i]]] + 1] += 1
        for i in range(n_parts):
            ends[i + 1] += ends[i]
        for i in range(m):
            s = self.group[self.first[buffers[i]]]
            parts[ends[s]] = buffers[i]
            ends[s] += 1
        return n_parts

    cdef int _solve(self, int depth, int *buffers, int m) noexcept nogil:
        """Place `m` buffers that share time, in every way that matters."""
        cdef char *blocked = self.blocked + <size_t>depth * self.n
        cdef int chosen, outcome
        while True:
            self.nodes += 1
            if self.nodes > self.node_limit or (self.nodes % 256 == 0 and self._is_over()):
                return UNKNOWN
            chosen = self._choose(depth, buffers, m)
            if chosen < 0:
                return INFEASIBLE
            outcome = self._place(depth, buffers, m, chosen)
            if outcome != INFEASIBLE:
                return outcome
            blocked[chosen] = True
            if not self._tighten(depth, buffers, m, self.n_sections, 0):
                return INFEASIBLE

    cdef int _place(self, int depth, int *buffers, int m, int chosen) noexcept nogil:
        """Rest `chosen` at its lowest offset, lift what lives with it above, and solve the others."""
        cdef size_t here = <size_t>depth * self.n, below = here + self.n
        cdef int *floors = self.floors + below
        cdef char *blocked = self.blocked + below
        cdef int *rest = self.rest + below
        cdef int lower = self.first[chosen], upper = self.last[chosen], i, k, b, n_rest = 0, outcome, top, offset
        memcpy(floors, self.floors + here, self.n * sizeof(int))
        memcpy(blocked, self.blocked + here, self.n)
        for i in range(m):
            if buffers[i] != chosen:
                rest[n_rest] = buffers[i]
                n_rest += 1
        self.placed[chosen] = floors[chosen]
        top = floors[chosen] + self.size[chosen]
        self.is_open[chosen] = False
        outcome = FOUND
        for k in range(self.start[chosen], self.start[chosen + 1]):
            b = self.neighbours[k]
            if not self.is_open[b]:
                continue
            blocked[b] = False
            offset = align_up(top, self.step[b])
            if offset > floors[b]:
                floors[b] = offset
                lower, upper = min(lower, self.first[b]), max(upper, self.last[b])
                if offset > self.capacity - self.size[b]:
                    outcome = INFEASIBLE
        if outcome == FOUND:
            outcome = self._solve_parts(depth + 1, rest, n_rest, lower, upper)
        self.is_open[chosen] = True
        return outcome


cdef tuple _sections(lower, upper):
    """First and one past the last section of each buffer.

    A section is a time at which a buffer starts, if one ends before another starts: whatever is live at any
    time is live together in some section.
    """
    starts, ends = np.unique(lower), np.unique(upper)
    next_end = ends[np.searchsorted(ends, starts, side="right")]
    next_start = np.append(starts[1:], np.iinfo(np.int64).max)
    times = starts[next_end <= next_start]
    return np.searchsorted(times, lower).astype(np.intc), np.searchsorted(times, upper).astype(np.intc)


cdef int64_t _unit(size, alignment) except -1:
    """The largest unit of which all sizes and all offsets that matter are multiples."""
    unit = np.gcd.reduce(size)
    return unit if (unit % alignment == 0).all() else np.gcd(unit, np.gcd.reduce(alignment))


class _Instance:
    """Buffers in units and sections, none of them empty; `life` in any unit."""

    def __init__(self, first, last, size, step, life):
        self.size = size
        self.n_sections = int(last.max())
        self.search = Search(first, last, size, step, np.gcd.reduce(step), self.n_sections)
        live = np.zeros(self.n_sections + 1, dtype=np.int64)
        np.add.at(live, first, size)
        np.subtract.at(live, last, size)
        live = np.cumsum(live)
        crowd = np.array([live[start:end].max() for start, end in zip(first, last)])    # most units at once
        self.orders = crowd * life.max() * 2 + life, life * size


class _Descent:
    """The search over capacities, in units: `best` is reached, less than `proved` is impossible, `target` is enough.

    Each round has twice the nodes of the one before for every capacity that it tries. The lowest comes first, by deep
    searches, since it can often be met or refuted. Then come others, by bisection towards the best plan known: many
    short searches in orders near the good ones, then a deep one of each; where nodes run out, a capacity counts as too
    low until the next round. Which capacities a short search happens to meet is erratic: one can be met while larger
    ones are not, so others come next, spread between the lowest and the best, most of them near the best. Last comes a
    walk: orders near the one that led to the best plan, for capacities just below it.
    """

    def __init__(self, instance, best, proved, target, node_limit, deadline_ns, improved):
        self.instance, self.best, self.proved, self.target = instance, best, proved, target
        self.nodes_left, self.deadline_ns, self.improved = node_limit, deadline_ns, improved
        self.random, self.place = np.random.default_rng(0), 0.0
        self.best_order = None

    @property
    def low(self):
        return max(self.proved, self.target)

    @property
    def is_over(self):
        return self.best <= self.low or self.nodes_left <= 0 or clock_ns() > self.deadline_ns

    def run(self):
        """Go on until all is proved, good enough, or used up."""
        at_lowest = np.zeros(self.instance.n_sections)
        orders = [None, *self.instance.orders]
        rounds = 1
        while not self.is_over:
            self._try_capacity(self.low, orders, rounds * LOWEST_SHARE * NODE_LIMIT, at_lowest)
            before = self.nodes_left
            self._bisect(orders, rounds)
            self._spread(orders, rounds)
            self._walk(WALK_SHARE * (before - self.nodes_left))
            rounds *= 2

    def _bisect(self, orders, rounds):
        low, failures = self.low + 1, np.zeros(self.instance.n_sections)
        while low < self.best and not self.is_over:
            capacity = (low + self.best - 1) // 2
            is_found = self._try_capacity(capacity, self._near_orders(rounds), NODE_LIMIT, failures)
            if not is_found and not self._try_capacity(capacity, orders, rounds * NODE_LIMIT // 2, failures):
                low = capacity + 1

    def _spread(self, orders, rounds):
        for _ in range(SPREAD):
            if self.is_over:
                break
            self.place = (self.place + GOLDEN_RATIO) % 1
            capacity = self.low + int((self.best - self.low) * self.place**0.5)
            self._try_capacity(capacity, orders, rounds * NODE_LIMIT, np.zeros(self.instance.n_sections))

    def _walk(self, nodes):
        failures, until = np.zeros(self.instance.n_sections), self.nodes_left - nodes
        while self.best_order is not None and self.nodes_left > until and not self.is_over:
            capacity = self.best - 1 - int((self.best - self.low) * WALK_RANGE * self.random.random() ** 2)
            self._try_capacity(capacity, [self._near(self.best_order, NEAR)], NODE_LIMIT, failures)

    def _near(self, order, share):
        """An order near another one."""
        return order * np.exp(share * self.random.standard_normal(len(order)))

    def _near_orders(self, rounds):
        """The orders, and so often others near them, from a fixed seed."""
        for i in range(rounds):
            yield None
            for order in self.instance.orders:
                yield self._near(order, 0.2) if i else order

    def _try_capacity(self, capacity, orders, limit, failures):
        """Whether a plan within `capacity` was found by one of the orders."""
        found = self._search(capacity, orders, limit, failures)
        if found is None:
            self.proved = max(self.proved, capacity + 1)
        if not isinstance(found, np.ndarray):
            return False
        self.best = int((found + self.instance.size).max())
        self.best_order = self.instance.search.last_order()
        self.improved(found, self.best)
        return True

    def _search(self, capacity, orders, limit, failures):
        """Offsets, None or False as `Search.probe`, by the first order that decides."""
        search = self.instance.search
        for order in orders:
            found = search.probe(capacity, order, failures, min(limit, self.nodes_left), self.deadline_ns)
            self.nodes_left -= search.nodes
            if found is not False or self.is_over:
                return found
        return False


def search(problem, int64_t nbytes, int64_t bound, int64_t target, node_limit, double deadline_s, improved):
    """Improve a plan until it meets `target`, is proved optimal, or nodes or time are used up.

    `problem` is a `planner.Problem` with a plan of `nbytes` bytes. No plan needs less than `bound` bytes; one within
    `target` is good enough. Zero for `deadline_s` sets no deadline; then equal input gives equal plans. `improved` is
    called with the offsets and the bytes of each better plan. Returns how many bytes are proved to be necessary.

    Fixed offsets and more than `MAX_BUFFERS` buffers are left as they are. Gaps are kept closed, and then nothing but
    `bound` proves a plan optimal. Cost: exponential in the worst case, hence the limits.
    """
    used = problem.size > 0
    lower, upper, size, step = (c[used] for c in (problem.lower, problem.upper, problem.size, problem.alignment))
    if len(size) == 0 or len(size) > MAX_BUFFERS or (problem.fixed >= 0).any():
        return bound
    unit = _unit(size, step)
    if nbytes // unit > MAX_UNITS:
        return bound

    def note(found, units):
        offsets = np.zeros_like(problem.size)
        offsets[used] = found * unit
        improved(offsets, units * unit)

    first, last = _sections(lower, upper)
    step = np.maximum(step // unit, 1).astype(np.intc)
    instance = _Instance(first, last, (size // unit).astype(np.intc), step, (upper - lower).astype(np.float64))
    deadline_ns = clock_ns() + <int64_t>(min(deadline_s or 1e9, 1e9) * 1e9)
    descent = _Descent(instance, nbytes // unit, -(-bound // unit), target // unit, node_limit, deadline_ns, note)
    descent.run()
    has_gaps = (problem.windows[:, 2] - problem.windows[:, 1]).sum() != (problem.upper - problem.lower).sum()
    return bound if has_gaps else descent.proved * unit
