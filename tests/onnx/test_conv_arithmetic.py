"""Arithmetic per channel behind convolutions of a model, BatchNormalization first, packed with their weights."""

import numpy as np
import pytest
from onnx import helper

import graphpool as gp
from tests.helpers.onnx_models import check_against_evaluator, make_model, random_array

X = random_array((2, 20, 16, 15))
CONSTANTS = {"scale": random_array((34,), seed=1), "bias": random_array((34,), seed=2),
             "mean": random_array((34,), seed=3), "variance": np.abs(random_array((34,), seed=4)) + 0.1,
             "b": random_array((34,), seed=6), "k": random_array((34, 1, 1), seed=7)}  # fmt: skip
NORM = helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "variance"], ["y"], epsilon=1e-3)
CONV = helper.make_node("Conv", ["x", "w"], ["c"])


def packed(nodes, groups=1, **constants):
    """How many constants of the model each pack takes; the result is that of ONNX's evaluator."""
    constants = CONSTANTS | {"w": random_array((34, 20 // groups, 3, 3), seed=5)} | constants
    used = {name: value for name, value in constants.items() if any(name in node.input for node in nodes)}
    model = make_model(nodes, {"x": X}, [nodes[-1].output[0]], used)
    assert check_against_evaluator(model, {"x": X}) == 0
    with gp.onnx.load(model, threads=1) as loaded:
        compiled = loaded.specialise().compiled
        return [len(part.sources) for one in compiled for part in one.primitive.constant_parts]


@pytest.mark.parametrize("has_bias", [True, False])
@pytest.mark.parametrize("groups", [1, 2])
def test_a_batch_norm(has_bias, groups):
    conv = helper.make_node("Conv", ["x", "w", "b"] if has_bias else ["x", "w"], ["c"], group=groups)
    assert packed([conv, NORM], groups) == [5 + has_bias]


def test_a_batch_norm_behind_a_transposed_convolution():
    conv = helper.make_node("ConvTranspose", ["x", "w"], ["c"], strides=[2, 2])
    assert packed([conv, NORM], w=random_array((20, 34, 2, 2), seed=5)) == [5]


@pytest.mark.parametrize(("kind", "order"), [("Mul", "ck"), ("Mul", "kc"), ("Div", "ck"), ("Sub", "kc")])
@pytest.mark.parametrize("shape", [(34, 1, 1), (1, 34, 1, 1), (1,), ()])
def test_arithmetic(kind, order, shape):
    assert packed([CONV, helper.make_node(kind, list(order), ["z"])], k=random_array(shape, seed=6)) == [2]


def test_a_chain():
    last = helper.make_node("Add", ["k", "m"], ["z"]), helper.make_node("Relu", ["z"], ["r"])
    assert packed([CONV, NORM, helper.make_node("Mul", ["k", "y"], ["m"]), *last]) == [6]


@pytest.mark.parametrize("shape", [(14, 13), (34, 1, 13), (2, 1, 1, 1)])
def test_a_constant_along_another_axis_stays(shape):
    assert packed([CONV, helper.make_node("Mul", ["c", "k"], ["z"])], k=random_array(shape, seed=6)) == [1]


def test_weights_that_two_convolutions_share_are_packed_twice():
    last = helper.make_node("Conv", ["x", "w"], ["other"]), helper.make_node("Concat", ["y", "other"], ["z"], axis=1)
    assert sorted(packed([CONV, NORM, *last])) == [1, 5]


def test_training_stays():
    node = helper.make_node("BatchNormalization", ["x", *(f"s{k}" for k in range(4))], ["y", "m", "v"], training_mode=1)
    statistics = {f"s{k}": np.abs(random_array((20,), seed=k)) for k in range(4)}
    model = make_model([node], {"x": X}, ["y", "m", "v"], statistics)
    assert check_against_evaluator(model, {"x": X}) == 0
