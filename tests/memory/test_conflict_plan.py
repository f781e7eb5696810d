import itertools
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool import InvalidArgumentError
from graphpool.memory import BufferInfo, plan
from graphpool.memory.planner import plan_conflicts


@st.composite
def problems(draw):
    count = draw(st.integers(0, 14))
    sizes = draw(st.lists(st.integers(0, 300), min_size=count, max_size=count))
    masks = [0] * count
    for i in range(count):
        for j in draw(st.sets(st.integers(0, count - 1), max_size=count)) - {i}:
            masks[i] |= 1 << j
            masks[j] |= 1 << i
    return sizes, masks


@settings(deadline=None)
@given(problems(), st.sampled_from([1, 8, 64]))
def test_conflicting_buffers_lie_apart_inside_the_arena(problem, alignment):
    sizes, masks = problem
    offsets, nbytes = plan_conflicts(sizes, masks, alignment)
    assert all(offset % alignment == 0 and offset + size <= nbytes for offset, size in zip(offsets, sizes, strict=True))
    for i in range(len(sizes)):
        for j in range(i):
            apart = offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]
            assert apart or not masks[i] >> j & 1 or 0 in (sizes[i], sizes[j])


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 8), st.integers(1, 500)), max_size=20))
def test_interval_conflicts_need_little_more_than_a_plan_by_lifetimes(lives):
    """Whatever the order, greedy placement of intervals stays near the live-size bound."""
    buffers = [BufferInfo(k, lower, lower + length, size) for k, (lower, length, size) in enumerate(lives)]
    masks = [sum(1 << b.id for b in buffers if b is not a and a.lower < b.upper and b.lower < a.upper) for a in buffers]
    _, nbytes = plan_conflicts([b.size for b in buffers], masks, 1)
    assert plan(buffers, alignment=1).lower_bound <= nbytes <= 2 * plan(buffers, alignment=1).nbytes


def test_buffers_by_the_hundred_lie_apart():
    rng = random.Random(0)
    sizes, masks = [rng.randint(1, 5000) for _ in range(400)], [0] * 400
    for i, j in itertools.combinations(range(400), 2):
        if rng.random() < 0.3:
            masks[i] |= 1 << j
            masks[j] |= 1 << i
    offsets, nbytes = plan_conflicts(sizes, masks)
    for i, j in itertools.combinations(range(400), 2):
        if masks[i] >> j & 1:
            assert offsets[i] + sizes[i] <= offsets[j] or offsets[j] + sizes[j] <= offsets[i]
    assert nbytes == max(offset + size for offset, size in zip(offsets, sizes, strict=True)) < sum(sizes) / 2


def test_no_conflicts_share_everything():
    assert plan_conflicts([10, 30, 20], [0, 0, 0]) == ((0, 0, 0), 30)


def test_all_conflicts_share_nothing():
    offsets, nbytes = plan_conflicts([64, 128, 64], [0b110, 0b101, 0b011])
    assert sorted(offsets) == [0, 128, 192]
    assert nbytes == 256


@pytest.mark.parametrize(("sizes", "masks", "alignment"), [([1], [], 64), ([-1], [0], 64), ([1], [0], 0)])
def test_bad_input_is_refused(sizes, masks, alignment):
    with pytest.raises(InvalidArgumentError, match="buffers"):
        plan_conflicts(sizes, masks, alignment)
