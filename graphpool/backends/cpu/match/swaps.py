"""Ops that may change places with what is in front of them, and do where kernels gain by it.

A `Swap` is data: of two ops one behind the other, the second comes first. A front op of several inputs is joined by as
many copies of the back op, a back op of several outputs by as many of the front op.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass

from ....graph.op import first_free_id
from ....typing import PropertyType
from ..support import is_elementwise
from .integers import POOLS, PRODUCTS, byte_range

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ....graph.logical_tensor import LogicalTensor
    from ....graph.op import Op

__all__ = [
    "BYTES_MOVED",
    "BYTE_MOVES",
    "QUANTIZED_BEFORE_CONCAT",
    "QUANTIZED_BEFORE_TRANSPOSE",
    "RESHAPES_BEHIND",
    "Swap",
    "swap",
]

_LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})
BYTE_MOVES = _LOOKUPS | {"Expand", "Slice", "Split", "StaticReshape", "StaticTranspose", "Tile"}
"""Kinds whose outputs hold elements of their first input, whatever their type."""


@dataclass(frozen=True)
class Swap:
    """Two ops that change places, the first of kind `front`.

    `where` says of the first, of the second that reads its result, and of the kind of who reads the second's, whether
    they do. `moves`: the second moves elements, else it computes each by itself. `is_alone`: nobody but the second may
    read the first's result, which is then not computed.
    """

    front: str
    where: Callable[[Op, Op, str | None], bool]
    moves: bool = False
    is_alone: bool = True


def swap(rule: Swap, ops: Sequence[Op], shapes: dict[int, tuple[int, ...]], outputs: Collection[int] = ()) -> list[Op]:
    """The ops, in topological order, with pairs swapped as often as the rule holds: a pass of `rewrites.REWRITES`.

    Results are the same, bit by bit. Ops and their copies keep their id. Cost: linear in the ops, and in the swaps.
    """
    if not any(op.kind == rule.front for op in ops):
        return list(ops)
    readers = Counter([*outputs, *(tensor.id for op in ops for tensor in op.inputs)])
    kinds = {tensor.id: op.kind for op in ops for tensor in op.inputs}
    free = first_free_id(ops)
    placed: list[Op | None] = []
    place: dict[int, int] = {}
    waiting = list(ops)[::-1]
    while waiting:
        op = waiting.pop()
        at = place.get(op.inputs[0].id) if op.inputs else None
        front = None if at is None else placed[at]
        is_read = rule.is_alone and op.inputs and readers[op.inputs[0].id] != 1
        if at is None or front is None or is_read or not rule.where(front, op, kinds.get(op.outputs[0].id)):
            if op.kind == rule.front:
                place[op.outputs[0].id] = len(placed)
            placed.append(op)
            continue
        if rule.is_alone:
            placed[at] = None
        backs: list[Op] = []
        for source in front.inputs:
            made: list[LogicalTensor] = []
            for old in op.outputs:
                shape = shapes[old.id if rule.moves else source.id]
                made.append(old.replace(id=free, dtype=source.dtype if rule.moves else old.dtype, shape=shape))
                shapes[free], readers[free], kinds[free] = shape, 1, front.kind
                free += 1
            kinds[source.id] = op.kind
            backs.append(op.with_ports((source, *op.inputs[1:]), tuple(made)))
        columns = zip(*(back.outputs for back in backs), strict=True)
        fronts = [front.with_ports(column, (old,)) for column, old in zip(columns, op.outputs, strict=True)]
        waiting += [*backs, *fronts][::-1]
    return [op for op in placed if op is not None]


def _moves_bytes(front: Op, op: Op, reader: str | None) -> bool:
    """Whether an op may move what a Dequantize reads: bytes of one scale.

    Constants stay as they are, unless a few of their elements are looked up.
    """
    read = front.inputs[0]
    is_looked_up = read.property is not PropertyType.CONSTANT or op.kind in _LOOKUPS
    is_whole = byte_range(read.dtype) is not None and front.attrs["qtype"] == "per_tensor"
    return op.kind in BYTE_MOVES and is_looked_up and is_whole


def _is_of_one_operand(front: Op, op: Op, reader: str | None) -> bool:
    """Whether the op computes each element by itself, of any shape; no kernel takes in what it does."""
    is_pointwise = len(op.inputs) == 1 and is_elementwise(op) and op.attrs.get("qtype", "per_tensor") == "per_tensor"
    return is_pointwise and (op.kind != "Dequantize" or reader not in PRODUCTS | POOLS)


def _quantizes(front: Op, op: Op, reader: str | None) -> bool:
    """Whether the op quantises a tensor with one scale."""
    return op.kind == "Quantize" and op.attrs["qtype"] == "per_tensor"


BYTES_MOVED = Swap("Dequantize", _moves_bytes, moves=True, is_alone=False)
"""A look-up in a quantised table would dequantise the whole table at every run."""

RESHAPES_BEHIND = Swap("StaticReshape", _is_of_one_operand)
"""A reshape of a tensor without gaps costs nothing, but what lies behind it has another shape, and kernels take in only
post-ops of the shape of their results. ONNX's exporters put reshapes around every product of more than two axes."""

QUANTIZED_BEFORE_CONCAT = Swap("Concat", _quantizes)
"""Bytes are joined, and kernels write them where they belong."""

QUANTIZED_BEFORE_TRANSPOSE = Swap("StaticTranspose", _quantizes)
"""Kernels quantise their results, and bytes are read in another order: those of the heads of attention."""
