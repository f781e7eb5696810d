"""One stream in any topological order, and k streams with the critical path first."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, brief, explain
from graphpool.schedule.graph import check_graph
from graphpool.schedule.schedule import Schedule

from .emit import emit

if TYPE_CHECKING:
    from collections.abc import Iterable

    from graphpool.schedule.graph import DependencyGraph


def sequential(graph: DependencyGraph) -> Schedule:
    """Run everything on stream 0, in the order in which the graph was visited.

    Parameters
    ----------
    graph : DependencyGraph
        What to schedule.

    Returns
    -------
    schedule : Schedule
        One stream, no events, no waits.

    Notes
    -----
    Ownership: shares `graph`. Threads: safe. Cost: O(nodes). Source: conversion to A-normal form.
    """
    check_graph(graph)
    return Schedule(graph, emit(graph, [(v,) for v in graph.order], [0] * len(graph)), "sequential")


def list_schedule(graph: DependencyGraph, streams: int = 2) -> Schedule:
    """Give the ready node with the longest way to go to the first stream that is free.

    Parameters
    ----------
    graph : DependencyGraph
        What to schedule; its costs decide.
    streams : int, default=2
        Streams to fill, at least 1.

    Returns
    -------
    schedule : Schedule
        At most `streams` streams. Its makespan, with events for nothing, is within 2 - 1/streams of the best possible.

    Raises
    ------
    InvalidArgumentError
        `streams` is no count.

    Notes
    -----
    Ownership: shares `graph`. Threads: safe. Cost: O(nodes log nodes + edges * streams).
    Source: highest level first (Adam, Chandy, Dickson, 1974) as in Graphi (2018); bound by Graham (1969). Among free
    streams that of a producer is taken, which saves a wait.
    """
    check_graph(graph)
    check_streams(streams)
    order, stream_of = _place(graph, min(streams, len(graph)))
    return Schedule(graph, emit(graph, [(v,) for v in order], stream_of), "list")


def check_streams(streams: int) -> None:
    """Raise `InvalidArgumentError` unless `streams` is an int of at least 1."""
    if not isinstance(streams, int) or isinstance(streams, bool) or streams < 1:
        message = explain("streams is no count", accepted="an int, at least 1", got=brief(streams))
        raise InvalidArgumentError(message, streams=streams)


def balance(parts: Iterable[tuple[float, tuple[int, ...]]], streams: int) -> list[tuple[int, ...]]:
    """Nodes of parts, given as (-cost, nodes), on streams: the longest part first, each to the shortest so far."""
    loads = [0.0] * streams
    balanced: list[tuple[int, ...]] = [()] * streams
    for cost, nodes in sorted(parts):
        shortest = loads.index(min(loads))
        loads[shortest] -= cost
        balanced[shortest] += nodes
    return balanced


def _place(graph: DependencyGraph, streams: int) -> tuple[list[int], list[int]]:
    """Nodes in the order of their start, and the stream of each."""
    tail = graph.tails()
    need = [len(producers) for producers in graph.predecessors]
    rank = {node: index for index, node in enumerate(graph.order)}
    ready = [(-tail[v], rank[v], v) for v in graph.order if not need[v]]
    heapq.heapify(ready)
    free = list(range(streams))
    running: list[tuple[float, int, int]] = []
    order: list[int] = []
    stream_of: dict[int, int] = {}
    now = 0.0
    while ready or running:
        while ready and free:
            node = heapq.heappop(ready)[2]
            stream_of[node] = _pick(free, [stream_of[p] for p in graph.predecessors[node]])
            order.append(node)
            heapq.heappush(running, (now + graph.costs[node], len(order), node))
        now = running[0][0]
        while running and running[0][0] == now:
            node = heapq.heappop(running)[2]
            free.append(stream_of[node])
            for consumer in graph.successors[node]:
                need[consumer] -= 1
                if not need[consumer]:
                    heapq.heappush(ready, (-tail[consumer], rank[consumer], consumer))
    return order, [stream_of[v] for v in order]


def _pick(free: list[int], wanted: list[int]) -> int:
    """Take a stream out of `free`: the last of `wanted` that is there, else the lowest."""
    stream = next((s for s in reversed(wanted) if s in free), min(free))
    free.remove(stream)
    return stream
