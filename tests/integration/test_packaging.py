"""What a wheel and an sdist must carry is listed; the version is one."""

from __future__ import annotations

import importlib.metadata
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import graphpool
from tests.helpers.tree import PACKAGE, ROOT, label

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILT = {".py", ".pyx", ".c", ".so", ".pyc"}
"""Suffixes that a wheel carries compiled, or as modules."""

DATA = [path for path in sorted(PACKAGE.rglob("*")) if path.is_file() and path.suffix not in BUILT]


def _is_listed(path: Path) -> bool:
    """Whether the package data of pyproject.toml names the file; ``**/`` stands for any number of folders."""
    relative = path.relative_to(PACKAGE).as_posix()
    patterns = SETTINGS["tool"]["setuptools"]["package-data"]["graphpool"]
    return any(fnmatch(relative, pattern.replace("**/", "*")) for pattern in patterns)


@pytest.mark.parametrize("path", DATA, ids=label)
def test_package_data_is_listed(path: Path) -> None:
    assert _is_listed(path)


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert [label(folder) for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_version_is_one() -> None:
    assert graphpool.__version__ == SETTINGS["project"]["version"]


def test_dependencies_are_what_an_import_needs() -> None:
    """Whatever else the package imports at the top of a module belongs to an extra, and is imported late."""
    needed = {requirement.split(">")[0] for requirement in SETTINGS["project"]["dependencies"]}
    assert needed == {"numpy", "scipy", "threadpoolctl"}
    assert all(importlib.metadata.version(name) for name in needed)
