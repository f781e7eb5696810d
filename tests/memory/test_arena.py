"""Arena pools and leases: identity, waiting, closing, forking."""

import copy
import gc
import itertools
import pickle
import threading
import time

import pytest

from graphpool.errors import InvalidArgumentError, OutOfMemoryError, StateError
from graphpool.memory import (
    ArenaPool,
    Budget,
    HostResource,
    LimitingResource,
    StatisticsResource,
    TrackingResource,
)
from graphpool.memory._lease import Lease
from tests.helpers.memory import (
    GatedResource,
    Worker,
    await_waiters,
    run_in_child,
    run_threads,
    write_bytes,
)


@pytest.fixture
def host():
    host = HostResource()
    yield host
    gc.collect()
    assert host.count == 0, "the test leaked"


def test_a_released_arena_is_used_again(host):
    with ArenaPool(host, 4096) as pool:
        with pool.lease() as first:
            address = first.address
        with pool.lease() as second:
            assert second.address == address
        assert pool.stats().created == 1
        assert pool.stats().leases == 2


def test_leases_held_together_have_arenas_of_their_own(host):
    with ArenaPool(host, 4096, alignment=256) as pool:
        leases = [pool.lease() for _ in range(20)]
        addresses = sorted(lease.address for lease in leases)
        assert all(b - a >= 4096 for a, b in itertools.pairwise(addresses))
        assert all(address % 256 == 0 for address in addresses)
        stats = pool.stats()
        assert (stats.arenas, stats.leased, stats.free, stats.nbytes) == (20, 20, 0, 20 * 4096)
        for lease in leases:
            lease.release()
        assert pool.stats().free == 20


@pytest.mark.parametrize(
    "options",
    [
        {"nbytes": -1},
        {"nbytes": 1.5},
        {"alignment": 3},
        {"max_arenas": 0},
        {"max_arenas": "2"},
        {"timeout_s": -1},
        {"timeout_s": "1"},
        {"timeout_s": float("nan")},
        {"max_arenas": 2**63},
        {"budget": 100},
        {"resource": None},
    ],
)
def test_refuses_what_makes_no_sense(host, options):
    with pytest.raises(InvalidArgumentError):
        ArenaPool(**({"resource": host, "nbytes": 64} | options))


@pytest.mark.parametrize("idle_s", [-1, float("nan"), "1", None])
def test_trim_refuses_what_is_no_time(host, idle_s):
    with ArenaPool(host, 64) as pool:
        pool.lease().release()
        with pytest.raises(InvalidArgumentError, match="idle_s; accepted: seconds"):
            pool.trim(idle_s)
        assert (pool.trim(float("inf")), pool.trim(10**400), pool.trim()) == (0, 0, 64)


def test_a_pool_that_was_never_initialised_is_harmless():
    pool = ArenaPool.__new__(ArenaPool)
    pool.close()
    assert pool.stats().arenas == 0


def test_a_lease_of_no_pool_holds_nothing():
    lease = Lease.__new__(Lease)
    assert (lease.is_live, lease.nbytes, lease.pool) == (False, 0, None)
    assert repr(lease) == "<Lease of None, released>"
    with pytest.raises(StateError):
        lease.release()


def test_the_second_release_raises(host):
    with ArenaPool(host, 64) as pool:
        lease, other = pool.lease(), pool.lease()
        lease.release()
        with pytest.raises(StateError, match="released before"):
            lease.release()
        with pytest.raises(StateError):
            _ = lease.address
        assert not lease.is_live
        assert pool.stats().leased == 1
        other.release()


def test_a_stale_token_does_not_release_the_next_lease(host):
    with ArenaPool(host, 64) as pool:
        stale = pool.lease()
        stale.release()
        with pool.lease() as lease:
            with pytest.raises(StateError):
                stale.release()
            assert lease.is_live


def test_of_two_releases_at_once_one_raises(host):
    def release(lease):
        try:
            lease.release()
        except StateError:
            return 0
        return 1

    with ArenaPool(host, 64) as pool:
        for _ in range(50):
            lease = pool.lease()
            assert sum(run_threads(2, lambda i, lease=lease: release(lease))) == 1
        assert pool.stats().free == 1


def test_another_thread_may_release(host):
    with ArenaPool(host, 64, max_arenas=1) as pool:
        lease = pool.lease()
        Worker(lease.release).result()
        pool.lease().release()


def test_a_token_cannot_be_copied(host):
    with ArenaPool(host, 64) as pool, pool.lease() as lease:
        for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="lease"):
                duplicate(lease)


def test_a_forgotten_lease_comes_back_with_a_warning(host):
    with ArenaPool(host, 64, max_arenas=1) as pool:
        lease = pool.lease()
        with pytest.warns(ResourceWarning, match="never released"):
            del lease
        pool.lease(timeout_s=0).release()


def test_a_forgotten_pool_frees_its_arenas_with_a_warning(host):
    pool = ArenaPool(host, 64)
    pool.lease().release()
    with pytest.warns(ResourceWarning, match="not closed"):
        del pool
    assert host.count == 0


def test_zero_bytes_allocate_nothing(host):
    with ArenaPool(host, 0, max_arenas=1, alignment=128) as pool:
        first, second = pool.lease(), pool.lease()
        assert first.address % 128 == 0
        assert (first.address > 0, first.nbytes, host.count) == (True, 0, 0)
        first.release()
        with pytest.raises(StateError):
            first.release()
        second.release()
        assert pool.reserve(1) == 0
    with pytest.raises(StateError):
        pool.lease()


def test_waits_for_an_arena_when_all_are_leased(host):
    with ArenaPool(host, 64, max_arenas=1) as pool:
        lease = pool.lease()
        worker = Worker(lambda: pool.lease().release())
        await_waiters(pool, 1)
        lease.release()
        worker.result()
        assert pool.stats().created == 1


def test_gives_up_after_the_timeout(host):
    with ArenaPool(host, 64, max_arenas=1, timeout_s=0.01) as pool, pool.lease():
        for options in ({}, {"timeout_s": 0}, {"timeout_s": 0.001}):
            with pytest.raises(OutOfMemoryError, match="no arena came back in time") as caught:
                pool.lease(**options)
            assert (caught.value.requested, caught.value.in_use, caught.value.limit) == (64, 64, 64)
        with pytest.raises(InvalidArgumentError):
            pool.lease(timeout_s=-1)


def test_waiters_are_served_in_order(host):
    order, done = [], threading.Event()

    def wait(i):
        with pool.lease():
            order.append(i)
            done.wait(0.002)

    with ArenaPool(host, 64, max_arenas=1) as pool:
        lease = pool.lease()
        workers = []
        for i in range(5):
            workers.append(Worker(wait, i))
            await_waiters(pool, i + 1)
        lease.release()
        for worker in workers:
            worker.result()
    assert order == [0, 1, 2, 3, 4]


def test_a_slow_creation_keeps_nobody_from_a_free_arena(host):
    gated = GatedResource(host)
    with ArenaPool(gated, 64) as pool:
        gated.open()
        first = pool.lease()
        gated.await_callers(1)
        slow = Worker(pool.lease)
        gated.await_callers(1)
        first.release()
        with pool.lease(timeout_s=10):
            pass
        gated.open()
        slow.result().release()


def test_creations_run_side_by_side_and_never_too_many(host):
    gated = GatedResource(host)
    with ArenaPool(gated, 64, max_arenas=2) as pool:
        workers = [Worker(lambda: pool.lease().release()) for _ in range(4)]
        gated.await_callers(2)
        await_waiters(pool, 2)
        assert pool.stats().arenas == 2
        gated.open(2)
        for worker in workers:
            worker.result()
        assert pool.stats().created == 2


def test_a_failed_creation_rolls_back_and_lets_the_next_try(host):
    gated = GatedResource(host)
    with ArenaPool(gated, 64, max_arenas=1) as pool:
        gated.error = RuntimeError("broken")
        first = Worker(pool.lease)
        gated.await_callers(1)
        second = Worker(pool.lease)
        await_waiters(pool, 1)
        gated.open(2)
        with pytest.raises(RuntimeError, match="broken"):
            first.result()
        second.result().release()
        assert pool.stats().arenas == 1


def test_short_memory_waits_for_a_lease_then_refuses(host):
    limited = LimitingResource(host, 100)
    with ArenaPool(limited, 64) as pool:
        lease = pool.lease()
        worker = Worker(lambda: pool.lease().release())
        await_waiters(pool, 1)
        lease.release()
        worker.result()
        with pool.lease(), pytest.raises(OutOfMemoryError):
            pool.lease(timeout_s=0.01)
    with ArenaPool(limited, 200) as pool, pytest.raises(OutOfMemoryError) as caught:
        pool.lease()
    assert caught.value.smallest_limit == 200


def test_reserved_arenas_survive_trim(host):
    with ArenaPool(host, 64) as pool:
        assert pool.reserve(2) == 128
        assert pool.reserve(0) == 0
        assert pool.trim() == 0
        pool.unreserve(1)
        assert pool.trim() == 64
        with pytest.raises(StateError, match="unreserve"):
            pool.unreserve(2)
        assert pool.stats().reserved == 1


def test_reserve_counts_arenas_that_exist(host):
    with ArenaPool(host, 64) as pool, pool.lease():
        assert pool.reserve(1) == 0
        assert pool.reserve(1) == 64


def test_reserve_beyond_the_maximum_changes_nothing(host):
    with ArenaPool(host, 64, max_arenas=2) as pool:
        pool.reserve(1)
        for n in (2, -1, "1"):
            with pytest.raises(InvalidArgumentError, match="reserve"):
                pool.reserve(n)
        assert (pool.stats().reserved, pool.stats().arenas) == (1, 1)


def test_a_reservation_that_fails_keeps_nothing(host):
    with ArenaPool(LimitingResource(host, 200), 64) as pool:
        with pytest.raises(OutOfMemoryError):
            pool.reserve(4)
        stats = pool.stats()
        assert (stats.arenas, stats.reserved, host.nbytes) == (0, 0, 0)


def test_concurrent_reservations_create_what_is_missing_and_no_more(host):
    for _ in range(10):
        with ArenaPool(host, 64) as pool:
            taken = run_threads(4, lambda i, pool=pool: pool.reserve(3))
            stats = pool.stats()
            assert (stats.arenas, stats.reserved, sum(taken)) == (12, 12, 12 * 64)


def test_trim_frees_only_what_was_idle_so_long(host):
    with ArenaPool(host, 64) as pool:
        pool.lease().release()
        assert pool.trim(idle_s=3600) == 0
        assert pool.idle_since <= time.monotonic()
        assert pool.trim() == 64
        assert pool.idle_since == float("inf")


def test_reclaim_frees_the_longest_idle_and_enough(host):
    with ArenaPool(host, 64) as pool:
        first, second, third = pool.lease(), pool.lease(), pool.lease()
        kept = first.address
        for lease in (second, third, first):
            lease.release()
        assert pool.reclaim(65) == 128
        with pool.lease() as lease:
            assert lease.address == kept


def test_close_frees_idle_arenas_now_and_leased_ones_on_release(host):
    pool = ArenaPool(host, 64)
    lease, idle = pool.lease(), pool.lease()
    idle.release()
    pool.close()
    pool.close()
    assert (host.count, pool.is_closed) == (1, True)
    assert lease.is_live
    with pytest.raises(StateError, match="closed"):
        pool.lease()
    with pytest.raises(StateError, match="closed"):
        pool.reserve()
    lease.release()
    assert (host.count, pool.stats().arenas) == (0, 0)


def test_close_wakes_whoever_waits(host):
    pool = ArenaPool(host, 64, max_arenas=1)
    lease = pool.lease()
    worker = Worker(pool.lease)
    await_waiters(pool, 1)
    pool.close()
    with pytest.raises(StateError, match="closed"):
        worker.result()
    lease.release()


def test_an_arena_created_while_the_pool_closes_is_freed(host):
    gated = GatedResource(host)
    pool = ArenaPool(gated, 64)
    worker = Worker(pool.lease)
    gated.await_callers(1)
    pool.close()
    gated.open()
    worker.result().release()
    assert host.count == 0


def test_a_budget_trims_other_pools_before_it_refuses(host):
    budget = Budget(300)
    with ArenaPool(host, 100, budget=budget) as old, ArenaPool(host, 200, budget=budget) as new:
        leases = [old.lease() for _ in range(3)]
        for lease in leases:
            lease.release()
        with new.lease():
            assert (old.stats().arenas, budget.in_use) == (1, 300)
            with old.lease(), pytest.raises(OutOfMemoryError) as caught:
                old.lease(timeout_s=0.01)
        assert (caught.value.in_use, caught.value.limit, caught.value.smallest_limit) == (300, 300, 400)
    assert budget.in_use == 0


def test_a_waiter_gets_what_another_pool_gives_back(host):
    budget = Budget(100)
    with ArenaPool(host, 100, budget=budget) as first, ArenaPool(host, 60, budget=budget) as second:
        lease = first.lease()
        worker = Worker(lambda: second.lease().release())
        await_waiters(second, 1)
        lease.release()
        worker.result()
        assert (first.stats().arenas, second.stats().arenas, budget.peak) == (0, 1, 100)


def test_a_request_beyond_the_budget_is_refused_at_once(host):
    budget = Budget(100)
    small, large = ArenaPool(host, 60, budget=budget), ArenaPool(host, 101, budget=budget)
    with small, large, small.lease(), pytest.raises(OutOfMemoryError, match="budget"):
        large.lease()


def test_the_child_of_a_fork_has_fresh_locks_and_its_own_leases(host):
    with ArenaPool(host, 64, max_arenas=2) as pool:
        mine = pool.lease()
        theirs = Worker(pool.lease).result()
        waiter = Worker(lambda: pool.lease().release())
        await_waiters(pool, 1)

        def child():
            assert mine.is_live
            assert not theirs.is_live
            with pytest.raises(StateError):
                theirs.release()
            assert (pool.stats().leased, pool.stats().free) == (1, 1)
            with pool.lease(timeout_s=5) as lease:
                write_bytes(lease.address, 64, 1)
            mine.release()
            pool.close()
            assert pool.stats().arenas == 0

        run_in_child(child)
        assert theirs.is_live
        mine.release()
        theirs.release()
        waiter.result()


def test_a_fork_during_a_creation_leaves_the_child_its_budget(host):
    gated, budget = GatedResource(host), Budget(64)
    with ArenaPool(gated, 64, max_arenas=1, budget=budget) as pool:
        worker = Worker(lambda: pool.lease().release())
        gated.await_callers(1)

        def child():
            assert (budget.in_use, pool.stats().arenas) == (0, 0)
            gated.open(10)
            pool.lease(timeout_s=5).release()
            pool.close()

        run_in_child(child)
        gated.open()
        worker.result()


def test_statistics_see_no_allocation_when_warm(host):
    counted = StatisticsResource(host)
    with ArenaPool(counted, 4096) as pool:
        pool.reserve(2)
        warm = counted.stats()
        for _ in range(100):
            with pool.lease(), pool.lease():
                pass
        assert counted.stats() == warm


def test_a_reservation_that_meets_close_keeps_nothing(host):
    class Closing(int):
        """Closes the pool when `reserve` has seen that it is open."""

        def __lt__(self, other):
            pool.close()
            return int.__lt__(self, other)

    pool, budget = None, Budget()
    pool = ArenaPool(host, 4096, budget=budget)
    pool.reserve(Closing(2))
    assert (pool.stats().arenas, host.count, budget.in_use) == (0, 0, 0)
    assert pool.stats().faults == 0


def test_a_resource_that_refuses_within_the_budget_is_not_waited_for(host):
    pool = ArenaPool(LimitingResource(host, 4095), 4096, budget=Budget(10_000))
    with pytest.raises(OutOfMemoryError):
        pool.lease()
    assert pool.stats().waits == 0


def test_resources_stack_on_a_pool(host):
    """Counted above and below: the pool gives the same arena again, and its own resource sees one allocation."""
    below = StatisticsResource(host)
    with ArenaPool(below, 4096, max_arenas=2) as pool:
        above = StatisticsResource(TrackingResource(pool))
        first, second = above.allocate(100), above.allocate(4096)
        above.deallocate(first, 100)
        assert above.allocate(1, 16) == first
        above.deallocate(first, 1)
        above.deallocate(second, 4096)
        assert (pool.stats().leased, pool.stats().free) == (0, 2)
        assert (above.stats().total_count, above.stats().current_nbytes, below.stats().total_count) == (3, 0, 2)


def test_pools_stack_on_pools(host):
    with ArenaPool(host, 4096, max_arenas=1) as below, ArenaPool(below, 1024) as pool:
        with pool.lease(), pytest.raises(OutOfMemoryError):
            below.lease(timeout_s=0)
        pool.trim()
        assert (below.stats().leased, below.stats().free) == (0, 1)


@pytest.mark.parametrize("request_", [(4097, 64), (64, 128), (-1, 64), (64, 3)])
def test_a_pool_refuses_requests_that_no_arena_serves(host, request_):
    with ArenaPool(host, 4096) as pool:
        with pytest.raises(InvalidArgumentError):
            pool.allocate(*request_)
        assert pool.stats().arenas == 0


def test_a_pool_takes_back_only_what_is_leased(host):
    with ArenaPool(host, 4096) as pool:
        address = pool.allocate(4096)
        for wrong in ((address + 64, 4096), (address, 4097), (0, 1), (-1, 1), (1 << 64, 1)):
            with pytest.raises(StateError, match="does not hold"):
                pool.deallocate(*wrong)
        pool.deallocate(address, 4096)
        with pytest.raises(StateError, match="does not hold"):
            pool.deallocate(address, 4096)
        assert pool.stats().faults == 0


def test_a_closed_pool_frees_what_is_given_back_by_address(host):
    pool = ArenaPool(host, 64)
    address = pool.allocate(64)
    pool.close()
    with pytest.raises(StateError, match="closed"):
        pool.allocate(64)
    pool.deallocate(address, 64)
    assert host.count == 0


def test_a_pool_of_no_bytes_is_a_resource_too(host):
    with ArenaPool(host, 0) as pool:
        pool.deallocate(pool.allocate(0), 0)
        assert host.count == 0
