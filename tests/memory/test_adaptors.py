"""What each adaptor adds to its upstream."""

import csv

import pytest

from graphpool.errors import BackendError, InvalidArgumentError, OutOfMemoryError
from graphpool.memory import (
    AllocationStats,
    Budget,
    CallbackResource,
    FailureCallbackResource,
    HostResource,
    LimitingResource,
    LoggingResource,
    StatisticsResource,
    TrackingResource,
    adaptors,
)
from tests.cases.resource_log import read_log, replay
from tests.helpers.memory import GatedResource, Worker, run_threads


class FailingResource:
    """An upstream that always refuses."""

    def allocate(self, nbytes, alignment=64, stream=None):
        raise OutOfMemoryError("full", requested=nbytes, in_use=0, limit=0, resource="test", smallest_limit=None)

    def deallocate(self, address, nbytes, alignment=64, stream=None):
        raise AssertionError


@pytest.mark.parametrize("adaptor", [StatisticsResource, TrackingResource])
def test_refuses_an_upstream_that_is_none(adaptor):
    with pytest.raises(InvalidArgumentError, match="upstream"):
        adaptor(None)


def test_limit_holds_and_says_what_would_do():
    resource = LimitingResource(HostResource(), "1KiB")
    address = resource.allocate(1000)
    with pytest.raises(OutOfMemoryError) as caught:
        resource.allocate(25)
    error = caught.value
    assert (error.requested, error.in_use, error.limit, error.smallest_limit) == (25, 1000, 1024, 1025)
    resource.deallocate(resource.allocate(24), 24)
    resource.deallocate(address, 1000)
    assert resource.budget.in_use == 0


def test_a_refused_giant_does_not_make_a_small_request_fail():
    """RMM's limit adds first and checks after; here the sum passes the limit at no instant."""
    gated = GatedResource()
    resource = LimitingResource(gated, 1000)
    small = Worker(resource.allocate, 600)
    gated.await_callers(1)
    with pytest.raises(OutOfMemoryError):
        resource.allocate(2**40)
    gated.open(2)
    assert resource.budget.in_use == 600
    resource.deallocate(resource.allocate(400), 400)
    resource.deallocate(small.result(), 600)
    assert resource.budget.peak == 1000


def test_limit_counts_before_the_slow_allocation_and_after_a_failure():
    gated = GatedResource()
    resource = LimitingResource(gated, 1000)
    gated.error = OutOfMemoryError("full", requested=600)
    worker = Worker(resource.allocate, 600)
    gated.await_callers(1)
    assert resource.budget.in_use == 600
    gated.open()
    with pytest.raises(OutOfMemoryError):
        worker.result()
    assert resource.budget.in_use == 0


def test_limit_under_threads_is_never_passed():
    seen = StatisticsResource(HostResource())
    resource = LimitingResource(seen, 10_000)

    def churn(i):
        refused = 0
        for n in range(300):
            try:
                address = resource.allocate(1000 + n + i)
            except OutOfMemoryError:
                refused += 1
            else:
                resource.deallocate(address, 1000 + n + i)
        return refused

    run_threads(8, churn)
    assert seen.stats().peak_nbytes <= resource.budget.peak <= 10_000
    assert resource.budget.in_use == 0


def test_two_resources_share_one_budget():
    budget = Budget(100)
    first, second = LimitingResource(HostResource(), budget), LimitingResource(HostResource(), budget)
    address = first.allocate(60)
    with pytest.raises(OutOfMemoryError):
        second.allocate(60)
    first.deallocate(address, 60)
    second.deallocate(second.allocate(60), 60)


def test_statistics_count_live_peak_and_total():
    resource = StatisticsResource(HostResource())
    first, second = resource.allocate(100), resource.allocate(50)
    resource.deallocate(first, 100)
    third = resource.allocate(20)
    assert resource.stats() == AllocationStats(70, 150, 170, 2, 2, 3)
    resource.deallocate(second, 50)
    resource.deallocate(third, 20)
    assert resource.stats() == AllocationStats(0, 150, 170, 0, 2, 3)


def test_statistics_count_what_a_finaliser_gives_back_in_the_middle(monkeypatch):
    resource = StatisticsResource(HostResource())
    held = [resource.allocate(100)]

    def strike(*fields):
        if held:
            resource.deallocate(held.pop(), 100)
        return AllocationStats(*fields)

    monkeypatch.setattr(adaptors, "AllocationStats", strike)
    address = resource.allocate(10)
    assert (resource.stats().current_nbytes, resource.stats().current_count) == (10, 1)
    resource.deallocate(address, 10)


def test_tracking_names_the_caller():
    resource = TrackingResource(HostResource())
    address = resource.allocate(1234)
    record = resource.outstanding()[address]
    assert record.nbytes == 1234
    assert "test_tracking_names_the_caller" in record.stack[-1]
    assert "1,234 bytes" in resource.report()
    resource.deallocate(address, 1234)
    assert resource.outstanding() == {}


def test_log_has_a_row_per_call(tmp_path):
    path = tmp_path / "log.csv"
    with LoggingResource(LimitingResource(HostResource(), 1000), path) as resource:
        address = resource.allocate(100, 128)
        with pytest.raises(OutOfMemoryError):
            resource.allocate(901)
        resource.deallocate(address, 100, 128)
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["action"], int(row["nbytes"]), int(row["alignment"])) for row in rows] == [
        ("allocate", 100, 128),
        ("refuse", 901, 64),
        ("deallocate", 100, 128),
    ]
    assert int(rows[0]["address"], 16) == address
    assert [int(row["time_ns"]) for row in rows] == sorted(int(row["time_ns"]) for row in rows)
    resource.close()
    resource.deallocate(resource.allocate(1), 1)


def test_failure_callback_frees_and_retries():
    limited = LimitingResource(HostResource(), 100)
    cached = [limited.allocate(80)]
    asked = []

    def make_room(nbytes):
        asked.append(nbytes)
        if cached:
            limited.deallocate(cached.pop(), 80)
            return True
        return False

    resource = FailureCallbackResource(limited, make_room)
    address = resource.allocate(50)
    with pytest.raises(OutOfMemoryError):
        resource.allocate(60)
    assert asked == [50, 60]
    resource.deallocate(address, 50)


def test_callbacks_get_what_was_asked():
    calls = []
    host = HostResource()

    def malloc(nbytes, alignment):
        calls.append((nbytes, alignment))
        return host.allocate(nbytes, alignment)

    resource = CallbackResource(malloc, lambda address: host.deallocate(address, 10))
    resource.deallocate(resource.allocate(10, 256), 10)
    assert calls == [(10, 256)]
    assert host.count == 0


@pytest.mark.parametrize("nothing", [0, None])
def test_a_malloc_that_gives_nothing_is_out_of_memory(nothing):
    with pytest.raises(OutOfMemoryError, match="malloc"):
        CallbackResource(lambda nbytes, alignment: nothing, lambda address: None).allocate(10)


@pytest.mark.parametrize("wrong", [65, "address", 64.0])
def test_a_malloc_that_breaks_its_contract_is_named(wrong):
    freed = []
    with pytest.raises(BackendError, match="malloc"):
        CallbackResource(lambda nbytes, alignment: wrong, freed.append).allocate(10)
    assert freed == ([wrong] if isinstance(wrong, int) else [])


def test_errors_of_a_malloc_are_named():
    def malloc(nbytes, alignment):
        raise KeyError("user")

    with pytest.raises(BackendError, match="malloc failed; got: KeyError") as caught:
        CallbackResource(malloc, lambda address: None).allocate(10)
    assert isinstance(caught.value.__cause__, KeyError)


def test_callbacks_must_be_callable():
    with pytest.raises(InvalidArgumentError, match="callables"):
        CallbackResource(None, print)


def test_a_log_can_be_replayed(tmp_path):
    path = tmp_path / "log.csv"
    with LoggingResource(LimitingResource(HostResource(), 1000), path) as resource:
        address, leaked = resource.allocate(100, 128), resource.allocate(7)
        with pytest.raises(OutOfMemoryError):
            resource.allocate(901)
        resource.deallocate(address, 100, 128)
    counted = StatisticsResource(HostResource())
    result = replay(read_log(path), counted)
    assert (result["calls"], result["refused"], result["leaked_nbytes"]) == (4, 0, 7)
    assert (counted.stats().peak_nbytes, counted.stats().current_nbytes) == (1008, 0)
    resource.deallocate(leaked, 7)
