"""The harness tells crashes, hangs, foreign exceptions and memory from what is allowed."""

import ctypes
import threading

import numpy as np
import pytest

import graphpool as gp
from tests.fuzz import harness


def consume(raw):
    """Do what the mutant names."""
    match raw:
        case b"escape":
            raise KeyError("x")
        case b"typed":
            raise gp.InvalidGraphError("x") from KeyError("x")
        case b"crash":
            ctypes.string_at(0)
        case b"hang":
            while True:
                pass
        case b"stuck":
            threading.Event().wait()
        case b"memory":
            np.ones(100 << 20, np.uint8)
        case b"more than there is":
            np.empty(1 << 46, np.uint8)


def run(*mutants):
    target = harness.Target("test", lambda seed, number: mutants[number], consume, 1 << 20)
    return harness.run(target, 0, range(len(mutants)))


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(harness, "HANG_S", 2.0)


def test_every_kind_is_told(tmp_path):
    report = run(b"fine", b"crash", b"typed", b"hang", b"memory", b"escape", b"fine", b"more than there is")
    assert dict(report.outcomes) == {"ran": 2, "crash": 1, "InvalidGraphError": 1, "hang": 1, "memory": 1, "escape": 2}
    assert sorted(kind.split(":")[0] for kind in report.findings) == ["crash", "escape", "escape", "hang", "memory"]
    assert sum(report.boundary.values()) == 1
    kept = harness.keep(report, tmp_path)
    assert {path.read_bytes() for path in kept} == {b"crash", b"hang", b"memory", b"escape", b"more than there is"}


def test_a_child_that_waits_forever_is_a_hang(monkeypatch):
    monkeypatch.setattr(harness, "STUCK_S", 1.0)
    report = run(b"stuck", b"fine")
    assert dict(report.outcomes) == {"hang": 1, "ran": 1}


def test_mutants_are_the_same_each_time():
    from tests.fuzz.onnx import SMALL

    assert SMALL.make(1, 5) == SMALL.make(1, 5) != SMALL.make(2, 5)
