# Atomic operations on plain 64-bit integers and pointers. All but the hit counter are sequentially consistent: the
# gate's proof against lost wake-ups needs a store followed by a load of another word to stay in that order.
from libc.stdint cimport int64_t


cdef extern from *:
    """
    #include <stdint.h>

    static inline int64_t gp_load(int64_t *p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
    static inline void gp_store(int64_t *p, int64_t v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
    static inline int64_t gp_add(int64_t *p, int64_t v) { return __atomic_add_fetch(p, v, __ATOMIC_SEQ_CST); }
    static inline int64_t gp_fetch_add(int64_t *p, int64_t v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
    static inline int64_t gp_fetch_or(int64_t *p, int64_t v) { return __atomic_fetch_or(p, v, __ATOMIC_SEQ_CST); }
    static inline int64_t gp_fetch_and(int64_t *p, int64_t v) { return __atomic_fetch_and(p, v, __ATOMIC_SEQ_CST); }
    static inline int64_t gp_exchange(int64_t *p, int64_t v) { return __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST); }
    static inline int gp_cas(int64_t *p, int64_t expected, int64_t desired) {
        return __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
    static inline void *gp_load_ptr(void **p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
    static inline void gp_store_ptr(void **p, void *v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
    static inline int gp_cas_ptr(void **p, void *expected, void *desired) {
        return __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    }
    /* Add v only if the sum stays within limit: the sum never exceeds it, not even for an instant. */
    static inline int gp_add_within(int64_t *p, int64_t v, int64_t limit) {
        int64_t seen = __atomic_load_n(p, __ATOMIC_SEQ_CST);
        while (v <= limit && seen <= limit - v)
            if (__atomic_compare_exchange_n(p, &seen, seen + v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return 1;
        return 0;
    }
    /* Subtract v only if the difference stays at or above zero. */
    static inline int gp_sub_within(int64_t *p, int64_t v) {
        int64_t seen = __atomic_load_n(p, __ATOMIC_SEQ_CST);
        while (v <= seen)
            if (__atomic_compare_exchange_n(p, &seen, seen - v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return 1;
        return 0;
    }
    static inline void gp_raise_to(int64_t *p, int64_t v) {
        int64_t seen = __atomic_load_n(p, __ATOMIC_SEQ_CST);
        while (seen < v)
            if (__atomic_compare_exchange_n(p, &seen, v, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return;
    }
    /* Subtract 1 only while the bits of mask are not all 0; the word afterwards, or -1 if nothing was subtracted. */
    static inline int64_t gp_count_down(int64_t *p, int64_t mask) {
        int64_t seen = __atomic_load_n(p, __ATOMIC_SEQ_CST);
        while (seen & mask)
            if (__atomic_compare_exchange_n(p, &seen, seen - 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) return seen - 1;
        return -1;
    }
    /* Count a hit; one may get lost when two threads meet, which an estimate of use can bear. */
    static inline void gp_count_hit(int64_t *p) {
        __atomic_store_n(p, __atomic_load_n(p, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
    }
    """
    int64_t gp_load(int64_t *p) noexcept nogil
    void gp_store(int64_t *p, int64_t v) noexcept nogil
    int64_t gp_add(int64_t *p, int64_t v) noexcept nogil
    int64_t gp_fetch_add(int64_t *p, int64_t v) noexcept nogil
    int64_t gp_fetch_or(int64_t *p, int64_t v) noexcept nogil
    int64_t gp_fetch_and(int64_t *p, int64_t v) noexcept nogil
    int64_t gp_exchange(int64_t *p, int64_t v) noexcept nogil
    bint gp_cas(int64_t *p, int64_t expected, int64_t desired) noexcept nogil
    void *gp_load_ptr(void **p) noexcept nogil
    void gp_store_ptr(void **p, void *v) noexcept nogil
    bint gp_cas_ptr(void **p, void *expected, void *desired) noexcept nogil
    bint gp_add_within(int64_t *p, int64_t v, int64_t limit) noexcept nogil
    bint gp_sub_within(int64_t *p, int64_t v) noexcept nogil
    void gp_raise_to(int64_t *p, int64_t v) noexcept nogil
    int64_t gp_count_down(int64_t *p, int64_t mask) noexcept nogil
    void gp_count_hit(int64_t *p) noexcept nogil
