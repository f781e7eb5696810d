"""A schedule as threads run it: one static list of calls a stream, each with what it waits for on other streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .control import control_tasks

if TYPE_CHECKING:
    from .control import Task
    from .schedule import Schedule


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
