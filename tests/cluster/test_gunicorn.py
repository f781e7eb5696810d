"""The recipe for gunicorn of the guide, as it stands there: workers and masters that are killed."""

import io
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import graphpool as gp
from graphpool import demo
from tests.helpers.tree import ROOT

pytest.importorskip("gunicorn")
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks for memory in /proc")

TIMEOUT_S = 60
IMAGES = np.ascontiguousarray(demo.test_images()[0][:8], np.float32)


class Master:
    """gunicorn with the files of the guide, but for the number of workers."""

    def __init__(self, folder):
        text = (ROOT / "docs/how-to/many-workers.md").read_text(encoding="utf-8")
        for name in ("app.py", "gunicorn.conf.py"):
            code = re.search(rf"^```py\n# {re.escape(name)}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1]
            (folder / name).write_text(code, encoding="utf-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        line = [sys.executable, "-m", "gunicorn", "-b", f"127.0.0.1:{self.port}", "--workers", "2", "app:app"]
        self.process = subprocess.Popen(line, cwd=folder, stderr=subprocess.DEVNULL)

    def workers(self):
        """Those that live."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return {int(pid) for pid in children}

    def answer(self):
        """What the service says to some images, once it answers."""
        file = io.BytesIO()
        np.save(file, IMAGES)
        found = []

        def ask():
            with suppress(urllib.error.URLError, ConnectionError):  # of a worker that was killed
                address = f"http://127.0.0.1:{self.port}/"
                with urllib.request.urlopen(address, file.getvalue(), timeout=TIMEOUT_S) as answer:
                    found.append(answer.read().decode())
            return found

        wait_for(ask)
        return found[0]


@pytest.fixture
def master(tmp_path):
    master = Master(tmp_path)
    try:
        yield master
    finally:
        master.process.terminate()
        master.process.wait(TIMEOUT_S)


def wait_for(is_so):
    end_s = time.monotonic() + TIMEOUT_S
    while not is_so():
        assert time.monotonic() < end_s
        time.sleep(0.05)


def memory_of(*pids):
    """Names of anonymous memory that processes have open."""
    found = set()
    for pid in pids:
        with suppress(OSError):  # it has ended meanwhile
            for link in Path(f"/proc/{pid}/fd").iterdir():
                with suppress(OSError):
                    found.add(str(link.readlink()))
    return {name for name in found if name.startswith("/memfd:")}


def all_processes():
    return [int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit()]


def expected():
    with gp.onnx.load(demo.model_path("digits_cnn"), threads=1) as model:
        return str(model.run({"image": IMAGES})["probabilities"].argmax(axis=1).tolist())


def test_a_worker_that_is_killed_is_replaced(master):
    assert master.answer() == expected()
    wait_for(lambda: len(master.workers()) == 2)
    before = master.workers()
    memory = memory_of(master.process.pid)
    assert memory
    for pid in before:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: len(master.workers()) == 2 and not master.workers() & before)
    assert master.answer() == expected()
    assert all(memory_of(pid) == memory for pid in master.workers())


def test_nothing_is_left_of_a_master_that_is_killed(master):
    assert master.answer() == expected()
    wait_for(lambda: len(master.workers()) == 2)
    workers, memory = master.workers(), memory_of(master.process.pid)
    assert memory
    assert "/dev/shm" not in Path(f"/proc/{master.process.pid}/maps").read_text()
    master.process.kill()
    master.process.wait(TIMEOUT_S)
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert not memory & memory_of(*all_processes())
