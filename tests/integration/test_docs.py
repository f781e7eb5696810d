"""The code of each page of the documentation runs as it stands and prints what the page shows; links lead somewhere.

Outputs are compared but for what depends on the machine: see `tests.helpers.pages`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import graphpool as gp
from tests.helpers.pages import (
    ROOT,
    command_blocks,
    masked,
    prepare_folder,
    python_blocks,
    renew,
    run_commands,
    run_python,
)

PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES = [page for page in PAGES if "_build" not in page.parts]
WRITTEN_AT_BUILD = {ROOT / "docs" / "reference" / name for name in ("ops.md", "onnx-ops.md")}


def _label(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [page for page in PAGES if python_blocks(page)], ids=_label)
def test_code(page: Path, tmp_path: Path) -> None:
    prepare_folder(tmp_path)
    for block, printed in run_python(page, tmp_path):
        if block.output is not None:
            assert masked(printed) == masked(block.output)


@pytest.mark.parametrize("page", [page for page in PAGES if command_blocks(page)], ids=_label)
def test_commands(page: Path, tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    prepare_folder(tmp_path)
    for block, printed in run_commands(page, tmp_path):
        assert masked(printed) == masked(block.output or ""), block.code


def test_outputs_are_renewed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("""```python\nprint(1)\n```\n\n```\n2\n```\n\n```sh\necho 3\n```\n\n```\n```\n""")
    renew(page)
    assert page.read_text() == """```python\nprint(1)\n```\n\n```\n1\n```\n\n```sh\necho 3\n```\n\n```\n3\n```\n"""


@pytest.mark.slow
def test_pictures(tmp_path: Path) -> None:
    """The script draws just those that the concept pages show."""
    pytest.importorskip("matplotlib")
    pytest.importorskip("onnx")
    command = [sys.executable, str(ROOT / "docs" / "make_pictures.py"), str(tmp_path)]
    subprocess.run(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True, timeout=300)
    drawn = {path.name for path in tmp_path.iterdir()}
    assert drawn == {path.name for path in (ROOT / "docs" / "concepts").glob("*.png")}
    shown = [page for page in PAGES if page.parent.name == "concepts"]
    assert drawn == {name for page in shown for name in re.findall(r"\]\(([\w-]+\.png)\)", page.read_text())}


def test_every_public_name_is_on_the_reference_page() -> None:
    page = (ROOT / "docs" / "reference" / "api.md").read_text()
    modules = {"cache", "fleet", "memory", "onnx", "profile", "schedule"}
    assert [name for name in gp.__all__ if name not in modules and not re.search(rf"\b{name}\b", page)] == []


@pytest.mark.parametrize("page", PAGES, ids=_label)
def test_links(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert [target for target in missing if (page.parent / target).resolve() not in WRITTEN_AT_BUILD] == []
