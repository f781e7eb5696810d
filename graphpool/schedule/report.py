"""Predicted and measured timelines side by side, as text."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, TextIO

from .simulation import Simulation, simulate

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .schedule import Schedule


def explain(
    schedule: Schedule,
    simulation: Simulation | None = None,
    measured: Mapping[int, tuple[float, float]] | None = None,
    *,
    file: TextIO | None = None,
) -> None:
    """Print when each call of each stream was predicted to run and, where known, when it ran.

    Parameters
    ----------
    schedule : Schedule
        What ran.
    simulation : Simulation, optional
        The prediction. Default: `simulate` with the costs of the graph.
    measured : mapping of int to (float, float), optional
        For each node when it started and ended, in the unit of the costs; nodes may be absent.
    file : text stream, optional
        Where to print. Default: standard output.

    Raises
    ------
    ScheduleError
        There is no simulation and the instructions are no program.

    Notes
    -----
    Ownership: keeps nothing. Threads: as safe as `file`. Cost: O(nodes).
    Source: asked for by users of parallel executors, who could not tell why a schedule was slow.
    """
    simulation = simulate(schedule) if simulation is None else simulation
    times = {} if measured is None else measured
    lines = [repr(schedule), _bounds(schedule, simulation), *_candidates(schedule)]
    for stream_id, calls in simulation.streams.items():
        busy = simulation.busy[stream_id]
        lines.append(f"stream {stream_id}: {len(calls)} calls, busy {busy:g} of {simulation.makespan:g}")
        lines.append(f"  {'node':<24} {'predicted':>23} {'measured':>23} {'ratio':>7}")
        for nodes, start, end in calls:
            name = "+".join(simulation.names[v] for v in nodes)
            lines.append(f"  {name:<24} {_span((start, end))} {_measured(times.get(nodes[0]), end - start)}".rstrip())
    if times:
        makespan = max(end for _, end in times.values()) - min(start for start, _ in times.values())
        lines.append(f"makespan: predicted {simulation.makespan:g}, measured {makespan:g}")
    print("\n".join(lines), file=sys.stdout if file is None else file)


def _bounds(schedule: Schedule, simulation: Simulation) -> str:
    graph = schedule.graph
    speedup = graph.work / simulation.makespan if simulation.makespan else 1.0
    return (
        f"makespan {simulation.makespan:g}: critical path {graph.critical_path:g}, work {graph.work:g}, "
        f"{speedup:.2f} times one stream"
    )


def _candidates(schedule: Schedule) -> list[str]:
    makespans = schedule.details.get("candidates", {})
    return [f"  {policy:<12} {makespan:g}" for policy, makespan in sorted(makespans.items(), key=lambda item: item[1])]


def _span(times: tuple[float, float]) -> str:
    return f"{times[0]:>10.4g} - {times[1]:<10.4g}"


def _measured(times: tuple[float, float] | None, predicted: float) -> str:
    if times is None:
        return ""
    ratio = f"{(times[1] - times[0]) / predicted:>7.2f}" if predicted else ""
    return f"{_span(times)} {ratio}"
