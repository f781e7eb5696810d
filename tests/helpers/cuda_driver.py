"""The test driver for CUDA: building it and the host forms of kernels, and asking it what it found.

`tests/cuda/test_on_driver.py` builds it once and runs the tests of `tests/cuda/on_driver` in child processes, which
find it through ``LD_LIBRARY_PATH`` as they would find NVIDIA's.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CUDA_TESTS = Path(__file__).parents[1] / "cuda"
FOLDER_VARIABLE = "GRAPHPOOL_TEST_DRIVER"
"""Set in child processes that run on the driver: the folder where it lies."""
DEVICE_VARIABLE = "GRAPHPOOL_TEST_DEVICE"
"""Set in child processes that run the same tests on a device."""

HEADERS = "nvidia-cuda-runtime"


def include_folder() -> Path | None:
    """Where the wheel of the CUDA runtime keeps its headers; None without it."""
    for package in (HEADERS, f"{HEADERS}-cu12"):
        try:
            found = [file for file in files(package) or [] if file.name == "cudaTypedefs.h"]
        except PackageNotFoundError:
            continue
        if found:
            return Path(found[0].locate()).parent
    return None


def missing_packages() -> list[str]:
    """What the tests need and do not find."""
    found = importlib.util.find_spec("cuda") is not None
    missing = [] if found and importlib.util.find_spec("cuda.core") else ["cuda-core"]
    return missing if include_folder() else [*missing, HEADERS]


def _run(*command: str | Path, cwd: Path | None = None) -> None:
    done = subprocess.run([str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _list_missing(include: Path, folder: Path) -> None:
    """Write `missing.inc`: the functions of CUDA's header that the driver does not have."""
    declared = set(re.findall(r"\bPFN_(cu\w+?)_v\d+\b", (include / "cudaTypedefs.h").read_text()))
    there = set(re.findall(r"ENTRY\((cu\w+),", (CUDA_TESTS / "driver" / "entries.inc").read_text()))
    (folder / "missing.inc").write_text("".join(f"MISSING({name})\n" for name in sorted(declared - there)))


def build_driver(folder: Path) -> None:
    """Compile the driver into a folder, as ``libcuda.so.1``; warnings are errors, wrong signatures among them."""
    include = include_folder()
    assert include is not None
    _list_missing(include, folder)
    (folder / "host").symlink_to(CUDA_TESTS / "host")
    compiler = os.environ.get("CC") or shutil.which("gcc") or "cc"
    flags = ["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fvisibility=hidden"]
    sources = sorted((CUDA_TESTS / "driver").glob("*.c"))
    _run(
        compiler,
        *flags,
        "-isystem",
        include,
        "-I",
        folder,
        *sources,
        "-o",
        folder / "libcuda.so.1",
        "-lpthread",
        "-ldl",
    )


_CXX_FLAGS = [
    "-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off",
    "-fno-threadsafe-statics", "-fno-exceptions", "-Wno-unknown-pragmas", "-Wno-unused-parameter",
]  # fmt: skip


def compile_twins(source: str, names: Sequence[str], folder: Path, library: str = "twins") -> Path:
    """The library of host forms of the kernels `names` of a CUDA C++ source, in the folder of the driver.

    Every access in them is seen.
    """
    return compile_all_twins([(source, names)], folder, library)


def compile_all_twins(sources: Iterable[tuple[str, Sequence[str]]], folder: Path, library: str) -> Path:
    """The same of several sources, each with its kernels, whose names differ; macros of one are unknown to others."""
    compiler = os.environ.get("CXX") or shutil.which("g++") or "c++"
    flags = [*_CXX_FLAGS, "-I", "host"]  # paths within the folder, which a cache of the compiler knows again elsewhere
    parts, listed = [], []
    for number, (source, names) in enumerate(sources):
        macros = sorted(set(re.findall(r"^#define (\w+)", source, re.MULTILINE)))
        undone = "".join(f"#undef {name}\n" for name in macros)
        parts.append(f"namespace source_{number} {{\n{source}\n}}\n{undone}")
        listed += [f"TWIN(source_{number}::{name}, {name})" for name in names]
    text, target = folder / f"{library}.cpp", folder / f"{library}.so"
    text.write_text('#include "cuda_host.hpp"\n' + "".join(parts) + f"TWINS({', '.join(listed)})\n")
    accesses = folder / "accesses.o"
    if not accesses.exists():
        _run(compiler, *flags, "-O2", "-c", "host/accesses.cpp", "-o", accesses.name, cwd=folder)
    _run(compiler, *flags, "-fsanitize=thread", "-c", text.name, "-o", text.with_suffix(".o").name, cwd=folder)
    linked = folder / f"{library}.linked"
    _run(compiler, "-shared", text.with_suffix(".o"), accesses, "-o", linked)
    return linked.replace(target)  # whole, for whoever finds it


def environment(folder: Path, **settings: object) -> dict[str, str]:
    """The environment of a child process on the driver, with settings of `tests/cuda/driver/control.h`."""
    return os.environ | {
        "LD_LIBRARY_PATH": str(folder),
        FOLDER_VARIABLE: str(folder),
        **{f"TEST_DRIVER_{name.upper()}": str(value) for name, value in settings.items()},
    }


class NvidiaDriver:
    """NVIDIA's own driver, with a device: it keeps no books that tests could read, and chooses its own orders."""

    def reports(self) -> list[str]:
        """None."""
        return []

    def kinds(self) -> set[str]:
        """None."""
        return set()

    def live(self) -> list[str]:
        """Nothing is known."""
        return []

    def seed(self, number: int) -> None:
        """Has no effect."""

    def overflows(self) -> int:
        """None."""
        return 0


class TestDriver(NvidiaDriver):
    """What tests ask of the test driver of their process."""

    __test__ = False

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self._library.test_driver_seed.argtypes = [ctypes.c_ulong]
        self._library.test_driver_overflows.restype = ctypes.c_long
        self._library.test_driver_calls.restype = ctypes.c_long

    def _lines(self, function: str) -> list[str]:
        text = ctypes.create_string_buffer(1 << 17)
        getattr(self._library, function)(text, ctypes.c_size_t(len(text)))
        return text.value.decode().splitlines()

    def reports(self) -> list[str]:
        """Findings since the last call, each ``kind: text``."""
        return self._lines("test_driver_reports")

    def kinds(self) -> set[str]:
        """Kinds of the findings since the last call."""
        return {line.split(":")[0] for line in self.reports()}

    def live(self) -> list[str]:
        """Objects and allocations that are alive, but for libraries, which cuda.core never unloads."""
        return self._lines("test_driver_live")

    def seed(self, number: int) -> None:
        """Choose another order of work."""
        self._library.test_driver_seed(number)

    def overflows(self) -> int:
        """How often more was pending than the driver keeps the order of."""
        return self._library.test_driver_overflows()

    def load_twins(self, path: Path) -> None:
        """Let kernels run in their host forms."""
        assert self._library.test_driver_load_twins(str(path).encode()) > 0, self.reports()
