"""Many threads, random sizes, a budget that is too small for all: no overlap, no leak, no deadlock, no limit passed.

The long run is the same function: ``GRAPHPOOL_STRESS=1`` makes it 32 threads and 10,000 leases each.
"""

import os
import random
import threading
import time

import pytest

from graphpool.errors import OutOfMemoryError, StateError
from graphpool.memory import ArenaPool, Budget, HostResource, StatisticsResource
from tests.helpers.memory import read_bytes, run_in_child, run_threads, write_bytes

THREADS, LEASES = (32, 10_000) if os.environ.get("GRAPHPOOL_STRESS") else (8, 500)
SIZES = (64, 256, 1024, 4096)
LIMIT = 24 * 1024


class Filled(StatisticsResource):
    """Fresh memory is full of 0xFF, as what a lease leaves behind: other bytes were written without one."""

    def allocate(self, nbytes, alignment=64, stream=None):
        address = super().allocate(nbytes, alignment, stream)
        write_bytes(address, nbytes, 0xFF)
        return address


class Pools:
    """One pool for each size under one budget; `evict` replaces one of them while it is in use."""

    def __init__(self, counted, budget):
        self.counted, self.budget = counted, budget
        self._pools = [self._make(nbytes) for nbytes in SIZES]
        self._evicting = threading.Lock()

    def _make(self, nbytes):
        return ArenaPool(self.counted, nbytes, budget=self.budget)

    def lease(self, i, timeout_s):
        while True:
            try:
                return self._pools[i].lease(timeout_s)
            except StateError:
                continue

    def evict(self, i):
        with self._evicting:
            old, self._pools[i] = self._pools[i], self._make(SIZES[i])
        old.close()

    def close(self):
        for i in range(len(SIZES)):
            self.evict(i)
            self._pools[i].close()


def churn(pools, seed, leases, is_clean=True):
    """Take, mark, verify and give back; returns how often memory was refused."""
    rng, refused = random.Random(seed), 0
    for _ in range(leases):
        i = rng.randrange(len(SIZES))
        try:
            lease = pools.lease(i, timeout_s=rng.choice([0.0, 0.001, 5.0]))
        except OutOfMemoryError:
            refused += 1
            continue
        if is_clean:
            assert read_bytes(lease.address, SIZES[i]) == b"\xff" * SIZES[i], "an arena was written after its release"
        write_bytes(lease.address, SIZES[i], seed)
        time.sleep(0)
        assert read_bytes(lease.address, SIZES[i]) == bytes([seed]) * SIZES[i], "another thread wrote here"
        write_bytes(lease.address, SIZES[i], 0xFF)
        lease.release()
        if rng.random() < 0.01:
            pools.evict(rng.randrange(len(SIZES)))
    return refused


@pytest.fixture
def world():
    host = HostResource()
    counted, budget = Filled(host), Budget(LIMIT)
    pools = Pools(counted, budget)
    yield pools
    pools.close()
    assert counted.stats().peak_nbytes <= budget.peak <= LIMIT
    assert (host.count, budget.in_use) == (0, 0)


def test_threads_share_a_budget_that_is_too_small(world):
    refused = run_threads(THREADS, lambda i: churn(world, i + 1, LEASES))
    assert sum(refused) < THREADS * LEASES


def test_a_fork_in_the_middle_leaves_a_working_child(world):
    stop = threading.Event()

    def keep_busy(i):
        if i == 0:
            for _ in range(5):
                run_in_child(lambda: churn(world, 99, 50, is_clean=False))  # marks of threads that are not here
            stop.set()
        seed = i
        while not stop.is_set():
            churn(world, seed % 200 + 1, 20)
            seed += 1

    run_threads(4, keep_busy)
