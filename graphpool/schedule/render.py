"""Pictures of a simulated run: trace slices and a Gantt chart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphpool.errors import UnsupportedError, explain

if TYPE_CHECKING:
    from .simulation import Simulation

__all__ = ["draw", "trace_events"]

_US_PER_S = 1e6


def trace_events(simulation: Simulation) -> list[dict[str, Any]]:
    """One slice a stream and, nested in it, one a call."""
    events = []
    for stream_id, calls in simulation.streams.items():
        first, last = calls[0][1], calls[-1][2]
        events.append(_slice(f"stream {stream_id}", stream_id, first, last, {"calls": len(calls)}))
        for nodes, start, end in calls:
            name = "+".join(simulation.names[v] for v in nodes)
            events.append(_slice(name, stream_id, start, end, {"nodes": list(nodes)}))
    return events


def _slice(name: str, stream_id: int, start: float, end: float, args: dict[str, Any]) -> dict[str, Any]:
    ts = start * _US_PER_S
    return {"name": name, "ph": "X", "pid": 0, "tid": stream_id, "ts": ts, "dur": end * _US_PER_S - ts, "args": args}


def draw(simulation: Simulation, title: str) -> Any:
    """A matplotlib figure with one row a stream."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        hint = "install the extra graphpool[profile]"
        raise UnsupportedError(explain("a plot needs matplotlib", hint=hint), extra="profile") from error
    figure = Figure(figsize=(10, 1 + 0.5 * max(len(simulation.streams), 1)), layout="constrained")
    axes = figure.subplots()
    for row, calls in enumerate(simulation.streams.values()):
        for nodes, start, end in calls:
            axes.barh(row, end - start, left=start, edgecolor="white", color=f"C{nodes[0] % 10}")
            label = "+".join(simulation.names[v] for v in nodes)
            axes.text((start + end) / 2, row, label, ha="center", va="center", fontsize=8, clip_on=True)
    axes.set_yticks(range(len(simulation.streams)), [f"stream {key}" for key in simulation.streams])
    axes.invert_yaxis()
    axes.set_xlabel("time")
    axes.set_title(title)
    return figure
