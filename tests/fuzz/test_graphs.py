"""Mutated files: an error of graphpool or a result inside the engine's limit, and nothing else.

``python -m tests.fuzz.graphs`` runs as many mutants as one wants.
"""

import contextlib
import random
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

import graphpool as gp
from tests.fuzz import graphs
from tests.fuzz.graph_targets import KINDS, mutant, survives

CORPUS = sorted(path for path in graphs.CORPUS.rglob("*") if path.parent.name in KINDS)

ELSEWHERE_MB = 96
"""What Python and NumPy may hold beside the engine's memory: the reference backend computes in float64."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("kind", "count"), [("json", 400), ("plan", 200), ("trace", 200)])
def test_mutants(kind, count, tmp_path):
    for number in range(count):
        data = mutant(kind, number)
        tracemalloc.start()
        try:
            survives(kind, data, tmp_path)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < (ELSEWHERE_MB << 20) + 2 * len(data), number


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_mutants_that_were_faults_once(path, tmp_path):
    survives(path.parent.name, path.read_bytes(), tmp_path)


@pytest.mark.parametrize("kind", KINDS)
def test_seeds_are_read_and_mutants_are_the_same_each_time(kind, tmp_path):
    path = tmp_path / f"a.{KINDS[kind].suffix}"
    for data in KINDS[kind].seeds()[::5]:
        path.write_bytes(data)
        with contextlib.suppress(gp.OutOfMemoryError):
            KINDS[kind].read(path, random.Random(1))
    assert [mutant(kind, number) for number in range(20)] == [mutant(kind, number) for number in range(20)]
    assert len({mutant(kind, number) for number in range(20)}) > 15


@pytest.mark.native
def test_faults_are_found_and_kept(tmp_path):
    """A reader that raises, hangs, allocates or dies: each mutant of the sort is named, and the others still run."""
    (tmp_path / "broken.py").write_text(BROKEN.format(corpus=str(tmp_path / "corpus")))
    command = [sys.executable, str(tmp_path / "broken.py"), "plan", "--count=5"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(graphs.__file__).parents[2])
    assert found.returncode == 1, found.stderr
    for number, fault in enumerate(["no end within 1 s", "status -9", "MemoryError", "KeyError"]):
        kept = tmp_path / "corpus" / "plan" / f"0-{number}.csv"
        assert f"{kept}: {fault}" in found.stdout
        assert kept.read_bytes() == mutant("plan", number)
    assert "5 mutants of plan, 4 faults" in found.stdout


BROKEN = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, os.getcwd())
from tests.fuzz import graphs, graph_targets

graphs.CORPUS, graphs.DEADLINE_S, graphs.PROGRAM = Path({corpus!r}), 1, [__file__]
FAULTS = [
    lambda: time.sleep(60), lambda: os.kill(os.getpid(), signal.SIGKILL), lambda: bytearray(1 << 30), lambda: {{}}[1]
]


def survives(kind, data, folder):
    for number, fault in enumerate(FAULTS):
        if data == graph_targets.mutant(kind, number):
            fault()


graph_targets.survives = survives
sys.exit(graphs.main())
"""


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b"null", b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe{}", b'{"graph": [\x80]}',
        b"\x00" * 64,
        b'{"graph": [' + b'{"id": 1},' * 10_000 + b"]}", b'{"graph": ' + b"9" * 5000,
        b'{"graph": [], "engine_kind": "tpu"}', b'{"graph": [], "fpmath_mode": "NaN"}', b" " * (17 << 20),
    ],
    ids=lambda raw: repr(raw[:12]),
)  # fmt: skip
def test_files_that_are_no_graph(tmp_path, raw):
    path = tmp_path / "a.json"
    path.write_bytes(raw)
    with pytest.raises(gp.GraphpoolError):
        gp.Graph.from_json(path)


def test_truncated_files(tmp_path):
    path = tmp_path / "a.json"
    for raw in KINDS["json"].seeds()[::9]:
        for end in range(1, len(raw.rstrip()), max(1, len(raw) // 40)):
            path.write_bytes(raw[:end])
            with pytest.raises(gp.GraphpoolError):
                gp.Graph.from_json(path)
