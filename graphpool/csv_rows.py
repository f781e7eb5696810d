"""CSV files: rows that strangers wrote, and rows for files."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InvalidArgumentError, brief, explain
from .mapped_file import open_regular

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import Any

__all__ = ["read_rows", "write_rows"]


def read_rows(path: str | Path, required: Sequence[str]) -> Iterator[tuple[str, dict[str, str | None]]]:
    """Each row by its columns, and where it is, such as ``a.csv, line 2``.

    Raises `InvalidArgumentError` for a file that is no CSV in UTF-8, lacks columns or has one twice, and for a row that
    is longer than the first; OSError where it cannot be opened or is no regular file: a pipe would wait for its writer.
    """
    import csv

    with os.fdopen(open_regular(path), newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        try:
            names = rows.fieldnames or ()
            if any(name not in names for name in required):
                got = brief(rows.fieldnames)
                raise InvalidArgumentError(explain(f"{path} lacks columns", accepted=", ".join(required), got=got))
            if len(set(names)) < len(names):
                raise InvalidArgumentError(explain(f"{path} has a column twice", got=brief(names)))
            for row in rows:
                if None in row:
                    what = f"{path}, line {rows.line_num} is longer than the first"
                    got = f"{len(row[None]) + len(names)}"
                    raise InvalidArgumentError(explain(what, accepted=f"{len(names)} values", got=got))
                yield f"{path}, line {rows.line_num}", row
        except (csv.Error, UnicodeDecodeError) as error:
            where = f"{path}, behind line {rows.line_num}"
            raise InvalidArgumentError(explain(where, accepted="CSV in UTF-8", got=error)) from error


def write_rows(path: str | Path, rows: Iterable[Iterable[Any]]) -> None:
    """Write rows as a CSV file in UTF-8; a file that is there stays as it is unless all rows could be made."""
    import csv

    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    Path(path).write_bytes(text.getvalue().encode())
