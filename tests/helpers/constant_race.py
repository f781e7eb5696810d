"""Sixteen threads that get, add, remove, resize, flush, disable and execute, all on one constant tensor cache.

    python -m tests.helpers.constant_race [--seconds 60] [--policy cost] [--seed 0]

Threads change places after a few microseconds, memory that is given back is poisoned and stays so for a while, and each
weight holds one number throughout, so that a stale or freed form shows in the product at once.
"""

import argparse
import ctypes
import gc
import random
import sys
import threading
import time
from collections import deque

import numpy as np

import graphpool as gp
from graphpool.cache import ConstantBuffer, constant_tensor_cache
from graphpool.cache._handle import ConstantHandle
from tests.helpers.caches import switching_every
from tests.helpers.constant_jobs import Job, K, N

THREADS, EXECUTING = 16, 6
FORM_NBYTES = 4 * K * N
BACKEND = "race"
POLICIES = ["no_evict", "lru", "cost"]


STACK_DEPTH = 12


class PoisonResource:
    """Memory that is overwritten when it is given back, and used again only much later."""

    def __init__(self, delay=512):
        self._lock = threading.RLock()
        self._live = {}
        self._freed = deque(maxlen=delay)

    @property
    def live_count(self):
        return len(self._live)

    def report(self):
        """What is live, one line each: size, thread, and the calls that asked for it, innermost first."""
        return [f"{nbytes} bytes, {who}: {' < '.join(calls)}" for _, nbytes, who, calls in list(self._live.values())]

    def allocate(self, nbytes, alignment=64, stream=None):
        memory = ctypes.create_string_buffer(nbytes + alignment)
        address = -(-ctypes.addressof(memory) // alignment) * alignment
        with self._lock:
            self._live[address] = memory, nbytes, threading.get_ident(), _calls()
        return address

    def deallocate(self, address, nbytes, alignment=64, stream=None):
        with self._lock:
            memory, *_ = self._live.pop(address)
        ctypes.memset(address, 0xDD, nbytes)
        with self._lock:
            self._freed.append(memory)


def _calls():
    """The Python functions that are running in this thread, but for the resources."""
    found, frame = [], sys._getframe(2)
    while frame is not None and len(found) < STACK_DEPTH:
        if frame.f_code.co_name != "allocate":
            found.append(f"{frame.f_code.co_name}:{frame.f_lineno}")
        frame = frame.f_back
    return found


class Race:
    """What all threads share, and what they found."""

    def __init__(self, engine, policy, seed):
        self.engine, self.policy, self.seed = engine, policy, seed
        self.cache = constant_tensor_cache("cpu")
        self.handles = [ConstantHandle((BACKEND, number)) for number in range(6)]
        self.stop = threading.Event()
        self.wrong = []
        self.counts = dict.fromkeys(("executions", "uses", "changes"), 0)

    def thread(self, number):
        chance = random.Random(self.seed * 1000 + number)
        work = self.execute if number < EXECUTING else self.change
        try:
            while not self.stop.is_set() and not self.wrong:
                work(chance)
        except BaseException as error:
            self.wrong.append(error)

    def execute(self, chance):
        """A compiled partition's life: weights of several contents under all three names, some changed in place."""
        with Job(self.engine, seed=chance.randrange(100), weights=chance.choice(["cached", "scoped"])) as job:
            sums = job.x.sum(axis=1, keepdims=True)
            tensors = [job.tensor(np.full((K, N), value, np.float32)) for value in range(1, 4)]
            tensors += [job.tensor(np.full((K, N), value, np.float32), id=value) for value in range(4, 6)]
            own = np.full((K, N), 1, np.float32)
            changing = job.tensor(own)
            for _ in range(chance.randrange(5, 40)):
                value = chance.randrange(1, 6)
                self.expect(job.run(tensors[value - 1]), value * sums)
                named = job.tensor(np.full((K, N), value, np.float32))
                self.expect(job.run(named, options=gp.ExecuteOptions(key=value)), value * sums)
                if chance.random() < 0.3:
                    own[...] = value
                    changing.invalidate()
                self.expect(job.run(changing), own[0, 0] * sums)
                self.counts["executions"] += 3

    def expect(self, found, wanted):
        if not np.allclose(found, wanted, rtol=1e-3, atol=1e-3):
            self.wrong.append(f"wanted {wanted[:, 0]}, found {found[:, 0]}")

    def change(self, chance):
        """One thing that other users of the cache do to it."""
        cache, limit = self.cache, chance.choice([0, FORM_NBYTES, 3 * FORM_NBYTES, None])
        match chance.randrange(16):
            case 0:
                cache.set_capacity(limit, policy=chance.choice([None, self.policy]))
            case 1:
                cache.clear()
            case 2 | 3:
                cache.resize(limit)
            case 4:
                cache.reclaim(chance.randrange(3 * FORM_NBYTES))
            case 5:
                cache.remove_if_exist(BACKEND, chance.randrange(6))
            case 6:
                keys = cache.keys()
                if keys:
                    cache.remove_if_exist(*chance.choice(keys))
            case _:
                self.use(chance.randrange(6))
        stats = cache.stats()
        if stats.capacity_nbytes is not None and stats.nbytes > stats.capacity_nbytes:
            self.wrong.append(stats)
        self.counts["changes"] += 1

    def use(self, number):
        """Get or add a constant that is filled with its number, and look at it for as long as it is held."""
        handle = self.handles[number]
        address = handle.try_acquire()
        try:
            buffer = ConstantBuffer(address, FORM_NBYTES) if address else self.get(number, handle)
            if buffer is not None:
                self.look(buffer, number)
        finally:
            if address:
                handle.give_back()

    def get(self, number, handle):
        resource = self.engine.resource

        def fill(buffer):
            np.frombuffer(buffer, np.uint8)[:] = number + 1

        return self.cache.get_or_add(BACKEND, number, FORM_NBYTES, fill, resource=resource, handle=handle)

    def look(self, buffer, number):
        content = np.frombuffer(buffer, np.uint8)
        for _ in range(3):
            if not (content == number + 1).all():
                self.wrong.append(f"constant {number} holds {np.unique(content)}")
        self.counts["uses"] += 1


def race(policy, *, seconds, seed=0):
    """Run all threads for a while; what went wrong, how often was done what, and what memory was left."""
    resource = PoisonResource()
    cache = constant_tensor_cache("cpu")
    cache.set_capacity(None, policy=policy)
    with gp.Engine(allocator=resource, threads=1) as engine, switching_every(5e-6):
        run = Race(engine, policy, seed)
        threads = [threading.Thread(target=run.thread, args=(number,)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not run.wrong:
            stats = cache.stats()
            if stats.capacity_nbytes is not None and stats.nbytes > stats.capacity_nbytes:
                run.wrong.append(stats)
        run.stop.set()
        for thread in threads:
            thread.join()
        cache.set_capacity(None, policy="no_evict")
        users = sum(handle.users for handle in run.handles)
    gc.collect()  # without a GIL, what one thread made and another let go of may wait for it
    return run.wrong, run.counts | {"users left": users, "memory left": resource.live_count}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=60, help="for each policy (default: 60)")
    parser.add_argument("--policy", choices=POLICIES, action="append")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    is_well = True
    for policy in chosen.policy or POLICIES:
        wrong, counts = race(policy, seconds=chosen.seconds, seed=chosen.seed)
        print(policy, counts, *map(repr, wrong[:5]), flush=True)
        is_well &= not wrong and not counts["users left"] and not counts["memory left"]
    sys.exit(not is_well)


if __name__ == "__main__":
    main()
