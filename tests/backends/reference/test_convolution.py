import math

import numpy as np
import pytest

from tests.helpers.reference import assert_gradient, channels_last, numeric_gradient, onnx_run, run_one

# (batch, in channels, out channels, groups), spatial, kernel, strides, dilations, pads begin, pads end
CASES = {
    "1d": ((2, 3, 4, 1), (7,), (3,), (2,), (1,), (1,), (0,)),
    "2d": ((2, 4, 6, 1), (5, 6), (3, 2), (1, 2), (1, 1), (1, 0), (0, 1)),
    "2d_groups_dilated": ((1, 4, 6, 2), (7, 6), (2, 3), (2, 1), (3, 2), (2, 1), (1, 2)),
    "2d_depthwise": ((2, 3, 3, 3), (4, 4), (3, 3), (1, 1), (1, 1), (1, 1), (1, 1)),
    "3d": ((1, 2, 3, 1), (3, 4, 3), (2, 2, 2), (1, 2, 1), (1, 1, 2), (0, 1, 0), (1, 0, 1)),
    "pointwise_strided": ((2, 3, 2, 1), (5, 4), (1, 1), (2, 3), (1, 1), (0, 0), (0, 0)),
    "no_batch": ((0, 2, 2, 1), (5, 5), (3, 3), (1, 1), (1, 1), (0, 0), (0, 0)),
    "no_channels": ((2, 0, 3, 1), (4,), (2,), (1,), (1,), (0,), (0,)),
}
FORMATS = [("NCX", "OIX"), ("NXC", "XIO"), ("NXC", "OIX"), ("NCX", "XIO")]


def _attrs(case, data_format="NCX", weights_format="OIX", **more):
    channels, _, _, strides, dilations, begin, end = case
    return {
        "strides": list(strides),
        "dilations": list(dilations),
        "pads_begin": list(begin),
        "pads_end": list(end),
        "groups": channels[3],
        "data_format": data_format,
        "weights_format": weights_format,
        "output_padding": [0] * 12,
        "dst_shape": [0] * 12,
        "weights_shape": [0] * 12,
        **more,
    }


def _operands(case, *, transposed=False):
    (batch, inner, outer, groups), spatial, kernel, *_ = case
    rng = np.random.default_rng(1)
    weights = (inner, outer // groups, *kernel) if transposed else (outer, inner // groups, *kernel)
    return rng.normal(size=(batch, inner, *spatial)), rng.normal(size=weights), rng.normal(size=outer)


def _onnx_attrs(attrs):
    return {
        "strides": attrs["strides"],
        "dilations": attrs["dilations"],
        "pads": attrs["pads_begin"] + attrs["pads_end"],
        "group": attrs["groups"],
    }


def _store_weights(weights, weights_format):
    """OIX to XIO, and equally IOX to XOI: the leading pair goes last, swapped."""
    return np.moveaxis(weights, (0, 1), (-1, -2)) if weights_format in ("XIO", "XOI") else weights


def _store(src, weights, attrs):
    src = channels_last(src) if attrs["data_format"] == "NXC" else src
    return src, _store_weights(weights, attrs["weights_format"])


def _direct(src, weights, attrs):
    """Convolution of one output element after another, straight from the definition."""
    pads = list(zip(attrs["pads_begin"], attrs["pads_end"], strict=True))
    padded = np.pad(src, [(0, 0), (0, 0), *pads])
    kernel, strides, dilations = weights.shape[2:], attrs["strides"], attrs["dilations"]
    span = [d * (k - 1) + 1 for d, k in zip(dilations, kernel, strict=True)]
    sizes = [(n - s) // t + 1 for n, s, t in zip(padded.shape[2:], span, strides, strict=True)]
    inner, outer = weights.shape[1], weights.shape[0] // attrs["groups"]
    dst = np.zeros((src.shape[0], weights.shape[0], *sizes))
    for n, o, *where in np.ndindex(*dst.shape):
        first = o // outer * inner
        box = [slice(y * t, y * t + s, d) for y, t, s, d in zip(where, strides, span, dilations, strict=True)]
        dst[(n, o, *where)] = np.sum(padded[(n, slice(first, first + inner), *box)] * weights[o])
    return dst


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("formats", FORMATS, ids="-".join)
def test_convolution_equals_its_definition(name, formats):
    src, weights, bias = _operands(CASES[name])
    attrs = _attrs(CASES[name], *formats)
    expected = _direct(src, weights, attrs) + bias.reshape(-1, *[1] * (src.ndim - 2))
    result = run_one("Convolution", *_store(src, weights, attrs), bias, **attrs)
    np.testing.assert_allclose(result, channels_last(expected) if formats[0] == "NXC" else expected, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("no_")])
def test_convolution_agrees_with_onnx(name):
    operands, attrs = _operands(CASES[name]), _attrs(CASES[name])
    np.testing.assert_allclose(
        run_one("Convolution", *operands, **attrs), onnx_run("Conv", operands, **_onnx_attrs(attrs))[0], atol=1e-12
    )


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_convolution_resolves_auto_pad_as_onnx_does(auto_pad):
    operands = _operands(CASES["2d"])
    attrs = _attrs(CASES["2d"], auto_pad=auto_pad)
    expected = onnx_run("Conv", operands, strides=attrs["strides"], auto_pad=auto_pad)[0]
    np.testing.assert_allclose(run_one("Convolution", *operands, **attrs), expected, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("formats", FORMATS, ids="-".join)
@pytest.mark.parametrize("as_input", [True, False])
def test_convolution_gradients_equal_the_numerical_ones(name, formats, as_input):
    attrs = _attrs(CASES[name], *formats)
    src, weights = _store(*_operands(CASES[name])[:2], attrs)
    shape = run_one("Convolution", src, weights, **attrs).shape
    diff_dst = np.random.default_rng(2).normal(size=shape)
    shapes = {"dst_shape": list(src.shape), "weights_shape": list(weights.shape)}
    given = {} if as_input else shapes
    tails = [[np.array(shapes[key], np.int32)] if as_input else [] for key in ("dst_shape", "weights_shape")]
    by_src = run_one("ConvolutionBackwardData", diff_dst, weights, *tails[0], **attrs | given)
    by_weights = run_one("ConvolutionBackwardWeights", src, diff_dst, *tails[1], **attrs | given)
    _assert_linear_gradient(by_src, "Convolution", [src, weights], 0, diff_dst, attrs)
    _assert_linear_gradient(by_weights, "Convolution", [src, weights], 1, diff_dst, attrs)


def _assert_linear_gradient(actual, kind, inputs, wrt, diff_dst, attrs):
    """As `assert_gradient`, on at most ten elements: the operation is linear, so a direction is as good as a unit."""
    assert actual.shape == inputs[wrt].shape
    for index in np.random.default_rng(3).permutation(actual.size)[:10]:
        unit = np.zeros(actual.size)
        unit[index] = 1.0
        moved = [*inputs]
        moved[wrt] = unit.reshape(actual.shape)
        slope = np.sum(diff_dst * run_one(kind, *moved, **attrs))
        assert math.isclose(actual.ravel()[index], slope, rel_tol=1e-9, abs_tol=1e-10)


def test_convolution_gradients_by_central_differences():
    attrs = _attrs(CASES["1d"])
    src, weights, bias = _operands(CASES["1d"])
    diff_dst = np.random.default_rng(2).normal(size=run_one("Convolution", src, weights, **attrs).shape)
    by_src = run_one("ConvolutionBackwardData", diff_dst, weights, np.array(src.shape, np.int32), **attrs)
    by_weights = run_one("ConvolutionBackwardWeights", src, diff_dst, np.array(weights.shape, np.int32), **attrs)
    assert_gradient(by_src, "Convolution", [src, weights, bias], 0, diff_dst, attrs)
    assert_gradient(by_weights, "Convolution", [src, weights, bias], 1, diff_dst, attrs)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
def test_gradients_resolve_auto_pad(auto_pad):
    attrs = _attrs(CASES["1d"], auto_pad=auto_pad)
    src, weights, _ = _operands(CASES["1d"])
    diff_dst = np.random.default_rng(2).normal(size=run_one("Convolution", src, weights, **attrs).shape)
    by_src = run_one("ConvolutionBackwardData", diff_dst, weights, np.array(src.shape), **attrs)
    assert_gradient(by_src, "Convolution", [src, weights], 0, diff_dst, attrs)


TRANSPOSED_FORMATS = [("NCX", "IOX"), ("NXC", "XOI"), ("NXC", "IOX"), ("NCX", "XOI")]


def _output_padding(case):
    return [stride - 1 for stride in case[3]] + [0] * (12 - len(case[3]))


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("no_")])
@pytest.mark.parametrize("formats", TRANSPOSED_FORMATS, ids="-".join)
def test_transposed_convolution_is_the_adjoint_of_convolution(name, formats):
    """The sum of (conv x) y equals the sum of x (conv_transpose y) for the same weights."""
    case = CASES[name]
    attrs = _attrs(case, *formats, output_padding=_output_padding(case))
    y, weights, _ = _operands(case, transposed=True)
    result = run_one("ConvTranspose", *_store(y, weights, attrs), **attrs)
    wide = np.moveaxis(result, -1, 1) if formats[0] == "NXC" else result
    x = np.random.default_rng(3).normal(size=wide.shape)
    forward = _direct(x, weights, attrs)
    assert forward.shape == y.shape
    assert math.isclose(np.sum(x * wide), np.sum(forward * y), rel_tol=1e-9)


@pytest.mark.parametrize("name", ["1d", "2d", "pointwise_strided"])
def test_transposed_convolution_agrees_with_onnx(name):
    case = CASES[name]
    operands = _operands(case, transposed=True)
    attrs = _attrs(case, weights_format="IOX", output_padding=_output_padding(case))
    extra = {"output_padding": attrs["output_padding"][: len(case[1])]}
    expected = onnx_run("ConvTranspose", operands, **_onnx_attrs(attrs), **extra)[0]
    np.testing.assert_allclose(run_one("ConvTranspose", *operands, **attrs), expected, atol=1e-12)


@pytest.mark.parametrize(("data_format", "axis"), [("NCX", 1), ("NXC", -1)])
def test_bias_of_a_grouped_transposed_convolution_goes_by_output_channel(data_format, axis):
    src, weights, bias = _operands(CASES["2d_groups_dilated"], transposed=True)
    attrs = _attrs(CASES["2d_groups_dilated"], data_format, "IOX")
    src, weights = _store(src, weights, attrs)
    added = run_one("ConvTranspose", src, weights, bias, **attrs) - run_one("ConvTranspose", src, weights, **attrs)
    added = np.moveaxis(added, axis, -1)
    np.testing.assert_allclose(added, np.broadcast_to(bias, added.shape), atol=1e-12)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
def test_same_pads_of_a_transposed_convolution_multiply_the_size_by_the_stride(auto_pad):
    src, weights = np.ones((1, 1, 5)), np.array([[[1.0, 2.0, 4.0]]])
    attrs = _attrs(CASES["1d"], weights_format="IOX", auto_pad=auto_pad)
    # Without pads the odd outputs are 2 and the even ones 1 + 4, but for the first (1) and the last (4).
    full = [1, 2, 5, 2, 5, 2, 5, 2, 5, 2, 4]
    expected = full[:-1] if auto_pad == "SAME_UPPER" else full[1:]
    assert run_one("ConvTranspose", src, weights, **attrs)[0, 0].tolist() == expected


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("output_padding", [[0, 0], [0, 1], [1, 2]])
def test_same_pads_of_a_transposed_convolution_absorb_output_padding(auto_pad, output_padding):
    attrs = _attrs(CASES["1d"], weights_format="IOX", auto_pad=auto_pad, output_padding=output_padding)
    attrs |= {"strides": [2, 3], "dilations": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0]}
    assert run_one("ConvTranspose", np.ones((1, 1, 5, 4)), np.ones((1, 1, 3, 3)), **attrs).shape == (1, 1, 10, 12)


@pytest.mark.parametrize("name", ["1d", "2d_groups_dilated", "2d_depthwise", "3d", "no_batch"])
@pytest.mark.parametrize("formats", TRANSPOSED_FORMATS, ids="-".join)
@pytest.mark.parametrize("auto_pad", ["None", "SAME_UPPER", "SAME_LOWER"])
def test_transposed_convolution_gradients(name, formats, auto_pad):
    case = CASES[name]
    attrs = _attrs(case, *formats, auto_pad=auto_pad)
    if auto_pad == "None":
        attrs["output_padding"] = _output_padding(case)
    src, weights = _store(*_operands(case, transposed=True)[:2], attrs)
    diff_dst = np.random.default_rng(2).normal(size=run_one("ConvTranspose", src, weights, **attrs).shape)
    by_src = run_one("ConvTransposeBackwardData", diff_dst, weights, **attrs)
    by_weights = run_one("ConvTransposeBackwardWeights", src, diff_dst, np.array(weights.shape, np.int32), **attrs)
    by_attribute = run_one(
        "ConvTransposeBackwardWeights", src, diff_dst, **attrs | {"weights_shape": [*weights.shape, 0, 0]}
    )
    np.testing.assert_array_equal(by_weights, by_attribute)
    _assert_linear_gradient(by_src, "ConvTranspose", [src, weights], 0, diff_dst, attrs)
    _assert_linear_gradient(by_weights, "ConvTranspose", [src, weights], 1, diff_dst, attrs)


def test_transposed_convolution_gradient_by_central_differences():
    attrs = _attrs(CASES["1d"], weights_format="IOX")
    src, weights, _ = _operands(CASES["1d"], transposed=True)
    diff_dst = np.random.default_rng(2).normal(size=run_one("ConvTranspose", src, weights, **attrs).shape)
    by_src = run_one("ConvTransposeBackwardData", diff_dst, weights, **attrs)
    expected = numeric_gradient("ConvTranspose", [src, weights], 0, diff_dst, attrs)
    np.testing.assert_allclose(by_src, expected, rtol=1e-6, atol=1e-8)


def test_a_window_larger_than_the_input_gives_no_output():
    attrs = _attrs(CASES["1d"])
    assert run_one("Convolution", np.ones((1, 3, 0)), np.ones((4, 3, 3)), **attrs).shape == (1, 4, 0)
