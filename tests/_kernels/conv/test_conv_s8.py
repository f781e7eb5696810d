import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.conv.int8 import Int8ConvFormat
from graphpool._kernels.conv.problem import ConvShape
from graphpool._kernels.core import _dispatch
from graphpool._kernels.gemm.requant import Dynamic, Requant, Residual, Rounding
from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, UnsupportedError
from tests.helpers.byte_operands import BYTE_OPERANDS, byte_operands
from tests.helpers.convolutions import (
    CONV_CASES,
    convolve_with,
    expected_conv,
    geometry_of,
    relu_plus_one,
    shape_of,
    store_weights,
    whole_geometry,
)
from tests.helpers.kernel_runs import run_checked
from tests.helpers.layouts import lay_out, read_back, strides_of
from tests.helpers.requant import requantized

ISAS = _dispatch.isas()


def integers(shape, dtype, seed=0):
    limits = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(limits.min, limits.max + 1, shape).astype(dtype)


def packed(w, form="OIX", dilations=None, isa=None):
    """Weights in panels, made on guarded memory with odd task splits."""
    weights = Int8ConvFormat(shape_of(w, dilations), "u8" if w.dtype == np.uint8 else "s8", isa=isa)
    memory, strides = store_weights(w, form)
    panels = run_checked(weights.pack(strides), weights.nbytes, memory, dst_index=1, dtype=np.uint8)
    back = run_checked(weights.unpack(strides), memory.size, panels, dst_index=1, dtype=np.uint8)
    assert back.tobytes() == memory.tobytes()
    return panels


def check(
    x, w, *, zero=0, isa=None, layout="NXC", form="OIX", bias=False, requant=None, epilogue=False,
    dynamic=False, columns=False, strides=None, begin=None, end=None, dilations=None,
):  # fmt: skip
    """Convolve x (n, c, ...) with w (group, oc, ic, ...) and compare, bit for bit, with the definition."""
    groups, ones = w.shape[0], (1,) * (x.ndim - 2)
    geometry = whole_geometry(x.ndim - 2, strides, begin, end, dilations)
    weights = w.astype(np.int64) - (128 if w.dtype == np.uint8 else 0)
    zeros = (np.arange(groups * w.shape[1], dtype=np.int32) * 31 % 201 - 100) * columns
    weights = weights - zeros.reshape(*w.shape[:2], *[1] * (w.ndim - 2))
    sums = expected_conv(x.astype(np.int64) - zero, weights, groups, *geometry)
    channels = groups * w.shape[1]
    rng = np.random.default_rng(5)
    scales = 2.0 ** -rng.integers(6, 14, channels).astype(np.float32)
    along = (1, channels, *ones)
    numbers = rng.integers(-64, 64, channels).astype(np.float32) / 16 if bias else np.zeros(channels, np.float32)
    real = sums.astype(np.float32) * scales.reshape(along) + numbers.reshape(along)
    requant = requant or Requant()
    late, residual, operands = None, None, []
    if requant.late_bias:
        late = rng.integers(-64, 64, channels).astype(np.float32) / 16
        operands.append(late)
    if requant.residual is not None:
        kind = {"u8": np.uint8, "s8": np.int8, "f32": np.float32}[requant.residual.dtype]
        residual = rng.integers(0, 100, real.shape).astype(kind)
        operands.append(lay_out(residual, "NXC"))
    expected = requantized(real, requant, None if late is None else late.reshape(along), residual)
    if epilogue:
        expected = np.maximum(expected, 0) + 1
    dst_strides = strides_of(expected.shape, "NXC")
    call = convolve_with(
        Int8ConvFormat, x.shape[0], x.shape[1], channels, x.shape[2:], w.shape[3:], groups=groups,
        src_strides=strides_of(x.shape, layout), dst_strides=dst_strides,
        src_dtype="u8" if x.dtype == np.uint8 else "s8", zero_point=0 if dynamic else zero, strides=strides,
        pads_begin=begin, pads_end=end, dynamic=Dynamic(dynamic, dynamic, columns), dilations=dilations, bias=bias,
        requant=None if epilogue else requant, residual_strides=dst_strides if residual is not None else None,
        epilogue=relu_plus_one(expected.shape) if epilogue else b"", isa=isa,
    )  # fmt: skip
    given = [np.array([0.5], np.float32), np.array([zero], x.dtype)] if dynamic else []
    own = [scales * 2 if dynamic else scales, *given, *([zeros] if columns else [])]
    inputs = [lay_out(x, layout), packed(w, form, dilations, isa), *own, *([numbers] if bias else []), *operands]
    flat = run_checked(call, expected.size, *inputs, dst_index=len(inputs), dtype=expected.dtype)
    np.testing.assert_array_equal(read_back(flat, expected.shape, "NXC"), expected)
    return call


CASES = CONV_CASES | {
    "depthwise": {"x": (1, 21, 9, 9), "w": (21, 1, 1, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "1x1_grouped": {"x": (2, 24, 5, 7), "w": (3, 33, 8, 1, 1)},
    "many_pixels": {"x": (1, 8, 30, 31), "w": (1, 20, 8, 1, 1)},
    "many_rows": {"x": (1, 5, 40, 30), "w": (1, 20, 5, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "lines_of_whole_tiles": {"x": (2, 64, 9, 13), "w": (1, 20, 64, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "strided_lines": {"x": (1, 64, 9, 27), "w": (1, 20, 64, 3, 3), "begin": (1, 1), "end": (1, 1), "strides": (2, 2)},
    "wide_strided_lines": {"x": (1, 64, 5, 57), "w": (1, 20, 64, 1, 1), "strides": (2, 2)},
    "rows_of_whole_tiles": {"x": (2, 128, 7, 9), "w": (1, 20, 128, 1, 1)},
    "wide": {"x": (1, 3, 2, 700), "w": (1, 9, 3, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "gathered": {"x": (2, 3, 21, 30), "w": (1, 40, 3, 7, 7), "begin": (3, 3), "end": (3, 3), "strides": (2, 2)},
    "gathered_groups": {"x": (1, 10, 9, 13), "w": (2, 33, 5, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "gathered_taps": {"x": (1, 5, 14, 17), "w": (1, 36, 5, 3, 3), "dilations": (2, 2)},
    "gathered_planes": {"x": (1, 2, 5, 9, 11), "w": (1, 32, 2, 3, 3, 3), "begin": (1, 1, 1), "end": (1, 1, 1)},
    "shifted_pixels": {"x": (2, 44, 5, 7), "w": (1, 40, 44, 1, 1)},
    "shifted_line": {"x": (1, 12, 50), "w": (1, 33, 12, 5), "begin": (2,), "end": (2,)},
}

PREPARED = [case for case in CASES if case.startswith(("gathered", "shifted"))]
"""Of which words come to scratch where bytes are multiplied pair by pair."""


def arrays(case, x_dtype=np.uint8, w_dtype=np.int8):
    return integers(case["x"], x_dtype), integers(case["w"], w_dtype, 1), geometry_of(case)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", ["3x3", "all_padding", "1x1", "grouped", *PREPARED])
@pytest.mark.parametrize(("dtype", "zero"), [(np.uint8, 200), (np.uint8, 3), (np.int8, -7)])
def test_numbers_of_the_image_may_be_arguments(isa, case, dtype, zero):
    x, w, geometry = arrays(CASES[case], dtype)
    check(x, w, zero=zero, isa=isa, bias=True, dynamic=True, **geometry)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dynamic", [False, True])
def test_zero_points_of_weights(isa, case, dynamic):
    x, w, geometry = arrays(CASES[case])
    check(x, w, zero=113, isa=isa, bias=True, dynamic=dynamic, columns=True, **geometry)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_definition(isa, case):
    x, w, geometry = arrays(CASES[case])
    check(x, w, isa=isa, zero=113, **geometry)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", ["3x3", "1x1", "grouped", "few_channels", *PREPARED])
@pytest.mark.parametrize("zero", [-128, -7, 127])
def test_signed_images_and_unsigned_weights(isa, case, zero):
    x, w, geometry = arrays(CASES[case], np.int8, np.uint8)
    check(x, w, isa=isa, zero=zero, **geometry)


U8, S8 = Rounding("u8", 0.25, 7, rounds_first=True), Rounding("s8", 0.125, -3, clamp=(0.0, math.inf))
REQUANTS = {
    "u8": Requant(outer=U8),
    "s8_relu": Requant(outer=S8),
    "residual": Requant(inner=S8, residual=Residual("u8", 0.5, 20), outer=U8),
    "large_residual": Requant(inner=S8, residual=Residual("u8", 1e9, 20), outer=U8),
    "small_residual": Requant(inner=U8, residual=Residual("s8", 0.5, 20), outer=Rounding("s8", 0.5, -3, True)),
    "limited_residual": Requant(
        inner=U8, residual=Residual("u8", 0.5, 20), outer=Rounding("u8", 0.5, 3, True, clamp=(-1.0, 6.0))
    ),
    "f32_residual": Requant(residual=Residual("f32"), outer=S8),
    "back": Requant(inner=U8, residual=Residual("u8", 0.5, 9), outer=S8, is_real=True),
    "late_bias": Requant(inner=U8, late_bias=True, residual=Residual("s8", 0.25, -20), clamp=(-2.0, 3.0)),
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", ["3x3", "1x1", "grouped", "1x1_strided", "pixel", "wide", "lines_of_whole_tiles"])
@pytest.mark.parametrize("requant", REQUANTS)
def test_bias_and_requantisation(isa, case, requant):
    x, w, geometry = arrays(CASES[case])
    check(x, w, isa=isa, zero=9, bias=True, requant=REQUANTS[requant], **geometry)


@pytest.mark.parametrize("case", ["3x3", "grouped", "1x1", "few_channels", "wide"])
def test_epilogue(case):
    x, w, geometry = arrays(CASES[case])
    check(x, w, zero=3, bias=True, epilogue=True, **geometry)


@pytest.mark.parametrize("form", ["XIO", "XOI"])
@pytest.mark.parametrize("case", ["3x3", "grouped", "dilated", "3d"])
def test_weights_may_lie_in_any_format(case, form):
    x, w, geometry = arrays(CASES[case])
    check(x, w, form=form, **geometry)


@pytest.mark.parametrize("layout", ["NCX", "NCX_gap"])
@pytest.mark.parametrize("case", ["3x3", "1x1", "few_channels", "grouped", "3d"])
def test_images_may_lie_by_any_strides(case, layout):
    x, w, geometry = arrays(CASES[case])
    check(x, w, layout=layout, zero=200, **geometry)


@pytest.mark.parametrize("isa", ISAS)
def test_the_largest_operands_do_not_saturate(isa):
    x, w = np.full((1, 2**15, 1, 2), 255, np.uint8), np.full((1, 20, 2**15, 1, 1), -128, np.int8)
    check(x, w, isa=isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", BYTE_OPERANDS)
@pytest.mark.parametrize(("channels", "size", "kernel"), [(64, 7, 3), (36, 5, 1), (3, 12, 7), (10, 4, 2)])
@pytest.mark.parametrize("zero", [3, 128])
def test_sums_that_leave_16_bits_are_exact(isa, kind, channels, size, kernel, zero):
    x, w = byte_operands(kind, (1, size, size, channels), (1, 37, kernel, kernel, channels))
    pad = (kernel // 2, kernel // 2)
    check(np.moveaxis(x, 3, 1), np.moveaxis(w, 4, 2), isa=isa, zero=zero, begin=pad, end=pad)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_geometry(data):
    ndim = data.draw(st.integers(1, 3))
    groups, ic, oc = (data.draw(st.integers(1, top)) for top in (3, 9, 40))

    def axes(least, most):
        return tuple(data.draw(st.integers(least, most)) for _ in range(ndim))

    kernel, strides, dilations, begin, end = axes(1, 3), axes(1, 3), axes(1, 2), axes(0, 2), axes(0, 2)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    spatial = tuple(max(r - b - e, 1) + n for r, b, e, n in zip(reach, begin, end, axes(0, 9), strict=True))
    x_dtype, w_dtype = (data.draw(st.sampled_from([np.uint8, np.int8])) for _ in range(2))
    x = integers((data.draw(st.integers(1, 3)), groups * ic, *spatial), x_dtype)
    w = integers((groups, oc, ic, *kernel), w_dtype, 1)
    zero = data.draw(st.integers(*((0, 255) if x_dtype is np.uint8 else (-128, 127))))
    requant = REQUANTS[data.draw(st.sampled_from(sorted(REQUANTS)))]
    check(x, w, zero=zero, strides=strides, dilations=dilations, begin=begin, end=end, bias=True, requant=requant)


GEOMETRY = {"src_strides": (64, 1, 16, 4), "dst_strides": (128, 1, 32, 8)}


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (InvalidShapeError, {"batch": -1}),
        (InvalidShapeError, {"residual_strides": (1, 2)}),
        (InvalidArgumentError, {"groups": 3}),
        (InvalidArgumentError, {"zero_point": 256}),
        (InvalidArgumentError, {"src_dtype": "s8", "zero_point": 128}),
        (InvalidArgumentError, {"requant": Requant(outer=Rounding("u8", 0.0))}),
        (InvalidArgumentError, {"requant": Requant(outer=Rounding("u8", 1.0, 256))}),
        (InvalidArgumentError, {"requant": Requant(clamp=(1.0, 0.0))}),
        (InvalidArgumentError, {"requant": Requant(), "epilogue": b"program"}),
        (InvalidDataTypeError, {"src_dtype": "f32"}),
        (InvalidDataTypeError, {"requant": Requant(outer=Rounding("s32", 1.0))}),
        (InvalidDataTypeError, {"requant": Requant(residual=Residual("bf16"))}),
        (UnsupportedError, {"dst_strides": (128, 16, 4, 1)}),
        (UnsupportedError, {"isa": "sse"}),
    ],
)
def test_bad_arguments_raise(error, change):
    arguments = {
        "batch": 1, "in_channels": 4, "out_channels": 8, "src_spatial": (4, 4), "kernel": (1, 1), "src_dtype": "u8",
    }  # fmt: skip
    with pytest.raises(error):
        convolve_with(Int8ConvFormat, **(arguments | GEOMETRY | change))


def test_sums_that_s32_might_not_hold_are_refused():
    with pytest.raises(UnsupportedError, match="terms"):
        convolve_with(Int8ConvFormat, 1, 2**15 + 1, 8, (4, 4), (1, 1), src_dtype="u8", **GEOMETRY)


def test_weights_of_other_types_are_refused():
    with pytest.raises(InvalidDataTypeError, match="type of weights"):
        Int8ConvFormat(ConvShape(4, 4, (3, 3)), "s4")
