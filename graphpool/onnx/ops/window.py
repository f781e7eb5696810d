"""Convolution."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from graphpool.onnx.build import NodeView, Value


def window(n: NodeView, spatial: int) -> dict[str, Any]:
    """Strides and pads in our spelling."""
    pads = list(n.attr("pads") or [0] * (2 * spatial))
    auto_pad = n.attr("auto_pad", "NOTSET")
    return {
        "strides": n.attr("strides") or [1] * spatial,
        "pads_begin": pads[:spatial],
        "pads_end": pads[spatial:],
        "data_format": "NCX",
        "auto_pad": "None" if auto_pad == "NOTSET" else auto_pad,
    }


def dilations_of(n: NodeView, spatial: int) -> list[int]:
    """One number for each spatial axis."""
    return list(n.attr("dilations") or [1] * spatial)


def _conv(n: NodeView) -> Value:
    spatial = len(n[0].shape) - 2
    inputs = [n[k] for k in range(3) if n.has(k)]
    return n.emit(
        "Convolution", *inputs, **window(n, spatial), dilations=dilations_of(n, spatial), groups=n.attr("group", 1),
        weights_format="OIX",
    )  # fmt: skip


def _conv_transpose(n: NodeView) -> Value:
    spatial = len(n[0].shape) - 2
    options, dilations = window(n, spatial), dilations_of(n, spatial)
    padding = list(n.attr("output_padding") or [0] * spatial)
    if n.attr("output_shape") is not None:
        options |= _pads_for(n, list(n.attr("output_shape"))[-spatial:], options["strides"], dilations, padding)
    inputs = [n[k] for k in range(3) if n.has(k)]
    return n.emit(
        "ConvTranspose", *inputs, **options, dilations=dilations, groups=n.attr("group", 1), weights_format="IOX",
        output_padding=padding,
    )  # fmt: skip


def _pads_for(
    n: NodeView, wanted: list[int], strides: list[int], dilations: list[int], padding: list[int]
) -> dict[str, Any]:
    """Pads with which a transposed convolution gives the wanted shape (ONNX specification of ConvTranspose)."""
    begin, end = [], []
    for k, size in enumerate(wanted):
        reach = (n[1].shape[2 + k] - 1) * dilations[k] + 1
        total = strides[k] * (n[0].shape[2 + k] - 1) + padding[k] + reach - size
        if total < 0:  # the full result is smaller than what is wanted
            padding[k], total = padding[k] - total, 0
        small, large = total // 2, total - total // 2
        is_upper = n.attr("auto_pad", "NOTSET") == "SAME_UPPER"
        begin.append(small if is_upper else large)
        end.append(large if is_upper else small)
    return {"pads_begin": begin, "pads_end": end, "auto_pad": "None"}


def _col2im(n: NodeView) -> Value:
    """Sums of overlapping blocks: a transposed convolution whose kernels put each element in its place."""
    image, block = n.known(1).tolist(), n.known(2).tolist()
    spatial, size = len(image), prod(block)
    options, dilations = window(n, spatial), dilations_of(n, spatial)
    extents = [dilation * (kernel - 1) + 1 for dilation, kernel in zip(dilations, block, strict=True)]
    counts, rests = [], []
    for k, extent in enumerate(extents):
        room = image[k] + options["pads_begin"][k] + options["pads_end"][k] - extent
        count, rest = divmod(room, options["strides"][k])
        counts.append(count + 1)
        rests.append(rest)
    channels = n[0].shape[1] // size
    n.allow_table(16 * channels * size * size)
    places = n.literal(np.tile(np.eye(size).reshape(size, 1, *block), (channels, 1, *[1] * spatial)), n[0])
    return n.emit(
        "ConvTranspose", n.reshape(n[0], (n[0].shape[0], channels * size, *counts)), places, **options,
        dilations=dilations, groups=channels, weights_format="IOX", output_padding=rests,
    )  # fmt: skip


CONVERTERS = {"Conv": _conv, "ConvTranspose": _conv_transpose, "Col2Im": _col2im}
