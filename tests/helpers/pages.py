"""Runs the code of pages, and shows what it prints.

    python -m tests.helpers.pages README.md docs/quickstart.md    # write the outputs of their code into them anew

A block ``python`` is run with those above it; a block ``sh`` is run if a block without a language, its output, follows.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
END = "---- end of block ----"
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FORK_WARNING = "ignore:This process:DeprecationWarning"
"""Libraries have threads; a page forks all the same."""


class Block(NamedTuple):
    """Code of a page; what it prints, where the page shows that, and where in the page."""

    language: str
    code: str
    output: str | None
    span: tuple[int, int]


def read_blocks(page: Path) -> list[Block]:
    """All fenced blocks, outputs too."""
    text = page.read_text()
    fences = list(FENCE.finditer(text))
    blocks = []
    for fence, following in zip_longest(fences, fences[1:]):
        output, span = None, (0, 0)
        if following and not following[1] and not text[fence.end() : following.start()].strip():
            output, span = following[2], following.span(2)
        blocks.append(Block(fence[1], fence[2], output, span))
    return blocks


def python_blocks(page: Path) -> list[Block]:
    """Those in Python."""
    return [block for block in read_blocks(page) if block.language == "python"]


def command_blocks(page: Path) -> list[Block]:
    """Those of commands whose output is shown."""
    return [block for block in read_blocks(page) if block.language == "sh" and block.output is not None]


def prepare_folder(folder: Path) -> None:
    """Make it a checkout as pages see one: the demonstration's files, ``./run`` and the command."""
    (folder / "graphpool").mkdir()
    (folder / "graphpool" / "demo").symlink_to(ROOT / "graphpool" / "demo")
    for model in (ROOT / "graphpool" / "demo").glob("*.onnx"):
        (folder / model.name).symlink_to(model)
    (folder / "bin").mkdir()
    _write_script(folder / "bin" / "graphpool", f'exec "{sys.executable}" -P -m graphpool "$@"')
    _write_script(folder / "bin" / "python", f'exec "{sys.executable}" -P "$@"')
    _write_script(folder / "run", 'exec graphpool "$@"')


def _write_script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


def _run(command: list[str], folder: Path, errors: int) -> subprocess.CompletedProcess[str]:
    path = f"{folder / 'bin'}:{os.environ['PATH']}"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": path}
    return subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True, timeout=300
    )


def run_python(page: Path, folder: Path) -> Iterator[tuple[Block, str]]:
    """Each block and what it printed; in a process of its own, because pages set what holds for a whole process."""
    blocks = python_blocks(page)
    script = f"\nprint({END!r}, flush=True)\n".join(block.code for block in blocks)
    command = [sys.executable, "-P", "-W", "error", "-W", FORK_WARNING, "-c", script]
    done = _run(command, folder, subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    yield from zip(blocks, done.stdout.split(END), strict=True)


def run_commands(page: Path, folder: Path) -> Iterator[tuple[Block, str]]:
    """Each block of commands and what they printed, errors included."""
    for block in command_blocks(page):
        yield block, _run(["sh", "-c", block.code], folder, subprocess.STDOUT).stdout


def masked(text: str) -> list[str]:
    """Lines of an output without what depends on the machine.

    That is numbers with a decimal point or two digits and more, and the instruction set in the names of kernels.
    """
    text = re.sub(r":(generic|avx\w+|neon)\b", ":isa", text)
    text = re.sub(r"\d*\.\d+(e[+-]\d+)?|\d+\.(?=[ \]])|\d[\d,]*\d(e[+-]\d+)?|\de[+-]\d+", "#", text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


def renew(page: Path) -> None:
    """Write into a page what its code prints now."""
    with tempfile.TemporaryDirectory() as name:
        prepare_folder(Path(name))
        printed = [*run_python(page, Path(name)), *run_commands(page, Path(name))]
    text = page.read_text()
    for block, output in sorted(printed, key=lambda found: -found[0].span[0]):
        if block.output is not None:
            begin, end = block.span
            text = f"{text[:begin]}{output.strip(chr(10))}\n{text[end:]}"
    page.write_text(text)


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        renew(Path(argument))
