"""Mutated ONNX models in child processes, and those that were found once."""

from pathlib import Path

import pytest

from tests.fuzz import harness
from tests.fuzz.onnx import SMALL, load_and_run
from tests.fuzz.onnx_seeds import small_models

CORPUS = sorted(Path(__file__).with_name("corpus").glob("onnx-*.bin"))
COUNT = 400


@pytest.fixture(scope="module", autouse=True)
def imported():
    """What is imported on first use belongs to no mutant."""
    load_and_run(small_models()[0])


def test_seeds_run():
    unchanged = harness.Target("seeds", lambda seed, n: small_models()[n], load_and_run, SMALL.allowed_nbytes)
    report = harness.run(unchanged, 0, range(len(small_models())))
    assert dict(report.outcomes) == {"ran": len(small_models())}


def test_mutants_run_or_are_refused():
    report = harness.run(SMALL, 20, range(COUNT))
    assert report.findings == {}, report.text()
    assert sum(report.outcomes.values()) == COUNT
    assert report.outcomes["ran"] > COUNT // 5


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_found_ones_stay_mended(path):
    report = harness.replay(SMALL, path.read_bytes())
    assert report.findings == {}, report.text()
