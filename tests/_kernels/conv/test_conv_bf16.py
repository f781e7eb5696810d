"""Convolutions in bf16 against their definition on rounded numbers in float64."""

import ml_dtypes
import numpy as np
import pytest

from graphpool._kernels.conv.bf16 import Bf16ConvFormat
from graphpool._kernels.conv.problem import ConvShape
from graphpool._kernels.core import _dispatch
from graphpool._kernels.gemm.requant import Dynamic
from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, UnsupportedError
from tests.cases.inputs import normal
from tests.helpers.convolutions import (
    CONV_CASES,
    EMPTY,
    arrays,
    convolve_with,
    expected_conv,
    expected_post_ops,
    relu_plus_one,
    shape_of,
    store_weights,
    whole_geometry,
)
from tests.helpers.kernel_runs import run_all, run_checked
from tests.helpers.layouts import lay_out, read_back, strides_of

ISAS = _dispatch.isas()
RTOL = 4e-6
"""Of the sum of the magnitudes of all terms."""


def rounded(array):
    return array.astype(ml_dtypes.bfloat16).astype(np.float32)


def packed(w, layout, dilations, isa):
    """w of shape (group, oc, ic, spatial...) in panels: on guarded memory, odd task splits."""
    weights = Bf16ConvFormat(shape_of(w, dilations), isa=isa)
    memory, strides = store_weights(w, layout)
    panels = run_checked(weights.pack(strides), weights.nbytes // 4, memory, dst_index=1)
    back = run_checked(weights.unpack(strides), memory.size, panels, dst_index=1)
    assert back.tobytes() == rounded(memory).tobytes()
    return panels


def check(
    x, w, *, isa, src_dtype="f32", src_layout="NXC", weights="OIX", bias=False, residual=False, clamp=None,
    epilogue=False, strides=None, begin=None, end=None, dilations=None,
):  # fmt: skip
    """Convolve x (n, c, ...) with w (group, oc, ic, ...) and compare with the definition; returns the call."""
    groups, channels = w.shape[0], w.shape[0] * w.shape[1]
    geometry = whole_geometry(x.ndim - 2, strides, begin, end, dilations)
    near = rounded(x), rounded(w)
    sums, terms = (expected_conv(a, b, groups, *geometry) for a, b in (near, map(abs, near)))
    terms += 8 * (bias + residual)
    expected, operands = expected_post_ops(sums, bias=bias, residual=residual, clamp=clamp, epilogue=epilogue)
    dst_strides = strides_of(expected.shape, "NXC")
    call = convolve_with(
        Bf16ConvFormat, x.shape[0], x.shape[1], channels, x.shape[2:], w.shape[3:], groups=groups, src_dtype=src_dtype,
        src_strides=strides_of(x.shape, src_layout), dst_strides=dst_strides, strides=strides, pads_begin=begin,
        pads_end=end, dilations=dilations, bias=bias, residual_strides=dst_strides if residual else None, clamp=clamp,
        epilogue=relu_plus_one(expected.shape) if epilogue else b"", isa=isa,
    )  # fmt: skip
    source = lay_out(x, src_layout)
    source = source if src_dtype == "f32" else source.astype(ml_dtypes.bfloat16).view(np.uint16)
    inputs = [source, packed(w, weights, dilations, isa), *operands]
    flat = run_checked(call, expected.size, *inputs, dst_index=len(inputs))
    assert (np.abs(read_back(flat, expected.shape, "NXC") - expected) <= RTOL * (terms + epilogue) + 1e-30).all()
    return call


CASES = CONV_CASES | {
    "many_taps": {"x": (1, 300, 7, 7), "w": (1, 64, 300, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "lines_of_whole_tiles": {"x": (2, 32, 9, 13), "w": (1, 20, 32, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "tall": {"x": (1, 16, 70, 9), "w": (1, 40, 16, 3, 3), "begin": (1, 1), "end": (1, 1)},
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("src_dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_geometry(isa, src_dtype, name):
    x, w, options = arrays(CASES[name])
    check(x, w, isa=isa, src_dtype=src_dtype, **options)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("src_dtype", ["f32", "bf16"])
@pytest.mark.parametrize("weights", ["OIX", "XIO", "gap"])
def test_layouts_of_the_source_and_of_weights(isa, src_dtype, weights):
    for name in ("3x3", "few_channels", "grouped"):
        x, w, options = arrays(CASES[name])
        check(x, w, isa=isa, src_dtype=src_dtype, src_layout="NCX", weights=weights, **options)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("epilogue", [False, True])
@pytest.mark.parametrize("clamp", [None, (0, np.inf)])
def test_what_happens_to_sums(isa, epilogue, clamp):
    for name in ("3x3", "1x1", "grouped"):
        x, w, options = arrays(CASES[name])
        check(x, w, isa=isa, bias=True, residual=True, clamp=clamp, epilogue=epilogue, **options)


@pytest.mark.parametrize("isa", ISAS)
def test_an_infinity_stays_in_its_window(isa):
    x, w = normal((1, 3, 6, 6)), normal((1, 8, 3, 3, 3), 1)
    x[0, 0, 0, 0] = np.inf
    call = convolve_with(
        Bf16ConvFormat, 1, 3, 8, (6, 6), (3, 3), src_dtype="f32", src_strides=strides_of(x.shape, "NXC"),
        dst_strides=strides_of((1, 8, 4, 4), "NXC"), isa=isa,
    )  # fmt: skip
    out = np.empty(128, np.float32)
    run_all(call, lay_out(x, "NXC"), packed(w, "OIX", None, isa), out)
    image = read_back(out, (1, 8, 4, 4), "NXC")
    assert np.isinf(image[0, :, 0, 0]).all()
    assert np.isfinite(image).sum() == 8 * 15


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("x", "w"), EMPTY)
def test_zero_sizes(isa, x, w):
    check(normal(x), normal(w), isa=isa, bias=True, begin=(1,), end=(1,))


def test_weights_take_half_the_bytes():
    assert Bf16ConvFormat(ConvShape(64, 64, (3, 3)), isa="generic").nbytes == 64 * 64 * 9 * 2


GOOD = {"batch": 1, "in_channels": 4, "out_channels": 6, "src_spatial": (5, 5), "kernel": (3, 3),
        "src_strides": (100, 1, 20, 4), "dst_strides": (54, 1, 18, 6)}  # fmt: skip


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (InvalidDataTypeError, {"src_dtype": "f16"}),
        (InvalidArgumentError, {"dynamic": Dynamic()}),
        (InvalidArgumentError, {"groups": 3}),
        (InvalidShapeError, {"batch": -1}),
        (InvalidShapeError, {"kernel": (0, 3)}),
        (UnsupportedError, {"dst_strides": (54, 9, 3, 1)}),
        (UnsupportedError, {"residual_strides": (54, 1, 20, 6)}),
        (InvalidShapeError, {"residual_strides": (54, 1)}),
        (InvalidArgumentError, {"clamp": (1, 0)}),
        (UnsupportedError, {"isa": "z80"}),
    ],
)
def test_bad_arguments_raise(error, change):
    with pytest.raises(error):
        convolve_with(Bf16ConvFormat, **(GOOD | change))


def test_bad_strides_of_weights_raise():
    with pytest.raises(InvalidShapeError):
        Bf16ConvFormat(ConvShape(4, 6, (3, 3))).pack((1, 2, 3))
