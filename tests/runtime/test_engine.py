"""Engine, Stream, Event and the thread count."""

import contextlib
import threading
import time

import numpy as np
import pytest

import graphpool as gp
from graphpool.runtime import idle_decay, threads
from tests.helpers.caches import switching_every


@pytest.mark.parametrize(
    ("keywords", "error", "message"),
    [
        ({"kind": "npu"}, gp.InvalidArgumentError, "engine kind; accepted: cpu, gpu; got: 'npu'"),
        ({"index": 1}, gp.InvalidArgumentError, "engine index"),
        ({"threads": 0}, gp.InvalidArgumentError, "threads; accepted: an int of at least 1"),
        ({"threads": True}, gp.InvalidArgumentError, "threads"),
        ({"memory_limit": "lots"}, gp.InvalidArgumentError, 'a string such as "512MiB"'),
        ({"memory_limit": -1}, gp.InvalidArgumentError, "not a size"),
    ],
)
def test_engine_refuses(keywords, error, message):
    with pytest.raises(error) as caught:
        gp.Engine(**keywords)
    assert message in str(caught.value)


def test_engine_says_what_it_is():
    with gp.Engine(threads=np.int64(3), memory_limit="512MiB") as engine:
        assert (engine.kind, engine.index, engine.threads, engine.memory_limit) == ("cpu", 0, 3, 2**29)
        assert repr(engine) == "Engine(cpu:0, threads=3, memory_limit=512 MiB)"
    assert "closed" in repr(engine)
    engine.close()


def test_streams_and_events():
    with gp.Engine() as engine, gp.Stream(engine) as stream:
        event = stream.record()
        assert event.is_done
        event.wait()
        gp.Stream(engine).wait_event(event)
        stream.wait()
    assert stream.is_closed
    with pytest.raises(gp.StateError, match="the stream is closed"):
        stream.wait()
    with pytest.raises(gp.StateError, match="is closed; create another engine"):
        gp.Stream(engine)


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"self": "0::/a/b\n", "a/b/cpu.max": "150000 100000\n", "a/cpu.max": "max 100000\n"}, 1.5),
        ({"self": "0::/a/b\n", "a/b/cpu.max": "max 100000\n", "a/cpu.max": "50000 100000\n"}, 0.5),
        ({"self": "0::/\n"}, None),
        (
            {"self": "4:cpu,cpuacct:/x\n", "cpu/x/cpu.cfs_quota_us": "300000\n", "cpu/x/cpu.cfs_period_us": "100000\n"},
            3.0,
        ),
        ({"self": "4:cpu:/x\n", "cpu/x/cpu.cfs_quota_us": "-1\n", "cpu/x/cpu.cfs_period_us": "100000\n"}, None),
        ({}, None),
    ],
)
def test_cgroup_quota(tmp_path, files, quota):
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert threads._cgroup_quota(tmp_path, tmp_path / "self") == quota


def test_threads_come_from_the_environment(monkeypatch):
    monkeypatch.setattr(threads.config, "get", lambda name: 5)
    assert threads.available_threads() == 5
    with gp.Engine() as engine:
        assert engine.threads == 5


class Dependent:
    def close(self):
        pass


@pytest.fixture
def switching():
    """Threads take turns as often as they can."""
    with switching_every(1e-6):
        yield


@pytest.mark.usefixtures("switching")
def test_an_engine_closes_while_others_attach_to_it():
    def attach(engine, kept):
        with contextlib.suppress(gp.StateError):  # once it is closed
            while True:
                kept.append(Dependent())
                engine.attach(kept[-1])

    for _ in range(20):
        engine, kept = gp.Engine(threads=1), []
        other = threading.Thread(target=attach, args=(engine, kept))
        other.start()
        while len(kept) < 2000:
            time.sleep(0)
        engine.close()
        other.join()


@pytest.mark.usefixtures("switching")
def test_engines_come_and_go_while_idle_memory_is_given_back():
    done = threading.Event()

    def come_and_go():
        while not done.is_set():
            gp.Engine(threads=1, idle_decay_s=3600.0).close()

    others = [threading.Thread(target=come_and_go) for _ in range(3)]
    for other in others:
        other.start()
    try:
        for _ in range(3000):
            idle_decay._decay_all()
    finally:
        done.set()
        for other in others:
            other.join()
