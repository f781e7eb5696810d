"""What ends before what starts, in every run of a schedule."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .control import control_tasks

if TYPE_CHECKING:
    from collections.abc import Iterable

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
