import numpy as np
import pytest

from graphpool.errors import InvalidShapeError
from tests.helpers.reference import assert_gradient, onnx_run, run, run_one

PAIRS = [((2, 3), (2, 3)), ((2, 3), (3,)), ((2, 1, 4), (3, 1)), ((), (2, 2)), ((), ()), ((0, 3), (1, 3)), ((2, 0), ())]
FORMULAS = {
    "Add": lambda a, b: a + b,
    "Subtract": lambda a, b: a - b,
    "Multiply": lambda a, b: a * b,
    "Divide": lambda a, b: a / b,
    "Maximum": lambda a, b: np.where(a > b, a, b),
    "Minimum": lambda a, b: np.where(a < b, a, b),
    "SquaredDifference": lambda a, b: a * a - 2 * a * b + b * b,
    "GreaterEqual": lambda a, b: ~(a < b),
}
NUMPY = {"auto_broadcast": "numpy"}


@pytest.mark.parametrize("shapes", PAIRS, ids=str)
@pytest.mark.parametrize("kind", FORMULAS)
def test_binary_broadcasts_as_numpy_does(kind, shapes):
    rng = np.random.default_rng(1)
    a, b = (rng.normal(size=shape) for shape in shapes)
    result = run_one(kind, a, b, **NUMPY)
    assert result.shape == np.broadcast_shapes(*shapes)
    np.testing.assert_allclose(result, FORMULAS[kind](a, b), rtol=1e-9, atol=1e-12)


def test_s32_is_exact_and_wraps():
    a = np.array([2**31 - 1, 2**30 + 1, -(2**31)], dtype=np.int32)
    b = np.array([1, 3, -1], dtype=np.int32)
    assert run_one("Add", a, b, dtype="s32", **NUMPY).tolist() == [-(2**31), 2**30 + 4, 2**31 - 1]
    assert run_one("Subtract", a, b, dtype="s32", **NUMPY).tolist() == [2**31 - 2, 2**30 - 2, -(2**31) + 1]


def test_s32_with_f32_is_exact_before_rounding():
    assert run_one("Add", np.array([2**24 + 1], np.int32), np.array([-(2.0**24)], np.float32), dtype="f32")[0] == 1.0


def test_comparison_gives_booleans_and_compares_s32_exactly():
    result = run_one(
        "GreaterEqual", np.array([2**24, 2**24 + 1], np.int32), np.full(2, 2**24 + 1, np.int32), dtype="boolean"
    )
    assert result.dtype == np.bool_
    assert result.tolist() == [False, True]


@pytest.mark.parametrize("kind", ["Maximum", "Minimum", "Add", "SquaredDifference"])
def test_nan_of_either_side_propagates(kind):
    assert np.isnan(run_one(kind, np.array([np.nan, 1.0]), np.array([1.0, np.nan]), **NUMPY)).all()


def test_division_by_zero_follows_ieee():
    np.testing.assert_equal(run_one("Divide", np.array([1.0, -1.0, 0.0]), np.zeros(3)), [np.inf, -np.inf, np.nan])


def test_select_broadcasts_cond_to_the_sources():
    cond = np.array([[True], [False]])
    a, b = np.arange(3.0), np.full((2, 3), -1.0)
    assert run_one("Select", cond, a, b, **NUMPY).tolist() == [[0, 1, 2], [-1, -1, -1]]
    assert run_one("Select", np.array(True), a, b, **NUMPY).shape == (2, 3)


def test_select_never_broadcasts_the_sources_to_cond():
    with pytest.raises(InvalidShapeError, match="inputs of Select"):
        run_one("Select", np.ones((2, 3), bool), np.zeros(3), np.zeros(3), **NUMPY)


def test_select_takes_no_value_from_the_other_side():
    result = run_one("Select", np.array([True, False]), np.array([1.0, np.nan]), np.array([np.nan, 2.0]), **NUMPY)
    assert result.tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("data_format", "shape"), [("NXC", (2, 5, 4, 3)), ("NCX", (2, 3, 5, 4)), ("NXC", (0, 3))])
def test_bias_and_its_gradient(data_format, shape):
    rng = np.random.default_rng(4)
    src, bias, diff_dst = rng.normal(size=shape), rng.normal(size=3), rng.normal(size=shape)
    axis = shape.index(3)
    moved = np.moveaxis(run_one("BiasAdd", src, bias, data_format=data_format) - src, axis, -1)
    np.testing.assert_allclose(moved, np.broadcast_to(bias, moved.shape), rtol=1e-9)
    gradient = run_one("BiasAddBackward", diff_dst, data_format=data_format)
    assert_gradient(gradient, "BiasAdd", [src, bias], 1, diff_dst, {"data_format": data_format})


PRELU = [
    ("NXC", True, (2, 4, 3), (3,)),
    ("NCX", True, (2, 3, 4), (3,)),
    ("NCX", False, (2, 3, 4), (4,)),
    ("NCX", False, (2, 3, 4), (1,)),
    ("NCX", True, (2, 3, 4), (1, 3, 1)),
    ("NXC", False, (2, 3, 4), (2, 3, 4)),
    ("NCX", True, (2, 3, 4), (3, 4)),
    ("NCX", True, (2, 3, 4), ()),
    ("NXC", True, (0, 3), (3,)),
]


@pytest.mark.parametrize(("data_format", "per_channel", "shape", "slope_shape"), PRELU)
def test_prelu_gradients_equal_the_numerical_ones(data_format, per_channel, shape, slope_shape):
    rng = np.random.default_rng(5)
    src, slope, diff_dst = rng.normal(size=shape), rng.normal(size=slope_shape), rng.normal(size=shape)
    attrs = {"data_format": data_format, "per_channel_broadcast": per_channel}
    for wrt in (0, 1):
        actual = run("PReLUBackward", [src, slope, diff_dst], 2, **attrs)[wrt]
        assert_gradient(actual, "PReLU", [src, slope], wrt, diff_dst, attrs)


def test_prelu_agrees_with_onnx():
    rng = np.random.default_rng(6)
    src, slope = rng.normal(size=(2, 3, 4)), rng.normal(size=3)
    ours = run_one("PReLU", src, slope, data_format="NCX", per_channel_broadcast=True)
    np.testing.assert_allclose(ours, onnx_run("PRelu", [src, slope.reshape(3, 1)])[0])
