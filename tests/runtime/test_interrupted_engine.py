"""A KeyboardInterrupt at every line of an engine's constructor: no thread and no registration is left behind."""

import gc
import linecache
import sys
import threading

import pytest

import graphpool as gp
from graphpool import fork
from graphpool.runtime import idle_decay
from tests.helpers.caches import wait_until

NAME = "graphpool idle decay"


class Interrupt:
    """Raises KeyboardInterrupt at the line number `at`, counted over all lines of graphpool that run.

    Lines of ``with`` are left out: they are passed again on the way out, between the body and the exit, where the
    interpreter takes no signal.
    """

    def __init__(self, at):
        self.at, self.lines = at, 0

    def __call__(self, frame, event, argument):
        if "/graphpool/" not in frame.f_code.co_filename or threading.current_thread() is not threading.main_thread():
            return None
        if event == "line" and not linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip().startswith(
            "with "
        ):
            self.lines += 1
            if self.lines == self.at:
                raise KeyboardInterrupt
        return self


def make_interrupted(at):
    """An engine, or None if its constructor was interrupted at that line."""
    before = sys.gettrace()
    sys.settrace(Interrupt(at))
    try:
        return gp.Engine(threads=1, idle_decay_s=3600.0, memory_limit="1MiB")
    except KeyboardInterrupt:
        return None
    finally:
        sys.settrace(before)


def sweepers():
    return [thread for thread in threading.enumerate() if thread.name == NAME]


def registered():
    gc.collect()
    return len(fork._resettable), len(fork._guarded)


@pytest.fixture(autouse=True)
def _without_sweepers():
    gc.collect()
    gc.freeze()  # what is there already is not looked through hundreds of times
    wait_until(lambda: not sweepers())
    yield
    gc.unfreeze()
    gc.collect()
    wait_until(lambda: not sweepers())


def test_an_engine_that_is_interrupted_leaves_nothing():
    gp.Engine(idle_decay_s=3600.0).close()
    wait_until(lambda: not sweepers())
    before, at = registered(), 1
    while (engine := make_interrupted(at)) is None:
        wait_until(lambda: not sweepers())
        assert registered() == before, at
        assert not list(idle_decay._engines)
        at += 1
    assert at > 50
    with engine:
        assert len(sweepers()) == 1


@pytest.mark.parametrize("is_started", [False, True])
def test_a_thread_whose_start_is_interrupted_is_started_by_the_next(monkeypatch, is_started):
    real = threading.Thread.start

    def start(self):
        if is_started:
            real(self)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            gp.Engine(threads=1, idle_decay_s=3600.0)
    gc.collect()
    with gp.Engine(threads=1, idle_decay_s=3600.0):
        wait_until(lambda: len(sweepers()) == 1)
    wait_until(lambda: not sweepers())
