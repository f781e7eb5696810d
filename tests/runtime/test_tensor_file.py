"""Tensors in files: what was written comes back, and nothing else does."""

import json
import os
import tracemalloc

import numpy as np
import pytest

import graphpool as gp
from graphpool import config
from graphpool._kernels.core import _dispatch

ISAS = _dispatch.isas()


@pytest.fixture
def engine():
    with gp.Engine(threads=1, memory_limit=1 << 20) as engine:
        yield engine


def packed_weights(engine):
    """Weights of a convolution as its kernel reads them."""
    x = gp.LogicalTensor(0, "f32", (1, 16, 9, 9))
    w = gp.LogicalTensor(1, "f32", (32, 16, 3, 3), layout="any", property="constant")
    y = gp.LogicalTensor(2, "f32", (1, 32, 7, 7))
    zeros, ones = [0, 0], [1, 1]
    op = gp.Op(0, "Convolution", [x, w], [y], strides=ones, dilations=ones, pads_begin=zeros, pads_end=zeros,
               data_format="NCX", weights_format="OIX")  # fmt: skip
    with gp.Partition.from_op(op).compile([x, w], [y], engine) as compiled:
        wanted = compiled.query_logical_tensor(1)
    plain = wanted.replace(id=0, layout="strided")
    data = np.random.default_rng(0).standard_normal(plain.shape, np.float32)
    reorder = gp.Partition.from_op(gp.Op(0, "Reorder", [plain], [wanted]))
    with reorder.compile([plain], [wanted], engine) as compiled:
        [packed] = compiled.execute(gp.Stream(engine), [gp.Tensor(plain, engine, data)])
    assert packed.lt.layout == "opaque"
    return packed


def tensors(engine):
    yield packed_weights(engine)
    yield gp.Tensor(gp.LogicalTensor(3, "f32", (2, 3)), engine, np.arange(6, dtype=np.float32).reshape(2, 3))
    yield gp.Tensor(gp.LogicalTensor(3, "s8", (2, 3), strides=(8, 2)), engine, np.zeros((2, 4, 2), np.int8)[:, :3, 0])
    yield gp.Tensor(gp.LogicalTensor(3, "u4", (3, 3)), engine, np.arange(5, dtype=np.uint8))
    yield gp.Tensor(gp.LogicalTensor(3, "f32", (0, 3)), engine, np.zeros((0, 3), np.float32))


def test_tensors_come_back(engine, tmp_path):
    for tensor in tensors(engine):
        gp.save_tensor(tmp_path / "w", tensor)
        loaded = gp.load_tensor(tmp_path / "w", engine, id=7)
        assert loaded.lt == tensor.lt.replace(id=7)
        np.testing.assert_array_equal(loaded.raw(), tensor.raw())
    assert [path.name for path in tmp_path.iterdir()] == ["w"]


def test_the_order_of_arguments_is_told(engine, tmp_path):
    tensor = gp.Tensor(gp.LogicalTensor(0, "f32", (2,)), engine, np.zeros(2, np.float32))
    with pytest.raises(gp.InvalidArgumentError, match="tensor; accepted: an instance of Tensor"):
        gp.save_tensor(tensor, tmp_path / "w")


@pytest.mark.skipif(len(ISAS) < 2, reason="one instruction set")
def test_another_instruction_set_refuses_by_name(engine, tmp_path, monkeypatch):
    gp.save_tensor(tmp_path / "w", packed_weights(engine))
    monkeypatch.setitem(config._values, "max_isa", ISAS[0])
    expected = rf"another instruction set; accepted: {ISAS[0]}; got: {ISAS[-1]}; Reorder.*GRAPHPOOL_MAX_ISA={ISAS[-1]}"
    with pytest.raises(gp.InvalidArgumentError, match=expected):
        gp.load_tensor(tmp_path / "w", engine)


def forge(path, **changes):
    """The file with other fields in its description."""
    data = path.read_bytes()
    length = int.from_bytes(data[8:12], "little")
    text = json.dumps(json.loads(data[12 : 12 + length]) | changes).encode()
    path.write_bytes((data[:8] + len(text).to_bytes(4, "little") + text).ljust(4096, b"\0") + data[4096:])


@pytest.mark.parametrize(("changes", "error"), [
    ({"shape": [64, 16, 3, 3]}, "no whole tensor"), ({"shape": [2**40, 2**40]}, "elements"), ({"shape": 5}, "shape"),
    ({"shape": ["a"]}, "shape"), ({"shape": [-1, 3]}, "dimension 0"), ({"dtype": "f99"}, "type"),
    ({"dtype": []}, "type|no whole"), ({"layout_id": 2**64}, "layout id"), ({"layout_id": 17}, "no whole tensor"),
    ({"layout_id": "1"}, "layout id"), ({"layout": "any"}, "layout"), ({"layout": "strided"}, "layout"),
    ({"layout": "strided", "layout_id": None, "strides": [2**50, 1, 1, 1]}, "no whole|strides"),
    ({"property": "host_scalar"}, "host scalar"), ({"nbytes": 1}, "no whole tensor"),
    ({"digest": 5}, "no whole tensor"),
    ({"digest": "00"}, "the bytes that were written"), ({"shape": [32, 16, 9, 1]}, "bytes that were|no whole|other"),
])  # fmt: skip
def test_forged_descriptions(engine, tmp_path, changes, error):
    path = tmp_path / "w"
    gp.save_tensor(path, packed_weights(engine))
    forge(path, **changes)
    if "shape" in changes and changes["shape"] == [32, 16, 9, 1]:
        gp.load_tensor(path, engine)  # as many bytes, and all of them are there
        return
    with pytest.raises(gp.GraphpoolError, match=error):
        gp.load_tensor(path, engine)


@pytest.mark.parametrize("cut", [0, 8, 12, 100, 4095, 4096, -1])
def test_files_that_were_cut_short(engine, tmp_path, cut):
    path = tmp_path / "w"
    gp.save_tensor(path, packed_weights(engine))
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(gp.InvalidArgumentError, match="no whole tensor"):
        gp.load_tensor(path, engine)


def test_a_size_in_a_file_makes_nothing_large(engine, tmp_path):
    path = tmp_path / "w"
    gp.save_tensor(path, packed_weights(engine))
    forge(path, shape=[2**20, 2**10, 3, 3], nbytes=2**32)
    tracemalloc.start()
    try:
        with pytest.raises(gp.InvalidArgumentError, match="no whole tensor"):
            gp.load_tensor(path, engine)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_other_files(engine, tmp_path):
    (tmp_path / "deep").write_bytes(b"GPTENSR\x01" + (4000).to_bytes(4, "little") + b"[" * 4084)
    with pytest.raises(gp.InvalidArgumentError, match="no whole tensor"):
        gp.load_tensor(tmp_path / "deep", engine)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a regular file"):
        gp.load_tensor(tmp_path / "pipe", engine)
    with pytest.raises(FileNotFoundError):
        gp.load_tensor(tmp_path / "none", engine)


def test_the_budget_holds(tmp_path):
    with gp.Engine(threads=1) as engine:
        gp.save_tensor(tmp_path / "w", packed_weights(engine))
    with gp.Engine(threads=1, memory_limit=1000) as engine, pytest.raises(gp.OutOfMemoryError):
        gp.load_tensor(tmp_path / "w", engine)
