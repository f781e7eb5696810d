"""The exact search: as good as trying every order, and proofs that are true."""

import itertools
import math
import signal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool.errors import InvalidArgumentError, OutOfMemoryError
from graphpool.memory import BufferInfo, check_plan, plan
from tests.cases.buffers import cut_square
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


# ---- limits


def test_nodes_limit_the_search_and_not_the_clock():
    buffers = cut_square(160, 3)
    plans = [plan(buffers, 1, node_limit=20_000) for _ in range(2)]
    assert plans[0].offsets == plans[1].offsets
    more = plan(buffers, 1, "exact")  # a limit of its own
    assert more.nbytes <= plans[0].nbytes < plan(buffers, 1).nbytes


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_without_a_capacity_it_is_better_than_steps_of_one(seed):
    """A capacity may take no more than its share of the nodes, however far from the best plan it lies."""
    buffers = cut_square(160, seed)
    found, greedy = plan(buffers, 1, node_limit=60_000), plan(buffers, 1)
    check_plan(found, buffers)
    for step in range(1, 11):
        capacity = greedy.lower_bound + (greedy.nbytes - greedy.lower_bound) * step // 11
        try:
            nbytes = plan(buffers, 1, node_limit=6000, capacity=capacity).nbytes
        except OutOfMemoryError as error:
            nbytes = error.smallest_limit
        assert found.nbytes < nbytes


def test_each_better_plan_is_told_and_the_last_is_the_result():
    buffers, told = cut_square(160, 3), []
    found = plan(buffers, 1, node_limit=20_000, on_improve=told.append)
    assert len(told) > 2
    for one in told:
        check_plan(one, buffers)
    sizes = [one.nbytes for one in told]
    assert sizes == sorted(set(sizes), reverse=True)
    assert told[0].offsets == plan(buffers, 1).offsets
    assert (told[-1].offsets, told[-1].nbytes) == (found.offsets, found.nbytes)
    greedy = []
    assert plan(buffers, 1, on_improve=greedy.append).offsets == greedy[0].offsets
    with pytest.raises(OutOfMemoryError) as caught:
        plan(buffers, 1, capacity=1, node_limit=20_000, on_improve=told.append)
    assert told[-1].nbytes == caught.value.smallest_limit  # what is found is not lost with the error


def test_errors_of_the_callback_and_signals_end_the_search():
    buffers, told = cut_square(160, 3), []

    def stop(found):
        told.append(found)
        if len(told) == 2:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        plan(buffers, 1, node_limit=20_000, on_improve=stop)
    assert len(told) == 2

    def interrupt(number, frame):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(KeyboardInterrupt):
            plan(cut_square(160, 3), 1, deadline_s=600)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_what_is_proved_is_the_bound():
    buffers = [BufferInfo(0, 0, 2, 5), BufferInfo(1, 1, 3, 5)]
    assert (plan(buffers, 4).lower_bound, plan(buffers, 4).is_optimal) == (10, False)
    found = plan(buffers, 4, node_limit=1000)
    assert (found.lower_bound, found.nbytes, found.is_optimal) == (13, 13, True)


@pytest.mark.parametrize(
    "limits",
    [{"deadline_s": -1}, {"deadline_s": float("nan")}, {"deadline_s": "1"}, {"node_limit": 0}, {"node_limit": 1.5}],
)
def test_malformed_limits_are_refused(limits):
    with pytest.raises(InvalidArgumentError, match=next(iter(limits))):
        plan([BufferInfo("a", 0, 1, 1)], **limits)
