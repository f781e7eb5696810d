"""Which tensors take the memory of a model?

    python -m bench.profile.tensors [MODEL] [--shape batch=16] [--top 20] [--json FILE] [--png FILE] [--html FILE]

The picture has a rectangle for each temporary: its bytes in the arena, from the step that writes it to the last one
that reads it. The table lists temporaries and constants, the largest first. A temporary is named by the op that writes
it; one that no other step reads is the scratch of a kernel.
"""

from __future__ import annotations

from typing import Any

from bench.profile.arena import trace_run
from bench.profile.common import KIB, Report, axes_of, finish, parser_of


def measure(options: Any) -> Report:
    """Trace one run, and look at the plan of what ran."""
    run = trace_run(options)
    placed, fixed = run.rows, run.constants
    if not placed:
        raise SystemExit("nothing lies in the arena of this model, or what does is not traced")
    rows = sorted([*placed, *fixed], key=lambda row: -row["nbytes"])[: options.top]

    def draw(figure: Any) -> None:
        axes = axes_of(figure, "step", "offset in the arena, KiB")
        kinds = {kind: f"C{number % 10}" for number, kind in enumerate(sorted({row["kind"] for row in placed}))}
        high = max(row["offset_nbytes"] + row["nbytes"] for row in placed) / KIB
        for row in placed:
            width, height = row["last_step"] - row["first_step"] + 1, row["nbytes"] / KIB
            left, low = row["first_step"] - 0.5, row["offset_nbytes"] / KIB
            axes.bar(left, height, width, low, align="edge", color=kinds[row["kind"]], alpha=0.6, edgecolor="white")
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set_xlim(-0.5, max(row["last_step"] for row in placed) + 0.5)
        axes.set_ylim(0, high)
        handles = [axes.bar(0, 0, color=color, alpha=0.6) for color in kinds.values()]
        figure.legend(handles, list(kinds), loc="outside right upper", frameon=False)

    total = sum(row["nbytes"] for row in placed), sum(row["nbytes"] for row in fixed)
    line = f"{len(placed)} temporaries of {total[0] / KIB:,.1f} KiB in all, {len(fixed)} constants of "
    line += f"{total[1] / KIB:,.1f} KiB as the file has them; the table has the {len(rows)} largest"
    return Report(f"Tensors of {options.model.stem}", rows, draw, [line], {"temporaries": placed, "constants": fixed})


if __name__ == "__main__":
    parser = parser_of(__doc__ or "")
    parser.add_argument("--top", type=int, default=20, help="rows of the table (default: 20)")
    chosen = parser.parse_args()
    finish(measure(chosen), chosen)
