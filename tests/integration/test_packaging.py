"""What a wheel and an sdist must carry is listed; the version is one."""

from __future__ import annotations

import importlib.machinery
import importlib.metadata
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

import graphpool
from tests.helpers import elf
from tests.helpers.tree import PACKAGE, ROOT, label

SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
BUILT = {".py", ".pyx", ".pxd", ".c", ".h", ".so", ".pyc"}
"""Suffixes that a wheel carries compiled, or as modules; nobody compiles against an installed graphpool."""

EXTENSIONS = sorted(PACKAGE.rglob(f"*{importlib.machinery.EXTENSION_SUFFIXES[0]}"))
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


def test_version_stands_in_one_file_and_is_cited() -> None:
    assert SETTINGS["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "graphpool._version.__version__"}
    assert "version" in SETTINGS["project"]["dynamic"]
    assert f"\nversion: {graphpool.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## [{graphpool.__version__}]" in (ROOT / "CHANGELOG.md").read_text()


def test_dependencies_are_what_an_import_needs() -> None:
    """Whatever else the package imports at the top of a module belongs to an extra, and is imported late."""
    needed = {requirement.split(">")[0] for requirement in SETTINGS["project"]["dependencies"]}
    assert needed == {"numpy", "scipy", "threadpoolctl"}
    assert all(importlib.metadata.version(name) for name in needed)


@pytest.mark.native
def test_a_wheel_carries_no_sources_of_what_it_carries_compiled(tmp_path: Path) -> None:
    command = [sys.executable, "setup.py", "-q", "build_py", "--build-lib", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    found = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    modules = {path.relative_to(ROOT) for path in PACKAGE.rglob("*.py")}
    assert found == modules | {path.relative_to(ROOT) for path in DATA}
    assert {path.suffix for path in found} == {".py", ".pyi", ".typed", ".onnx", ".npz", ".cu", ".cuh"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has ELF files")
@pytest.mark.parametrize("path", EXTENSIONS, ids=label)
def test_extensions_are_hardened(path: Path) -> None:
    found = elf.Elf(path.read_bytes())
    assert not found.segments[elf.PT_GNU_STACK][0] & elf.EXECUTABLE
    assert elf.PT_GNU_RELRO in found.segments
    assert found.dynamic.get(elf.DT_FLAGS, 0) & elf.DF_BIND_NOW
    assert b"__stack_chk_fail" in found.names
    assert not {elf.DT_RPATH, elf.DT_RUNPATH} & found.dynamic.keys()


def test_every_extension_is_built() -> None:
    names = {path.name.split(".")[0] for path in PACKAGE.rglob("*.pyx")}
    assert {path.name.split(".")[0] for path in EXTENSIONS} == names
