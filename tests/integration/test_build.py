"""setup.py compiles again the kernels that include what changed, and no others."""

from __future__ import annotations

import os
import runpy
from pathlib import Path

import Cython.Build
import pytest
import setuptools

from tests.helpers.tree import ROOT

pytestmark = pytest.mark.native

DOOR = "graphpool._kernels.core._dispatch"
SOURCES = {
    "gp_own.h": "#define GP_OWN 1\n",
    "gp_all.h": "#define GP_ALL 1\n",
    "one.c": '#include "some/gp_all.h"\n#include "some/gp_own.h"\nint one = GP_OWN + GP_ALL;\n',
    "two.c": '#include "some/gp_all.h"\nint two = GP_ALL;\n',
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where two kernels and their headers lie, in a tree whose path has a blank."""
    folder = tmp_path / "a tree" / "graphpool" / "_kernels" / "some"
    folder.mkdir(parents=True)
    for name, text in SOURCES.items():
        (folder / name).write_text(text)
    (tmp_path / "a tree" / "door.c").write_text("int door;\n")
    (tmp_path / "a tree" / "setup.py").write_text((ROOT / "setup.py").read_text())
    monkeypatch.setattr(setuptools, "setup", lambda **_: None)
    monkeypatch.setattr(Cython.Build, "cythonize", lambda extensions, **_: extensions)
    monkeypatch.setenv("GRAPHPOOL_BUILD_ISAS", "generic")
    monkeypatch.chdir(tmp_path)
    return folder


def _build(folder: Path) -> set[str]:
    """Builds; returns which kernels were compiled."""
    root = folder.parents[2]
    before = {path: path.stat().st_mtime_ns for path in root.rglob("build/kernels/**/*.o")}
    script = runpy.run_path(str(root / "setup.py"), run_name="__main__")
    extensions = [setuptools.Extension(DOOR, ["door.c"])]
    command = script["BuildWithKernels"](setuptools.Distribution({"ext_modules": extensions}))
    command.build_lib = str(root / "lib")
    command.ensure_finalized()
    command.run()
    after = {path: path.stat().st_mtime_ns for path in root.rglob("build/kernels/**/*.o")}
    return {path.stem for path in after if after[path] != before.get(path)}


def _change(path: Path) -> None:
    """As an editor would, some seconds later."""
    later = path.stat().st_mtime + 10
    os.utime(path, (later, later))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [("gp_all.h", {"one", "two"}), ("gp_own.h", {"one"}), ("two.c", {"two"})],
)
def test_only_what_includes_a_changed_file_is_compiled_again(folder: Path, changed: str, expected: set[str]) -> None:
    assert _build(folder) == {"one", "two"}
    assert _build(folder) == set()
    _change(folder / changed)
    assert _build(folder) == expected


def test_a_header_may_go(folder: Path) -> None:
    assert _build(folder) == {"one", "two"}
    (folder / "gp_own.h").rename(folder / "gp_other.h")
    (folder / "one.c").write_text(SOURCES["one.c"].replace("gp_own", "gp_other"))
    assert _build(folder) == {"one"}


def test_the_weakest_instruction_set_is_never_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = runpy.run_path(str(folder.parents[2] / "setup.py"), run_name="__main__")
    monkeypatch.delenv("GRAPHPOOL_BUILD_ISAS")
    weakest, *better = script["isas"]()
    monkeypatch.setenv("GRAPHPOOL_BUILD_ISAS", ",".join(better[-1:]) or weakest)
    assert list(script["isas"]()) == [weakest, *better[-1:]]


def test_an_editable_build_is_found_by_builds_in_place(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parents[2])
    script = runpy.run_path("setup.py", run_name="__main__")
    places = []
    for is_editable in (False, True):
        distribution = setuptools.Distribution({"ext_modules": [setuptools.Extension(DOOR, ["door.c"])]})
        command = script["BuildWithKernels"](distribution)
        if is_editable:  # as pip sets them
            command.editable_mode, command.build_lib, command.build_temp = True, "elsewhere", "elsewhere"
        command.ensure_finalized()
        places.append((command.build_lib, command.build_temp))
    assert places[0] == places[1]
