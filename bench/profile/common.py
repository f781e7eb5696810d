"""What the commands share: arguments, models and their inputs, times, and reports as table, JSON and picture."""

from __future__ import annotations

import argparse
import io
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import graphpool as gp
from bench.profile.page import html_page
from graphpool.demo import model_path
from graphpool.drawing import make_figure
from graphpool.profile import random_inputs
from graphpool.runtime.shape_ranges import ShapeRanges

__all__ = [
    "UNITS", "Report", "axes_of", "finish", "free_sizes", "inputs_for", "inputs_of", "lighten", "median_ms",
    "parser_of", "warm_up",
]  # fmt: skip

KIB = 1024
WARM_UP = 12
"""Runs until programs know how many threads they are worth."""

UNITS = {"nbytes": "KiB", "ms": "ms", "us": "us"}
"""How a column is shown, by the end of its name; JSON has bytes."""


@dataclass
class Report:
    """What a command found: lines about it, rows of one kind, and what draws them as a matplotlib figure."""

    title: str
    rows: list[dict[str, Any]]
    draw: Callable[[], Any]
    lines: list[str] = field(default_factory=list)
    more: dict[str, Any] = field(default_factory=dict)


# ---- arguments


def parser_of(doc: str) -> argparse.ArgumentParser:
    """A parser with what all commands take."""
    parser = argparse.ArgumentParser(description=doc.split("\n", 1)[0])
    parser.add_argument("model", nargs="?", type=Path, default=model_path("digits_cnn"), metavar="MODEL",
                        help="an ONNX file (default: the demonstration's convolutional network)")  # fmt: skip
    parser.add_argument("--shape", action="append", default=[], type=parse_sizes, metavar="NAME=SIZE",
                        help="the size of a named dimension, such as batch=8; others are 1")  # fmt: skip
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=0.3, help="time to spend on each latency (default: 0.3)")
    for kind in ("json", "png", "html"):
        parser.add_argument(f"--{kind}", type=Path, metavar="FILE")
    return parser


def parse_sizes(text: str) -> tuple[str, list[int]]:
    """``NAME=SIZE``, or ``NAME=SIZE,SIZE``."""
    name, _, sizes = text.partition("=")
    try:
        found = [int(size) for size in sizes.split(",")]
    except ValueError:
        found = []
    if not name or not found or min(found) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; accepted: NAME=SIZE with sizes of at least 1, such as batch=8")
    return name, found


def free_sizes(model: gp.Model) -> list[str]:
    """Names of the dimensions of inputs that are not fixed, each once."""
    dims = [dim for port in model.inputs for dim in port.shape or ()]
    return list(dict.fromkeys(dim for dim in dims if isinstance(dim, str)))


def inputs_for(model: gp.Model, sizes: Mapping[str, int]) -> dict[str, Any]:
    """Content for the inputs, with 1 for dimensions that `sizes` does not name."""
    known = free_sizes(model)
    unknown = [name for name in sizes if name not in known]
    if unknown:
        raise SystemExit(f"no dimension {unknown[0]!r}; accepted: {', '.join(known) or 'none, all sizes are fixed'}")
    wanted = dict.fromkeys(known, 1) | dict(sizes)
    return random_inputs(model, ShapeRanges(wanted, model.inputs).largest_shapes())


def inputs_of(model: gp.Model, options: Any) -> dict[str, Any]:
    """Content for the inputs, for the last of the sizes that were asked for."""
    return inputs_for(model, {name: sizes[-1] for name, sizes in options.shape})


# ---- measuring


def warm_up(model: gp.Model, inputs: Mapping[str, Any]) -> None:
    """Run until nothing is new."""
    for _ in range(WARM_UP):
        model.run(inputs)


def median_ms(run: Callable[[], object], seconds: float) -> float:
    """Median latency of at least five runs, after a warm-up. Unit: milliseconds."""
    for _ in range(3):
        run()
    times, end = [], time.monotonic() + seconds
    while len(times) < 5 or time.monotonic() < end:
        start = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - start) / 1e6)
    return statistics.median(times)


# ---- reports


def finish(report: Report, options: argparse.Namespace) -> None:
    """Write the files that were asked for, and print the table."""
    header, cells = table_of(report.rows)
    if options.json:
        content = {"title": report.title, **report.more, "rows": report.rows}
        options.json.write_text(json.dumps(content, indent=1, default=str) + "\n")
    if options.png or options.html:
        try:
            figure = report.draw()
        except gp.UnsupportedError as error:
            sys.exit(str(error))
        if options.png:
            figure.savefig(options.png, dpi=150)
        if options.html:
            text = io.StringIO()
            figure.savefig(text, format="svg")
            options.html.write_text(html_page(report.title, report.lines, text.getvalue(), header, cells))
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # who reads may have seen enough
    print(report.title)
    for line in report.lines:
        print(line)
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    for row in (header, *cells):
        first, *others = (cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join([first.strip().ljust(widths[0]), *others]).rstrip())


def table_of(rows: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Header and cells of rows that have the same keys."""
    header = [heading(name) for name in rows[0]]
    return header, [[show(name, value) for name, value in row.items()] for row in rows]


def heading(name: str) -> str:
    """A column's name with its unit: ``arena_nbytes`` becomes ``arena, KiB``."""
    for end, unit in UNITS.items():
        if name == end:
            return unit
        if name.endswith(f"_{end}"):
            return f"{name.removesuffix(f'_{end}').replace('_', ' ')}, {unit}"
    return name.replace("_", " ")


def show(name: str, value: Any) -> str:
    """A cell."""
    if value is None:
        return "-"
    if name.endswith("nbytes"):
        return f"{value / KIB:,.1f}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def axes_of(x: str, y: str, title: str) -> tuple[Any, Any]:
    """A figure and its axes with labels and a light grid."""
    figure = make_figure(9, 5)
    axes = figure.subplots()
    axes.set(xlabel=x, ylabel=y, title=title)
    lighten(axes)
    return figure, axes


def lighten(axes: Any, axis: str = "both") -> None:
    """A grid behind what is drawn, and no frame."""
    axes.grid(axis=axis, alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
