"""What ends before what starts, in every run of a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, ScheduleError, brief, explain

from .control import control_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .schedule import Schedule


class HappensBefore:
    """For each node, the nodes that end before it starts in every run of a schedule, as a bit set.

    Threads: safe. Source: Lamport's relation (CACM 1978), over stream order, events and barriers.
    """

    def __init__(self, before: dict[int, int]) -> None:
        self._before = before

    def __call__(self, first: int, second: int) -> bool:
        """Whether `first` ends before `second` starts."""
        return bool(self._before[second] >> first & 1)

    def all_before(self, nodes: Iterable[int]) -> int:
        """The nodes before every one of `nodes`, as a bit set; every number for no nodes."""
        common = -1
        for node in nodes:
            common &= self._before[node]
        return common


def happens_before(schedule: Schedule) -> HappensBefore:
    """What a schedule orders, data edges aside: stream order, events and barriers, closed under paths.

    Raises `ScheduleError` as `verify`. Cost: O(waits * nodes / 64).
    """
    tasks = control_tasks(schedule)
    nodes_until: list[int] = []  # for each task, its nodes and all before, as a set of nodes
    before: dict[int, int] = {}
    for task in tasks:
        earlier = 0
        for index in task.after:
            earlier |= nodes_until[index]
        before.update(dict.fromkeys(task.nodes, earlier))
        nodes_until.append(earlier | sum(1 << node for node in task.nodes))
    return HappensBefore(before)


# ---- every edge


def verify(schedule: Schedule) -> None:
    """Check that every edge of the graph is ordered by streams, events and barriers.

    Parameters
    ----------
    schedule : Schedule
        By any policy, or written by hand.

    Raises
    ------
    ScheduleError
        An edge that no path of stream order, events and barriers covers (fields ``edge``, ``streams``); a node that
        runs twice, never, or does not exist (``node``); a wait for an event that was not added before, or an event
        added twice (``event_id``); a bad id (``stream_id``). ``index`` is the instruction, where one is to blame.

    Notes
    -----
    Ownership: keeps nothing. Threads: safe. Cost: O(nodes * edges / 64), nodes**2 / 8 bytes.
    Source: RAF's schedule verifier (control graph and reachability).
    """
    precedes = happens_before(schedule)
    for producer, consumer in schedule.graph.edges:
        if not precedes(producer, consumer):
            names = schedule.graph.names
            stream_of = {node: task.stream_id for task in control_tasks(schedule) for node in task.nodes}
            streams = stream_of[producer], stream_of[consumer]
            message = explain(
                f"no path covers the edge {producer} -> {consumer} ({names[producer]} -> {names[consumer]})",
                accepted="a schedule that orders every edge",
                got=f"stream {streams[0]} -> stream {streams[1]}",
                hint="issue the producer first and, across streams, wait for an event behind it",
            )
            raise ScheduleError(message, edge=(producer, consumer), streams=streams)


# ---- what buffers may share


def conflicts(schedule: Schedule, uses: Sequence[Sequence[int]]) -> list[int]:
    """For each buffer the others that must lie apart from it, as a bit set; symmetric.

    `uses` has the nodes that use each buffer. Two buffers may share when every use of one happens before every use of
    the other. With several streams that is stricter than lifetimes along the issue order, which do not see calls that
    run at once: RAF, ONNX Runtime and llama.cpp reused bytes along it and raced.

    Raises `InvalidArgumentError` for a use by a node that does not run, `ScheduleError` as `verify`. Cost: O(buffers *
    streams) operations on sets of buffers. What happens before a node is a prefix of each stream, so two numbers a
    stream stand for a buffer: how far its uses reach, and how far what is before all of them reaches (vector clocks).
    """
    _check_uses(schedule, uses)
    relation = happens_before(schedule)
    before = [relation.all_before(nodes) for nodes in uses]
    used = [index for index, nodes in enumerate(uses) if nodes]
    ends_before, starts_after = [-1] * len(uses), [-1] * len(uses)
    for stream in schedule.streams:
        position = {node: place for place, node in enumerate(stream, 1)}
        members = sum(1 << node for node in stream)
        reach = {i: max((position.get(node, 0) for node in uses[i]), default=0) for i in used}
        begin = {i: (before[i] & members).bit_count() for i in used}
        _meet(ends_before, begin, reach, 1)
        _meet(starts_after, reach, begin, -1)
    everything = sum(1 << index for index in used)
    masks = [0] * len(uses)
    for i in used:
        masks[i] = everything & ~(ends_before[i] | starts_after[i] | 1 << i)
    return masks


def _meet(sets: list[int], own: dict[int, int], other: dict[int, int], sign: int) -> None:
    """Leave in each set only those whose `other` number is at most its `own`, or at least with a sign of -1."""
    waiting = sorted(other, key=lambda i: -sign * other[i])
    passed = 0
    for i in sorted(own, key=lambda i: sign * own[i]):
        while waiting and sign * other[waiting[-1]] <= sign * own[i]:
            passed |= 1 << waiting.pop()
        sets[i] &= passed


def _check_uses(schedule: Schedule, uses: Sequence[Sequence[int]]) -> None:
    running = set(schedule.graph.nodes)
    for index, nodes in enumerate(uses):
        for node in nodes:
            if node not in running:
                message = explain(f"buffer {index} is used by node {node!r}, which does not run", got=brief(nodes))
                raise InvalidArgumentError(message, buffer=index, node=node)
