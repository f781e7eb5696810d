"""The registry of backends."""

import subprocess
import sys

import pytest

from graphpool import _backend_loader
from graphpool.errors import InvalidArgumentError
from graphpool.graph import backend as registry

SCRIPT = """
import sys, threading
sys.setswitchinterval(1e-6)
import graphpool as gp

x, y = gp.LogicalTensor(0, "f32", (4,)), gp.LogicalTensor(1, "f32", (4,))
start, found = threading.Barrier(8), []

def partition():
    start.wait()
    found.append(gp.Partition.from_op(gp.Op(0, "ReLU", [x], [y])).is_supported)

threads = [threading.Thread(target=partition) for _ in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(found.count(True))
"""


def test_threads_that_come_first_all_find_the_backends():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["8"]


def test_a_loader_that_fails_is_called_again(monkeypatch):
    calls = []

    def load():
        calls.append(1)
        if len(calls) == 1:
            raise ImportError("not yet")

    monkeypatch.setitem(_backend_loader.loaders, "cpu", load)
    with pytest.raises(ImportError):
        registry.backends_for("cpu")
    for kind in ("cpu", "gpu", "cpu"):
        registry.backends_for(kind)
    assert len(calls) == 2
    with pytest.raises(InvalidArgumentError, match="engine kind"):
        registry.backends_for("tpu")
