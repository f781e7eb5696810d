import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.conv.packed import F32ConvFormat, has_lines, is_staged
from graphpool._kernels.conv.problem import ConvShape
from graphpool._kernels.core import _dispatch
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from graphpool._kernels.gemm.requant import Requant
from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError
from tests.cases.inputs import normal
from tests.helpers.convolutions import (
    CONV_CASES,
    EMPTY,
    arrays,
    convolve,
    convolve_with,
    expected_conv,
    expected_post_ops,
    relu_plus_one,
    shape_of,
    store_weights,
    whole_geometry,
)
from tests.helpers.kernel_runs import run_checked
from tests.helpers.layouts import lay_out, read_back, strides_of

ISAS = _dispatch.isas()
RTOL = 2e-6
"""Of the sum of the magnitudes of all terms."""


def packed(w, layout, dilations, isa):
    """w of shape (group, oc, ic, spatial...) in panels: on guarded memory, odd task splits."""
    weights = F32ConvFormat(shape_of(w, dilations), isa=isa)
    memory, strides = store_weights(w, layout)
    panels = run_checked(weights.pack(strides), weights.nbytes // 4, memory, dst_index=1)
    assert not np.isnan(panels).any()
    back = run_checked(weights.unpack(strides), memory.size, panels, dst_index=1)
    assert back.tobytes() == memory.tobytes()
    return panels


def check(
    x, w, *, isa=None, src_layout="NXC", weights="OIX", bias=False, residual=False, clamp=None, epilogue=False,
    in_place=False, strides=None, begin=None, end=None, dilations=None, plain=False, scale=False,
):  # fmt: skip
    """Convolve x (n, c, ...) with w (group, oc, ic, ...) and compare with the definition; returns the call.

    plain: the kernel gets the weights as they lie; scale: which it multiplies by a number for each channel.
    """
    groups, channels = w.shape[0], w.shape[0] * w.shape[1]
    scales = normal(channels, 4)
    memory, weights_strides = store_weights(w, weights)
    w = w * scales.reshape(groups, -1, *(1,) * (w.ndim - 2)) if scale else w
    geometry = whole_geometry(x.ndim - 2, strides, begin, end, dilations)
    sums, terms = (expected_conv(a, b, groups, *geometry) for a, b in ((x, w), (abs(x), abs(w))))
    terms += 8 * (bias + residual)
    expected, operands = expected_post_ops(sums, bias=bias, residual=residual, clamp=clamp, epilogue=epilogue)
    operands = [scales, *operands] if scale else operands
    dst_strides = strides_of(expected.shape, "NXC")

    def build(problem, post_ops):
        packs = F32ConvFormat(problem.shape, isa=isa)
        if plain:
            return packs.unpacked_convolution(problem, weights_strides, post_ops, scale=scale)
        return packs.convolution(problem, post_ops)

    call = convolve(
        build, x.shape[0], x.shape[1], channels, x.shape[2:], w.shape[3:], groups=groups,
        src_strides=strides_of(x.shape, src_layout), dst_strides=dst_strides, strides=strides, pads_begin=begin,
        pads_end=end, dilations=dilations, bias=bias, residual_strides=dst_strides if residual else None, clamp=clamp,
        epilogue=relu_plus_one(expected.shape) if epilogue else b"", dst_needs_scratch=not in_place,
    )  # fmt: skip
    inputs = [lay_out(x, src_layout), memory if plain else packed(w, weights, dilations, isa), *operands]
    assert call.kernel.name == ("f32_conv_plain" if plain else "f32_conv_packed")
    flat = run_checked(call, expected.size, *inputs, dst_index=len(inputs))
    assert (np.abs(read_back(flat, expected.shape, "NXC") - expected) <= RTOL * (terms + epilogue) + 1e-30).all()
    return call


CASES = CONV_CASES | {
    "many_taps": {"x": (1, 600, 7, 7), "w": (1, 64, 600, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "few_channels_3d": {
        "x": (2, 3, 5, 6, 7),
        "w": (1, 17, 3, 3, 3, 3),
        "strides": (2, 1, 2),
        "begin": (1, 0, 1),
        "end": (1, 2, 1),
        "dilations": (1, 2, 1),
    },
    "few_channels_3d_wide": {"x": (2, 1, 3, 4, 450), "w": (1, 5, 1, 2, 2, 3), "begin": (0, 1, 1), "end": (1, 0, 1)},
    "few_channels_a_group": {"x": (2, 12, 6, 40), "w": (4, 17, 3, 3, 3), "begin": (1, 1), "end": (1, 1)},
}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES)
def test_equals_the_definition(isa, case):
    x, w, geometry = arrays(CASES[case])
    check(x, w, isa=isa, **geometry)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("channels", "kernel"), [(1000, (3, 3)), (100, (7, 7))])
def test_long_sums_are_made_of_chains(isa, channels, kernel):
    """One chain would lose the last bit of each term behind 4096."""
    w = np.full((1, 20, channels, *kernel), 1 + 2.0**-12, np.float32)
    check(np.ones((1, channels, 9, 9), np.float32), w, isa=isa)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("weights", ["OIX", "XIO", "XOI", "gap"])
@pytest.mark.parametrize("case", CASES)
def test_plain_weights_give_the_same(isa, case, weights):
    x, w, geometry = arrays(CASES[case])
    check(x, w, isa=isa, weights=weights, plain=True, **geometry)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES)
def test_plain_weights_are_scaled(isa, case):
    x, w, geometry = arrays(CASES[case])
    check(x, w, isa=isa, plain=True, scale=True, bias=True, clamp=(-2.0, 2.0), **geometry)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", ["3x3", "1x1", "grouped", "few_channels", "few_channels_wide"])
def test_bias_residual_and_clamp(isa, case):
    x, w, geometry = arrays(CASES[case])
    check(x, w, isa=isa, bias=True, residual=True, clamp=(-1.0, 2.0), **geometry)
    check(x, w, isa=isa, bias=True, clamp=(0.0, np.inf), **geometry)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("case", ["3x3", "grouped", "few_channels", "many_taps"])
def test_epilogue(case, in_place):
    x, w, geometry = arrays(CASES[case])
    check(x, w, bias=True, epilogue=True, in_place=in_place, **geometry)


@pytest.mark.parametrize("weights", ["XIO", "XOI", "gap"])
@pytest.mark.parametrize("case", ["3x3", "grouped", "few_channels", "few_channels_dilated", "3d"])
def test_weights_may_lie_in_any_format(case, weights):
    x, w, geometry = arrays(CASES[case])
    check(x, w, weights=weights, **geometry)


@pytest.mark.parametrize("layout", ["NCX", "NCX_gap"])
@pytest.mark.parametrize("case", ["few_channels", "few_channels_1d", "few_channels_a_group"])
def test_few_channels_may_lie_by_any_strides(case, layout):
    x, w, geometry = arrays(CASES[case])
    check(x, w, src_layout=layout, **geometry)


def test_images_with_gaps_between_them_are_runs_of_their_own():
    x, w = normal((3, 20, 4, 5)), normal((1, 24, 20, 3, 3), 1)
    expected = expected_conv(x, w, 1, (1, 1), (1, 1), (1, 1), (1, 1))
    call = convolve_with(
        F32ConvFormat, 3, 20, 24, (4, 5), (3, 3),
        src_strides=strides_of(x.shape, "NXC"), dst_strides=(1000, 1, 150, 30),
        pads_begin=(1, 1), pads_end=(1, 1),
    )  # fmt: skip
    flat = run_checked(call, 3000, lay_out(x, "NXC"), packed(w, "OIX", None, None), dst_index=2)
    cells = flat.reshape(3, 1000)[:, :600].reshape(3, 4, 5, 30)
    np.testing.assert_allclose(cells[..., :24].transpose(0, 3, 1, 2), expected, rtol=1e-4, atol=1e-4)
    assert np.isnan(cells[..., 24:]).all()
    assert np.isnan(flat.reshape(3, 1000)[:, 600:]).all()


LINES = {
    "every second pixel": {"x": (2, 20, 9, 7), "w": (1, 37, 20, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "long lines": {"x": (1, 17, 2, 130), "w": (2, 33, 17, 1, 3)},
    "short lines": {"x": (1, 40, 30, 2), "w": (1, 130, 40, 1, 1)},
    "taps in parts": {"x": (1, 600, 9, 7), "w": (1, 64, 600, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "few channels": {"x": (2, 3, 11, 13), "w": (1, 40, 3, 3, 3)},
    "3d": {"x": (1, 18, 3, 4, 5), "w": (1, 20, 18, 2, 2, 2)},
}  # fmt: skip


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", LINES)
@pytest.mark.parametrize("epilogue", [False, True])
def test_results_may_lie_in_lines_with_gaps(isa, case, epilogue):
    """Every second pixel of every axis of an image whose pixels have three more channels."""
    x, w, geometry = arrays(LINES[case])
    if w.shape[0] > 1:
        x = np.concatenate([x] * w.shape[0], axis=1)
    ndim = x.ndim - 2
    ones, zeros = (1,) * ndim, (0,) * ndim
    begin, end = geometry.get("begin", zeros), geometry.get("end", zeros)
    expected = expected_conv(x, w, w.shape[0], ones, begin, end, ones)
    bias, other = normal(expected.shape[1], 2), normal(expected.shape, 3)
    expected = np.clip(expected + bias.reshape(1, -1, *ones) + other, -1, 2)
    wide = (expected.shape[0], *(2 * n for n in expected.shape[2:]), expected.shape[1] + 3)
    steps = strides_of((wide[0], wide[-1], *wide[1:-1]), "NXC")
    steps = (*steps[:2], *(2 * s for s in steps[2:]))
    builder = EltwiseBuilder((expected.shape[0], *expected.shape[2:], expected.shape[1]))
    builder.store(0, "f32", (steps[0], *steps[2:], 1), builder.unary("relu", builder.acc()))
    call = convolve_with(
        F32ConvFormat, x.shape[0], x.shape[1], expected.shape[1], x.shape[2:], w.shape[3:], groups=w.shape[0],
        src_strides=strides_of(x.shape, "NXC"), dst_strides=steps, pads_begin=begin, pads_end=end, bias=True,
        residual_strides=strides_of(expected.shape, "NXC"), clamp=(-1.0, 2.0),
        epilogue=builder.epilogue() if epilogue else b"", dst_needs_scratch=False, isa=isa,
    )  # fmt: skip
    inputs = [lay_out(x, "NXC"), packed(w, "OIX", None, isa), bias, lay_out(other, "NXC")]
    cells = run_checked(call, int(np.prod(wide)), *inputs, dst_index=4).reshape(wide)
    inside = cells[(slice(None), *(slice(None, None, 2),) * ndim, slice(expected.shape[1]))].copy()
    expected = np.moveaxis(np.maximum(expected, 0) if epilogue else expected, 1, -1)
    np.testing.assert_allclose(inside, expected, rtol=1e-4, atol=3e-4)
    cells[(slice(None), *(slice(None, None, 2),) * ndim, slice(expected.shape[-1]))] = np.nan
    assert np.isnan(cells).all()


def test_results_in_lines_of_lines_of_lines_are_refused():
    steps = (10**6, 1, 10**5, 10**3, 64)
    assert not has_lines(2, (3, 3, 3), steps, stage=False)
    assert has_lines(1, (3, 3, 3), steps, stage=False)
    assert has_lines(1, (3, 3, 3), steps, stage=True)
    assert not has_lines(1, (3, 3, 500), steps, stage=True)
    with pytest.raises(UnsupportedError, match="lines"):
        convolve_with(
            F32ConvFormat, 2, 32, 32, (3, 3, 3), (1, 1, 1), src_strides=strides_of((2, 32, 3, 3, 3), "NXC"),
            dst_strides=steps,
        )  # fmt: skip


@pytest.mark.parametrize(("x", "w"), EMPTY)
def test_zero_sizes(x, w):
    check(normal(x), normal(w), bias=True, begin=(1,), end=(1,))


@settings(max_examples=120, deadline=None)
@given(data=st.data())
def test_random_geometry(data):
    ndim = data.draw(st.integers(1, 3))
    draw = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(ndim))  # noqa: E731
    groups, batch = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    ic, oc = data.draw(st.sampled_from([1, 3, 17, 20])), data.draw(st.sampled_from([1, 4, 33, 64]))
    src, kernel, strides, dilations, begin, end = draw(1, 7), draw(1, 3), draw(1, 3), draw(1, 3), draw(0, 2), draw(0, 2)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    if min(n + b + e - r for n, r, b, e in zip(src, reach, begin, end, strict=True)) < 0:
        src = tuple(max(n, r) for n, r in zip(src, reach, strict=True))
    flags = {name: data.draw(st.booleans()) for name in ("bias", "residual", "epilogue", "plain")}
    check(
        normal((batch, groups * ic, *src)), normal((groups, oc, ic, *kernel), 1), isa=data.draw(st.sampled_from(ISAS)),
        strides=strides, begin=begin, end=end, dilations=dilations,
        src_layout="NCX" if is_staged(groups * ic, kernel, dilations, groups) else "NXC",
        weights=data.draw(st.sampled_from(["OIX", "XIO", "XOI", "gap"])), **flags,
    )  # fmt: skip


def test_not_a_number_passes_the_clamp_and_stays_in_its_window():
    x = normal((1, 20, 5, 5))
    x[0, 0, 0, 0] = np.nan
    w = normal((1, 16, 20, 3, 3), 1)
    call = convolve_with(
        F32ConvFormat, 1, 20, 16, (5, 5), (3, 3), src_strides=strides_of(x.shape, "NXC"), dst_strides=(400, 1, 80, 16),
        pads_begin=(1, 1), pads_end=(1, 1), clamp=(0, np.inf),
    )  # fmt: skip
    out = run_checked(call, 400, lay_out(x, "NXC"), packed(w, "OIX", None, None), dst_index=2).reshape(5, 5, 16)
    assert np.isnan(out[:2, :2]).all()
    assert not np.isnan(out[2:]).any()


@pytest.mark.parametrize(("kernel", "dilations"), [((7, 1), None), ((3, 3), (1, 2)), ((3,), (40,))])
def test_taps_that_lie_apart_stage_no_source(kernel, dilations):
    assert not F32ConvFormat(ConvShape(12, 12, kernel, 1, dilations)).is_staged


def test_whole_vectors_of_channels_take_the_bytes_of_the_weights():
    wide, few = F32ConvFormat(ConvShape(64, 64, (3, 3))), F32ConvFormat(ConvShape(3, 64, (3, 3)))
    assert few.is_staged
    assert not wide.is_staged
    assert wide.nbytes == 9 * 64 * 64 * 4
    assert few.nbytes == 9 * 3 * 64 * 4


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (InvalidArgumentError, {"groups": 3}),
        (InvalidArgumentError, {"groups": 0}),
        (InvalidArgumentError, {"clamp": (1.0, 0.0)}),
        (InvalidArgumentError, {"requant": Requant()}),
        (InvalidShapeError, {"kernel": (3,)}),
        (InvalidShapeError, {"kernel": (0, 3)}),
        (InvalidShapeError, {"strides": (0, 1)}),
        (InvalidShapeError, {"pads_end": (1,)}),
        (InvalidShapeError, {"batch": -1}),
        (InvalidShapeError, {"in_channels": -4}),
        (InvalidShapeError, {"residual_strides": (1, 1)}),
        (UnsupportedError, {"isa": "sse"}),
        (UnsupportedError, {"src_strides": (1152, 36, 6, 1)}),
        (UnsupportedError, {"dst_strides": (512, 16, 4, 1)}),
    ],
)
def test_bad_arguments_raise(error, change):
    good = {
        "batch": 1, "in_channels": 32, "out_channels": 32, "src_spatial": (6, 6), "kernel": (3, 3),
        "src_strides": (1152, 1, 192, 32), "dst_strides": (512, 1, 128, 32),
    }  # fmt: skip
    with pytest.raises(error):
        convolve_with(F32ConvFormat, **(good | change))


def test_bad_strides_of_weights_raise():
    with pytest.raises(InvalidShapeError, match="strides of weights"):
        F32ConvFormat(ConvShape(4, 4, (3, 3))).pack((1, 2, 3))
