"""Reductions."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING

from graphpool.onnx.build import Value
from graphpool.onnx.shape_values import shape_array
from graphpool.typing import DataType

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.onnx.build import NodeView


def _axes(n: NodeView) -> list[int]:
    """Axes to reduce; none is all of them, unless the node says that it is none."""
    axes = n.ints("axes", 1) or []
    keeps_all = not axes and n.attr("noop_with_empty_axes", 0)
    return [] if keeps_all else axes or list(range(len(n[0].shape)))


def _reduce(kind: str, n: NodeView, value: Value | None = None, keep: bool | None = None) -> Value:
    """The reduction, of the first input by default; of no axis, and of a scalar, it is that of single elements."""
    value = n[0] if value is None else value
    keep, axes = bool(n.attr("keepdims", 1)) if keep is None else keep, _axes(n)
    if axes:
        return n.emit(kind, value, axes=axes, keep_dims=keep)
    column = n.emit(kind, n.reshape(value, (*value.shape, 1)), axes=[-1], keep_dims=False)
    return n.reshape(column, value.shape)


def _of_f64(kind: str, formula: Callable[[NodeView], Value]) -> Callable[[NodeView], Value]:
    """A kind that takes the reals but f64, for which a formula stands."""
    return lambda n: formula(n) if n[0].dtype is DataType.F64 else _reduce(kind, n)


def _mean(n: NodeView) -> Value:
    """Of integers and f64 a sum by the number of its terms, which may vary."""
    if n[0].dtype in _REALS and n[0].dtype is not DataType.F64:
        return _reduce("ReduceMean", n)
    count = prod([n[0].shape[axis] for axis in _axes(n)])
    return n.emit("Divide", _reduce("ReduceSum", n), n.cast(Value(content=shape_array(count)), n[0].dtype))


def _sum_of_squares(n: NodeView) -> Value:
    return _reduce("ReduceSum", n, n.emit("Multiply", n[0], n[0]))


def _extreme(kind: str) -> Callable[[NodeView], Value]:
    """Largest or smallest element; of truth values by way of 0 and 1, and of none of them an infinity."""

    def convert(n: NodeView) -> Value:
        if n[0].dtype is not DataType.BOOLEAN:
            return _reduce(kind, n)
        found = _reduce(kind, n, n.cast(n[0], DataType.F32))
        return n.emit_several("GreaterEqual", [DataType.BOOLEAN], found, n.literal(0.5, found))[0]

    return convert


def _logarithm(formula: Callable[[NodeView, Value], Value]) -> Callable[[NodeView], Value]:
    """A formula of real numbers; integers go by way of them."""

    def convert(n: NodeView) -> Value:
        x = n[0] if n[0].dtype in _REALS else n.cast(n[0], DataType.F32)
        return n.cast(formula(n, x), n[0].dtype)

    return convert


_REALS = (DataType.F32, DataType.F64, DataType.F16, DataType.BF16)


def _log_sum_exp(n: NodeView, x: Value) -> Value:
    """The maximum is taken out before the exponential and added to the logarithm."""
    largest = n.emit("Clamp", _reduce("ReduceMax", n, x, keep=True), min=-3.0e38, max=3.0e38)
    total = _reduce("ReduceSum", n, n.emit("Exp", n.emit("Subtract", x, largest)))
    return n.emit("Add", n.emit("Log", total), n.reshape(largest, total.shape))


CONVERTERS: dict[str, Callable[[NodeView], Value]] = {
    **{kind: partial(_reduce, kind) for kind in ("ReduceProd", "ReduceSum")},
    "ReduceL1": _of_f64("ReduceL1", lambda n: _reduce("ReduceSum", n, n.emit("Abs", n[0]))),
    "ReduceL2": _of_f64("ReduceL2", lambda n: n.emit("Sqrt", _sum_of_squares(n))),
    "ReduceMean": _mean,
    **{kind: _extreme(kind) for kind in ("ReduceMax", "ReduceMin")},
    "ReduceSumSquare": _sum_of_squares,
    "ReduceLogSum": _logarithm(lambda n, x: n.emit("Log", _reduce("ReduceSum", n, x))),
    "ReduceLogSumExp": _logarithm(_log_sum_exp),
}  # fmt: skip
