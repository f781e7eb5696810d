"""Quantise and dequantise, by scales that are known (attributes) or computed (inputs).

ONNX rounds x / scale and then adds the zero point, ours rounds the sum; they differ by one where x / scale lies halfway
between two integers and the zero point is odd.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.typing import DataType

if TYPE_CHECKING:
    from graphpool.onnx.build import NodeView, Value

__all__ = ["CONVERTERS"]

_EIGHT = (DataType.U8, DataType.S8)


def _options(n: NodeView) -> dict[str, Any]:
    """Per tensor or per channel; blocks are refused."""
    scale = n[1].shape
    n.require(not n.attr("block_size", 0) and len(scale) <= 1, "scales of blocks")
    if scale == () or scale == (1,):
        return {"qtype": "per_tensor"}
    return {"qtype": "per_channel", "axis": n.attr("axis", 1)}


def _convert(n: NodeView, kind: str, target: DataType) -> Value:
    options = _options(n)
    if n[1].is_known and (not n.has(2) or n[2].is_known):
        scales = n.known(1).reshape(-1)
        points = n.known(2).reshape(-1) if n.has(2) else np.zeros(len(scales), np.int64)
        options |= {"scales": scales.astype(np.float64), "zps": points.astype(np.int64)}
        return n.emit_several(kind, [target], n[0], **options)[0]
    inputs = [n[0], *(n[k] for k in (1, 2) if n.has(k))]
    return n.emit_several(f"Dynamic{kind}", [target], *inputs, **options)[0]


def _quantize(n: NodeView) -> Value:
    target = n[2].dtype if n.has(2) else DataType.U8
    n.require(target in _EIGHT and n.attr("output_dtype", 0) == 0, "not an 8-bit integer type")
    n.require(n[0].dtype is DataType.F32 and n[1].dtype is DataType.F32, "not float32")
    return _convert(n, "Quantize", target)


def _dequantize(n: NodeView) -> Value:
    n.require(n[0].dtype in _EIGHT and n[1].dtype is DataType.F32, "not an 8-bit integer type")
    n.require(n.attr("output_dtype", 0) in (0, 1), "not float32")
    return _convert(n, "Dequantize", DataType.F32)


CONVERTERS = {"QuantizeLinear": _quantize, "DequantizeLinear": _dequantize}
