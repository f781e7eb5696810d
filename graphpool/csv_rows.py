"""Rows of CSV files that strangers wrote."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .errors import InvalidArgumentError, brief, explain
from .mapped_file import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = ["read_rows"]


def read_rows(path: str | Path, required: Sequence[str]) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Each row by its columns, and where it is, such as ``a.csv, line 2``.

    Raises `InvalidArgumentError` for a file that is no CSV in UTF-8 or lacks columns, OSError where it cannot be opened
    or is no regular file: a pipe would wait for its writer.
    """
    import csv

    with os.fdopen(open_regular(path), newline="", encoding="utf-8") as file:
        rows = csv.DictReader(file)
        try:
            if any(name not in (rows.fieldnames or ()) for name in required):
                got = brief(rows.fieldnames)
                raise InvalidArgumentError(explain(f"{path} lacks columns", accepted=", ".join(required), got=got))
            for row in rows:
                yield f"{path}, line {rows.line_num}", row
        except (csv.Error, UnicodeDecodeError) as error:
            where = f"{path}, behind line {rows.line_num}"
            raise InvalidArgumentError(explain(where, accepted="CSV in UTF-8", got=error)) from error
