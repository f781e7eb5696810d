"""How much memory of the process does a model take, and how long does it take, here and in onnxruntime?

    python -m bench.profile.versus [MODEL] [--shape batch=8] [--json FILE] [--png FILE] [--html FILE]

Each library is imported, loads the model and runs it in a process of its own. Memory is what the process has grown by
after each of these, beyond Python with NumPy, as Linux counts resident pages: mapped files that were read count too.
Without onnxruntime there is one row.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import graphpool as gp
from bench.profile.common import Report, finish, inputs_of, lighten, parser_of
from graphpool.drawing import make_figure

LIBRARIES = ("graphpool", "onnxruntime")
MIB = 2**20


def run_one(library: str, arguments: list[str]) -> dict[str, Any]:
    """The figures of one library."""
    command = [sys.executable, "-m", "bench.profile.one_library", library, *arguments]
    found: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)
    return found


def measure(options: Any) -> Report:
    """A process for each library."""
    lines = [f"{library} is not installed" for library in LIBRARIES if importlib.util.find_spec(library) is None]
    with gp.onnx.load(options.model, threads=1) as model:
        inputs = inputs_of(model, options)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "inputs.npz")
        np.savez(file, **inputs)
        given = [str(options.model), str(file), str(options.threads), str(options.seconds)]
        rows = [run_one(library, given) for library in LIBRARIES if importlib.util.find_spec(library)]

    title = f"{options.model.stem} in processes of their own"

    def draw() -> Any:
        figure = make_figure(9, 5)
        figure.suptitle(title)
        left, right = figure.subplots(1, 2, width_ratios=[3, 1])
        places = range(len(rows))
        columns = [name for name in rows[0] if name.endswith("nbytes")]
        for number, name in enumerate(columns):
            heights = [row[name] / MIB for row in rows]
            label = name.removesuffix("_nbytes").replace("_", " ")
            left.bar([place + 0.17 * number - 0.34 for place in places], heights, 0.15, alpha=0.8, label=label)
        right.bar(places, [row["latency_ms"] for row in rows], 0.5, color="0.5", alpha=0.8)
        left.set_ylabel("growth of resident memory, MiB")
        right.set_ylabel("median latency, ms")
        for axes in (left, right):
            axes.set_xticks(list(places), [row["library"] for row in rows])
            axes.margins(x=0.2)
            lighten(axes, "y")
        right.tick_params("x", rotation=30)
        figure.legend(loc="outside lower center", ncols=len(columns), frameon=False)
        return figure

    lines.append(f"threads: {options.threads}; growth of resident memory beyond Python with NumPy")
    return Report(title, rows, draw, lines)


if __name__ == "__main__":
    chosen = parser_of(__doc__ or "").parse_args()
    finish(measure(chosen), chosen)
