"""What dequantises and quantises again by the same numbers does nothing.

Tools that quantise put a Dequantize in front of every op and a Quantize behind it, those too that only move elements.
Once these move bytes instead (`swaps.BYTES_MOVED`), the two stand side by side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .integers import byte_range

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from ....graph.logical_tensor import LogicalTensor
    from ....graph.op import Op

__all__ = ["drop_undone", "needed"]


def drop_undone(ops: Sequence[Op], shapes: dict[int, tuple[int, ...]], outputs: Collection[int]) -> list[Op]:
    """The ops that are needed, without a Quantize of what a Dequantize has read: a pass of `rewrites.REWRITES`.

    Results are the same, bit by bit. Cost: linear in the ops.
    """
    if not any(op.kind == "Dequantize" for op in ops):
        return list(ops)
    kept: list[Op] = []
    makers: dict[int, Op] = {}
    written: set[int] = set()  # what may be called like an output that it equals
    equal: dict[int, LogicalTensor] = {}
    for op in ops:
        op = _renamed(op, equal)
        source = makers.get(op.inputs[0].id) if op.inputs else None
        if source is not None and _undoes(op, source):
            old, new = op.outputs[0], source.inputs[0]
            if old.id not in outputs:
                equal[old.id] = new
                continue
            if new.id in written:
                written.remove(new.id)
                equal[new.id] = old
                continue
        kept.append(op)
        if op.kind == "Dequantize":
            makers[op.outputs[0].id] = op
        written.update(tensor.id for tensor in op.outputs if tensor.id not in outputs)
    return needed([_renamed(op, equal) for op in kept], outputs)


def _renamed(op: Op, names: Mapping[int, LogicalTensor]) -> Op:
    """The op on the tensors that are the same as its own."""
    if not any(tensor.id in names for tensor in (*op.inputs, *op.outputs)):
        return op
    inputs, outputs = (tuple(names.get(tensor.id, tensor) for tensor in side) for side in (op.inputs, op.outputs))
    return op.with_ports(inputs, outputs)


def _undoes(op: Op, source: Op) -> bool:
    """Whether a Quantize gives back, bit by bit, what a Dequantize has read.

    Bytes times a scale are off by half a unit in the last place, as is their quotient: rounding finds the byte again,
    unless the product overflows or has no full precision.
    """
    dtype = op.outputs[0].dtype
    if op.kind != "Quantize" or byte_range(dtype) is None or dtype is not source.inputs[0].dtype:
        return False
    numbers = _numbers(op)
    return numbers is not None and numbers == _numbers(source) and 1e-30 < numbers[0] < 1e30


def _numbers(op: Op) -> tuple[float, int] | None:
    """The scale and zero point of all elements; None where there are several."""
    if op.attrs["qtype"] != "per_tensor":
        return None
    return op.attrs["scales"][0], (op.attrs.get("zps") or [0])[0]


def needed(ops: Sequence[Op], outputs: Iterable[int]) -> list[Op]:
    """The ops that give what is read or leaves the partition."""
    needed, kept = set(outputs), []
    for op in reversed(ops):
        if not op.outputs or any(tensor.id in needed for tensor in op.outputs):
            needed.update(tensor.id for tensor in op.inputs)
            kept.append(op)
    return kept[::-1]
