"""The code of each page of the documentation runs as it stands and prints what the page shows; links lead somewhere.

A block ``python`` is run with those above it; a block ``sh`` is run if a block without a language, its output, follows.
Numbers that depend on the machine are passed over in outputs: those with a decimal point or four digits and more, and
the instruction set in the names of kernels.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

import graphpool as gp

ROOT = Path(__file__).parents[2]
PAGES = [*sorted((ROOT / "docs").rglob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
PAGES = [page for page in PAGES if "_build" not in page.parts]
WRITTEN_AT_BUILD = {ROOT / "docs" / "reference" / name for name in ("ops.md", "onnx-ops.md")}
END = "---- end of block ----"


class Block(NamedTuple):
    """Code of a page, and what it prints, where the page shows that."""

    language: str
    code: str
    output: str | None


def _blocks(page: Path) -> list[Block]:
    text = page.read_text()
    fences = list(re.finditer(r"^```([^\n]*)\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    blocks = []
    for number, fence in enumerate(fences):
        following = fences[number + 1] if number + 1 < len(fences) else None
        is_output = following and not following[1] and not text[fence.end() : following.start()].strip()
        blocks.append(Block(fence[1], fence[2], following[2] if following and is_output else None))
    return blocks


def _python(page: Path) -> list[Block]:
    return [block for block in _blocks(page) if block.language == "python"]


def _commands(page: Path) -> list[Block]:
    return [block for block in _blocks(page) if block.language == "sh" and block.output is not None]


def _label(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def _masked(text: str) -> list[str]:
    """Lines of an output without what depends on the machine."""
    text = re.sub(r"\d*\.\d+(e[+-]\d+)?|\d+\.(?=[ \]])|\d[\d,]{3,}", "#", text)
    text = re.sub(r":(generic|avx\w+|neon)\b", ":isa", text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkout as the commands of the pages see it: the demonstration's files, ``./run`` and the command."""
    (tmp_path / "graphpool").mkdir()
    (tmp_path / "graphpool" / "demo").symlink_to(ROOT / "graphpool" / "demo")
    for model in (ROOT / "graphpool" / "demo").glob("*.onnx"):
        (tmp_path / model.name).symlink_to(model)
    (tmp_path / "bin").mkdir()
    _write_script(tmp_path / "bin" / "graphpool", f'exec "{sys.executable}" -P -m graphpool "$@"')
    _write_script(tmp_path / "bin" / "python", f'exec "{sys.executable}" -P "$@"')
    _write_script(tmp_path / "run", 'exec graphpool "$@"')
    return tmp_path


def _write_script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _environment(folder: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}


@pytest.mark.parametrize("page", [page for page in PAGES if _python(page)], ids=_label)
def test_code(page: Path, folder: Path) -> None:
    """In a process of its own, because pages set what holds for the whole process."""
    blocks = _python(page)
    script = f"\nprint({END!r}, flush=True)\n".join(block.code for block in blocks)
    fork = "ignore:This process:DeprecationWarning"  # libraries have threads; a page forks all the same
    command = [sys.executable, "-P", "-W", "error", "-W", fork, "-c", script]
    done = subprocess.run(command, cwd=folder, env=_environment(folder), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    for block, printed in zip(blocks, done.stdout.split(END), strict=True):
        if block.output is not None:
            assert _masked(printed) == _masked(block.output)


@pytest.mark.parametrize("page", [page for page in PAGES if _commands(page)], ids=_label)
def test_commands(page: Path, folder: Path) -> None:
    """What commands print, errors included."""
    pytest.importorskip("onnx")
    for block in _commands(page):
        done = subprocess.run(
            ["sh", "-c", block.code], cwd=folder, env=_environment(folder), stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=300,
        )  # fmt: skip
        assert _masked(done.stdout) == _masked(block.output or ""), block.code


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
    modules = {"cache", "memory", "onnx", "profile", "schedule"}
    assert [name for name in gp.__all__ if name not in modules and not re.search(rf"\b{name}\b", page)] == []


@pytest.mark.parametrize("page", PAGES, ids=_label)
def test_links(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert [target for target in missing if (page.parent / target).resolve() not in WRITTEN_AT_BUILD] == []
