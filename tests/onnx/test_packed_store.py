"""Models whose packed weights other processes have left in a store: nothing reads the weights in their files."""

import numpy as np
import onnx
import pytest
from onnx import helper

import graphpool as gp
from graphpool import mapped_file
from graphpool.cache import PackedStore, packed_store, set_packed_store
from graphpool.runtime import constant_part
from tests.helpers.onnx_models import make_model, random_array

X = random_array((3, 64))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """That of the store of the process."""
    monkeypatch.setattr(mapped_file, "_SETTLED_NS", -1)
    set_packed_store(tmp_path / "store")
    yield tmp_path / "store"
    set_packed_store(None)


@pytest.fixture(params=["inside", "beside"])
def path(request, tmp_path):
    """A model with its weights in its file, or in another one."""
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "v"], ["y"])]
    model = make_model(nodes, {"x": X}, ["y"], {"w": random_array((64, 96)), "v": random_array((96, 32))})
    path = tmp_path / "model.onnx"
    beside = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    onnx.save(model, path, **(beside if request.param == "beside" else {}))
    return path


def run(path):
    with gp.onnx.load(path, threads=1) as model:
        return model.run({"x": X})["y"]


def as_another_process(folder):
    """A store object that has noted nothing."""
    set_packed_store(PackedStore(folder))


def test_the_next_process_reads_no_weights(folder, path, monkeypatch):
    first = run(path)
    as_another_process(folder)

    def refuse(*args, **keywords):
        raise AssertionError("a weight was read")

    monkeypatch.setattr(constant_part, "fingerprint", refuse)
    monkeypatch.setattr(constant_part, "quick_fingerprint", refuse)
    assert np.array_equal(run(path), first)
    assert (packed_store().stats().hits, packed_store().stats().misses) == (3, 0)  # two weights and the program


def test_a_file_that_was_changed_is_read(folder, path):
    first = run(path)
    written = path.with_name("weights.bin") if path.with_name("weights.bin").exists() else path
    data = bytearray(written.read_bytes())
    at = data.find(random_array((64, 96)).tobytes()[:64])
    data[at : at + 4] = np.float32(7).tobytes()
    written.write_bytes(data)
    as_another_process(folder)
    assert not np.array_equal(run(path), first)
