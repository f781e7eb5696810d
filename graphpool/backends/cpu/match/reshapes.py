"""Reshapes moved behind the elementwise ops that follow them, so that those join what comes in front.

A reshape of a tensor without gaps costs nothing, but what lies behind it has another shape, and kernels take in only
post-ops of the shape of their results. ONNX's exporters put reshapes around every product of more than two axes.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from ....graph.op import first_free_id
from ..support import is_elementwise
from .integers import POOLS, PRODUCTS

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from ....graph.op import Op

__all__ = ["sink_reshapes"]

_READERS_OF_BYTES = PRODUCTS | POOLS


def sink_reshapes(ops: Sequence[Op], shapes: dict[int, tuple[int, ...]], outputs: Collection[int]) -> list[Op]:
    """The ops with each StaticReshape behind the elementwise ops of one operand that follow it.

    A pass of `rewrites.REWRITES`. Cost: linear in the ops, for a chain of reshapes and elementwise ops linear in both.
    """
    moved = list(ops)
    place = {op.outputs[0].id: number for number, op in enumerate(moved) if op.kind == "StaticReshape"}
    if not place:
        return moved
    readers = Counter(tensor.id for op in moved for tensor in op.inputs)
    readers.update(outputs)
    kinds = {tensor.id: op.kind for op in moved for tensor in op.inputs}
    free = first_free_id(moved)
    for number in range(len(moved)):
        at = number
        while _may_pass(moved[at], place, readers, kinds):
            before = place.pop(moved[at].inputs[0].id)
            reshape, op = moved[before], moved[at]
            between = op.outputs[0].replace(id=free, shape=shapes[reshape.inputs[0].id])
            shapes[free], readers[free], kinds[free] = shapes[reshape.inputs[0].id], 1, "StaticReshape"
            kinds[reshape.inputs[0].id] = op.kind
            moved[before] = op.with_ports(reshape.inputs, (between,))
            moved[at] = reshape.with_ports((between,), op.outputs)
            place[op.outputs[0].id] = at
            free += 1
            at = before
    return moved


def _may_pass(op: Op, place: dict[int, int], readers: Counter[int], kinds: dict[int, str]) -> bool:
    """Whether the op computes each element by itself from a reshape's result that nobody else reads."""
    if len(op.inputs) != 1 or not is_elementwise(op) or op.attrs.get("qtype", "per_tensor") != "per_tensor":
        return False
    if op.inputs[0].id not in place or readers[op.inputs[0].id] != 1:
        return False
    return op.kind != "Dequantize" or kinds.get(op.outputs[0].id) not in _READERS_OF_BYTES
