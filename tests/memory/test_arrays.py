"""NumPy arrays that a budget counts until they are gone."""

import gc
import os
from pathlib import Path

import numpy as np
import pytest

from graphpool.errors import OutOfMemoryError
from graphpool.memory import Budget
from graphpool.memory._arrays import ArrayAllocator
from tests.helpers.memory import run_threads

U8 = np.dtype(np.uint8)


def resident_nbytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_an_array_is_charged_until_its_last_view_is_gone():
    budget = Budget(10_000)
    arrays = ArrayAllocator(budget, "results of m")
    made = arrays.empty((10, 100), np.dtype(np.float32))
    assert (budget.in_use, arrays.nbytes, made.flags.owndata) == (4000, 4000, True)
    assert made.ctypes.data % 64 == 0
    view = memoryview(made[3:])
    del made
    assert budget.in_use == 4000
    del view
    assert (budget.in_use, arrays.nbytes, budget.peak) == (0, 0, 4000)


def test_what_a_call_makes_is_charged_and_nothing_else():
    budget = Budget()
    arrays = ArrayAllocator(budget, "m")

    def work():
        ordered = np.sort(np.arange(1000)[::-1])
        grown = np.fromiter(iter(range(500)), np.int64)
        grown.resize(2000, refcheck=False)
        assert (grown[:500] == np.arange(500)).all()
        return ordered + np.zeros(1000, np.int64)

    kept = arrays.call(work)
    assert budget.in_use == kept.nbytes == 8000
    assert budget.peak >= 5 * kept.nbytes
    other = np.ones(1000)
    assert budget.in_use == kept.nbytes
    del kept
    assert budget.in_use == 0
    assert other.sum() == 1000


def test_what_does_not_fit_is_refused_by_name_and_nothing_is_charged():
    budget = Budget(10_000)
    arrays = ArrayAllocator(budget, "results of m")
    for make in (np.empty, np.zeros):
        with pytest.raises(OutOfMemoryError, match="asked by results of m") as caught:
            arrays.call(make, (20_000,), U8)
        assert caught.value.smallest_limit == 20_000
    grown = arrays.empty((5000,), U8)
    with pytest.raises(OutOfMemoryError):
        arrays.call(lambda: grown.resize(6000))
    assert budget.in_use == 5000
    with pytest.raises(ZeroDivisionError):
        arrays.call(lambda: 1 // 0)


def test_the_system_refuses_by_name_too():
    with pytest.raises(OutOfMemoryError, match="the system, for results of m"):
        ArrayAllocator(Budget(), "results of m").empty((2**62,), U8)


def test_pressure_is_passed_on():
    class Holder:
        held = 6000

        def reclaim(self, nbytes):
            freed, self.held = self.held, 0
            budget.uncharge(freed)
            return freed

    budget, holder = Budget(10_000), Holder()
    budget.charge(6000)
    budget.register(holder, stage=0)
    kept = ArrayAllocator(budget, "m").empty((8000,), U8)
    assert (holder.held, budget.in_use) == (0, kept.nbytes)


def test_an_empty_array_takes_nothing():
    budget = Budget(0)
    assert ArrayAllocator(budget, "m").empty((0, 5), U8).shape == (0, 5)


def test_what_is_reserved_is_there_and_comes_back():
    budget = Budget(10_000)
    arrays = ArrayAllocator(budget, "m")
    arrays.reserve(9000)
    made = arrays.empty((4000,), U8)
    assert (budget.in_use, arrays.reserved) == (9000, 5000)
    arrays.unreserve()
    assert (budget.in_use, arrays.reserved) == (made.nbytes, 0)
    with pytest.raises(OutOfMemoryError):
        arrays.reserve(9000)
    arrays.reserve(1000)
    del arrays
    assert budget.in_use == made.nbytes


def test_an_array_takes_what_is_left_of_a_reservation_and_the_budget_gives_the_rest():
    budget = Budget(12_000)
    arrays = ArrayAllocator(budget, "m")
    arrays.reserve(9000)
    small = arrays.empty((1000,), U8)
    del small
    assert (budget.in_use, arrays.reserved) == (8000, 8000)
    large = arrays.empty((9000,), U8)
    assert (budget.in_use, arrays.reserved, budget.peak) == (9000, 0, 9000)
    del large
    arrays.reserve(4000)
    with pytest.raises(OutOfMemoryError):
        arrays.empty((12_001,), U8)
    assert (budget.in_use, arrays.reserved) == (4000, 4000)


def test_what_is_handed_over_is_charged_no_more():
    budget = Budget()
    arrays = ArrayAllocator(budget, "m")
    made = arrays.empty((4000,), U8)
    arrays.hand_over()
    assert budget.in_use == 0
    del made
    assert budget.in_use == 0


def test_calls_nest_and_end_with_the_handler_that_was_there():
    outer, inner = Budget(), Budget()

    def work():
        first = ArrayAllocator(inner, "inner").empty((100,), U8)
        return first, np.empty(200, U8)

    kept = ArrayAllocator(outer, "outer").call(work)
    assert (inner.in_use, outer.in_use) == (100, 200)
    plain = np.empty(300, U8)
    assert (inner.in_use, outer.in_use) == (100, 200)
    assert [array.nbytes for array in (*kept, plain)] == [100, 200, 300]


def test_arrays_outlive_the_allocator_and_die_in_any_thread():
    budget = Budget()
    made = [ArrayAllocator(budget, "m").empty((100 + k,), U8) for k in range(400)]
    gc.collect()
    assert budget.in_use == sum(array.nbytes for array in made)

    def drop(number):
        for k in range(number, 400, 4):
            made[k] = None

    run_threads(4, drop)
    assert budget.in_use == 0


def test_large_arrays_leave_no_holes():
    """What lies in the C heap between them does not keep their pages."""
    arrays, between, large = ArrayAllocator(Budget(), "results of m"), [], []
    nbytes = 4 * 2**20
    for _ in range(8):
        large.append(arrays.empty((nbytes,), U8))
        large[-1][:] = 1
        between.append(bytearray(100_000))
    before = resident_nbytes()
    del large[:]
    assert before - resident_nbytes() > 7 * nbytes


def test_large_arrays_grow_and_shrink_with_their_content():
    budget = Budget()
    arrays = ArrayAllocator(budget, "results of m")
    made = arrays.empty((1000,), U8)
    made[:] = 7
    for nbytes in (3 * 2**20, 5 * 2**20, 4 * 2**20, 500):
        made.resize((nbytes,), refcheck=False)
        assert budget.in_use == nbytes
        assert made[:500].tolist() == [7] * 500
        assert not made[1000:].any()
    zeros = arrays.call(np.zeros, 3 * 2**20, U8)
    assert not zeros.any()
    assert budget.in_use == 500 + 3 * 2**20
    del zeros
    assert budget.in_use == 500
