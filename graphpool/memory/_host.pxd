cdef size_t HUGE_PAGE

cdef void *map_block(size_t nbytes, size_t alignment) noexcept nogil
cdef void unmap_block(void *address, size_t nbytes) noexcept nogil
