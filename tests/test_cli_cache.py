"""The command ``graphpool cache``."""

import json
import os
import subprocess
import sys

import pytest

from graphpool import cli
from graphpool.cache import Item, write_trace

LOOP = [Item(key, 2**20, 1.0) for key in "abcd"] * 50
POLICY = """
from graphpool.cache.policies import LruPolicy

class Newest(LruPolicy):
    name = "newest"

    def victims(self):
        return reversed(self._order)
"""


@pytest.fixture
def trace(tmp_path):
    write_trace(tmp_path / "loop.csv", LOOP)
    return str(tmp_path / "loop.csv")


def report(capsys, *arguments):
    assert cli.main(["cache", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_replay_over_policies_and_capacities(capsys, trace):
    found = report(capsys, "replay", trace)
    assert (found["accesses"], found["constants"], found["constants_nbytes"]) == (200, 4, 4 * 2**20)
    assert [row["capacity_nbytes"] for row in found["capacities"]] == [n * 2**20 for n in (1, 2, 3, 4)]
    half = found["capacities"][1]
    assert half["saved_percent"] == {"no_evict": 49.0, "lru": 0.0, "cost": 49.0}
    assert 48 <= half["achievable_percent"] <= half["bound_percent"] <= 50
    chosen = report(capsys, "replay", trace, "--capacity", "3MiB", "--capacity", "50%", "--policy", "lru")
    assert [row["capacity_nbytes"] for row in chosen["capacities"]] == [3 * 2**20, 2 * 2**20]
    assert [list(row["saved_percent"]) for row in chosen["capacities"]] == [["lru"]] * 2


def test_replay_prints_a_table_and_plots(capsys, trace, tmp_path):
    pytest.importorskip("matplotlib")
    assert cli.main(["cache", "replay", trace, "--plot", str(tmp_path / "loop.svg")]) == 0
    lines = capsys.readouterr().out.splitlines()
    [header] = [line for line in lines if "no_evict" in line]
    assert header.split() == ["capacity", "no_evict", "lru", "cost", "achievable", "(%)", "bound", "(%)"]
    assert len(lines) == lines.index(header) + 5
    assert "<svg" in (tmp_path / "loop.svg").read_text()
    assert cli.main(["cache", "replay", trace, "--plot", str(tmp_path / "loop.doc")]) == 2
    assert "accepted: .png, .svg, .pdf" in capsys.readouterr().err
    assert {file.name for file in tmp_path.iterdir()} == {"loop.csv", "loop.svg"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--capacity", "5x"], "not a size"),
        (["--capacity", "much%"], "not a size; accepted"),
        (["--capacity=-5%"], "not a size; accepted"),
        (["--capacity", "nan%"], "not a size; accepted"),
        (["--policy", "best"], "no policy is named 'best'"),
    ],
)
def test_errors(capsys, trace, arguments, message):
    assert cli.main(["cache", "replay", trace, *arguments]) == 2
    assert message in capsys.readouterr().err


def test_what_is_no_trace_is_refused(capsys, tmp_path):
    (tmp_path / "other.csv").write_text("a,b\n")
    assert cli.main(["cache", "replay", str(tmp_path / "other.csv")]) == 2
    assert "is no trace; accepted: first line key,nbytes,cost" in capsys.readouterr().err
    assert cli.main(["cache", "replay", str(tmp_path / "absent.csv")]) == 2


def in_process(*arguments, **variables):
    command = [sys.executable, "-m", "graphpool", "cache", *arguments, "--json"]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_show_says_what_the_environment_sets(tmp_path):
    found = in_process(
        "show",
        GRAPHPOOL_CONSTANT_TENSOR_CACHE_CAPACITY="cpu:512:lru",
        GRAPHPOOL_PRIMITIVE_CACHE_CAPACITY="7",
        GRAPHPOOL_PACKED_STORE=str(tmp_path),
    )
    assert found["primitive_cache_entries"] == 7
    assert found["constant_tensor_cache"]["cpu"] == {"capacity_nbytes": 512 * 2**20, "policy": "lru"}
    assert found["constant_tensor_cache"]["gpu"] == {"capacity_nbytes": None, "policy": "no_evict"}
    assert found["packed_store"] == {"path": str(tmp_path), "nbytes": 0}


def test_clear_removes_kept_programs(tmp_path):
    folder = tmp_path / "cache" / "graphpool" / "programs"
    folder.mkdir(parents=True)
    (folder / "0.program").write_bytes(bytes(300))
    (folder / "mine.txt").write_text("stays")
    kept = {"path": str(folder), "nbytes": 300}
    variables = {"GRAPHPOOL_PROGRAM_FOLDER": "", "XDG_CACHE_HOME": str(tmp_path / "cache")}
    assert in_process("show", **variables)["program_folder"] == kept
    assert in_process("clear", **variables) == {"path": str(folder), "freed_nbytes": 300}
    assert in_process("clear", **variables) == {"path": str(folder), "freed_nbytes": 0}
    assert in_process("show", **variables)["program_folder"] == kept | {"nbytes": 0}
    assert (folder / "mine.txt").exists()
    assert in_process("clear", GRAPHPOOL_PROGRAM_FOLDER="off") == {"path": None, "freed_nbytes": 0}
    absent = str(tmp_path / "absent")
    assert in_process("clear", GRAPHPOOL_PROGRAM_FOLDER=absent) == {"path": absent, "freed_nbytes": 0}


def test_the_policy_of_another_package(trace, tmp_path):
    """An installed distribution offers a policy: the command and the environment variable find it by name."""
    (tmp_path / "newest_policy.py").write_text(POLICY)
    info = tmp_path / "newest_policy-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: newest-policy\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[graphpool.policies]\nNewest = newest_policy:Newest\n")
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    variables = {"PYTHONPATH": path, "GRAPHPOOL_CONSTANT_TENSOR_CACHE_CAPACITY": "cpu:1:newest"}
    rows = in_process("replay", trace, "--capacity", "50%", **variables)["capacities"]
    assert list(rows[0]["saved_percent"]) == ["no_evict", "lru", "cost", "newest"]
    assert 0 < rows[0]["saved_percent"]["newest"] < 50
    found = in_process("show", **variables)
    assert found["policies"][-1] == "newest"
    assert found["constant_tensor_cache"]["cpu"]["policy"] == "newest"
