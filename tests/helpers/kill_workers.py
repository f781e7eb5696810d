"""Workers of a shared model, killed at random moments: the others go on with right results, and so do new ones.

    python -m tests.helpers.kill_workers [--kills 300] [--place memory|folder] [--seed 0]

No process of the pool has the memory by inheritance: all have a pickled handle, and find the memory at one another. The
one that shared the model is killed too, and so are processes that are sharing. With nobody left nothing is left.
"""

import argparse
import multiprocessing
import os
import pickle
import random
import signal
import tempfile
import time
from collections import Counter
from pathlib import Path

import graphpool as gp
from graphpool.onnx.loader import importer
from tests.helpers.shared_models import save_products, serve, share_and_wait

WORKERS, TIMEOUT_S = 3, 120
SHARING = 10
"""One kill of so many hits a process that is sharing."""


def open_and_serve(text, connection):
    """A worker: open the shared model, say so, and answer."""
    with pickle.loads(text).open() as model:
        connection.send("open")
        serve(model, connection)


class Worker:
    """A process at the other end of a pipe."""

    def __init__(self, target, *arguments, method="fork"):
        context = multiprocessing.get_context(method)
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=_run, args=(target, self.connection, theirs, arguments))
        self._process.start()
        theirs.close()

    def receive(self):
        """The next message; fails where none comes."""
        if not self.connection.poll(TIMEOUT_S):
            raise TimeoutError("a worker hangs")
        return self.connection.recv()

    def receive_bytes(self):
        """As `receive`, of bytes."""
        if not self.connection.poll(TIMEOUT_S):
            raise TimeoutError("a worker hangs")
        return self.connection.recv_bytes()

    def is_right(self, number):
        """Whether its answer to a request is the right one."""
        self.connection.send(number)
        return self.receive()

    def kill(self):
        """At once."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join(TIMEOUT_S)
        self.connection.close()


def _run(target, other_end, own_end, arguments):
    other_end.close()  # so that the pipe ends with the parent
    target(*arguments[:1], own_end, *arguments[1:])


class Pool:
    """Workers over one shared model, and what happened to them."""

    def __init__(self, folder, place, seed):
        self.path = save_products(Path(folder) / "m.onnx")
        self.store = None if place == "memory" else str(Path(folder) / "store")
        self.rng = random.Random(seed)
        self.counts = Counter()
        owner = Worker(share_and_wait, self.path, self.store)
        self.text = owner.receive_bytes()
        self.workers = [owner, *(self.opened() for _ in range(WORKERS - 1))]

    def opened(self):
        """A worker that has opened the model."""
        worker = Worker(open_and_serve, self.text)
        assert worker.receive() == "open"
        return worker

    def kill_one(self):
        """Kill a process at a random moment of its life, and look at the others."""
        kind = self.rng.choices(["sharing", "opening", "serving"], [1, SHARING / 2, SHARING / 2])[0]
        self.counts[kind] += 1
        if kind == "serving":
            victim = self.workers.pop(self.rng.randrange(len(self.workers)))
            victim.connection.send(1)
            time.sleep(self.rng.random() * 0.002)
            victim.kill()
            self.workers.append(self.opened())
        else:
            target = (share_and_wait, self.path, self.store) if kind == "sharing" else (open_and_serve, self.text)
            victim = Worker(*target)
            time.sleep(self.rng.random() * 0.1)
            victim.kill()
        number = self.rng.randrange(100)
        assert all(worker.is_right(number) for worker in self.workers)

    def close(self):
        """Kill all that are left."""
        for worker in self.workers:
            worker.kill()


def kill_workers(kills, place, seed=0):
    """Kill so many; how many of which kind."""
    importer()  # once, for all that are forked
    with tempfile.TemporaryDirectory() as folder:
        pool = Pool(folder, place, seed)
        try:
            for _ in range(kills):
                pool.kill_one()
        finally:
            pool.close()
        if place == "memory":
            assert is_gone(pool.text)
        else:
            worker = Worker(share_and_wait, pool.path, pool.store)  # clears away what killed writers left
            worker.receive_bytes()
            worker.kill()
            assert not list(Path(pool.store).glob("*.writing"))
            pool.opened().kill()
        return pool.counts


def is_gone(text):
    """Whether no process has the memory of a pickled handle any more."""
    try:
        pickle.loads(text).open().close()
    except gp.StateError as error:
        return "is gone" in str(error)
    return False


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--place", choices=["memory", "folder"], default="memory")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(dict(kill_workers(options.kills, options.place, options.seed)))
