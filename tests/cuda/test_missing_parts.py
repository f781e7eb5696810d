"""Without the extra, the driver, a device or its pools, or with an old driver: one typed error that says what to do."""

import ctypes.util
import os
import subprocess
import sys

import pytest

from tests.helpers.cuda_driver import build_driver, environment, missing_packages
from tests.helpers.tree import ROOT

pytestmark = pytest.mark.native
MISSING = missing_packages()
needs_extra = pytest.mark.skipif(
    bool(MISSING), reason=f"graphpool[cuda-test] is not installed: no {', '.join(MISSING)}"
)


def error_of(expression, environ, before=""):
    """What an expression on ``graphpool.memory.cuda`` raises, as ``class: message``, in a process of its own."""
    script = f"""
import sys, warnings
warnings.simplefilter("ignore")
{before}
from graphpool import Engine
from graphpool.memory.cuda import *
from graphpool.errors import GraphpoolError
try:
    {expression}
except GraphpoolError as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("driver")
    build_driver(folder)
    return folder


@pytest.mark.parametrize("expression", ["open_device()", "CudaResource()", "PinnedResource()", "Engine('gpu')"])
def test_without_the_extra(expression):
    found = error_of(expression, os.environ, "sys.modules['cuda'] = None")
    assert found.startswith("UnsupportedError: GPU memory needs cuda-core and cuda-bindings")
    assert "pip install 'graphpool[cuda]'" in found


def test_import_needs_nothing():
    code = "import sys, graphpool.memory.cuda; print([name for name in sys.modules if name.split('.')[0] == 'cuda'])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


NEED_A_DEVICE = pytest.mark.parametrize("expression", ["CudaResource()", "Engine('gpu')"])


@needs_extra
@pytest.mark.skipif(ctypes.util.find_library("cuda") is not None, reason="an NVIDIA driver is installed here")
@NEED_A_DEVICE
def test_without_a_driver(expression):
    found = error_of(expression, os.environ)
    assert found.startswith("UnsupportedError: no NVIDIA driver was found")
    assert "install NVIDIA's driver" in found


@needs_extra
@NEED_A_DEVICE
def test_without_a_device(folder, expression):
    found = error_of(expression, environment(folder, devices=0))
    assert found.startswith("UnsupportedError: the NVIDIA driver finds no device")
    assert "nvidia-smi" in found


@needs_extra
@NEED_A_DEVICE
def test_with_an_old_driver(folder, expression):
    found = error_of(expression, environment(folder, version=12040))
    assert found.startswith("UnsupportedError: the NVIDIA driver is too old")
    assert "got: CUDA 12.4; update the driver, or install cuda-bindings of version 12" in found


@needs_extra
def test_without_memory_pools(folder):
    assert "GPU 0 has no memory pools" in error_of("CudaResource()", environment(folder, pools=0))


@needs_extra
@pytest.mark.parametrize("index", ["1", "-1", "'0'", "0.0"])
@pytest.mark.parametrize("expression", ["CudaResource({})", "Engine('gpu', index={})"])
def test_device_of_another_number(folder, expression, index):
    found = error_of(expression.format(index), environment(folder))
    assert found == f"InvalidArgumentError: index of a GPU; accepted: 0 to 0; got: {index}"


@needs_extra
def test_with_too_little_memory(folder):
    found = error_of("CudaResource().allocate(2000000)", environment(folder, memory=1000000))
    assert found.startswith("OutOfMemoryError: CudaResource of GPU 0 cannot supply 2000000 bytes")
    assert "the device has 1000000 bytes" in found
