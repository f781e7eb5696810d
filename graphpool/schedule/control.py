"""What the instructions of a schedule order: its calls and barriers, each with what it comes after.

The policies do not use this: it reads their programs as a device would, so that `verify`, `simulate` and the
happens-before relation judge them from outside.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass
from graphpool.errors import ScheduleError, brief, check_instance, explain

from .instructions import CURRENT_STREAM, AddEvent, Run, SetStream, StreamBarrier, WaitEvent
from .schedule import Schedule

if TYPE_CHECKING:
    from .instructions import Instruction


@dataclass(frozen=True, slots=True)
class Task:
    """A call (or, with no nodes, a barrier) and the tasks it starts after.

    `after` maps the index of an earlier task to whether a wait (True) or the order of the stream (False) says so.
    """

    nodes: tuple[int, ...]
    stream_id: int
    after: dict[int, bool]


class _Issuer:
    """Walks a program. The frontier of a stream is what the next call on it starts after."""

    def __init__(self) -> None:
        self.tasks: list[Task] = []
        self.current = 0
        self.frontiers: dict[int, dict[int, bool]] = {}
        self.opening: dict[int, bool] = {}  # frontier of a stream that is not open yet: the last barrier
        self.events: dict[int, dict[int, bool]] = {}

    def frontier(self, stream_id: int) -> dict[int, bool]:
        return self.frontiers.setdefault(stream_id, dict(self.opening))

    def issue(self, index: int, instruction: Instruction) -> None:
        if isinstance(instruction, SetStream):
            self.current = _checked_id(instruction.stream_id, "stream_id", index)
        elif isinstance(instruction, Run):
            after = self.frontier(self.current)
            self.frontiers[self.current] = {len(self.tasks): False}
            self.tasks.append(Task(instruction.nodes, self.current, after))
        elif isinstance(instruction, StreamBarrier):
            self._barrier()
        else:
            self._event(index, instruction)

    def _barrier(self) -> None:
        crosses = len(self.frontiers) > 1
        after = {task: crosses for frontier in self.frontiers.values() for task in frontier}
        self.opening = {len(self.tasks): False}
        self.frontiers = {stream_id: dict(self.opening) for stream_id in self.frontiers}
        self.tasks.append(Task((), self.current, after))

    def _event(self, index: int, instruction: AddEvent | WaitEvent) -> None:
        event_id = _checked_id(instruction.event_id, "event_id", index)
        stream_id = instruction.stream_id
        is_current = isinstance(stream_id, int) and stream_id == CURRENT_STREAM
        stream_id = self.current if is_current else _checked_id(stream_id, "stream_id", index)
        if isinstance(instruction, AddEvent):
            if event_id in self.events:
                raise ScheduleError(explain(f"event {event_id} is added twice"), event_id=event_id, index=index)
            self.events[event_id] = dict.fromkeys(self.frontier(stream_id), True)
        else:
            if event_id not in self.events:
                hint = "an event must be added before a stream waits for it"
                message = explain(f"wait for event {event_id}, which was never added", got=f"[{index}]", hint=hint)
                raise ScheduleError(message, event_id=event_id, index=index)
            frontier = self.frontier(stream_id)
            for task in self.events[event_id]:
                frontier.setdefault(task, True)


def _checked_id(value: object, name: str, index: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        message = explain(f"instructions[{index}].{name} is no id", accepted="an int, at least 0", got=brief(value))
        raise ScheduleError(message, index=index, **{name: value})
    return value


def control_tasks(schedule: Schedule) -> list[Task]:
    """The calls and barriers of `schedule` in issue order; what a task is after always has a smaller index.

    Raises InvalidArgumentError for what is no schedule; ScheduleError for a bad stream or event id, an event added
    twice or never, a node that runs twice, never, or does not exist.
    """
    check_instance("schedule", schedule, Schedule)
    issuer = _Issuer()
    for index, instruction in enumerate(schedule.instructions):
        issuer.issue(index, instruction)
    _check_nodes(schedule, issuer.tasks)
    return issuer.tasks


def _check_nodes(schedule: Schedule, tasks: list[Task]) -> None:
    missing = dict.fromkeys(schedule.graph.nodes)
    names, known = schedule.graph.names, set(missing)
    for node in (node for task in tasks for node in task.nodes):
        if not isinstance(node, int) or node not in known:
            raise ScheduleError(explain(f"node {brief(node)} runs but is no node of the graph"), node=node)
        if node not in missing:
            raise ScheduleError(explain(f"node {node} ({names[node]}) runs twice"), node=node)
        del missing[node]
    if missing:
        node = next(iter(missing))
        message = explain(f"node {node} ({names[node]}) never runs", got=f"{len(missing)} nodes without a call")
        raise ScheduleError(message, node=node, missing=tuple(missing))


# ---- the static list of each stream, for threads


@dataclass(frozen=True, slots=True)
class ListedCall:
    """One call in the list of its stream: the nodes that it computes, and what it waits for.

    `waits` has pairs (stream, count): it starts after the first `count` calls of another stream, by its position in the
    result of `stream_lists`; positions ascend. `is_event` says that a call of another stream waits for the end of this
    one.
    """

    nodes: tuple[int, ...]
    waits: tuple[tuple[int, int], ...] = ()
    is_event: bool = False


def stream_lists(schedule: Schedule) -> tuple[tuple[ListedCall, ...], ...]:
    """The calls of each stream of ``schedule.stream_ids``, where an event is how far another stream has come.

    ``set_stream`` chooses a list, ``add_event`` and ``wait_event`` become pairs (stream, count), and a barrier a wait
    for all that was issued before. One counter a stream then stands for all events of a run. Raises `ScheduleError` as
    `verify`. Cost: O(instructions + waits * streams). Source: stream order as a count, as in vector clocks (Mattern,
    1989).
    """
    tasks = control_tasks(schedule)
    position = {stream_id: index for index, stream_id in enumerate(schedule.stream_ids)}
    lists: list[list[ListedCall]] = [[] for _ in position]
    reached: list[dict[int, int]] = []  # for each task, how far it orders each stream
    for task in tasks:
        waits = _latest(task, reached)
        if not task.nodes:
            reached.append(waits)
            continue
        own = position[task.stream_id]
        reached.append({own: len(lists[own]) + 1})
        foreign = tuple(sorted((s, count) for s, count in waits.items() if s != own))
        lists[own].append(ListedCall(task.nodes, foreign))
    return _mark_events(lists)


def _latest(task: Task, reached: list[dict[int, int]]) -> dict[int, int]:
    """For each stream, how many of its calls the task directly comes after."""
    latest: dict[int, int] = {}
    for earlier in task.after:
        for stream, count in reached[earlier].items():
            latest[stream] = max(latest.get(stream, 0), count)
    return latest


def _mark_events(lists: list[list[ListedCall]]) -> tuple[tuple[ListedCall, ...], ...]:
    awaited = {wait for calls in lists for call in calls for wait in call.waits}
    return tuple(
        tuple(ListedCall(c.nodes, c.waits, (stream, count) in awaited) for count, c in enumerate(calls, 1))
        for stream, calls in enumerate(lists)
    )
