"""Plans: never wrong, never below the bound, optimal where the optimum is known."""

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool.errors import InvalidArgumentError, OutOfMemoryError
from graphpool.memory import BufferInfo, check_plan, plan, read_csv
from graphpool.memory.planner import METHODS, Lifetimes

ROOT = Path(__file__).parents[2]
CASES = [ROOT / up / "shared" / "data" / "planner" for up in ("..", "../..")]


def buffers_strategy(max_size=14, gaps=True, fixed=False):
    """Lists of small buffers, some with gaps and odd alignments."""

    @st.composite
    def one(draw, name):
        lower = draw(st.integers(0, 12))
        upper = lower + draw(st.integers(1, 8))
        cuts = sorted(draw(st.sets(st.integers(lower, upper), min_size=2, max_size=2))) if upper - lower > 1 else None
        with_gap = gaps and cuts and draw(st.booleans())
        alignment = draw(st.sampled_from([1, 1, 1, 2, 3, 8]))
        offset = name * 192 if fixed and draw(st.integers(0, 4)) == 0 else None
        size = draw(st.integers(0, 20))
        return BufferInfo(name, lower, upper, size, alignment, offset, (tuple(cuts),) if with_gap else ())

    return st.integers(0, max_size).flatmap(lambda n: st.tuples(*(one(name) for name in range(n))))


def read_case(name):
    """Buffers of a published case, where the cases lie beside the checkout."""
    paths = [folder / f"{name}.csv" for folder in CASES if folder.exists()]
    if not paths:
        pytest.skip("the planner's cases are not beside this checkout")
    return read_csv(paths[0])


@pytest.mark.parametrize("method", METHODS)
@given(buffers=buffers_strategy(fixed=True), alignment=st.sampled_from([1, 4, 64]))
@settings(max_examples=40, deadline=None)
def test_every_method_gives_valid_plans(method, buffers, alignment):
    found = plan(buffers, alignment, method)
    check_plan(found, buffers, alignment)
    assert found.nbytes >= found.lower_bound
    assert found.ratio >= 1
    assert found.is_optimal == (found.nbytes == found.lower_bound)


@given(buffers=buffers_strategy())
@settings(max_examples=60, deadline=None)
def test_the_bound_is_the_most_bytes_live_at_once(buffers):
    live = [
        sum(item.size for item in buffers if any(lower <= time < upper for lower, upper in item.windows))
        for time in range(25)
    ]
    assert plan(buffers, 1).lower_bound == max(live)


@given(buffers=buffers_strategy())
@settings(max_examples=30, deadline=None)
def test_equal_input_gives_equal_plans(buffers):
    assert plan(buffers).offsets == plan(list(buffers)).offsets


def test_buffers_that_never_meet_share_their_bytes():
    found = plan([BufferInfo(i, i, i + 1, 1000) for i in range(50)])
    assert found.nbytes == found.lower_bound == 1000
    assert found.is_optimal


def test_buffers_that_all_meet_lie_side_by_side():
    buffers = [BufferInfo(i, 0, 10, 100) for i in range(5)]
    found = plan(buffers, alignment=64)
    check_plan(found, buffers, 64)
    assert found.nbytes == 4 * 128 + 100


def test_a_gap_lends_its_bytes():
    outer = BufferInfo("outer", 0, 10, 100, gaps=((2, 8),))
    found = plan([outer, BufferInfo("inner", 2, 8, 100)])
    assert found.nbytes == 100
    assert outer.windows == [(0, 2), (8, 10)]


def test_fixed_buffers_stay_where_they_are():
    buffers = [BufferInfo("fixed", 0, 4, 10, offset=128), BufferInfo("free", 0, 4, 128), BufferInfo("more", 0, 4, 9)]
    found = plan(buffers)
    assert found.offsets == {"fixed": 128, "free": 0, "more": 192}


def test_nothing_needs_nothing():
    found = plan([])
    assert (found.offsets, found.nbytes, found.lower_bound, found.ratio) == ({}, 0, 0, 1.0)
    assert plan([BufferInfo("empty", 0, 1, 0)]).nbytes == 0


@pytest.mark.parametrize(
    "buffer",
    [
        BufferInfo("b", 3, 3, 1),
        BufferInfo("b", 4, 3, 1),
        BufferInfo("b", 0, 1, -1),
        BufferInfo("b", 0, 1, 1, alignment=0),
        BufferInfo("b", 0, 1, 1, offset=-64),
        BufferInfo("b", 0, 4, 1, gaps=((2, 5),)),
        BufferInfo("b", 0, 4, 1, gaps=((2, 2),)),
        BufferInfo("b", 0, 4, 1, gaps=(1, 2)),
        BufferInfo("b", 0, 4, 1, gaps=7),
        None,
        BufferInfo("b", 0, 1, 2**63),
        BufferInfo("b", 0, 1, 2**61),
        BufferInfo("b", 0, 1, 1.5),
        BufferInfo("b", 0, 1, 1, offset=7),
    ],
)
def test_malformed_buffers_are_refused(buffer):
    with pytest.raises(InvalidArgumentError):
        plan([buffer])


@pytest.mark.parametrize("steps", [[], "x", None, 3, [1.5]])
def test_a_buffer_is_used_at_some_steps(steps):
    with pytest.raises(InvalidArgumentError, match="steps of buffer 'b'; accepted: a collection of ints, not empty"):
        BufferInfo.used_at("b", steps, 8)


def test_duplicate_ids_methods_and_alignments_are_refused():
    buffer = BufferInfo("b", 0, 1, 1)
    with pytest.raises(InvalidArgumentError, match="twice"):
        plan([buffer, buffer])
    with pytest.raises(InvalidArgumentError, match="method; accepted: auto"):
        plan([buffer], method="magic")
    for alignment in (0, -1, 1.5, 2**31):
        with pytest.raises(InvalidArgumentError, match="alignment"):
            plan([buffer], alignment)


def test_fixed_buffers_that_overlap_are_refused():
    with pytest.raises(InvalidArgumentError, match="fixed"):
        plan([BufferInfo("a", 0, 2, 65, offset=0), BufferInfo("b", 1, 3, 1, offset=64)])


@pytest.mark.parametrize("limit", [{"capacity": "1MiB"}, {"capacity": -1}, {"capacity": 1.5}, {"on_improve": 3}])
def test_malformed_limits_are_named(limit):
    with pytest.raises(InvalidArgumentError, match=f"{next(iter(limit))}; accepted"):
        plan([BufferInfo("a", 0, 1, 1)], **limit)


def test_ids_have_a_hash():
    with pytest.raises(InvalidArgumentError, match=r"id of buffer \[1\]; accepted: what has a hash; got: list"):
        plan([BufferInfo([1], 0, 1, 1)])


def test_a_capacity_that_is_too_small_is_out_of_memory():
    buffers = [BufferInfo("a", 0, 2, 100), BufferInfo("b", 0, 2, 100)]
    with pytest.raises(OutOfMemoryError) as caught:
        plan(buffers, 1, capacity=199)
    assert (caught.value.limit, caught.value.smallest_limit) == (199, 200)
    assert plan(buffers, 1, capacity=200).nbytes == 200


@pytest.mark.parametrize("name", "ACEGIK")
def test_known_cases_have_the_published_bound(name):
    buffers = read_case(name)
    found = plan(buffers)
    check_plan(found, buffers, 64)
    assert found.lower_bound == {"C": 1039360}.get(name, 1048576)
    assert found.ratio < 1.45


def test_lifetimes_give_the_plans_of_plan():
    rng = random.Random(5)
    for _ in range(60):
        lives = [
            (first, first + rng.randint(1, 6)) for first in (rng.randint(0, 20) for _ in range(rng.randint(1, 40)))
        ]
        lifetimes = Lifetimes(lives, 64)
        for _ in range(3):
            sizes = [rng.choice([0, rng.randint(1, 5000)]) for _ in lives]
            wanted = plan(
                [BufferInfo(k, *life, size) for k, (life, size) in enumerate(zip(lives, sizes, strict=True))], 64
            )
            assert lifetimes.plan(sizes) == ([wanted.offsets[k] for k in range(len(lives))], wanted.nbytes)
    with pytest.raises(InvalidArgumentError, match="too large"):
        Lifetimes([(0, 1)]).plan([2**60])
