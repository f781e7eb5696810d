import numpy as np
import onnx
import pytest
from onnx import helper

from graphpool.onnx.rewrite import rewrite
from graphpool.onnx.source import read_model
from tests.helpers.onnx_models import check_against_evaluator, make_model, random_array

X = random_array((2, 4, 6, 5))
STATISTICS = {"scale": random_array((4,), seed=1), "bias": random_array((4,), seed=2),
              "mean": random_array((4,), seed=3), "variance": np.abs(random_array((4,), seed=4)) + 0.1}  # fmt: skip
NORM = helper.make_node("BatchNormalization", ["c", *STATISTICS], ["y"], epsilon=1e-3)


def kinds(model):
    return [node.op_type for node in rewrite(read_model(model))[0]]


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_a_batch_norm_goes_into_a_convolution(has_bias, groups):
    constants = STATISTICS | {"w": random_array((4, 4 // groups, 3, 3), seed=5), "b": random_array((4,), seed=6)}
    conv = helper.make_node("Conv", ["x", "w", "b"] if has_bias else ["x", "w"], ["c"], group=groups)
    model = make_model([conv, NORM], {"x": X}, ["y"], constants)
    assert kinds(model) == ["Conv"]
    assert check_against_evaluator(model, {"x": X}) == 0


def test_a_batch_norm_goes_into_a_transposed_convolution():
    conv = helper.make_node("ConvTranspose", ["x", "w"], ["c"], strides=[2, 2])
    model = make_model([conv, NORM], {"x": X}, ["y"], STATISTICS | {"w": random_array((4, 4, 2, 2), seed=5)})
    assert kinds(model) == ["ConvTranspose"]
    assert check_against_evaluator(model, {"x": X}) == 0


@pytest.mark.parametrize(("kind", "order"), [("Mul", "yk"), ("Div", "yk"), ("Add", "ky"), ("Sub", "yk"), ("Sub", "ky")])
@pytest.mark.parametrize("shape", [(4, 1, 1), (1, 4, 1, 1), (1,), ()])
@pytest.mark.parametrize("front", ["Conv", "BatchNormalization"])
def test_arithmetic_per_channel_goes_into_what_is_in_front(kind, order, shape, front):
    first = helper.make_node("Conv", ["x", "w"], ["y"]) if front == "Conv" else helper.make_node(
        "BatchNormalization", ["x", *STATISTICS], ["y"]
    )  # fmt: skip
    constants = STATISTICS | {"w": random_array((4, 4, 1, 1), seed=5), "k": random_array(shape, seed=6)}
    model = make_model([first, helper.make_node(kind, list(order), ["z"])], {"x": X}, ["z"], constants)
    assert kinds(model) == [front]
    assert check_against_evaluator(model, {"x": X}) == 0


def test_a_chain_goes_into_one_convolution():
    constants = STATISTICS | {"w": random_array((4, 4, 1, 1), seed=5), "k": random_array((4, 1, 1), seed=6)}
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"]),
        NORM,
        helper.make_node("Mul", ["k", "y"], ["m"]),
        helper.make_node("Add", ["m", "k"], ["z"]),
        helper.make_node("Relu", ["z"], ["r"]),
    ]
    model = make_model(nodes, {"x": X}, ["r"], constants)
    assert kinds(model) == ["Conv", "Relu"]
    assert check_against_evaluator(model, {"x": X}) == 0


@pytest.mark.parametrize("shape", [(6, 5), (4, 1, 5), (2, 1, 1, 1)])
def test_a_constant_along_another_axis_stays(shape):
    constants = {"w": random_array((4, 4, 1, 1), seed=5), "k": random_array(shape, seed=6)}
    nodes = [helper.make_node("Conv", ["x", "w"], ["y"]), helper.make_node("Mul", ["y", "k"], ["z"])]
    model = make_model(nodes, {"x": X}, ["z"], constants)
    assert kinds(model) == ["Conv", "Mul"]


def test_a_convolution_that_others_read_too_stays():
    constants = STATISTICS | {"w": random_array((4, 4, 1, 1), seed=5)}
    model = make_model([helper.make_node("Conv", ["x", "w"], ["c"]), NORM], {"x": X}, ["y", "c"], constants)
    assert kinds(model) == ["Conv", "BatchNormalization"]
    assert check_against_evaluator(model, {"x": X}) == 0


def test_weights_that_two_convolutions_share_are_not_changed():
    constants = STATISTICS | {"w": random_array((4, 4, 1, 1), seed=5)}
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), NORM, helper.make_node("Conv", ["x", "w"], ["other"])]
    model = make_model(nodes, {"x": X}, ["y", "other"], constants)
    assert kinds(model) == ["Conv", "Conv"]
    assert check_against_evaluator(model, {"x": X}) == 0


@pytest.mark.parametrize("kind", ["BatchNormalization", "Mul"])
@pytest.mark.parametrize("size", [16, 256])
def test_weights_of_a_file_are_not_copied_where_packing_folds_or_they_are_large(kind, size, tmp_path):
    constants = {key: np.resize(value, size).astype("float32") for key, value in STATISTICS.items()}
    constants |= {"w": random_array((size, size, 3, 3), seed=5), "k": random_array((size, 1, 1), seed=6)}
    x = random_array((1, size, 3, 3))
    last = NORM if kind == "BatchNormalization" else helper.make_node("Mul", ["c", "k"], ["y"])
    model = make_model([helper.make_node("Conv", ["x", "w"], ["c"]), last], {"x": x}, ["y"], constants)
    assert kinds(model) == ["Conv"]
    onnx.save(model, tmp_path / "m.onnx")
    assert kinds(tmp_path / "m.onnx") == (["Conv"] if (kind, size) == ("Mul", 16) else ["Conv", kind])
    assert check_against_evaluator(model, {"x": x}) == 0


def test_large_weights_that_others_read_too_are_not_copied():
    constants = {key: np.resize(value, 256).astype("float32") for key, value in STATISTICS.items()}
    x, w = random_array((1, 256, 3, 3)), random_array((256, 256, 3, 3), seed=5)
    nodes = [helper.make_node("Conv", ["x", "w"], ["c"]), NORM, helper.make_node("Conv", ["x", "w"], ["other"])]
    model = make_model(nodes, {"x": x}, ["y", "other"], constants | {"w": w})
    assert kinds(model) == ["Conv", "BatchNormalization", "Conv"]
    assert check_against_evaluator(model, {"x": x}) == 0


def test_training_stays():
    nodes = [helper.make_node("BatchNormalization", ["x", *STATISTICS], ["y", "m", "v"], training_mode=1)]
    model = make_model(nodes, {"x": X}, ["y", "m", "v"], STATISTICS)
    assert kinds(model) == ["BatchNormalization"]
    assert check_against_evaluator(model, {"x": X}) == 0
