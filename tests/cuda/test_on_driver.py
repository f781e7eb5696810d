"""Runs each file of `on_driver` in a process of its own, in which cuda.core finds the test driver."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.cuda_driver import build_driver, compile_twins, environment, missing_packages
from tests.helpers.tree import ROOT

FOLDER = Path(__file__).parent / "on_driver"
MISSING = missing_packages()

pytestmark = [
    pytest.mark.native,
    pytest.mark.skipif(bool(MISSING), reason=f"graphpool[cuda-test] is not installed: no {', '.join(MISSING)}"),
]


@pytest.fixture(scope="session")
def driver_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    build_driver(folder)
    source = (FOLDER / "kernels.cu").read_text()
    compile_twins(source, re.findall(r'^extern "C" __global__ void (\w+)', source, re.MULTILINE), folder)
    return folder


SLOW = {
    "test_attention.py",
    "test_cases.py",
    "test_lines.py",
    "test_quantise.py",
    "test_special_values.py",
}  # they compile many kernels
NAMES = sorted(path.name for path in FOLDER.glob("test_*.py"))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in NAMES]
)
def test_file(driver_folder, name):
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(FOLDER / name)]
    done = subprocess.run(
        command, cwd=ROOT, env=environment(driver_folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "test driver:" not in done.stderr
    assert "skipped" not in done.stdout.splitlines()[-1]
