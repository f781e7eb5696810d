"""Memory of results is used again exactly when nobody can see it."""

import sys

import numpy as np
import pytest

from graphpool.runtime.result_arrays import ResultArrays

F32 = np.dtype(np.float32)
SHAPE = (64, 1024)
needs_counts = pytest.mark.skipif(
    not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="counts of references are not exact without a GIL"
)


def address(array):
    return array.__array_interface__["data"][0]


@needs_counts
def test_memory_that_was_let_go_of_is_used_again():
    arrays = ResultArrays()
    first = arrays.take(1, SHAPE, F32)
    place = address(first)
    del first
    again = arrays.take(1, SHAPE, F32)
    assert (address(again), again.shape, again.dtype) == (place, SHAPE, F32)


@needs_counts
def test_two_results_take_turns_while_the_last_is_held():
    arrays, places = ResultArrays(), []
    result = None
    for _ in range(6):
        result = arrays.take(1, SHAPE, F32)
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
    arrays = ResultArrays()
    first = arrays.take(1, SHAPE, F32)
    place = address(first)
    held = [HOLDERS[name](first)]
    del first
    for _ in range(3):
        other = arrays.take(1, SHAPE, F32)
        assert address(other) != place
        held.append(other)
    assert len({address(array) for array in held[1:]}) == 3


@needs_counts
def test_what_became_of_an_array_does_not_show_in_the_next():
    arrays = ResultArrays()
    first = arrays.take(1, SHAPE, F32)
    first.flags.writeable = False
    del first
    assert arrays.take(1, SHAPE, F32).flags.writeable


def test_small_arrays_own_their_memory():
    assert ResultArrays().take(1, (4,), F32).base is None


def test_keys_do_not_share():
    arrays = ResultArrays()
    one, two = arrays.take(1, SHAPE, F32), arrays.take(2, SHAPE, F32)
    assert not np.may_share_memory(one, two)
