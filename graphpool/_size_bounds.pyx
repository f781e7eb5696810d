"""Bounds of sizes over ranges of the symbols, and whether every decision comes out alike in all of a range.

Interval arithmetic on the terms of a `SizeProgram`: sound for all values in the range, exact where each symbol only
makes a size grow, or only makes it shrink, which sizes of tensors mostly do.

Source: Moore, Kearfott and Cloud, "Introduction to Interval Analysis" (2009).
"""

from libc.stdint cimport INT64_MAX, INT64_MIN, int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from graphpool._size_program cimport SizeProgram
from graphpool._sizes cimport (
    ADD, CONSTANT, EQUAL, FLOORDIV, LESS, LESS_EQUAL, MAX, MIN, MOD, MUL, REAL_CONSTANT, REAL_DIV, REAL_EQUAL,
    REAL_LESS, REAL_OF, SCALED, SUB, SYMBOL, Size, Term, as_bits, as_real, calculate, calculate_real, is_exact
)

from graphpool.errors import StateError, explain

__all__ = ["SizeBounds"]


cdef enum:
    HOLDS, FAILS, OPEN


ctypedef fused Number:
    int64_t
    double


cdef struct Span:
    int64_t least, most     # bits of real numbers where the term is one


cdef class SizeBounds:
    """What the sizes of a compilation are at least and at most in a box of symbol values.

    Parameters
    ----------
    program : SizeProgram
    box : sequence of (int, int)
        Of each symbol the least and the most value.

    Notes
    -----
    Ownership: keeps the program. Threads: immutable but for `join`. Cost: about 5 ns a term.
    """

    cdef readonly SizeProgram program
    cdef Span *spans
    cdef uint64_t *masks        # symbols of each term, those beyond 63 as the last
    cdef int hard, soft         # whether the checks hold; those that say what is faster
    cdef uint64_t hard_mask, soft_mask

    def __cinit__(self, SizeProgram program not None, box):
        cdef int64_t k
        self.program = program
        if len(box) != program.nsymbols:
            raise StateError(explain("ranges of symbols", accepted=program.nsymbols, got=len(box)))
        self.spans = <Span *>malloc(max(program.nterms, 1) * sizeof(Span))
        self.masks = <uint64_t *>calloc(max(program.nterms, 1), sizeof(uint64_t))
        cdef Span *given = <Span *>malloc(max(program.nsymbols, 1) * sizeof(Span))
        try:
            if self.spans == NULL or self.masks == NULL or given == NULL:
                raise MemoryError()
            for k, (least, most) in enumerate(box):
                given[k] = Span(least, most)
            self._evaluate(given)
        finally:
            free(given)

    def __dealloc__(self):
        free(self.spans)
        free(self.masks)

    cdef void _evaluate(self, const Span *given) noexcept nogil:
        cdef int64_t k, kind
        cdef int outcome
        cdef Term term
        self.hard = self.soft = HOLDS
        for k in range(self.program.nterms):
            term = self.program.terms[k]
            if term.kind == SYMBOL:
                self.spans[k] = given[term.a]
                self.masks[k] = <uint64_t>1 << min(term.a, 63)
                continue
            if term.kind == CONSTANT or term.kind == REAL_CONSTANT:
                self.spans[k].least = (<int64_t>term.b << 32) | <int64_t><uint32_t>term.a
                self.spans[k].most = self.spans[k].least
                continue
            self.masks[k] = self.masks[term.a] | (0 if term.kind == REAL_OF else self.masks[term.b])
            if bound(term, self.spans, &self.spans[k]) and self.hard == HOLDS:
                self.hard, self.hard_mask = OPEN, self.masks[k]
        for k in range(self.program.nchecks):
            term = self.program.checks[k]
            kind = -term.kind if term.kind < 0 else term.kind
            if kind == EQUAL and self.program.terms[term.a].kind >= REAL_CONSTANT:
                outcome = judge_bits(self.spans[term.a], self.spans[term.b])
            else:
                outcome = judge(kind, self.spans[term.a], self.spans[term.b])
            if term.kind < 0 and outcome != OPEN:
                outcome = HOLDS + FAILS - outcome
            if k < self.program.nhard:
                if outcome == FAILS or (outcome == OPEN and self.hard == HOLDS):
                    self.hard, self.hard_mask = outcome, self.masks[term.a] | self.masks[term.b]
            elif outcome == FAILS or (outcome == OPEN and self.soft == HOLDS):
                self.soft, self.soft_mask = outcome, self.masks[term.a] | self.masks[term.b]

    def holds(self, bint exactly=True):
        """Whether all checks hold in the whole box: True, False if one fails everywhere, None if that is open.

        Those that only say what is faster count if `exactly`.
        """
        if self.hard == FAILS or (exactly and self.soft == FAILS):
            return False
        return True if self.hard == HOLDS and (self.soft == HOLDS or not exactly) else None

    def open_symbols(self):
        """Numbers of the symbols on which the first open question depends; halving the box in one may answer it."""
        cdef uint64_t mask = self.hard_mask if self.hard == OPEN else self.soft_mask
        cdef int64_t k
        return [k for k in range(self.program.nsymbols) if mask >> min(k, 63) & 1]

    def most(self, x):
        """The most that a size is; other objects as they are."""
        return self.spans[self._number(x)].most if type(x) is Size else x

    def least(self, x):
        """The least that a size is; other objects as they are."""
        return self.spans[self._number(x)].least if type(x) is Size else x

    def shape(self, dims):
        """The most that each dimension of a shape is."""
        return tuple([self.most(x) for x in dims])

    def join(self, SizeBounds other not None):
        """Let these be the bounds for the other box too; what holds is then that of the first one."""
        cdef int64_t k
        if other.program is not self.program:
            raise StateError(explain("bounds of another compilation", hint="report this"))
        for k in range(self.program.nterms):
            if self.program.terms[k].kind < REAL_CONSTANT:
                self.spans[k].least = min(self.spans[k].least, other.spans[k].least)
                self.spans[k].most = max(self.spans[k].most, other.spans[k].most)

    cdef int64_t _number(self, Size x) except -1:
        if x.trace is not self.program.trace or x.term >= self.program.nterms:
            raise StateError(explain("a size of another compilation", hint="report this"))
        return x.term


cdef int bound(Term term, const Span *spans, Span *found) noexcept nogil:
    """The span of a term; 1 where it may have no value somewhere, which leaves it wide open."""
    cdef Span a = spans[term.a], b = spans[term.b]
    found.least, found.most = INT64_MIN, INT64_MAX
    if term.kind == ADD or term.kind == MIN or term.kind == MAX:
        return combine(term.kind, a.least, b.least, &found.least) | combine(term.kind, a.most, b.most, &found.most)
    if term.kind == SUB:
        return combine(SUB, a.least, b.most, &found.least) | combine(SUB, a.most, b.least, &found.most)
    if term.kind == MUL or term.kind == SCALED:     # a factor is constant
        return corners(term.kind, a, b, found)
    if term.kind == FLOORDIV:
        return 1 if b.least <= 0 <= b.most else corners(FLOORDIV, a, b, found)
    if term.kind == MOD:
        return rest(a, b, found)
    if term.kind == REAL_OF:
        if not is_exact(a.least) or not is_exact(a.most):
            return 1
        found.least, found.most = as_bits(<double>a.least), as_bits(<double>a.most)
        return 0
    return real_corners(term.kind, a, b, found)


cdef int combine(int64_t kind, int64_t a, int64_t b, int64_t *result) noexcept nogil:
    """The value of a term, or 1 with `result` as it was."""
    cdef int64_t value = 0
    if calculate(kind, a, b, &value):
        return 1
    result[0] = value
    return 0


cdef int corners(int64_t kind, Span a, Span b, Span *found) noexcept nogil:
    """The span of what is monotone in each operand for any value of the other one."""
    cdef int64_t[4] values = [0, 0, 0, 0]
    cdef int k
    if (calculate(kind, a.least, b.least, &values[0]) or calculate(kind, a.least, b.most, &values[1])
            or calculate(kind, a.most, b.least, &values[2]) or calculate(kind, a.most, b.most, &values[3])):
        return 1
    found.least = found.most = values[0]
    for k in range(1, 4):
        found.least, found.most = min(found.least, values[k]), max(found.most, values[k])
    return 0


cdef int rest(Span a, Span b, Span *found) noexcept nogil:
    """The span of a rest, which has the sign of the divisor."""
    if b.least <= 0 <= b.most:
        return 1
    if b.least == b.most == -1:
        found.least = found.most = 0
        return 0
    if b.least == b.most and a.least // b.least == a.most // b.least:
        found.least, found.most = a.least % b.least, a.most % b.least
        return 0
    found.least = 0 if b.least > 0 else b.least + 1
    found.most = b.most - 1 if b.least > 0 else 0
    if b.least > 0 and a.least >= 0:
        found.most = min(found.most, a.most)
    return 0


cdef int real_corners(int64_t kind, Span a, Span b, Span *found) noexcept nogil:
    """The span of a real term: rounding keeps the order, so the outermost corners are exact bounds."""
    cdef double x[2]
    cdef double y[2]
    cdef double value, least, most
    cdef int k
    x[0], x[1], y[0], y[1] = as_real(a.least), as_real(a.most), as_real(b.least), as_real(b.most)
    if not (x[0] <= x[1] and y[0] <= y[1]) or (kind == REAL_DIV and y[0] <= 0 <= y[1]):
        return 1        # no number, or none of an operand before
    least = most = calculate_real(kind, x[0], y[0])
    for k in range(4):
        value = calculate_real(kind, x[k >> 1], y[k & 1])
        if value != value:
            return 1
        least, most = min(least, value), max(most, value)
    found.least, found.most = as_bits(least), as_bits(most)
    return 0


cdef int judge(int64_t kind, Span a, Span b) noexcept nogil:
    """Whether a relation holds for all values of both spans, for none, or for some."""
    cdef double x, y
    if kind >= REAL_LESS:
        x, y = as_real(a.most), as_real(b.most)
        if x != x or y != y:
            return OPEN         # not bounded
        return relate(kind - REAL_LESS + LESS, as_real(a.least), x, as_real(b.least), y)
    return relate(kind, a.least, a.most, b.least, b.most)


cdef int relate(int64_t kind, Number least_a, Number most_a, Number least_b, Number most_b) noexcept nogil:
    if kind == EQUAL:
        if most_a < least_b or most_b < least_a:
            return FAILS
        return HOLDS if least_a == most_a and least_b == most_b else OPEN
    if most_a < least_b or (kind == LESS_EQUAL and most_a <= least_b):
        return HOLDS
    return FAILS if least_a > most_b or (kind == LESS and least_a >= most_b) else OPEN


cdef int judge_bits(Span a, Span b) noexcept nogil:
    """Whether real numbers are the same bit by bit; zeros of both signs lie in one span."""
    cdef int found = judge(REAL_EQUAL, a, b)
    if found == HOLDS and (a.least != b.least or as_real(a.least) == 0):
        return OPEN
    return found
