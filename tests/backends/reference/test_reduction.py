import numpy as np
import pytest

from tests.helpers.reference import onnx_run, run_one

KINDS = ["ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"]
AXES = [[0], [-1], [0, 2], [2, 0], [0, 1, 2], [-2]]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("keep_dims", [True, False])
def test_reductions_agree_with_onnx(kind, axes, keep_dims):
    src = np.random.default_rng(1).normal(size=(2, 3, 4))
    expected = onnx_run(kind, [src, np.array(axes)], keepdims=int(keep_dims))[0]
    by_attribute = run_one(kind, src, axes=axes, keep_dims=keep_dims)
    by_input = run_one(kind, src, np.array(axes, np.int32), axes=[], keep_dims=keep_dims)
    np.testing.assert_allclose(by_attribute, expected, rtol=1e-12)
    np.testing.assert_array_equal(by_input, by_attribute)
    assert by_attribute.shape == expected.shape


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("ReduceL1", 0.0),
        ("ReduceL2", 0.0),
        ("ReduceMax", -np.inf),
        ("ReduceMean", np.nan),
        ("ReduceMin", np.inf),
        ("ReduceProd", 1.0),
        ("ReduceSum", 0.0),
    ],
)
def test_over_no_elements(kind, expected):
    np.testing.assert_equal(run_one(kind, np.zeros((2, 0)), axes=[1], keep_dims=False), [expected] * 2)


@pytest.mark.parametrize("kind", KINDS)
def test_no_axes_reduce_nothing(kind):
    src = np.array([[-2.0, 3.0]])
    expected = np.abs(src) if kind in ("ReduceL1", "ReduceL2") else src
    assert run_one(kind, src, axes=[], keep_dims=False).tolist() == expected.tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_nan_propagates_and_zero_sizes_remain(kind):
    assert np.isnan(run_one(kind, np.array([1.0, np.nan, -1.0]), axes=[0], keep_dims=False))
    assert run_one(kind, np.zeros((2, 0, 3)), axes=[0], keep_dims=True).shape == (1, 0, 3)


def test_the_sum_is_not_rounded_on_the_way():
    src = np.full(70000, 1.0, np.float16)
    assert run_one("ReduceMean", src, axes=[0], keep_dims=False, dtype="f16") == 1.0
