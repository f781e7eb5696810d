"""Everything that close, resize, invalidate, trim, evict and fork can meet, at random, on tiny budgets, for a while.

    python -m tests.helpers.soak [--seconds 600] [--seed 0] [--threads 12]

Some threads compile, load, run and close; others change caches, budgets and contents and fork. Memory that is given
back is poisoned, so that a late reader shows in a result. Prints what was done; the exit status says whether all went
well.
"""

import argparse
import collections
import gc
import random
import sys
import threading
import time

import numpy as np
from onnx import helper

import graphpool as gp
from graphpool.cache import compiled_partition_cache, constant_tensor_cache, primitive_cache
from graphpool.fork import reset_in_child
from tests.helpers.constant_jobs import Job, K, N
from tests.helpers.constant_race import PoisonResource
from tests.helpers.memory import run_in_child
from tests.helpers.onnx_models import make_model, random_array

POLICIES = ["no_evict", "lru", "cost"]
LIMITS = ["24KiB", "48KiB", "256KiB", "8MiB"]
W = random_array((24, 40))


def make_source():
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Relu", ["h"], ["y"])]
    model = make_model(nodes, {"x": random_array((3, 24))}, ["y"], {"w": W})
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    return model.SerializeToString()


class Resource(PoisonResource):
    """Memory that a forked child can use too."""

    def __init__(self):
        super().__init__(delay=4096)
        reset_in_child(self)

    def _reset_in_child(self):
        self._lock = threading.RLock()


class Soak:
    """What all threads share, and what they found."""

    def __init__(self, seed, forks):
        self.seed, self.forks = seed, forks
        self.source = make_source()
        self.resource = Resource()
        self.cache = constant_tensor_cache("cpu")
        self.stop = threading.Event()
        self.wrong, self.counts = [], collections.Counter()
        self.forking = threading.Lock()
        self.budgets = []
        self.engine = self.make_engine()
        self.uses = [self.product, self.model, self.own_engine, self.named]
        for use in self.uses:  # a child that is forked while a thread imports a module waits for that import forever
            self.attempt(use, random.Random(seed))

    def make_engine(self):
        return gp.Engine(threads=2, allocator=self.resource, memory_limit="8MiB", idle_decay_s=0.05)

    def thread(self, number):
        chance, uses = random.Random(self.seed * 1000 + number), self.uses
        changes = [self.change_cache, self.change_budget, self.evict, self.replace_engine, *[self.fork] * self.forks]
        try:
            while not self.stop.is_set() and not self.wrong:
                work = chance.choice(uses if number % 3 else changes)
                self.attempt(work, chance)
        except BaseException as error:
            self.wrong.append(repr(error))
            raise

    def attempt(self, work, chance):
        """Do one thing; an engine that another thread has closed, and a full memory, are no faults."""
        name = work.__name__
        try:
            work(chance)
        except gp.OutOfMemoryError:
            name += ", out of memory"
        except gp.StateError as error:
            if "clos" not in str(error):
                raise
            name += ", closed"
        self.counts[name] += 1

    def expect(self, found, wanted):
        if not np.allclose(found, wanted, rtol=1e-3, atol=1e-3):
            self.wrong.append(f"wanted {wanted.ravel()[:4]}, found {found.ravel()[:4]}")

    # ---- uses

    def product(self, chance):
        modes = {
            "scratch": chance.choice(["primitive", "shared", "none"]),
            "weights": chance.choice(["cached", "scoped"]),
        }
        with Job(self.engine, seed=chance.randrange(9), m=chance.randrange(1, 6), **modes) as job:
            content = np.full((K, N), 1, np.float32)
            tensor = job.tensor(content)
            sums = job.x.sum(axis=1, keepdims=True)
            for _ in range(chance.randrange(1, 12)):
                value = chance.randrange(1, 6)
                if chance.random() < 0.4:
                    content[...] = value
                    tensor.invalidate()
                self.expect(job.run(tensor), content[0, 0] * sums)
                fresh = job.tensor(np.full((K, N), value, np.float32))
                self.expect(job.run(fresh, options=gp.ExecuteOptions(key=value)), value * sums)

    def named(self, chance):
        """Two tensors of one id; a change of either is one of both."""
        engine = self.engine  # names are those of one engine
        with Job(engine, m=2) as job, Job(engine, m=3, first_id=50) as other:
            content, name = np.full((K, N), 1, np.float32), object()
            tensors = job.tensor(content, id=name), other.tensor(content, id=name)
            for value in range(1, chance.randrange(2, 6)):
                content[...] = value
                chance.choice(tensors).invalidate()
                for user, tensor in zip((job, other), tensors, strict=True):
                    self.expect(user.run(tensor), value * user.x.sum(axis=1, keepdims=True))

    def model(self, chance):
        weights = chance.choice(["scoped", "cached", "packed"])
        with gp.onnx.load(self.source, engine=self.engine, weights=weights) as model:
            for _ in range(chance.randrange(1, 5)):
                x = random_array((chance.randrange(1, 20), 24))
                self.expect(model.run({"x": x})["y"], np.maximum(x @ W, 0))
                if chance.random() < 0.2:
                    model.respecialise()

    def own_engine(self, chance):
        """A tiny engine that is closed while a thread uses it."""
        engine = gp.Engine(threads=1, allocator=self.resource, memory_limit=chance.choice(LIMITS))
        closing = threading.Timer(chance.random() * 0.01, engine.close)
        closing.start()
        try:
            with Job(engine, seed=1) as job:
                w = np.full((K, N), 2, np.float32)
                for _ in range(20):
                    self.expect(job.run(job.tensor(w)), 2 * job.x.sum(axis=1, keepdims=True))
        finally:
            closing.join()
            engine.close()
            self.budgets.append(engine.budget)  # another thread may be giving back what it has evicted there

    # ---- changes

    def change_cache(self, chance):
        cache, limit = self.cache, chance.choice([0, 5_000, 20_000, None])
        change = chance.choice(["set", "resize", "clear", "reclaim", "remove"])
        if change == "set":
            cache.set_capacity(limit, policy=chance.choice(POLICIES))
        elif change == "resize":
            cache.resize(limit)
        elif change == "clear":
            cache.clear()
        elif change == "reclaim":
            cache.reclaim(chance.randrange(20_000))
        elif keys := cache.keys():
            cache.remove_if_exist(*chance.choice(keys))
        stats = cache.stats()
        if stats.capacity_nbytes is not None and stats.nbytes > stats.capacity_nbytes:
            self.wrong.append(repr(stats))

    def change_budget(self, chance):
        self.engine.budget.resize(chance.choice(LIMITS))
        self.engine.trim()
        self.engine.decay()

    def evict(self, chance):
        chance.choice([
            primitive_cache().clear, compiled_partition_cache().clear, lambda: primitive_cache().reclaim(2000),
            lambda: primitive_cache().resize(chance.choice([0, 1, 1024])),
        ])()  # fmt: skip

    def fork(self, chance):
        def works():
            w = np.full((K, N), 3, np.float32)
            self.cache.set_capacity(None)
            with gp.Engine(threads=1) as engine, Job(engine) as job:
                assert np.allclose(job.run(job.tensor(w)), 3 * job.x.sum(axis=1, keepdims=True), rtol=1e-3, atol=1e-3)
            self.engine.trim()

        with self.forking:
            run_in_child(works)

    def replace_engine(self, chance):
        if chance.random() < 0.3:
            with self.forking:  # of two threads neither may lose an engine
                old, self.engine = self.engine, self.make_engine()
            old.close()
            self.budgets.append(old.budget)


def soak(seconds, *, seed=0, threads=12, forks=True):
    """Run all threads for a while; what went wrong, and how often was done what."""
    interval = sys.getswitchinterval()
    run = Soak(seed, forks)
    workers = [threading.Thread(target=run.thread, args=(number,), daemon=True) for number in range(threads)]
    try:
        sys.setswitchinterval(1e-5)
        for worker in workers:
            worker.start()
        end = time.monotonic() + seconds
        while time.monotonic() < end and not run.wrong:
            time.sleep(0.05)
        run.stop.set()
        for worker in workers:
            worker.join(120)
            if worker.is_alive():
                run.wrong.append(f"{worker.name} hangs")
    finally:
        sys.setswitchinterval(interval)
        run.cache.set_capacity(None, policy="no_evict")
        primitive_cache().resize(1024)
    run.engine.close()
    run.budgets.append(run.engine.budget)
    for thread in threading.enumerate():
        if thread.name == "graphpool idle decay":  # it ends with the last engine, and may be freeing memory
            thread.join(60)
    gc.collect()
    charged, left = sum(budget.in_use for budget in run.budgets), run.resource.report()
    if not run.wrong and (charged or left):
        run.wrong += [f"{charged} bytes charged and {len(left)} allocations left", *left]
    return run.wrong, dict(run.counts)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=12)
    chosen = parser.parse_args()
    wrong, counts = soak(chosen.seconds, seed=chosen.seed, threads=chosen.threads)
    for name, count in sorted(counts.items()):
        print(f"{count:10} {name}")
    print(f"seed {chosen.seed}:", *(wrong[:5] or ["nothing went wrong"]), flush=True)
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
