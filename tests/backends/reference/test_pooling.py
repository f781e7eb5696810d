import itertools

import numpy as np
import pytest

from tests.helpers.reference import assert_gradient, channels_last, onnx_run, run_one

# spatial, kernel, strides, dilations (MaxPool only), pads begin, pads end
CASES = {
    "1d": ((8,), (3,), (2,), (1,), (1,), (0,)),
    "2d": ((5, 6), (3, 2), (2, 1), (1, 1), (1, 0), (1, 1)),
    "2d_dilated": ((7, 6), (2, 3), (1, 2), (3, 2), (1, 1), (0, 2)),
    "3d": ((4, 3, 3), (2, 2, 2), (2, 1, 1), (1, 1, 1), (1, 1, 0), (0, 0, 1)),
}
ROUNDINGS = ["floor", "ceil"]


def _attrs(case, **more):
    _, kernel, strides, dilations, begin, end = case
    return {
        "kernel": list(kernel),
        "strides": list(strides),
        "dilations": list(dilations),
        "pads_begin": list(begin),
        "pads_end": list(end),
        "exclude_pad": True,
        "rounding_type": "floor",
        "data_format": "NCX",
        "src_shape": [0] * 12,
        **more,
    }


def _without_dilation(case):
    return (*case[:3], (1,) * len(case[0]), *case[4:])


def _windows(case, rounding):
    """For each output, the padded coordinates that its window meets; from the definition, in plain Python."""
    spatial, kernel, strides, dilations, begin, end = case
    starts = []
    for n, k, s, d, b, e in zip(spatial, kernel, strides, dilations, begin, end, strict=True):
        room = n + b + e - d * (k - 1) - 1
        starts.append([o * s for o in range((-(-room // s) if rounding == "ceil" else room // s) + 1)])
    for where in itertools.product(*starts):
        axes = [[w + k * d for k in range(size)] for w, size, d in zip(where, kernel, dilations, strict=True)]
        yield list(itertools.product(*axes))


def _direct(src, case, rounding, reduce_cells):
    """Pool one output after another; `reduce_cells(values, declared)` gets input values and the padded-cell count."""
    spatial, begin, end = case[0], case[4], case[5]
    padded = [n + b + e for n, b, e in zip(spatial, begin, end, strict=True)]
    outputs = []
    for cells in _windows(case, rounding):
        inner = [tuple(c - b for c, b in zip(cell, begin, strict=True)) for cell in cells]
        real = [i for i in inner if all(0 <= c < n for c, n in zip(i, spatial, strict=True))]
        declared = sum(all(c < p for c, p in zip(cell, padded, strict=True)) for cell in cells)
        values = np.stack([src[(..., *i)] for i in real], -1) if real else np.zeros((*src.shape[:2], 0))
        outputs.append(reduce_cells(values, declared))
    return np.stack(outputs, -1)


def _max(values, declared):
    return np.max(values, axis=-1, initial=-np.inf)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_max_pool_equals_its_definition(name, rounding, data_format):
    case = CASES[name]
    src = np.random.default_rng(1).normal(size=(2, 3, *case[0]))
    stored = channels_last(src) if data_format == "NXC" else src
    result = run_one("MaxPool", stored, **_attrs(case, rounding_type=rounding, data_format=data_format))
    result = np.moveaxis(result, -1, 1) if data_format == "NXC" else result
    np.testing.assert_array_equal(result.reshape(2, 3, -1), _direct(src, case, rounding, _max))


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("exclude_pad", [True, False])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_avg_pool_equals_its_definition(name, rounding, exclude_pad, data_format):
    case = _without_dilation(CASES[name])
    src = np.random.default_rng(1).normal(size=(2, 3, *case[0]))
    stored = channels_last(src) if data_format == "NXC" else src
    attrs = _attrs(case, rounding_type=rounding, data_format=data_format, exclude_pad=exclude_pad)
    del attrs["dilations"]
    result = run_one("AvgPool", stored, **attrs)
    result = np.moveaxis(result, -1, 1) if data_format == "NXC" else result

    def average(values, declared):
        return values.sum(-1) / max(values.shape[-1] if exclude_pad else declared, 1)

    np.testing.assert_allclose(result.reshape(2, 3, -1), _direct(src, case, rounding, average), rtol=1e-12)


@pytest.mark.parametrize("name", ["1d", "2d", "3d"])
def test_pools_agree_with_onnx(name):
    case = CASES[name]
    src = np.random.default_rng(1).normal(size=(2, 3, *case[0]))
    common = {"kernel_shape": case[1], "strides": case[2], "pads": [*case[4], *case[5]]}
    np.testing.assert_array_equal(run_one("MaxPool", src, **_attrs(case)), onnx_run("MaxPool", [src], **common)[0])
    for include in (0, 1):
        expected = onnx_run("AveragePool", [src], count_include_pad=include, **common)[0]
        result = run_one("AvgPool", src, **_attrs(case, exclude_pad=not include))
        np.testing.assert_allclose(result, expected, rtol=1e-12)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "VALID"])
def test_pools_resolve_auto_pad_as_onnx_does(auto_pad):
    case = CASES["2d"]
    src = np.random.default_rng(1).normal(size=(2, 3, *case[0]))
    expected = onnx_run("MaxPool", [src], kernel_shape=case[1], strides=case[2], auto_pad=auto_pad)[0]
    np.testing.assert_array_equal(run_one("MaxPool", src, **_attrs(case, auto_pad=auto_pad)), expected)


def test_same_lower_is_the_mirror_image_of_same_upper():
    src = np.random.default_rng(1).normal(size=(2, 3, 6, 5))
    upper, lower = (_attrs(CASES["2d"], auto_pad=f"SAME_{side}") for side in ("UPPER", "LOWER"))
    mirrored = run_one("AvgPool", src[..., ::-1, ::-1], **upper)[..., ::-1, ::-1]
    np.testing.assert_allclose(run_one("AvgPool", src, **lower), mirrored, rtol=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_max_pool_gradient_equals_the_numerical_one(name, rounding, data_format):
    case = CASES[name]
    src = np.random.default_rng(2).permutation(2 * int(np.prod(case[0]))).astype(float).reshape(1, 2, *case[0])
    src = channels_last(src) if data_format == "NXC" else src
    attrs = _attrs(case, rounding_type=rounding, data_format=data_format)
    dst = run_one("MaxPool", src, **attrs)
    assert np.isfinite(dst).all()
    diff_dst = np.random.default_rng(3).normal(size=dst.shape)
    assert_gradient(run_one("MaxPoolBackward", src, diff_dst, **attrs), "MaxPool", [src], 0, diff_dst, attrs)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("exclude_pad", [True, False])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_avg_pool_gradient_equals_the_numerical_one(name, rounding, exclude_pad, data_format):
    case = _without_dilation(CASES[name])
    src = np.random.default_rng(2).normal(size=(1, 2, *case[0]))
    src = channels_last(src) if data_format == "NXC" else src
    attrs = _attrs(case, rounding_type=rounding, data_format=data_format, exclude_pad=exclude_pad)
    del attrs["dilations"]
    diff_dst = np.random.default_rng(3).normal(size=run_one("AvgPool", src, **attrs).shape)
    by_input = run_one("AvgPoolBackward", diff_dst, np.array(src.shape, np.int32), **attrs)
    by_attribute = run_one("AvgPoolBackward", diff_dst, **attrs | {"src_shape": list(src.shape)})
    np.testing.assert_array_equal(by_input, by_attribute)
    assert_gradient(by_input, "AvgPool", [src], 0, diff_dst, attrs)


def test_the_gradient_of_a_tie_goes_to_the_first_maximum():
    attrs = _attrs(((2, 2), (2, 2), (1, 1), (1, 1), (0, 0), (0, 0)))
    src = np.array([[[[1.0, 3.0], [3.0, 3.0]]]])
    assert run_one("MaxPoolBackward", src, np.array([[[[5.0]]]]), **attrs)[0, 0].tolist() == [[0, 5], [0, 0]]
    src = np.full((1, 1, 2, 2), -np.inf)
    assert run_one("MaxPoolBackward", src, np.array([[[[5.0]]]]), **attrs)[0, 0].tolist() == [[5, 0], [0, 0]]


def test_nan_wins_the_maximum_and_its_gradient():
    attrs = _attrs(((3,), (3,), (1,), (1,), (0,), (0,)))
    src = np.array([[[9.0, np.nan, np.nan]]])
    assert np.isnan(run_one("MaxPool", src, **attrs)[0, 0, 0])
    assert run_one("MaxPoolBackward", src, np.ones((1, 1, 1)), **attrs)[0, 0].tolist() == [0, 1, 0]


def test_padding_never_wins_a_maximum():
    attrs = _attrs(((1,), (3,), (1,), (1,), (1,), (1,)))
    assert run_one("MaxPool", np.full((1, 1, 1), -7.0), **attrs).tolist() == [[[-7.0]]]


def test_a_window_without_elements():
    attrs = _attrs(((1,), (1,), (1,), (1,), (1,), (0,)))
    assert run_one("MaxPool", np.ones((1, 1, 1)), **attrs).tolist() == [[[-np.inf, 1.0]]]
    assert run_one("AvgPool", np.ones((1, 1, 1)), **attrs).tolist() == [[[0.0, 1.0]]]


@pytest.mark.parametrize("kind", ["AvgPool", "MaxPool"])
def test_no_batch(kind):
    assert run_one(kind, np.zeros((0, 2, 8)), **_attrs(CASES["1d"])).shape == (0, 2, 4)
