"""ONNX ops in terms of ours: a converter for each op that has an expression.

A converter takes a `NodeView` and returns the value, or the list of values, of the node's outputs; it refuses
(`NodeView.refuse`) what it cannot express, and the host runs the node then. Types that our schemas do not take are
refused by them.

    direct.py        ops that are one of our kinds, from the schemas
    elementwise.py   further activations and arithmetic, casts
    matmul.py        products of matrices, Einsum
    attend.py        attention
    recurrent.py     RNN, GRU and LSTM, and the one of 8 bits of com.microsoft
    window.py        convolution, pooling over space and channels
    norm.py          normalisation, softmax and hardmax
    reduction.py     reductions
    movement.py      shapes, order, parts and copies
    quantization.py  quantise and dequantise, weights of 8 or 4 bits by scales of blocks
    qlinear.py       ops between tensors of 8 bits, com.microsoft
    fused_attention.py  attention with projections, biases and caches, GroupQueryAttention, com.microsoft
    fused.py         fused products, convolutions and activations, com.microsoft
    skip_norm.py     normalised sums and embeddings, com.microsoft
    resize.py        interpolation
    sample.py        elements at places that are data
    fourier.py       Fourier transforms of known length
    search.py        what finds elements, regions of images
    trees.py         ensembles of decision trees, ai.onnx.ml
    ml.py            linear models, scaling and categories, ai.onnx.ml; scores.py: labels and probabilities
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphpool.onnx.build import NodeView, NotConvertible, Value

from . import (
    attend,
    direct,
    elementwise,
    fourier,
    fused,
    fused_attention,
    matmul,
    ml,
    movement,
    norm,
    qlinear,
    quantization,
    recurrent,
    reduction,
    resize,
    sample,
    search,
    skip_norm,
    trees,
    window,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.onnx.build import GraphBuilder
    from graphpool.onnx.node import Node

__all__ = ["BY_DOMAIN", "CONVERTERS", "convert", "has_converter"]

_OWN = (direct, elementwise, matmul, attend, recurrent, window, norm, reduction, movement, quantization, resize, sample,
        fourier, search)  # fmt: skip
_CONTRIBUTED = (quantization, qlinear, fused, fused_attention, recurrent, skip_norm)

CONVERTERS: dict[str, Callable[[NodeView], Any]] = {
    op: converter for module in _OWN for op, converter in module.CONVERTERS.items()
}
"""Converters of ONNX's own ops; a form of its own comes before the direct one."""

BY_DOMAIN: dict[str, dict[str, Callable[[NodeView], Any]]] = {
    "": CONVERTERS,
    "ai.onnx": CONVERTERS,
    "ai.onnx.ml": {**trees.CONVERTERS, **ml.CONVERTERS},
    "com.microsoft": {op: converter for module in _CONTRIBUTED for op, converter in module.CONTRIBUTED.items()},
}
"""Converters by domain and op."""


def has_converter(node: Node) -> bool:
    """Whether some nodes of that op have an expression in our ops."""
    return node.op_type in BY_DOMAIN.get(node.domain, {})


def convert(
    node: Node, inputs: list[Value | None], opset: int, used_outputs: int, builder: GraphBuilder
) -> list[Value]:
    """The outputs of a node in our ops, which are added to those of `builder`; see `NodeView` for the parameters.

    Raises NotConvertible or a GraphpoolError where there is no such expression; ops may have been added.
    """
    converter = BY_DOMAIN.get(node.domain, {}).get(node.op_type)
    if converter is None:
        raise NotConvertible("")
    unknown = [name for name, value in zip(node.input, inputs, strict=True) if value is not None and not value.is_plain]
    if unknown:
        raise NotConvertible(f"input {unknown[0]!r} is no array of numbers whose shape is known before the run")
    results = converter(NodeView(node, inputs, opset, used_outputs, builder))
    return [results] if isinstance(results, Value) else results
