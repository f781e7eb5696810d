"""Computes sizes anew for other values, and says whether every decision that was taken on them would be the same."""

from libc.stdint cimport int32_t, int64_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from graphpool._sizes cimport (
    CONSTANT, REAL_CONSTANT, REAL_DIV, REAL_OF, SYMBOL, Size, Trace, as_bits, as_real, calculate, calculate_real, holds,
    is_exact
)

from graphpool._sizes import Real
from graphpool.errors import StateError, explain

__all__ = ["Numbers", "SizeProgram", "SizeTable", "SizeValues"]


cdef inline bint lacks_value(Term term, const int64_t *values, const int64_t *results, int64_t *result) noexcept nogil:
    """Whether a term has no value; it follows from those of earlier ones."""
    if term.kind == SYMBOL:
        result[0] = values[term.a]
    elif term.kind == CONSTANT or term.kind == REAL_CONSTANT:
        result[0] = (<int64_t>term.b << 32) | <int64_t><uint32_t>term.a
    elif term.kind == REAL_OF:
        if not is_exact(results[term.a]):
            return 1
        result[0] = as_bits(<double>results[term.a])
    elif term.kind > REAL_OF:
        if term.kind == REAL_DIV and as_real(results[term.b]) == 0.0:
            return 1
        result[0] = as_bits(calculate_real(term.kind, as_real(results[term.a]), as_real(results[term.b])))
    else:
        return calculate(term.kind, results[term.a], results[term.b], result)
    return 0


cdef class SizeProgram:
    """Terms and checks of a `Trace`, computed for other values of its symbols.

    Attributes
    ----------
    nsymbols : int

    Notes
    -----
    Ownership: owns a copy of the terms, keeps the trace, whose sizes it knows. Threads: immutable, safe.
    Cost: about 2 ns a term.
    """

    def __cinit__(self, Trace trace not None):
        cdef int64_t k = 0
        checks = sorted(trace.checks.items(), key=lambda check: check[0] in trace.preferred)
        self.nhard = len(checks) - len(trace.preferred)
        self.trace = trace
        self.nterms, self.nsymbols, self.nchecks = trace.nterms, trace.nsymbols, len(checks)
        self.terms = <Term *>malloc(max(self.nterms, 1) * sizeof(Term))
        self.checks = <Term *>malloc(max(self.nchecks, 1) * sizeof(Term))
        if self.terms == NULL or self.checks == NULL:
            raise MemoryError()
        if self.nterms:
            memcpy(self.terms, trace.terms, self.nterms * sizeof(Term))
        for (kind, a, b), result in checks:
            # the outcome as the sign bit of the kind
            self.checks[k].kind, self.checks[k].a, self.checks[k].b = kind if result else -kind, a, b
            k += 1

    def __dealloc__(self):
        free(self.terms)
        free(self.checks)

    def __reduce__(self):
        return SizeProgram, (self.trace,)

    cdef int64_t evaluate(self, const int64_t *values, int64_t *results) noexcept nogil:
        """Fill in the value of each term; 0, or the number from 1 of a check that fails, negative for a term that has
        no value."""
        cdef int64_t k
        for k in range(self.nterms):
            if lacks_value(self.terms[k], values, results, &results[k]):
                return -k - 1
        return self._first_failing(self.nterms, results)

    cdef int64_t _first_failing(self, int64_t nterms, const int64_t *results) noexcept nogil:
        """The number from 1 of the first check on these first terms that fails; 0 if none does."""
        cdef int64_t k
        cdef Term term
        for k in range(self.nchecks):
            term = self.checks[k]
            if term.a >= nterms or term.b >= nterms:
                continue
            if holds(term.kind if term.kind > 0 else -term.kind, results[term.a], results[term.b]) != (term.kind > 0):
                return k + 1
        return 0

    def compute(self, values, bint exactly=True):
        """All terms for these values of the symbols, `SizeValues`; None if a check comes out otherwise.

        Those that only say what is faster count if `exactly`.
        """
        cdef int64_t status
        cdef SizeValues found = SizeValues(self.trace, self.nterms, self.nsymbols)
        cdef int64_t k
        if len(values) != self.nsymbols:
            raise StateError(explain("values of symbols", accepted=self.nsymbols, got=len(values)))
        for k in range(self.nsymbols):
            found.values[self.nterms + k] = values[k]
        status = self.evaluate(found.values + self.nterms, found.values)
        return found if status == 0 or (status > self.nhard and not exactly) else None

    def failing(self, values):
        """The first check that comes out otherwise for these values of the symbols, for people; None if none does."""
        cdef SizeValues found = SizeValues(self.trace, self.nterms, self.nsymbols)
        cdef int64_t k, status
        cdef Term check
        for k in range(self.nsymbols):
            found.values[self.nterms + k] = values[k]
        status = self.evaluate(found.values + self.nterms, found.values)
        if status < 0:
            status = self._first_failing(-status - 1, found.values) or status
        if status <= 0:
            return None if status == 0 else "sizes within 64 bits"
        check = self.checks[status - 1]
        return self.trace.condition(abs(check.kind), check.a, check.b, check.kind > 0)


cdef class SizeValues:
    """What the sizes of a compilation are for other values of its symbols.

    Notes
    -----
    Threads: immutable, safe.
    """

    def __cinit__(self, Trace trace not None, int64_t nterms, int64_t nsymbols):
        self.trace, self.nterms = trace, nterms
        self.values = <int64_t *>malloc((nterms + nsymbols + 1) * sizeof(int64_t))
        if self.values == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.values)

    def of(self, x):
        """The value of a size or real number; other objects as they are."""
        if type(x) is Real:
            return as_real(self.values[x.number])
        if type(x) is not Size:
            return x
        if (<Size>x).trace is not self.trace or (<Size>x).term >= self.nterms:
            raise StateError(explain("a size of another compilation", hint="report this"))
        return self.values[(<Size>x).term]

    def shape(self, dims):
        """The values of a shape."""
        return tuple([self.of(x) for x in dims])


cdef class Numbers:
    """Integers in a row, within 64 bits.

    Notes
    -----
    Threads: immutable, safe.
    """

    def __init__(self, items):
        cdef int64_t k
        cdef tuple given = tuple(items)
        make_room(self, len(given))
        for k in range(self.count):
            self.numbers[k] = given[k]

    def __dealloc__(self):
        free(self.numbers)

    def __len__(self):
        return self.count

    def __getitem__(self, int64_t k):
        if not 0 <= k < self.count:
            raise IndexError(k)
        return self.numbers[k]

    def __iter__(self):
        cdef int64_t k
        return iter([self.numbers[k] for k in range(self.count)])

    def is_within(self, Numbers most not None):
        """Whether none is larger than the one at its place there, of as many."""
        cdef int64_t k
        for k in range(self.count):
            if self.numbers[k] > most.numbers[k]:
                return False
        return self.count == most.count

    @property
    def total(self):
        """Their sum, as a real number, since it may be beyond 64 bits."""
        cdef int64_t k
        cdef double found = 0
        for k in range(self.count):
            found += self.numbers[k]
        return found


cdef int make_room(Numbers made, int64_t count) except -1:
    """Let it have so many numbers, which are not written yet."""
    free(made.numbers)
    made.count, made.numbers = 0, <int64_t *>malloc(max(count, 1) * sizeof(int64_t))
    if made.numbers == NULL:
        raise MemoryError()
    made.count = count
    return 0


cdef class SizeTable:
    """Sizes in a row, of one trace, and plain numbers between them, which are computed at once.

    Parameters
    ----------
    sizes : sequence of int or Size

    Notes
    -----
    Threads: immutable, safe. Cost of `of`: about a nanosecond a number.
    """

    def __init__(self, sizes):
        cdef int64_t k
        self.plain = Numbers([0 if type(x) is Size else x for x in sizes])
        self.terms = <int32_t *>malloc(max(self.plain.count, 1) * sizeof(int32_t))
        if self.terms == NULL:
            raise MemoryError()
        for k in range(self.plain.count):
            self.terms[k] = -1
            if type(sizes[k]) is Size:
                self.terms[k], self.trace = (<Size>sizes[k]).term, (<Size>sizes[k]).trace
                self.most = max(self.most, self.terms[k])

    def __dealloc__(self):
        free(self.terms)

    def of(self, SizeValues values not None):
        """The values, `Numbers`."""
        cdef Numbers found
        cdef int64_t k
        if self.trace is None:
            return self.plain
        if self.trace is not values.trace or self.most >= values.nterms:
            raise StateError(explain("a size of another compilation", hint="report this"))
        found = Numbers.__new__(Numbers)
        make_room(found, self.plain.count)
        for k in range(found.count):
            found.numbers[k] = self.plain.numbers[k] if self.terms[k] < 0 else values.values[self.terms[k]]
        return found
