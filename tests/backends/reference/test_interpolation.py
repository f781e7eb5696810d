import numpy as np
import pytest

from tests.helpers.reference import assert_gradient, channels_last, onnx_run, run_one

MODES = {1: ["nearest", "linear"], 2: ["nearest", "bilinear"], 3: ["nearest", "trilinear"]}
SIZES = [((5,), (8,)), ((7,), (3,)), ((4, 5), (7, 3)), ((3, 3), (6, 6)), ((2, 3, 4), (3, 5, 2)), ((1, 4), (3, 1))]
CASES = [(n, m, mode) for n, m in SIZES for mode in MODES[len(n)]]
TRANSFORMATIONS = ["half_pixel", "align_corners"]


def _attrs(mode, transformation="half_pixel", data_format="NCX", **more):
    return {"mode": mode, "coordinate_transformation_mode": transformation, "data_format": data_format, **more}


@pytest.mark.parametrize(("in_sizes", "out_sizes", "mode"), CASES)
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_interpolate_agrees_with_onnx(in_sizes, out_sizes, mode, transformation, data_format):
    src = np.random.default_rng(1).normal(size=(2, 3, *in_sizes))
    expected = onnx_run(
        "Resize",
        [src, None, None, np.array([2, 3, *out_sizes], dtype=np.int64)],
        mode="nearest" if mode == "nearest" else "linear",
        coordinate_transformation_mode=transformation,
        nearest_mode="round_prefer_ceil",
    )[0]
    stored = channels_last(src) if data_format == "NXC" else src
    result = run_one("Interpolate", stored, **_attrs(mode, transformation, data_format, sizes=list(out_sizes)))
    np.testing.assert_allclose(result, channels_last(expected) if data_format == "NXC" else expected, atol=1e-12)


def test_sizes_as_input_as_attribute_and_as_scales_agree():
    src = np.random.default_rng(1).normal(size=(1, 2, 4, 5))
    by_input = run_one("Interpolate", src, np.array([6, 12], np.int32), **_attrs("bilinear"))
    by_sizes = run_one("Interpolate", src, **_attrs("bilinear", sizes=[6, 12]))
    by_scales = run_one("Interpolate", src, **_attrs("bilinear", scales=[1.5, 2.5]))
    np.testing.assert_array_equal(by_input, by_sizes)
    np.testing.assert_array_equal(by_input, by_scales)


@pytest.mark.parametrize(("size", "scale", "expected"), [(10, 0.7, 7), (3, 0.34, 1), (5, 1.3, 6), (10, 1.1, 11)])
def test_scaled_sizes_truncate_the_float32_product(size, scale, expected):
    assert run_one("Interpolate", np.zeros((1, 1, size)), **_attrs("linear", scales=[scale])).shape == (1, 1, expected)


@pytest.mark.parametrize(("in_sizes", "out_sizes", "mode"), CASES)
@pytest.mark.parametrize("transformation", TRANSFORMATIONS)
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_gradient_equals_the_numerical_one(in_sizes, out_sizes, mode, transformation, data_format):
    rng = np.random.default_rng(2)
    src, diff_dst = rng.normal(size=(1, 2, *in_sizes)), rng.normal(size=(1, 2, *out_sizes))
    if data_format == "NXC":
        src, diff_dst = channels_last(src), channels_last(diff_dst)
    attrs = _attrs(mode, transformation, data_format, sizes=list(out_sizes))
    actual = run_one("InterpolateBackward", src, diff_dst, **attrs)
    assert_gradient(actual, "Interpolate", [src], 0, diff_dst, attrs)
    given = run_one("InterpolateBackward", src, diff_dst, np.array(out_sizes, np.int32), **attrs)
    np.testing.assert_array_equal(actual, given)


def test_a_neighbour_of_weight_zero_does_not_spread_infinity():
    src = np.array([[[np.inf, 1.0, 2.0]]])
    assert run_one("Interpolate", src, **_attrs("linear", sizes=[3])).tolist() == [[[np.inf, 1.0, 2.0]]]
    assert run_one("Interpolate", src, **_attrs("nearest", sizes=[6]))[0, 0, 2:].tolist() == [1, 1, 2, 2]


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(("shape", "size"), [((0, 2, 4), 8), ((1, 0, 4), 2), ((1, 2, 0), 0), ((1, 2, 4), 0)])
def test_zero_sizes(mode, shape, size):
    result = run_one("Interpolate", np.zeros(shape), np.array([size], np.int32), **_attrs(mode))
    assert result.shape == (*shape[:2], size)
    assert run_one("InterpolateBackward", np.zeros(shape), result, **_attrs(mode)).shape == shape
