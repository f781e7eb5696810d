"""The exact search: as good as trying every order, and proofs that are true."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool.errors import OutOfMemoryError
from graphpool.memory import BufferInfo, check_plan, plan
from tests.memory.test_planner import read_case


def smallest_arena(buffers, alignment):
    """By trying every order, each buffer on top of what was placed and lives with it: some order gives the optimum."""
    best = None
    for order in itertools.permutations(buffers):
        placed, nbytes = [], 0
        for item in order:
            step = math.lcm(alignment, item.alignment)
            floor = max(
                [end for other, end in placed if other.lower < item.upper and item.lower < other.upper], default=0
            )
            end = -(-floor // step) * step + item.size
            placed.append((item, end))
            nbytes = max(nbytes, end)
        best = nbytes if best is None else min(best, nbytes)
    return best or 0


@st.composite
def few_buffers(draw):
    n = draw(st.integers(1, 6))
    lives = [(draw(st.integers(0, 6)), draw(st.integers(1, 5))) for _ in range(n)]
    return [
        BufferInfo(i, lower, lower + length, draw(st.integers(0, 9)), draw(st.sampled_from([1, 1, 1, 2])))
        for i, (lower, length) in enumerate(lives)
    ]


@given(buffers=few_buffers(), alignment=st.sampled_from([1, 3, 4]))
@settings(max_examples=150, deadline=None)
def test_finds_and_proves_the_optimum(buffers, alignment):
    found = plan(buffers, alignment, "exact", deadline_s=60)
    check_plan(found, buffers, alignment)
    assert found.nbytes == smallest_arena(buffers, alignment)
    assert found.is_optimal


def test_beats_every_greedy_order():
    """Greedy orders leave a hole here; the optimum is the bound."""
    lives = [(0, 3, 4), (2, 6, 3), (5, 9, 4), (0, 2, 6), (3, 5, 3), (6, 9, 6), (2, 3, 3), (5, 6, 3), (3, 5, 4)]
    buffers = [BufferInfo(i, *life) for i, life in enumerate(lives)]
    found = plan(buffers, 1, deadline_s=60)
    check_plan(found, buffers)
    assert found.nbytes == found.lower_bound == 10
    assert found.is_optimal


@pytest.mark.parametrize("name", "CEGK")
def test_known_cases_are_solved_to_their_capacity(name):
    buffers = read_case(name)
    found = plan(buffers, method="exact", deadline_s=300, capacity=1048576)
    check_plan(found, buffers, 64)
    assert found.nbytes <= 1048576


def test_the_optimum_of_case_c_is_its_bound():
    found = plan(read_case("C"), deadline_s=300)
    assert (found.nbytes, found.is_optimal, found.method) == (1039360, True, "exact")


@given(buffers=few_buffers())
@settings(max_examples=40, deadline=None)
def test_a_capacity_below_the_optimum_is_refused(buffers):
    best = smallest_arena(buffers, 1)
    assert plan(buffers, 1, deadline_s=60, capacity=best).nbytes <= best
    if best:
        with pytest.raises(OutOfMemoryError) as caught:
            plan(buffers, 1, deadline_s=60, capacity=best - 1)
        assert caught.value.smallest_limit >= best


def test_gaps_and_fixed_offsets_are_never_made_worse_nor_proved_wrongly():
    gapped = [BufferInfo("a", 0, 9, 5, gaps=((3, 6),)), BufferInfo("b", 3, 6, 5), BufferInfo("c", 0, 9, 1)]
    found = plan(gapped, 1, deadline_s=60)
    check_plan(found, gapped)
    assert (found.nbytes, found.is_optimal) == (6, True)
    fixed = [BufferInfo("a", 0, 9, 5, offset=3), BufferInfo("b", 0, 9, 4)]
    found = plan(fixed, 1, deadline_s=60)
    check_plan(found, fixed)
    assert found.nbytes == 12
    assert not found.is_optimal


def test_a_short_deadline_keeps_the_greedy_plan_or_better():
    buffers = [BufferInfo(i, i % 17, i % 17 + 1 + i % 5, 10 + i * 7 % 90) for i in range(120)]
    greedy, found = plan(buffers, 1), plan(buffers, 1, deadline_s=1e-6)
    check_plan(found, buffers)
    assert found.nbytes <= greedy.nbytes
