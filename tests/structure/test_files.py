"""Habits of the tree: maps, sizes, and what must not stand in a file."""

from __future__ import annotations

import ast
import fnmatch
import re
from typing import TYPE_CHECKING

import pytest

from tests.helpers.tree import ROOT, label, own_texts, sources

if TYPE_CHECKING:
    from pathlib import Path

MAX_LINES = 700

PACKAGES = [path for path in sources(".py") if path.name == "__init__.py" and path.parent.name != "graphpool"]
PACKAGES += [ROOT / folder / "__init__.py" for folder in ("tests/cases", "bench")]
LEFTOVERS = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3]) + r")\b")
MACHINE_PATH = re.compile(r"(?<![\w.~/])/(?:home|work|root|Users|opt)/\w")


@pytest.mark.parametrize("path", PACKAGES, ids=label)
def test_package_opens_with_a_map_of_its_modules(path: Path) -> None:
    picture = ast.get_docstring(ast.parse(path.read_text())) or ""
    words = set(re.findall(r"[\w*]+", picture))
    suffixes = (".py", ".pyx")
    modules = {file.stem for file in path.parent.iterdir() if file.suffix in suffixes and file.stem != "__init__"}
    modules |= {folder.name for folder in path.parent.iterdir() if (folder / "__init__.py").exists()}
    assert [name for name in sorted(modules) if not any(fnmatch.fnmatch(name, word) for word in words)] == []


@pytest.mark.parametrize("path", own_texts(), ids=label)
def test_text(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".md":
        assert len(text.splitlines()) <= MAX_LINES
    assert not LEFTOVERS.search(text)
    assert not MACHINE_PATH.search(text)
    assert text.endswith("\n") or not text
    assert not re.search(r"[ \t]$", text, re.MULTILINE)


TEXTS = own_texts()
PAGES = [path for path in TEXTS if path.suffix == ".md" and path.name != "CHANGELOG.md"]
NAMED_FILE = re.compile(r"`([\w./-]+\.(?:py|pyx|pxd|c|h|md|toml))`|\]\(([\w./-]+\.(?:py|pyx|c|h|md))[#)]")
NOT_HERE = {"reference/ops.md", "reference/onnx-ops.md", "shared/peers/models.py", "shared/peers/gemm_ceiling.py"}
"""Pages that the documentation's build makes; the kit that compares libraries, which lies beside the checkout."""


@pytest.mark.parametrize("path", PAGES, ids=label)
def test_pages_name_files_that_are_there(path: Path) -> None:
    files = [f"/{label(file)}" for file in TEXTS]
    named = {(first or second).replace("../", "") for first, second in NAMED_FILE.findall(path.read_text())} - NOT_HERE
    assert [name for name in sorted(named) if not any(file.endswith(f"/{name}") for file in files)] == []
