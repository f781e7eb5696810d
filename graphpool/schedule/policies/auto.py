"""Simulates what every policy proposes and keeps the best."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, brief, explain
from graphpool.schedule.control import control_tasks
from graphpool.schedule.graph import check_graph
from graphpool.schedule.schedule import Schedule
from graphpool.schedule.simulation import least_makespan, simulate

from .asap import asap
from .critical_path import balance, check_streams, list_schedule, sequential
from .emit import emit
from .ios import ios
from .nimble import nimble
from .wavefront import wavefront

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from graphpool.schedule.graph import DependencyGraph

_IOS_STATES = 128
_IOS_NODES = 1000
"""Bounds of a block and of a graph in the search of `auto`, which must stay quick; `ios` itself looks further."""


def auto(
    graph: DependencyGraph,
    streams: int = 2,
    *,
    event_cost: float = 0,
    min_gain: float = 0.0,
    nbytes: Sequence[float] | None = None,
    bandwidth: float | None = None,
    threads: int | None = None,
    speedups: Sequence[float] | None = None,
) -> Schedule:
    """The schedule with the smallest simulated makespan, or one stream if none is faster than that.

    Parameters
    ----------
    graph : DependencyGraph
        What to schedule; its costs decide.
    streams : int, default=2
        Streams there are. Programs for more are folded onto these.
    event_cost, nbytes, bandwidth, threads, speedups
        As in `simulate`: what a wait costs, the memory traffic that streams compete for, the threads that help.
    min_gain : float, default=0
        Share of the sequential makespan that must be gained before more than one stream is used; 0 to 1. No further
        policy is tried once none can gain as much over the best so far.

    Returns
    -------
    schedule : Schedule
        ``details["candidates"]`` maps each policy that was tried to its simulated makespan.

    Raises
    ------
    InvalidArgumentError
        `streams` or `min_gain` out of range, or an argument that `simulate` rejects.

    Notes
    -----
    Ownership: shares `graph`. Threads: safe. Cost: that of all policies together, `ios` on small blocks and up to
    1,000 nodes only. Source: after Graphi (2018), which
    simulates every division of the cores; the fall-back answers the complaint that parallel modes are slower.
    """
    check_graph(graph)
    check_streams(streams)
    if not isinstance(min_gain, (int, float)) or not 0 <= min_gain <= 1:
        message = explain("min_gain out of range", accepted="a number from 0 to 1", got=brief(min_gain))
        raise InvalidArgumentError(message, min_gain=min_gain)
    makespans: dict[str, float] = {}
    schedules: dict[str, Schedule] = {}
    least: float | None = None
    for schedule in _candidates(graph, streams):
        schedules[schedule.policy] = schedule
        simulation = simulate(
            schedule, event_cost=event_cost, nbytes=nbytes, bandwidth=bandwidth, threads=threads, speedups=speedups
        )
        makespans[schedule.policy] = simulation.makespan
        least = least_makespan(graph, streams, threads, speedups) if least is None else least
        if min(makespans.values()) - least <= min_gain * makespans["sequential"]:
            break
    choice = min(makespans, key=makespans.__getitem__)  # the first of equals: simpler policies come first
    if makespans[choice] >= (1 - min_gain) * makespans["sequential"]:
        choice = "sequential"
    best = schedules[choice]
    details = {**best.details, "candidates": makespans}
    return Schedule(graph, best.instructions, f"auto:{choice}", details, best.merged_costs)


def _candidates(graph: DependencyGraph, streams: int) -> Iterator[Schedule]:
    """Sequential first, then the others, each on at most `streams` streams."""
    yield sequential(graph)
    if streams > 1:
        yield list_schedule(graph, streams)
        for policy in (wavefront, asap, nimble):
            yield fold(policy(graph), streams)
        if len(graph) <= _IOS_NODES:
            yield ios(graph, streams, max_states=_IOS_STATES)


def fold(schedule: Schedule, streams: int) -> Schedule:
    """The same issue order on at most `streams` streams; unchanged when it has no more.

    Parameters
    ----------
    schedule : Schedule
        Any valid schedule without merged calls.
    streams : int
        At least 1. A stream of `schedule` goes, whole, to the one with the least work so far, the busiest first.

    Returns
    -------
    schedule : Schedule
        Its waits are derived anew from the data edges.

    Raises
    ------
    InvalidArgumentError
        `streams` is no count.

    Notes
    -----
    Ownership: shares the graph. Threads: safe. Cost: O(nodes + edges * streams). Source: longest processing time first.
    """
    check_streams(streams)
    control_tasks(schedule)
    if len(schedule.stream_ids) <= streams:
        return schedule
    graph = schedule.graph
    work = [(-sum(graph.costs[v] for v in nodes), tuple(nodes)) for nodes in schedule.streams]
    stream_of = {v: stream for stream, nodes in enumerate(balance(work, streams)) for v in nodes}
    order = schedule.order
    program = emit(graph, [(v,) for v in order], [stream_of[v] for v in order])
    return Schedule(graph, program, schedule.policy, schedule.details)
