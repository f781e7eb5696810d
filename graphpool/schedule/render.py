"""A picture of a simulated run: a Gantt chart."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphpool.errors import UnsupportedError, explain

if TYPE_CHECKING:
    from .simulation import Simulation


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
