from libc.stdint cimport int64_t


cdef class Search:
    cdef int n, n_sections, capacity
    cdef int slack          # most that a size grows when it is rounded up
    cdef int *first         # (n) first section of a buffer
    cdef int *last          # (n) one past its last section
    cdef int *size          # (n)
    cdef int *rounded       # (n) size, rounded up to what divides every alignment
    cdef int *step          # (n) alignment
    cdef double *key        # (n) who is tried first among equals
    cdef int *neighbours    # (n_pairs) buffers that live at the same time, by buffer
    cdef int *start         # (n + 1) where a buffer's neighbours start
    cdef int *floors        # (n + 2, n) lowest offset that a buffer can have, by depth
    cdef char *blocked      # (n + 2, n) whether something unplaced must lie below it, by depth
    cdef int *rest          # (n + 2, n) unplaced buffers, by depth
    cdef int *parts         # (n + 2, n) the same in groups that share no time
    cdef int *ends          # (n + 2, n + 1) where each group ends
    cdef char *is_open      # (n) not placed yet
    cdef int *placed        # (n) the answer
    cdef int *stacked       # (n_sections)
    cdef int *peak          # (n_sections)
    cdef int *group         # (n_sections + 1)
    cdef double *failures   # (n_sections) how often a section overflowed; the caller's, during a probe
    cdef bint is_learning
    cdef readonly int64_t nodes     # of the last probe
    cdef int64_t node_limit, deadline_ns, next_signals_ns
    cdef object error               # what a signal's handler raised

    cdef bint _is_over(self) noexcept nogil
    cdef int _run(self) noexcept nogil
    cdef bint _tighten(self, int depth, int *buffers, int m, int lower, int upper) noexcept nogil
    cdef bint _raise_blocked(self, int depth, int *buffers, int m, int *lower, int *upper) noexcept nogil
    cdef bint _stack(self, int depth, int *buffers, int m, int lower, int upper) noexcept nogil
    cdef int _choose(self, int depth, int *buffers, int m) noexcept nogil
    cdef int _solve_parts(self, int depth, int *buffers, int m, int lower, int upper) noexcept nogil
    cdef int _split(self, int depth, int *buffers, int m) noexcept nogil
    cdef int _solve(self, int depth, int *buffers, int m) noexcept nogil
    cdef int _place(self, int depth, int *buffers, int m, int chosen) noexcept nogil
