"""What do schedules, streams and scratch modes cost in memory, and save in time?

    python -m bench.profile.schedules [MODEL] [--shape batch=8] [--threads 2] [--json FILE] [--png FILE] [--html FILE]

Schedules place the steps of a model on streams: steps that may run side by side need their memory at the same time.
Scratch modes say where the memory of partitions comes from that are compiled by themselves, one after another here:
``primitive`` (an arena of each), ``shared`` (one arena for all) or ``none`` (allocated for every run).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import graphpool as gp
from bench.bench_memory import bind_all, fixed_model
from bench.profile.common import KIB, Report, finish, inputs_of, lighten, median_ms, parser_of, warm_up
from graphpool.drawing import make_figure
from graphpool.runtime.scheduling import POLICIES

SCRATCH_MODES = ("primitive", "shared", "none")


def measure_schedule(options: Any, schedule: str, streams: int) -> dict[str, Any]:
    """The model under one schedule, on an engine of its own."""
    with (
        gp.Engine(threads=options.threads) as engine,
        gp.onnx.load(options.model, engine=engine, schedule=schedule, streams=streams) as model,
    ):
        inputs = inputs_of(model, options)
        warm_up(model, inputs)
        outputs, stats = model.run(inputs), model.stats()
        latency = median_ms(partial(model.run, inputs, outputs), options.seconds)
        return {
            "setting": f"{schedule}, {streams} stream{'s' * (streams > 1)}", "streams_used": stats.streams,
            "scratch_nbytes": stats.largest_arena_nbytes, "engine_peak_nbytes": engine.budget.peak,
            "latency_ms": latency,
        }  # fmt: skip


def measure_scratch(options: Any, mode: str) -> dict[str, Any]:
    """The partitions of the model compiled by themselves, in one mode of scratch."""
    with gp.onnx.load(options.model, threads=1) as model:
        inputs = inputs_of(model, options)
    fixed = fixed_model(options.model, inputs)
    with gp.Engine(threads=options.threads) as engine, gp.onnx.load(fixed, engine=engine) as model:
        executable = model.specialise(inputs)
        calls = bind_all(executable, engine, inputs, mode)

        def run() -> None:
            for call in calls:
                call()

        latency = median_ms(run, options.seconds)
        sizes = [call.args[0].scratchpad_nbytes for call in calls]
        row = {
            "setting": f"scratch={mode}", "streams_used": 1,
            "scratch_nbytes": sum(sizes) if mode == "primitive" else max(sizes),
            "engine_peak_nbytes": engine.budget.peak, "latency_ms": latency,
        }  # fmt: skip
        for call in calls:
            call.args[0].close()
        return row


def measure(options: Any) -> Report:
    """All schedules, then all modes."""
    settings = [("sequential", 1), *((name, 2) for name in POLICIES if name != "sequential")]
    rows = [measure_schedule(options, *setting) for setting in settings]
    rows += [measure_scratch(options, mode) for mode in SCRATCH_MODES]

    title = f"Schedules and scratch modes of {options.model.stem}"

    def draw() -> Any:
        figure = make_figure(9, 5)
        figure.suptitle(title)
        left, right = figure.subplots(1, 2, sharey=True, gridspec_kw={"wspace": 0.1})
        names, places = [row["setting"] for row in rows], range(len(rows))
        left.barh(places, [row["scratch_nbytes"] / KIB for row in rows], color="C0", alpha=0.7)
        right.barh(places, [row["latency_ms"] for row in rows], color="C1", alpha=0.7)
        left.set_yticks(list(places), names)
        left.invert_yaxis()
        left.set_xlabel("arenas, KiB")
        right.set_xlabel("median latency, ms")
        for axes in (left, right):
            axes.axhline(len(settings) - 0.5, color="0.6", linewidth=0.8)
            lighten(axes, "x")
        return figure

    lines = [
        f"threads: {options.threads}; scratch modes: partitions compiled by themselves, beside the model's own arena"
    ]
    return Report(title, rows, draw, lines)


if __name__ == "__main__":
    parser = parser_of(__doc__ or "")
    parser.set_defaults(threads=2)
    given = parser.parse_args()
    finish(measure(given), given)
