"""`footprint`: where every temporary of a run lay and when, and what the run held beside the arena."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass, replace

from ..drawing import Bar, describe_size, draw_arena, time_unit
from ..errors import check_instance
from .inputs import inputs_or_random
from .page import write_page
from .tenants import ArenaTenant, find_tenants, match_runs
from .tracing import TracedStep, trace_runs

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from ..runtime import Model
    from ..runtime.executable import Executable
    from .tenants import Run
    from .tracing import Trace

_RUNS = 5
"""Runs to trace, of which the picture shows the one of median length."""


@dataclass(frozen=True, slots=True)
class FootprintPicture:
    """The memory of one run.

    Attributes
    ----------
    model : str
        Its name.
    settings : str
        How it ran: schedule, streams, shapes of the inputs.
    steps : tuple of TracedStep
        What ran, by start; times count from the start of the first. Several programs, and host functions between them,
        follow one another.
    temporaries : tuple of ArenaTenant
        What was needed; no two share a byte at one time.
    holes : tuple of ArenaTenant
        What was not: all the rest of the arena.
    duration_ns : int
        To the end of the last step. Unit: nanoseconds.
    arena_nbytes : int
        Size of the arena. Unit: bytes.
    needed_nbytes : int
        The most that was needed at once: no arena for the steps that ran can be smaller. The arena has room for steps
        too that only run where packed constants are not kept. Unit: bytes.
    parts : dict of str to int
        What a run takes of the budget, by what it is. The rest of the prediction is programs for other shapes, where
        ranges of them are declared, and states of open sessions. Unit: bytes.
    predicted_nbytes : int
        By `Model.predict_peak`. Unit: bytes.
    measured_nbytes : int
        The most that the engine's budget held since the engine was made, for whatever it ran. Unit: bytes.
    """

    model: str
    settings: str
    steps: tuple[TracedStep, ...]
    temporaries: tuple[ArenaTenant, ...]
    holes: tuple[ArenaTenant, ...]
    duration_ns: int
    arena_nbytes: int
    needed_nbytes: int
    parts: Mapping[str, int]
    predicted_nbytes: int
    measured_nbytes: int

    def html(self, beside: FootprintPicture | None = None) -> str:
        """The picture as a page that stands alone.

        Parameters
        ----------
        beside : FootprintPicture, optional
            Of another run, for the page to show both on the same scales and tell how they differ.

        Returns
        -------
        page : str
            HTML.

        Raises
        ------
        InvalidArgumentError
            `beside` is no picture.
        """
        others = [] if beside is None else [check_instance("beside", beside, FootprintPicture)]
        return write_page([self, *others])

    def save(self, path: str | os.PathLike[str], beside: FootprintPicture | None = None) -> None:
        """Write the page.

        Parameters
        ----------
        path : path
            Of an HTML file, which is overwritten.
        beside : FootprintPicture, optional
            As for `html`.

        Raises
        ------
        InvalidArgumentError
            `beside` is no picture.
        OSError
            The file cannot be written.
        """
        Path(path).write_text(self.html(beside), encoding="utf-8")

    def __repr__(self) -> str:
        return f"<FootprintPicture of {self.model}: {len(self.steps)} steps, arena {describe_size(self.arena_nbytes)}>"

    def _repr_html_(self) -> str:
        """For notebooks: the page in a frame."""
        from html import escape

        return f'<iframe srcdoc="{escape(self.html())}" style="width:100%;height:720px;border:0"></iframe>'

    def plot(self) -> Figure:
        """Draw the arena over time: a rectangle for each temporary, with the name of the node that writes it.

        Returns
        -------
        figure : matplotlib.figure.Figure
            Not shown, and not registered with pyplot.

        Raises
        ------
        UnsupportedError
            matplotlib is not installed; it comes with the extra ``graphpool[profile]``.
        """
        unit, ns = time_unit(self.duration_ns)
        bars = [
            Bar(t.kind, t.node, t.start_ns / ns, t.end_ns / ns, t.offset, t.offset + t.nbytes) for t in self.temporaries
        ]
        x_title = f"time since the first step ({unit})"
        return draw_arena(bars, self.arena_nbytes, self.needed_nbytes, self.model, x_title, "needed at once")


def footprint(model: Model, inputs: Mapping[str, Any] | None = None) -> FootprintPicture:
    """Run a model, and picture its memory: the arena over time, and what is held beside it.

    Parameters
    ----------
    model : Model
    inputs : mapping of str to array, optional
        As for `Model.run`; by default random ones, for models whose inputs are static.

    Returns
    -------
    picture : FootprintPicture
        Data to look at, and a page: `FootprintPicture.save`.

    Raises
    ------
    InvalidArgumentError
        Inputs as in `Model.run`.
    StateError
        A trace is on, or the model is closed.

    Notes
    -----
    Nothing else may run the model meanwhile. Ownership: the picture holds names and numbers, no tensors. Threads: one
    at a time in a process. Cost: nine runs; the one of median length of the last five is shown.
    Source: the time and space charts by which plans of buffers are drawn in the literature of memory planning.

    Examples
    --------
    >>> gp.profile.footprint(model).save("memory.html")     # doctest: +SKIP
    """
    given = inputs_or_random(model, inputs)
    predicted = int(model.predict_peak(given))
    recorded = trace_runs(model, given, _RUNS)
    form = model.specialise(given)
    shapes = ", ".join(f"{name} {'x'.join(map(str, np.shape(value))) or 'scalar'}" for name, value in given.items())
    streams = f"{form.streams} {'stream' if form.streams == 1 else 'streams'}"
    settings = f"Schedule {model.options.policy} on {streams}, inputs {shapes or 'none'}"
    return picture_run(form, recorded, (model.name, settings), predicted, model.engine.budget.peak)


def picture_run(
    form: Executable, recorded: Trace, titles: tuple[str, str], predicted: int, measured: int
) -> FootprintPicture:
    """The picture of the run of median length of a form in a trace; titles are the model's name and how it ran."""
    recorded.name_ops(form)
    measured_runs = sorted(match_runs(form.steps, recorded.steps), key=_length)
    runs = measured_runs[(len(measured_runs) - 1) // 2] if measured_runs else []
    traced = sorted((step for run in runs for step in run), key=lambda step: (step.start_ns, step.step))
    origin = traced[0].start_ns if traced else 0
    found = find_tenants(form, runs) if runs else []
    temporaries = [replace(t, start_ns=t.start_ns - origin, end_ns=t.end_ns - origin) for t in found]
    duration = max((step.end_ns for step in traced), default=origin) - origin
    holes, needed = _find_holes(temporaries, form.arena_nbytes, duration)
    steps = [replace(s, start_ns=s.start_ns - origin, end_ns=s.end_ns - origin) for s in traced]
    parts = {
        "arena": form.arena_nbytes,
        "results": form.results_nbytes,
        "host functions": form.host_nbytes,
        "constants": form.constants_nbytes,
        "packed constants": form.cached_nbytes,
        "programs": form.programs_nbytes,
    }
    parts["rest of the prediction"] = max(predicted - sum(parts.values()), 0)
    return FootprintPicture(
        *titles, tuple(steps), tuple(temporaries), tuple(holes), duration, form.arena_nbytes, needed, parts, predicted,
        measured,
    )  # fmt: skip


def _length(runs: Sequence[Run]) -> int:
    """How long a run of a model took. Unit: nanoseconds."""
    return max(step.end_ns for run in runs for step in run) - min(step.start_ns for run in runs for step in run)


# ---- what was not


def _find_holes(tenants: Sequence[ArenaTenant], arena_nbytes: int, duration: int) -> tuple[list[ArenaTenant], int]:
    """The bytes that no tenant has, as rectangles, and the most that all have at one time."""
    edges = np.unique([0, arena_nbytes, *(t.offset for t in tenants), *(t.offset + t.nbytes for t in tenants)])
    sizes, users = np.diff(edges), np.zeros(len(edges) - 1, np.int64)
    changes: dict[int, list[tuple[slice, int]]] = {0: [], duration: []}
    for tenant in tenants:
        low, high = np.searchsorted(edges, (tenant.offset, tenant.offset + tenant.nbytes))
        changes.setdefault(tenant.start_ns, []).append((slice(low, high), 1))
        changes.setdefault(tenant.end_ns, []).append((slice(low, high), -1))
    holes: list[ArenaTenant] = []
    begun: dict[tuple[int, int], int] = {}
    known, needed = np.zeros((0, 2), np.int64), 0
    for moment in sorted(changes):
        for span, change in changes[moment]:
            users[span] += change
        gaps = _gaps(users, edges) if moment < duration else known[:0]
        for low, high in _missing(known, gaps):
            holes.append(ArenaTenant("", "", "", "", None, low, high - low, 0, 0, begun.pop((low, high)), moment))
        begun |= dict.fromkeys(_missing(gaps, known), moment)
        known, needed = gaps, max(needed, int(sizes[users > 0].sum()))
    return holes, needed


def _gaps(users: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """The longest spans without users, as rows of low and high."""
    turns = np.flatnonzero(np.diff(users == 0, prepend=False, append=False))
    return edges[turns].reshape(-1, 2)


def _missing(rows: NDArray[np.int64], others: NDArray[np.int64]) -> Iterator[tuple[int, int]]:
    """The rows that are not among the others; both ascend, and no two rows of one begin alike."""
    places = np.searchsorted(others[:, 0], rows[:, 0])
    found = np.append(others, [[-1, -1]], axis=0)[places]
    yield from map(tuple, rows[(found != rows).any(axis=1)].tolist())
