"""What the graphs of all families are put together from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import graphpool as gp
from tests.cases.graphs import GraphBuilder

Tensor = gp.LogicalTensor
Build = Callable[[GraphBuilder], object]

FLOATS = ("f32", "bf16", "f16")
UNARY: dict[str, dict[str, Any]] = {
    "Abs": {}, "Clamp": {"min": -3.0, "max": 5.0}, "Elu": {"alpha": 0.5}, "Exp": {}, "GELU": {"mode": "gelu_tanh"},
    "HardSigmoid": {"alpha": 0.25, "beta": 0.5}, "HardSwish": {}, "LeakyReLU": {"alpha": 0.25}, "Log": {}, "Mish": {},
    "Sigmoid": {}, "SoftPlus": {"beta": 2.0}, "ReLU": {}, "Round": {}, "Sqrt": {}, "Square": {}, "Tanh": {},
}  # fmt: skip
BINARY = ("Add", "Multiply", "Maximum", "Minimum", "Divide", "Subtract")
IMAGE = {"strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1], "data_format": "NCX"}
POINT = IMAGE | {"pads_begin": [0, 0], "pads_end": [0, 0]}
POOL = {"kernel": [2, 2], "strides": [2, 2], "pads_begin": [0, 0], "pads_end": [0, 0], "data_format": "NCX"}


def chain(g: GraphBuilder, x: Tensor, *kinds: str) -> Tensor:
    """Elementwise ops one after another; further operands have one element a last index, or the whole shape."""
    for kind in kinds:
        x = _one(g, x, kind)
    return x


def _one(g: GraphBuilder, x: Tensor, kind: str) -> Tensor:
    shape = g.graph_shape(x)
    if kind in BINARY:
        return g.op(kind, x, g.input(shape, x.dtype))
    if kind.endswith("Row"):
        return g.op(kind.removesuffix("Row"), x, g.input(shape[-1:], x.dtype))
    if kind == "Swish":
        return g.op("Multiply", x, g.op("Sigmoid", x))
    if kind == "BiasAdd":
        return g.op("BiasAdd", x, g.input(shape[1:2], x.dtype), data_format="NCX")
    if kind == "BatchNorm":
        return g.op("BatchNormInference", x, *(g.input(shape[1:2]) for _ in range(4)), epsilon=0.5, data_format="NCX")
    if kind == "Select":
        return g.op("Select", g.input(shape, "boolean"), x, g.input((1,), x.dtype), dtype=x.dtype)
    if kind == "Dropout":
        more = [g.input((), "s64"), g.input((), "s64"), g.input((), "f32")]
        return g.op("Dropout", x, *more)
    return g.op(kind, x, **UNARY.get(kind, {}))


def cast(g: GraphBuilder, x: Tensor, dtype: str) -> Tensor:
    return x if x.dtype == dtype else g.op("TypeCast", x, dtype=dtype)


def dequantized(
    g: GraphBuilder, shape: Any, source: str = "s8", dtype: str = "f32", *, zp: int = 0, axis: int | None = None
) -> Tensor:
    """An int8 input as a float: per tensor, or with a scale for each index of an axis."""
    x = g.input(shape, source)
    own: dict[str, Any] = {"scales": [0.5], "zps": [zp]}
    if axis is not None:
        count = shape[axis]
        own = {"scales": [2.0 ** -(k % 3) for k in range(count)], "zps": [0] * count, "qtype": "per_channel",
               "axis": axis}  # fmt: skip
    return cast(g, g.op("Dequantize", x, dtype="f32", **own), dtype)


def quantized(g: GraphBuilder, x: Tensor, dtype: str = "s8", zp: int = 0) -> Tensor:
    return g.op("Quantize", cast(g, x, "f32"), dtype=dtype, scales=[0.5], zps=[zp])


def requantized(g: GraphBuilder, shape: Any, dtype: str, axis: int) -> Tensor:
    """Weights in float that are quantised in the graph."""
    own = {"scales": [0.5] * shape[axis], "zps": [0] * shape[axis], "qtype": "per_channel", "axis": axis}
    q = g.op("Quantize", g.input(shape), dtype="s8", **own)
    return cast(g, g.op("Dequantize", q, dtype="f32", **own), dtype)


def moved(g: GraphBuilder, x: Tensor, last: str = "StaticReshape") -> Tensor:
    """Heads back into the last axis: (n, h, s, d) -> (n, s, h * d)."""
    n, h, s, d = g.graph_shape(x)
    y = g.op("StaticTranspose", x, order=[0, 2, 1, 3])
    return g.op("Reorder", y) if last == "Reorder" else g.op(last, y, shape=[n, s, h * d], special_zero=False)
