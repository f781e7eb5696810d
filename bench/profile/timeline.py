"""How much of its arena does a model use over the time of a run?

    python -m bench.profile.timeline [MODEL] [--shape batch=16] [--json FILE] [--png FILE] [--html FILE]

One warm run is traced. Shown is what of the arena is still needed: temporaries of partitions, scratch of their kernels,
and tensors between partitions; constants and compiled programs are there all the time, beside it.
"""

from __future__ import annotations

from typing import Any

import graphpool as gp
from bench.profile.common import KIB, Report, finish, inputs_of, parser_of
from graphpool.profile.tracing import measure_tenants


def measure(options: Any) -> Report:
    """Picture one run."""
    with gp.Engine(threads=options.threads) as engine, gp.onnx.load(options.model, engine=engine) as model:
        picture = gp.profile.footprint(model, inputs_of(model, options))
    placed = picture.temporaries
    if not placed:
        raise SystemExit("nothing lies in the arena of this model, or what does is not traced")
    usage = measure_tenants(placed, picture.arena_nbytes)
    rows = [
        {"time_us": moment / 1e3, "in_use_nbytes": nbytes, "arena_nbytes": usage.arena_nbytes}
        for moment, nbytes in zip(usage.times_ns, usage.nbytes, strict=True)
    ]
    peak, predicted = picture.needed_nbytes, picture.predicted_nbytes
    line = f"most in use at once {peak / KIB:,.1f} KiB; predicted for the whole model {predicted / KIB:,.1f} KiB: "
    line += ", ".join(f"{name} {nbytes / KIB:,.1f} KiB" for name, nbytes in picture.parts.items() if nbytes)
    more = {"peak_nbytes": peak, "predicted_nbytes": predicted, "parts_nbytes": picture.parts}
    title = f"Footprint of {options.model.stem} over a run"
    return Report(title, rows, lambda: usage.plot(title), [line], more)


if __name__ == "__main__":
    chosen = parser_of(__doc__ or "").parse_args()
    finish(measure(chosen), chosen)
