"""Memory managers and pool managers: populate, clear, reserve, evict."""

import pytest

from graphpool.errors import InvalidArgumentError, OutOfMemoryError, StateError
from graphpool.memory import (
    BlobLifetimeManager,
    Budget,
    HostResource,
    LimitingResource,
    MemoryGroup,
    MemoryManagerCached,
    MemoryManagerOnDemand,
    OffsetLifetimeManager,
    PoolManager,
    TensorAllocator,
)
from tests.helpers.memory import Worker, run_threads

LIFETIMES = [BlobLifetimeManager, OffsetLifetimeManager]
MANAGERS = [MemoryManagerOnDemand, MemoryManagerCached]


@pytest.fixture
def host():
    host = HostResource()
    yield host
    assert host.count == 0, "the test leaked"


def configure(manager, *sizes):
    """A group of tensors of `sizes` bytes that all live together."""
    group, tensors = MemoryGroup(manager), [TensorAllocator(nbytes) for nbytes in sizes]
    for tensor in tensors:
        group.manage(tensor)
    for tensor in tensors:
        tensor.allocate()
    return group, tensors


@pytest.mark.parametrize("manager_type", MANAGERS)
@pytest.mark.parametrize("lifetimes", LIFETIMES)
def test_populate_and_clear(manager_type, lifetimes, host):
    """ACL NEON/UNIT/MemoryManager and DynamicTensor: num_pools follows populate and clear."""
    manager = manager_type(lifetimes(), PoolManager())
    group, _ = configure(manager, 100, 200)
    assert manager.lifetime_manager.are_all_finalized()
    manager.populate(host, 1)
    assert (manager.pool_manager.num_pools, host.count) == (1, 1)
    with group:
        pass
    manager.clear()
    manager.clear()
    assert (manager.pool_manager.num_pools, host.count) == (0, 0)
    manager.populate(host, num_pools=3)
    assert manager.pool_manager.num_pools == 3
    manager.close()
    manager.close()


def test_a_manager_needs_a_lifetime_manager():
    with pytest.raises(InvalidArgumentError, match="lifetime_manager"):
        MemoryManagerOnDemand(None)


def test_populate_twice_is_refused(host):
    with MemoryManagerOnDemand(OffsetLifetimeManager()) as manager:
        configure(manager, 100)
        manager.populate(host)
        with pytest.raises(StateError, match="clear first"):
            manager.populate(host)
        assert host.count == 1


@pytest.mark.parametrize("num_pools", [0, -1, 1.5, None])
def test_populate_checks_the_count(num_pools, host):
    with MemoryManagerOnDemand(OffsetLifetimeManager()) as manager, pytest.raises(InvalidArgumentError):
        manager.populate(host, num_pools)


def test_populate_before_all_is_finalised_is_refused(host):
    manager = MemoryManagerOnDemand(OffsetLifetimeManager())
    group, tensor = MemoryGroup(manager), TensorAllocator(100)
    group.manage(tensor)
    with pytest.raises(StateError, match="not finalised"):
        manager.populate(host)


def test_populate_that_runs_out_of_memory_keeps_nothing(host):
    manager = MemoryManagerOnDemand(OffsetLifetimeManager())
    configure(manager, 1000)
    with pytest.raises(OutOfMemoryError):
        manager.populate(LimitingResource(host, 2500), 3)
    assert (host.count, manager.pool_manager.num_pools) == (0, 0)


def test_clear_while_occupied_is_refused(host):
    with MemoryManagerOnDemand(OffsetLifetimeManager()) as manager:
        group, _ = configure(manager, 100)
        manager.populate(host)
        with group, pytest.raises(StateError, match="occupied"):
            manager.clear()
        manager.clear()


def test_a_third_caller_of_two_pools_waits(host):
    with MemoryManagerOnDemand(OffsetLifetimeManager()) as manager:
        group, _ = configure(manager, 100)
        manager.populate(host, 2)
        first, second = group.lease(), group.lease()
        with pytest.raises(OutOfMemoryError):
            group.lease(timeout_s=0.01)
        worker = Worker(lambda: group.lease().release())
        first.release()
        worker.result()
        second.release()


def test_a_foreign_pool_is_not_unlocked(host):
    with MemoryManagerOnDemand(OffsetLifetimeManager()) as one, MemoryManagerOnDemand(BlobLifetimeManager()) as other:
        for manager in (one, other):
            configure(manager, 100)
            manager.populate(host)
        lease = one.pool_manager.lock_pool()
        with pytest.raises(StateError, match="another pool manager"):
            other.pool_manager.unlock_pool(lease)
        one.pool_manager.unlock_pool(lease)
        with pytest.raises(StateError):
            one.pool_manager.unlock_pool(lease)


def test_without_a_pool_nothing_can_be_locked():
    with pytest.raises(StateError, match="no pool is registered"):
        PoolManager().lock_pool()


def test_a_second_pool_is_not_registered(host):
    manager = PoolManager()
    lifetimes = OffsetLifetimeManager()
    manager.register_pool(lifetimes.create_pool(host))
    with pytest.raises(StateError, match="registered already"):
        manager.register_pool(lifetimes.create_pool(host))


@pytest.mark.parametrize("lifetimes", LIFETIMES)
def test_what_was_unreserved_serves_the_next(lifetimes, host):
    with MemoryManagerCached(lifetimes()) as manager:
        group, _ = configure(manager, 1000)
        taken = manager.reserve_pools(host)
        assert taken >= 1000
        manager.unreserve_pools()
        assert manager.reserve_pools(host) == 0
        assert manager.reserve_pools(host, 2) == 2 * taken
        manager.unreserve_pools(3)
        with pytest.raises(StateError, match="unreserve"):
            manager.unreserve_pools()
        with group:
            pass
        assert host.count == 3
        assert manager.trim(idle_s=3600) == 0
        assert manager.trim() == 3 * taken


def test_unreserve_without_a_pool_is_refused():
    with pytest.raises(StateError):
        MemoryManagerCached(OffsetLifetimeManager()).unreserve_pools()


def test_a_layout_that_grew_replaces_an_unused_pool_only(host):
    with MemoryManagerCached(OffsetLifetimeManager()) as manager:
        configure(manager, 100)
        manager.reserve_pools(host)
        group, _ = configure(manager, 5000)
        with pytest.raises(StateError, match="populate again"):
            group.acquire()
        with pytest.raises(StateError, match="reserved"):
            manager.reserve_pools(host)
        manager.unreserve_pools()
        assert manager.reserve_pools(host) >= 5000
        with group:
            pass


def test_a_smaller_configuration_needs_no_new_pools(host):
    """ACL BlobMemoryManagerReconfigure: batch 8, then batch 6, without populating again."""
    for lifetimes in LIFETIMES:
        with MemoryManagerOnDemand(lifetimes()) as manager:
            configure(manager, 8 * 512, 8 * 64)
            manager.populate(host)
            group, tensors = configure(manager, 6 * 512, 6 * 64)
            with group:
                assert all(tensor.address for tensor in tensors)


def test_eviction_lets_executions_finish_and_then_frees(host):
    manager = MemoryManagerCached(OffsetLifetimeManager())
    group, _ = configure(manager, 1000)
    manager.reserve_pools(host, 2)
    lease = group.lease()
    manager.close()
    assert host.count == 1
    with pytest.raises(StateError):
        group.lease()
    lease.release()
    assert host.count == 0


def test_a_budget_bounds_the_pools_of_several_managers(host):
    budget = Budget(2048)
    with (
        MemoryManagerCached(OffsetLifetimeManager(), budget=budget) as one,
        MemoryManagerCached(OffsetLifetimeManager(), budget=budget) as other,
    ):
        configure(one, 1024)
        configure(other, 2048)
        one.reserve_pools(host)
        with pytest.raises(OutOfMemoryError) as caught:
            other.reserve_pools(host)
        assert caught.value.smallest_limit == 3072
        one.unreserve_pools()
        other.reserve_pools(host)
        assert (budget.in_use, budget.peak) == (2048, 2048)


def test_threads_reserve_execute_and_unreserve(host):
    with MemoryManagerCached(OffsetLifetimeManager()) as manager:
        group, [tensor] = configure(manager, 256)

        def live(i):
            for _ in range(50):
                manager.reserve_pools(host)
                with group.lease() as lease:
                    assert lease.addresses[tensor] % 64 == 0
                manager.unreserve_pools()

        run_threads(6, live)
        assert manager.pool_manager.pool.arenas.stats().reserved == 0
        assert 1 <= host.count <= 6


@pytest.mark.parametrize("lifetimes", LIFETIMES)
def test_a_closed_manager_makes_no_pools(lifetimes, host):
    manager = MemoryManagerCached(lifetimes())
    configure(manager, 100, 200)
    manager.close()
    for call in (
        lambda: manager.reserve_pools(host),
        lambda: manager.populate(host),
        lambda: manager.pool_manager.pool,
    ):
        with pytest.raises(StateError, match="closed"):
            call()
