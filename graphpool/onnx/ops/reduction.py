"""Reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.onnx.build import NodeView, Value

__all__ = ["CONVERTERS"]


def _axes(n: NodeView) -> list[int]:
    axes = n.ints("axes", 1)
    n.require(bool(axes) or not n.attr("noop_with_empty_axes", 0), "no axes and noop_with_empty_axes")
    n.require(all(n[0].shape) and bool(n[0].shape), "an empty or scalar input")
    return axes or list(range(len(n[0].shape)))


def _reduce(n: NodeView, kind: str, value: Value, keep: bool | None = None) -> Value:
    keep = bool(n.attr("keepdims", 1)) if keep is None else keep
    return n.emit(kind, value, axes=_axes(n), keep_dims=keep)


def _plain(kind: str) -> Callable[[NodeView], Value]:
    return lambda n: _reduce(n, kind, n[0])


def _sum_square(n: NodeView) -> Value:
    return _reduce(n, "ReduceSum", n.emit("Square", n[0]))


def _log_sum(n: NodeView) -> Value:
    return n.emit("Log", _reduce(n, "ReduceSum", n[0]))


def _log_sum_exp(n: NodeView) -> Value:
    """The maximum is taken out before the exponential and added to the logarithm."""
    largest = n.emit("Clamp", _reduce(n, "ReduceMax", n[0], keep=True), min=-3.0e38, max=3.0e38)
    total = _reduce(n, "ReduceSum", n.emit("Exp", n.emit("Subtract", n[0], largest)))
    return n.emit("Add", n.emit("Log", total), n.reshape(largest, total.shape))


CONVERTERS = {
    **{kind: _plain(kind) for kind in ("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
                                       "ReduceSum")},
    "ReduceSumSquare": _sum_square, "ReduceLogSum": _log_sum, "ReduceLogSumExp": _log_sum_exp,
}  # fmt: skip
