"""Bounds of sizes hold for every value in a box, and what is said of the checks is so for all of them."""

import itertools
import random

import pytest

from graphpool._size_bounds import SizeBounds
from graphpool._size_program import SizeProgram
from graphpool._sizes import Real, Trace, largest, least
from graphpool.errors import StateError
from tests.test_sizes import random_program, run_plain, traced


def points(box, rng):
    """Corners of a box, and some values in it."""
    return [*itertools.product(*box), *([rng.randint(*span) for span in box] for _ in range(20))]


@pytest.mark.parametrize("seed", range(40))
def test_bounds_hold_in_the_whole_box(seed):
    rng = random.Random(seed)
    answers = set()
    for _ in range(25):
        low = [rng.choice((-3, -1, 0, 1, 2, 5, 17, 64, 1000)) for _ in range(3)]
        box = [(value, value + rng.choice((0, 0, 1, 3, 40))) for value in low]
        program = random_program(rng, rng.randrange(3, 12))
        hint = [rng.randint(*span) for span in box]
        if run_plain(program, hint) is None:
            continue
        trace, run = traced(program, hint)
        sizes = SizeProgram(trace)
        bounds = SizeBounds(sizes, box)
        for exactly in (True, False):
            answers.add(bounds.holds(exactly))
            for point in points(box, rng):
                found = sizes.compute(point, exactly)
                assert bounds.holds(exactly) in (None, found is not None), (box, point, trace.conditions())
                if found is None:
                    continue
                for size in run.numbers:
                    if not isinstance(size, Real):
                        assert bounds.least(size) <= found.of(size) <= bounds.most(size)
    assert None in answers


@pytest.mark.parametrize("seed", range(20))
def test_bounds_near_the_end_of_64_bits(seed):
    rng = random.Random(seed)
    ends = (0, 1, -1, 2**31, 2**53 - 1, 2**53 + 1, 2**62, 2**63 - 2, -(2**63))
    for _ in range(25):
        box = [(value, value + rng.choice((0, 1))) for value in rng.choices(ends, k=3)]
        program = random_program(rng, rng.randrange(3, 10))
        hint = [span[0] for span in box]
        if run_plain(program, hint) is None:
            continue
        try:
            trace, run = traced(program, hint)
        except OverflowError:
            continue
        sizes = SizeProgram(trace)
        bounds = SizeBounds(sizes, box)
        for point in points(box, rng):
            found = sizes.compute(point)
            assert bounds.holds() in (None, found is not None)
            for size in run.numbers:
                if found is not None and not isinstance(size, Real):
                    assert bounds.least(size) <= found.of(size) <= bounds.most(size)


def test_sizes_that_only_grow_reach_their_bound():
    trace = Trace()
    batch, tokens = trace.symbol(4), trace.symbol(100)
    rounded = (batch * tokens * 768 + 63) // 64 * 64
    windows = (tokens - 3) // 2 + 1
    clipped = largest(least(tokens, 128), batch)
    trace.close()
    sizes = SizeProgram(trace)
    bounds, top = SizeBounds(sizes, [(1, 8), (3, 512)]), sizes.compute([8, 512])
    bottom = sizes.compute([1, 3])
    for size in (rounded, windows, clipped):
        assert (bounds.least(size), bounds.most(size)) == (bottom.of(size), top.of(size))
    assert bounds.most(7) == bounds.least(7) == 7


def test_open_questions_name_the_symbols_on_which_they_depend():
    trace = Trace()
    batch, tokens = trace.symbol(4), trace.symbol(100)
    assert not tokens < 16
    assert batch + 1 > 2
    trace.close()
    sizes = SizeProgram(trace)
    found = [SizeBounds(sizes, box) for box in ([(2, 8), (1, 99)], [(1, 8), (16, 99)], [(2, 8), (16, 99)])]
    assert [(bounds.holds(), bounds.open_symbols()) for bounds in found] == [(None, [1]), (None, [0]), (True, [])]
    assert SizeBounds(sizes, [(1, 8), (1, 15)]).holds() is False


def test_bounds_of_boxes_are_joined():
    trace = Trace()
    size = trace.symbol(4) * 3
    trace.close()
    sizes = SizeProgram(trace)
    bounds = SizeBounds(sizes, [(4, 5)])
    bounds.join(SizeBounds(sizes, [(9, 10)]))
    bounds.join(SizeBounds(sizes, [(2, 3)]))
    assert (bounds.least(size), bounds.most(size)) == (6, 30)
    with pytest.raises(StateError, match="another compilation"):
        bounds.join(SizeBounds(SizeProgram(Trace()), []))


def test_what_belongs_to_another_compilation_is_refused():
    trace, other = Trace(), Trace()
    trace.symbol(1)
    sizes = SizeProgram(trace)
    with pytest.raises(StateError, match="ranges of symbols; accepted: 1; got: 2"):
        SizeBounds(sizes, [(1, 2), (1, 2)])
    with pytest.raises(StateError, match="another compilation"):
        SizeBounds(sizes, [(1, 2)]).most(other.symbol(1))
