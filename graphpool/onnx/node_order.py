"""Puts the nodes of graphs into an order in which each comes behind those that it reads.

ONNX asks for such an order and its checker refuses all others, but ONNX Runtime sorts by itself, so that files exist
which nothing else ever had to read in order.
"""

from __future__ import annotations

from collections import defaultdict
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from .bounds import graphs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .proto import GraphProto, ModelProto, NodeProto

__all__ = ["sort_nodes"]


def sort_nodes(model: ModelProto) -> list[int]:
    """Sort the nodes of a model, of the graphs inside them and of its functions, in place.

    Returns the numbers that the nodes of the model's own graph had before. Nodes in order keep it, others come as soon
    as they can; those of a circle stay where they are. Cost: some microseconds a node.
    """
    for function in model.functions:
        _sort(function)
    return _sort(model.graph)


def _sort(graph: GraphProto) -> list[int]:
    """The same of one graph or function, anything with nodes."""
    for inner in _inner_graphs(graph.node):
        _sort(inner)
    order = _order([(_names_read(node), node.output[:]) for node in graph.node[:]])
    places = iter(_inverse(order))
    graph.node.sort(key=lambda _: next(places))
    return order


def _order(nodes: Sequence[tuple[set[str], Sequence[str]]]) -> list[int]:
    """An order of nodes that read and give these names: of those that can come next, the one that stands first."""
    makers = {name: number for number, (_, outputs) in enumerate(nodes) for name in outputs if name}
    readers: dict[int, list[int]] = defaultdict(list)
    missing = []
    for number, (names, _) in enumerate(nodes):
        waited = {makers[name] for name in names if name in makers}
        missing.append(len(waited))
        for maker in waited:
            readers[maker].append(number)
    ready = [number for number, count in enumerate(missing) if not count]  # in ascending order: a heap
    order = []
    while ready:
        number = heappop(ready)
        order.append(number)
        for reader in readers[number]:
            missing[reader] -= 1
            if not missing[reader]:
                heappush(ready, reader)
    return order if len(order) == len(nodes) else list(range(len(nodes)))


def _inverse(order: Sequence[int]) -> list[int]:
    places = [0] * len(order)
    for place, number in enumerate(order):
        places[number] = place
    return places


def _names_read(node: NodeProto) -> set[str]:
    """The names that a node reads, with those that the graphs inside it read from outside."""
    names = set(node.input[:])
    for inner in _inner_graphs([node]):
        read = {info.name for info in inner.output}.union(*[_names_read(each) for each in inner.node[:]])
        own = {name for each in inner.node[:] for name in each.output[:]}
        names |= read - own - {info.name for info in (*inner.input[:], *inner.initializer[:])}
    return names


def _inner_graphs(nodes: Iterable[NodeProto]) -> list[GraphProto]:
    return [graph for node in nodes for attribute in node.attribute[:] for graph in graphs_of(attribute)]
