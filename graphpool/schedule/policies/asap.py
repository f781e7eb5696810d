"""Heavy chains, each on a stream, started as soon as what they read is there."""

from __future__ import annotations

from bisect import insort
from typing import TYPE_CHECKING

from graphpool.schedule.graph import check_graph
from graphpool.schedule.instructions import AddEvent, Instruction, Run, SetStream, WaitEvent
from graphpool.schedule.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphpool.schedule.graph import DependencyGraph


def asap(graph: DependencyGraph, weights: Sequence[float] | None = None) -> Schedule:
    """Split the graph into chains, run each on one stream, and wait only where chains meet.

    Nodes, heaviest tail first, take their first producer that no other node has taken; the pairs form the chains. A
    chain reuses the stream of one that has ended before it can start, so streams never add an order.

    Parameters
    ----------
    graph : DependencyGraph
        What to schedule.
    weights : sequence of float, optional
        Weight of each node in the tails. Default: 1 each, as RAF has it; pass ``graph.costs`` to respect the costs.

    Returns
    -------
    schedule : Schedule
        Stream ids start at 1, since RAF keeps 0 for the NULL stream. With streams to spare its makespan is the
        critical path.

    Raises
    ------
    InvalidArgumentError
        Bad `weights`.

    Notes
    -----
    Ownership: shares `graph`. Threads: safe. Cost: O(nodes * streams + edges) after the transitive reduction.
    Source: RAF's ASAP schedule; its programs are reproduced with stream and event ids. Ties keep the
    order of the visit.
    """
    check_graph(graph)
    tail = graph.tails((1,) * graph.num_nodes if weights is None else weights)
    before, after = _heavy_edges(graph, tail)
    order = chain_order(graph, tail, before, after)
    streams = _streams(graph, order, before, after)
    return Schedule(graph, _program(graph, order, streams, before), "asap")


def _heavy_edges(graph: DependencyGraph, tail: list[float]) -> tuple[dict[int, int], dict[int, int]]:
    """Heavy producer and heavy consumer of the nodes that have one. Greedy: not always a maximum matching."""
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    for node in sorted(graph.order, key=lambda v: -tail[v]):
        for producer in graph.reduced_predecessors[node]:
            if producer not in after:
                before[node], after[producer] = producer, node
                break
    return before, after


def chain_order(graph: DependencyGraph, tail: list[float], before: dict[int, int], after: dict[int, int]) -> list[int]:
    """Issue order that stays on a chain while it can and starts the chain with the heaviest tail next.

    `before` and `after` name the neighbours of a node in its chain.
    """
    need = [len(producers) for producers in graph.reduced_predecessors]
    ready: list[int] = []
    for node in graph.order:
        if not need[node]:
            insort(ready, node, key=tail.__getitem__)
    order = []
    while ready:
        node = ready.pop()
        order.append(node)
        for consumer in graph.reduced_successors[node]:
            need[consumer] -= 1
            if not need[consumer] and before.get(consumer) != node:
                insort(ready, consumer, key=tail.__getitem__)
        if node in after and not need[after[node]]:
            ready.append(after[node])  # on top whatever its tail, which is popped next: the list stays sorted
    return order


def _streams(graph: DependencyGraph, order: list[int], before: dict[int, int], after: dict[int, int]) -> dict[int, int]:
    """Stream of each node: that of its chain, else the newest whose chain ended before the node, else a new one."""
    reach = graph.descendants()
    stream_of: dict[int, int] = {}
    ends: dict[int, int] = {}  # last node of each stream; in order of creation
    for node in order:
        if node in before:
            stream = stream_of[before[node]]
        else:
            free = (s for s, end in reversed(ends.items()) if end not in after and reach[end] >> node & 1)
            stream = next(free, len(ends) + 1)
        stream_of[node] = stream
        ends[stream] = node
    return stream_of


def _program(
    graph: DependencyGraph, order: list[int], stream_of: dict[int, int], before: dict[int, int]
) -> tuple[Instruction, ...]:
    program: list[Instruction] = []
    event_of: dict[int, int] = {}
    previous = None
    for node in order:
        if previous is None or before.get(node) != previous:
            program.append(SetStream(0, stream_of[node]))
        light = (producer for producer in graph.reduced_predecessors[node] if producer != before.get(node))
        program.extend(WaitEvent(event_of[producer]) for producer in light)
        program.append(Run(node))
        if any(before.get(consumer) != node for consumer in graph.reduced_successors[node]):
            event_of[node] = len(event_of)
            program.append(AddEvent(event_of[node]))
        previous = node
    return tuple(program)
