import numpy as np
import pytest

import graphpool as gp
from tests.helpers.onnx_models import check_against_evaluator, node_model, random_array

X = random_array((2, 6, 4, 5))
SCALE, BIAS = random_array((6,), seed=1), random_array((6,), seed=2)


def test_batch_normalization():
    inputs = [X, SCALE, BIAS, random_array((6,), seed=3), np.abs(random_array((6,), seed=4)) + 0.5]
    assert check_against_evaluator(*node_model("BatchNormalization", inputs, constants={1, 2, 3, 4}, epsilon=1e-3)) == 0


@pytest.mark.parametrize("axis", [-1, 1, 2])
@pytest.mark.parametrize("noutputs", [1, 3])
@pytest.mark.parametrize("has_bias", [True, False])
def test_layer_normalization(axis, noutputs, has_bias):
    normalised = X.shape[axis:]
    inputs = [X, random_array(normalised, seed=1)] + ([random_array(normalised, seed=2)] if has_bias else [])
    model = node_model("LayerNormalization", inputs, constants={1, 2}, noutputs=noutputs, axis=axis)
    assert check_against_evaluator(*model) == 0


def test_group_normalization():
    inputs = [X, SCALE, BIAS]
    hosted = check_against_evaluator(*node_model("GroupNormalization", inputs, constants={1, 2}, num_groups=3))
    assert hosted == 0


def test_instance_normalization():
    assert check_against_evaluator(*node_model("InstanceNormalization", [X, SCALE, BIAS])) == 0


def test_rms_normalization():
    model = node_model("RMSNormalization", [X, random_array((5,), seed=1)], opset=23, epsilon=1e-4)
    assert check_against_evaluator(*model) == 0


@pytest.mark.parametrize("p", [1, 2])
def test_lp_normalization(p):
    x = np.abs(X)  # the evaluator takes no absolute values for p=1
    assert check_against_evaluator(*node_model("LpNormalization", [x], p=p, axis=1)) == 0


def test_a_vector_of_zeros_stays_zero():
    model, _ = node_model("LpNormalization", [X], axis=1)
    with gp.onnx.load(model, fallback=False) as loaded:
        assert not loaded.run({"x0": np.zeros_like(X)})["y0"].any()


def test_mean_variance_normalization():
    assert check_against_evaluator(*node_model("MeanVarianceNormalization", [X])) == 0


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize(("opset", "axis"), [(21, None), (21, 1), (21, -2), (11, 3)])
def test_softmax(kind, opset, axis):
    attributes = {} if axis is None else {"axis": axis}
    assert check_against_evaluator(*node_model(kind, [X], opset=opset, **attributes)) == 0


def test_old_softmax_normalises_all_dimensions_from_the_axis_on():
    model, inputs = node_model("Softmax", [X], opset=11, axis=2)
    with gp.onnx.load(model) as loaded:
        [result] = loaded.run(inputs).values()
    np.testing.assert_allclose(result.sum(axis=(2, 3)), np.ones((2, 6)), rtol=1e-5)


@pytest.mark.parametrize("kind", ["Softmax", "LogSoftmax"])
@pytest.mark.parametrize("constants", [(), (0,)])
def test_old_softmax_of_f64_on_the_host(kind, constants):
    x = random_array((2, 3, 4), "float64")
    rows = x.reshape(2, -1)
    weights = np.exp(rows) / np.exp(rows).sum(1, keepdims=True)
    wanted = (weights if kind == "Softmax" else np.log(weights)).reshape(x.shape)
    model, inputs = node_model(kind, [x], constants=constants, opset=11, axis=1)
    with gp.onnx.load(model) as loaded:
        np.testing.assert_allclose(loaded.run(inputs)["y0"], wanted, rtol=1e-12)
