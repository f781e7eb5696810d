"""HostResource: memory from the operating system, visible to memory profilers."""

from libc.stdint cimport uintptr_t
from libc.stdlib cimport free

from graphpool.memory._check import check_request, not_held, out_of_memory


cdef extern from "<stdlib.h>" nogil:
    int posix_memalign(void **address, size_t alignment, size_t nbytes)

cdef extern from "<sys/mman.h>" nogil:
    void *mmap(void *address, size_t nbytes, int protection, int flags, int fd, long offset)
    int munmap(void *address, size_t nbytes)
    void *MAP_FAILED
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS

cdef extern from *:
    """
    #include <unistd.h>
    #include <sys/mman.h>
    static inline void gp_advise_huge(void *p, size_t n) {
    #ifdef MADV_HUGEPAGE
        madvise(p, n, MADV_HUGEPAGE);
    #else
        (void)p; (void)n;
    #endif
    }
    """
    void gp_advise_huge(void *address, size_t nbytes) noexcept nogil
    long sysconf(int name) noexcept nogil
    int _SC_PHYS_PAGES, _SC_PAGESIZE

cdef extern from "<Python.h>":
    int PyTraceMalloc_Track(unsigned int domain, uintptr_t address, size_t nbytes)
    int PyTraceMalloc_Untrack(unsigned int domain, uintptr_t address)

cdef size_t HUGE_PAGE = 2 << 20

TRACE_DOMAIN = 0x67706f6c
"""The tracemalloc domain of arenas and tensors: ``tracemalloc.DomainFilter(True, TRACE_DOMAIN)``."""
CONSTANTS_TRACE_DOMAIN = TRACE_DOMAIN + 1
"""The tracemalloc domain of constants in the constant tensor cache."""
cdef unsigned int _DOMAIN = TRACE_DOMAIN


def trace(unsigned int domain, uintptr_t address, size_t nbytes):
    """Let tracemalloc count an allocation in this domain, and no longer in that of `HostResource`."""
    PyTraceMalloc_Untrack(_DOMAIN, address)
    PyTraceMalloc_Track(domain, address, nbytes if nbytes else 1)


def untrace(unsigned int domain, uintptr_t address):
    """Let tracemalloc forget an allocation of this domain."""
    PyTraceMalloc_Untrack(domain, address)


cdef size_t _mapped_nbytes(size_t nbytes) noexcept nogil:
    """Whole small pages: up to a huge page more would stay resident, 1.7 MiB of it for a weight of 768 x 768."""
    cdef size_t page = sysconf(_SC_PAGESIZE)
    return (nbytes + page - 1) // page * page


cdef void *map_block(size_t nbytes, size_t alignment) noexcept nogil:
    """A mapping of its own, so that freeing returns it at once; huge pages as far as they are full. NULL on failure."""
    cdef size_t wanted = _mapped_nbytes(nbytes), spare = max(alignment, HUGE_PAGE)
    cdef char *start = <char *>mmap(NULL, wanted + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
    cdef size_t head
    if <void *>start == MAP_FAILED:
        return NULL
    head = (spare - <uintptr_t>start % spare) % spare
    if head:
        munmap(start, head)
    if spare - head:
        munmap(start + head + wanted, spare - head)
    gp_advise_huge(start + head, wanted // HUGE_PAGE * HUGE_PAGE)
    return start + head


cdef void unmap_block(void *address, size_t nbytes) noexcept nogil:
    """Give the mapping of `map_block` back."""
    munmap(address, _mapped_nbytes(nbytes))


cdef class HostResource:
    """Memory of the machine: the bottom of every stack of resources.

    From 2 MiB on, a request gets a mapping of its own, aligned to 2 MiB, of huge pages as far as it fills them and of
    small ones behind; smaller requests come from the C heap. No page is touched, so the first thread that writes
    decides the NUMA node. Each allocation is recorded in the tracemalloc domain `TRACE_DOMAIN`.

    Attributes
    ----------
    nbytes : int
        Sum of the requests that are live. Unit: bytes.
    count : int
        Live allocations.

    Notes
    -----
    Ownership: the caller's, until `deallocate`. Threads: safe. Cost: one system call from 2 MiB on (about 10 µs, plus
    page faults at first touch), else one malloc.
    """

    cdef dict _live
    cdef object __weakref__

    def __cinit__(self):
        self._live = {}

    @property
    def nbytes(self):
        return sum(self._live.copy().values())

    @property
    def count(self):
        return len(self._live)

    def blocks(self):
        """(address, size in bytes) of all live allocations."""
        return list(self._live.copy().items())

    def allocate(self, nbytes, alignment=64, stream=None):
        """Return the address of `nbytes` bytes.

        Parameters
        ----------
        nbytes : int
            Unit: bytes. Zero gives an address of its own.
        alignment : int, default=64
            A power of two; at least 64 is given. Unit: bytes.
        stream : object, optional
            Ignored: the host has no order to respect.

        Returns
        -------
        address : int
            Not zero; the content is undefined.

        Raises
        ------
        InvalidArgumentError
            `nbytes` or `alignment` is not usable.
        OutOfMemoryError
            The operating system refused.
        """
        check_request(nbytes, alignment)
        cdef size_t wanted = max(nbytes, 1), aligned = max(alignment, 64)
        cdef void *address = NULL
        with nogil:
            if wanted >= HUGE_PAGE:
                address = map_block(wanted, aligned)
            elif posix_memalign(&address, aligned, wanted) != 0:
                address = NULL
        if address == NULL:
            raise out_of_memory(
                nbytes, in_use=self.nbytes, limit=sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGESIZE),
                resource="HostResource",
            )
        self._live[<uintptr_t>address] = nbytes
        PyTraceMalloc_Track(_DOMAIN, <uintptr_t>address, wanted)
        return <uintptr_t>address

    def deallocate(self, address, nbytes, alignment=64, stream=None):
        """Take back what `allocate` returned.

        Parameters
        ----------
        address : int
        nbytes : int
            As it was asked for. Unit: bytes.
        alignment : int, default=64
            As it was asked for. Unit: bytes.
        stream : object, optional
            Without effect.

        Raises
        ------
        StateError
            Not held: freed twice, another resource's, or another size than was asked for. Nothing is freed.
        """
        # Popping is the decision: of two threads that free one address, one finds it and the other gets the error.
        held = self._live.pop(address, None)
        if held is None or held != nbytes:
            if held is not None:
                self._live[address] = held
            raise not_held("HostResource", address, nbytes)
        cdef void *start = <void *><uintptr_t>address
        cdef size_t wanted = max(held, 1)
        PyTraceMalloc_Untrack(_DOMAIN, <uintptr_t>start)
        with nogil:
            if wanted >= HUGE_PAGE:
                unmap_block(start, wanted)
            else:
                free(start)

    def __repr__(self):
        return f"<HostResource {self.count} live, {self.nbytes} bytes>"
