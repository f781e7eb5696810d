"""Convolutions by their definition, in float64, weights in the layouts of the field, and geometries to try."""

import itertools

import numpy as np

from graphpool._kernels.conv.problem import ConvProblem, ConvShape
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from tests.cases.inputs import normal
from tests.helpers.layouts import gap_of, lay_out
from tests.helpers.products import post_ops_of

CONV_CASES = {
    "1d": {"x": (2, 33, 11), "w": (1, 5, 33, 3), "begin": (1,), "end": (1,)},
    "3x3": {"x": (2, 20, 9, 8), "w": (1, 70, 20, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "all_padding": {"x": (1, 17, 2, 2), "w": (1, 40, 17, 3, 3), "begin": (4, 4), "end": (4, 4)},
    "strided": {"x": (1, 18, 12, 11), "w": (1, 33, 18, 5, 3), "strides": (2, 3), "begin": (2, 0), "end": (1, 2)},
    "dilated": {"x": (1, 19, 13, 10), "w": (1, 4, 19, 3, 2), "dilations": (2, 3), "begin": (2, 1), "end": (2, 1)},
    "dilated_down": {"x": (1, 6, 13, 10), "w": (1, 4, 6, 3, 2), "dilations": (2, 1), "begin": (2, 1), "end": (2, 1)},
    "grouped": {"x": (2, 60, 7, 7), "w": (3, 37, 20, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "odd_groups": {"x": (1, 9, 7, 7), "w": (3, 5, 3, 3, 3), "begin": (1, 1), "end": (1, 1)},
    "3d": {"x": (1, 2, 5, 6, 7), "w": (1, 3, 2, 2, 3, 3), "strides": (1, 2, 2), "begin": (0, 1, 1), "end": (1, 1, 0)},
    "1x1": {"x": (2, 40, 5, 7), "w": (1, 130, 40, 1, 1)},
    "1x1_odd": {"x": (2, 41, 5, 7), "w": (1, 30, 41, 1, 1)},
    "1x1_padded": {"x": (2, 8, 3, 4), "w": (1, 30, 8, 1, 1), "begin": (1, 0), "end": (0, 2)},
    "1x1_strided": {"x": (2, 8, 6, 7), "w": (1, 3, 8, 1, 1), "strides": (2, 2)},
    "pixel": {"x": (3, 40, 1, 1), "w": (1, 65, 40, 1, 1)},
    "whole_window": {"x": (2, 20, 3, 3), "w": (1, 40, 20, 3, 3)},
    "few_channels": {"x": (2, 3, 21, 20), "w": (1, 40, 3, 7, 7), "strides": (2, 2), "begin": (3, 3), "end": (3, 2)},
    "few_channels_1d": {"x": (2, 1, 50), "w": (1, 6, 1, 9), "strides": (2,), "begin": (4,), "end": (4,)},
    "few_channels_dilated": {"x": (1, 3, 9, 12), "w": (1, 5, 3, 3, 3), "dilations": (1, 2), "begin": (1, 2)},
    "few_channels_wide": {"x": (2, 2, 2, 900), "w": (1, 3, 2, 2, 3), "begin": (1, 1), "end": (0, 1)},
    "padding_beyond_the_source": {"x": (1, 1, 2, 2), "w": (1, 2, 1, 2, 2), "begin": (5, 5), "end": (4, 3)},
}  # fmt: skip
"""Convolutions as shapes of x (n, c, spatial...) and w (group, oc, ic, spatial...), and their geometry."""

EMPTY = [
    ((0, 20, 5), (1, 2, 20, 3)), ((2, 0, 5), (1, 2, 0, 3)), ((2, 20, 5), (1, 0, 20, 3)), ((2, 20, 0), (1, 2, 20, 3)),
    ((2, 3, 2), (1, 2, 3, 5)),
]  # fmt: skip
"""Shapes of x and w, padded by one pixel, of which something is 0: a size, or what results."""


def convolve(build, batch, in_channels, out_channels, src_spatial, kernel, *, groups=1, dilations=None, **options):
    """What `build(problem, post_ops)` makes of what a problem and its post-ops are asked by name."""
    post_ops = post_ops_of(options)
    shape = ConvShape(in_channels, out_channels, tuple(kernel), groups, dilations)
    return build(ConvProblem.make(batch, shape, src_spatial, **options), post_ops)


def convolve_with(make_format, *sizes, isa=None, **options):
    """The call of a format of weights; `sizes` and `options` as in `convolve`."""
    return convolve(
        lambda problem, post: make_format(problem.shape, isa=isa).convolution(problem, post), *sizes, **options
    )


def shape_of(w, dilations=None):
    """The shape of weights (group, oc, ic, spatial...)."""
    groups, oc, ic, *kernel = w.shape
    return ConvShape(groups * ic, groups * oc, tuple(kernel), groups, dilations)


def geometry_of(case):
    """What a case says beside shapes."""
    return {key: case[key] for key in case if key not in ("x", "w")}


def arrays(case):
    """An image, weights and the geometry of a case."""
    return normal(case["x"]), normal(case["w"], 1), geometry_of(case)


def whole_geometry(ndim, strides=None, begin=None, end=None, dilations=None):
    """The geometry of `expected_conv` with the defaults of kernels."""
    ones, zeros = (1,) * ndim, (0,) * ndim
    return strides or ones, begin or zeros, end or zeros, dilations or ones


def expected_post_ops(sums, *, bias=False, residual=False, clamp=None, epilogue=False):
    """Results in f32 behind post-operations, and the bias and the residual that were asked for, as they are stored."""
    operands = []
    if bias:
        operands.append(normal(sums.shape[1], 2))
        sums = sums + operands[-1].reshape(1, -1, *(1,) * (sums.ndim - 2))
    if residual:
        other = normal(sums.shape, 3)
        operands.append(lay_out(other, "NXC"))
        sums = sums + other
    sums = sums if clamp is None else np.clip(sums, *clamp)
    return np.maximum(sums, 0) + 1 if epilogue else sums, operands


def relu_plus_one(shape, layout="NXC"):
    """The epilogue ``relu(x) + 1`` over results (n, c, spatial...) that are numbered in that layout."""
    builder = EltwiseBuilder((shape[0], *shape[2:], shape[1]) if layout == "NXC" else shape)
    value = builder.binary("add", builder.unary("relu", builder.acc()), builder.const(1.0))
    builder.store(0, "f32", None, value)
    return builder.epilogue()


def expected_conv(x, w, groups, strides, begin, end, dilations):
    """By the definition, in float64: w is (group, oc, ic, spatial...)."""
    ndim = x.ndim - 2
    padded = np.pad(x.astype(np.float64), [(0, 0), (0, 0), *zip(begin, end, strict=True)])
    padded = padded.reshape(x.shape[0], groups, w.shape[2], *padded.shape[2:])
    reach = [d * (k - 1) for k, d in zip(w.shape[3:], dilations, strict=True)]
    dst = [(n - r - 1) // s + 1 for n, r, s in zip(padded.shape[3:], reach, strides, strict=True)]
    out = np.zeros((x.shape[0], groups, w.shape[1], *dst))
    for tap in itertools.product(*map(range, w.shape[3:])):
        cut = tuple(
            slice(t * d, t * d + s * (m - 1) + 1 if m else 0, s)
            for t, d, s, m in zip(tap, dilations, strides, dst, strict=True)
        )
        assert len(cut) == ndim
        out += np.einsum("ngi...,goi->ngo...", padded[(..., *cut)], w[(..., *tap)].astype(np.float64))
    return out.reshape(x.shape[0], groups * w.shape[1], *dst)


def expected_transpose(x, w, groups, strides, begin, end, dilations, extra):
    """Every input cell adds its weighted kernel to the results, in float64."""
    full = [
        s * (n - 1) + d * (k - 1) + 1 + e
        for n, k, s, d, e in zip(x.shape[2:], w.shape[3:], strides, dilations, extra, strict=True)
    ]
    out = np.zeros((x.shape[0], groups, w.shape[1], *full))
    parts = x.reshape(x.shape[0], groups, w.shape[2], *x.shape[2:]).astype(np.float64)
    for tap in itertools.product(*map(range, w.shape[3:])):
        cut = tuple(
            slice(t * d, t * d + s * (n - 1) + 1, s)
            for t, d, s, n in zip(tap, dilations, strides, x.shape[2:], strict=True)
        )
        out[(..., *cut)] += np.einsum("ngi...,goi->ngo...", parts, w[(..., *tap)].astype(np.float64))
    crop = tuple(slice(b, n - e) for b, e, n in zip(begin, end, full, strict=True))
    return out[(..., *crop)].reshape(x.shape[0], groups * w.shape[1], *(c.stop - c.start for c in crop))


def store_weights(w, layout):
    """Flat memory and strides (group, oc, ic, spatial...) of weights; gaps hold NaN, or 99 in integers."""
    spatial = range(3, w.ndim)
    order = {"OIX": (0, 1, 2, *spatial), "XIO": (*spatial, 2, 0, 1), "XOI": (*spatial, 1, 0, 2), "gap": range(w.ndim)}
    order = tuple(order[layout])
    strides, step = [0] * w.ndim, 2 if layout == "gap" else 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(w.shape[axis], 1)
    memory = np.full(step, gap_of(w.dtype), w.dtype)
    memory[:: 2 if layout == "gap" else 1][: w.size] = w.transpose(order).reshape(-1)
    return memory, tuple(strides)
