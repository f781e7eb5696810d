"""Processes that share a model: started in every way, killed at any moment, and what all of them have in memory."""

import concurrent.futures
import multiprocessing
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graphpool as gp
from graphpool.cache import constant_tensor_cache, set_packed_store
from graphpool.demo import model_path
from graphpool.onnx.loader import importer
from tests.helpers import kill_workers
from tests.helpers.kill_workers import Worker
from tests.helpers.shared_models import inputs, open_and_run, open_elsewhere, save_products, share_and_wait

pytestmark = pytest.mark.native
METHODS = ["fork", "forkserver", "spawn"]


@pytest.fixture(autouse=True)
def no_store():
    set_packed_store(None)
    yield
    set_packed_store(None)
    constant_tensor_cache("cpu").clear()


@pytest.fixture
def handle(tmp_path):
    with gp.onnx.load(save_products(tmp_path / "m.onnx"), threads=1) as model:
        return gp.share(model)


class Dataset:
    """What loaders of data give to their workers: an object that opens the model when a worker first needs it."""

    def __init__(self, handle):
        self.handle, self._model = handle, None

    def __getitem__(self, number):
        if self._model is None:
            self._model = self.handle.open()
        return self._model.run(inputs(number))["y"]

    def __getstate__(self):
        return {"handle": self.handle, "_model": None}


def take(dataset, number):
    return dataset[number]


@pytest.mark.parametrize("place", ["memory", "folder"])
@pytest.mark.parametrize("method", METHODS)
def test_workers_of_multiprocessing(tmp_path, method, place):
    with gp.onnx.load(save_products(tmp_path / "m.onnx"), threads=1) as model:
        handle = gp.share(model, store=None if place == "memory" else tmp_path / "store")
        with multiprocessing.get_context(method).Pool(2) as pool:
            found = pool.starmap(open_and_run, [(handle, number) for number in range(4)])
    assert all(is_right and nbytes < 4096 for is_right, nbytes in found)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_of_an_executor_and_datasets(handle, method):
    context = multiprocessing.get_context(method)
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context) as executor:
        found = list(executor.map(take, [Dataset(handle)] * 3, range(3)))
    with handle.open() as model:
        assert all(np.array_equal(y, model.run(inputs(number))["y"]) for number, y in enumerate(found))


def test_workers_of_joblib(handle):
    joblib = pytest.importorskip("joblib")
    found = joblib.Parallel(n_jobs=2)(joblib.delayed(open_and_run)(handle, number) for number in range(4))
    joblib.externals.loky.get_reusable_executor().shutdown(wait=True)
    assert all(is_right and nbytes < 4096 for is_right, nbytes in found)


OPEN_AFTER_PRELOAD = """
import sys
import graphpool.onnx.preload
before = {*sys.modules}
import graphpool, graphpool.demo
graphpool.onnx.load(graphpool.demo.model_path("digits_cnn")).close()
print(sorted(name for name in {*sys.modules} - before if name.startswith(("graphpool", "onnx"))))
looks = []
sys.addaudithook(lambda event, about: looks.append(about) if event == "os.scandir" else None)
with graphpool.onnx.load(graphpool.demo.model_path("digits_cnn"), shapes={"batch": (1, 2)}) as model:
    with graphpool.share(model) as handle:
        handle.open().close()
print(looks)
"""


def test_a_fork_server_imports_all_that_opening_takes_and_looks_at_all_files():
    command = [sys.executable, "-c", OPEN_AFTER_PRELOAD]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "['graphpool.demo']\n[]\n"


OPEN_AND_LOOK = """
import pickle, sys
handle = pickle.loads(bytes.fromhex(sys.argv[1]))
handle.open().close()
print([name for name in sys.argv[2:] if name in sys.modules])
"""


def test_a_worker_imports_nothing_that_it_does_not_use():
    """Each of these takes half a millisecond or more of the time to its first answer."""
    spare = ["csv", "json", "logging", "traceback", "onnx", "scipy", "pathlib", "_hashlib", "graphpool.onnx"]
    spare += [f"graphpool.{name}" for name in ("cache.packed_folder", "cache.traces", "drawing", "graph.graph")]
    spare += [f"graphpool.runtime.{name}" for name in ("loop", "partition_runs", "process_report", "session")]
    options = {"threads": 1, "shapes": {"batch": (1, 2)}}
    with gp.onnx.load(model_path("digits_cnn"), **options) as model, gp.share(model) as handle:
        command = [sys.executable, "-c", OPEN_AND_LOOK, pickle.dumps(handle).hex(), *spare]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout == "[]\n"


def test_who_comes_after_the_first_is_gone_finds_the_memory_at_another(tmp_path):
    owner = Worker(share_and_wait, save_products(tmp_path / "m.onnx"))
    text = owner.receive_bytes()
    second = Worker(kill_workers.open_and_serve, text)
    assert second.receive() == "open"
    owner.kill()
    assert open_elsewhere(text).startswith("(True, ")
    assert second.is_right(3)
    second.kill()
    assert "is gone" in open_elsewhere(text)
    assert kill_workers.is_gone(text)


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_kills_leave_the_others_right(place):
    assert kill_workers.kill_workers(8, place, seed=2).total() == 8


@pytest.mark.slow
@pytest.mark.parametrize("place", ["memory", "folder"])
def test_hundreds_of_kills_leave_the_others_right(place):
    assert kill_workers.kill_workers(200, place, seed=1).total() == 200


# ---- memory

SIDE = 2048


def save_large(path):
    """Two products with 16 MiB of weights each."""
    import onnx
    from onnx import helper

    from tests.helpers.onnx_models import make_model

    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((SIDE, SIDE), np.float32) for name in "wv"}
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "v"], ["y"])]
    onnx.save(make_model(nodes, {"x": np.ones((1, SIDE), np.float32)}, ["y"], weights), path)
    return path


def memory_of(kind, is_shared):
    """What this process has of the shared memory, or of all else. Unit: bytes."""
    found, is_wanted = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            is_wanted = ("/memfd:graphpool" in line) == is_shared
        elif is_wanted and line.startswith(f"{kind}:"):
            found += int(line.split()[1]) << 10
    return found


def measure(text, connection):
    """A worker: tell what the model adds to the memory of the process alone, and what of the shared memory counts."""
    importer()
    before = memory_of("Private_Dirty", False)
    with pickle.loads(text).open() as model:
        model.run({"x": np.ones((1, SIDE), np.float32)})
        connection.send("open")
        connection.recv()
        connection.send((memory_of("Private_Dirty", False) - before, memory_of("Pss", True)))
        connection.recv()


def test_four_workers_have_the_weights_once(tmp_path):
    path = save_large(tmp_path / "large.onnx")
    packed_nbytes = 2 * 4 * SIDE**2
    with gp.onnx.load(path, threads=1) as model:
        handle = gp.share(model)
        assert packed_nbytes <= handle.nbytes <= packed_nbytes + 2**16
    constant_tensor_cache("cpu").clear()
    # no forks: a collection there copies the objects of whatever tests have run in this process
    workers = [Worker(measure, pickle.dumps(handle), method="spawn") for _ in range(4)]
    try:
        assert [worker.receive() for worker in workers] == ["open"] * 4
        del handle
        for worker in workers:
            worker.connection.send("tell")
        found = [worker.receive() for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    alone, shared = zip(*found, strict=True)
    assert packed_nbytes * 0.95 < sum(shared) < packed_nbytes * 1.05
    assert max(alone) < packed_nbytes / 8  # an arena of 1 MiB, a program and objects
