from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.conv.problem import ConvShape
from graphpool._kernels.conv.winograd import TILES, WinogradFormat, choose_tile
from graphpool._kernels.core import _dispatch
from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError
from tests.cases.inputs import normal
from tests.helpers.convolutions import (
    convolve_with,
    expected_conv,
    expected_post_ops,
    relu_plus_one,
    shape_of,
    store_weights,
)
from tests.helpers.kernel_runs import run_checked
from tests.helpers.layouts import lay_out, read_back, strides_of

ISAS = _dispatch.isas()
RTOL = 2e-6
"""Of the largest sum of the magnitudes of all terms: errors spread within a tile."""


def packed(w, layout, isa, tile):
    """w of shape (oc, ic, 3, 3) transformed and in panels: on guarded memory, odd task splits."""
    memory, strides = store_weights(w[None], layout)
    weights = WinogradFormat(shape_of(w[None]), tile, isa=isa)
    return run_checked(weights.pack(strides), weights.nbytes // 4, memory, dst_index=1)


def check(
    x, oc, *, isa=None, weights="OIX", bias=False, residual=False, clamp=None, epilogue=False, in_place=False,
    begin=(1, 1), end=(1, 1), tile=4, threads=1,
):  # fmt: skip
    """Convolve x (n, c, h, w) with 3x3 kernels and compare with the definition; returns the call."""
    w = normal((oc, x.shape[1], 3, 3), 1)
    ones = (1, 1)
    sums, terms = (expected_conv(a, b[None], 1, ones, begin, end, ones) for a, b in ((x, w), (abs(x), abs(w))))
    expected, operands = expected_post_ops(sums, bias=bias, residual=residual, clamp=clamp, epilogue=epilogue)
    dst_strides = strides_of(expected.shape, "NXC")
    call = convolve_with(
        partial(WinogradFormat, tile=tile), x.shape[0], x.shape[1], oc, x.shape[2:], (3, 3),
        src_strides=strides_of(x.shape, "NXC"), dst_strides=dst_strides,
        pads_begin=begin, pads_end=end, bias=bias, residual_strides=dst_strides if residual else None, clamp=clamp,
        epilogue=relu_plus_one(expected.shape) if epilogue else b"", dst_needs_scratch=not in_place, isa=isa,
        threads=threads,
    )  # fmt: skip
    assert call.kernel.name == {2: "f32_conv_winograd_2x2", 4: "f32_conv_winograd_4x4"}[tile]
    inputs = [lay_out(x, "NXC"), packed(w, weights, isa, tile), *operands]
    flat = run_checked(call, expected.size, *inputs, dst_index=len(inputs))
    allowed = RTOL * (terms.max(initial=0) + 8 * (bias + residual) + epilogue) + 1e-30
    assert (np.abs(read_back(flat, expected.shape, "NXC") - expected) <= allowed).all()
    return call


SHAPES = [
    ((1, 32, 8, 8), 32), ((2, 33, 9, 7), 65), ((1, 5, 4, 4), 3), ((3, 16, 3, 5), 130), ((1, 1, 1, 1), 1),
    ((1, 64, 13, 30), 16), ((2, 7, 2, 21), 17),
]  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("x", "oc"), SHAPES)
def test_equals_the_definition(isa, tile, x, oc):
    check(normal(x), oc, isa=isa, tile=tile)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("x", "oc"), SHAPES[:4])
def test_bias_residual_and_clamp(isa, tile, x, oc):
    check(normal(x), oc, isa=isa, tile=tile, bias=True, residual=True, clamp=(-1.0, 2.0))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("x", "oc"), SHAPES[:4])
def test_epilogue(x, oc, tile, in_place):
    check(normal(x), oc, tile=tile, bias=True, epilogue=True, in_place=in_place)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize("weights", ["XIO", "XOI", "gap"])
def test_weights_may_lie_in_any_format(weights, tile):
    check(normal((1, 20, 6, 6)), 40, weights=weights, tile=tile)


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("begin", "end"), [((0, 0), (0, 0)), ((2, 0), (1, 3)), ((5, 5), (5, 5))])
def test_padding(begin, end, tile):
    check(normal((2, 20, 6, 9)), 24, begin=begin, end=end, tile=tile)


@pytest.mark.parametrize("shape", [(0, 20, 6, 6), (1, 0, 6, 6), (1, 20, 1, 6), (1, 20, 6, 6)])
@pytest.mark.parametrize("oc", [0, 5])
def test_zero_sizes(shape, oc):
    begin = (1, 0) if shape[2] == 1 else (0, 0)
    for tile in TILES:
        check(normal(shape), oc, bias=True, begin=begin, end=(0, 0), tile=tile)


@pytest.mark.parametrize(("threads", "ntasks"), [(1, 2), (16, 12)])
def test_several_blocks_of_tiles_and_channels(threads, ntasks):
    assert check(normal((2, 64, 40, 40)), 200, threads=threads).ntasks >= ntasks


@pytest.mark.parametrize(("tile", "bound"), [(4, 8e-7), (2, 5e-7)])
def test_the_error_is_as_stated(tile, bound):
    """The figures that the docstring states, of the sum of magnitudes, 256 normal channels."""
    x, w = normal((1, 256, 24, 24)), normal((32, 256, 3, 3), 1)
    args = (1, (1, 1), (1, 1), (1, 1), (1, 1))
    expected, terms = expected_conv(x, w[None], *args), expected_conv(abs(x), abs(w[None]), *args)
    call = convolve_with(
        partial(WinogradFormat, tile=tile), 1, 256, 32, (24, 24), (3, 3),
        src_strides=strides_of(x.shape, "NXC"), dst_strides=strides_of((1, 32, 24, 24), "NXC"),
        pads_begin=(1, 1), pads_end=(1, 1),
    )  # fmt: skip
    flat = run_checked(call, expected.size, lay_out(x, "NXC"), packed(w, "OIX", None, tile), dst_index=2)
    assert (np.abs(read_back(flat, expected.shape, "NXC") - expected) < bound * terms).all()


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_geometry(data):
    begin, end = ((data.draw(st.integers(0, 3)), data.draw(st.integers(0, 3))) for _ in range(2))
    size = [data.draw(st.integers(max(3 - b - e, 1), 12)) for b, e in zip(begin, end, strict=True)]
    ic, oc = data.draw(st.sampled_from([1, 5, 16, 33])), data.draw(st.sampled_from([1, 7, 32, 70]))
    flags = {name: data.draw(st.booleans()) for name in ("bias", "residual", "epilogue")}
    isa, flags["tile"] = data.draw(st.sampled_from(ISAS)), data.draw(st.sampled_from(TILES))
    check(normal((data.draw(st.integers(1, 2)), ic, *size)), oc, isa=isa, begin=begin, end=end, **flags)


def test_the_choice_weighs_time_against_bytes():
    assert choose_tile(1, 64, 64, (56, 56)) == 4
    assert choose_tile(1, 256, 256, (14, 14)) == 2
    assert choose_tile(16, 256, 256, (14, 14)) == 4
    assert choose_tile(1, 512, 512, (4, 4)) == 0
    assert choose_tile(1, 16, 64, (56, 56)) == 0
    assert choose_tile(1, 64, 64, (56,)) == 0


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (InvalidArgumentError, {"clamp": (1.0, 0.0)}),
        (InvalidArgumentError, {"tile": 3}),
        (InvalidShapeError, {"pads_begin": (1,)}),
        (InvalidShapeError, {"batch": -1}),
        (InvalidShapeError, {"in_channels": -1}),
        (InvalidShapeError, {"residual_strides": (1, 1)}),
        (UnsupportedError, {"src_strides": (1152, 36, 6, 1)}),
        (UnsupportedError, {"dst_strides": (512, 16, 4, 1)}),
        (UnsupportedError, {"kernel": (3, 5)}),
        (UnsupportedError, {"strides": (1, 2)}),
        (UnsupportedError, {"groups": 2}),
        (UnsupportedError, {"isa": "sse"}),
    ],
)
def test_bad_arguments_raise(error, change):
    good = {
        "batch": 1, "in_channels": 32, "out_channels": 32, "src_spatial": (6, 6), "kernel": (3, 3),
        "src_strides": (1152, 1, 192, 32), "dst_strides": (512, 1, 128, 32),
    }  # fmt: skip
    arguments = good | change
    tile = arguments.pop("tile", 4)
    with pytest.raises(error):
        convolve_with(partial(WinogradFormat, tile=tile), **arguments)


def test_bad_strides_of_weights_raise():
    with pytest.raises(InvalidShapeError, match="strides of weights"):
        WinogradFormat(ConvShape(4, 4, (3, 3))).pack((1, 2, 3))
