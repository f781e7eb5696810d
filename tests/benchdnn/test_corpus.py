"""benchdnn's graph cases, one test a suite: every run passes, with the partitions that it expects.

The folder of cases is ``$GRAPHPOOL_BENCHDNN``. All of it takes minutes; ``python -m tests.benchdnn`` runs the same on
two processes and writes a record of each run.
"""

from __future__ import annotations

import pytest

from tests.benchdnn.__main__ import DEFAULT
from tests.benchdnn.runner import as_table, count, read_manifest, run_all

ROWS = read_manifest(DEFAULT) if (DEFAULT / "manifest.jsonl").is_file() else []
ABSENT = pytest.param("all", marks=pytest.mark.skip(reason=f"no cases at {DEFAULT}"))
SUITES = sorted({row["suite"] for row in ROWS})


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("suite", SUITES or [ABSENT])
def test_suite(suite: str) -> None:
    records = list(run_all(DEFAULT, [row for row in ROWS if row["suite"] == suite]))
    print(as_table(count(records)))
    failed = [f"{record.case} {record.knobs}: {record.error}" for record in records if record.status != "passed"]
    assert not failed, "\n".join(failed)
    assert [record.case for record in records if record.fallback] == []
