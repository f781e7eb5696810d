"""Searches and running results along an axis."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from graphpool.typing import DataType

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.onnx.build import NodeView, Value

__all__ = ["CONVERTERS"]


def _arg(kind: str) -> Callable[[NodeView], Value]:
    def convert(n: NodeView) -> Value:
        options = {"keep_dims": bool(n.attr("keepdims", 1)), "select_last_index": bool(n.attr("select_last_index", 0))}
        return n.emit_several(kind, [DataType.S64], n[0], axis=n.attr("axis", 0), **options)[0]

    return convert


def _running(kind: str) -> Callable[[NodeView], Value]:
    def convert(n: NodeView) -> Value:
        options = {name: bool(n.attr(name, 0)) for name in ("exclusive", "reverse")}
        return n.emit(kind, n[0], axis=int(n.known(1).reshape(())), **options)

    return convert


def _top_k(n: NodeView) -> list[Value]:
    k = n.attr("k") if n.opset < 10 else int(n.known(1).reshape(()))
    options = {name: bool(n.attr(name, 1)) for name in ("largest", "sorted")}
    return n.emit_several("TopK", [n[0].dtype, DataType.S64], n[0], k=k, axis=n.attr("axis", -1), **options)


def _hardmax(n: NodeView) -> Value:
    """One at the first of the largest elements, else zero; before opset 13 among all dimensions from the axis on."""
    shape = n[0].shape
    if 0 in shape:
        return n[0]
    axis = n.attr("axis", 1 if n.opset < 13 else -1) % len(shape)
    x = n[0] if n.opset >= 13 else n.reshape(n[0], (prod(shape[:axis]), prod(shape[axis:])))
    axis = axis if n.opset >= 13 else 1
    place = n.emit_several("ArgMax", [DataType.S64], x, axis=axis, keep_dims=False)[0]
    values = n.literal(np.array([0, 1]), x)
    hot = n.emit_several("OneHot", [x.dtype], place, values, depth=x.shape[axis], axis=axis)[0]
    return n.reshape(hot, shape)


CONVERTERS = {
    "ArgMax": _arg("ArgMax"), "ArgMin": _arg("ArgMin"), "CumSum": _running("CumSum"), "CumProd": _running("CumProd"),
    "TopK": _top_k, "Hardmax": _hardmax,
}  # fmt: skip
