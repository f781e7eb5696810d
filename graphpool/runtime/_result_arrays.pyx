"""Arrays for results, in memory that earlier results have left."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t

from graphpool.memory._arrays cimport ArrayAllocator
from graphpool.memory._gate cimport clock_ns

import sys
import threading
from weakref import WeakSet

import numpy as np

from graphpool.errors import OutOfMemoryError
from graphpool.fork import reset_in_child
from graphpool.memory._budget import IDLE_ARENAS

cdef extern from "Python.h":
    PyObject *PyList_GET_ITEM(list items, Py_ssize_t number)
    Py_ssize_t Py_REFCNT(PyObject *item)

cdef enum:
    # What the C heap keeps by itself. Larger blocks go back to the system, their pages come zeroed, one fault each.
    LEAST_NBYTES = 1 << 16
    # A key whose arrays grow gets room for an eighth more: each word that a model generates makes its caches longer.
    SLACK = 8

# Whether a count of references is exact: without a GIL other threads keep parts of it.
cdef bint COUNTS = getattr(sys, "_is_gil_enabled", lambda: True)()
cdef object BYTE = np.dtype(np.uint8)


cdef inline bint is_free(list owners, Py_ssize_t number) noexcept:
    """Whether nobody but the list has this memory."""
    return Py_REFCNT(PyList_GET_ITEM(owners, number)) == 1


cdef class ResultArrays:
    """Hands out dense arrays; memory that nobody can reach any more goes to the next array of its key that fits.

    What is handed out refers to the memory's owner, which stays here, as every view of it and every buffer over it
    does: memory is free when nobody but this object refers to its owner.

    Parameters
    ----------
    budget : Budget
        Charged for every array until its memory is free, and for what is kept here, which it may ask back.
    holder : str
        Who asks; named in errors.
    grows : bool, default=True
        Whether arrays of a key that grow get room for more.
    keeper : object, optional
        Whom they are for: see `Budget.register`.

    Notes
    -----
    Ownership: memory belongs to whoever holds a view; here it is kept between runs, as much for each key as the largest
    of its arrays so far takes. Threads: safe. Cost: half a microsecond, and as much more for an array of 64 KiB and
    more; a fresh array of 1.5 MB costs 400 page faults more.
    """

    def __init__(self, budget, str holder not None, bint grows=True, keeper=None):
        self.budget, self.holder, self.grows = budget, holder, grows
        self.owners, self.largest = {}, {}
        self.allocators = WeakSet()
        self.last_ns = clock_ns()
        self._reset_in_child()
        reset_in_child(self)
        budget.register(self, stage=IDLE_ARENAS, keeper=keeper)

    def _reset_in_child(self):
        """In a forked child nobody is left who would release the old lock."""
        self.lock = threading.RLock()

    def allocator(self):
        """What one run at a time reserves and makes arrays with."""
        made = ArrayAllocator(self.budget, self.holder)
        with self.lock:
            self.allocators.add(made)
        return made

    cpdef list take(self, list keys, list wanted, ArrayAllocator arrays, int64_t most, int64_t nbytes):
        """Arrays that share no memory with any that somebody holds; their content is undefined.

        Parameters
        ----------
        keys : list
            Of each array; those of one key take one another's place.
        wanted : list of Described
            What each is.
        arrays : ArrayAllocator
            One of `allocator`.
        most : int
            Arrays of a key to keep: two for each thread that runs, whose variable holds the last result until the next
            is there.
        nbytes : int
            What the run needs with all of them: what is not taken from here is reserved at once. Unit: bytes.

        Returns
        -------
        made : list of ndarray

        Raises
        ------
        OutOfMemoryError
            The budget or the system has no memory for it.
        """
        cdef list rooms = []    # of each: memory that is free, or how much to make
        cdef int64_t size, room, spare = 0
        cdef Py_ssize_t k
        for k in range(len(wanted)):
            key, size = keys[k], (<tuple>wanted[k])[3]
            owner, room = None, size
            if COUNTS and size >= LEAST_NBYTES:
                with self.lock:
                    owner = self._find(key, size)
                    if owner is None:
                        room = self._room(key, size, most)
            spare += room - size
            if owner is not None:
                nbytes -= size
            rooms.append(room if owner is None else owner)
        try:
            arrays.reserve(nbytes + spare)
        except OutOfMemoryError:
            if not spare:
                raise
            arrays.reserve(nbytes)
            spare = 0
        for k in range(len(wanted)):
            shape, _, dtype, size = <tuple>wanted[k]
            rooms[k] = self._make(keys[k], shape, dtype, size, rooms[k], spare > 0, arrays)
        return rooms

    cdef object _find(self, object key, int64_t nbytes):
        """Memory that is free, or None. The lock is held."""
        cdef list owners = self.owners.setdefault(key, [])
        cdef int64_t held
        cdef Py_ssize_t k
        self.last_ns = clock_ns()
        for k in range(len(owners)):
            if is_free(owners, k):
                held = owners[k].nbytes
                if nbytes <= held <= 2 * nbytes:
                    return owners[k]
        return None

    cdef int64_t _room(self, object key, int64_t nbytes, int64_t most) except -1:
        """How much memory to make for an array; gives up what is kept in vain. The lock is held."""
        cdef list owners = self.owners[key]
        cdef bint is_growing = self.grows and any([owner.nbytes < nbytes for owner in owners])
        cdef int64_t room = nbytes + nbytes // SLACK if is_growing else nbytes
        del owners[:max(len(owners) - most + 1, 0)]
        self.largest[key] = max(room, self.largest.get(key, 0))
        self._drop_idle(owners, self.largest[key] - room)
        return room

    cdef int _drop_idle(self, list owners, int64_t most_nbytes) except -1:
        """Free arrays that nobody uses, the oldest first, until they take so much at most. The lock is held."""
        cdef Py_ssize_t k = 0
        cdef int64_t held = _idle_nbytes(owners)
        while k < len(owners) and held > most_nbytes:
            if is_free(owners, k):
                held -= owners.pop(k).nbytes
            else:
                k += 1
        return 0

    cdef object _make(self, object key, tuple shape, object dtype, int64_t size, object room, bint has_room,
                      ArrayAllocator arrays):
        """An array in memory that is free, or in fresh memory, with so much room if it has room."""
        if not COUNTS or size < LEAST_NBYTES:
            return arrays.empty(shape, dtype)
        owner = room
        if type(room) is int:
            owner = arrays.empty((room if has_room else size,), BYTE)
            with self.lock:
                self.owners.setdefault(key, []).append(owner)
        return np.ndarray(shape, dtype, owner)

    def clear(self):
        """Keep nothing, and return the bytes that nobody uses; what somebody holds stays his."""
        with self.lock:
            freed = self.reclaim(self.held)
            self.owners.clear()
            self.largest.clear()
        return freed

    # ---- for the budget

    @property
    def idle_since(self):
        """Time since when no large array was asked for, as `time.monotonic` gives it. Unit: seconds."""
        return self.last_ns * 1e-9

    @property
    def held(self):
        """Memory that is kept and that nobody uses. Unit: bytes."""
        with self.lock:
            return sum([_idle_nbytes(owners) for owners in self.owners.values()])

    def blocks(self):
        """Address and size of large arrays."""
        with self.lock:
            owners = [owner for found in self.owners.values() for owner in found]
        return [(owner.__array_interface__["data"][0], owner.nbytes) for owner in owners]

    @property
    def used(self):
        """Memory that somebody uses. Unit: bytes."""
        with self.lock:
            return max(sum([allocator.nbytes for allocator in self.allocators]) - self.held, 0)

    @property
    def pending(self):
        """What runs have reserved and give back at their end. Unit: bytes."""
        with self.lock:
            return sum([allocator.reserved for allocator in self.allocators])

    @property
    def reclaimable(self):
        """What `reclaim` could free now. Unit: bytes."""
        return self.held

    def reclaim(self, nbytes):
        """Free memory that nobody uses, until so many bytes are free; returns them."""
        cdef list owners
        cdef Py_ssize_t k
        freed = 0
        with self.lock:
            for owners in self.owners.values():
                for k in range(len(owners) - 1, -1, -1):
                    if freed < nbytes and is_free(owners, k):
                        freed += owners.pop(k).nbytes
        return freed

    def trim(self, idle_s=0.0, now_s=None):
        """Free what nobody uses, if no array was asked for so long; returns the bytes."""
        now = clock_ns() * 1e-9 if now_s is None else now_s
        return self.reclaim(self.held) if now - self.idle_since >= idle_s else 0


cdef int64_t _idle_nbytes(list owners) except -1:
    """Memory that nobody uses. Unit: bytes."""
    cdef Py_ssize_t k
    cdef int64_t found = 0
    for k in range(len(owners)):
        if is_free(owners, k):
            found += owners[k].nbytes
    return found
