"""ConstantBuffer, the memory of one constant, and ConstantHandle, through which it is used without a look-up.

The hazard is that a constant is evicted between reading its address and using it. A handle therefore keeps validity
and the count of its users in one word, which one atomic instruction reads and changes together:

    bits 0..31   users: acquisitions that were not given back
    bit  32      EVICTED
    bits 33..62  generation: how often the handle was bound

    acquire   users += 1; if the word before had EVICTED set: users -= 1 again, there is no address
    evict     set EVICTED; if there were no users: drop the buffer
    release   users -= 1; if EVICTED is set and that was the last: drop the buffer
    bind      only if EVICTED is set and the buffer was dropped: store buffer and address, then add EVICTED to the
              word: the bit turns 0 and carries into the generation, while passing acquires keep their counts

Either an acquire comes before the eviction in the order of the word, then the eviction sees a user and leaves the
buffer alone; or it comes after, then it sees EVICTED and uses nothing. While EVICTED is set the count of true users can
only fall, so whoever finds it at 0 may drop; `drop` and `bind` look again inside one critical section, so that a late
drop cannot take the buffer of the next generation. The address is written before the word says that it is valid and
cleared only while nobody uses it.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from libc.stdint cimport int64_t, uintptr_t

from graphpool._finalizing cimport gp_is_finalizing
from graphpool._atomic cimport (
    gp_exchange, gp_fetch_add, gp_fetch_and, gp_fetch_or, gp_load
)

from graphpool.fork import reset_in_child
from graphpool.errors import InvalidArgumentError, StateError, explain


@cython.no_gc_clear
cdef class ConstantBuffer:
    """Memory that holds one constant; it lives until its last user lets go of it.

    Parameters
    ----------
    address : int
        Of the first byte.
    nbytes : int
        Unit: bytes.
    owner : object, optional
        Kept alive as long as the buffer; it owns the memory.

    Attributes
    ----------
    address, nbytes, owner
        As given.
    resource : MemoryResource or None
        Where `allocate` took the memory; kept alive, and given the memory back when the buffer dies.
    is_frozen : bool
        Whether the content is final: then the buffer protocol gives it out read-only.

    Raises
    ------
    InvalidArgumentError
        `address` or `nbytes` is negative, or the address is 0 while there are bytes.

    Notes
    -----
    Ownership: shared by whoever refers to it: the cache, handles that are in use, the user's own variables.
    Threads: safe once frozen; before that the producer alone has it.
    Source: oneDNN's RFC on the capacity of the constant tensor cache, the cache's value.
    """

    def __init__(self, address, nbytes, owner=None):
        if nbytes < 0 or address < 0 or (address == 0 and nbytes > 0):
            raise InvalidArgumentError(
                explain("memory of a constant", accepted="an address and a size in bytes", got=f"{nbytes} at {address}")
            )
        self.data = <char *><uintptr_t>address
        self.nbytes = nbytes
        self.owner = owner

    @staticmethod
    def allocate(resource, nbytes, alignment=64):
        """Memory of `resource`, which takes it back when the buffer dies.

        Parameters
        ----------
        resource : MemoryResource
        nbytes : int
            Unit: bytes.
        alignment : int, default=64
            A power of two. Unit: bytes.

        Raises
        ------
        OutOfMemoryError
            The resource has none left.
        """
        cdef ConstantBuffer buffer = ConstantBuffer.__new__(ConstantBuffer)
        buffer.nbytes, buffer.alignment = nbytes, alignment
        buffer.data = <char *><uintptr_t>resource.allocate(nbytes, alignment)
        buffer.resource = resource
        return buffer

    def __del__(self):
        # not at deallocation: when a cycle is collected, the resource may have been taken apart by then
        if self.resource is not None and not gp_is_finalizing():
            self.resource.deallocate(<uintptr_t>self.data, self.nbytes, self.alignment)

    @property
    def address(self):
        return <uintptr_t>self.data

    @property
    def is_frozen(self):
        return self.frozen

    def freeze(self):
        """Declare the content final. The cache does so when the producer hands it over."""
        self.frozen = True

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.frozen and (flags & PyBUF_WRITABLE) == PyBUF_WRITABLE:
            raise BufferError("a cached constant is read-only")
        PyBuffer_FillInfo(view, self, self.data, self.nbytes, self.frozen, flags)

    def __reduce__(self):
        raise TypeError("a ConstantBuffer is bound to memory and does not pickle; pickle bytes(buffer) instead")

    def __repr__(self):
        return f"<ConstantBuffer {self.nbytes} bytes at {self.address:#x}>"


cdef class ConstantHandle:
    """A user's view of one entry of a constant tensor cache: its address while it is cached, without a look-up.

    A compiled partition makes one handle for each constant and passes it to `ConstantTensorCache.get_or_add`, which
    binds it. From then on C code calls ``acquire()`` before it uses the constant, gets its address or NULL, and calls
    ``release()`` afterwards, exactly if it got an address. NULL means: not cached (any more); ask the cache again, and
    if that declines, do without.

    Parameters
    ----------
    key : hashable
        (backend id, backend key) of the entry; a handle never changes to another one.
    resource : MemoryResource, optional
        Of the engine that uses the constant: see `ConstantTensorCache.retire`.

    Attributes
    ----------
    key, resource
        As given.
    is_valid : bool
        Whether `acquire` would give an address now.
    users : int
        Acquisitions not given back yet.
    generation : int
        How often the handle was bound.

    Notes
    -----
    Ownership: shares the buffer from binding until it is evicted and the last user has released it. The handle
    itself must live as long as it is in use. Threads: safe without the GIL; the module's text proves it. After a fork
    the child counts no users. Cost: two atomic changes of one word, 5 ns for acquire and release together.
    Source: oneDNN's RFC on the capacity of the constant tensor cache, the recommended notification; the count with a
    flag in one word is a known construction, also called a gate or rundown reference.
    """

    def __cinit__(self, key, resource=None):
        self.key = key
        self.resource = resource
        self.word = EVICTED

    def __init__(self, key, resource=None):
        reset_in_child(self)

    cdef void *acquire(self) noexcept nogil:
        return acquire_handle(self)

    cdef void release(self) noexcept nogil:
        release_handle(self)

    cdef void drop(self) noexcept:
        """Let go of the buffer if the entry is evicted and nobody uses it."""
        cdef ConstantBuffer _last = None  # dies at the end, outside the critical section, and may call its resource
        cdef int64_t word
        with cython.critical_section(self):
            word = gp_load(&self.word)
            if word & EVICTED and not word & USERS:
                _last, self.buffer = self.buffer, None
                self.address = NULL

    @property
    def is_valid(self):
        return not gp_load(&self.word) & EVICTED

    @property
    def users(self):
        return gp_load(&self.word) & USERS

    @property
    def generation(self):
        return gp_load(&self.word) >> 33

    def try_acquire(self):
        """What C code calls ``acquire``: the address, or 0."""
        return <uintptr_t>self.acquire()

    def give_back(self):
        """What C code calls ``release``, checked.

        Raises
        ------
        StateError
            Nothing is acquired.
        """
        if not self.users:
            raise StateError(explain("the handle is not in use", hint="give back once for each address acquired"))
        self.release()

    def bind(self, ConstantBuffer buffer not None):
        """Make `buffer` what `acquire` gives; the cache calls it.

        Returns
        -------
        is_bound : bool
            False, and nothing is changed, while the handle is valid or users of an evicted buffer still run.
        """
        with cython.critical_section(self):
            if not gp_load(&self.word) & EVICTED or self.buffer is not None:
                return False
            self.buffer = buffer
            self.address = buffer.data
            gp_fetch_add(&self.word, EVICTED)
        return True

    def evict(self):
        """Make `acquire` give nothing from now on; the cache calls it. The buffer lives until its users are done."""
        if not gp_fetch_or(&self.word, EVICTED) & USERS:
            self.drop()

    def take_hits(self):
        """How often `acquire` gave an address since the last call: what policies learn of warm hits."""
        return gp_exchange(&self.hits, 0)

    def _reset_in_child(self):
        """The users were threads that do not exist here."""
        gp_fetch_and(&self.word, ~USERS)
        self.drop()

    def __reduce__(self):
        raise TypeError("a ConstantHandle is bound to this process and does not pickle")

    def __repr__(self):
        state = f"valid, generation {self.generation}" if self.is_valid else "not cached"
        return f"<ConstantHandle {self.key!r}: {state}, {self.users} users>"
