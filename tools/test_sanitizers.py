"""Build graphpool with sanitizers of the compiler and run the tests of its native parts under them.

    python tools/test_sanitizers.py {address,undefined,thread} [--quick] [pytest arguments]

``address,undefined`` is one build with both. Needs gcc with its sanitizers' libraries. Everything it makes lies in
``build/sanitize-NAME``: a copy of the tracked files, and a compiler that adds the sanitizers' flags behind all others.
Tests run once for each instruction set that this processor has, up to what `GRAPHPOOL_MAX_ISA` names; ``--quick``
builds and runs the weakest alone, and a part of the tests. The interpreter, NumPy and BLAS are not
instrumented: what is wrong inside them is not seen. Nothing is suppressed. Tests marked ``native`` are left out, for
they start processes of their own.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from checkout import ROOT, copy_source, make_compiler, run

NAMES = ("address", "undefined", "thread")
LIBRARIES = {"address": "libasan.so", "undefined": "libubsan.so", "thread": "libtsan.so"}
FLAGS = "-O1 -g1 -fno-omit-frame-pointer -fno-sanitize-recover=all -U_FORTIFY_SOURCE"
ISAS = {
    "generic": "",
    "avx2": "avx2",
    "avx2_vnni": "avx_vnni",
    "avx512": "avx512bw",
    "avx512_bf16": "avx512_bf16",
    "avx512_amx": "amx_int8",
}
"""Name -> what the system calls a processor that has it, weakest first."""

TESTS = ["tests/_kernels", "tests/runtime", "tests/memory", "tests/cache"]
QUICK = [
    "tests/_kernels/gemm/test_matmul.py",
    "tests/_kernels/conv/test_conv.py",
    "tests/_kernels/eltwise/test_eltwise.py",
    "tests/_kernels/core/test_team.py",
    "tests/memory/test_arena.py",
    "tests/memory/test_budget.py",
    "tests/runtime/test_program.py",
    "tests/runtime/test_tensor.py",
    "tests/cache/test_handle.py",
]
THREADED = ["tests/_kernels/core/test_team.py", "tests/runtime", "tests/memory", "tests/cache"]
"""Under `thread`: kernels have no threads of their own."""

OPTIONS = {
    # leaks: the interpreter frees little when it ends; null: tests ask for more than there is, and expect an error
    "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1:detect_stack_use_after_return=1:abort_on_error=1",
    "UBSAN_OPTIONS": "print_stacktrace=1:abort_on_error=1",
    "TSAN_OPTIONS": "halt_on_error=1:second_deadlock_stack=1:allocator_may_return_null=1:die_after_fork=0",
    "PYTHONMALLOC": "malloc",  # else objects lie in arenas of the interpreter, inside which nothing is seen
}


def isas() -> list[str]:
    """Instruction sets of this processor that graphpool has kernels for, weakest first."""
    if platform.machine() != "x86_64":
        return ["generic"]
    flags = Path("/proc/cpuinfo").read_text().split("flags", 1)[1].split("\n", 1)[0].split()
    found = [name for name, flag in ISAS.items() if not flag or flag in flags]
    most = os.environ.get("GRAPHPOOL_MAX_ISA")
    return found[: found.index(most) + 1] if most in found else found


def library(name: str) -> str:
    """Where the compiler keeps a library."""
    gcc = shutil.which("gcc") or "gcc"
    found = subprocess.run([gcc, f"-print-file-name={name}"], capture_output=True, check=True, text=True)
    return str(Path(found.stdout.strip()).resolve())


def main() -> None:
    """Copy, build, test."""
    arguments = sys.argv[1:]
    names = arguments.pop(0) if arguments else ""
    if not names or set(names.split(",")) - set(NAMES):
        sys.exit(f"{sys.argv[0]}: name sanitizers, {', '.join(NAMES)}")
    is_quick = "--quick" in arguments
    if is_quick:
        arguments.remove("--quick")
    home = ROOT / "build" / f"sanitize-{names.replace(',', '-')}"
    source = home / "source"
    copy_source(source)
    wanted = isas()[:1] if is_quick else isas()
    compiler = make_compiler(home, f"{FLAGS} -fsanitize={names}")
    build = {"CC": compiler, "LDSHARED": f"{compiler} -shared", "GRAPHPOOL_BUILD_ISAS": ",".join(wanted)}
    run(sys.executable, "setup.py", "-q", "build_ext", "--inplace", cwd=source, **build)
    # the C++ library comes with them: what throws must find the sanitizers' hooks
    preloaded = " ".join([*(library(LIBRARIES[name]) for name in names.split(",")), library("libstdc++.so.6")])
    tests = QUICK if is_quick else THREADED if names == "thread" else TESTS
    # the sanitizers write to the file of errors, which pytest would hold back and lose
    pytest = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "--capture=sys",
        "-p",
        "no:cacheprovider",
    ]
    pytest += ["-m", "not native", *(arguments or tests)]
    for isa in wanted:
        print(f"== {names}, {isa}", flush=True)
        settings = {"LD_PRELOAD": preloaded, "PYTHONPATH": str(source), "GRAPHPOOL_MAX_ISA": isa}
        run("setarch", "-R", *pytest, cwd=source, **OPTIONS, **settings)


if __name__ == "__main__":
    main()
