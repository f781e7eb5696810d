"""`trace`: what every stream of every program did while a block of code ran."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass, replace

from ..drawing import Bar, describe_size, describe_time, draw_rows, make_figure, size_unit, time_unit
from ..errors import InvalidArgumentError, StateError, check_count, explain
from ..runtime._trace import Recorder
from ..runtime.primitive import primitive_of
from ..schedule import Simulation
from .tenants import by_number, find_tenants, find_uses, match_runs, name_host

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from matplotlib.figure import Figure

    from ..runtime import Model
    from ..runtime.executable import Executable
    from .tenants import ArenaTenant

_PIECES = 65536
_WARM_UP = 4
"""Runs before a trace: a program finds out within three whether it is worth the threads."""

_NS_PER_US = 1e3
_NS_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class TracedStep:
    """One step of one run of a program, or a host function (`program` 0).

    Attributes
    ----------
    name, kind : str
        Kernel with its instruction set and what was fused; kind of the op, or of the first of several.
    program, run, step : int
        Serial number of the program; number of the run in the trace; position in the program.
    thread, stream : int
        Thread that called; position of the stream, 0 for a program without streams.
    nthreads, ntasks : int
        Threads that took part; tasks that they shared.
    start_ns, end_ns : int
        Of the first and the last piece, on the monotonic clock. Unit: nanoseconds.
    op : str
        Name of the op that the step computes, or of the first of several, after `Trace.name_ops`; else empty. Ops of an
        ONNX model have the names of their nodes.
    work_ns : int
        Time of all pieces together, whichever threads they ran on. Unit: nanoseconds.
    trip : int
        Which slice of a batch it was, of a step that runs once for each; else 0.
    """

    name: str
    kind: str
    program: int
    run: int
    step: int
    thread: int
    stream: int
    nthreads: int
    ntasks: int
    start_ns: int
    end_ns: int
    op: str = ""
    work_ns: int = 0
    trip: int = 0


class Trace:
    """A recording; made by `trace`, used as a context manager, and read after its block.

    Parameters
    ----------
    capacity : int, default=65536
        Pieces of steps to keep. Unit: pieces.

    Notes
    -----
    Ownership: holds names and numbers, no tensors; the recorder's memory, 64 bytes a piece, goes at the end of the
    block. Threads: whatever thread runs a program is recorded; one trace is on at a time in a process.
    """

    def __init__(self, capacity: int = _PIECES) -> None:
        self._recorder: Recorder | None = Recorder(check_count("capacity", capacity))
        self._steps: tuple[TracedStep, ...] = ()
        self._threads: dict[int, str] = {}
        self._footprints: list[tuple[int, Footprint]] | None = None
        self._dropped = 0

    def __enter__(self) -> Trace:
        if self._recorder is None:
            raise StateError(explain("the trace has ended", hint="make another one"))
        self._recorder.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None:
            return
        recorder.stop()
        self._dropped = recorder.dropped
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        self._steps = tuple(sorted(_read(recorder), key=lambda step: (step.start_ns, step.step)))
        self._threads = {s.thread: names.get(s.thread, f"thread {s.thread}") for s in self._steps}

    @property
    def steps(self) -> tuple[TracedStep, ...]:
        """What ran, by start.

        Raises
        ------
        StateError
            The trace has not ended yet.
        """
        if self._recorder is not None:
            raise StateError(explain("the trace has not ended", hint="read it after its block"))
        return self._steps

    @property
    def dropped(self) -> int:
        """Pieces that did not fit the capacity."""
        return self._dropped

    def runs(self, program: int | None = None) -> list[tuple[TracedStep, ...]]:
        """The steps of each run of a program, by start.

        Parameters
        ----------
        program : int, optional
            Serial number; by default of any program.

        Returns
        -------
        runs : list of (tuple of TracedStep)
        """
        found: dict[int, list[TracedStep]] = {}
        for step in self.steps:
            if step.program and program in (None, step.program):
                found.setdefault(step.run, []).append(step)
        return [tuple(steps) for steps in found.values()]

    def name_ops(self, form: Executable) -> None:
        """Say of the steps which op of a model's form each of them computes, and what they need of its arena.

        Of host functions too: those of an ONNX model then have kind and name of their nodes.

        Equal partitions share a program, so it takes whole runs of the form to tell which of them a step was part of:
        nothing else may have run its programs during the trace.

        Parameters
        ----------
        form : Executable
            Of the model that ran, for the shapes that it ran: `Model.specialise`.

        Raises
        ------
        StateError
            The trace has not ended yet.
        """
        programs: dict[int, list[list[str]]] = {}
        for compiled in (compiled for each in form.with_inner() for compiled in each.compiled):
            if compiled.program is not None:
                names = {op.id: op.name or op.kind for op in compiled.partition.ops}
                programs.setdefault(compiled.program.serial, []).append([names[number] for number in compiled.step_ops])
        ordinals = {
            (program, run[0].thread, run[0].run): number
            for program in programs
            for number, run in enumerate(self.runs(program))
        }
        named = []
        for step in self.steps:
            found = programs.get(step.program)
            number = ordinals.get((step.program, step.thread, step.run), 0)
            named.append(replace(step, op=found[number % len(found)][step.step]) if found else step)
        self._steps = tuple(named)
        self._footprints = [
            (
                next(piece.thread for run in runs for piece in run),
                measure_tenants(find_tenants(form, runs), form.arena_nbytes),
            )
            for runs in match_runs(form.steps, self._steps)
        ]
        hosts = {step.label: step.fallback for each in form.with_inner() for step in each.steps if not step.compiled}
        self._steps = tuple(
            [step if step.program else name_host(step, hosts.get(step.op or step.name)) for step in self._steps]
        )

    def events(self) -> list[dict[str, Any]]:
        """The trace in the Trace Event Format.

        There is a process for each calling thread, with a track for each stream and a counter of the bytes of its arena
        that are in use: of the model's after `name_ops`, before that of each program's whose model is still there.

        Returns
        -------
        list of dict of str to object
        """
        origin = min((step.start_ns for step in self.steps), default=0)
        process = {thread: number for number, thread in enumerate(self._threads)}
        tracks = sorted({(process[step.thread], step.stream) for step in self.steps})
        events = [_meta("process_name", number, 0, self._threads[thread]) for thread, number in process.items()]
        events += [_meta("thread_name", number, stream, f"stream {stream}") for number, stream in tracks]
        events += [_slice(step, process[step.thread], origin) for step in self.steps]
        for thread, footprint in self._measured() if self._footprints is None else self._footprints:
            events += _counts(footprint, process[thread], origin)
        return events

    def _measured(self) -> Iterator[tuple[int, Footprint]]:
        """The footprint of each run of a program that is still there, and the thread that called."""
        for steps in self.runs():
            if primitive_of(steps[0].program) is not None:
                yield steps[0].thread, _measure_run(steps)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a file that https://ui.perfetto.dev and chrome://tracing open.

        Parameters
        ----------
        path : path
            Of a JSON file, which is overwritten.

        Raises
        ------
        StateError
            The trace has not ended yet.
        OSError
            The file cannot be written.
        """
        content = {"traceEvents": self.events(), "displayTimeUnit": "ms", "dropped": self.dropped}
        Path(path).write_text(json.dumps(content), encoding="utf-8")

    def plot(self, run: int = -1) -> Figure:
        """Draw a run, one row a stream.

        Parameters
        ----------
        run : int, default=-1
            Position in `runs`; by default the last.

        Returns
        -------
        figure : matplotlib.figure.Figure
            Not shown, and not registered with pyplot.

        Raises
        ------
        StateError
            The trace has not ended yet.
        InvalidArgumentError
            There is no such run.
        UnsupportedError
            matplotlib is not installed; it comes with the extra ``graphpool[profile]``.
        """
        steps = self._run(run)
        origin, end = min(step.start_ns for step in steps), max(step.end_ns for step in steps)
        unit, ns = time_unit(end - origin)
        rows: dict[str, list[Bar]] = {f"stream {stream}": [] for stream in sorted({step.stream for step in steps})}
        for step in steps:
            span = (step.start_ns - origin) / ns, (step.end_ns - origin) / ns
            rows[f"stream {step.stream}"].append(Bar(step.kind, step.op or step.kind, *span, 0, 1))
        count = len(self.runs())
        title = f"run {range(count)[run] + 1} of {count}: {describe_time(end - origin)}"
        return draw_rows(rows, title, f"time since the first step ({unit})")

    def footprint(self, run: int = -1) -> Footprint:
        """Bytes of temporaries in use over the time of a run.

        Parameters
        ----------
        run : int, default=-1
            Position in `runs`; by default the last.

        Returns
        -------
        footprint : Footprint

        Raises
        ------
        StateError
            The trace has not ended yet, or the program of the run is gone: keep the model until the trace is read.
        InvalidArgumentError
            There is no such run.
        """
        return _measure_run(self._run(run))

    def _run(self, run: int) -> tuple[TracedStep, ...]:
        runs = self.runs()
        if not -len(runs) <= run < len(runs):
            raise InvalidArgumentError(explain(f"run {run} was not traced", accepted=f"{len(runs)} runs"), run=run)
        return runs[run]

    def __repr__(self) -> str:
        if self._recorder is not None:
            return f"Trace({'on' if self._recorder.is_on else 'not begun'})"
        return f"Trace({len(self.runs())} runs, {len(self._steps)} steps)"


def trace(capacity: int = _PIECES) -> Trace:
    """Record what every stream of every program does in a block of code.

    Parameters
    ----------
    capacity : int, default=65536
        Pieces of steps to keep, the first ones; a step that several threads share has several. Unit: 64 bytes.

    Returns
    -------
    trace : Trace
        A context manager.

    Raises
    ------
    InvalidArgumentError
        `capacity` is below 1.

    Notes
    -----
    Ownership: see `Trace`. Threads: safe; a second trace at the same time is refused when its block begins. Cost: two
    readings of the clock a piece while it is on; one load of a pointer a run while none is.
    Source: the Trace Event Format for the file.

    Examples
    --------
    >>> with gp.profile.trace() as t:       # doctest: +SKIP
    ...     model.run(inputs)
    >>> t.save("t.json")                    # doctest: +SKIP
    """
    return Trace(capacity)


def trace_runs(model: Model, inputs: Mapping[str, Any], runs: int = 1, warm_up: int = _WARM_UP) -> Trace:
    """Runs of a model, traced whole after some that were not."""
    for _ in range(warm_up):
        model.run(inputs)
    forms = model.specialise(inputs).with_inner()
    nsteps = sum(len(c.program) for form in forms for c in form.compiled if c.program is not None)
    capacity = max(_PIECES, runs * nsteps * model.engine.threads)
    while True:
        with trace(capacity) as recorded:
            for _ in range(runs):
                model.run(inputs)
        if not recorded.dropped:
            return recorded
        capacity += 2 * recorded.dropped  # threads share a step in as many pieces as it happens


def as_simulation(steps: tuple[TracedStep, ...]) -> Simulation:
    """A measured run as a timeline in seconds from its start; nodes are positions in the program."""
    origin = min(step.start_ns for step in steps)
    streams: dict[int, list[tuple[tuple[int, ...], float, float]]] = {}
    for step in steps:
        span = (step.start_ns - origin) / _NS_PER_S, (step.end_ns - origin) / _NS_PER_S
        streams.setdefault(step.stream, []).append(((step.step,), *span))
    names = [""] * (max(step.step for step in steps) + 1)
    start: dict[int, float] = {}
    end: dict[int, float] = {}
    for step in sorted(steps, key=lambda step: step.start_ns):
        names[step.step] = step.kind
        start.setdefault(step.step, (step.start_ns - origin) / _NS_PER_S)
        end[step.step] = (step.end_ns - origin) / _NS_PER_S
    return Simulation(max(end.values()), start, end, dict(sorted(streams.items())), tuple(names))


def _measure_run(steps: tuple[TracedStep, ...]) -> Footprint:
    """The footprint of a run of a program; StateError once that is gone."""
    primitive = primitive_of(steps[0].program)
    if primitive is None:
        raise StateError(explain("the program of this run is gone", hint="keep the model until the trace is read"))
    buffers, arena_nbytes = primitive.buffers_of(steps[0].program)
    return measure_footprint(buffers, by_number(steps), arena_nbytes)


def _read(recorder: Recorder) -> list[TracedStep]:
    """The steps that the slices are pieces of, and the host functions."""
    pieces: dict[tuple[int, int, int, int], list[tuple[int, ...]]] = {}
    for piece in recorder.slices():
        pieces.setdefault((piece[1], piece[0], piece[3], piece[8]), []).append(piece)
    steps = [_join(found) for found in pieces.values()]
    for name, thread, start, end in recorder.notes:
        steps.append(TracedStep(name, "host function", 0, 0, 0, thread, 0, 1, 1, start, end, "", end - start))
    return steps


def _join(pieces: list[tuple[int, ...]]) -> TracedStep:
    program, run, thread, step = pieces[0][:4]
    primitive = primitive_of(program)
    name, kind, stream = "a program that makes a form of constants, or is gone", "constants", 0
    if primitive is not None:
        name, kind = primitive.implementations[step], primitive.details.kinds[step]
        stream = 0 if primitive.program.streams is None else primitive.program.streams.stream_of()[step]
    nthreads, ntasks = len({piece[4] for piece in pieces}), sum(piece[5] for piece in pieces)
    start, end = min(piece[6] for piece in pieces), max(piece[7] for piece in pieces)
    work = sum(piece[7] - piece[6] for piece in pieces)
    trip = pieces[0][8]
    return TracedStep(name, kind, program, run, step, thread, stream, nthreads, ntasks, start, end, "", work, trip)


def _meta(what: str, process: int, track: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": track, "args": {"name": name}}


def _slice(step: TracedStep, process: int, origin: int) -> dict[str, Any]:
    return {
        "name": step.op or (step.kind if step.program else step.name),
        "ph": "X",
        "pid": process,
        "tid": step.stream,
        "ts": (step.start_ns - origin) / _NS_PER_US,
        "dur": (step.end_ns - step.start_ns) / _NS_PER_US,
        "args": {
            "kind": step.kind, "kernel": step.name, "step": step.step, "run": step.run, "program": step.program,
            "threads": step.nthreads, "tasks": step.ntasks, "trip": step.trip,
        },
    }  # fmt: skip


def _counts(footprint: Footprint, process: int, origin: int) -> list[dict[str, Any]]:
    """A counter track: one event for each time at which the bytes in use change."""
    return [
        {
            "name": "arena in use", "ph": "C", "pid": process, "tid": 0,
            "ts": (moment - origin) / _NS_PER_US, "args": {"bytes": nbytes},
        }
        for moment, nbytes in zip(footprint.times_ns, footprint.nbytes, strict=True)
    ]  # fmt: skip


# ---- footprint


@dataclass(frozen=True, slots=True)
class Footprint:
    """How much of an arena holds something that is still needed.

    Attributes
    ----------
    times_ns : tuple of int
        When that changes, ascending, on the monotonic clock. Unit: nanoseconds.
    nbytes : tuple of int
        What is in use from each of these times on. Unit: bytes.
    arena_nbytes : int
        Size of the arena, the scratch of the kernels included. Unit: bytes.
    """

    times_ns: tuple[int, ...]
    nbytes: tuple[int, ...]
    arena_nbytes: int

    @property
    def peak_nbytes(self) -> int:
        """The most that was in use at once. Unit: bytes."""
        return max(self.nbytes, default=0)

    def plot(self, title: str = "") -> Figure:
        """Draw the bytes in use over time, and the size of the arena.

        Parameters
        ----------
        title : str, default=""

        Returns
        -------
        figure : matplotlib.figure.Figure
            Not shown, and not registered with pyplot.

        Raises
        ------
        UnsupportedError
            matplotlib is not installed; it comes with the extra ``graphpool[profile]``.
        """
        origin, end = (self.times_ns[0], self.times_ns[-1]) if self.times_ns else (0, 0)
        (x_unit, ns), (y_unit, size) = time_unit(end - origin), size_unit(self.arena_nbytes)
        times, used = [(moment - origin) / ns for moment in self.times_ns], [nbytes / size for nbytes in self.nbytes]
        figure = make_figure(9, 4.5)
        axes = figure.subplots()
        axes.axhline(self.arena_nbytes / size, color="0.3", label=f"arena: {describe_size(self.arena_nbytes)}")
        axes.fill_between(
            times, used, step="post", alpha=0.4, label=f"in use: {describe_size(self.peak_nbytes)} at most"
        )
        axes.set(
            xlabel=f"time since the first step ({x_unit})", ylabel=f"memory ({y_unit})", ylim=(0, None), title=title
        )
        axes.margins(x=0)
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
        return figure


def measure_footprint(
    buffers: Sequence[tuple[int, int, tuple[int, ...]]],
    traced: Mapping[int, Sequence[TracedStep]],
    arena_nbytes: int,
) -> Footprint:
    """The footprint of a run by its steps, as of `by_number`; `buffers` has (offset, size, steps) of temporaries."""
    lives = [
        (min(step.start_ns for step in used), max(step.end_ns for step in used), offset, offset + nbytes)
        for offset, nbytes, users in buffers
        for used in (find_uses(traced, users) if nbytes else ())
    ]
    return _measure_lives(lives, arena_nbytes)


def measure_tenants(tenants: Iterable[ArenaTenant], arena_nbytes: int) -> Footprint:
    """The footprint of a run of a model by what its arena held."""
    return _measure_lives([(t.start_ns, t.end_ns, t.offset, t.offset + t.nbytes) for t in tenants], arena_nbytes)


def _measure_lives(lives: Iterable[tuple[int, int, int, int]], arena_nbytes: int) -> Footprint:
    """The footprint of rows of start, end, first and last byte."""
    coming = sorted(lives, reverse=True)
    moments = sorted({life[0] for life in coming} | {life[1] for life in coming})
    alive: list[tuple[int, int, int, int]] = []
    used = []
    for moment in moments:
        while coming and coming[-1][0] <= moment:
            alive.append(coming.pop())
        alive = [life for life in alive if life[1] > moment]
        used.append(_union((low, high) for _, _, low, high in alive))
    return Footprint(tuple(moments), tuple(used), arena_nbytes)


def _union(spans: Iterable[tuple[int, int]]) -> int:
    """Bytes that are in one of the spans at least: what shares bytes in place counts once."""
    total = reached = 0
    for start, end in sorted(spans):
        total += max(end - max(start, reached), 0)
        reached = max(reached, end)
    return total
