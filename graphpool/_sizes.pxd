from libc.math cimport floor as real_floor
from libc.stdint cimport INT64_MIN, int32_t, int64_t
from libc.string cimport memcpy


cdef extern from *:
    """
    #include <stdint.h>

    static inline int gp_add_sizes(int64_t a, int64_t b, int64_t *r) { return __builtin_add_overflow(a, b, r); }
    static inline int gp_sub_sizes(int64_t a, int64_t b, int64_t *r) { return __builtin_sub_overflow(a, b, r); }
    static inline int gp_mul_sizes(int64_t a, int64_t b, int64_t *r) { return __builtin_mul_overflow(a, b, r); }
    """
    bint gp_add_sizes(int64_t a, int64_t b, int64_t *r) noexcept nogil
    bint gp_sub_sizes(int64_t a, int64_t b, int64_t *r) noexcept nogil
    bint gp_mul_sizes(int64_t a, int64_t b, int64_t *r) noexcept nogil


cdef enum:
    SYMBOL, CONSTANT, ADD, SUB, MUL, FLOORDIV, MOD, MIN, MAX, SCALED    # integer terms
    REAL_CONSTANT, REAL_OF, REAL_ADD, REAL_SUB, REAL_MUL, REAL_DIV      # terms in double precision
    LESS, LESS_EQUAL, EQUAL                                     # checks
    REAL_LESS, REAL_LESS_EQUAL, REAL_EQUAL


cdef inline float as_factor(int64_t bits) noexcept nogil:
    """The float32 whose bits these are."""
    cdef int32_t narrow = <int32_t>bits
    cdef float value
    memcpy(&value, &narrow, 4)
    return value


cdef inline int64_t scale(int64_t a, float factor, int64_t *result) noexcept nogil:
    """The floor of a product as float32 has it; 0, or -1 where that is beyond 63 bits or no number."""
    cdef float product = <float>a * factor
    if not -(<int64_t>1 << 62) <= product <= <int64_t>1 << 62:
        return -1
    result[0] = <int64_t>real_floor(product)
    return 0


cdef inline int64_t calculate(int64_t kind, int64_t a, int64_t b, int64_t *result) noexcept nogil:
    """The value of a term; 0, or -1 where it has none in 64 bits."""
    if kind == ADD:
        return -1 if gp_add_sizes(a, b, result) else 0
    if kind == SUB:
        return -1 if gp_sub_sizes(a, b, result) else 0
    if kind == MUL:
        return -1 if gp_mul_sizes(a, b, result) else 0
    if kind == MIN or kind == MAX:
        result[0] = a if (a < b) == (kind == MIN) else b
        return 0
    if kind == SCALED:
        return scale(a, as_factor(b), result)
    if b == 0 or (a == INT64_MIN and b == -1):
        return -1
    result[0] = a % b if kind == MOD else a // b
    return 0


cdef inline bint holds(int64_t kind, int64_t a, int64_t b) noexcept nogil:
    cdef double x, y
    if kind < REAL_LESS:
        return a < b if kind == LESS else a <= b if kind == LESS_EQUAL else a == b
    x, y = as_real(a), as_real(b)
    return x < y if kind == REAL_LESS else x <= y if kind == REAL_LESS_EQUAL else x == y


cdef inline double as_real(int64_t bits) noexcept nogil:
    """The real number whose bits these are."""
    cdef double value
    memcpy(&value, &bits, 8)
    return value


cdef inline int64_t as_bits(double value) noexcept nogil:
    """The bits of a real number."""
    cdef int64_t bits
    memcpy(&bits, &value, 8)
    return bits


cdef inline bint is_exact(int64_t value) noexcept nogil:
    """Whether a real number in double precision is surely the same number."""
    return -(<int64_t>1 << 53) <= value <= <int64_t>1 << 53


cdef inline double calculate_real(int64_t kind, double x, double y) noexcept nogil:
    """The value of a real term."""
    if kind == REAL_ADD:
        return x + y
    if kind == REAL_SUB:
        return x - y
    if kind == REAL_MUL:
        return x * y
    return x / y


cdef struct Term:
    int32_t kind, a, b


cdef class Trace:
    cdef Term *terms
    cdef int64_t *hints
    cdef int64_t nterms, room
    cdef list names          # of the symbols
    cdef dict numbers        # (kind, a, b) -> number of the term
    cdef dict checks         # (kind, a, b) -> whether it held
    cdef set preferred       # those of them that only say what is faster
    cdef int64_t npreferences        # blocks under way within which comparisons are such
    cdef readonly int64_t nsymbols
    cdef readonly bint is_closed
    cdef int64_t put(self, int64_t kind, int64_t a, int64_t b, int64_t hint) except -1
    cdef int64_t constant(self, int64_t value) except -1
    cdef list _factors(self, int64_t term)
    cdef object _made_of(self, int64_t scale, list factors)
    cdef object _product(self, int64_t a, int64_t b, int64_t result)
    cdef object _quotient(self, int64_t kind, int64_t a, int64_t b, int64_t result)
    cdef object _sum(self, int64_t kind, int64_t a, int64_t b, int64_t result)
    cdef object _plain(self, int64_t term)
    cdef object compute(self, int64_t kind, int64_t a, int64_t b)
    cdef bint _is_fixed(self, int64_t term)
    cdef int64_t put_real(self, double value) except -1
    cdef bint decide(self, int64_t kind, int64_t a, int64_t b) except -1


cdef class Size:
    cdef Trace trace
    cdef int32_t term


cdef class Real:
    cdef Trace trace
    cdef int32_t term


cdef inline Size new_size(Trace trace, int64_t term):
    cdef Size size = Size.__new__(Size)
    size.trace, size.term = trace, <int32_t>term
    return size


cdef inline Trace trace_of(x):
    if type(x) is Size:
        return (<Size>x).trace
    return (<Real>x).trace if type(x) is Real else None


cdef inline object plain(x):
    """A number for good: of a size or a `Real` the value that it has now."""
    return x.__index__() if type(x) is Size else float(x) if type(x) is Real else x
