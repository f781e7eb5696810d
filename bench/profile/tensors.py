"""Which tensors take the memory of a model?

    python -m bench.profile.tensors [MODEL] [--shape batch=16] [--top 20] [--json FILE] [--png FILE] [--html FILE]

The picture has a rectangle for each temporary: its bytes in the arena, from the step that writes it to the last one
that needs it. The table lists temporaries and constants, the largest first.
"""

from __future__ import annotations

from typing import Any

import graphpool as gp
from bench.profile.common import KIB, Report, finish, inputs_of, parser_of
from graphpool.drawing import Bar, draw_arena
from graphpool.profile import ArenaTenant
from graphpool.runtime.executable import Executable


def place(tenant: ArenaTenant) -> dict[str, Any]:
    """The row of a temporary."""
    return {
        "tensor": tenant.tensor, "node": tenant.node, "kind": "scratch" if tenant.shape is None else tenant.kind,
        "nbytes": tenant.nbytes, "offset_nbytes": tenant.offset, "first_step": tenant.first_step,
        "last_step": tenant.last_step,
    }  # fmt: skip


def constants_of(form: Executable) -> list[dict[str, Any]]:
    """The rows of the constants that a form reads, as the file has them."""
    nowhere = dict.fromkeys(("offset_nbytes", "first_step", "last_step"))
    return [
        {"tensor": f"tensor {form.form.names.get(number, number)}", "node": "", "kind": "constant"}
        | {"nbytes": value.nbytes} | nowhere
        for number, value in form.form.constants.items()
    ]  # fmt: skip


def measure(options: Any) -> Report:
    """Picture one run, and look at what lies where."""
    with gp.Engine(threads=options.threads) as engine, gp.onnx.load(options.model, engine=engine) as model:
        inputs = inputs_of(model, options)
        picture, fixed = gp.profile.footprint(model, inputs), constants_of(model.specialise(inputs))
    placed = [place(tenant) for tenant in picture.temporaries]
    if not placed:
        raise SystemExit("nothing lies in the arena of this model, or what does is not traced")
    rows = sorted([*placed, *fixed], key=lambda row: -row["nbytes"])[: options.top]

    title = f"Tensors of {options.model.stem}"

    def draw() -> Any:
        bars = [
            Bar(row["kind"], row["node"], row["first_step"], row["last_step"] + 1, low, low + row["nbytes"])
            for row, low in ((row, row["offset_nbytes"]) for row in placed)
        ]
        return draw_arena(bars, picture.arena_nbytes, picture.needed_nbytes, title, "step", "needed at once")

    total = sum(row["nbytes"] for row in placed), sum(row["nbytes"] for row in fixed)
    line = f"{len(placed)} temporaries of {total[0] / KIB:,.1f} KiB in all, {len(fixed)} constants of "
    line += f"{total[1] / KIB:,.1f} KiB as the file has them; the table has the {len(rows)} largest"
    return Report(title, rows, draw, [line], {"temporaries": placed, "constants": fixed})


if __name__ == "__main__":
    parser = parser_of(__doc__ or "")
    parser.add_argument("--top", type=int, default=20, help="rows of the table (default: 20)")
    chosen = parser.parse_args()
    finish(measure(chosen), chosen)
