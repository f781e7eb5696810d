"""ONNX ops in terms of ours: a converter for each op that has an expression.

A converter takes a `NodeView` and returns the value, or the list of values, of the node's outputs; it refuses
(`NodeView.refuse`) what it cannot express, and the host runs the node then. Types that our schemas do not take are
refused by them.

    elementwise.py   activations, arithmetic, comparison, casts
    matmul.py        products of matrices
    einsum.py        Einsum
    attention.py     attention and rotary embedding; attend.py spells attention for all of its kinds
    recurrent.py     RNN, GRU and LSTM
    window.py        convolution
    pooling.py       pooling over space and channels
    norm.py          normalisation and softmax
    reduction.py     reductions
    movement.py      shapes, order, parts and copies
    scan.py          searches and running results along an axis
    quantization.py  quantise and dequantise
    compressed.py    weights of 8 or 4 bits by scales of blocks, MatMulNBits
    qlinear.py       ops between tensors of 8 bits, com.microsoft
    fused_attention.py    attention with projections, biases and caches, com.microsoft
    grouped_attention.py  GroupQueryAttention, com.microsoft
    fused.py         fused products, convolutions and activations, com.microsoft
    skip_norm.py     normalised sums and embeddings, com.microsoft
    resize.py        interpolation
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import (
    attention,
    compressed,
    einsum,
    elementwise,
    fused,
    fused_attention,
    grouped_attention,
    matmul,
    movement,
    norm,
    pooling,
    qlinear,
    quantization,
    recurrent,
    reduction,
    resize,
    scan,
    skip_norm,
    window,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.onnx.build import NodeView

__all__ = ["DOMAINS"]

_CONVERTERS: dict[str, Callable[[NodeView], Any]] = {
    **elementwise.CONVERTERS,
    **matmul.CONVERTERS,
    **einsum.CONVERTERS,
    **attention.CONVERTERS,
    **recurrent.CONVERTERS,
    **window.CONVERTERS,
    **pooling.CONVERTERS,
    **norm.CONVERTERS,
    **reduction.CONVERTERS,
    **movement.CONVERTERS,
    **scan.CONVERTERS,
    **quantization.CONVERTERS,
    **resize.CONVERTERS,
}

DOMAINS: dict[str, dict[str, Callable[[NodeView], Any]]] = {
    "": _CONVERTERS,
    "ai.onnx": _CONVERTERS,
    "com.microsoft": {
        **compressed.CONTRIBUTED,
        **quantization.CONTRIBUTED,
        **qlinear.CONTRIBUTED,
        **fused.CONTRIBUTED,
        **fused_attention.CONTRIBUTED,
        **grouped_attention.CONTRIBUTED,
        **skip_norm.CONTRIBUTED,
    },
}
"""Converters by domain and op."""
