"""What ends a process or is seen at its end, in processes of their own."""

import os
import subprocess
import sys

import pytest

from tests.helpers.tree import ROOT

START = """
from cuda.bindings import driver as cuda
from tests.helpers.cuda_device import Kit, check, synchronize
from tests.helpers.cuda_driver import TestDriver
"""


def run(script, **settings):
    """What a script on the driver wrote to its standard error, and its exit code."""
    environment = os.environ | {f"TEST_DRIVER_{name}": str(value) for name, value in settings.items()}
    command = [sys.executable, "-c", START + script]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return [line for line in done.stderr.splitlines() if line.startswith("test driver:")], done.returncode, done.stderr


def test_leaks_are_told_at_exit():
    script = "kit = Kit()\naddress = check(cuda.cuMemAllocAsync(100, kit.a.handle))\n"
    lines, code, error = run(script + "kit.close()\n")
    assert code == 0, error
    assert lines == ["test driver: leak: 100 bytes of device memory"]
    lines, code, error = run(script + "check(cuda.cuMemFreeAsync(address, kit.a.handle))\nkit.close()\n")
    assert (lines, code) == ([], 0), error


def test_reports_that_nobody_asked_for_are_told_at_exit():
    script = "kit = Kit()\nx, y = kit.empty(), kit.empty()\n{}x.copy_to(y, stream=kit.a)\nkit.close()\n"
    lines, code, error = run(script.format(""))
    assert code == 0, error
    assert [line.split(": ")[1] for line in lines] == ["uninitialised read"]
    lines, code, error = run(script.format("x.fill(0, stream=kit.a)\n"))
    assert (lines, code) == ([], 0), error


def test_host_that_touches_device_memory_dies():
    script = "import ctypes\nkit = Kit()\nx, = kit.ready(1)\n{}kit.close()\n"
    assert run(script.format("ctypes.string_at(int(x.handle), 1)\n"))[1] < 0
    assert run(script.format("assert kit.read(x)[0] == 1\n"))[1] == 0


def test_host_function_that_calls_the_driver_is_told():
    script = """
import ctypes
library = ctypes.CDLL("libcuda.so.1")
work = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda data: {})
kit = Kit()
x, = kit.ready(1)
check(cuda.cuLaunchHostFunc(kit.a.handle, cuda.CUhostFn(ctypes.cast(work, ctypes.c_void_p).value), 0))
kit.close()
"""
    lines, code, error = run(script.format("cuda.cuMemsetD8Async(int(x.handle), 0, 1, kit.a.handle)"))
    assert code == 0, error
    assert [line.split(": ")[1] for line in lines] == ["host function"]
    assert run(script.format("None"))[:2] == ([], 0)


@pytest.mark.parametrize(("architecture", "capability"), [(80, (8, 0)), (90, (9, 0)), (100, (10, 0))])
def test_device_has_the_architecture_that_was_asked_for(architecture, capability):
    script = f"from cuda.core import Device\nassert tuple(Device(0).compute_capability) == {capability}\n"
    assert run(script, ARCHITECTURE=architecture)[:2] == ([], 0)
