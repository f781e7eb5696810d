"""What a fresh checkout offers beside the package runs: benchmarks are found, and commands that profile end well."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMANDS = ("timeline", "tensors", "shapes", "cache", "schedules", "versus")


def run_python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.slow
def test_benchmarks_are_found_without_other_libraries() -> None:
    code = (
        "import sys; sys.modules.update(onnxruntime=None, openvino=None, torch=None); import pytest; "
        "sys.exit(pytest.main(['bench', '--benchmark-only', '--collect-only', '-q', '-p', 'no:cacheprovider']))"
    )
    done = run_python("-c", code)
    assert done.returncode == 0, done.stdout + done.stderr
    files = {line.split("::")[0] for line in done.stdout.splitlines() if "::" in line}
    benchmarks = {p.relative_to(ROOT).as_posix() for p in (ROOT / "bench").glob("bench_*.py")}
    assert files == {path for path in benchmarks if "\ndef test_" in (ROOT / path).read_text()}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_profiles_run_without_arguments(command: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    done = run_python("-m", f"bench.profile.{command}", "--seconds", "0", "--json", str(report))
    assert done.returncode == 0, done.stderr
    title, *_ = done.stdout.splitlines()
    found = json.loads(report.read_text())
    assert "digits_cnn" in found["title"] == title
    assert all(isinstance(value, int) and value >= 0 for row in found["rows"] for name, value in row.items()
               if name.endswith("_nbytes") and value is not None)  # fmt: skip


@pytest.mark.slow
def test_a_profile_is_drawn_on_a_page_of_its_own(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="pictures need the extra graphpool[profile]")
    page, picture = tmp_path / "report.html", tmp_path / "report.png"
    done = run_python("-m", "bench.profile.tensors", "--html", str(page), "--png", str(picture))
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page.read_text()
    assert text.count("<svg") == text.count("</svg>") == 1
    assert not [word for word in ("<script", "src=", "@import", "<link") if word in text]


def test_a_dimension_that_a_model_does_not_have_is_refused() -> None:
    done = run_python("-m", "bench.profile.timeline", "--shape", "tokens=8")
    assert done.returncode == 1
    assert done.stderr.strip() == "no dimension 'tokens'; accepted: batch"


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or shutil.which("cc") is None, reason="counts calls of glibc")
def test_warm_runs_allocate_nothing(tmp_path: Path) -> None:
    models = ("digits_cnn", "digits_transformer")
    done = run_python("-m", "bench.bench_memory", "--zoo", str(tmp_path), "allocations", "--json", "--models", *models)
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["model"] for row in rows] == list(models)
    for row in rows:
        assert row["execute_allocations"] == row["engine_allocations"] == 0
        assert row["run_allocations"] < 1  # in 20 runs, the first of which may
