"""Elementwise ops as programs of the elementwise engine, or as tables.

A function of one quantised tensor whose result is quantised too is looked up in a table of 256 bytes. The engine
computes it at each execution, in about a microsecond, since scalars that the function reads are known only then.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from ...._kernels.eltwise.lookup import byte_lookup
from ....graph.shapes import are_equal
from ..lower.instructions import apply
from ..lower.region import Region, region_name
from ..match.integers import byte_range
from ..match.segments import split_region
from ..support import common_register, narrow_register

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value

__all__ = ["lower_elementwise"]

_LEAST_ELEMENTS = 2048
"""Elements from which on looking up is faster than computing, table included."""

_DIVISIONS = frozenset({"Divide", "Mod", "Power"})
"""Kinds that are slow on integers; others are faster computed than looked up, if no register is wider than a byte."""


def lower_elementwise(lowering: Lowering, ops: Sequence[Op]) -> None:
    """Emit elementwise ops as a look-up, one kernel call, or as few as there must be."""
    if not _lower_table(lowering, ops):
        _lower_region(lowering, ops)


def _lower_region(lowering: Lowering, ops: Sequence[Op]) -> None:
    """Emit elementwise ops as one kernel call, or as few as there must be."""
    result = ops[-1].outputs[0].id
    order = lowering.order_of(result)
    register, parts = narrow_register(ops), split_region(ops)
    last = {tensor.id: number for number, part in enumerate(parts) for op in part for tensor in op.inputs}
    last[result] = len(parts)
    for number, part in enumerate(parts):
        region = Region(lowering, lowering.shapes[result], register=register, order=order)
        places: dict[int, Value] = {}
        for op in part:
            apply(region, op)
            if last.get(op.outputs[0].id, -1) > number:
                places[op.outputs[0].id] = region.store(op.outputs[0].id)
        region.emit(region_name(part), is_elementwise=len(places) == 1)
        for tensor_id, place in places.items():
            lowering.finish(tensor_id, place)


def _lower_table(lowering: Lowering, ops: Sequence[Op]) -> bool:
    """Emit elementwise ops as a table and a look-up, if they are a function of one tensor of bytes."""
    result = ops[-1].outputs[0].id
    source_id = _find_source(lowering, ops)
    is_fast = narrow_register(ops) == "u8" and not any(op.kind in _DIVISIONS for op in ops)
    if source_id is None or is_fast or len(split_region(ops)) > 1:
        return False
    source, order = lowering.value(source_id), lowering.order_of(result)
    is_alike = are_equal(source.shape, lowering.shapes[result])
    if not is_alike or not source.lies_in(order) or prod(source.shape) < _LEAST_ELEMENTS:
        return False
    table = _emit_table(lowering, ops, source_id, source)
    place = lowering.target(result, order=order)
    lowering.emit(byte_lookup(prod(source.shape)), [source, table, place], region_name(ops))
    lowering.finish(result, place)
    return True


def _find_source(lowering: Lowering, ops: Sequence[Op]) -> int | None:
    """The one tensor of bytes that the ops read besides scalars; None where they are no such function."""
    made = {op.outputs[0].id for op in ops}
    read = {tensor.id: tensor for op in ops for tensor in op.inputs if tensor.id not in made}
    sources = [tensor for tensor in read.values() if prod(lowering.shapes[tensor.id]) != 1]
    is_table = len(sources) == 1 and byte_range(sources[0].dtype) and byte_range(ops[-1].outputs[0].dtype)
    if not is_table or any(op.attrs.get("qtype", "per_tensor") != "per_tensor" for op in ops):
        return None
    return sources[0].id


def _emit_table(lowering: Lowering, ops: Sequence[Op], source_id: int, source: Value) -> Value:
    """The function of every byte, in the order of their bits."""
    shape = (*[1] * (len(source.shape) - 1), 256)
    numbers = np.arange(256, dtype=np.uint8).view(source.dtype.numpy).reshape(shape)
    region = Region(lowering, shape, register=common_register(ops))
    region.put(source_id, region.load(lowering.literal(numbers)))
    for op in ops:
        apply(region, op)
    table = lowering.temporary(shape, ops[-1].outputs[0].dtype)
    region.write(table, region.get(ops[-1].outputs[0].id))
    region.emit("eltwise(table)")
    return table
