"""From an order and a stream for each call to instructions, with no wait and no event that another order implies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.schedule.instructions import AddEvent, Instruction, Run, SetStream, WaitEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphpool.schedule.graph import DependencyGraph


def required_waits(
    graph: DependencyGraph, calls: Sequence[tuple[int, ...]], stream_of: Sequence[int]
) -> list[list[int]]:
    """For each call the earlier calls, on other streams, that it must wait for.

    These are the cross-stream edges of the transitive reduction of data edges and program order together. Each call
    gets a clock: how far along each stream everything before it has come. A producer is left out when the clock of
    another direct predecessor has passed it. Cost: O(edges * streams).
    """
    call_of = {node: index for index, nodes in enumerate(calls) for node in nodes}
    position = [0] * len(calls)
    clocks: list[dict[int, int]] = []
    last: dict[int, int] = {}
    waits: list[list[int]] = []
    for index, nodes in enumerate(calls):
        stream = stream_of[index]
        previous = last.get(stream)
        latest = _latest_per_stream(graph, nodes, call_of, stream_of, position, stream)
        clock = {} if previous is None else clocks[previous].copy()
        passed = clock.copy()
        for producer in latest:
            own = stream_of[producer]
            for key, count in clocks[producer].items():
                before = count - (key == own)  # the producer itself is not before itself
                if before > passed.get(key, 0):
                    passed[key] = before
                if count > clock.get(key, 0):
                    clock[key] = count
        waits.append([p for p in latest if passed.get(stream_of[p], 0) < position[p]])
        position[index] = clock[stream] = clock.get(stream, 0) + 1
        clocks.append(clock)
        last[stream] = index
    return waits


def _latest_per_stream(
    graph: DependencyGraph,
    nodes: tuple[int, ...],
    call_of: dict[int, int],
    stream_of: Sequence[int],
    position: Sequence[int],
    stream: int,
) -> list[int]:
    """Of the calls that made the arguments of `nodes`, the last on each other stream, in argument order."""
    latest: dict[int, int] = {}
    for node in nodes:
        for producer in graph.predecessors[node]:
            call = call_of[producer]
            other = stream_of[call]
            if other != stream and (other not in latest or position[call] > position[latest[other]]):
                latest[other] = call
    return list(latest.values())


def emit(graph: DependencyGraph, calls: Sequence[tuple[int, ...]], stream_of: Sequence[int]) -> tuple[Instruction, ...]:
    """Instructions that issue `calls` in order, each on its stream; events are numbered in issue order.

    `calls` must be a topological order of the graph, each call a tuple of nodes that run at once.
    """
    waits = required_waits(graph, calls, stream_of)
    sources = sorted({producer for producers in waits for producer in producers})
    event_of = {producer: event_id for event_id, producer in enumerate(sources)}
    program: list[Instruction] = []
    current: int | None = None
    for index, nodes in enumerate(calls):
        if stream_of[index] != current:
            current = stream_of[index]
            program.append(SetStream(0, current))
        program.extend(WaitEvent(event_of[producer]) for producer in waits[index])
        program.append(Run(nodes[0], nodes[1:]))
        if index in event_of:
            program.append(AddEvent(event_of[index]))
    return tuple(program)
