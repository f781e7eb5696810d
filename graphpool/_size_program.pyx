"""Computes sizes anew for other values, and says whether every decision that was taken on them would be the same."""

from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from graphpool._sizes cimport (
    CONSTANT, REAL_CONSTANT, REAL_DIV, REAL_OF, SYMBOL, Size, Trace, as_bits, as_real, calculate, calculate_real, holds,
    is_exact
)

from graphpool.errors import StateError, explain

__all__ = ["SizeProgram", "SizeValues"]


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
        memcpy(self.terms, trace.terms, self.nterms * sizeof(Term))
        for (kind, a, b), result in checks:
            # the outcome as the sign bit of the kind
            self.checks[k].kind, self.checks[k].a, self.checks[k].b = kind if result else -kind, a, b
            k += 1

    def __dealloc__(self):
        free(self.terms)
        free(self.checks)

    cdef int64_t evaluate(self, const int64_t *values, int64_t *results) noexcept nogil:
        """Fill in the value of each term; 0, -1 where one has none, or the number from 1 of a check that fails."""
        cdef int64_t k
        cdef Term term
        for k in range(self.nterms):
            term = self.terms[k]
            if term.kind == SYMBOL:
                results[k] = values[term.a]
            elif term.kind == CONSTANT or term.kind == REAL_CONSTANT:
                results[k] = (<int64_t>term.b << 32) | <int64_t><uint32_t>term.a
            elif term.kind == REAL_OF:
                if not is_exact(results[term.a]):
                    return -1
                results[k] = as_bits(<double>results[term.a])
            elif term.kind > REAL_OF:
                if term.kind == REAL_DIV and as_real(results[term.b]) == 0.0:
                    return -1
                results[k] = as_bits(calculate_real(term.kind, as_real(results[term.a]), as_real(results[term.b])))
            elif calculate(term.kind, results[term.a], results[term.b], &results[k]):
                return -1
        for k in range(self.nchecks):
            term = self.checks[k]
            if term.kind < 0:
                if holds(-term.kind, results[term.a], results[term.b]):
                    return k + 1
            elif not holds(term.kind, results[term.a], results[term.b]):
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
        """The value of a size; other objects as they are."""
        if type(x) is not Size:
            return x
        if (<Size>x).trace is not self.trace or (<Size>x).term >= self.nterms:
            raise StateError(explain("a size of another compilation", hint="report this"))
        return self.values[(<Size>x).term]

    def shape(self, dims):
        """The values of a shape."""
        return tuple([self.of(x) for x in dims])
