import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp, softmax

from tests.helpers.reference import assert_gradient, onnx_run, run, run_one

CASES = [((4,), 0), ((3, 5), 1), ((3, 5), 0), ((2, 3, 4), -1), ((2, 3, 4), 1), ((0, 3), 1), ((3, 0), 0)]


@pytest.mark.parametrize(("shape", "axis"), CASES)
@pytest.mark.parametrize("mode", ["none", "inf_as_zero"])
def test_softmax_and_its_statistic(shape, axis, mode):
    src = np.random.default_rng(1).normal(size=shape) * 40
    dst, stats = run("SoftMax", [src], 2, axis=axis, mode=mode)
    np.testing.assert_allclose(dst, softmax(src, axis=axis), rtol=1e-12)
    np.testing.assert_allclose(stats, logsumexp(src, axis=axis, keepdims=True), rtol=1e-12)
    np.testing.assert_allclose(np.exp(src - stats), dst, rtol=1e-12)


@pytest.mark.parametrize(("shape", "axis"), CASES)
def test_log_softmax(shape, axis):
    src = np.random.default_rng(1).normal(size=shape) * 400
    np.testing.assert_allclose(run_one("LogSoftmax", src, axis=axis), log_softmax(src, axis=axis), rtol=1e-12)


def test_softmax_agrees_with_onnx():
    src = np.random.default_rng(1).normal(size=(2, 3, 4))
    np.testing.assert_allclose(run_one("SoftMax", src, axis=1, mode="none"), onnx_run("Softmax", [src], axis=1)[0])
    np.testing.assert_allclose(run_one("LogSoftmax", src, axis=1), onnx_run("LogSoftmax", [src], axis=1)[0])


def test_a_row_of_minus_infinities():
    src = np.array([[-np.inf, -np.inf], [-np.inf, 1.0]])
    dst, stats = run("SoftMax", [src], 2, axis=1, mode="inf_as_zero")
    assert dst.tolist() == [[0, 0], [0, 1]]
    assert stats.tolist() == [[-np.inf], [1.0]]
    dst, stats = run("SoftMax", [src], 2, axis=1, mode="none")
    np.testing.assert_equal(dst, [[np.nan, np.nan], [0, 1]])
    np.testing.assert_equal(stats, [[np.nan], [1.0]])


@pytest.mark.parametrize("mode", ["none", "inf_as_zero"])
def test_nan_or_infinity_makes_its_row_nan(mode):
    src = np.array([[np.nan, 1.0], [np.inf, 1.0]])
    assert np.isnan(run_one("SoftMax", src, axis=1, mode=mode)).all()


def test_an_axis_without_elements():
    dst, stats = run("SoftMax", [np.zeros((2, 0))], 2, axis=1, mode="none")
    assert dst.shape == (2, 0)
    assert stats.tolist() == [[-np.inf], [-np.inf]]


@pytest.mark.parametrize(("shape", "axis"), CASES)
@pytest.mark.parametrize(("kind", "more"), [("SoftMax", {"mode": "none"}), ("LogSoftmax", {})])
def test_gradients_equal_the_numerical_ones(shape, axis, kind, more):
    rng = np.random.default_rng(2)
    src, diff_dst = rng.normal(size=shape), rng.normal(size=shape)
    attrs = {"axis": axis, **more}
    actual = run_one(f"{kind}Backward", diff_dst, run_one(kind, src, **attrs), axis=axis)
    assert_gradient(actual, kind, [src], 0, diff_dst, attrs)
