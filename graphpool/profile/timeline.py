"""`explain`: when each step of a model was predicted to run, and when it did."""

from __future__ import annotations

import statistics
import sys
from typing import TYPE_CHECKING, Any, TextIO

from ..errors import check_count
from ..runtime.machine import EVENT_COST_S
from ..runtime.scheduling import shared_memory
from ..schedule import Schedule, Simulation, simulate
from ..schedule.report import explain as explain_schedule
from .inputs import inputs_or_random
from .tracing import as_simulation, trace_runs

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..runtime import Model
    from ..runtime.primitive import Primitive
    from .tracing import Trace, TracedStep

_THREADS = (4, 16, 64)
"""For which the time of a run is told."""


def explain(
    model: Model, inputs: Mapping[str, Any] | None = None, *, runs: int = 5, file: TextIO | None = None
) -> None:
    """Run a model and print, for each of its programs, the predicted and the measured timeline side by side.

    Parameters
    ----------
    model : Model
    inputs : mapping of str to array, optional
        As for `Model.run`; by default random ones, for models whose inputs are static.
    runs : int, default=5
        Runs to trace; the one of median length is printed.
    file : text stream, optional
        Where to print. Default: standard output.

    Raises
    ------
    InvalidArgumentError
        Inputs as in `Model.run`, or `runs` below 1.
    StateError
        A trace is on, or the model is closed.

    Notes
    -----
    Predictions rest on what `profile_ops` measured, else on a roofline. Times are in seconds. Work is the time of all
    tasks together; span is that of the longest task of each step, steps one after another, which no number of threads
    shortens. Tasks of a step count as equally long, and handing them out as free.
    Ownership: keeps nothing. Threads: as safe as `file`. Cost: `runs` + 4 runs.
    Source: asked for by users of parallel executors, who could not tell why a schedule was slow.
    """
    check_count("runs", runs)
    given = inputs_or_random(model, inputs)
    executable = model.specialise(given)
    recorded = trace_runs(model, given, runs)
    out = sys.stdout if file is None else file
    for primitive in (compiled.primitive for compiled in executable.compiled):
        if primitive is not None and len(primitive.program):
            print(_describe(primitive), file=out)
            _explain_program(primitive, model.engine.threads, recorded, out)


def predict(primitive: Primitive, threads: int) -> tuple[Schedule, Simulation] | None:
    """The schedule of a program and its simulation; None when it was compiled to run in order, whatever that takes."""
    details = primitive.details
    if details.schedule is None:
        return None
    memory = shared_memory(details.traffic)
    simulation = simulate(details.schedule, None, EVENT_COST_S, threads=threads, speedups=details.speedups, **memory)
    return details.schedule, simulation


def _explain_program(primitive: Primitive, threads: int, recorded: Trace, out: TextIO) -> None:
    runs = recorded.runs(primitive.program.serial)
    if runs:
        print(_describe_work(runs), file=out)
    measured = [as_simulation(steps) for steps in runs]
    middle = statistics.median_low([run.makespan for run in measured]) if measured else 0.0
    chosen = next((run for run in measured if run.makespan == middle), None)
    predicted = predict(primitive, threads)
    if predicted is None:
        _list_steps(chosen, out)
        return
    nodes = primitive.details.nodes
    times = {} if chosen is None else {nodes[k]: (chosen.start[k], chosen.end[k]) for k in chosen.start}
    explain_schedule(*predicted, times, file=out)


def _describe_work(runs: Sequence[tuple[TracedStep, ...]]) -> str:
    """Work and span of a run by the medians of its steps, and what follows for more threads."""
    found: dict[int, list[TracedStep]] = {}
    for step in (step for run in runs for step in run):
        found.setdefault(step.step, []).append(step)
    tasks = [
        (statistics.median(s.work_ns for s in steps) / 1e9, max(steps[0].ntasks, 1))
        for steps in found.values()
        for _ in range(len(steps) // len(runs))  # once for each slice of a batch
    ]
    work, span = sum(time for time, _ in tasks), sum(time / ntasks for time, ntasks in tasks)
    times = [sum(time / ntasks * -(-ntasks // threads) for time, ntasks in tasks) for threads in _THREADS]
    shared = ", ".join(f"{time:.4g} on {threads}" for time, threads in zip(times, _THREADS, strict=True))
    return f"work {work:.4g}, span {span:.4g}: one step after another at least {shared} threads"


def _list_steps(run: Simulation | None, out: TextIO) -> None:
    """A program that nobody scheduled has no prediction."""
    for nodes, start, end in run.streams[0] if run is not None else ():
        print(f"  {run.names[nodes[0]] if run else '':<24} {start:>10.4g} - {end:<10.4g}", file=out)


def _describe(primitive: Primitive) -> str:
    program = primitive.program
    streams = 1 if program.streams is None else program.streams.nstreams
    is_alone = program.trials < 0 and program.nthreads > 1
    return (
        f"{len(program)} steps on {streams} streams, {program.nthreads} threads"
        f"{', too short to share: on the thread of the caller alone' if is_alone else ''}; "
        f"arena {program.arena_nbytes} bytes, {primitive.details.sequential_nbytes} on one stream"
    )
