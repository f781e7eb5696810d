"""Normalisation of sums and of embeddings, as ONNX Runtime fuses them.

Source: the operators of domain com.microsoft, as ONNX Runtime documents them.
"""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from graphpool.typing import DataType

from .norm import CONVERTERS, layer_norm, within
from .quantization import dequantize, scaling

if TYPE_CHECKING:
    from graphpool.onnx.build import NodeView, Value

_EPSILON = 1e-12
_OPSET = 13


def _sum(n: NodeView, bias: int) -> Value:
    """What is normalised: input, perhaps a bias, skip."""
    parts = [n[0], *([n[bias]] if n.has(bias) else []), n[1]]
    return reduce(lambda a, b: n.emit("Add", a, b), parts)


def _skip_layer_norm(n: NodeView) -> list[Value | None]:
    total, axis = _sum(n, 4), len(n[0].shape) - 1
    found = layer_norm(
        n, total, n[2], n[3] if n.has(3) else None, axis=axis, epsilon=n.attr("epsilon", _EPSILON),
        with_stats=n.gives(1) or n.gives(2),
    )  # fmt: skip
    return [*found, *[None] * (3 - len(found)), total]


def _skip_rms_norm(n: NodeView) -> list[Value | None]:
    n.require(not n.gives(1) and not n.gives(2), "output mean or inv_std_var is read")
    total, epsilon = _sum(n, 3), n.attr("epsilon", _EPSILON)
    normalised = n.emit("RMSNorm", total, n[2], begin_norm_axis=len(total.shape) - 1, epsilon=epsilon)
    return [normalised, None, None, total]


def _rms_norm(n: NodeView) -> list[Value]:
    """RMSNorm, and the inverse root of the mean square where it is read."""
    x, epsilon = n[0], n.attr("epsilon", 1e-5)
    axis = n.axis(-1, len(x.shape))
    gamma = within(n, n[1], len(x.shape) - axis)
    result = n.emit("RMSNorm", x, gamma, begin_norm_axis=axis, epsilon=epsilon)
    if not n.gives(1):
        return [result]
    square = n.emit("Square", n.cast(x, DataType.F32))
    mean = n.emit("ReduceMean", square, axes=list(range(axis, len(x.shape))), keep_dims=True)
    return [result, n.emit("Pow", n.emit("Add", mean, n.literal(epsilon, mean)), beta=-0.5)]


# ---- embeddings


def _embed_layer_norm(n: NodeView) -> list[Value | None]:
    """The sum of embeddings of words, places and segments, normalised; how many words the mask counts; the sum."""
    return _normalised_sum(n, _rows(n, n[8] if n.has(8) else _first_places(n)), n[5], n[6])


def _quantised_embed_layer_norm(n: NodeView) -> list[Value | None]:
    """The same with tables of bytes: inputs 8 to 12 are the scales of inputs 2 to 6, 13 to 17 the zero points."""

    def floats(x: Value, index: int) -> Value:
        return dequantize(n, x, scaling(n.as_op([n[index + 6], n[index + 11]], _OPSET), 0, 0))

    rows = [floats(row, index) for index, row in enumerate(_rows(n, _first_places(n)), 2)]
    return _normalised_sum(n, rows, floats(n[5], 5), floats(n[6], 6))


def _rows(n: NodeView, places: Value) -> list[Value]:
    """What is looked up in the tables."""
    found = [n.emit("Gather", n[2], n[0], axis=0), n.emit("Gather", n[3], places, axis=0)]
    return [*found, n.emit("Gather", n[4], n[1], axis=0)] if n.has(1) else found


def _first_places(n: NodeView) -> Value:
    """As many places as there are words."""
    length = n[0].shape[1]
    n.require(length <= n[3].shape[0], "more words than position_embedding has places")
    return n.builder.literal(np.arange(length), DataType.S32)


def _normalised_sum(n: NodeView, parts: list[Value], gamma: Value, beta: Value) -> list[Value | None]:
    total = reduce(lambda a, b: n.emit("Add", a, b), parts)
    epsilon = n.attr("epsilon", _EPSILON)
    [result] = layer_norm(n, total, gamma, beta, axis=2, epsilon=epsilon, with_stats=False)
    return [result, _count(n) if n.gives(1) else None, total]


def _count(n: NodeView) -> Value:
    """Words that the mask counts; none where there is no mask."""
    if not n.has(7):
        return n.builder.literal(np.zeros(n[0].shape[0]), DataType.S32)
    counts = n.emit("ReduceSum", n.cast(n[7], DataType.F32), axes=[1], keep_dims=False)
    return n.cast(counts, DataType.S32)


CONTRIBUTED = {
    "SkipLayerNormalization": _skip_layer_norm, "SkipSimplifiedLayerNormalization": _skip_rms_norm,
    "SimplifiedLayerNormalization": _rms_norm, "EmbedLayerNormalization": _embed_layer_norm,
    "QEmbedLayerNormalization": _quantised_embed_layer_norm,
    "LayerNormalization": CONVERTERS["LayerNormalization"],
}  # fmt: skip
"""Converters of domain com.microsoft."""
