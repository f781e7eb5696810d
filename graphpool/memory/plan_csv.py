"""Buffers from CSV files, in the columns that MiniMalloc's benchmarks use."""

from __future__ import annotations

import csv
from pathlib import Path

from graphpool.errors import InvalidArgumentError, brief, explain

from .planner import BufferInfo

_REQUIRED = ("id", "lower", "upper", "size")


def read_csv(path: str | Path) -> list[BufferInfo]:
    """Buffers of a CSV file with the columns id, lower, upper, size and optionally alignment, offset, gaps.

    Parameters
    ----------
    path : str or Path
        Gaps are written ``lower-upper``, separated by spaces. Other columns are ignored; ids stay strings.

    Returns
    -------
    list of BufferInfo

    Raises
    ------
    InvalidArgumentError
        The file is no CSV in UTF-8, a column is missing, or a value is no number; the message names the line.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        try:
            missing = [name for name in _REQUIRED if name not in (rows.fieldnames or ())]
            if missing:
                got = brief(rows.fieldnames)
                raise InvalidArgumentError(explain(f"{path} lacks columns", accepted=", ".join(_REQUIRED), got=got))
            return [_parse(row, f"{path}, line {rows.line_num}") for row in rows]
        except (csv.Error, UnicodeDecodeError) as error:
            where = f"{path}, behind line {rows.line_num}"
            raise InvalidArgumentError(explain(where, accepted="CSV in UTF-8", got=error)) from error


def _parse(row: dict[str, str | None], where: str) -> BufferInfo:
    try:
        if row["id"] is None:
            raise ValueError("the line ends before its id")
        return BufferInfo(
            row["id"],
            int(row["lower"] or ""),
            int(row["upper"] or ""),
            int(row["size"] or ""),
            int(row.get("alignment") or 1),
            int(row["offset"] or "") if row.get("offset") else None,
            tuple(_parse_gap(gap) for gap in (row.get("gaps") or "").split()),
        )
    except ValueError as error:
        raise InvalidArgumentError(explain(f"{where} is malformed", accepted="integers", got=brief(row))) from error


def _parse_gap(text: str) -> tuple[int, int]:
    lower, _, upper = text.partition("-")
    return int(lower), int(upper)
