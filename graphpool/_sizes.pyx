"""Sizes that may vary: integers that carry the value they have now and remember how it came about.

While a model is compiled for one set of shapes, its variable sizes are `Size` objects. Arithmetic on them records
terms; comparing one records the outcome as a check; whatever needs the plain number (an index, a hash, a C argument)
records that the size has this value. So code that knows nothing of variable sizes is right, and code that asks less
of them serves more shapes. A `SizeProgram` computes all terms for other values, in C, and says whether the checks come
out as they did: then every decision of the compilation would be the same.

Source: the symbolic integers of PyTorch (torch.SymInt: hints, guards) in idea.
"""

from cpython.long cimport PyLong_AsLongLongAndOverflow
from cpython.object cimport Py_EQ, Py_GE, Py_GT
from libc.stdint cimport INT64_MIN, int32_t, int64_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from math import ceil, floor
from operator import index

from graphpool.errors import StateError, explain

__all__ = [
    "Preference", "Real", "Size", "Trace", "as_size", "hint_of", "is_variable", "key_of", "largest", "least", "scaled"
]


cdef int64_t[6] _RELATIONS = [LESS, LESS_EQUAL, EQUAL, EQUAL, LESS_EQUAL, LESS]     # or their opposites, by Py_LT ..
_END = 2**63
_SIGNS = {
    ADD: "+", SUB: "-", MUL: "*", FLOORDIV: "//", MOD: "%", LESS: "<", LESS_EQUAL: "<=", EQUAL: "==",
    REAL_ADD: "+", REAL_SUB: "-", REAL_MUL: "*", REAL_DIV: "/", REAL_LESS: "<", REAL_LESS_EQUAL: "<=", REAL_EQUAL: "==",
}
_OPPOSITES = {LESS: ">=", LESS_EQUAL: ">", EQUAL: "!=", REAL_LESS: ">=", REAL_LESS_EQUAL: ">", REAL_EQUAL: "!="}


cdef class Trace:
    """What one compilation asks of its variable sizes.

    Attributes
    ----------
    nsymbols : int
        Sizes that may vary by themselves.
    is_closed : bool

    Notes
    -----
    Ownership: sizes keep their trace alive. Threads: one at a time. Cost: about 0.2 us an operation on sizes.
    """

    def __cinit__(self):
        self.names, self.numbers, self.checks, self.preferred = [], {}, {}, set()

    def __dealloc__(self):
        free(self.terms)
        free(self.hints)

    def symbol(self, int64_t value, name=None):
        """A new size that may vary, `value` now, and what people call it."""
        self.names.append(f"s{self.nsymbols}" if name is None else name)
        return new_size(self, self.put(SYMBOL, self.nsymbols, 0, value))

    cdef int64_t put(self, int64_t kind, int64_t a, int64_t b, int64_t hint) except -1:
        key = (kind, a, b)
        found = self.numbers.get(key)
        if found is not None:
            return found
        if self.is_closed:
            raise StateError(explain("a size of a compilation that has ended was used", hint="report this"))
        if self.nterms == self.room:
            self._grow()
        self.terms[self.nterms].kind, self.terms[self.nterms].a, self.terms[self.nterms].b = kind, a, b
        self.hints[self.nterms] = hint
        self.numbers[key] = self.nterms
        self.nsymbols += kind == SYMBOL
        self.nterms += 1
        return self.nterms - 1

    def _grow(self):
        cdef int64_t room = max(256, 2 * self.room)
        cdef Term *terms = <Term *>realloc(self.terms, room * sizeof(Term))
        if terms == NULL:
            raise MemoryError()
        self.terms = terms
        cdef int64_t *hints = <int64_t *>realloc(self.hints, room * sizeof(int64_t))
        if hints == NULL:
            raise MemoryError()
        self.hints, self.room = hints, room

    cdef int64_t constant(self, int64_t value) except -1:
        # two halves: a term holds 32-bit numbers
        return self.put(CONSTANT, <int32_t><uint32_t>value, <int32_t>(value >> 32), value)

    cdef object compute(self, int64_t kind, int64_t a, int64_t b):
        """A size, or an int where the result does not vary."""
        cdef int64_t result = 0
        cdef bint plain_a = self.terms[a].kind == CONSTANT, plain_b = self.terms[b].kind == CONSTANT
        if (kind == FLOORDIV or kind == MOD) and self.decide(EQUAL, b, self.constant(0)):
            raise ZeroDivisionError("integer division or modulo by zero")
        if calculate(kind, self.hints[a], self.hints[b], &result):
            raise OverflowError("size beyond 64 bits")
        if plain_a and plain_b:
            return result
        if kind == MUL:
            return self._product(a, b, result)
        if kind == FLOORDIV or kind == MOD:
            return self._quotient(kind, a, b, result)
        if kind == ADD or kind == SUB:
            return self._sum(kind, a, b, result)
        if a == b:
            return new_size(self, a)
        return new_size(self, self.put(kind, min(a, b), max(a, b), result))

    cdef list _factors(self, int64_t term):
        """The factors of a term: the constant one first, the others ascending."""
        if self.terms[term].kind == CONSTANT:
            return [self.hints[term]]
        if self.terms[term].kind != MUL:
            return [1, term]
        cdef list found = self._factors(self.terms[term].a)
        if self.terms[self.terms[term].b].kind == CONSTANT:
            found[0] *= self.hints[self.terms[term].b]
        else:
            found.append(self.terms[term].b)
        return found

    cdef object _made_of(self, int64_t scale, list factors):
        """The product of a constant and of terms, ascending: one way for each product, the constant behind."""
        cdef int64_t found, k, hint = 0
        if scale == 0 or not factors:
            return scale
        found = factors[0]
        for k in factors[1:]:
            if calculate(MUL, self.hints[found], self.hints[k], &hint):
                raise OverflowError("size beyond 64 bits")
            found = self.put(MUL, found, k, hint)
        if scale != 1:
            if calculate(MUL, self.hints[found], scale, &hint):
                raise OverflowError("size beyond 64 bits")
            found = self.put(MUL, found, self.constant(scale), hint)
        return new_size(self, found)

    cdef object _product(self, int64_t a, int64_t b, int64_t result):
        """The product of two terms, at most one of them constant."""
        if self.terms[a].kind == CONSTANT:
            a, b = b, a
        if self.terms[b].kind == CONSTANT:
            if self.hints[b] == 0 or self.hints[b] == 1:
                return new_size(self, a) if self.hints[b] else 0
            if self.terms[a].kind != MUL or self.terms[self.terms[a].b].kind != CONSTANT:
                return new_size(self, self.put(MUL, a, b, result))
        elif self.terms[a].kind != MUL and self.terms[b].kind != MUL:
            return new_size(self, self.put(MUL, min(a, b), max(a, b), result))
        cdef list left = self._factors(a), right = self._factors(b)
        return self._made_of(left[0] * right[0], sorted(left[1:] + right[1:]))

    cdef object _quotient(self, int64_t kind, int64_t a, int64_t b, int64_t result):
        """A quotient or its rest: exact where the divisor is among the factors."""
        cdef list left = self._factors(a), right = self._factors(b)
        cdef list rest = left[1:]
        for factor in right[1:]:
            if factor not in rest:
                return new_size(self, self.put(kind, a, b, result))
            rest.remove(factor)
        if left[0] % right[0]:
            return new_size(self, self.put(kind, a, b, result))
        return 0 if kind == MOD else self._made_of(left[0] // right[0], rest)

    cdef object _sum(self, int64_t kind, int64_t a, int64_t b, int64_t result):
        """A sum or difference: constants add up behind, and what is added and subtracted again goes."""
        cdef int64_t offset
        if kind == SUB:
            if a == b:
                return 0
            if self.terms[b].kind == SUB and self.terms[a].kind == CONSTANT and self.hints[a] == 0:
                return self._sum(SUB, self.terms[b].b, self.terms[b].a, result)
            if self.terms[b].kind == CONSTANT and self.hints[b] != INT64_MIN:
                return self._sum(ADD, a, self.constant(-self.hints[b]), result)
            if self.terms[a].kind == ADD:
                if self.terms[a].a == b:
                    return self._plain(self.terms[a].b)
                if self.terms[a].b == b:
                    return new_size(self, self.terms[a].a)
            return new_size(self, self.put(SUB, a, b, result))
        if self.terms[a].kind == CONSTANT:
            a, b = b, a
        if self.terms[b].kind == CONSTANT:
            offset = self.hints[b]
            if self.terms[a].kind == ADD and self.terms[self.terms[a].b].kind == CONSTANT:
                if calculate(ADD, offset, self.hints[self.terms[a].b], &offset) == 0:
                    a, b = self.terms[a].a, self.constant(offset)
            return new_size(self, a if self.hints[b] == 0 else self.put(ADD, a, b, result))
        if self.terms[a].kind == SUB and self.terms[a].b == b:
            return self._plain(self.terms[a].a)
        if self.terms[b].kind == SUB and self.terms[b].b == a:
            return self._plain(self.terms[b].a)
        return new_size(self, self.put(ADD, min(a, b), max(a, b), result))

    cdef object _plain(self, int64_t term):
        """A term as an int if it is a constant."""
        return self.hints[term] if self.terms[term].kind == CONSTANT else new_size(self, term)

    cdef bint decide(self, int64_t kind, int64_t a, int64_t b) except -1:
        """Whether the relation holds now; it must for all values that the program is used for."""
        cdef bint result = holds(kind, self.hints[a], self.hints[b])
        if self._is_fixed(a) and self._is_fixed(b):
            return result
        if a == b and kind < REAL_LESS:     # a real number may be none
            return result
        if kind == EQUAL and a > b:
            a, b = b, a
        key = (kind, a, b)
        if key not in self.checks:
            if self.is_closed:
                raise StateError(explain("a size of a compilation that has ended was compared", hint="report this"))
            self.checks[key] = result
            if self.npreferences:
                self.preferred.add(key)
        elif not self.npreferences:
            self.preferred.discard(key)
        return result

    cdef bint _is_fixed(self, int64_t term):
        return self.terms[term].kind == CONSTANT or self.terms[term].kind == REAL_CONSTANT

    cdef int64_t put_real(self, double value) except -1:
        """The term of a real constant."""
        cdef int64_t bits = as_bits(value)
        return self.put(REAL_CONSTANT, <int32_t><uint32_t>bits, <int32_t>(bits >> 32), bits)

    def close(self):
        """End the compilation: sizes are refused from now on where they ask anything new. Idempotent."""
        self.is_closed = True

    def symbols(self):
        """The sizes that may vary by themselves, in the order in which they were made."""
        numbers = [self.numbers[SYMBOL, k, 0] for k in range(self.nsymbols)]
        return [new_size(self, number) for number in numbers]

    def conditions(self):
        """The checks for people: what the compilation took for granted, in its order."""
        return [self.condition(*check, result) for check, result in self.checks.items()]

    def condition(self, int64_t kind, int64_t a, int64_t b, bint result):
        """A check that came out so, for people."""
        if kind == EQUAL and self._is_fixed(a):
            a, b = b, a
        return f"{self.text(a)} {(_SIGNS if result else _OPPOSITES)[kind]} {self.text(b)}"

    def text(self, int64_t term, int64_t depth=8):
        """A term for people; what lies deeper is left out, since terms share parts and would grow without bound."""
        cdef Term found = self.terms[term]
        if found.kind == SYMBOL:
            return self.names[found.a]
        if found.kind == CONSTANT:
            return str(self.hints[term])
        if found.kind == REAL_CONSTANT:
            return str(as_real(self.hints[term]))
        if found.kind == REAL_OF:
            return self.text(found.a, depth)
        if depth == 0:
            return "..."
        if found.kind == SCALED:
            return f"floor({self.text(found.a, depth - 1)} * {as_factor(self.hints[found.b]):.9g})"
        a, b = self.text(found.a, depth - 1), self.text(found.b, depth - 1)
        if found.kind == MIN or found.kind == MAX:
            return f"{'min' if found.kind == MIN else 'max'}({a}, {b})"
        return f"({a} {_SIGNS[found.kind]} {b})"


cdef object operate(int64_t kind, x, y):
    """A term of two operands, of which at least one is a size; NotImplemented for what is no integer."""
    cdef Trace trace = (<Size>x).trace if type(x) is Size else (<Size>y).trace
    cdef int64_t a, b
    if isinstance(x, (float, Real)) or isinstance(y, (float, Real)):
        if kind <= MUL:
            return operate_real(REAL_ADD + kind - ADD, x, y)
        return plain(x) // plain(y) if kind == FLOORDIV else plain(x) % plain(y)
    a = number_of(trace, x)
    b = number_of(trace, y)
    if a < 0 or b < 0:
        return NotImplemented
    return trace.compute(kind, a, b)


cdef object operate_real(int64_t kind, x, y):
    """A real term of two operands, of which at least one is a size or a `Real`."""
    cdef Trace trace = trace_of(x) or trace_of(y)
    cdef int64_t a, b
    cdef Real made
    a = real_of(trace, x)
    b = real_of(trace, y)
    if a < 0 or b < 0:
        return NotImplemented
    if kind == REAL_DIV and trace.decide(REAL_EQUAL, b, trace.put_real(0.0)):
        raise ZeroDivisionError("float division by zero")
    made = Real.__new__(Real)
    made.trace = trace
    made.term = <int32_t>trace.put(kind, a, b, as_bits(calculate_real(kind, as_real(trace.hints[a]),
                                                                      as_real(trace.hints[b]))))
    return made


cdef int64_t real_of(Trace trace, x) except -2:
    """The real term of an operand; -1 for what is no number."""
    cdef int64_t term
    if type(x) is Real:
        check_trace(trace, (<Real>x).trace)
        return (<Real>x).term
    if type(x) is Size:
        term = number_of(trace, x)
        if not is_exact(trace.hints[term]):
            raise OverflowError("size beyond what a real number tells from its neighbours")
        return trace.put(REAL_OF, term, 0, as_bits(<double>trace.hints[term]))
    if hasattr(x, "__len__") or not hasattr(x, "__float__"):
        return -1
    if not isinstance(x, float) and float(x) != x:
        raise OverflowError("number beyond what a real number tells from its neighbours")
    return trace.put_real(float(x))


cdef int check_trace(Trace trace, Trace other) except -1:
    if trace is not other:
        raise StateError(explain("sizes of two compilations meet", hint="report this"))
    return 0


cdef object compare_real(int64_t kind, x, y, bint wanted):
    cdef Trace trace = trace_of(x) or trace_of(y)
    cdef int64_t a = real_of(trace, x), b = real_of(trace, y)
    if a < 0 or b < 0:
        return NotImplemented
    return trace.decide(kind, a, b) == wanted


cdef int64_t number_of(Trace trace, x) except -2:
    """The term of an operand; -1 for what is no integer."""
    if type(x) is Size:
        check_trace(trace, (<Size>x).trace)
        return (<Size>x).term
    if type(x) is int:
        return trace.constant(x)
    if isinstance(x, float) or hasattr(x, "__len__") or not hasattr(x, "__index__"):
        return -1
    return trace.constant(int(x))


cdef bint is_beyond(x) except -1:
    """Whether it is an integer beyond all sizes."""
    cdef int overflow = 0
    if type(x) is int:
        PyLong_AsLongLongAndOverflow(x, &overflow)
        return overflow != 0
    return type(x) is not Size and hasattr(x, "__index__") and not hasattr(x, "__len__") and not INT64_MIN <= x < _END


cdef object compare(int64_t kind, x, y, bint wanted):
    cdef Trace trace = (<Size>x).trace if type(x) is Size else (<Size>y).trace
    cdef int64_t a, b
    if isinstance(y, (float, Real)):
        return compare_real(kind - LESS + REAL_LESS, x, y, wanted)
    if is_beyond(y):
        return (kind != EQUAL and y > 0) == wanted
    a = number_of(trace, x)
    b = number_of(trace, y)
    if a < 0 or b < 0:
        return NotImplemented
    return trace.decide(kind, a, b) == wanted


cdef class Size:
    """An integer that may vary, with the value that it has now; made by `Trace.symbol` and by arithmetic.

    Notes
    -----
    Immutable. Comparisons record their outcome; `int`, hashing and C record that the size has its value.
    Threads: those of the trace.
    """

    def __add__(self, other):
        return operate(ADD, self, other)

    def __radd__(self, other):
        return operate(ADD, other, self)

    def __sub__(self, other):
        return operate(SUB, self, other)

    def __rsub__(self, other):
        return operate(SUB, other, self)

    def __mul__(self, other):
        if isinstance(other, (list, tuple, str, bytes)):
            return self.__index__() * other
        return operate(MUL, self, other)

    def __rmul__(self, other):
        if isinstance(other, (list, tuple, str, bytes)):
            return other * self.__index__()
        return operate(MUL, other, self)

    def __floordiv__(self, other):
        return operate(FLOORDIV, self, other)

    def __rfloordiv__(self, other):
        return operate(FLOORDIV, other, self)

    def __mod__(self, other):
        return operate(MOD, self, other)

    def __rmod__(self, other):
        return operate(MOD, other, self)

    def __divmod__(self, other):
        return self // other, self % other

    def __rdivmod__(self, other):
        return other // self, other % self

    def __neg__(self):
        return 0 - self

    def __pos__(self):
        return self

    def __abs__(self):
        return -self if self < 0 else self

    def __richcmp__(self, other, int op):
        return compare(_RELATIONS[op], self, other, op <= Py_EQ)

    def __bool__(self):
        return compare(EQUAL, self, 0, False)

    def __index__(self):
        value = self.trace.hints[self.term]
        self.trace.decide(EQUAL, self.term, self.trace.constant(value))
        return value

    def __int__(self):
        return self.__index__()

    def __float__(self):
        return float(self.__index__())

    def __truediv__(self, other):
        return operate_real(REAL_DIV, self, other)

    def __rtruediv__(self, other):
        return operate_real(REAL_DIV, other, self)

    def __pow__(self, other, modulo):
        return pow(self.__index__(), plain(other), modulo)

    def __rpow__(self, other, modulo):
        return pow(other, self.__index__(), modulo)

    def __and__(self, other):
        return self.__index__() & plain(other)

    def __rand__(self, other):
        return other & self.__index__()

    def __or__(self, other):
        return self.__index__() | plain(other)

    def __ror__(self, other):
        return other | self.__index__()

    def __xor__(self, other):
        return self.__index__() ^ plain(other)

    def __rxor__(self, other):
        return other ^ self.__index__()

    def __invert__(self):
        return -1 - self

    def __lshift__(self, other):
        return self * (1 << plain(other))

    def __rlshift__(self, other):
        return other << self.__index__()

    def __rshift__(self, other):
        return self // (1 << plain(other))

    def __rrshift__(self, other):
        return other >> self.__index__()

    def __round__(self, digits=None):
        return self if digits is None else round(self.__index__(), digits)

    def __trunc__(self):
        return self

    def __floor__(self):
        return self

    def __ceil__(self):
        return self

    def __hash__(self):
        return hash(self.__index__())

    def __format__(self, spec):
        return format(self.__index__(), spec) if spec else repr(self)

    def bit_length(self):
        return self.__index__().bit_length()

    def __reduce__(self):
        return int, (self.__index__(),)

    def __repr__(self):
        return f"{self.trace.text(self.term)}"

    @property
    def number(self):
        """The term of the trace that it is: what `SizeProgram.evaluate` numbers results by."""
        return self.term


cdef class Real:
    """A real number made of sizes, such as a cost; made by arithmetic of sizes and floats.

    Notes
    -----
    As `Size`: comparisons record their outcome, and `float` that it has its value.
    """

    def __add__(self, other):
        return operate_real(REAL_ADD, self, other)

    def __radd__(self, other):
        return operate_real(REAL_ADD, other, self)

    def __sub__(self, other):
        return operate_real(REAL_SUB, self, other)

    def __rsub__(self, other):
        return operate_real(REAL_SUB, other, self)

    def __mul__(self, other):
        return operate_real(REAL_MUL, self, other)

    def __rmul__(self, other):
        return operate_real(REAL_MUL, other, self)

    def __truediv__(self, other):
        return operate_real(REAL_DIV, self, other)

    def __rtruediv__(self, other):
        return operate_real(REAL_DIV, other, self)

    def __neg__(self):
        return operate_real(REAL_MUL, self, -1.0)

    def __abs__(self):
        return -self if self < 0 else self

    def __floordiv__(self, other):
        return self.__float__() // plain(other)

    def __rfloordiv__(self, other):
        return plain(other) // self.__float__()

    def __mod__(self, other):
        return self.__float__() % plain(other)

    def __rmod__(self, other):
        return plain(other) % self.__float__()

    def __divmod__(self, other):
        return divmod(self.__float__(), plain(other))

    def __rdivmod__(self, other):
        return divmod(plain(other), self.__float__())

    def __pow__(self, other, modulo):
        return pow(self.__float__(), plain(other), modulo)

    def __rpow__(self, other, modulo):
        return pow(other, self.__float__(), modulo)

    def __round__(self, digits=None):
        return round(self.__float__(), digits)

    def __richcmp__(self, other, int op):
        if op == Py_GT or op == Py_GE:      # not what is opposite to another relation: neither holds of NaN
            return compare_real(REAL_LESS if op == Py_GT else REAL_LESS_EQUAL, other, self, True)
        return compare_real(_RELATIONS[op] - LESS + REAL_LESS, self, other, op <= Py_EQ)

    def __bool__(self):
        return compare_real(REAL_EQUAL, self, 0.0, False)

    def __float__(self):
        cdef double value = as_real(self.trace.hints[self.term])
        self.trace.decide(EQUAL, self.term, self.trace.put_real(value))     # bit by bit: NaN, the sign of 0
        return value

    def __int__(self):
        return int(self.__float__())

    def __trunc__(self):
        return int(self.__float__())

    def __floor__(self):
        return floor(self.__float__())

    def __ceil__(self):
        return ceil(self.__float__())

    def __hash__(self):
        return hash(self.__float__())

    def __format__(self, spec):
        return format(self.__float__(), spec) if spec else repr(self)

    def __repr__(self):
        return f"{self.trace.text(self.term)}"

    @property
    def number(self):
        """As of `Size`; the result is the bits of the double."""
        return self.term


class Preference:
    """Within it, comparisons of these numbers decide what is faster, not what is right.

    A program may then serve sizes for which they come out otherwise. Only what is compared for the first time counts:
    what is compared outside too must hold.
    """

    def __init__(self, *numbers):
        self._trace = next((trace for trace in map(trace_of, numbers) if trace is not None), None)

    def __enter__(self):
        if self._trace is not None:
            (<Trace>self._trace).npreferences += 1

    def __exit__(self, *exc_info):
        if self._trace is not None:
            (<Trace>self._trace).npreferences -= 1


def hint_of(x):
    """The value that a size has now, without a record: for costs and messages; other values as they are."""
    if type(x) is Real:
        return as_real((<Real>x).trace.hints[(<Real>x).term])
    return (<Size>x).trace.hints[(<Size>x).term] if type(x) is Size else x


def key_of(x):
    """A value to find it by in dicts: sizes in tuples are told apart by how they came about, which decides nothing."""
    if type(x) is Size:
        return (Size, (<Size>x).term)
    if isinstance(x, tuple):
        return tuple([key_of(item) for item in x])
    return x


def as_size(x):
    """A number as an int, or as it is where it varies."""
    return x if type(x) is Size else index(x)


def is_variable(x):
    """Whether it is a `Size`."""
    return type(x) is Size


def least(x, y):
    """The smaller of two sizes or ints, as a term instead of a decision."""
    return operate(MIN, x, y) if type(x) is Size or type(y) is Size else min(x, y)


def largest(x, y):
    """The larger of two sizes or ints, as a term instead of a decision."""
    return operate(MAX, x, y) if type(x) is Size or type(y) is Size else max(x, y)


def scaled(x, float factor):
    """The floor of a size or int times a factor, as float32 has the product: the size that ONNX's scales give.

    Raises
    ------
    OverflowError
        It is beyond 63 bits, or no number.
    """
    cdef Trace trace = trace_of(x)
    cdef int64_t value = hint_of(x), result = 0
    cdef int32_t bits
    memcpy(&bits, &factor, 4)
    if scale(value, factor, &result):
        raise OverflowError("size beyond 64 bits")
    if trace is None:
        return result
    return new_size(trace, trace.put(SCALED, (<Size>x).term, trace.constant(bits), result))
