"""Packed weights in several processes over one store: what the system counts for all of them together."""

import os
import re
import signal
from pathlib import Path

import numpy as np
import pytest

import graphpool as gp
from graphpool.cache import PackedStore, constant_tensor_cache, set_packed_store

CHANNELS = 2048
WEIGHTS_NBYTES = 4 * CHANNELS**2
PROCESSES = 4


class Convolution:
    """A 1x1 convolution and its constant BatchNorm: its packed weights are made of all five constants."""

    def __init__(self, engine):
        image = gp.LogicalTensor(0, "f32", (1, CHANNELS, 2, 2))
        weights = gp.LogicalTensor(1, "f32", (CHANNELS, CHANNELS, 1, 1), property="constant")
        params = [gp.LogicalTensor(i, "f32", (CHANNELS,), property="constant") for i in range(2, 6)]
        between, result = (gp.LogicalTensor(i, "f32", (1, CHANNELS, 2, 2)) for i in (6, 7))
        formats = {"data_format": "NCX", "weights_format": "OIX"}
        window = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1]}
        graph = gp.Graph("cpu")
        graph.add_op(gp.Op(0, "Convolution", [image, weights], [between], **formats, **window))
        graph.add_op(gp.Op(1, "BatchNormInference", [between, *params], [result], epsilon=0.1, data_format="NCX"))
        graph.finalize()
        [partition] = graph.get_partitions()
        self.engine, self.inputs = engine, [image, weights, *params]
        self.compiled = partition.compile(self.inputs, [result], engine)

    def __enter__(self):
        return self

    def __exit__(self, *exc_info):
        self.compiled.close()

    def run(self, arrays):
        tensors = [gp.Tensor(lt, self.engine, array) for lt, array in zip(self.inputs, arrays, strict=True)]
        [result] = self.compiled.execute(gp.Stream(self.engine), tensors)
        return result.numpy().copy()


@pytest.fixture
def store(tmp_path):
    """The store of this process, in a folder of its own."""
    store = PackedStore(tmp_path / "store")
    set_packed_store(store)
    yield store
    set_packed_store(None)
    constant_tensor_cache("cpu").clear()


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(0)
    shapes = [(1, CHANNELS, 2, 2), (CHANNELS, CHANNELS, 1, 1), *[(CHANNELS,)] * 4]
    return [rng.random(shape, np.float32) + 0.5 for shape in shapes]


def test_weights_packed_with_what_follows_are_stored_too(store, arrays):
    results = []
    for _ in range(2):
        with gp.Engine("cpu") as engine, Convolution(engine) as convolution:
            results.append(convolution.run(arrays))
            assert engine.stats().current_nbytes < WEIGHTS_NBYTES  # the file is mapped
        constant_tensor_cache("cpu").clear()
    assert results[0].tobytes() == results[1].tobytes()
    assert (store.stats().entries, store.stats().hits) == (1, 2)
    scaled = [*arrays[:2], 2 * arrays[2], *arrays[3:]]
    with gp.Engine("cpu") as engine, Convolution(engine) as convolution:
        doubled = convolution.run(scaled)  # every constant is part of the name
    assert store.stats().entries == 2
    assert not np.array_equal(doubled, results[0])


def memory_of(pids):
    """What processes have in memory together, shared pages once. Unit: bytes."""
    reports = [Path(f"/proc/{pid}/smaps_rollup").read_text() for pid in pids]
    return sum(int(re.search(r"^Pss: +(\d+) kB", report, re.MULTILINE)[1]) << 10 for report in reports)


def serve(arrays, begin, report):
    """In a child: compile, wait for `begin`, run, and wait to be killed."""
    try:
        with gp.Engine("cpu") as engine, Convolution(engine) as convolution:
            os.write(report, b"c")
            os.read(begin, 1)
            convolution.run(arrays)
            os.write(report, b"r")
            signal.pause()
    finally:
        os._exit(1)


@pytest.mark.native
def test_four_processes_have_one_copy_of_the_packed_weights(store, arrays):
    with gp.Engine("cpu") as engine, Convolution(engine) as convolution:
        convolution.run(arrays)  # fills the store
    constant_tensor_cache("cpu").clear()
    (begin, start), (reader, report) = os.pipe(), os.pipe()
    children = []
    try:
        for _ in range(PROCESSES):
            children.append(os.fork())
            if not children[-1]:
                serve(arrays, begin, report)
        assert [os.read(reader, 1) for _ in children] == [b"c"] * PROCESSES
        before = memory_of(["self", *children])
        os.write(start, b"." * PROCESSES)
        assert [os.read(reader, 1) for _ in children] == [b"r"] * PROCESSES
        growth = memory_of(["self", *children]) - before
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        for descriptor in (begin, start, reader, report):
            os.close(descriptor)
    assert WEIGHTS_NBYTES <= growth < 3 * WEIGHTS_NBYTES  # four copies without the store
