# Atomic operations on plain 64-bit words. All but the hit counter are sequentially consistent.
from libc.stdint cimport int64_t


cdef extern from *:
    """
    #include <stdint.h>

    static inline int64_t gpc_load(int64_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
    static inline int64_t gpc_fetch_add(int64_t *p, int64_t v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
    static inline int64_t gpc_fetch_or(int64_t *p, int64_t v) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }
    static inline int64_t gpc_fetch_and(int64_t *p, int64_t v) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); }
    static inline int64_t gpc_exchange(int64_t *p, int64_t v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }
    /* Subtract 1 only while the bits of mask are not all 0; the word afterwards, or -1 if nothing was subtracted. */
    static inline int64_t gpc_count_down(int64_t *p, int64_t mask) {
        int64_t seen = __atomic_load_n(p, __ATOMIC_SEQ_CST);
        while (seen & mask)
            if (__atomic_compare_exchange_n(p, &seen, seen - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return seen - 1;
        return -1;
    }
    /* Count a hit; one may get lost when two threads meet, which an estimate of use can bear. */
    static inline void gpc_count_hit(int64_t *p) {
        __atomic_store_n(p, __atomic_load_n(p, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
    }
    """
    int64_t gpc_load(int64_t *p) noexcept nogil
    int64_t gpc_fetch_add(int64_t *p, int64_t v) noexcept nogil
    int64_t gpc_fetch_or(int64_t *p, int64_t v) noexcept nogil
    int64_t gpc_fetch_and(int64_t *p, int64_t v) noexcept nogil
    int64_t gpc_exchange(int64_t *p, int64_t v) noexcept nogil
    int64_t gpc_count_down(int64_t *p, int64_t mask) noexcept nogil
    void gpc_count_hit(int64_t *p) noexcept nogil
