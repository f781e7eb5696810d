"""The nine faults of the RFC's pool manager (seed "primitive memory caching"), each forced, each absent here."""

import threading

import pytest

from graphpool.errors import OutOfMemoryError, StateError
from graphpool.memory import (
    ArenaPool,
    BlobLifetimeManager,
    HostResource,
    MemoryManagerCached,
    OffsetLifetimeManager,
    TensorAllocator,
)
from graphpool.memory import MemoryGroup as Group
from tests.helpers.memory import GatedResource, Worker, await_waiters, run_in_child, run_threads


def cached(nbytes=256, lifetimes=OffsetLifetimeManager):
    """A cached manager with one finalised group of one tensor."""
    manager = MemoryManagerCached(lifetimes())
    group, tensor = Group(manager), TensorAllocator(nbytes)
    group.manage(tensor)
    tensor.allocate()
    return manager, group


def test_a_waiters_survive_reservations_that_come_and_go():
    """RFC: the semaphore was replaced under those who waited on it."""
    with ArenaPool(HostResource(), 64, max_arenas=1) as pool:
        lease = pool.lease()
        worker = Worker(lambda: pool.lease().release())
        await_waiters(pool, 1)
        for _ in range(100):
            pool.reserve(1)
            pool.unreserve(1)
        lease.release()
        worker.result()


def test_b_three_threads_at_one_free_pool_get_it_one_after_another():
    """RFC: emptiness was checked outside the lock, so two threads passed with one pool."""
    inside = threading.Semaphore(1)

    def use(_):
        with pool.lease(timeout_s=20):
            assert inside.acquire(blocking=False), "two threads in one arena"
            inside.release()

    with ArenaPool(HostResource(), 64, max_arenas=1) as pool:
        pool.reserve(1)
        for _ in range(30):
            run_threads(3, use)
        assert pool.stats().created == 1


def test_c_the_creator_gets_what_it_created():
    """RFC: between creating a pool and reserving it, another thread took it, and the retry failed."""
    gated = GatedResource()
    with ArenaPool(gated, 64, max_arenas=1) as pool:
        creator = Worker(pool.lease)
        gated.await_callers(1)
        thief = Worker(pool.lease, 20)
        await_waiters(pool, 1)
        gated.open()
        lease = creator.result()
        assert thief.is_alive()
        lease.release()
        thief.result().release()


def test_d_two_threads_that_see_none_create_no_more_than_allowed():
    """RFC: both saw an empty list and both created."""
    gated = GatedResource()
    with ArenaPool(gated, 64, max_arenas=1) as pool:
        workers = [Worker(lambda: pool.lease().release()) for _ in range(2)]
        gated.await_callers(1)
        await_waiters(pool, 1)
        gated.open(2)
        for worker in workers:
            worker.result()
        assert (pool.stats().created, gated.entered.acquire(blocking=False)) == (1, False)


def test_e_returning_what_was_not_reserved_is_an_error():
    """RFC: it was ignored, and what was returned was the front of a list, not the caller's pool."""
    manager, group = cached()
    with manager:
        with pytest.raises(StateError):
            manager.unreserve_pools()
        manager.reserve_pools(HostResource())
        with pytest.raises(StateError):
            manager.unreserve_pools(2)
        first, second = group.lease(), group.lease()
        first.release()
        with pytest.raises(StateError):
            first.release()
        assert manager.pool_manager.pool.arenas.stats().leased == 1
        second.release()
        manager.unreserve_pools()


@pytest.mark.parametrize("n", [1, 2, 5])
def test_f_reserving_n_and_returning_n_are_symmetric(n):
    """RFC: reserving n moved one pool, returning n moved n."""
    manager, _ = cached()
    with manager:
        for _ in range(3):
            manager.reserve_pools(HostResource(), n)
            assert manager.pool_manager.pool.arenas.stats().reserved == n
            manager.unreserve_pools(n)
        stats = manager.pool_manager.pool.arenas.stats()
        assert (stats.reserved, stats.arenas) == (0, n)


@pytest.mark.parametrize("lifetimes", [BlobLifetimeManager, OffsetLifetimeManager])
def test_g_two_threads_configure_on_one_manager_step_by_step(lifetimes):
    """RFC: the second group's tensors went to the first group, and pools made before were too small."""
    manager, small = cached(64, lifetimes)
    turn = threading.Barrier(2)

    def configure(i):
        group, tensors = Group(manager), [TensorAllocator(1000 * (i + 1)) for _ in range(4)]
        for tensor in tensors:
            turn.wait(20)
            group.manage(tensor)
        for tensor in tensors:
            turn.wait(20)
            tensor.allocate()
        return group, tensors

    with manager:
        manager.reserve_pools(HostResource())
        for group, tensors in run_threads(2, configure):
            assert set(group.mappings) == set(tensors)
            with pytest.raises(StateError, match="populate again"):
                group.lease()
        small.lease().release()


def test_h_failures_and_forks_leave_right_counts():
    """RFC: an exception between two steps left the counts wrong, and a child inherited locked locks."""
    gated = GatedResource()
    manager, group = cached()
    with manager:
        gated.open(3)
        gated.error = OutOfMemoryError("full", requested=256)
        with pytest.raises(OutOfMemoryError):
            manager.reserve_pools(gated, 2)
        stats = manager.pool_manager.pool.arenas.stats()
        assert (stats.arenas, stats.reserved) == (0, 0)
        manager.reserve_pools(gated, 2)
        held, stop = threading.Event(), threading.Event()

        def execute():
            with group.lease():
                held.set()
                stop.wait(20)

        worker = Worker(execute)
        assert held.wait(20)

        def child():
            first, second = group.lease(5), group.lease(5)
            first.release()
            second.release()
            manager.unreserve_pools(2)
            manager.close()

        run_in_child(child)
        stop.set()
        worker.result()


def test_i_executing_returning_and_evicting_do_not_disturb_one_another():
    """RFC: a pool locked by an execution was a third state, which its lists did not know."""
    host = HostResource()
    manager, group = cached()
    manager.reserve_pools(host)
    lease = group.lease()
    manager.unreserve_pools()
    assert manager.trim() == 0
    manager.reserve_pools(host)
    assert manager.pool_manager.pool.arenas.stats().arenas == 1
    manager.close()
    lease.release()
    assert host.count == 0
