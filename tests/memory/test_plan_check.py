"""The judge must catch every kind of wrong plan."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpool.errors import InvalidArgumentError
from graphpool.memory import BufferInfo, check_plan, plan

BUFFERS = [
    BufferInfo("a", 0, 4, 100),
    BufferInfo("b", 2, 6, 50, alignment=8),
    BufferInfo("c", 0, 9, 10, offset=512, gaps=((1, 8),)),
]


def moved(**offsets):
    """The right plan with some buffers moved."""
    found = plan(BUFFERS)
    return dataclasses.replace(found, offsets={**found.offsets, **offsets})


def test_accepts_the_right_plan():
    check_plan(plan(BUFFERS), BUFFERS, 64)
    check_plan(moved(b=472), BUFFERS)


@pytest.mark.parametrize(
    ("offsets", "message"),
    [
        ({"a": 0, "b": 64}, "share bytes"),
        ({"b": 132}, "not aligned"),
        ({"c": 448}, "moved"),
        ({"a": -64}, "leaves the arena"),
        ({"b": 520}, "leaves the arena"),
        ({"d": 0}, "other buffers"),
    ],
)
def test_names_what_is_wrong(offsets, message):
    with pytest.raises(InvalidArgumentError, match=message):
        check_plan(moved(**offsets), BUFFERS)


@pytest.mark.parametrize(
    "arguments", [(BUFFERS, plan(BUFFERS)), (None, BUFFERS), (plan(BUFFERS), [1]), (plan(BUFFERS), 5)]
)
def test_arguments_of_other_types_are_refused(arguments):
    with pytest.raises(InvalidArgumentError, match="check_plan; accepted: a MemoryPlan, then BufferInfos; got: "):
        check_plan(*arguments)


def test_alignment_of_the_arena_is_checked():
    with pytest.raises(InvalidArgumentError, match="not aligned"):
        check_plan(moved(b=104), BUFFERS, alignment=64)
    with pytest.raises(InvalidArgumentError, match="alignment; accepted: an int from 1; got: 0"):
        check_plan(moved(b=104), BUFFERS, alignment=0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 5)), max_size=6))
def test_agrees_with_a_grid_of_bytes_and_instants(rows):
    buffers = [BufferInfo(i, lower, lower + length, size) for i, (lower, length, size, _) in enumerate(rows)]
    offsets = {i: row[3] for i, row in enumerate(rows)}
    candidate = dataclasses.replace(plan(buffers), offsets=offsets, nbytes=100)
    cells = [
        (time, byte)
        for item in buffers
        for time in range(item.lower, item.upper)
        for byte in range(offsets[item.id], offsets[item.id] + item.size)
    ]
    if len(cells) == len(set(cells)):
        check_plan(candidate, buffers)
    else:
        with pytest.raises(InvalidArgumentError, match="share bytes"):
            check_plan(candidate, buffers)
