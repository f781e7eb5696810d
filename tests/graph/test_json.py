"""Graphs survive the way through a file; what is wrong with a file ends in one of graphpool's errors."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

import graphpool as gp
from graphpool import config

CORPUS = Path(os.environ.get("GRAPHPOOL_BENCHDNN", "../shared/data/benchdnn-graph")) / "cases"


def small_graph():
    """One of everything that a file can say."""
    graph = gp.Graph("cpu", fpmath="bf16", apply_to_int=True)
    x = gp.LogicalTensor(0, "f32", (2, 3), strides=(4, 1))
    w = gp.LogicalTensor(1, "f32", (3, gp.UNKNOWN_DIM), property="constant", layout="any")
    y = gp.LogicalTensor(2, "f32", None)
    a = gp.LogicalTensor(3, "f32", (), property="host_scalar")
    z = gp.LogicalTensor(4, "f32", None, layout="undef")
    graph.add_op(gp.Op(0, "MatMul", [x, w], [y], "product", transpose_b=False))
    graph.add_op(gp.Op(7, "Multiply", [y, a], [z]))
    v, u = gp.LogicalTensor(5, "f32", (gp.UNKNOWN_DIM,)), gp.LogicalTensor(6, "s8", (gp.UNKNOWN_DIM,))
    graph.add_op(gp.Op(8, "Quantize", [v], [u], scales=[0.1, 1 / 3], zps=[0, 3], qtype="per_channel", axis=0))
    p = gp.LogicalTensor(9, "f32", (4, 5), layout="opaque", layout_id=17)
    graph.add_op(gp.Op(9, "GELU", [p], [gp.LogicalTensor(10, "f32", (4, 5))], mode="gelu_tanh"))
    half = gp.LogicalTensor(11, "f32", (), property="constant", value=0.1)
    graph.add_op(gp.Op(10, "Multiply", [p, half], [gp.LogicalTensor(12, "f32", (4, 5))]))
    return graph


def facts(graph):
    """Everything that two equal graphs share."""
    ops = [(op.id, op.kind, op.name, op.inputs, op.outputs, dict(op.attrs)) for op in graph.ops]
    sizes = {t.id: t.nbytes for t in graph.tensors.values() if t.layout == "opaque"}
    return graph.engine_kind, graph.fpmath, graph.fpmath_apply_to_int, ops, sizes


def changed(tmp_path, change):
    """Path of the small graph's file after `change` was called on its content."""
    path = tmp_path / "graph.json"
    small_graph().to_json(path)
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))
    return path


def test_round_trip_is_exact(tmp_path):
    graph = small_graph()
    graph.to_json(tmp_path / "a.json")
    back = gp.Graph.from_json(tmp_path / "a.json")
    assert facts(back) == facts(graph)
    assert not back.is_finalized
    back.to_json(tmp_path / "b.json")
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_the_size_of_a_layout_need_not_be_said(tmp_path):
    path = changed(tmp_path, lambda c: c["graph"][3]["inputs"][0].pop("nbytes"))
    assert gp.Graph.from_json(path).tensors[9].nbytes == 4 * 64


def test_ids_are_those_of_size_t(tmp_path):
    """oneDNN's ids are of C's size_t."""
    graph = gp.Graph()
    x, y = gp.LogicalTensor(2**63, "f32", (2, 3)), gp.LogicalTensor(2**64 - 1, "f32", (2, 3))
    graph.add_op(gp.Op(2**64 - 1, "ReLU", [x], [y]))
    graph.to_json(tmp_path / "a.json")
    graph = gp.Graph.from_json(tmp_path / "a.json")
    graph.finalize()
    [partition] = graph.get_partitions()
    with gp.Engine(threads=1) as engine, partition.compile([x], [y], engine) as compiled:
        source = gp.Tensor(x, engine, np.full((2, 3), -1, np.float32))
        [result] = compiled.execute(gp.Stream(engine), [source])
        assert result.id == compiled.query_logical_tensor(2**64 - 1).id == 2**64 - 1
        np.testing.assert_array_equal(result.numpy(), np.zeros((2, 3)))
        with pytest.raises(gp.InvalidArgumentError, match="no port with id -1"):
            compiled.query_logical_tensor(-1)
        with pytest.raises(gp.InvalidArgumentError, match="no input tensor with id 9223372036854775808"):
            compiled.execute(gp.Stream(engine), [result])


def test_engine_kind_can_be_replaced(tmp_path):
    path = changed(tmp_path, lambda content: content.update(engine_kind="gpu"))
    assert gp.Graph.from_json(path).engine_kind == "gpu"
    assert gp.Graph.from_json(path, engine_kind="cpu").engine_kind == "cpu"


def test_ports_are_listed(tmp_path):
    small_graph().to_json(tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    assert content["input_ports"] == [0, 1, 3, 5, 9, 11]
    assert content["output_ports"] == [4, 6, 10, 12]


def test_reads_onednn_spellings(tmp_path):
    """Ops without attributes, the old name of BiasAddBackward, unknown rank, keys of newer versions."""

    def change(content):
        tensor = {"dtype": "f32", "shape": [-(2**63)], "stride": [-(2**63)], "layout_type": "strided",
                  "property_type": "undef", "memory_kind": 3}  # fmt: skip
        content["graph"] = [
            {"id": 0, "name": "a", "kind": "BiasAddBackprop", "attrs": {}, "inputs": [tensor | {"id": 0}],
             "outputs": [tensor | {"id": 1}]},
            {"id": 1, "name": "b", "kind": "ReLU", "inputs": [tensor | {"id": 1}], "outputs": [tensor | {"id": 2}]},
        ]  # fmt: skip

    graph = gp.Graph.from_json(changed(tmp_path, change))
    assert [op.kind for op in graph.ops] == ["BiasAddBackward", "ReLU"]
    assert [tensor.shape for tensor in graph.tensors.values()] == [None, None, None]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: c.pop("graph"), ["the file", '"graph"', "a list"]),
        (lambda c: c.update(graph=[3]), ['"graph"[0]', "an object"]),
        (lambda c: c.update(fpmath_mode="quick"), ["fpmath", "strict"]),
        (lambda c: c.update(engine_kind=[]), ["engine_kind", "a string"]),
        (lambda c: c["graph"][0].update(kind=["MatMul"]), ['"kind"', "a string"]),
        (lambda c: c["graph"][0].update(kind="Matmul"), ["Matmul", "MatMul"]),
        (lambda c: c["graph"][0].update(id=-1), ['"id"']),
        (lambda c: c["graph"][1].update(id=0), ["op id 0 is taken"]),
        (lambda c: c["graph"][0].update(attrs=[]), ["attrs", "an object"]),
        (lambda c: c["graph"][0]["attrs"]["transpose_a"].update(value=2), ["transpose_a", "0 or 1"]),
        (lambda c: c["graph"][0]["attrs"]["transpose_a"].update(type="u64"), ["transpose_a", "s64[]"]),
        (lambda c: c["graph"][2]["attrs"]["axis"].update(value="0"), ["axis", "integer"]),
        (lambda c: c["graph"][0]["inputs"][0].update(dtype="f31"), ["f31", "f32"]),
        (lambda c: c["graph"][0]["inputs"][0].update(shape=[2, -3]), ["tensor 0", "-3"]),
        (lambda c: c["graph"][0]["inputs"][0].update(shape=[2**40, 2**40]), ["tensor 0", "2**60"]),
        (lambda c: c["graph"][0]["inputs"][0].update(stride=[1.5, 1]), ["stride", "1.5"]),
        (lambda c: c["graph"][0]["inputs"][0].update(stride=[2**62, 1]), ["stride"]),
        (lambda c: c["graph"][0]["inputs"][0].update(layout_type="blocked"), ["layout", "blocked"]),
        (lambda c: c["graph"][3]["inputs"][0].update(layout_id="x"), ["layout_id"]),
        (lambda c: c["graph"][3]["inputs"][0].update(layout_id=999), ["tensor 9", "layout id", "999"]),
        (lambda c: c["graph"][3]["inputs"][0].update(layout_id=17 + 16), ["tensor 9", "layout id", "33"]),
        (lambda c: c["graph"][4]["inputs"][1].update(value="0.1"), ["tensor 11: value", "a finite number"]),
        (lambda c: c["graph"][4]["inputs"][1].update(value=[]), ["tensor 11: value", "a finite number"]),
        (lambda c: c["graph"][0]["inputs"][0].update(value=1), ["tensor 0: value", "a constant of one element"]),
        (lambda c: c["graph"][3]["inputs"][0].update(nbytes=64), ["nbytes", "256", "layout 17"]),
        (lambda c: c["graph"][3]["inputs"][0].update(nbytes=None), ["nbytes", "integer"]),
        (lambda c: c["graph"][3]["inputs"][0].update(shape=[1024, 4100]), ["nbytes", "16842752"]),
        (lambda c: c["graph"][3]["inputs"][0].update(shape=[2**58, 1]), ["tensor 9", "layout id"]),
        (lambda c: c["graph"][3]["inputs"][0].update(id=2**64), ['"id"', "2**64 - 1"]),
        (lambda c: c["graph"][0]["inputs"][0].update(shape=[2, True]), ["shape", "integers"]),
        (lambda c: c["graph"][0]["inputs"][0].update(shape=[2, 1.0]), ["shape", "integers"]),
        (lambda c: c["graph"][0]["inputs"][0].update(shape=[2**30, 2], stride=[2**31, 1]), ["stride", "2**60"]),
    ],
)
def test_malformed_content(tmp_path, change, words):
    path = changed(tmp_path, change)
    with pytest.raises(gp.GraphpoolError) as caught:
        gp.Graph.from_json(path)
    assert all(word in str(caught.value) for word in words), caught.value


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"null", b"\xff\xfe\x00", b"[" * 200_000, b'{"graph": ' + b"9" * 9000 + b"}"]
)
def test_malformed_bytes(tmp_path, raw):
    (tmp_path / "a.json").write_bytes(raw)
    with pytest.raises(gp.InvalidGraphError):
        gp.Graph.from_json(tmp_path / "a.json")


@pytest.mark.parametrize(
    ("options", "message"),
    [({"limits": 3}, "limits; accepted: an instance of Limits"), ({"knobs": "x"}, "knobs; accepted: an instance of"),
     ({"engine_kind": ""}, "engine kind")],
)  # fmt: skip
def test_wrong_options_are_named(tmp_path, options, message):
    with pytest.raises(gp.InvalidArgumentError, match=message):
        gp.Graph.from_json(changed(tmp_path, lambda _: None), **options)


def test_long_file_is_not_read(tmp_path):
    with (tmp_path / "a.json").open("wb") as file:
        file.truncate(gp.Limits().file_nbytes + 1)
    with pytest.raises(gp.LimitError, match="length of the file exceeds the limit file_nbytes"):
        gp.Graph.from_json(tmp_path / "a.json")


def test_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        gp.Graph.from_json(tmp_path / "a.json")


def test_finalize_dumps(tmp_path, monkeypatch):
    monkeypatch.setitem(config._values, "graph_dump", str(tmp_path / "dumps"))
    for _ in range(2):
        graph = small_graph()
        graph.finalize()
    files = sorted((tmp_path / "dumps").iterdir())
    assert len(files) == 2
    assert facts(gp.Graph.from_json(files[0])) == facts(small_graph())


def test_dump_failure_leaves_the_graph_open(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setitem(config._values, "graph_dump", str(tmp_path / "file"))
    graph = small_graph()
    with pytest.raises(OSError, match="file"):
        graph.finalize()
    assert not graph.is_finalized


@pytest.mark.skipif(not CORPUS.is_dir(), reason=f"no benchdnn cases at {CORPUS}")
def test_corpus_round_trip(tmp_path):
    paths = sorted(CORPUS.rglob("*.json"))
    assert paths
    for path in paths:
        graph = gp.Graph.from_json(path)
        graph.to_json(tmp_path / "a.json")
        assert facts(gp.Graph.from_json(tmp_path / "a.json")) == facts(graph), path


def test_limits_hold_before_ops_are_made(tmp_path):
    path = tmp_path / "graph.json"
    tensors = [gp.LogicalTensor(k, "f32", (2, 3)) for k in range(4)]
    graph = gp.Graph()
    for k in range(3):
        graph.add_op(gp.Op(k, "StaticTranspose", [tensors[k]], [tensors[k + 1]], order=(0, 1)))
    graph.to_json(path)
    assert len(gp.Graph.from_json(path, limits=gp.Limits(nodes=3, items=2)).ops) == 3
    for name, value in (("nodes", 2), ("items", 1), ("file_nbytes", 99)):
        with pytest.raises(gp.LimitError, match=f"exceeds the limit {name}") as caught:
            gp.Graph.from_json(path, limits=gp.Limits(**{name: value}))
        assert caught.value.limit == name


def test_arenas_of_huge_shapes_fit_the_memory_limit(tmp_path):
    path = tmp_path / "graph.json"
    graph = gp.Graph()
    source, result = (gp.LogicalTensor(k, "f32", (1, 1 << 40)) for k in range(2))
    graph.add_op(gp.Op(0, "SoftMax", [source], [result], axis=1))
    graph.to_json(path)
    read = gp.Graph.from_json(path)
    read.finalize()
    [partition] = read.get_partitions()
    with gp.Engine(memory_limit="64MiB") as engine, pytest.raises(gp.OutOfMemoryError, match=r"cannot supply"):
        partition.compile([source], [result], engine)
