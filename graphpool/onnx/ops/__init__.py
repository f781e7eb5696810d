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
    inverse.py       determinants of small matrices; inverses, com.microsoft
    resize.py        interpolation
    sample.py        elements at places that are data
    fourier.py       Fourier transforms of known length
    search.py        what finds elements, regions of images
    trees.py         ensembles of decision trees, ai.onnx.ml
    ml.py            linear models, scaling and categories, ai.onnx.ml; scores.py: labels and probabilities
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from graphpool.onnx.build import NodeView, NotConvertible, Value

from . import (
    attend,
    direct,
    elementwise,
    fourier,
    inverse,
    matmul,
    movement,
    norm,
    quantization,
    recurrent,
    reduction,
    resize,
    sample,
    search,
    window,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.onnx.build import GraphBuilder
    from graphpool.onnx.node import Node

__all__ = ["CONVERTERS", "convert", "converters_of", "has_converter"]

_OWN = (direct, elementwise, matmul, attend, recurrent, window, norm, reduction, movement, quantization, resize, sample,
        fourier, search, inverse)  # fmt: skip

CONVERTERS: dict[str, Callable[[NodeView], Any]] = {
    op: converter for module in _OWN for op, converter in module.CONVERTERS.items()
}
"""Converters of ONNX's own ops; a form of its own comes before the direct one."""


def converters_of(domain: str) -> dict[str, Callable[[NodeView], Any]]:
    """Converters of the ops of a domain; those of other domains than ONNX's own are imported when a model has them."""
    if domain in ("", "ai.onnx"):
        return CONVERTERS
    if domain == "ai.onnx.ml":
        return _learning()
    return _contributed() if domain == "com.microsoft" else {}


@cache
def _learning() -> dict[str, Callable[[NodeView], Any]]:
    from . import ml, trees

    return {**trees.CONVERTERS, **ml.CONVERTERS}


@cache
def _contributed() -> dict[str, Callable[[NodeView], Any]]:
    from . import fused, fused_attention, qlinear, skip_norm

    modules = (quantization, qlinear, fused, fused_attention, recurrent, skip_norm, inverse)
    return {op: converter for module in modules for op, converter in module.CONTRIBUTED.items()}


def has_converter(node: Node) -> bool:
    """Whether some nodes of that op have an expression in our ops."""
    return node.op_type in converters_of(node.domain)


def convert(
    node: Node, inputs: list[Value | None], opset: int, used_outputs: int, builder: GraphBuilder
) -> list[Value]:
    """The outputs of a node in our ops, which are added to those of `builder`; see `NodeView` for the parameters.

    Raises NotConvertible or a GraphpoolError where there is no such expression; ops may have been added.
    """
    converter = converters_of(node.domain).get(node.op_type)
    if converter is None:
        raise NotConvertible("")
    unknown = [name for name, value in zip(node.input, inputs, strict=True) if value is not None and not value.is_plain]
    if unknown:
        raise NotConvertible(f"input {unknown[0]!r} is no array of numbers whose shape is known before the run")
    results = converter(NodeView(node, inputs, opset, used_outputs, builder))
    return [results] if isinstance(results, Value) else results
