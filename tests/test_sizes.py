"""Arithmetic on sizes that may vary equals that of plain ints, for all values that their program accepts."""

import copy
import math
import operator
import random

import numpy as np
import pytest

from graphpool._size_program import SizeProgram
from graphpool._sizes import Real, Size, Trace, hint_of, is_variable, key_of, largest, least, scaled
from graphpool.errors import StateError

END = 2**63


class BeyondError(Exception):
    """A number beyond 64 bits."""


class Run:
    """Runs a program on plain numbers or on sizes, and writes down each decision."""

    def __init__(self, values):
        self.numbers, self.decisions = list(values), []

    def decide(self, outcome):
        self.decisions.append(outcome)
        return outcome

    def pin(self, number):
        return self.decide(int(number) if not isinstance(number, (float, Real)) else float(number).hex())

    def step(self, name, a, b, c):
        pick = self.numbers
        x, y = pick[a % len(pick)], pick[b % len(pick)]
        is_real = any(isinstance(number, (float, Real)) for number in (x, y))
        if name in ("//", "%") and is_real:
            self.pin(x), self.pin(y)
        result = STEPS[name](self, x, y, c)
        if isinstance(result, int) and not -END <= result < END:
            raise BeyondError
        if result is not None:
            pick.append(result)


def absolute(run, x, y, c):
    run.decide(x < 0)
    return abs(x)


def compare(relation):
    return lambda run, x, y, c: run.decide(relation(x, y)) and None


def branch(run, x, y, c):
    return x + c if run.decide(bool(x > y)) else x - y


def pinned(through):
    def step(run, x, y, c):
        run.pin(x)
        return through(x) if not isinstance(x, (float, Real)) else None

    return step


STEPS = {
    "+": lambda run, x, y, c: x + y, "-": lambda run, x, y, c: x - y, "*": lambda run, x, y, c: x * y,
    "//": lambda run, x, y, c: x // y, "%": lambda run, x, y, c: x % y,
    "+ c": lambda run, x, y, c: x + c, "c -": lambda run, x, y, c: c - x, "- c": lambda run, x, y, c: x - c,
    "c *": lambda run, x, y, c: c * x, "// c": lambda run, x, y, c: x // c if not isinstance(x, (float, Real)) else x,
    "% c": lambda run, x, y, c: x % c if not isinstance(x, (float, Real)) else x,
    "round up": lambda run, x, y, c: (x + 7) // 8 * 8 if not isinstance(x, (float, Real)) else x,
    "there and back": lambda run, x, y, c: (x + y) - y, "once more": lambda run, x, y, c: (x - y) + y,
    "/": lambda run, x, y, c: x / y, "* 0.5": lambda run, x, y, c: x * 0.5, "1.5 -": lambda run, x, y, c: 1.5 - x,
    "-x": lambda run, x, y, c: -x, "abs": absolute, "branch": branch,
    "<": compare(operator.lt), "<=": compare(operator.le), "==": compare(operator.eq), "!=": compare(operator.ne),
    ">": compare(operator.gt), ">=": compare(operator.ge),
    "bool": lambda run, x, y, c: run.decide(bool(x)) and None,
    "int": pinned(int), "hash": pinned(hash), "range": pinned(lambda x: len(range(max(int(x), 0)))),
    "format": pinned(lambda x: int(f"{x:5d}")), "%d": pinned(lambda x: int("%d".__mod__(x))),
    "index": pinned(operator.index),
    "least": lambda run, x, y, c: least(x, y) if not {float, Real} & {type(x), type(y)} else x,
    "largest": lambda run, x, y, c: largest(x, y) if not {float, Real} & {type(x), type(y)} else x,
    "scaled": lambda run, x, y, c: scaled(x, c / 10) if not isinstance(x, (float, Real)) else x,
}  # fmt: skip
RARE = ("int", "hash", "range", "format", "%d", "index", "==", "bool")
"""What fixes sizes: programs with much of it would accept nothing else."""


def random_program(rng, nsteps):
    names = [name for name in STEPS if name not in RARE or rng.random() < 0.1]
    return [
        (rng.choice(names), rng.randrange(1000), rng.randrange(1000), rng.choice((-7, -2, -1, 1, 2, 3, 8, 64)))
        for _ in range(nsteps)
    ]


def run_plain(program, values):
    """The run on plain numbers; None if it has no result in 64 bits."""
    run = Run(values)
    try:
        for step in program:
            run.step(*step)
    except (ZeroDivisionError, BeyondError, OverflowError):
        return None
    return run


def traced(program, values):
    trace = Trace()
    run = Run([trace.symbol(value) for value in values])
    for step in program:
        run.step(*step)
    trace.close()
    return trace, run


def now(number):
    """A number as bits, so that -0.0 and NaN are told apart."""
    return number.hex() if isinstance(number, float) else number


def compare_at(program, trace, run, values):
    """Whether these values are accepted, after having compared all that may be compared."""
    plain = run_plain(program, values)
    found = SizeProgram(trace).compute(values)
    alike = plain is not None and plain.decisions == run.decisions
    assert (found is not None) == alike, (values, trace.conditions())
    if found is not None:
        check_numbers(found, run, plain)
    return alike


def check_numbers(found, run, plain):
    for size, wanted in zip(run.numbers, plain.numbers, strict=True):
        if not isinstance(size, Real):
            assert found.of(size) == wanted


@pytest.mark.parametrize("seed", range(40))
def test_programs_of_sizes_equal_those_of_ints(seed):
    rng = random.Random(seed)
    accepted = 0
    for _ in range(15):
        values = [rng.choice((-3, -1, 0, 1, 2, 5, 17, 64, 1000)) for _ in range(3)]
        program = random_program(rng, rng.randrange(3, 12))
        plain = run_plain(program, values)
        if plain is None:
            continue
        trace, run = traced(program, values)
        assert run.decisions == plain.decisions
        assert [now(hint_of(number)) for number in run.numbers] == [now(number) for number in plain.numbers]
        assert compare_at(program, trace, run, values)
        for _ in range(10):
            others = [value + rng.choice((0, 0, 1, -1, 3, 64)) for value in values]
            accepted += compare_at(program, trace, run, others)
    assert accepted > 10


@pytest.mark.parametrize("seed", range(20))
def test_programs_near_the_end_of_64_bits_are_right_or_refused(seed):
    rng = random.Random(seed)
    ends = (0, 1, -1, 2**31, -(2**31), 2**53, 2**53 + 1, 2**62, END - 1, -END)
    refused = 0
    for _ in range(15):
        values = [rng.choice((1, 2, 3, -2)) for _ in range(3)]
        program = random_program(rng, rng.randrange(3, 10))
        if run_plain(program, values) is None:
            continue
        trace, run = traced(program, values)
        for _ in range(10):
            others = [rng.choice(ends) for _ in values]
            plain, found = run_plain(program, others), SizeProgram(trace).compute(others)
            refused += found is None
            if found is not None:
                assert plain is not None
                assert plain.decisions == run.decisions
                check_numbers(found, run, plain)
    assert refused > 10


def program_of(*values):
    """A trace, its symbols, and what says whether values are accepted."""
    trace = Trace()
    sizes = [trace.symbol(value) for value in values]
    return trace, sizes, lambda *others: SizeProgram(trace).compute(others) is not None


BINARY = {
    name: getattr(operator, name)
    for name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "and_", "or_", "xor", "lshift", "rshift")
} | {"pow": pow, "divmod": divmod, "lt": operator.lt, "le": operator.le, "eq": operator.eq, "ne": operator.ne}


@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("other", [3, True, 5.5, np.int64(3), np.float64(2.5), np.float32(2.5), "size", "real"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("kind", ["size", "real"])
def test_operators_take_what_numbers_take(name, other, side, kind):
    _, [size, second], _ = program_of(7, 2)
    mine, plain_mine = (size, 7) if kind == "size" else (size / 2, 3.5)
    theirs, plain_theirs = {"size": (second, 2), "real": (second * 0.5, 1.0)}.get(
        other if isinstance(other, str) else "", (other, other)
    )
    own, plain = ((mine, theirs), (plain_mine, plain_theirs))
    if side == "right":
        own, plain = own[::-1], plain[::-1]
    try:
        wanted = BINARY[name](*plain)
    except TypeError:
        with pytest.raises(TypeError):
            BINARY[name](*own)
        return
    found = BINARY[name](*own)
    if name == "divmod":
        assert tuple(map(hint_of, found)) == tuple(wanted)
    else:
        assert hint_of(found) == wanted


@pytest.mark.parametrize("of", [
    abs, operator.neg, operator.pos, operator.invert, bool, int, float, operator.index, hash, round, math.trunc,
    math.floor, math.ceil, math.sqrt, copy.copy, copy.deepcopy, "{:5d}".format, "{:,}".format, "%d".__mod__,
    "%5.1f".__mod__, lambda x: round(x, -1), lambda x: x.bit_length(), lambda x: [0] * x, lambda x: x * "ab",
    lambda x: list(range(x)), lambda x: "abcdefghijk"[:x], lambda x: np.array([x, 1], np.int64).tolist(),
    lambda x: np.zeros(x).shape, lambda x: {7: "found"}[x], lambda x: sorted([9, x, 1]), lambda x: sum([x, 1]),
    lambda x: max(x, 3), lambda x: divmod(x, 4), lambda x: divmod(40, x), lambda x: math.prod((x, x)),
])  # fmt: skip
def test_functions_of_numbers_take_sizes(of):
    _, [size], accepts = program_of(7)
    found = of(size)
    hints = [hint_of(item) for item in found] if isinstance(found, (tuple, list)) else hint_of(found)
    wanted = of(7)
    assert hints == (list(wanted) if isinstance(wanted, tuple) else wanted)
    assert accepts(7)


@pytest.mark.parametrize("of", [
    abs, operator.neg, bool, int, float, hash, round, math.trunc, math.floor, math.ceil, math.sqrt, "{:.3f}".format,
    "%5.1f".__mod__, lambda x: x // 2, lambda x: 9 // x, lambda x: x % 2, lambda x: 9 % x, lambda x: 2**x,
])  # fmt: skip
def test_functions_of_numbers_take_reals(of):
    _, [size], accepts = program_of(7)
    assert hint_of(of(size / 2)) == of(3.5)
    assert accepts(7)


def test_what_fixes_a_size_refuses_other_values():
    for pin in (int, hash, operator.index, "{:4}".format, "%d".__mod__, range, float, copy.copy, lambda x: x & 3):
        _, [size], accepts = program_of(6)
        pin(size * 2)
        assert accepts(6)
        assert not accepts(7)


def test_a_fixed_real_is_fixed_bit_by_bit():
    _, [size], accepts = program_of(0)
    assert math.copysign(1, float(size * -1.0)) == -1
    assert accepts(0)
    assert not accepts(1)
    _, [a], accepts = program_of(2**40)
    huge = a * 1e300 * 1e300
    assert math.isnan(float(huge - huge))
    assert accepts(2**40)
    assert not accepts(0)


def test_a_caught_division_by_zero_is_a_decision():
    for divide in (lambda x: 5 // x, lambda x: 5 % x, lambda x: 5 / x, lambda x: x // x):
        _, [size], accepts = program_of(0)
        with pytest.raises(ZeroDivisionError):
            divide(size)
        assert accepts(0)
        assert not accepts(1)
        _, [size], accepts = program_of(4)
        divide(size)
        assert not accepts(0)
        assert accepts(5)


def test_numbers_beyond_64_bits():
    _, [size], accepts = program_of(2**40)
    with pytest.raises(OverflowError):
        _ = size * size
    with pytest.raises(OverflowError):
        _ = size + 2**70
    assert size < 2**70
    assert size != 2**70
    assert not size > np.uint64(END)
    assert size > -(2**70)
    assert not size <= -(2**70)
    _ = size * 2**22
    assert accepts(1)
    assert not accepts(2**42)  # the product would have no 64 bits


def test_reals_of_sizes_that_doubles_cannot_tell_apart_are_refused():
    _, [size], accepts = program_of(4)
    assert size < 2.0**53
    assert accepts(2**53 - 1)
    assert not accepts(2**53 + 1)
    _, [size], _ = program_of(2**53 + 1)
    with pytest.raises(OverflowError):
        _ = size == 2.0**53
    with pytest.raises(OverflowError):
        _ = program_of(1)[1][0] / 2 < 2**53 + 1


def test_a_closed_trace_refuses_what_is_new():
    trace, [size], accepts = program_of(4)
    known, is_large = size + 1, size > 2
    trace.close()
    assert trace.is_closed
    assert is_large
    assert size > 2  # asked before
    assert (size + 1).number == known.number
    for new in (lambda: size * 3, lambda: size > 3, lambda: int(size), lambda: trace.symbol(1), lambda: size * 0.5):
        with pytest.raises(StateError):
            new()
    assert accepts(9)


def test_sizes_of_two_traces_refuse_one_another():
    _, [size], _ = program_of(4)
    _, [other], _ = program_of(4)
    for meet in (operator.add, operator.lt, operator.eq, operator.truediv, least, lambda a, b: a / 2 + b / 2,
                 lambda a, b: a / 2 < b, lambda a, b: a < b / 2):  # fmt: skip
        with pytest.raises(StateError, match="two compilations"):
            meet(size, other)


def test_values_are_of_sizes_of_one_trace():
    trace, [size], _ = program_of(4)
    program = SizeProgram(trace)
    values = program.compute([6])
    assert values.shape((size, 3)) == (6, 3)
    _, [other], _ = program_of(4)
    for foreign in (other, size + 1):  # the second is younger than the program
        with pytest.raises(StateError):
            values.of(foreign)
    with pytest.raises(StateError):
        program.compute([1, 2])
    assert program.nsymbols == 1


def test_conditions_are_text():
    trace, [a, b], _ = program_of(4, 6)
    assert a < b
    assert not a * 2 + 1 < 3
    assert (a + b) // 4 != 0
    assert b % 2 == 0
    assert a / 2 < 8.5
    assert largest(a, 5) != 3
    int(a - 1)
    assert trace.conditions() == [
        "s0 < s1", "((s0 * 2) + 1) >= 3", "((s0 + s1) // 4) != 0", "(s1 % 2) == 0", "(s0 / 2.0) < 8.5",
        "max(s0, 5) != 3", "(s0 + -1) == 3",
    ]  # fmt: skip


def test_text_of_terms_that_share_parts_stays_short():
    trace, [a], _ = program_of(1)
    for _ in range(200):
        a = a // 3 + a % 5
    assert len(repr(a)) < 10_000
    assert bool(a == 1)
    assert all(len(line) < 10_000 for line in trace.conditions())


@pytest.mark.parametrize("factor", [0.6, 0.7, 1 / 3, 2.3, 0.1, 1e-8, 7.0])
def test_scaled_sizes_are_rounded_as_float32_rounds_them(factor):
    trace = Trace()
    size = scaled(trace.symbol(10), factor)
    assert is_variable(size)
    program = SizeProgram(trace)
    for n in (0, 1, 3, 5, 7, 10, 49, 1000, 99_991, 2**24 + 1):
        wanted = int(np.floor(np.float32(n) * np.float32(factor)))
        assert scaled(n, factor) == wanted
        assert program.compute([n]).of(size) == wanted


@pytest.mark.parametrize("factor", [1e30, -1e30, float("nan"), float("inf")])
def test_scaled_sizes_beyond_64_bits_are_refused(factor):
    with pytest.raises(OverflowError, match="beyond 64 bits"):
        scaled(3, factor)


def test_scaled_sizes_have_values_within_64_bits():
    trace = Trace()
    scaled(trace.symbol(2), 2.0**40)
    assert SizeProgram(trace).compute([2**20]) is not None
    assert SizeProgram(trace).compute([2**30]) is None


def test_what_comes_to_the_same_is_one_size():
    _, [a, b], _ = program_of(4, 6)
    for one, other in (
        (a * b, b * a), (a + b, b + a), (a * 2 * b * 3, b * 6 * a), (a * b // b, a), ((a + 3) - 3, a), (a + b - b, a),
        (a * 8 // 4, a * 2), ((a - b) + b, a), (a + 1 + 2, 3 + a), (least(a, b), least(b, a)), (a + 0, a),
        (0 - (0 - a), a), (0 - (a - b), b - a),
    ):  # fmt: skip
        assert one.number == other.number
    assert a - a == 0
    assert type(a - a) is int
    assert type(a * 6 % 3) is int
    assert key_of((a, 1, (b, "x"))) == key_of((b * a // b, 1, (b, "x")))
    assert is_variable(a)
    assert not is_variable(4)
    assert isinstance(a, Size)
