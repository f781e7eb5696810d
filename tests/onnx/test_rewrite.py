import numpy as np
import pytest
from onnx import helper

import graphpool as gp
from graphpool.onnx.source import read_model
from graphpool.onnx.specialise import rewrite
from tests.helpers.onnx_models import check_against_evaluator, make_model, random_array

X = random_array((4, 8))
CONSTANTS = {
    "half": 0.5, "one": 1.0, "two": 2.0, "three": 3.0, "root2": 2**0.5, "cubic": 0.044715, "scale": (2 / np.pi) ** 0.5,
    "eps": 1e-3, "zero": 0.0, "six": 6.0, "gamma": random_array((8,), seed=1), "beta": random_array((8,), seed=2),
}  # fmt: skip
FUNCTIONS = {
    "GELU": [
        ("Div", "x", "root2"), ("Erf", 0), ("Add", 1, "one"), ("Mul", "x", 2), ("Mul", 3, "half"),
    ],
    "GELU by tanh": [
        ("Pow", "x", "three"), ("Mul", 0, "cubic"), ("Add", "x", 1), ("Mul", 2, "scale"), ("Tanh", 3),
        ("Add", 4, "one"), ("Mul", "x", "half"), ("Mul", 6, 5),
    ],
    "LayerNorm": [
        ("ReduceMean", "x", "axes"), ("Sub", "x", 0), ("Pow", 1, "two"), ("ReduceMean", 2, "axes"), ("Add", 3, "eps"),
        ("Sqrt", 4), ("Div", 1, 5), ("Mul", 6, "gamma"), ("Add", 7, "beta"),
    ],
    "RMSNorm": [
        ("Pow", "x", "two"), ("ReduceMean", 0, "axes"), ("Add", 1, "eps"), ("Sqrt", 2), ("Reciprocal", 3),
        ("Mul", "x", 4), ("Mul", "gamma", 5),
    ],
    "HardSwish": [("Add", "x", "three"), ("Clip", 0, "zero", "six"), ("Mul", "x", 1), ("Div", 2, "six")],
    "Mish": [("Softplus", "x"), ("Tanh", 0), ("Mul", "x", 1)],
}  # fmt: skip


def kinds(model):
    return [node.op_type for node in rewrite(read_model(model))[0]]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_spelt_out_function_is_one_kernel(name, dtype):
    nodes = FUNCTIONS[name]
    outputs = [*(f"v{k}" for k in range(len(nodes) - 1)), "y"]
    made = [
        helper.make_node(kind, [i if isinstance(i, str) else outputs[i] for i in inputs], [out])
        for (kind, *inputs), out in zip(nodes, outputs, strict=True)
    ]
    constants = {key: np.asarray(value, dtype) for key, value in CONSTANTS.items()} | {"axes": np.array([-1])}
    x = X.astype(dtype)
    model = make_model(made, {"x": x}, ["y"], constants)
    assert check_against_evaluator(model, {"x": x}) == 0
    with gp.onnx.load(model, threads=1) as loaded:
        steps = [step for names in loaded.specialise({"x": x}).implementations for step in names]
    assert sum(f"eltwise({name.split()[0]})" in step or "layer_norm" in step for step in steps) == 1
    assert dtype == "float16" or len(steps) == 1  # norms of f16 convert what they read


def test_dead_nodes_go():
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Det", ["x"], ["unread"])]
    model = make_model(nodes, {"x": random_array((3, 3))}, ["y"])
    with gp.onnx.load(model, fallback=False) as loaded:
        assert len(loaded.partitions) == 1


def test_scatter_runs_under_its_new_name():
    nodes = [helper.make_node("Scatter", ["x", "i", "u"], ["y"], axis=1)]
    infos = [helper.make_tensor_value_info(n, t, [1, s]) for n, t, s in (("x", 1, 5), ("i", 7, 2), ("u", 1, 2))]
    graph = helper.make_graph(nodes, "old", infos, [helper.make_tensor_value_info("y", 1, [1, 5])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=5)
    inputs = {
        "x": np.arange(5, dtype="float32")[None], "i": np.array([[1, 3]]), "u": np.array([[9, 8]], "float32")
    }  # fmt: skip
    with gp.onnx.load(model) as loaded:
        np.testing.assert_array_equal(loaded.run(inputs)["y"], [[0, 9, 2, 8, 4]])
