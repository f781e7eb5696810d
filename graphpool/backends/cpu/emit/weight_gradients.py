"""Gradients of convolutions for their weights: a matrix product for each tap of the kernel.

What a tap multiplies are the pixels that it reads, and the gradients of the results that it adds to; the sum over all
of them is one product. The pixels of one tap are copied at a time, so that temporaries are as large as an image.
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING

from ...._kernels.gemm.matmul import matmul
from ...._kernels.gemm.problem import MatmulProblem
from ....graph.shapes import channel_axis, conv_weight_axes, per_axis, resolve_pads, spatial_axes, window_extent
from ..layout.images import pick
from ..support import has_small_windows, rule
from .parts import pad_with

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value

_MOST_TAPS = 64
"""Of a kernel: each is two steps."""


def _has_few_taps(op: Op) -> bool:
    """Whether the shape of the weights is no tensor, and small."""
    if len(op.inputs) > 2 or not has_small_windows(op):
        return False
    shape = op.attrs["weights_shape"][: len(op.attrs["strides"]) + 2]
    return prod(pick(shape, conv_weight_axes(len(shape), op.attrs["weights_format"])[2])) <= _MOST_TAPS


@rule("ConvolutionBackwardWeights", "ConvTransposeBackwardWeights", where=_has_few_taps)
def lower_backward_weights(lowering: Lowering, op: Op) -> None:
    """The source is the wide image of a convolution, and the narrow one of a transposed one."""
    is_transposed, shape = op.kind == "ConvTransposeBackwardWeights", lowering.shapes[op.outputs[0].id]
    inner, outer, kernel_axes = conv_weight_axes(len(shape), op.attrs["weights_format"])
    kernel, groups = pick(shape, kernel_axes), op.attrs["groups"]
    source, gradient = (_pixels(lowering, op, port) for port in range(2))
    begin, _ = resolve_pads(op.attrs, source.shape[1:-1], kernel, transposed=is_transposed)
    wide, narrow = (gradient, source) if is_transposed else (source, gradient)
    strides, dilations = (per_axis(op.attrs, name, len(kernel)) for name in ("strides", "dilations"))
    reached = [
        (dim - 1) * stride + window_extent(taps, dilation)
        for dim, taps, stride, dilation in zip(narrow.shape[1:-1], kernel, strides, dilations, strict=True)
    ]
    wide = _pad(lowering, wide, begin, reached)
    inputs, outputs, count = wide.shape[-1], narrow.shape[-1], prod(narrow.shape[:-1])
    rows, cols = inputs // groups, outputs // groups
    sums = lowering.temporary((*kernel, rows, outputs))
    problem = MatmulProblem(
        (groups,), rows, cols, count, (rows, 1, inputs), (cols, outputs), threads=lowering.threads
    )  # fmt: skip
    call = matmul(problem, (cols, outputs, 1))
    for tap in product(*map(range, kernel)):
        read, place = wide, sums
        for axis, at in enumerate(tap):
            read = read.cut(axis + 1, at * dilations[axis], narrow.shape[axis + 1], strides[axis])
            place = place.cut(axis, at, 1)
        lowering.emit(call, [lowering.dense(read), narrow, place])
    order = [0] * len(shape)
    for number, axis in enumerate((*kernel_axes, *((outer, inner) if is_transposed else (inner, outer)))):
        order[axis] = number
    lowering.finish(op.outputs[0].id, sums.transposed(order))


def _pixels(lowering: Lowering, op: Op, port: int) -> Value:
    """An image without gaps, its channels last."""
    value = lowering.value(op.inputs[port].id)
    ndim, data_format = len(value.shape), op.attrs["data_format"]
    order = (0, *spatial_axes(ndim, data_format), channel_axis(ndim, data_format))
    return lowering.dense(value, order=order).transposed(order)


def _pad(lowering: Lowering, image: Value, begin: Sequence[int], reached: Sequence[int]) -> Value:
    """So many pixels along each axis, the first of which lie `begin` in front of the image; zeros around it."""
    before = (0, *begin, 0)
    shape = (image.shape[0], *reached, image.shape[-1])
    after = [dim - own - first for dim, own, first in zip(shape, image.shape, before, strict=True)]
    if not any((*before, *after)):
        return image
    padded = lowering.temporary(shape)
    pad_with(lowering, image, padded, before, after, 0.0)
    return padded
