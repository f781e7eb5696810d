"""Places in tables that lie outside are refused before a run: those in inputs, and those that follow from sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import replace
from graphpool._sizes import hint_of, is_variable
from graphpool.errors import InvalidArgumentError, explain
from graphpool.runtime.model_port import IndexRange
from graphpool.typing import DataType

from .proto import TensorProto
from .shape_values import ShapeArray

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphpool.runtime.model_port import ModelPort

    from .build import Value
    from .node import Node

__all__ = ["check_places", "pass_span_on", "with_index_ranges"]

_SAME_ELEMENTS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
"""Ops whose results have the elements of their first input, each at least once."""
_SAME_SHAPE = frozenset({"Cast", "DequantizeLinear", "Identity"})
"""Ops whose results have the shape of their first input."""

_TABLES = {
    "Gather": ((1, 0, "axis", -1),),
    "GatherElements": ((1, 0, "axis", -1),),
    "GatherBlockQuantized": ((1, 0, "gather_axis", -1),),
    "EmbedLayerNormalization": ((0, 2, "", 0), (1, 4, "", 0)),
}
"""Op -> for each input of places, the input that is the table, the attribute that names its axis, 0 without, and how
often the axis may be gone round backwards: -1 if places count from its end too."""


def with_index_ranges(
    ports: Sequence[ModelPort], nodes: Sequence[Node], constants: Mapping[str, Any]
) -> tuple[ModelPort, ...]:
    """The inputs of a model, with what their elements may be where every run reads them as places.

    Parameters
    ----------
    ports : sequence of ModelPort
        The inputs.
    nodes : sequence of Node
        Of the model, in order, all of them needed; those of graphs inside them are not looked at, which may never run.
    constants : mapping of str to array or list
        Lists are sequences.
    """
    origin = {port.name: port.name for port in ports if port.dtype in (DataType.S32, DataType.S64)}
    if not origin:
        return tuple(ports)
    known = {port.name: port.shape for port in ports if port.shape is not None}
    known |= {name: value.shape for name, value in constants.items() if not isinstance(value, list)}
    found: dict[str, IndexRange] = {}
    for node in nodes:
        first = node.input[0] if node.input else ""
        if node.op_type in _SAME_SHAPE and first in known:
            known[node.output[0]] = known[first]
        if first in origin and (node.op_type in _SAME_ELEMENTS or _is_whole_cast(node)):
            origin[node.output[0]] = origin[first]
        for place, table, attribute, turns in _TABLES.get(node.op_type, ()):
            if max(place, table) < len(node.input) and node.input[place] in origin:
                dim = _dim(known.get(node.input[table]), node.attrs.get(attribute, 0))
                if dim is None:
                    continue
                name = origin[node.input[place]]
                old = found.get(name, IndexRange(turns * dim, dim - 1, node.label))
                new = IndexRange(max(old.low, turns * dim), min(old.high, dim - 1), node.label)
                found[name] = old if new[:2] == old[:2] else new
    return tuple([replace(port, indices=found[port.name]) if port.name in found else port for port in ports])


def pass_span_on(node: Node, inputs: Sequence[Value | None], results: Sequence[Value]) -> None:
    """Tell what the results of a node span that moves, repeats or shifts whole numbers that follow from sizes."""
    first = inputs[0] if inputs else None
    if first is None:
        return
    if node.op_type == "Add":
        second = inputs[1]
        assert second is not None  # both are asked for
        found = _shifted(first.span, second) or _shifted(second.span, first)
    elif node.op_type in _SAME_ELEMENTS or node.op_type == "Expand" or _is_whole_cast(node):
        found = first.span
    else:
        return
    if found is not None:
        results[0].span = found


def _shifted(span: tuple[Any, Any] | None, by: Value) -> tuple[Any, Any] | None:
    """The span moved by a single whole number that is known; None where it is not."""
    number = None if span is None else _span(by)
    if span is None or number is None or by.content is None or by.content.size != 1:
        return None
    return span[0] + number[0], span[1] + number[0]


def check_places(node: Node, inputs: Sequence[Value | None]) -> None:
    """Refuse a node that would read beyond the end of a table, if what it reads is known or follows from sizes.

    Raises InvalidArgumentError. Where sizes vary, that they stay within the table is noted as a guard.
    """
    for place, table, attribute, turns in _TABLES.get(node.op_type, ()):
        if max(place, table) >= len(inputs):
            continue
        places, read = inputs[place], inputs[table]
        span = None if places is None else _span(places)
        dim = _dim(read.shape, node.attrs.get(attribute, 0)) if span and read is not None and read.is_plain else None
        if span is None or dim is None:
            continue
        if span[0] < turns * dim or span[1] >= dim:
            accepted, got = f"{turns * dim} to {dim - 1}", f"{hint_of(span[0])} to {hint_of(span[1])}"
            what = f"node {node.label!r} ({node.op_type}): places in a table"
            raise InvalidArgumentError(explain(what, accepted=accepted, got=got), node=node.label)


def _span(places: Value) -> tuple[Any, Any] | None:
    """The least and the greatest place; None where there is none, or where they are not known."""
    content = places.content
    if isinstance(content, np.ndarray) and content.size and content.dtype.kind == "i":
        return int(content.min()), int(content.max())
    if isinstance(content, ShapeArray) and content.size == 1:
        [item] = content.items.reshape(-1)
        return item, item
    return places.span


def _is_whole_cast(node: Node) -> bool:
    """Whether a node gives places in another type."""
    return node.op_type == "Cast" and node.attrs.get("to") in (TensorProto.INT32, TensorProto.INT64)


def _dim(shape: tuple[int | str | None, ...] | None, axis: int) -> int | None:
    """The size of an axis that has elements, where that is one number; None else."""
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    dim = shape[axis]
    return dim if isinstance(dim, int) and not is_variable(dim) and dim > 0 else None
