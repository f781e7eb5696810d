"""Lets moves move the bytes of quantised tensors instead of the numbers that they stand for.

Tools that quantise put a DequantizeLinear in front of every op and a QuantizeLinear behind it, those too that only
move elements: a look-up in a quantised table would dequantise the table at every run. With one scale for all elements
the order does not matter. What then dequantises and quantises again by the same numbers does nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .boundary import Boundary
from .node import make_node

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from .node import Node

__all__ = ["move_bytes"]

_LOOKUPS = frozenset({"Gather", "GatherElements", "GatherND"})
_MOVES = _LOOKUPS | {
    "DepthToSpace", "Expand", "Flatten", "Identity", "Reshape", "Slice", "SpaceToDepth", "Split", "Squeeze", "Tile",
    "Transpose", "Unsqueeze",
}  # fmt: skip
"""Ops whose outputs hold elements of their first input, whatever their type."""

_BYTES = (np.dtype(np.uint8), np.dtype(np.int8))
_CORE = ("", "ai.onnx")


def move_bytes(nodes: Sequence[Node], constants: Mapping[str, Any], outputs: Collection[str]) -> list[Node]:
    """The nodes with DequantizeLinear behind moves; what nobody reads any more is still among them.

    Parameters
    ----------
    nodes : sequence of Node
        In topological order.
    constants : mapping of str to array
    outputs : collection of str
        Of the model: these names stay.

    Returns
    -------
    nodes : list of Node
        In topological order. Results are the same, bit by bit.
    """
    kept = {*outputs, *(name for node in nodes for name in node.captured)}
    moved: list[Node] = []
    producers: dict[str, Node] = {}
    names: dict[str, str] = {}  # of what is the same as another tensor
    for node in nodes:
        with Boundary("rewritten", node):
            changed = [_renamed(node, names)]
            source = producers.get(changed[0].input[0]) if node.input and node.domain in _CORE else None
            if source is not None:
                [node] = changed
                if node.op_type == "QuantizeLinear" and _undoes(node, source, constants):
                    names[node.output[0]] = source.input[0]
                    changed = [make_node("Identity", [source.input[0]], node.output, node.label)]
                    changed = changed if node.output[0] in kept else []
                elif node.op_type in _MOVES and _is_movable(node, source, constants):
                    changed = _swapped(node, source)
            moved += changed
            found = (new for new in changed if new.op_type == "DequantizeLinear" and new.domain in _CORE)
            producers.update((new.output[0], new) for new in found)
    return moved


def _renamed(node: Node, names: Mapping[str, str]) -> Node:
    """The node reading the tensors that are the same as those it reads."""
    if names.keys().isdisjoint(node.input):
        return node
    return node.changed(inputs=[names.get(name, name) for name in node.input])


def _is_movable(node: Node, source: Node, constants: Mapping[str, Any]) -> bool:
    """Whether `node` may move what `source` dequantises: bytes with one known scale.

    Weights that lie in a file stay there, unless a few of their elements are looked up.
    """
    if _numbers(source, constants) is None or _axis_matters(source):
        return False
    if source.input[0] in constants:
        return constants[source.input[0]].dtype in _BYTES and node.op_type in _LOOKUPS
    return _point_of(source, constants).dtype in _BYTES


def _axis_matters(node: Node) -> bool:
    return bool(node.attrs.get("block_size", 0) or node.attrs.get("output_dtype", 0))


def _point_of(node: Node, constants: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The zero point: of unsigned bytes where none is given."""
    if len(node.input) > 2 and node.input[2]:
        return np.asarray(constants[node.input[2]])
    return np.zeros((), np.uint8)


def _numbers(node: Node, constants: Mapping[str, Any]) -> tuple[np.dtype[Any], bytes, np.dtype[Any], bytes] | None:
    """Scale and zero point with their types; None unless they are known and the same for all elements."""
    names = [name for name in node.input[1:] if name]
    if any(name not in constants or np.size(constants[name]) != 1 for name in names):
        return None
    scale, point = np.asarray(constants[node.input[1]]), _point_of(node, constants)
    return scale.dtype, scale.tobytes(), point.dtype, point.tobytes()


def _undoes(node: Node, source: Node, constants: Mapping[str, Any]) -> bool:
    """Whether a QuantizeLinear gives back, bit by bit, what a DequantizeLinear has read.

    Bytes times a scale are off by half a unit in the last place, as is their quotient: rounding finds the byte again,
    unless the product overflows or has no full precision.
    """
    numbers = _numbers(node, constants)
    if numbers is None or numbers != _numbers(source, constants) or _axis_matters(node) or _axis_matters(source):
        return False
    scale = np.asarray(constants[node.input[1]])
    is_normal = scale.dtype == np.float32 and 1e-30 < float(scale.reshape(())) < 1e30
    tells_type = len(source.input) > 2 and bool(source.input[2])  # else bytes of any type may have been read
    return is_normal and tells_type and _point_of(node, constants).dtype in _BYTES


def _swapped(node: Node, source: Node) -> list[Node]:
    """The move of the bytes, and a DequantizeLinear behind each of its outputs."""
    names = [f"{name}/bytes" if name else "" for name in node.output]
    move = node.changed(inputs=(source.input[0], *node.input[1:]), outputs=names)
    behind = [
        source.changed(inputs=(inner, *source.input[1:]), outputs=(name,))
        for inner, name in zip(names, node.output, strict=True)
        if name
    ]
    return [move, *behind]
