"""Build graphpool for a free-threaded interpreter (3.13t, 3.14t) and run what depends on threads on it.

    python tools/test_freethreaded.py INTERPRETER [pytest arguments]

Makes an environment of the interpreter in ``build/freethreaded`` from wheels, builds the extensions in place beside
those of other interpreters, and sees to it that importing graphpool leaves the GIL off. Without pytest arguments it
runs the tests of the graph, memory, caches, schedules and the runtime, the leases' stress at full length, and the race
of sixteen threads on the constant tensor cache for a minute under each policy.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / "build" / "freethreaded"
PYTHON = str(HOME / "bin" / "python")
WHEELS = [
    "numpy",
    "scipy",
    "cython",
    "setuptools",
    "threadpoolctl",
    "pytest",
    "pytest-benchmark",
    "pytest-timeout",
    "hypothesis",
    "ml_dtypes",
    "onnx",
]
TESTS = [f"tests/{name}" for name in ("graph", "memory", "cache", "schedule", "runtime", "_kernels/core/test_team.py")]
IS_FREE = "import sysconfig, sys; sys.exit(not sysconfig.get_config_var('Py_GIL_DISABLED'))"
STAYS_FREE = "import sys, graphpool.onnx; sys.exit(sys._is_gil_enabled())"


def run(*command: str, **environment: str) -> None:
    """Run a command at the root; stop with its status if it fails."""
    paths = {"PYTHONPATH": str(ROOT)}
    result = subprocess.run(command, cwd=ROOT, env=os.environ | paths | environment, check=False)
    if result.returncode:
        sys.exit(result.returncode)


def main() -> None:
    """Make the environment, build, and test."""
    if len(sys.argv) < 2 or subprocess.run([sys.argv[1], "-c", IS_FREE], check=False).returncode:
        sys.exit(f"{sys.argv[0]}: name a free-threaded interpreter, such as python3.13t")
    if not HOME.exists():
        run(sys.argv[1], "-m", "venv", str(HOME))
    run(PYTHON, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary=:all:", *WHEELS)
    run(PYTHON, "setup.py", "-q", "build_ext", "--inplace")
    run(PYTHON, "-c", STAYS_FREE)
    pytest = [PYTHON, "-X", "faulthandler", "-m", "pytest", "-p", "no:cacheprovider"]
    if sys.argv[2:]:
        return run(*pytest, *sys.argv[2:])
    run(*pytest, *TESTS)
    run(*pytest, "tests/memory/test_stress.py", GRAPHPOOL_STRESS="1")
    run(PYTHON, "-m", "tests.helpers.constant_race")


if __name__ == "__main__":
    main()
