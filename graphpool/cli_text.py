"""Reports as text: names with their values, and tables; drawn by rich where it is installed and reads a terminal."""

from __future__ import annotations

import shutil
import sys
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import NamedTuple

from .drawing import describe_size

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    Report = Mapping[str, Any]

_MOST_OPS = 6
"""Ops of a partition that its row names."""
_MOST_WHOLE = 20
"""Letters of the longest word that a terminal shows in one line where there is room."""
_SUFFIXES = {"_nbytes": "", "_ms": " (ms)", "_per_s": "/s", "_percent": " (%)"}
"""Endings of names that are units, and what headings say in their place; values of the first have their unit."""


class Block(NamedTuple):
    """Rows under a title, with headings where it is a table, else names and values; `depth` of titles around it."""

    title: str
    depth: int
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def print_report(report: Report) -> None:
    """Print a report on standard output."""
    blocks = list(_blocks(report))
    is_terminal = sys.stdout.isatty()
    if is_terminal and _print_with_rich(blocks):
        return
    width = shutil.get_terminal_size().columns if is_terminal else None
    print("\n".join(line[:width] for block in blocks for line in _lines(block)), flush=True)


def printable(text: str) -> str:
    """Text of a stranger's for a terminal: what is not printable is written out."""
    if text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)


# ---- blocks


def _blocks(report: Report, title: str = "", depth: int = 0) -> Iterator[Block]:
    """Values that follow one another are one block; what is nested has its own."""
    inner, simple = depth + bool(title), []
    if title and _is_nested(next(iter(report.values()))):
        yield Block(title, depth, (), [])
        title, depth = "", inner
    for key, value in report.items():
        if not _is_nested(value) and key != "partitions":
            simple.append((_name(key), _value(key, value)))
            continue
        if simple:
            yield Block(title, depth, (), simple)
            title, depth, simple = "", inner, []
        yield from _nested(key, value, inner)
    if simple:
        yield Block(title, depth, (), simple)


def _nested(key: str, value: Any, depth: int) -> Iterator[Block]:
    if key == "partitions":
        yield _partitions(value, depth)
    elif isinstance(value, list):
        yield _table(_name(key), value, depth)
    elif _is_table(value):
        yield _table(_name(key), [{"name": name} | row for name, row in value.items()], depth)
    else:
        yield from _blocks(value, _name(key), depth)


def _is_nested(value: Any) -> bool:
    return bool(value) and (isinstance(value, dict) or (isinstance(value, list) and isinstance(value[0], dict)))


def _is_table(value: Report) -> bool:
    """Whether names stand for flat reports that have the same names in turn."""
    rows = list(value.values())
    return all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows) and not any(
        _is_nested(cell) for row in rows for cell in row.values()
    )


def _table(title: str, reports: Sequence[Report], depth: int) -> Block:
    """Reports of the same names, those of nested ones included, as rows."""
    flat = [_flatten(report) for report in reports]
    rows = [tuple(_cell(key, value) for key, value in row.items()) for row in flat]
    return Block(title, depth, tuple(map(_heading, flat[0])), rows)


def _flatten(report: Report) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in report.items():
        flat |= value if isinstance(value, dict) else {key: value}
    return flat


def _partitions(reports: Sequence[Report], depth: int) -> Block:
    rows = []
    for number, partition in enumerate(reports):
        ops = "+".join(partition["ops"][:_MOST_OPS]) + ("+..." if len(partition["ops"]) > _MOST_OPS else "")
        names = ", ".join(partition["implementations"]) or f"{partition['backend']} (no step of its own)"
        if "ms" in partition:
            names += f", {partition['ms']:.3g} ms"
        if "reason" in partition:
            names += f": {partition['reason']}"
        rows.append((str(number), ops, _nodes(partition["nodes"]), names))
    cells = [tuple(map(printable, row)) for row in rows]
    return Block("partitions", depth, ("", "ops", "nodes", "implementations"), cells)


def _nodes(names: Sequence[str]) -> str:
    """The nodes of a partition in a few words."""
    return ", ".join(names) if len(names) < 3 else f"{names[0]} to {names[-1]} ({len(names)})"


def _name(key: str) -> str:
    return printable(key.removesuffix("_nbytes"))


def _heading(key: str) -> str:
    suffix = next((suffix for suffix in _SUFFIXES if key.endswith(suffix)), "")
    return printable(key.removesuffix(suffix) + _SUFFIXES.get(suffix, ""))


def _value(key: str, value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if key.endswith("nbytes"):
        return describe_size(value) if value < 2**10 else f"{describe_size(value)} ({value} bytes)"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1e4 else f"{value:.4g}"
    return printable((", ".join(map(str, value)) or "none") if isinstance(value, list) else str(value))


def _cell(key: str, value: Any) -> str:
    """A value where there is little room."""
    return describe_size(value) if key.endswith("_nbytes") and value is not None else _value(key, value)


# ---- lines


def _lines(block: Block) -> Iterator[str]:
    """A block as plain text: columns of letters to the left, of numbers to the right."""
    indent = "  " * block.depth
    if block.title:
        yield f"{indent}{block.title}:"
        indent += "  "
    if not block.headings:
        width = max((len(name) for name, _ in block.rows), default=0) + 1
        yield from (f"{indent}{name + ':':<{width}} {value}" for name, value in block.rows)
        return
    cells = [block.headings, *block.rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    is_number = [_is_number(column) for column in zip(*block.rows, strict=True)]
    for row in cells:
        columns = zip(row, widths, is_number, strict=True)
        yield indent + "  ".join(t.rjust(w) if right else t.ljust(w) for t, w, right in columns).rstrip()


def _is_number(column: Sequence[str]) -> bool:
    return all(cell.lstrip("-")[:1].isdecimal() for cell in column)


def _print_with_rich(blocks: Sequence[Block]) -> bool:
    """Whether rich is there, and has printed the blocks."""
    try:
        from rich.box import SIMPLE_HEAD
        from rich.console import Console
        from rich.padding import Padding
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        return False
    console = Console(highlight=False)
    for block in blocks:
        if block.title:
            console.print(Padding(Text(block.title, style="bold"), (0, 0, 0, 2 * block.depth)))
        box = SIMPLE_HEAD if block.headings else None
        table = Table(box=box, show_header=bool(block.headings), show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
        headings, indent = block.headings or ("", ""), 2 * (block.depth + bool(block.title))
        columns = list(zip(*block.rows, strict=True))
        numbers = [bool(block.headings) and _is_number(column) for column in columns]
        widths = _fit(headings, columns, numbers, console.width - indent - 2 * (len(columns) - 1))
        for heading, is_number, width in zip(headings, numbers, widths, strict=False):
            table.add_column(Text(heading), justify="right" if is_number else "left", overflow="fold", width=width)
        for row in block.rows:
            table.add_row(*(Text(cell, style="" if k or block.headings else "cyan") for k, cell in enumerate(row)))
        if block.rows:
            console.print(Padding(table, (0, 0, 0, indent)))
    return True


def _fit(
    headings: Sequence[str], columns: Sequence[Sequence[str]], numbers: Sequence[bool], room: int
) -> list[int] | list[None]:
    """Widths of columns in which no number or short word is torn; None where there is too little room for that."""
    least, most = [], []
    for heading, cells, is_number in zip(headings, columns, numbers, strict=False):
        words = [*heading.split(), *(cells if is_number else " ".join(cells).split())]
        least.append(max((len(word) for word in words if is_number or len(word) <= _MOST_WHOLE), default=1))
        most.append(max(map(len, (heading, *cells))))
    spare = room - sum(least)
    if spare < 0:
        return [None] * len(least)
    widths = least
    for left, k in enumerate(sorted(range(len(least)), key=lambda k: most[k] - least[k])):
        more = min(most[k] - least[k], spare // (len(least) - left))
        widths[k] += more
        spare -= more
    return widths
