"""Question: what does a warm lease cost, also when threads share the pool.

The baseline is a fresh allocation of the same size in the same process.
"""

import threading

import pytest

from graphpool.memory import ArenaPool, Budget, HostResource, MemoryGroup, MemoryManagerCached, OffsetLifetimeManager
from graphpool.memory import TensorAllocator as Tensor

SIZES = {"4KiB": 2**12, "1MiB": 2**20, "64MiB": 2**26}


@pytest.mark.parametrize("name", SIZES)
def test_fresh_allocation(benchmark, name):
    host, nbytes = HostResource(), SIZES[name]
    benchmark(lambda: host.deallocate(host.allocate(nbytes), nbytes))


@pytest.mark.parametrize("name", SIZES)
def test_warm_lease(benchmark, name):
    with ArenaPool(HostResource(), SIZES[name]) as pool:
        pool.reserve(1)
        benchmark(lambda: pool.lease().release())


def test_warm_lease_under_a_budget(benchmark):
    with ArenaPool(HostResource(), 2**20, budget=Budget("1GiB")) as pool:
        pool.reserve(1)
        benchmark(lambda: pool.lease().release())


@pytest.mark.parametrize("threads", [1, 2, 8])
@pytest.mark.parametrize("max_arenas", [1, None])
def test_threads_share_a_pool(benchmark, threads, max_arenas):
    def churn():
        for _ in range(1000):
            pool.lease().release()

    def run():
        workers = [threading.Thread(target=churn) for _ in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    with ArenaPool(HostResource(), 2**20, max_arenas=max_arenas) as pool:
        benchmark.pedantic(run, rounds=5, warmup_rounds=1)
        benchmark.extra_info.update(leases=threads * 1000, waits=pool.stats().waits, arenas=pool.stats().arenas)


def test_cached_manager_reserves_again(benchmark):
    with MemoryManagerCached(OffsetLifetimeManager()) as manager:
        group, tensor, host = MemoryGroup(manager), Tensor(2**20), HostResource()
        group.manage(tensor)
        tensor.allocate()

        def live():
            manager.reserve_pools(host)
            with group:
                pass
            manager.unreserve_pools()

        benchmark(live)
        benchmark.extra_info.update(arenas_created=manager.pool_manager.pool.arenas.stats().created)
