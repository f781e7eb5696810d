"""Entries in the order of their last use: a dictionary whose values form a list from the oldest to the newest.

A user that keeps an entry's `Node` finds its value again, and counts as a use, without a look-up: the node says itself
whether it is still in the cache.
"""

cimport cython

from graphpool.cache._lookup cimport gpc_look_up


cdef class Node:
    """One entry.

    Attributes
    ----------
    key : hashable
    value : object
        None once the entry has left.
    nbytes : int
        What the entry is charged. Unit: bytes.
    is_live : bool
        Whether the entry is in the cache.

    Notes
    -----
    Ownership: its `Recency` and whoever keeps it. Threads: safe.
    """

    @property
    def is_live(self):
        return self.owner is not None

    cdef bint touch(self):
        """Count a use now; False if the entry has left."""
        cdef Recency owner = self.owner
        if owner is None:
            return False
        with cython.critical_section(owner):
            if self.owner is None:
                return False
            owner.hits += 1
            if owner.newest is not self:
                owner._detach(self)
                owner._append(self)
        return True


cdef class Recency:
    """Nodes by key, from the one used longest ago to the one used last.

    Attributes
    ----------
    hits : int
        Uses counted.

    Notes
    -----
    Threads: any may look up, use and iterate at any moment; `put`, `charge` and `pop` are for one thread at a time.
    Cost: constant, a few tens of nanoseconds.
    """

    def __cinit__(self):
        self.nodes = {}

    def __len__(self):
        return len(self.nodes)

    def __contains__(self, key):
        return key in self.nodes

    def by_age(self):
        """The keys, the one used longest ago first."""
        cdef list found = []
        cdef Node node
        with cython.critical_section(self):
            node = self.oldest
            while node is not None:
                found.append(node.key)
                node = node.newer
        return found

    def find(self, key):
        """The node of a key, or None; no use is counted."""
        return gpc_look_up(self.nodes, key)

    def use(self, key):
        """The node of a key, now the newest, or None."""
        cdef Node node = gpc_look_up(self.nodes, key)
        return node if node is not None and node.touch() else None

    def first(self):
        """The oldest node, or None."""
        with cython.critical_section(self):
            return self.oldest

    def put(self, key, value, nbytes):
        """Add or replace an entry, which becomes the newest; returns its node."""
        cdef Node node = Node.__new__(Node)
        node.key, node.value, node.nbytes = key, value, nbytes
        self.pop(key)
        self.nodes[key] = node      # a use that finds it before it is in the list counts as a miss
        with cython.critical_section(self):
            node.owner = self
            self._append(node)
        return node

    def charge(self, Node node not None, nbytes):
        """Correct what a node is charged; it becomes the newest, and no use is counted."""
        with cython.critical_section(self):
            node.nbytes = nbytes
            self._detach(node)
            self._append(node)

    def pop(self, key):
        """Take an entry out; (value, nbytes), or None if there was none."""
        cdef Node node = self.nodes.pop(key, None)
        if node is None:
            return None
        with cython.critical_section(self):
            self._detach(node)
            node.owner = None
            value, node.value = node.value, None
        return value, node.nbytes

    cdef void _append(self, Node node):
        node.older, node.newer = self.newest, None
        if self.newest is not None:
            self.newest.newer = node
        else:
            self.oldest = node
        self.newest = node

    cdef void _detach(self, Node node):
        if node.older is not None:
            node.older.newer = node.newer
        else:
            self.oldest = node.newer
        if node.newer is not None:
            node.newer.older = node.older
        else:
            self.newest = node.older
        node.older = node.newer = None
