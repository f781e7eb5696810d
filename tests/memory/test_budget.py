"""The budget: never passed, relief in order, waiting."""

import gc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpool.errors import InvalidArgumentError, OutOfMemoryError, StateError
from graphpool.memory import Budget
from graphpool.memory._budget import CONSTANTS, IDLE_ARENAS, IDLE_PRIMITIVES
from tests.helpers.memory import Worker, run_in_child, run_threads


class Holder:
    """Holds bytes of a budget and gives them back when asked."""

    def __init__(self, budget, nbytes, name, asked, idle_since=0.0):
        self.budget, self.nbytes, self.name, self.asked, self.idle_since = budget, nbytes, name, asked, idle_since
        budget.charge(nbytes)

    def reclaim(self, nbytes):
        self.asked.append(self.name)
        freed, self.nbytes = self.nbytes, 0
        self.budget.uncharge(freed)
        return freed


@pytest.mark.parametrize("limit", [-1, "much", 1.5])
def test_refuses_what_is_no_size(limit):
    with pytest.raises(InvalidArgumentError):
        Budget(limit)


def test_counts_without_a_limit():
    budget = Budget()
    budget.charge(2**40)
    assert budget.stats().peak == budget.in_use == 2**40


def test_the_peak_begins_again_at_what_is_in_use():
    budget = Budget()
    budget.charge(100)
    budget.uncharge(60)
    assert (budget.reset_peak(), budget.peak) == (100, 40)
    assert (budget.reset_peak(100), budget.peak) == (40, 100)
    with pytest.raises(InvalidArgumentError):
        budget.reset_peak(-1)
    assert budget.peak == 100


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60)), max_size=60))
def test_in_use_is_exact_and_within_the_limit(steps):
    budget, model = Budget(100), 0
    for is_charge, nbytes in steps:
        if is_charge:
            fits = model + nbytes <= 100
            assert budget.try_charge_spare(nbytes) == fits
            model += nbytes if fits else 0
        elif nbytes <= model:
            budget.uncharge(nbytes)
            model -= nbytes
        else:
            with pytest.raises(StateError, match="uncharge"):
                budget.uncharge(nbytes)
        assert budget.in_use == model


def test_a_refusal_is_a_report():
    budget = Budget(100)
    budget.charge(70)
    with pytest.raises(OutOfMemoryError, match="asked by weights") as caught:
        budget.charge(40, holder="weights")
    assert caught.value.fields == {
        "requested": 40,
        "in_use": 70,
        "limit": 100,
        "resource": "budget (asked by weights)",
        "smallest_limit": 110,
        "holdings": {"arenas": 0, "compiled entries": 0, "constants": 0, "tensors": 70},
    }
    assert (budget.in_use, budget.stats().refusals) == (70, 1)


def test_relief_goes_by_stage_and_then_by_idleness():
    budget, asked = Budget(100), []
    holders = [
        (Holder(budget, 20, "constants", asked), CONSTANTS),
        (Holder(budget, 20, "primitive", asked), IDLE_PRIMITIVES),
        (Holder(budget, 20, "young arena", asked, idle_since=2.0), IDLE_ARENAS),
        (Holder(budget, 20, "old arena", asked, idle_since=1.0), IDLE_ARENAS),
    ]
    for holder, stage in holders:
        budget.register(holder, stage=stage)
    budget.charge(30)
    assert asked == ["old arena"]
    budget.charge(60)
    assert asked[1:] == ["old arena", "young arena", "primitive", "constants"]
    with pytest.raises(InvalidArgumentError):
        budget.register(holders[0][0], stage=3)


def test_holders_are_kept_weakly():
    budget, asked = Budget(100), []
    holder = Holder(budget, 50, "gone", asked)
    budget.register(holder, stage=0)
    del holder
    gc.collect()
    with pytest.raises(OutOfMemoryError):
        budget.charge(60)
    assert asked == []


def test_nobody_is_asked_for_what_can_never_fit():
    budget, asked = Budget(100), []
    holder = Holder(budget, 50, "innocent", asked)
    budget.register(holder, stage=0)
    with pytest.raises(OutOfMemoryError):
        budget.charge(101)
    assert asked == []


def test_waits_for_what_is_given_back():
    budget = Budget(100)
    budget.charge(100)
    worker = Worker(lambda: budget.charge(40, timeout_s=20))
    while budget.stats().reclaims == 0:
        pass
    budget.uncharge(50)
    worker.result()
    assert budget.in_use == 90
    with pytest.raises(OutOfMemoryError):
        budget.charge(40, timeout_s=0.01)


def test_resize_asks_holders_down_to_the_new_limit():
    budget, asked = Budget(100), []
    holder = Holder(budget, 60, "cache", asked)
    budget.register(holder, stage=2)
    budget.charge(30)
    assert budget.resize(50)
    assert (asked, budget.in_use) == (["cache"], 30)
    assert not budget.resize(10)
    with pytest.raises(OutOfMemoryError):
        budget.charge(1)
    assert budget.resize(None)
    budget.charge(2**30)


def test_threads_never_pass_the_limit():
    budget = Budget(1000)

    def churn(i):
        for n in range(500):
            nbytes = (n * 37 + i * 101) % 400
            if budget.try_charge_spare(nbytes):
                assert budget.in_use <= 1000
                budget.uncharge(nbytes)

    run_threads(8, churn)
    assert (budget.in_use, budget.peak <= 1000) == (0, True)


def test_works_in_a_forked_child():
    budget = Budget(100)
    budget.charge(100)
    worker = Worker(lambda: budget.charge(40, timeout_s=20))
    while budget.stats().reclaims == 0:
        pass

    def child():
        budget.uncharge(100)
        budget.charge(100, timeout_s=1)

    run_in_child(child)
    budget.uncharge(100)
    worker.result()


def test_a_check_that_fits_asks_no_holder():
    class Holder:
        @property
        def reclaimable(self):
            raise AssertionError("nobody is short of memory")

    holder, budget = Holder(), Budget(100)
    budget.register(holder, stage=1)
    budget.charge(40)
    budget.check(60)
    with pytest.raises(AssertionError):
        budget.check(61)


@pytest.mark.parametrize(("awaits_leases", "smallest"), [(True, 75), (False, 95)])
def test_leases_of_whoever_asks_do_not_end_first(awaits_leases, smallest):
    class Holder:
        reclaimable, pending = 5, 20

    holder, budget = Holder(), Budget(70)
    budget.register(holder, stage=0)
    budget.charge(60)
    budget.check(35, awaits_leases=True)
    with pytest.raises(OutOfMemoryError) as raised:
        budget.check(40 if awaits_leases else 16, later_nbytes=0 if awaits_leases else 24, awaits_leases=awaits_leases)
    assert raised.value.smallest_limit == smallest
