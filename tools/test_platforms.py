"""Compile every C source for the platforms that wheels are meant for, with a cross compiler and their headers.

    python tools/test_platforms.py [TARGET ...]

Needs the package ziglang, which brings clang and the headers of glibc, musl and macOS, and a checkout that was built,
for the C files that Cython wrote. Nothing is linked or run: this tells what calls and headers a platform lacks, and
whether another compiler takes the kernels of each instruction set. Takes some minutes a target.
"""

from __future__ import annotations

import os
import platform
import runpy
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest.mock import patch

from checkout import ROOT

TARGETS = {
    "x86_64-linux-gnu.2.28": "x86_64",
    "aarch64-linux-gnu.2.28": "aarch64",
    "x86_64-linux-musl": "x86_64",
    "aarch64-linux-musl": "aarch64",
    "aarch64-macos.12.0": "arm64",
}
"""Targets as the compiler names them, and what a processor of each calls itself."""

SPELT_OTHERWISE = {"-march=x86-64-v2": ["-mcpu=x86_64_v2"], "-march=armv8-a+simd": []}
"""Flags of setup.py as this compiler has them; vectors are part of every 64-bit ARM processor."""

FLAGS = ["-c", "-O0", "-std=gnu11", "-I", "graphpool/_kernels", "-I", sysconfig.get_path("include")]


def read_setup(machine: str) -> dict[str, Any]:
    """What setup.py defines on such a machine, without building."""
    with (
        patch("setuptools.setup"),
        patch("Cython.Build.cythonize", lambda *_, **__: []),
        patch.object(platform, "machine", lambda: machine),
    ):
        script = runpy.run_path(str(ROOT / "setup.py"), run_name="__main__")
        known, wanted = script["_known_isas"](), script["isas"]()
        macros = {isa: [f"-D{name}={value}" for name, value in script["kernel_macros"](isa)] for isa in known}
        return {
            "isas": {isa: known[isa].flags for isa in wanted},
            "homes": script["kernel_compilations"](wanted),
            "macros": macros,
        }


def jobs(machine: str) -> list[list[str]]:
    """Arguments of the compiler, one list a file."""
    found = read_setup(machine)
    flags = {
        isa: [own for flag in given for own in SPELT_OTHERWISE.get(flag, [flag])]
        for isa, given in found["isas"].items()
    }
    kernels = [[str(source), *found["macros"][isa], *flags[isa]] for source, isa in found["homes"]]
    written = [path.with_suffix(".c").relative_to(ROOT) for path in sorted((ROOT / "graphpool").rglob("*.pyx"))]
    known = [f"-DGP_HAVE_{isa.upper()}" for isa in flags]
    return kernels + [[str(path), *known] for path in written]


def compile_one(target: str, arguments: list[str], folder: str) -> str:
    """What the compiler says of a file that it refuses, else nothing."""
    with tempfile.NamedTemporaryFile(suffix=".o", dir=folder) as compiled:
        command = [sys.executable, "-m", "ziglang", "cc", "-target", target, *FLAGS, *arguments, "-o", compiled.name]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return f"{target}: {' '.join(arguments)}\n{done.stderr}" if done.returncode else ""


def main() -> None:
    """Compile for each target; fails if a file is refused."""
    unknown = [target for target in sys.argv[1:] if target not in TARGETS]
    if unknown:
        sys.exit(f"unknown target {unknown[0]}; accepted: {', '.join(TARGETS)}")
    refused = 0
    for target in sys.argv[1:] or TARGETS:
        todo = jobs(TARGETS[target])
        with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
            said = list(filter(None, pool.map(compile_one, [target] * len(todo), todo, [folder] * len(todo))))
        print(*said, f"{target}: {len(todo) - len(said)} of {len(todo)} files compile", sep="\n", flush=True)
        refused += len(said)
    sys.exit(refused > 0)


if __name__ == "__main__":
    main()
