import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool._kernels.conv.direct import choose_convolution, convolution
from graphpool._kernels.core import _dispatch
from graphpool._kernels.core.records import record
from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError
from tests.cases.inputs import normal
from tests.helpers.convolutions import arrays, convolve, expected_conv, expected_transpose, relu_plus_one, store_weights
from tests.helpers.kernel_runs import run_checked
from tests.helpers.layouts import LAYOUTS, lay_out, read_back, strides_of
from tests.helpers.onnx_node import run_node

ISAS = _dispatch.isas()
IMPLS = [("blas_im2col", None), *(("simd_im2col", isa) for isa in ISAS)]
WEIGHTS = ["OIX", "XIO", "gap"]
RTOL = 2e-6
"""Of the sum of the magnitudes of all terms."""


def build(*sizes, weights_strides, impl="auto", exact_depth=0, isa=None, **options):
    own = {"impl": impl, "exact_depth": exact_depth, "isa": isa}
    return convolve(lambda problem, post: convolution(problem, weights_strides, post, **own), *sizes, **options)


def check(
    x, w, *, layout="NCX", src_layout=None, weights="OIX", impl="auto", isa=None, epilogue=None, transpose=False,
    in_place=False, strides=None, begin=None, end=None, dilations=None, extra=None, exact_depth=0, bias=False,
):  # fmt: skip
    """Convolve x (n, c, ...) with w (group, oc, ic, ...) and compare with the definition; returns the call."""
    ndim, groups = x.ndim - 2, w.shape[0]
    ones, zeros = (1,) * ndim, (0,) * ndim
    geometry = (strides or ones, begin or zeros, end or zeros, dilations or ones)
    if transpose:
        expected, terms = (
            expected_transpose(a, b, groups, *geometry, extra or zeros) for a, b in ((x, w), (abs(x), abs(w)))
        )
    else:
        expected, terms = (expected_conv(a, b, groups, *geometry) for a, b in ((x, w), (abs(x), abs(w))))
    biases = [normal(groups * w.shape[1], 2)] if bias else []
    for row in biases:
        expected, terms = (a + b.reshape(-1, *ones) for a, b in ((expected, row), (terms, abs(row))))
    memory, w_strides = store_weights(w, weights)
    call = build(
        x.shape[0], x.shape[1], groups * w.shape[1], x.shape[2:], w.shape[3:], groups=groups,
        src_strides=strides_of(x.shape, src_layout or layout), dst_strides=strides_of(expected.shape, layout),
        weights_strides=w_strides, strides=strides, pads_begin=begin, pads_end=end, dilations=dilations, impl=impl,
        isa=isa, exact_depth=exact_depth, epilogue=epilogue(expected.shape, layout) if epilogue else b"",
        dst_needs_scratch=not in_place, transposed=transpose, output_padding=extra, bias=bias,
    )  # fmt: skip
    size = expected.size * (2 if layout.endswith("gap") else 1)
    flat = run_checked(call, size, lay_out(x, src_layout or layout), memory, *biases, dst_index=2 + bias)
    out = read_back(flat, expected.shape, layout)
    wanted = np.maximum(expected, 0) + 1 if epilogue else expected
    if exact_depth and (x == np.rint(x)).all():
        np.testing.assert_array_equal(out, wanted.astype(np.float32))
    assert (np.abs(out - wanted) <= RTOL * (terms + bool(epilogue)) + 1e-30).all()
    return call


@pytest.mark.parametrize(("impl", "isa"), [("depthwise", isa) for isa in ISAS] + IMPLS)
@pytest.mark.parametrize(
    ("layout", "epilogue"), [*((layout, None) for layout in LAYOUTS), ("NCX", relu_plus_one), ("NXC", relu_plus_one)]
)
@pytest.mark.parametrize(
    ("x", "w", "geometry"),
    [
        ((2, 1, 700), (1, 1, 1, 256), {"begin": (100,), "end": (3,)}),
        ((1, 1, 40), (1, 1, 1, 9), {"strides": (2,), "begin": (4,), "end": (4,), "dilations": (3,)}),
        ((2, 1, 13, 14), (1, 1, 1, 5, 4), {"begin": (2, 2), "end": (2, 1)}),
        ((1, 1, 6, 7, 8), (1, 1, 1, 2, 3, 3), {"strides": (1, 2, 1)}),
        ((2, 1, 5, 5), (1, 1, 1, 5, 5), {}),
    ],
)
def test_a_single_channel(x, w, geometry, layout, epilogue, impl, isa):
    check(normal(x), normal(w, 1), layout=layout, epilogue=epilogue, impl=impl, isa=isa, **geometry)


def test_results_of_a_single_channel_are_rows_of_pixels_in_every_layout():
    for layout in LAYOUTS:
        call = check(normal((1, 1, 30, 40)), normal((1, 1, 1, 3, 3), 1), layout=layout)
        assert call.kernel.name == "f32_conv_depthwise"
        assert not int.from_bytes(call.params[: record("gp_window").nbytes][-8:], "little")  # channels last


CASES = {
    "1d": {"x": (2, 3, 11), "w": (1, 5, 3, 3), "begin": (1,), "end": (1,)},
    "3x3": {"x": (2, 4, 9, 8), "w": (1, 6, 4, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "strided": {"x": (1, 3, 12, 11), "w": (1, 33, 3, 5, 3), "strides": (2, 3), "begin": (2, 0), "end": (1, 2)},
    "dilated": {"x": (1, 2, 13, 10), "w": (1, 4, 2, 3, 2), "dilations": (2, 3), "begin": (2, 1), "end": (2, 1)},
    "grouped": {"x": (2, 6, 7, 7), "w": (3, 4, 2, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "3d": {"x": (1, 2, 5, 6, 7), "w": (1, 3, 2, 2, 3, 3), "strides": (1, 2, 2), "begin": (0, 1, 1), "end": (1, 1, 0)},
    "1x1": {"x": (2, 16, 5, 7), "w": (1, 9, 16, 1, 1)},
    "1x1_grouped": {"x": (2, 8, 5, 7), "w": (2, 3, 4, 1, 1)},
    "1x1_strided": {"x": (1, 8, 6, 7), "w": (1, 3, 8, 1, 1), "strides": (2, 2)},
    "pixel": {"x": (3, 8, 1, 1), "w": (1, 5, 8, 1, 1)},
    "one_channel": {"x": (2, 3, 6, 6), "w": (1, 1, 3, 3, 3)},
    "multiplier": {"x": (1, 4, 6, 6), "w": (4, 2, 1, 3, 3)},
}  # fmt: skip
DEPTHWISE = {
    "3x3": {"x": (2, 70, 9, 8), "w": (70, 1, 1, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "strided": {"x": (1, 17, 12, 35), "w": (17, 1, 1, 5, 3), "strides": (2, 3), "begin": (2, 0), "end": (1, 2)},
    "dilated": {"x": (1, 20, 13, 40), "w": (20, 1, 1, 3, 2), "dilations": (2, 3), "begin": (2, 1), "end": (2, 1)},
    "1d": {"x": (2, 3, 11), "w": (3, 1, 1, 3), "begin": (1,), "end": (1,)},
    "3d": {"x": (1, 5, 5, 6, 7), "w": (5, 1, 1, 2, 3, 3), "begin": (0, 1, 1), "end": (1, 1, 0)},
}  # fmt: skip
TRANSPOSED = {
    "1d": {"x": (2, 3, 6), "w": (1, 5, 3, 3), "strides": (2,), "begin": (1,), "end": (1,), "extra": (1,)},
    "2x2": {"x": (1, 4, 5, 4), "w": (1, 6, 4, 2, 2), "strides": (2, 2)},
    "gaps": {"x": (1, 2, 4, 5), "w": (1, 3, 2, 1, 2), "strides": (3, 3), "extra": (2, 0)},
    "dilated": {"x": (1, 2, 5, 6), "w": (1, 3, 2, 3, 2), "strides": (2, 3), "dilations": (3, 2), "begin": (1, 2)},
    "grouped": {"x": (2, 6, 4, 4), "w": (2, 2, 3, 3, 3), "strides": (2, 1), "begin": (1, 0), "end": (0, 2)},
    "3d": {"x": (1, 2, 3, 4, 3), "w": (1, 3, 2, 2, 3, 2), "strides": (2, 1, 2), "begin": (0, 1, 0)},
    "depthwise": {"x": (1, 4, 4, 4), "w": (4, 1, 1, 3, 3), "strides": (2, 2), "begin": (1, 1), "end": (1, 1)},
    "1x1": {"x": (1, 4, 4, 4), "w": (1, 5, 4, 1, 1)},
}  # fmt: skip


@pytest.mark.parametrize(("impl", "isa"), IMPLS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("case", CASES)
def test_convolution_equals_the_definition(impl, isa, layout, weights, case):
    x, w, geometry = arrays(CASES[case])
    check(x, w, layout=layout, weights=weights, impl=impl, isa=isa, **geometry)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("case", DEPTHWISE)
def test_depthwise_equals_the_definition(isa, layout, weights, case):
    x, w, geometry = arrays(DEPTHWISE[case])
    call = check(x, w, layout=layout, weights=weights, isa=isa, **geometry)
    assert call.kernel.name == "f32_conv_depthwise"
    check(x, w, layout=layout, weights=weights, isa=isa, impl="simd_im2col", **geometry)


@pytest.mark.parametrize(("impl", "isa"), IMPLS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weights", [*WEIGHTS, "XOI"])
@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_equals_the_definition(impl, isa, layout, weights, case):
    x, w, geometry = arrays(TRANSPOSED[case])
    check(x, w, layout=layout, weights=weights, impl=impl, isa=isa, transpose=True, **geometry)


@pytest.mark.parametrize(("impl", "isa"), IMPLS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("transpose", [False, True])
def test_exact_depth_sums_integers_as_s32_does(impl, isa, layout, transpose):
    rng = np.random.default_rng(0)
    x = rng.integers(200, 256, (1, 150, 4, 5)).astype(np.float32)
    w = rng.integers(100, 128, (1, 6, 150, 3, 3)).astype(np.float32)
    check(x, w, layout=layout, impl=impl, isa=isa, transpose=transpose, exact_depth=514, begin=(1, 1), end=(1, 1))


def test_many_taps_of_a_depthwise_convolution_are_summed_in_parts():
    x, w = normal((1, 4, 20, 30)), normal((4, 1, 1, 17, 17), 1)
    assert check(x, w, exact_depth=514).kernel.name == "f32_conv_depthwise"
    assert check(x, w, exact_depth=128).kernel.name != "f32_conv_depthwise"


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("case", [*CASES, *(f"depthwise_{name}" for name in DEPTHWISE)])
def test_epilogue_runs_on_every_result(layout, in_place, case):
    x, w, geometry = arrays(DEPTHWISE[case[10:]] if case.startswith("depthwise_") else CASES[case])
    for impl in ("auto", "simd_im2col"):
        check(x, w, layout=layout, epilogue=relu_plus_one, in_place=in_place, impl=impl, **geometry)


@pytest.mark.parametrize(("impl", "isa"), IMPLS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("case", [name for name, case in CASES.items() if max(case["w"][3:]) > 1])
def test_a_bias_is_one_more_term(impl, isa, layout, weights, case):
    x, w, geometry = arrays(CASES[case])
    for epilogue in (None,) if layout.endswith("gap") else (None, relu_plus_one):
        check(x, w, layout=layout, weights=weights, impl=impl, isa=isa, bias=True, epilogue=epilogue, **geometry)


@pytest.mark.parametrize("sizes", [{"kernel": (1, 1)}, {"groups": 4}, {"exact_depth": 100}, {"transposed": True}])
def test_a_bias_that_is_no_term_belongs_to_the_epilogue(sizes):
    own = {
        "groups": 1, "weights_strides": (9, 36, 9, 3, 1), "src_strides": (144, 36, 6, 1),
        "dst_strides": (144, 36, 6, 1), "pads_begin": (1, 1), "pads_end": (1, 1), "bias": True, "kernel": (3, 3),
    } | sizes  # fmt: skip
    with pytest.raises(InvalidArgumentError, match="bias"):
        build(1, 4, 4, (6, 6), own.pop("kernel"), **own)


@pytest.mark.parametrize("layout", ["NCX", "NXC"])
@pytest.mark.parametrize("case", TRANSPOSED)
def test_epilogue_runs_on_every_transposed_result(layout, case):
    x, w, geometry = arrays(TRANSPOSED[case])
    check(x, w, layout=layout, epilogue=relu_plus_one, transpose=True, **geometry)


@pytest.mark.parametrize("case", ["3x3", "strided", "dilated", "grouped", "3d"])
def test_equals_onnx_conv(case):
    x, w, geometry = arrays(CASES[case])
    ndim = x.ndim - 2
    begin, end = geometry.get("begin", (0,) * ndim), geometry.get("end", (0,) * ndim)
    strides, dilations = geometry.get("strides", (1,) * ndim), geometry.get("dilations", (1,) * ndim)
    inputs = {"x": x, "w": w.reshape(-1, *w.shape[2:])}
    got = run_node(
        "Conv", inputs, group=w.shape[0], pads=[*begin, *end], strides=list(strides), dilations=list(dilations)
    )
    expected = expected_conv(x, w, w.shape[0], strides, begin, end, dilations)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("case", ["1d", "2x2", "dilated"])
def test_equals_onnx_conv_transpose(case):
    x, w, geometry = arrays(TRANSPOSED[case])
    ndim = x.ndim - 2
    begin, end, extra = (geometry.get(name, (0,) * ndim) for name in ("begin", "end", "extra"))
    strides, dilations = geometry.get("strides", (1,) * ndim), geometry.get("dilations", (1,) * ndim)
    got = run_node(
        "ConvTranspose", {"x": x, "w": np.ascontiguousarray(np.swapaxes(w[0], 0, 1))}, pads=[*begin, *end],
        strides=list(strides), dilations=list(dilations), output_padding=list(extra),
    )  # fmt: skip
    expected = expected_transpose(x, w, 1, strides, begin, end, dilations, extra)
    np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("impl", "isa"), IMPLS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_of_pixels_that_begin_inside_a_row(impl, isa, layout):
    call = check(normal((1, 3, 37, 61)), normal((1, 5, 3, 3, 3), 1), layout=layout, impl=impl, isa=isa)
    assert call.ntasks > 1


@pytest.mark.parametrize("impl", ["blas_im2col", "simd_im2col"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("x", "w"),
    [((0, 3, 5), (1, 2, 3, 3)), ((2, 0, 5), (1, 2, 0, 3)), ((2, 3, 5), (1, 0, 3, 3)), ((2, 3, 0), (1, 2, 3, 3)),
     ((2, 3, 2), (1, 2, 3, 5))],
)  # fmt: skip
def test_zero_sizes(impl, layout, x, w):
    check(normal(x), normal(w), layout=layout, impl=impl, begin=(1,), end=(1,))


def test_source_and_result_may_differ_in_layout():
    for layout, src_layout in itertools.permutations(LAYOUTS, 2):
        for case in (CASES["3x3"], CASES["1x1"], DEPTHWISE["3x3"]):
            x, w, geometry = arrays(case)
            check(x, w, layout=layout, src_layout=src_layout, **geometry)


@settings(max_examples=80, deadline=None)
@given(data=st.data())
def test_random_geometry(data):
    ndim, transpose = data.draw(st.integers(1, 3)), data.draw(st.booleans())
    draw = lambda low, high: tuple(data.draw(st.integers(low, high)) for _ in range(ndim))  # noqa: E731
    groups, oc, ic, batch = (data.draw(st.integers(1, high)) for high in (3, 4, 4, 2))
    src, kernel, strides, dilations, begin, end = draw(1, 7), draw(1, 3), draw(1, 3), draw(1, 3), draw(0, 2), draw(0, 2)
    extra = draw(0, 1) if transpose else None
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilations, strict=True)]
    if transpose:
        sizes = [s * (n - 1) + r - b - e for n, r, s, b, e in zip(src, reach, strides, begin, end, strict=True)]
    else:
        sizes = [n + b + e - r for n, r, b, e in zip(src, reach, begin, end, strict=True)]
    if min(sizes) < 0:
        begin = end = None
        src = tuple(max(n, r) for n, r in zip(src, reach, strict=True))
    impl, isa = data.draw(st.sampled_from([("auto", None), *IMPLS]))
    check(
        normal((batch, groups * ic, *src)), normal((groups, oc, ic, *kernel), 1), transpose=transpose, extra=extra,
        layout=data.draw(st.sampled_from(LAYOUTS)), src_layout=data.draw(st.sampled_from(LAYOUTS)),
        weights=data.draw(st.sampled_from([*WEIGHTS, "XOI"])), impl=impl, isa=isa, strides=strides, begin=begin,
        end=end, dilations=dilations,
    )  # fmt: skip


def test_choice_depends_on_the_isa_and_on_groups():
    assert choose_convolution(depthwise=True) == "depthwise"
    assert choose_convolution(isa="generic") == "blas_im2col"
    assert choose_convolution(isa="avx2") == "simd_im2col"


def test_patches_stay_bounded():
    shape = (1, 256, 200, 200)
    call = build(
        1, 256, 256, (200, 200), (3, 3), src_strides=strides_of(shape, "NXC"), dst_strides=strides_of(shape, "NXC"),
        weights_strides=(0, 1, 256, 256 * 256 * 3, 256 * 256), pads_begin=(1, 1), pads_end=(1, 1),
    )  # fmt: skip
    assert call.scratch_nbytes < 3 << 20


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(
    ("error", "change"),
    [
        (InvalidArgumentError, {"groups": 3}),
        (InvalidArgumentError, {"groups": 0}),
        (InvalidArgumentError, {"impl": "winograd"}),
        (UnsupportedError, {"impl": "depthwise"}),
        (InvalidShapeError, {"kernel": (3,)}),
        (InvalidShapeError, {"strides": (0, 1)}),
        (InvalidShapeError, {"pads_begin": (1,)}),
        (InvalidShapeError, {"pads_begin": (9, 9), "kernel": (30, 30), "pads_end": (90, 90), "src_spatial": (1,)}),
        (InvalidShapeError, {"weights_strides": (1, 1, 1)}),
        (InvalidShapeError, {"batch": -1}),
        (UnsupportedError, {"src_spatial": (), "kernel": ()}),
    ],
)
def test_bad_arguments_raise(transposed, error, change):
    good = {
        "batch": 1, "in_channels": 4, "out_channels": 4, "src_spatial": (6, 6), "kernel": (3, 3),
        "src_strides": (144, 36, 6, 1), "dst_strides": (64, 16, 4, 1), "weights_strides": (0, 36, 9, 3, 1),
        "transposed": transposed,
    }  # fmt: skip
    arguments = good | change
    sizes = [arguments.pop(name) for name in ("batch", "in_channels", "out_channels", "src_spatial", "kernel")]
    with pytest.raises(error):
        build(*sizes, **arguments)


def test_negative_result_extent_raises():
    with pytest.raises(InvalidShapeError, match="result extent"):
        build(
            1, 1, 1, (2,), (1,), src_strides=(2, 2, 1), dst_strides=(1, 1, 1), weights_strides=(1, 1, 1, 1),
            pads_begin=(3,), transposed=True,
        )  # fmt: skip
