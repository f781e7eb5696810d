"""Mutated files of a packed store in child processes."""

from tests.fuzz import harness
from tests.fuzz.packed import RAW, TARGET, open_store

COUNT = 300


def test_the_file_itself_is_found():
    open_store(RAW)


def test_mutants_are_misses():
    report = harness.run(TARGET, 3, range(COUNT))
    assert report.findings == {}, report.text()
    assert dict(report.outcomes) == {"ran": COUNT}
