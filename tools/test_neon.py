"""Build graphpool for 64-bit ARM with a cross compiler and run the kernel tests on it, under user-mode emulation.

    python tools/test_neon.py [pytest arguments]

Needs a Debian system with gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user, and arm64 among the architectures of
dpkg (``dpkg --add-architecture arm64 && apt-get update``); Cython and setuptools in this interpreter, which must be of
the version of Debian's. Everything it makes lies in ``build/neon``. Emulation is some thirty times as slow as a
processor: it tells whether results are right, not how fast they come. Tests marked ``native`` are left out.
"""

from __future__ import annotations

import shutil
import sys
import sysconfig
import zipfile
from pathlib import Path

from checkout import ROOT, copy_source, run

HOME = ROOT / "build" / "neon"
SYSTEM, SITE, SOURCE = HOME / "system", HOME / "site", HOME / "source"
PYTHON = f"python{sys.version_info.major}.{sys.version_info.minor}"
DEBIAN = [
    f"{PYTHON}-minimal", f"lib{PYTHON}-minimal", f"lib{PYTHON}-stdlib", f"lib{PYTHON}-dev", "libc6", "libexpat1",
    "zlib1g", "libffi8", "libssl3", "libgcc-s1", "libstdc++6", "liblzma5", "libbz2-1.0", "libsqlite3-0", "libuuid1",
]  # fmt: skip
WHEELS = [
    "numpy",
    "scipy",
    "threadpoolctl",
    "pytest",
    "pytest-benchmark",
    "pytest-timeout",
    "hypothesis",
    "ml_dtypes",
    "onnx",
]
COMPILER = "aarch64-linux-gnu-gcc"
SETUP = (
    "import platform, runpy, sys; platform.machine = lambda: 'aarch64'; runpy.run_path('setup.py', run_name='__main__')"
)


def fetch_system() -> None:
    """Debian's interpreter and libraries for arm64, unpacked."""
    if SYSTEM.exists():
        return
    packages = HOME / "packages"
    packages.mkdir(parents=True, exist_ok=True)
    run("apt-get", "download", "-qq", *[f"{name}:arm64" for name in DEBIAN], cwd=packages)
    for package in sorted(packages.glob("*.deb")):
        run("dpkg", "-x", str(package), str(SYSTEM))


def fetch_wheels() -> None:
    """What the tests import, as wheels for aarch64, unpacked."""
    if SITE.exists():
        return
    wheels = HOME / "wheels"
    platforms = [f"--platform=manylinux{tag}_aarch64" for tag in ("2014", "_2_27", "_2_28")]
    version = f"--python-version={sys.version_info.major}.{sys.version_info.minor}"
    run(
        sys.executable,
        "-m",
        "pip",
        "download",
        "-q",
        "--only-binary=:all:",
        *platforms,
        version,
        "-d",
        str(wheels),
        *WHEELS,
    )
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(SITE)


def build() -> None:
    """All extension modules, for aarch64."""
    headers = SYSTEM / "usr" / "include"
    run(
        sys.executable, "-c", SETUP, "-q", "build_ext", "--inplace",
        cwd=SOURCE,
        CC=COMPILER,
        LDSHARED=f"{COMPILER} -shared",
        CFLAGS=f"-I{headers} -I{headers / PYTHON}",
        _PYTHON_HOST_PLATFORM="linux-aarch64",
    )  # fmt: skip
    ours = sysconfig.get_config_var("EXT_SUFFIX")
    for module in SOURCE.rglob(f"*{ours}"):
        module.rename(module.with_name(module.name.replace(ours, ".so")))


def main() -> None:
    """Fetch, build, test."""
    for tool in (COMPILER, "qemu-aarch64", "dpkg"):
        if shutil.which(tool) is None:
            sys.exit(f"{tool} is not installed; see the top of {Path(__file__).name}")
    fetch_system()
    fetch_wheels()
    copy_source(SOURCE)
    build()
    arguments = sys.argv[1:] or ["tests/_kernels", "-q", "-p", "no:cacheprovider"]
    arguments += ["-m", "not native"]
    interpreter = str(SYSTEM / "usr" / "bin" / PYTHON)
    run("qemu-aarch64", "-L", str(SYSTEM), interpreter, "-m", "pytest", *arguments, cwd=SOURCE, PYTHONPATH=str(SITE))


if __name__ == "__main__":
    main()
