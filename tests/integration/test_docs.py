"""The Python code of each page of the documentation runs as it stands, and its links lead somewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES = [page for page in PAGES if "_build" not in page.parts]
WRITTEN_AT_BUILD = {ROOT / "docs" / "reference" / name for name in ("ops.md", "onnx-ops.md")}


def _code(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def _label(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if _code(page)], ids=_label)
def test_code(page: Path, tmp_path: Path) -> None:
    """In a process of its own, because pages set what holds for the whole process."""
    command = [sys.executable, "-W", "error", "-c", "\n".join(_code(page))]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=_label)
def test_links(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert [target for target in missing if (page.parent / target).resolve() not in WRITTEN_AT_BUILD] == []
