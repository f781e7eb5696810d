"""Sizes that may vary as bytes: a trace that is closed, and sizes by their terms, where other pickles have numbers."""

from libc.stdint cimport int32_t, int64_t
from libc.stdlib cimport malloc
from libc.string cimport memcpy

from graphpool._sizes cimport SYMBOL, Real, Size, Term, Trace

__all__ = ["located", "read_trace", "real_at", "size_at", "write_trace"]


def write_trace(Trace trace not None):
    """What `read_trace` takes, for the same build."""
    terms = (<char *>trace.terms)[: trace.nterms * sizeof(Term)]
    hints = (<char *>trace.hints)[: trace.nterms * sizeof(int64_t)]
    return terms, hints, trace.names, list(trace.checks.items()), list(trace.preferred)


def read_trace(bytes terms not None, bytes hints not None, names, checks, preferred):
    """The trace again, closed."""
    cdef Trace trace = Trace()
    cdef int64_t k, count = len(hints) // sizeof(int64_t)
    trace.terms = <Term *>malloc(count * sizeof(Term) + 1)
    trace.hints = <int64_t *>malloc(count * sizeof(int64_t) + 1)
    if trace.terms == NULL or trace.hints == NULL:
        raise MemoryError()
    memcpy(trace.terms, <const char *>terms, count * sizeof(Term))
    memcpy(trace.hints, <const char *>hints, count * sizeof(int64_t))
    trace.nterms = trace.room = count
    for k in range(count):
        trace.nsymbols += trace.terms[k].kind == SYMBOL
        trace.numbers[trace.terms[k].kind, trace.terms[k].a, trace.terms[k].b] = k
    trace.names, trace.checks, trace.preferred, trace.is_closed = list(names), dict(checks), set(preferred), True
    return trace


def located(x):
    """The trace of a size or real number, and its term there, for `size_at` and `real_at`."""
    return (<Size>x).trace if type(x) is Size else (<Real>x).trace, x.number


def size_at(Trace trace not None, int32_t term):
    """The size that is this term."""
    cdef Size size = Size.__new__(Size)
    size.trace, size.term = trace, term
    return size


def real_at(Trace trace not None, int32_t term):
    """The real number that is this term."""
    cdef Real made = Real.__new__(Real)
    made.trace, made.term = trace, term
    return made
