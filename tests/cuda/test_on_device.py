"""The tests of `on_driver` on a GPU, each file in a process of its own: ``pytest -m cuda``.

What plants mistakes is left out, since NVIDIA's driver finds none.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.cuda_driver import DEVICE_VARIABLE
from tests.helpers.tree import ROOT

FOLDER = Path(__file__).parent / "on_driver"
OF_THE_TEST_DRIVER = {"test_mistakes.py", "test_processes.py"}
NAMES = sorted({path.name for path in FOLDER.glob("test_*.py")} - OF_THE_TEST_DRIVER)

pytestmark = [pytest.mark.native, pytest.mark.cuda]


def run(*arguments, **variables):
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=os.environ | variables, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="session")
def device():
    done = run("-c", "from graphpool.memory.cuda import open_device; open_device()")
    if done.returncode:
        pytest.skip(done.stderr.strip().splitlines()[-1])


@pytest.mark.parametrize("name", NAMES)
def test_file(device, name):
    options = ["-q", "-p", "no:cacheprovider", "-m", "not planted"]
    done = run("-m", "pytest", *options, str(FOLDER / name), **{DEVICE_VARIABLE: "1"})
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
