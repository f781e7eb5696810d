"""benchdnn's graph cases, one test a suite: every run passes, with the partitions that it expects.

The folder of cases is ``$GRAPHPOOL_BENCHDNN``. Runs on hundreds of megabytes are left to ``python -m tests.benchdnn``,
where they take most of the time: here a case has its runs up to a size, or its smallest one.
"""

from __future__ import annotations

from itertools import groupby
from operator import itemgetter

import pytest

from tests.benchdnn.__main__ import DEFAULT
from tests.benchdnn.runner import as_table, build, count, read_manifest, run_all

MOST_ELEMENTS = 1 << 24
"""In all tensors of a graph together."""

ROWS = read_manifest(DEFAULT) if (DEFAULT / "manifest.jsonl").is_file() else []
ABSENT = pytest.param("all", marks=pytest.mark.skip(reason=f"no cases at {DEFAULT}"))
SUITES = sorted({row["suite"] for row in ROWS})


def elements(row: dict[str, str]) -> int:
    """How many numbers the tensors of a run hold."""
    tensors = {tensor.id: tensor for op in build((DEFAULT, row)).ops for tensor in (*op.inputs, *op.outputs)}
    return sum(tensor.size for tensor in tensors.values())


def moderate(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The runs of each case up to `MOST_ELEMENTS`, or the smallest one where all are larger."""
    chosen = []
    for _, of_case in groupby(sorted(rows, key=itemgetter("case")), itemgetter("case")):
        sized = [(elements(row), row) for row in of_case]
        limit = max(MOST_ELEMENTS, min(size for size, _ in sized))
        chosen += [row for size, row in sized if size <= limit]
    return chosen


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES or [ABSENT])
def test_suite(suite: str) -> None:
    records = list(run_all(DEFAULT, moderate([row for row in ROWS if row["suite"] == suite])))
    print(as_table(count(records)))
    failed = [f"{record.case} {record.knobs}: {record.error}" for record in records if record.status != "passed"]
    assert not failed, "\n".join(failed)
    assert [record.case for record in records if record.fallback] == []
