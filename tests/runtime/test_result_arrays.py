"""Memory of results is used again exactly when nobody can see it."""

import sys
from math import prod

import numpy as np
import pytest

from graphpool.memory import Budget
from graphpool.runtime._result_arrays import ResultArrays
from graphpool.runtime.described import Described
from tests.helpers.memory import run_threads

F32 = np.dtype(np.float32)
SHAPE = (64, 1024)
needs_counts = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="counts of references are not exact without a GIL"
)


class Arrays(ResultArrays):
    """Which hands out one array at a time."""

    def __init__(self, budget=None):
        super().__init__(Budget() if budget is None else budget, "results of m")

    def take_one(self, key, shape, dtype, most=2):
        nbytes = prod(shape) * dtype.itemsize
        [made] = self.take([key], [Described(shape, None, dtype, nbytes)], self.allocator(), most, nbytes)
        return made


def address(array):
    return array.__array_interface__["data"][0]


@needs_counts
def test_memory_that_was_let_go_of_is_used_again():
    arrays = Arrays()
    first = arrays.take_one(1, SHAPE, F32)
    place = address(first)
    del first
    again = arrays.take_one(1, SHAPE, F32)
    assert (address(again), again.shape, again.dtype) == (place, SHAPE, F32)


@needs_counts
def test_two_results_take_turns_while_the_last_is_held():
    arrays, places = Arrays(), []
    result = None
    for _ in range(6):
        result = arrays.take_one(1, SHAPE, F32)
        places.append(address(result))
    assert result is not None
    assert places[:2] * 3 == places
    assert places[0] != places[1]


HOLDERS = {
    "the array": lambda array: array,
    "a view": lambda array: array[3:5, ::2],
    "a view of a view": lambda array: array[1:][2:].T,
    "its base": lambda array: array.base,
    "a buffer": lambda array: memoryview(array),
    "an array over a buffer": lambda array: np.frombuffer(memoryview(array), np.uint8),
    "DLPack": lambda array: np.from_dlpack(array),
    "an iterator": lambda array: array.flat,
}


@pytest.mark.parametrize("name", HOLDERS)
def test_memory_that_somebody_holds_is_left_alone(name):
    arrays = Arrays()
    first = arrays.take_one(1, SHAPE, F32)
    place = address(first)
    held = [HOLDERS[name](first)]
    del first
    for _ in range(3):
        other = arrays.take_one(1, SHAPE, F32)
        assert address(other) != place
        held.append(other)
    assert len({address(array) for array in held[1:]}) == 3


@needs_counts
def test_what_became_of_an_array_does_not_show_in_the_next():
    arrays = Arrays()
    first = arrays.take_one(1, SHAPE, F32)
    first.flags.writeable = False
    del first
    assert arrays.take_one(1, SHAPE, F32).flags.writeable


def test_small_arrays_own_their_memory():
    assert Arrays().take_one(1, (4,), F32).base is None


def test_keys_do_not_share():
    arrays = Arrays()
    one, two = arrays.take_one(1, SHAPE, F32), arrays.take_one(2, SHAPE, F32)
    assert not np.may_share_memory(one, two)


@needs_counts
def test_what_grows_step_by_step_takes_the_same_memory_again():
    arrays, places, result = Arrays(), [], None
    for rows in range(64, 72):
        result = arrays.take_one(1, (rows, 1024), F32)
        result[:] = rows
        places.append(address(result))
    assert result is not None
    assert len(set(places[1:])) == 2  # behind the first one, two with room for more
    assert (result == 71).all()


@needs_counts
def test_a_small_result_does_not_hold_a_large_one():
    arrays = Arrays()
    arrays.take_one(1, (64, 4096), F32)
    small = arrays.take_one(1, (64, 1024), F32)
    assert small.base.nbytes == small.nbytes


@needs_counts
def test_as_many_arrays_are_kept_as_were_asked_for():
    arrays = Arrays()
    held = [arrays.take_one(1, SHAPE, F32, 4) for _ in range(4)]
    places = {address(array) for array in held}
    del held[:]
    assert {address(array) for array in [arrays.take_one(1, SHAPE, F32, 4) for _ in range(4)]} == places


@needs_counts
def test_clear_keeps_nothing():
    arrays = Arrays()
    held = arrays.take_one(1, SHAPE, F32)
    arrays.clear()
    held[:] = 1
    assert address(arrays.take_one(1, SHAPE, F32)) != address(held)
    assert (held == 1).all()


def test_threads_never_share_memory():
    arrays, wrong = Arrays(), []

    def work(number):
        for step in range(300):
            taken = arrays.take_one("y", (70, 256 + step % 5), F32, 4)
            taken[:] = number
            if not (taken == number).all():
                wrong.append((number, step))

    run_threads(8, work)
    assert not wrong
