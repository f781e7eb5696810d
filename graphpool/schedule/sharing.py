"""Which buffers may share bytes under a schedule: the input of a memory planner, in numbers."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphpool.bits import set_bits
from graphpool.errors import InvalidArgumentError, explain

from .control import before_sets, control_tasks, task_of_node
from .graph import as_costs
from .ordering import HappensBefore, happens_before

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from .control import Task
    from .schedule import Schedule

__all__ = [
    "BufferUses",
    "Conflicts",
    "PlannerInput",
    "conflicts",
    "planner_input",
    "stream_scratch",
]


@dataclass(frozen=True)
class BufferUses:
    """Who touches a buffer.

    Parameters
    ----------
    nbytes : int
        Size, at least 0.
    writer : int or None
        Node that fills it; None when it is full before the schedule starts.
    readers : tuple of int, default=()
        Nodes that read it.
    kept : bool, default=False
        Whether it must still hold its content when the schedule has ended.

    Notes
    -----
    Ownership: plain data. Threads: safe, frozen. Source: definitions and uses of a value in liveness analysis.
    """

    nbytes: int
    writer: int | None
    readers: tuple[int, ...] = ()
    kept: bool = False

    @property
    def nodes(self) -> tuple[int, ...]:
        """Every node that uses the buffer, the writer first."""
        return self.readers if self.writer is None else (self.writer, *self.readers)


@dataclass(frozen=True)
class Conflicts:
    """Pairs of buffers that must lie apart. Bit j of ``masks[i]`` says so of buffers i and j.

    Notes
    -----
    Ownership: plain data. Threads: safe, frozen. Cost: buffers**2 / 8 bytes. Source: interference graph.
    """

    masks: tuple[int, ...]

    def __contains__(self, pair: tuple[int, int]) -> bool:
        return bool(self.masks[pair[0]] >> pair[1] & 1)

    def pairs(self) -> Iterator[tuple[int, int]]:
        """Each conflicting pair once, the lower number first."""
        for i, mask in enumerate(self.masks):
            yield from ((i, j) for j in set_bits(mask >> i << i) if j > i)

    def __len__(self) -> int:
        return sum(mask.bit_count() for mask in self.masks) // 2


@dataclass(frozen=True)
class PlannerInput:
    """What a memory planner needs to know.

    Attributes
    ----------
    nbytes : tuple of int
        Size of each buffer.
    conflicts : Conflicts
        Pairs that must lie apart.
    lifetimes : tuple of pairs of int
        For each buffer a half-open interval ``[lower, upper)`` of steps (calls and barriers in issue order): intervals
        that do not meet never conflict, so a planner that knows intervals alone gives safe offsets.
    exact : bool
        Whether intervals that meet always conflict too: with one stream and no grants for in-place use.

    Notes
    -----
    Ownership: plain data. Threads: safe, frozen. Source: offset calculation of TensorFlow Lite and MiniMalloc's
    intervals; with several streams a use stands for every step that may run beside it.
    """

    nbytes: tuple[int, ...]
    conflicts: Conflicts
    lifetimes: tuple[tuple[int, int], ...]
    exact: bool


def conflicts(schedule: Schedule, buffers: Sequence[BufferUses], inplace: Iterable[tuple[int, int]] = ()) -> Conflicts:
    """Which buffers may not share bytes.

    Two buffers may share when every use of one happens before every use of the other. With several streams that is
    stricter than lifetimes along the issue order, which do not see calls that run at once.

    Parameters
    ----------
    schedule : Schedule
        Decides what happens before what.
    buffers : sequence of BufferUses
        Numbered by position. A buffer of no bytes or without uses conflicts with none.
    inplace : iterable of pairs of int, default=()
        ``(old, new)``: the writer of `new` may overwrite `old` while it reads it. Granted only where that writer is the
        last reader of `old`: every other use of `old` happens before it.

    Returns
    -------
    conflicts : Conflicts
        Symmetric.

    Raises
    ------
    InvalidArgumentError
        A use by a node that does not run, a bad size, or a pair in `inplace` that names no two buffers or whose `old`
        is not read by the writer of `new`.
    ScheduleError
        The instructions are no program: see `verify`.

    Notes
    -----
    Ownership: the caller owns the result. Threads: safe. Cost: O(buffers * those open at once) operations on
    sets of nodes.
    Source: RAF, ONNX Runtime and llama.cpp reused bytes along the issue order and raced; this is the order that holds.
    """
    relation = happens_before(schedule)
    _check_buffers(schedule, buffers)
    granted = {pair for pair in map(tuple, inplace) if _may_overwrite(relation, buffers, pair)}
    used = [sum(1 << node for node in set(buffer.nodes)) for buffer in buffers]
    before_all = [relation.all_before(buffer.nodes) for buffer in buffers]
    alive = [bool(buffer.nbytes) and bool(buffer.nodes or buffer.kept) for buffer in buffers]

    def ends_before(i: int, j: int) -> bool:
        if buffers[i].kept or buffers[j].writer is None:
            return False  # i lives on after every call, or j holds its content before the first
        return not used[i] & ~before_all[j] or (i, j) in granted

    masks = [0] * len(buffers)
    lifetimes = _lifetimes(schedule, buffers)
    open_: list[int] = []  # buffers whose interval reaches the one that is looked at: only those can conflict with it
    for j in sorted((j for j in range(len(buffers)) if alive[j]), key=lambda j: lifetimes[j][0]):
        open_ = [i for i in open_ if lifetimes[i][1] > lifetimes[j][0]]
        for i in open_:
            if not ends_before(i, j) and not ends_before(j, i):
                masks[i] |= 1 << j
                masks[j] |= 1 << i
        open_.append(j)
    return Conflicts(tuple(masks))


def planner_input(
    schedule: Schedule, buffers: Sequence[BufferUses], inplace: Iterable[tuple[int, int]] = ()
) -> PlannerInput:
    """Sizes, conflicts and lifetimes of buffers under a schedule.

    Parameters
    ----------
    schedule, buffers, inplace
        As in `conflicts`.

    Returns
    -------
    planner_input : PlannerInput
        For a planner that places buffers by conflicts, or by lifetimes.

    Raises
    ------
    InvalidArgumentError, ScheduleError
        As in `conflicts`.

    Notes
    -----
    Ownership: the caller owns the result. Threads: safe. Cost: that of `conflicts`. Source: see `PlannerInput`.
    """
    grants = list(inplace)
    apart = conflicts(schedule, buffers, grants)
    lifetimes = _lifetimes(schedule, buffers)
    exact = len(schedule.stream_ids) <= 1 and not grants
    return PlannerInput(tuple(buffer.nbytes for buffer in buffers), apart, lifetimes, exact)


def stream_scratch(schedule: Schedule, nbytes: Sequence[int]) -> dict[int, int]:
    """Scratch that each stream needs: calls of one stream follow one another and can use the same bytes.

    Parameters
    ----------
    schedule : Schedule
        Whose streams.
    nbytes : sequence of int
        Scratch of each node.

    Returns
    -------
    scratch : dict of int to int
        For each stream id the most that one call on it needs. Unit: bytes. A merged call needs the sum over its nodes.

    Raises
    ------
    InvalidArgumentError
        Sizes of wrong length, negative or not finite.
    ScheduleError
        The instructions are no program.

    Notes
    -----
    Ownership: the caller owns the dict. Threads: safe. Cost: O(nodes). Source: one workspace a stream, as cuBLAS needs.
    """
    as_costs(nbytes, schedule.graph.num_nodes, "nbytes")
    scratch = dict.fromkeys(schedule.stream_ids, 0)
    for task in control_tasks(schedule):
        if task.nodes:
            need = sum(nbytes[node] for node in task.nodes)
            scratch[task.stream_id] = max(scratch[task.stream_id], need)
    return scratch


def _concurrent_steps(tasks: list[Task]) -> list[tuple[int, int]]:
    """For each task the first and the last step that may run beside it; itself when nothing may."""
    before, after = before_sets(tasks), [0] * len(tasks)
    for step in range(len(tasks) - 1, -1, -1):
        for earlier in tasks[step].after:
            after[earlier] |= after[step] | 1 << step
    everything = (1 << len(tasks)) - 1
    first = [(bits ^ (bits + 1)).bit_length() - 1 for bits in before]  # the lowest step that is not before
    return [(first[step], (everything & ~after[step]).bit_length() - 1) for step in range(len(tasks))]


def _lifetimes(schedule: Schedule, buffers: Sequence[BufferUses]) -> tuple[tuple[int, int], ...]:
    """For each buffer an interval of steps; buffers whose intervals do not meet never conflict."""
    tasks = control_tasks(schedule)
    steps, task_of = _concurrent_steps(tasks), task_of_node(tasks)
    return tuple(_lifetime(buffer, steps, task_of) for buffer in buffers)


def _lifetime(buffer: BufferUses, steps: list[tuple[int, int]], task_of: dict[int, int]) -> tuple[int, int]:
    spans = [steps[task_of[node]] for node in buffer.nodes]
    lower = 0 if buffer.writer is None else min(span[0] for span in spans)
    return lower, len(steps) if buffer.kept else max((span[1] + 1 for span in spans), default=lower)


def _check_buffers(schedule: Schedule, buffers: Sequence[BufferUses]) -> None:
    running = set(schedule.graph.nodes)
    for index, buffer in enumerate(buffers):
        try:
            good = operator.index(buffer.nbytes) >= 0
        except TypeError:
            good = False
        if not good:
            message = explain(f"buffer {index} has no size", accepted="bytes, at least 0", got=repr(buffer.nbytes))
            raise InvalidArgumentError(message, buffer=index)
        for node in buffer.nodes:
            if node not in running:
                message = explain(f"buffer {index} is used by node {node!r}, which does not run", got=repr(buffer))
                raise InvalidArgumentError(message, buffer=index, node=node)


def _may_overwrite(relation: HappensBefore, buffers: Sequence[BufferUses], pair: tuple[int, ...]) -> bool:
    """Whether the writer of the second is the last of all to use the first."""
    numbers = range(len(buffers))
    if len(pair) != 2 or pair[0] == pair[1] or any(index not in numbers for index in pair):
        message = explain("not a pair of buffers", accepted=f"(old, new), two of 0 to {len(buffers) - 1}", got=pair)
        raise InvalidArgumentError(message, pair=pair)
    old, new = buffers[pair[0]], buffers[pair[1]]
    if new.writer is None or new.writer not in old.readers:
        message = explain(f"buffer {pair[1]} cannot overwrite buffer {pair[0]}", accepted="a writer that reads the old")
        raise InvalidArgumentError(message, pair=pair)
    return all(node == new.writer or relation(node, new.writer) for node in old.nodes)
