"""Rewrites the nodes of a model once, whatever its input shapes will be.

Nodes that nobody needs go, constants are computed, products of integers become those of the floats that they stand for
(integers.py), and Scatter gets its new name. Other rules are the graph's and the backend's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .fold import fold_constants
from .integers import restore_floats
from .node import names_read

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .node import Node
    from .source import OnnxModel


def rewrite(source: OnnxModel) -> tuple[list[Node], dict[str, Any]]:
    """The nodes that are needed, in topological order, and the constants that they read or that are outputs."""
    outputs = [port.name for port in source.outputs]
    nodes = _needed([_renamed(node) for node in source.nodes], outputs)
    nodes, constants = fold_constants(source, nodes, source.constants)
    nodes = _needed(restore_floats(source, nodes, constants), outputs)
    read = names_read(nodes, outputs)
    return nodes, {name: content for name, content in constants.items() if name in read}


def _needed(nodes: Sequence[Node], outputs: Sequence[str]) -> list[Node]:
    needed, kept = set(outputs), []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.output):
            needed.update(node.input, node.captured)
            kept.append(node)
    return kept[::-1]


def _renamed(node: Node) -> Node:
    """The node; ScatterElements for Scatter, whose place it took."""
    return node.changed(op_type="ScatterElements") if node.op_type == "Scatter" else node
