"""What the tools that build and test a copy of the checkout share."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

__all__ = ["ROOT", "copy_source", "make_compiler", "run"]

ROOT = Path(__file__).resolve().parent.parent


def run(*command: str, cwd: Path = ROOT, **environment: str) -> None:
    """Run a command; stop with its status if it fails."""
    result = subprocess.run(command, cwd=cwd, env=os.environ | environment, check=False)
    if result.returncode:
        sys.exit(result.returncode)


def copy_source(target: Path) -> None:
    """The tracked files, apart from this checkout's build; objects of an earlier run stay, files that are gone go."""
    git = shutil.which("git") or "git"
    names = subprocess.run([git, "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True).stdout
    listing = target / ".copied"
    earlier = listing.read_text().split("\0") if listing.exists() else []
    for name in set(earlier) - set(names.split("\0")):
        (target / name).unlink(missing_ok=True)
    target.mkdir(parents=True, exist_ok=True)
    listing.write_text(names)
    for name in filter(None, names.split("\0")):
        copy = target / name
        if (ROOT / name).is_file() and (not copy.exists() or copy.read_bytes() != (ROOT / name).read_bytes()):
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, copy)


def make_compiler(home: Path, flags: str) -> str:
    """A compiler that adds flags behind all others; its path."""
    path = home / "gcc"
    path.write_text(f'#!/bin/sh\nexec gcc "$@" {flags}\n')
    path.chmod(0o755)
    return str(path)
