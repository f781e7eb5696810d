"""Which ops compute each row of their results, an index of axis 0, from the same row of operands and from no other.

A rule a kind says which operands an op reads row by row; all others it reads as a whole, for each row the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...._sizes import key_of
from ..support import INSTRUCTIONS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from ....graph.op import Op

    Shapes = Mapping[int, tuple[int, ...]]
    Ports = tuple[bool, ...]

__all__ = ["ports_by_row"]


def ports_by_row(op: Op, shapes: Shapes) -> Ports | None:
    """Of each operand whether the op reads it row by row; None where rows may see one another, or there is just one.

    All results, which have two axes at least, have as many rows as those operands.
    """
    rows = key_of(shapes[op.outputs[0].id][:1])
    find = _RULES.get(op.kind, _broadcast if op.kind in INSTRUCTIONS else None)
    if find is None or rows in ((), (0,), (1,)) or any(len(shapes[tensor.id]) < 2 for tensor in op.outputs):
        return None
    ports = find(op, shapes)
    if ports is None or not any(ports):
        return None
    by_row = [tensor for tensor, is_by_row in zip(op.inputs, ports, strict=True) if is_by_row]
    return ports if all(key_of(shapes[tensor.id][:1]) == rows for tensor in (*op.outputs, *by_row)) else None


def _first(op: Op, shapes: Shapes) -> Ports:
    """The first operand alone; others are weights, vectors or scales."""
    return (True, *[False] * (len(op.inputs) - 1))


def _broadcast(op: Op, shapes: Shapes) -> Ports:
    """All operands with as many axes as the result, but for those of one row."""
    ndim = len(shapes[op.outputs[0].id])
    found = [shapes[tensor.id] for tensor in op.inputs]
    return tuple([len(shape) == ndim and key_of(shape[0]) != 1 for shape in found])


def _scaled(op: Op, shapes: Shapes) -> Ports | None:
    """A number for each index of an axis that is not that of the rows; of grouped weights there are more."""
    if op.attrs["qtype"] == "per_tensor":
        return _first(op, shapes)
    if op.attrs["qtype"] != "per_channel":
        return None
    count = len(op.attrs["scales"]) if len(op.inputs) == 1 else shapes[op.inputs[1].id][0]
    return _along(op, shapes) if key_of(count) == key_of(shapes[op.inputs[0].id][op.attrs["axis"]]) else None


def _along(op: Op, shapes: Shapes) -> Ports | None:
    return None if _has_first([op.attrs["axis"]], op, shapes) else _first(op, shapes)


def _normalised(op: Op, shapes: Shapes) -> Ports | None:
    return None if _has_first([op.attrs["begin_norm_axis"]], op, shapes) else _first(op, shapes)


def _reduced(op: Op, shapes: Shapes) -> Ports | None:
    axes = op.attrs["axes"]
    return None if not axes or len(op.inputs) > 1 or _has_first(axes, op, shapes) else _first(op, shapes)


def _joined(op: Op, shapes: Shapes) -> Ports | None:
    return None if _has_first([op.attrs["axis"]], op, shapes) else (True,) * len(op.inputs)


def _cut(op: Op, shapes: Shapes) -> Ports | None:
    axes = op.attrs["axes"] or range(len(op.attrs["starts"]))
    return None if _has_first(axes, op, shapes) else _first(op, shapes)


def _transposed(op: Op, shapes: Shapes) -> Ports | None:
    order = op.attrs["order"]
    return _first(op, shapes) if order and order[0] % len(order) == 0 else None


def _padded(op: Op, shapes: Shapes) -> Ports | None:
    pads = key_of((op.attrs["pads_begin"][0], op.attrs["pads_end"][0]))
    return _first(op, shapes) if pads == (0, 0) else None


def _product(op: Op, shapes: Shapes) -> Ports | None:
    """Rows of a matrix, or matrices of a batch; a bias is broadcast."""
    a, b = [len(shapes[tensor.id]) for tensor in op.inputs[:2]]
    result = len(shapes[op.outputs[0].id])
    if a != result or (a == 2 and (b > 2 or op.attrs["transpose_a"])):
        return None
    others = _broadcast(op, shapes)[1:]
    return (True, others[0] and a > 2, *others[1:])


def _has_first(axes: Iterable[int], op: Op, shapes: Shapes) -> bool:
    """Whether one of the axes is that of the rows."""
    ndim = len(shapes[op.inputs[0].id])
    return any(axis % ndim == 0 for axis in axes)


_RULES: dict[str, Callable[[Op, Shapes], Ports | None]] = {
    **dict.fromkeys(("AvgPool", "BatchNormInference", "BiasAdd", "ConvTranspose", "Convolution"), _first),
    **dict.fromkeys(("GroupNorm", "Interpolate", "MaxPool", "StaticReshape"), _first),
    **dict.fromkeys(("Dequantize", "DynamicDequantize", "DynamicQuantize", "Quantize"), _scaled),
    **dict.fromkeys(("LayerNorm", "RMSNorm"), _normalised),
    **dict.fromkeys(("LogSoftmax", "SoftMax", "Split"), _along),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd"), _reduced),
    "ReduceSum": _reduced,
    "Concat": _joined,
    "MatMul": _product,
    "Pad": _padded,
    "Slice": _cut,
    "StaticTranspose": _transposed,
}
"""Kinds beside those that become instructions and broadcast their operands."""
