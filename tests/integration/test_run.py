"""The script ./run: what it asks pip for, and in which order."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.helpers.tree import ROOT

pytestmark = pytest.mark.native

PYTHON = f"""#!/bin/sh
case "$*" in
    -c*) exec {sys.executable} "$@" ;;
    *) echo "$*" >>calls ;;
esac
"""
"""An interpreter that notes what it is asked for, but for small programs."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout whose environment has such an interpreter."""
    for name in ("run", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    python = tmp_path / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(PYTHON)
    python.chmod(0o755)
    return tmp_path


def _calls(tree: Path, *arguments: str) -> list[str]:
    """What the interpreter was asked for by one call of ./run."""
    calls = tree / "calls"
    calls.write_text("")
    subprocess.run(["./run", *arguments], cwd=tree, check=True, capture_output=True)
    return calls.read_text().splitlines()


@pytest.mark.parametrize("extra", ["base", "test", "dev"])
def test_what_builds_is_installed_before_graphpool_is_built(tree: Path, extra: str) -> None:
    """Cython compiles again what is older than the declarations that it includes."""
    first, build = _calls(tree, "setup", extra)
    required = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert first.split()[-len(required) :] == required
    assert "--no-build-isolation" in build.split()
    assert "-e" in build.split()


def test_what_is_set_up_is_built_in_place(tree: Path) -> None:
    _calls(tree, "setup", "test")
    in_place = ["setup.py -q build_ext --inplace"]
    assert _calls(tree, "setup") == in_place
    assert _calls(tree, "test", "tests/test_cli.py") == [*in_place, "-m pytest tests/test_cli.py"]
    assert len(_calls(tree, "setup", "dev")) == 2
    (tree / "pyproject.toml").write_text((tree / "pyproject.toml").read_text() + "\n")
    assert len(_calls(tree, "setup", "test")) == 2


def test_an_extra_that_there_is_not_is_refused(tree: Path) -> None:
    shutil.rmtree(tree / ".venv")
    done = subprocess.run(["./run", "setup", "docs"], cwd=tree, check=False, capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == "run: unknown extra docs; accepted: base, test, dev\n"
    assert not (tree / ".venv").exists()
