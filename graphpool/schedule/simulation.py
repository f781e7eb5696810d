"""Predicts when each node of a schedule starts and ends, given what each costs."""

from __future__ import annotations

import heapq
import math
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidArgumentError, brief, explain

from .control import Task, control_tasks
from .graph import as_costs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .graph import DependencyGraph
    from .schedule import Schedule


@dataclass(frozen=True)
class Simulation:
    """When everything of a schedule happens. Times are in the unit of the costs, from 0.

    Attributes
    ----------
    makespan : float
        End of the last node.
    start, end : dict of int to float
        For each node.
    streams : dict of int to list of (tuple of int, float, float)
        For each stream id its calls in order: nodes, start, end.
    names : tuple of str
        Name of each node.

    Notes
    -----
    Ownership: owns its dicts. Threads: safe to read. Cost: plain data. Source: see `simulate`.
    """

    makespan: float
    start: dict[int, float]
    end: dict[int, float]
    streams: dict[int, list[tuple[tuple[int, ...], float, float]]]
    names: tuple[str, ...]

    @property
    def busy(self) -> dict[int, float]:
        """Time that each stream spends in calls."""
        return {key: sum(end - start for _, start, end in calls) for key, calls in self.streams.items()}

    def __repr__(self) -> str:
        total = self.makespan * len(self.streams)
        share = sum(self.busy.values()) / total if total else 1.0
        return f"Simulation(makespan={self.makespan:g}, {len(self.streams)} streams, {share:.0%} busy)"


def simulate(
    schedule: Schedule,
    costs: Sequence[float] | None = None,
    event_cost: float = 0,
    *,
    nbytes: Sequence[float] | None = None,
    bandwidth: float | None = None,
    threads: int | None = None,
    speedups: Sequence[float] | None = None,
) -> Simulation:
    """Run a schedule on paper.

    Parameters
    ----------
    schedule : Schedule
        What to run.
    costs : sequence of float, optional
        Time of each node. Default: the costs of the graph.
    event_cost : float, default=0
        Time between the end of a call and the start of one on another stream that waits for it; a barrier over several
        streams costs it once.
    nbytes : sequence of float, optional
        Bytes that each node moves; needs `bandwidth`.
    bandwidth : float, optional
        Bytes a unit of time that all streams share. Calls that run at once get equal shares of it, what one does not
        need goes to the others, and a call that gets less than ``nbytes / cost`` runs slower in proportion.
    threads : int, optional
        Threads of all streams together, at least one for each. Those whose stream is idle help the calls that run,
        as the streams of a `Program` do; needs `speedups`.
    speedups : sequence of float, optional
        How many times faster than on one each node is on all `threads`, at least 1; proportionally on fewer.

    Returns
    -------
    simulation : Simulation
        Times of every node and stream.

    Raises
    ------
    InvalidArgumentError
        Costs, bytes, speed-ups, `event_cost`, `threads` or `bandwidth` out of range; one of `nbytes` and `bandwidth`,
        or of `threads` and `speedups`, without the other.
    ScheduleError
        The instructions are no program: see `verify`. Uncovered edges are not looked for.

    Notes
    -----
    Ownership: the caller owns the result. Threads: safe. Cost: O(instructions log instructions); with `bandwidth` or
    `threads`, times the number of streams. Source: discrete events; bandwidth by max-min fair shares after the roofline
    model; helping threads as malleable tasks (Turek, Wolf, Yu, 1992).
    """
    tasks = control_tasks(schedule)
    count = schedule.graph.num_nodes
    node_costs = schedule.graph.costs if costs is None else as_costs(costs, count)
    _check_positive("event_cost", event_cost, zero=True)
    if (nbytes is None) != (bandwidth is None):
        raise InvalidArgumentError(explain("nbytes and bandwidth go together", got="one of them"))
    if bandwidth is not None:
        _check_positive("bandwidth", bandwidth)
    task_costs = [_task_cost(schedule, task, node_costs) for task in tasks]
    moved = as_costs(nbytes, count, "nbytes") if nbytes is not None else (0,) * count
    demands = [sum(moved[v] for v in t.nodes) / c if c else 0.0 for t, c in zip(tasks, task_costs, strict=True)]
    helpers = _helpers(schedule, tasks, threads, speedups)
    clock = _Clock(tasks, task_costs, demands, event_cost, bandwidth, helpers)
    clock.run()
    return _summary(schedule, tasks, clock)


def least_makespan(
    graph: DependencyGraph, streams: int, threads: int | None = None, speedups: Sequence[float] | None = None
) -> float:
    """What no schedule on so many streams can beat, by arguments that `simulate` takes: the heaviest path, all work."""
    if threads is None or speedups is None:
        return max(graph.critical_path, graph.work / streams)
    shared = [cost / max(speedup, 1) for cost, speedup in zip(graph.costs, speedups, strict=True)]
    return max(graph.with_costs(shared).critical_path, graph.work / threads)


def roofline_cost(flops: float, nbytes: float, peak_flops: float, bandwidth: float) -> float:
    """Seconds of an operation that either computes or moves data, whichever takes longer, at these speeds a second.

    Raises `InvalidArgumentError` for a negative or infinite quantity, or a machine without speed. Source: Williams,
    Waterman, Patterson, "Roofline" (CACM 2009).
    """
    for name, value in (("flops", flops), ("nbytes", nbytes)):
        _check_positive(name, value, zero=True)
    for name, value in (("peak_flops", peak_flops), ("bandwidth", bandwidth)):
        _check_positive(name, value)
    return max(flops / peak_flops, nbytes / bandwidth)


def _check_positive(name: str, value: float, zero: bool = False) -> None:
    try:
        good = 0 <= value < math.inf and (zero or value > 0)
    except (TypeError, ValueError):
        good = False
    if not good:
        accepted = "a finite number, " + ("at least 0" if zero else "above 0")
        got = brief(value)
        raise InvalidArgumentError(explain(f"{name} out of range", accepted=accepted, got=got), **{name: value})


def _task_cost(schedule: Schedule, task: Task, costs: Sequence[float]) -> float:
    if task.nodes in schedule.merged_costs:
        return schedule.merged_costs[task.nodes]
    return sum(costs[v] for v in task.nodes)


@dataclass(frozen=True)
class _Helpers:
    """The threads there are, and how many times faster each task is on all of them."""

    threads: int
    speedups: list[float]

    def rates(self, running: Sequence[int]) -> dict[int, float]:
        """Every running task has one thread; the others are dealt out to those that gain by them, in order of issue."""
        able = [task for task in running if self.speedups[task] > 1]
        spare = max(self.threads - len(running), 0)
        share, rest = divmod(spare, len(able)) if able else (0, 0)
        rates = dict.fromkeys(running, 1.0)
        for place, task in enumerate(able):
            extra = share + (place < rest)
            rates[task] += (self.speedups[task] - 1) * extra / (self.threads - 1) if extra else 0.0
        return rates


def _helpers(
    schedule: Schedule, tasks: list[Task], threads: int | None, speedups: Sequence[float] | None
) -> _Helpers | None:
    if (threads is None) != (speedups is None):
        raise InvalidArgumentError(explain("threads and speedups go together", got="one of them"))
    if threads is None or speedups is None:
        return None
    streams = len(schedule.stream_ids)
    if not isinstance(threads, int) or threads < max(streams, 1):
        accepted = f"an int, at least {streams}: one for each stream"
        message = explain("threads out of range", accepted=accepted, got=brief(threads))
        raise InvalidArgumentError(message, threads=threads)
    factors = as_costs(speedups, schedule.graph.num_nodes, "speedups")
    return _Helpers(threads, [max([1.0, *(min(factors[v], threads) for v in task.nodes)]) for task in tasks])


class _Clock:
    """Event loop over the starts and ends of tasks.

    Invariant: a running task whose rate does not change keeps the end that was computed at its start, so that without
    bandwidth and helpers the times are exact sums of costs.
    """

    def __init__(
        self,
        tasks: list[Task],
        costs: list[float],
        demands: list[float],
        event_cost: float,
        bandwidth: float | None,
        helpers: _Helpers | None,
    ) -> None:
        self.costs, self.demands, self.event_cost = costs, demands, event_cost
        self.bandwidth, self.helpers = bandwidth, helpers
        self.start, self.end = [0.0] * len(tasks), [0.0] * len(tasks)
        self.rate = [1.0] * len(tasks)
        self.missing = [len(task.after) for task in tasks]
        self.ready = [0.0] * len(tasks)
        self.followers: list[list[tuple[int, bool]]] = [[] for _ in tasks]
        for index, task in enumerate(tasks):
            for earlier, crosses in task.after.items():
                self.followers[earlier].append((index, crosses))
        self.running: set[int] = set()
        self.queue: list[tuple[float, int]] = [(0.0, index) for index, count in enumerate(self.missing) if not count]

    def run(self) -> None:
        while self.queue:
            now = self.queue[0][0]
            while self.queue and self.queue[0][0] == now:
                self._step(now, heapq.heappop(self.queue)[1])
            if self.bandwidth is not None or self.helpers is not None:
                self._set_rates(now)

    def _step(self, now: float, index: int) -> None:
        if self.missing[index] == 0:
            self.missing[index] = -1  # started
            self.start[index] = now
            self.end[index] = now + self.costs[index]
            self.running.add(index)
            heapq.heappush(self.queue, (self.end[index], index))
        elif index in self.running and self.end[index] == now:  # else the end was moved by a change of rate
            self.running.remove(index)
            for follower, crosses in self.followers[index]:
                self._release(follower, now + self.event_cost * crosses)

    def _release(self, index: int, time: float) -> None:
        self.ready[index] = max(self.ready[index], time)
        self.missing[index] -= 1
        if not self.missing[index]:
            heapq.heappush(self.queue, (self.ready[index], index))

    def _set_rates(self, now: float) -> None:
        running = sorted(self.running)
        rates = dict.fromkeys(running, 1.0) if self.helpers is None else self.helpers.rates(running)
        if self.bandwidth is not None:
            self._share(rates, self.bandwidth)
        for index, rate in rates.items():
            if rate != self.rate[index]:
                self.end[index] = now + (self.end[index] - now) * self.rate[index] / rate
                self.rate[index] = rate
                heapq.heappush(self.queue, (self.end[index], index))

    def _share(self, rates: dict[int, float], bandwidth: float) -> None:
        """Slow down what gets less of the bandwidth than it moves at these rates."""
        left, waiting = bandwidth, len(rates)
        demands = {index: self.demands[index] * rate for index, rate in rates.items()}
        for index in sorted(rates, key=lambda task: (demands[task], task)):
            share = min(demands[index], left / waiting)
            left, waiting = left - share, waiting - 1
            rates[index] *= share / demands[index] if demands[index] else 1.0


def _summary(schedule: Schedule, tasks: list[Task], clock: _Clock) -> Simulation:
    streams: dict[int, list[tuple[tuple[int, ...], float, float]]] = {}
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    for task, begin, stop in zip(tasks, clock.start, clock.end, strict=True):
        start.update(dict.fromkeys(task.nodes, begin))
        end.update(dict.fromkeys(task.nodes, stop))
        if task.nodes:
            streams.setdefault(task.stream_id, []).append((task.nodes, begin, stop))
    makespan = max(end.values(), default=0.0)
    return Simulation(makespan, start, end, dict(sorted(streams.items())), schedule.graph.names)
