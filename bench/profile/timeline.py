"""How much of its arena does a model use over the time of a run?

    python -m bench.profile.timeline [MODEL] [--shape batch=16] [--json FILE] [--png FILE] [--html FILE]

One warm run is traced. Shown is what of the arena is still needed: temporaries of partitions, scratch of their kernels,
and tensors between partitions; constants and compiled programs are there all the time, beside it.
"""

from __future__ import annotations

from typing import Any

import graphpool as gp
from bench.profile.common import KIB, Report, axes_of, finish, inputs_of, parser_of


def measure(options: Any) -> Report:
    """Picture one run."""
    with gp.Engine(threads=options.threads) as engine, gp.onnx.load(options.model, engine=engine) as model:
        picture = gp.profile.footprint(model, inputs_of(model, options))
    placed = picture.temporaries
    if not placed:
        raise SystemExit("nothing lies in the arena of this model, or what does is not traced")
    rows = []
    for moment in sorted({0, picture.duration_ns} | {t.start_ns for t in placed} | {t.end_ns for t in placed}):
        nbytes = sum(t.nbytes for t in placed if t.start_ns <= moment < t.end_ns)
        rows.append({"time_us": moment / 1e3, "in_use_nbytes": nbytes, "arena_nbytes": picture.arena_nbytes})

    def draw(figure: Any) -> None:
        axes = axes_of(figure, "time since the first step, us", "memory, KiB")
        times, used, arena = ([row[k] for row in rows] for k in ("time_us", "in_use_nbytes", "arena_nbytes"))
        used, arena = [n / KIB for n in used], [n / KIB for n in arena]
        axes.fill_between(times, used, step="post", alpha=0.35, label="temporaries in use")
        axes.step(times, used, where="post", linewidth=1)
        axes.step(times, arena, where="post", color="C3", linestyle="--", label="arena")
        axes.set_ylim(0, max(arena) * 1.18 or 1)
        axes.set_xlim(min(times), max(times))
        axes.legend(loc="upper right", ncols=2, frameon=False)

    peak, predicted = picture.needed_nbytes, picture.predicted_nbytes
    line = f"most in use at once {peak / KIB:,.1f} KiB; predicted for the whole model {predicted / KIB:,.1f} KiB: "
    line += ", ".join(f"{name} {nbytes / KIB:,.1f} KiB" for name, nbytes in picture.parts.items() if nbytes)
    more = {"peak_nbytes": peak, "predicted_nbytes": predicted, "parts_nbytes": picture.parts}
    return Report(f"Footprint of {options.model.stem} over a run", rows, draw, [line], more)


if __name__ == "__main__":
    chosen = parser_of(__doc__ or "").parse_args()
    finish(measure(chosen), chosen)
