"""Which buffers may share bytes under a schedule: the input of a memory planner, in numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, explain

from .ordering import happens_before

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .schedule import Schedule


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
                message = explain(f"buffer {index} is used by node {node!r}, which does not run", got=repr(nodes))
                raise InvalidArgumentError(message, buffer=index, node=node)
