import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.conv.depthwise import DepthwiseFormat
from graphpool._kernels.conv.problem import ConvShape
from graphpool._kernels.core import _dispatch
from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError
from tests.cases.inputs import normal
from tests.helpers.convolutions import (
    convolve_with,
    expected_conv,
    expected_post_ops,
    relu_plus_one,
    store_weights,
    whole_geometry,
)
from tests.helpers.kernel_runs import run_checked
from tests.helpers.layouts import lay_out, read_back, strides_of

ISAS = _dispatch.isas()
RTOL = 2e-6
"""Of the sum of the magnitudes of all terms."""

CASES = {
    "3x3": {"x": (2, 70, 9, 8), "k": (3, 3), "begin": (1, 1), "end": (1, 1)},
    "wide": {"x": (1, 33, 4, 40), "k": (3, 3), "begin": (1, 1), "end": (1, 1)},
    "7x7": {"x": (1, 18, 9, 37), "k": (7, 7), "begin": (3, 3), "end": (3, 3)},
    "strided_by_2": {"x": (1, 20, 9, 45), "k": (3, 5), "strides": (2, 2), "begin": (1, 2), "end": (1, 2)},
    "strided": {"x": (1, 17, 12, 35), "k": (5, 3), "strides": (2, 3), "begin": (2, 0), "end": (1, 2)},
    "dilated": {"x": (1, 20, 13, 40), "k": (3, 2), "dilations": (2, 3), "begin": (2, 1), "end": (2, 1)},
    "1d": {"x": (2, 3, 11), "k": (3,), "begin": (1,), "end": (1,)},
    "3d": {"x": (1, 5, 5, 6, 7), "k": (2, 3, 3), "begin": (0, 1, 1), "end": (1, 1, 0)},
    "many_channels": {"x": (1, 1100, 3, 3), "k": (3, 3), "begin": (1, 1), "end": (1, 1)},
    "all_padding": {"x": (1, 9, 2, 2), "k": (2, 2), "begin": (4, 4), "end": (4, 4)},
    "one": {"x": (1, 1, 6, 6), "k": (3, 3)},
}


def check(
    x, k, *, isa=None, weights="OIX", bias=False, residual=False, clamp=None, epilogue=False, in_place=False,
    strides=None, begin=None, end=None, dilations=None, width=1, results=None,
):  # fmt: skip
    """Convolve each group of `width` channels of x (n, c, ...) with kernels of its own; compare with the definition.

    `results` channels come of each group, by default as many as it has.
    """
    channels, groups, results = x.shape[1], max(x.shape[1] // width, 1), results or width
    w = normal((x.shape[1] // width, results, width, *k), 1)
    geometry = whole_geometry(x.ndim - 2, strides, begin, end, dilations)
    sums, terms = (expected_conv(a, b, len(w), *geometry) for a, b in ((x, w), (abs(x), abs(w))))
    memory, w_strides = store_weights(w, weights)
    weights_format = DepthwiseFormat(ConvShape(channels, len(w) * results, k, groups), isa=isa)
    packed = run_checked(weights_format.pack(w_strides), w.size, memory, dst_index=1)
    expected, operands = expected_post_ops(sums, bias=bias, residual=residual, clamp=clamp, epilogue=epilogue)
    dst_strides = strides_of(expected.shape, "NXC")
    call = convolve_with(
        DepthwiseFormat, x.shape[0], channels, len(w) * results, x.shape[2:], k, groups=groups,
        src_strides=strides_of(x.shape, "NXC"), dst_strides=dst_strides,
        strides=strides, pads_begin=begin, pads_end=end, dilations=dilations, bias=bias, clamp=clamp,
        residual_strides=dst_strides if residual else None, isa=isa, dst_needs_scratch=not in_place,
        epilogue=relu_plus_one(expected.shape) if epilogue else b"",
    )  # fmt: skip
    inputs = [lay_out(x, "NXC"), packed, *operands]
    flat = run_checked(call, expected.size, *inputs, dst_index=len(inputs))
    allowed = RTOL * (terms + 8 * (bias + residual) + epilogue) + 1e-30
    assert (np.abs(read_back(flat, expected.shape, "NXC") - expected) <= allowed).all()


def geometry_of(case):
    return {key: case[key] for key in case if key not in ("x", "k")}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_equals_the_definition(isa, case):
    check(normal(case["x"]), case["k"], isa=isa, **geometry_of(case))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_groups_of_several_channels_equal_the_definition(isa, width, case):
    batch, channels, *spatial = case["x"]
    x = normal((batch, -(-channels // width) * width, *spatial))
    check(x, case["k"], isa=isa, width=width, bias=True, **geometry_of(case))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("widths", [(1, 2), (1, 3), (1, 5), (1, 7), (1, 16), (2, 4), (2, 8), (4, 8)])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_several_results_of_a_group_equal_the_definition(isa, widths, case):
    batch, channels, *spatial = case["x"]
    width, results = widths
    x = normal((batch, -(-channels // width) * width, *spatial))
    check(x, case["k"], isa=isa, width=width, results=results, bias=True, **geometry_of(case))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", ["3x3", "strided", "many_channels"])
def test_bias_residual_and_clamp(isa, name):
    case = CASES[name]
    check(normal(case["x"]), case["k"], isa=isa, bias=True, residual=True, clamp=(-1.0, 2.0), **geometry_of(case))


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", ["3x3", "many_channels", "3d"])
def test_epilogue(name, in_place):
    case = CASES[name]
    check(normal(case["x"]), case["k"], bias=True, epilogue=True, in_place=in_place, **geometry_of(case))


@pytest.mark.parametrize("weights", ["XIO", "gap"])
@pytest.mark.parametrize("name", ["3x3", "1d", "3d"])
def test_weights_may_lie_in_any_format(name, weights):
    case = CASES[name]
    check(normal(case["x"]), case["k"], weights=weights, **geometry_of(case))


@pytest.mark.parametrize("x", [(0, 4, 5), (2, 0, 5), (2, 4, 0), (2, 4, 1)])
def test_zero_sizes(x):
    check(normal(x), (3,), begin=(1,), end=(1,))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_geometry(data):
    ndim = data.draw(st.integers(1, 3))
    draw = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(ndim))  # noqa: E731
    src, kernel, strides, dilations, begin, end = draw(1, 9), draw(1, 3), draw(1, 3), draw(1, 3), draw(0, 2), draw(0, 2)
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    if min(n + b + e - r for n, r, b, e in zip(src, reach, begin, end, strict=True)) < 0:
        src = tuple(max(n, r) for n, r in zip(src, reach, strict=True))
    width, results = data.draw(st.sampled_from([(1, 1), (1, 2), (1, 3), (2, 2), (2, 8), (4, 4), (8, 8)]))
    channels, batch = width * data.draw(st.sampled_from([1, 5, 16, 33, 70])), data.draw(st.integers(1, 2))
    flags = {name: data.draw(st.booleans()) for name in ("bias", "residual", "epilogue")}
    check(
        normal((batch, channels, *src)), kernel, isa=data.draw(st.sampled_from(ISAS)), strides=strides, begin=begin,
        end=end, dilations=dilations, width=width, results=results, **flags,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (InvalidArgumentError, {"clamp": (1.0, 0.0)}),
        (InvalidShapeError, {"kernel": (3,)}),
        (InvalidShapeError, {"strides": (0, 1)}),
        (InvalidShapeError, {"in_channels": -1}),
        (InvalidShapeError, {"residual_strides": (1, 1)}),
        (UnsupportedError, {"src_strides": (1152, 36, 6, 1)}),
        (UnsupportedError, {"dst_strides": (512, 16, 4, 1)}),
    ],
)
def test_bad_arguments_raise(error, change):
    good = {
        "batch": 1, "in_channels": 32, "out_channels": 32, "groups": 32, "src_spatial": (6, 6), "kernel": (3, 3),
        "src_strides": (1152, 1, 192, 32), "dst_strides": (512, 1, 128, 32),
    }  # fmt: skip
    with pytest.raises(error):
        convolve_with(DepthwiseFormat, **(good | change))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kernel", [(3,), (3, 5), (2, 3, 1)])
def test_unpacking_gives_back_every_bit(isa, kernel):
    w = np.random.default_rng(0).standard_normal((37, *kernel)).astype(np.float32)
    channel, *taps = (size // 4 for size in w.strides)
    there, back = np.empty_like(w), np.empty_like(w)
    weights = DepthwiseFormat(ConvShape(37, 37, kernel, 37), isa=isa)
    weights.pack((channel, 0, 0, *taps))(w, there)
    weights.unpack((channel, 0, 0, *taps))(there, back)
    assert there.tobytes() == np.moveaxis(w, 0, -1).tobytes()
    assert back.tobytes() == w.tobytes()


def test_bad_strides_of_weights_raise():
    with pytest.raises(InvalidShapeError, match="strides of weights"):
        DepthwiseFormat(ConvShape(4, 4, (3, 3), 4)).pack((1, 2))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("width", [2, 4, 8])
def test_unpacking_groups_gives_back_every_bit(isa, width):
    w = np.random.default_rng(0).standard_normal((5 * width, width, 3, 2)).astype(np.float32)
    strides = [size // 4 for size in (width * w.strides[0], *w.strides)]
    there, back = np.empty_like(w), np.empty_like(w)
    weights = DepthwiseFormat(ConvShape(5 * width, 5 * width, (3, 2), 5), isa=isa)
    weights.pack(strides)(w, there)
    weights.unpack(strides)(there, back)
    assert there.tobytes() == w.transpose(2, 3, 1, 0).tobytes()
    assert back.tobytes() == w.tobytes()


@pytest.mark.parametrize("shape", [(6, 6, (3, 3), 2), (4, 2, (3, 3), 1), (3, 51, (3, 3), 3), (32, 32, (3, 3), 2)])
def test_other_channels_of_a_group_are_refused(shape):
    with pytest.raises(InvalidArgumentError, match="depthwise"):
        DepthwiseFormat(ConvShape(*shape))
