"""What does a model take for each batch size, or other size of a dimension: predicted, and measured?

    python -m bench.profile.shapes [MODEL] [--shape batch=1,2,4,8] [--json FILE] [--png FILE] [--html FILE]

Each shape runs on an engine of its own. Sizes are those given; without any, powers of two up to 64 for the first
dimension that is not fixed. Predicted is what `Model.predict_peak` says before anything runs; measured is the peak of
the engine's budget: arena, constants, compiled programs and results of one run.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import graphpool as gp
from bench.profile.common import KIB, Report, axes_of, finish, free_sizes, inputs_for, median_ms, parser_of


def combinations(model: gp.Model, wanted: list[tuple[str, list[int]]]) -> Iterator[dict[str, int]]:
    """Every combination of the sizes that were asked for."""
    known = free_sizes(model)
    default = [(known[0], [1, 2, 4, 8, 16, 32, 64])] if known else []
    names, sizes = zip(*(wanted or default), strict=True) if wanted or default else ((), ())
    yield from (dict(zip(names, chosen, strict=True)) for chosen in itertools.product(*sizes))


def measure_one(options: Any, sizes: dict[str, int]) -> dict[str, Any]:
    """One shape on an engine of its own."""
    with gp.Engine(threads=options.threads) as engine, gp.onnx.load(options.model, engine=engine) as model:
        inputs = inputs_for(model, sizes)
        predicted = model.predict_peak(inputs)
        outputs = model.run(inputs)
        stats, measured = model.stats(), engine.budget.peak
        results = sum(getattr(value, "nbytes", 0) for value in outputs.values())
        return {
            "shape": ", ".join(f"{name}={size}" for name, size in sizes.items()) or "as in the file",
            "predicted_nbytes": int(predicted), "measured_nbytes": measured, "arena_nbytes": stats.arena_nbytes,
            "constants_nbytes": stats.constants_nbytes + stats.cached_nbytes, "programs_nbytes": stats.programs_nbytes,
            "results_nbytes": results, "latency_ms": median_ms(lambda: model.run(inputs, outputs), options.seconds),
        }  # fmt: skip


def measure(options: Any) -> Report:
    """All shapes."""
    with gp.onnx.load(options.model, threads=1) as model:
        chosen = list(combinations(model, options.shape))
    rows = [measure_one(options, sizes) for sizes in chosen]

    title = f"Footprint of {options.model.stem} over shapes"

    def draw() -> Any:
        figure, axes = axes_of("shape", "memory, KiB", title)
        places, base = range(len(rows)), [0.0] * len(rows)
        for part in ("constants", "programs", "arena", "results"):
            heights = [row[f"{part}_nbytes"] / KIB for row in rows]
            axes.bar(places, heights, bottom=base, width=0.6, alpha=0.7, label=part)
            base = [low + height for low, height in zip(base, heights, strict=True)]
        axes.plot(places, [row["predicted_nbytes"] / KIB for row in rows], "k_", markersize=24, label="predicted peak")
        axes.plot(places, [row["measured_nbytes"] / KIB for row in rows], "rx", label="measured peak")
        turn = {"rotation": 30, "ha": "right"} if sum(len(row["shape"]) for row in rows) > 60 else {}
        axes.set_xticks(list(places), [row["shape"] for row in rows], **turn)
        figure.legend(loc="outside right upper", frameon=False)
        return figure

    return Report(title, rows, draw)


if __name__ == "__main__":
    given = parser_of(__doc__ or "").parse_args()
    finish(measure(given), given)
