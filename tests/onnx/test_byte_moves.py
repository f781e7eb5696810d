"""Moves of quantised tensors move bytes; what quantises again by the same numbers goes."""

import numpy as np
import pytest
from onnx import helper

import graphpool.onnx as gpx
from graphpool.onnx.rewrite import rewrite
from graphpool.onnx.source import read_model
from tests.helpers.onnx_models import check_against_evaluator, make_model

node = helper.make_node
X = np.random.default_rng(0).standard_normal((2, 4, 6), np.float32)
NUMBERS = {
    "s": np.float32(0.03), "z": np.uint8(117), "t": np.float32(0.05), "q": np.int8(-3), "p": np.uint8(7),
    "shape": np.array([4, 12]), "axes": np.array([0]), "one": np.array([1]), "three": np.array([3]),
    "sizes": np.array([1, 3]),
}  # fmt: skip
QUANTIZE = node("QuantizeLinear", ["x", "s", "z"], ["bytes"])
DEQUANTIZE = node("DequantizeLinear", ["bytes", "s", "z"], ["numbers"])

MOVES = {
    "Transpose": node("Transpose", ["numbers"], ["moved"], perm=[2, 0, 1]),
    "Reshape": node("Reshape", ["numbers", "shape"], ["moved"]),
    "Slice": node("Slice", ["numbers", "one", "three", "one"], ["moved"]),
    "Unsqueeze": node("Unsqueeze", ["numbers", "axes"], ["moved"]),
    "Gather": node("Gather", ["numbers", "sizes"], ["moved"], axis=1),
    "Flatten": node("Flatten", ["numbers"], ["moved"], axis=2),
}


def kinds(model):
    return [found.op_type for found in rewrite(read_model(model))[0]]


def quantised(move, *behind, outputs=("y",), **constants):
    return make_model([QUANTIZE, DEQUANTIZE, move, *behind], {"x": X}, outputs, NUMBERS | constants)


@pytest.mark.parametrize("kind", MOVES)
def test_a_move_between_equal_scales_moves_bytes_alone(kind):
    behind = [
        node("QuantizeLinear", ["moved", "s", "z"], ["again"]),
        node("DequantizeLinear", ["again", "s", "z"], ["y"]),
    ]
    model = quantised(MOVES[kind], *behind)
    assert kinds(model) == ["QuantizeLinear", kind, "DequantizeLinear"]
    assert check_against_evaluator(model, {"x": X}) == 0


@pytest.mark.parametrize("numbers", [("t", "z"), ("s", "p"), ("s", "q")], ids=["scale", "zero point", "type"])
def test_other_numbers_quantise_again(numbers):
    behind = [
        node("QuantizeLinear", ["moved", *numbers], ["again"]),
        node("DequantizeLinear", ["again", *numbers], ["y"]),
    ]
    model = quantised(MOVES["Transpose"], *behind)
    assert kinds(model) == ["QuantizeLinear", "Transpose", "DequantizeLinear", "QuantizeLinear", "DequantizeLinear"]
    assert check_against_evaluator(model, {"x": X}) == 0


def test_every_output_of_a_split_is_dequantised():
    split = node("Split", ["numbers", "sizes"], ["a", "b"], axis=1)
    model = quantised(split, node("Relu", ["b"], ["y"]), outputs=("a", "y"))
    assert sorted(kinds(model)) == ["DequantizeLinear", "DequantizeLinear", "QuantizeLinear", "Relu", "Split"]
    assert check_against_evaluator(model, {"x": X}) == 0


def test_readers_of_the_numbers_keep_them():
    behind = [node("Relu", ["numbers"], ["r"]), node("Tanh", ["moved"], ["y"])]
    model = quantised(MOVES["Transpose"], *behind, outputs=("r", "y"))
    assert sorted(kinds(model)) == [
        "DequantizeLinear", "DequantizeLinear", "QuantizeLinear", "Relu", "Tanh", "Transpose",
    ]  # fmt: skip
    assert check_against_evaluator(model, {"x": X}) == 0


def test_bytes_that_are_outputs_keep_their_names():
    model = quantised(MOVES["Transpose"], node("QuantizeLinear", ["moved", "s", "z"], ["y"]), outputs=("y", "moved"))
    assert check_against_evaluator(model, {"x": X}) == 0


def test_what_a_graph_captures_keeps_its_name():
    inner = helper.make_graph(
        [node("DequantizeLinear", ["again", "s", "z"], ["inside"])], "inner", [],
        [helper.make_tensor_value_info("inside", 1, None)],
    )  # fmt: skip
    behind = [
        node("QuantizeLinear", ["moved", "s", "z"], ["again"]),
        node("If", ["condition"], ["y"], then_branch=inner, else_branch=inner),
    ]
    model = make_model(
        [QUANTIZE, DEQUANTIZE, MOVES["Transpose"], *behind],
        {"x": X, "condition": np.array(True)}, ["y"], NUMBERS,
    )  # fmt: skip
    inputs = {"x": X, "condition": np.array(True)}
    assert check_against_evaluator(model, inputs) == 0


@pytest.mark.parametrize("scale", [np.array([0.1, 0.2, 0.3, 0.4], np.float32), np.float32(1e-38)])
def test_scales_of_channels_and_scales_without_precision_stay(scale):
    point = np.zeros(scale.shape, np.uint8)
    nodes = [
        node("QuantizeLinear", ["x", "scales", "points"], ["bytes"]),
        node("DequantizeLinear", ["bytes", "scales", "points"], ["numbers"]),
        node("QuantizeLinear", ["numbers", "scales", "points"], ["again"]),
        node("DequantizeLinear", ["again", "scales", "points"], ["y"]),
    ]
    x = X if scale.size > 1 else np.zeros_like(X)
    model = make_model(nodes, {"x": x}, ["y"], {"scales": scale, "points": point})
    assert len(kinds(model)) == 4
    assert check_against_evaluator(model, {"x": x}) == 0


def test_without_zero_points_the_types_may_differ():
    nodes = [node("DequantizeLinear", ["x", "s"], ["numbers"]), node("QuantizeLinear", ["numbers", "s"], ["y"])]
    x = np.arange(-128, 128, dtype=np.int8)
    model = make_model(nodes, {"x": x}, ["y"], {"s": np.float32(0.5)})
    assert kinds(model) == ["DequantizeLinear", "QuantizeLinear"]
    assert check_against_evaluator(model, {"x": x}) == 0


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_look_up_in_a_quantised_table_dequantises_what_it_finds(dtype):
    table = np.random.default_rng(0).integers(0, 100, (500, 16)).astype(dtype)
    nodes = [
        node("DequantizeLinear", ["table", "s", "zero"], ["numbers"]),
        node("Gather", ["numbers", "rows"], ["y"]),
    ]
    rows = np.array([[3, 499], [0, 3]])
    model = make_model(nodes, {"rows": rows}, ["y"], {"table": table, "s": np.float32(0.1), "zero": dtype(9)})
    assert kinds(model) == ["Gather", "DequantizeLinear"]
    with gpx.load(model) as loaded:
        assert loaded.predict_peak() < 500 * 16 * 4  # the whole table in f32
        np.testing.assert_array_equal(loaded.run({"rows": rows})["y"], (table[rows] - np.float32(9)) * np.float32(0.1))


def test_weights_are_not_moved_ahead():
    weights = np.random.default_rng(0).integers(0, 100, (6, 4)).astype(np.uint8)
    nodes = [
        node("DequantizeLinear", ["weights", "s", "z"], ["numbers"]),
        node("Transpose", ["numbers"], ["moved"]),
        node("MatMul", ["x", "moved"], ["y"]),
    ]
    model = make_model(nodes, {"x": X[..., :4]}, ["y"], {"weights": weights, "s": np.float32(0.1), "z": np.uint8(9)})
    assert kinds(model) == ["DequantizeLinear", "Transpose", "MatMul"]
    assert check_against_evaluator(model, {"x": X[..., :4]}) == 0
