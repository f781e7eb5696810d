"""Question: what does a warm lease cost, also when threads share the pool, and what does it save.

The baseline is a fresh allocation of the same size in the same process. ``python -m bench.bench_pools`` prints what
runs of many partitions take whose scratch comes from reserved pools, from the C heap, or from a mapping of its own: the
ways take turns, time is the processor's, the median of all rounds, and minor page faults are counted by the system.
Scratch is written as a kernel would, a byte for every cache line. Sizes that vary are up to four times the smallest; a
pool has room for the largest.
"""

import argparse
import ctypes
import mmap
import random
import resource
import statistics
import threading
import time

import numpy as np
import pytest

from graphpool.memory import ArenaPool, Budget, HostResource, MemoryGroup, MemoryManagerCached, OffsetLifetimeManager
from graphpool.memory import TensorAllocator as Tensor

SIZES = {"4KiB": 2**12, "1MiB": 2**20, "64MiB": 2**26}


pytestmark = pytest.mark.benchmark(group="pools")


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


# ---- the table: runs of many partitions


LINE = 64
PROBLEMS = {
    "300 partitions of 4 KiB": (300, 2**12, False, 1),
    "300 of 32 KiB": (300, 2**15, False, 1),
    "300 of 8 to 32 KiB, varying": (300, 2**13, True, 1),
    "50 of 1 MiB": (50, 2**20, False, 1),
    "50 of 1 to 4 MiB, varying": (50, 2**20, True, 1),
    "10 of 8 to 32 MiB, varying": (10, 2**23, True, 1),
    "300 of 8 to 32 KiB, varying, 4 threads": (300, 2**13, True, 4),
    "50 of 1 to 4 MiB, varying, 4 threads": (50, 2**20, True, 4),
}
"""Name -> partitions, least scratch of each, whether it varies from run to run, threads."""


def pooled(count, nbytes):
    """One reserved pool for each partition; runs of one partition at a time have an arena each."""
    pools = [ArenaPool(HostResource(), nbytes) for _ in range(count)]
    for pool in pools:
        pool.reserve(1)

    def run(k, wanted, write):
        with pools[k].lease() as lease:
            write(lease.address, wanted)

    return run, lambda: [pool.close() for pool in pools]


def allocated(count, nbytes):
    """The C heap, as resources of the host use it."""
    host = HostResource()

    def run(k, wanted, write):
        address = host.allocate(wanted)
        write(address, wanted)
        host.deallocate(address, wanted)

    return run, lambda: None


def mapped(count, nbytes):
    """Pages of the system, given back after each run."""

    def run(k, wanted, write):
        with mmap.mmap(-1, wanted) as pages:
            place = ctypes.c_char.from_buffer(pages)
            write(ctypes.addressof(place), wanted)
            del place

    return run, lambda: None


WAYS = {"pool": pooled, "heap": allocated, "mapping": mapped}


def write(address, nbytes):
    """What a kernel does to its scratch."""
    np.frombuffer((ctypes.c_char * nbytes).from_address(address), np.uint8)[::LINE] = 1


def one_round(run, sizes, threads):
    """Processor time and minor faults of each thread running all partitions."""

    def body():
        for k, wanted in enumerate(sizes):
            run(k, wanted, write)

    workers = [threading.Thread(target=body) for _ in range(threads)]
    start, faults = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return time.process_time() - start, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults


def print_table(rounds):
    """One row for each problem."""
    print(
        "| scratch of one run | " + " | ".join(f"{way}, ms" for way in WAYS) + " | heap / pool | mapping / pool | ",
        end="",
    )
    print(" | ".join(f"faults, {way}" for way in WAYS) + " |\n|---|" + "--:|" * (2 * len(WAYS) + 2))
    for name, (count, least, varies, threads) in PROBLEMS.items():
        made = {way: make(count, 4 * least if varies else least) for way, make in WAYS.items()}
        rng, found = random.Random(0), {way: [] for way in WAYS}
        for _ in range(rounds):
            sizes = [rng.randrange(least, 4 * least) if varies else least for _ in range(count)]
            for way, (run, _) in made.items():
                found[way].append(one_round(run, sizes, threads))
        for _, close in made.values():
            close()
        ms = {way: statistics.median(seconds for seconds, _ in rows) * 1e3 for way, rows in found.items()}
        faults = [f"{statistics.median(count for _, count in rows):.0f}" for rows in found.values()]
        times = [f"{one:.2f}" for one in ms.values()]
        ratios = [f"{ms[way] / ms['pool']:.2f}" for way in ("heap", "mapping")]
        print(f"| {name} | " + " | ".join([*times, *ratios, *faults]) + " |", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rounds", nargs="?", type=int, default=30)
    print_table(**vars(parser.parse_args()))
