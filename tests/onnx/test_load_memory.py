"""What loading takes of the process's memory, from every kind of source; each in a process of its own."""

import subprocess
import sys
import tracemalloc

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import graphpool as gp
from graphpool.onnx.node import Node
from tests.helpers.tree import ROOT

SIDE, LAYERS = 1536, 4
NBYTES = SIDE * SIDE * 4 * LAYERS

CHILD = """
import gc, os, sys
import onnx
import graphpool as gp

kind, folder = sys.argv[1:]

def resident(name="VmRSS:"):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name))

gp.onnx.load(folder + "/tiny.onnx", threads=1).close()    # what is imported at the first load
path = folder + "/" + ("external" if kind == "external" else "typed" if kind == "typed" else "model") + ".onnx"
start = resident()
source = path
if kind not in ("path", "copy", "external", "typed"):
    with open(path, "rb") as file:
        source = file.read()
    if kind == "bytearray":
        source = bytearray(source)
    elif kind == "proto":
        source = onnx.load_model_from_string(source)
gc.collect()
before = resident()
with open("/proc/self/clear_refs", "w") as file:
    file.write("5")    # the high water starts here
model = gp.onnx.load(source, threads=1, mapping="copy" if kind == "copy" else "map")
peak = resident("VmHWM:") - before
packed, in_use = model.stats().cached_nbytes, model.engine.budget.in_use
held = resident()
del source
gc.collect()
freed = held - resident()
model.run({"x": __import__("numpy").ones((1, %d), model.inputs[0].dtype.numpy)})
model.close()    # whoever still holds the model holds nothing else
gc.collect()
after = resident() - before
print(peak, packed, after, in_use, freed, held - before)
"""


def build(layers, side, typed):
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for k in range(layers):
        nodes.append(helper.make_node("MatMul", [f"x{k}" if k else "x", f"w{k}"], [f"x{k + 1}"], name=f"product{k}"))
        values = rng.standard_normal((side, side), np.float32)
        if typed:
            tensor = TensorProto(name=f"w{k}", data_type=TensorProto.FLOAT, dims=values.shape)
            tensor.float_data.extend(values.ravel())
        else:
            tensor = onnx.numpy_helper.from_array(values, f"w{k}")
        weights.append(tensor)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, side]) for name in ("x", f"x{layers}"))
    return helper.make_model(
        helper.make_graph(nodes, "stack", [x], [y], weights), opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )


def build_of_nibbles(layers, side):
    """The same of 4 bits, with scales of columns."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []
    for k in range(layers):
        nodes.append(helper.make_node("DequantizeLinear", [f"q{k}", f"s{k}"], [f"w{k}"], axis=1))
        nodes.append(helper.make_node("MatMul", [f"x{k}" if k else "x", f"w{k}"], [f"x{k + 1}"]))
        raw = rng.integers(0, 256, side * side // 2, np.uint8).tobytes()
        weights.append(helper.make_tensor(f"q{k}", TensorProto.INT4, [side, side], raw, raw=True))
        weights.append(onnx.numpy_helper.from_array(rng.random(side, np.float32), f"s{k}"))
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, side]) for name in ("x", f"x{layers}"))
    graph = helper.make_graph(nodes, "nibbles", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


PLAIN = dict.fromkeys(["path", "external", "typed"], NBYTES // LAYERS) | {"bytes": 0}
PLAIN |= dict.fromkeys(["copy", "bytearray", "proto"], NBYTES)
"""Plain weights in memory beside the packed ones and beside the source: the one that is packed now, none, or all."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    onnx.save(build(1, 8, False), folder / "tiny.onnx")
    onnx.save(build(LAYERS, SIDE, True), folder / "typed.onnx")
    model = build(LAYERS, SIDE, False)
    onnx.save(model, folder / "model.onnx")
    onnx.save(model, folder / "external.onnx", save_as_external_data=True, location="weights.bin")
    return folder


def run_child(kind, folder, side):
    command = [sys.executable, "-W", "error", "-c", CHILD % side, kind, str(folder)]
    env = {"PYTHONPATH": str(ROOT), "PATH": "", "GRAPHPOOL_PROGRAM_FOLDER": "off"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return map(int, done.stdout.split())


NIBBLES_SIDE = 3072
NIBBLES_NBYTES = NIBBLES_SIDE**2 // 2 * LAYERS


@pytest.fixture(scope="module")
def folder_of_nibbles(tmp_path_factory):
    folder = tmp_path_factory.mktemp("nibbles")
    onnx.save(build_of_nibbles(1, 8), folder / "tiny.onnx")
    model = build_of_nibbles(LAYERS, NIBBLES_SIDE)
    onnx.save(model, folder / "model.onnx")
    onnx.save(model, folder / "external.onnx", save_as_external_data=True, location="weights.bin")
    return folder


@pytest.mark.native
@pytest.mark.parametrize("kind", ["path", "external", "copy", "bytes", "proto"])
def test_weights_of_four_bits_are_nowhere_with_a_byte_each(folder_of_nibbles, kind):
    peak, packed, after, in_use, *_ = run_child(kind, folder_of_nibbles, NIBBLES_SIDE)
    plain = NIBBLES_NBYTES if kind in ("copy", "proto") else NIBBLES_NBYTES // LAYERS
    assert NIBBLES_NBYTES <= packed <= 1.1 * NIBBLES_NBYTES
    assert peak <= 1.10 * (plain + packed) + 2**20
    assert after <= 5 * 2**20
    assert in_use <= 1.01 * (packed + (0 if kind in ("path", "external") else NIBBLES_NBYTES)) + 2**16


@pytest.mark.native
@pytest.mark.parametrize("kind", PLAIN)
def test_a_load_takes_the_file_and_the_packed_weights_and_gives_both_back(folder, kind):
    peak, packed, after, in_use, freed, _ = run_child(kind, folder, SIDE)
    assert packed >= NBYTES
    assert peak <= 1.10 * (PLAIN[kind] + packed)
    assert after <= 5 * 2**20
    if kind in ("bytearray", "proto"):  # nothing in the model refers to the source
        assert freed >= 0.9 * NBYTES
    assert in_use >= PLAIN[kind] // NBYTES * NBYTES + packed


def trees_of(count):
    """A tree of so many nodes, a power of 2 less 1, that converters write."""
    nodes = np.arange(count)
    is_inner = nodes < count // 2
    attributes = {
        "nodes_modes": np.where(is_inner, "BRANCH_LEQ", "LEAF"), "nodes_values": np.linspace(0, 1, len(nodes)),
        "nodes_featureids": np.where(is_inner, nodes % 400 + 300, 0), "nodes_treeids": 0 * nodes,
        "nodes_nodeids": nodes,
        "nodes_truenodeids": np.where(is_inner, 2 * nodes + 1, 0), "nodes_hitrates": np.ones(len(nodes)),
        "nodes_falsenodeids": np.where(is_inner, 2 * nodes + 2, 0), "nodes_missing_value_tracks_true": 0 * nodes,
        "target_treeids": nodes[:1], "target_nodeids": nodes[-1:], "target_ids": nodes[:1],
        "target_weights": np.ones(1),
    }  # fmt: skip
    lists = {name: value.tolist() for name, value in attributes.items()}
    return helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", n_targets=1, **lists)


def test_lists_of_decision_trees_are_not_copied_into_python():
    """Numbers of NumPy take 8 bytes, those of Python about 40; a node has nine, and a name of its mode."""
    proto = trees_of(2**13 - 1)
    Node(proto)  # what is imported and cached
    tracemalloc.start()
    node = Node(proto)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(node.trees.nodes) == 2**13 - 1
    assert peak <= 320 * len(node.trees.nodes)


def build_of_trees(count):
    """A model of one."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in SHAPES_OF_TREES.items())
    graph = helper.make_graph([trees_of(count)], "trees", [x], [y])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


SHAPES_OF_TREES = {"x": [1, 700], "y": [1, 1]}


@pytest.mark.native
@pytest.mark.parametrize("kind", ["path", "bytes", "proto"])
def test_of_decision_trees_stay_their_bytes_and_what_kernels_read(kind, tmp_path):
    """What protobuf makes of their lists takes five times the file, and NumPy's 64 bits as much."""
    onnx.save(build_of_trees(2**6 - 1), tmp_path / "tiny.onnx")
    onnx.save(build_of_trees(2**17 - 1), tmp_path / "model.onnx")
    file_nbytes = (tmp_path / "model.onnx").stat().st_size
    peak, _, after, in_use, _, held = run_child(kind, tmp_path, 700)
    libraries = 5 * 2**20  # code that the first trees of the process bring into memory
    assert held <= in_use + file_nbytes + libraries
    assert peak <= 1.10 * (file_nbytes + in_use) + libraries
    assert after <= libraries


def build_of_an_encoder(count, step):
    """A model of a LabelEncoder; keys that are whole numbers in a row are not kept."""
    rng = np.random.default_rng(0)
    lists = {"keys_int64s": list(range(0, step * count, step)), "values_floats": rng.random(count).tolist()}
    node = helper.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", **lists)
    x = helper.make_tensor_value_info("x", TensorProto.INT64, [1, SIDE])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, SIDE])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    return helper.make_model(helper.make_graph([node], "encoder", [x], [y]), opset_imports=opsets, ir_version=8)


@pytest.mark.native
@pytest.mark.parametrize("kind", ["path", "bytes", "proto"])
@pytest.mark.parametrize("step", [1, 3])
def test_of_an_encoder_stays_its_table(step, kind, tmp_path):
    onnx.save(build_of_an_encoder(8, step), tmp_path / "tiny.onnx")
    onnx.save(build_of_an_encoder(10**6, step), tmp_path / "model.onnx")
    file_nbytes = (tmp_path / "model.onnx").stat().st_size
    peak, _, _, in_use, *_ = run_child(kind, tmp_path, SIDE)
    assert peak <= 1.10 * (file_nbytes + in_use)


def test_of_weights_that_each_form_views_anew_one_is_counted():
    rng, (k, n) = np.random.default_rng(3), (512, 768)
    weights = {
        "w": rng.integers(0, 256, (n, k // 32, 16), dtype=np.uint8), "s": rng.random(n * k // 32, dtype=np.float32)
    }  # fmt: skip
    attrs = {"K": k, "N": n, "bits": 4, "block_size": 32}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], domain="com.microsoft", **attrs)
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", size]) for name, size in (("x", k), ("y", n))
    ]
    graph = helper.make_graph(
        [node], "products", ports[:1], ports[1:], list(map(onnx.numpy_helper.from_array, weights.values(), weights))
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    content = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    plain_nbytes = sum(array.nbytes for array in weights.values())
    with gp.Engine("cpu", threads=1) as engine, gp.onnx.load(content, engine=engine) as model:
        for rows in (100, 1):
            model.run({"x": np.ones((rows, k), np.float32)})
            stats = model.stats()
            assert plain_nbytes <= stats.constants_nbytes < plain_nbytes + 64  # a zero point of each form
            assert engine.budget.holdings()["constants"] == stats.constants_nbytes + stats.cached_nbytes
        assert stats.compilations > 1
