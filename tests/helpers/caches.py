"""Threads and producers for tests of caches: steps are forced by events, never by sleeping."""

import ctypes
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from graphpool import StateError

from .memory import TIMEOUT_S


class Gate:
    """A producer that stops in the middle: `entered` says that it has begun, `open()` lets it end."""

    def __init__(self, value=None, error=None):
        self.entered = threading.Event()
        self._opened = threading.Event()
        self.value, self.error = value, error
        self.calls = 0

    def open(self):
        self._opened.set()

    def __call__(self):
        self.calls += 1
        self.entered.set()
        assert self._opened.wait(TIMEOUT_S)
        if self.error is not None:
            raise self.error
        return self.value


def in_thread(function, *args, **kwargs):
    """Start `function` in a thread of its own; a future whose result waits at most `TIMEOUT_S`."""
    pool = ThreadPoolExecutor(1)
    future = pool.submit(function, *args, **kwargs)
    pool.shutdown(wait=False)
    return future


def wait_until(condition):
    """Give way to other threads until `condition()` holds; for states that no event announces."""
    for _ in range(int(TIMEOUT_S * 1000)):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("the condition never held")


@contextmanager
def closed_at_most():
    """Lets a `StateError` pass that says that something is closed."""
    try:
        yield
    except StateError as error:
        if "closed" not in str(error):
            raise


@contextmanager
def switching_every(seconds):
    """Let Python's threads take turns that often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


class QuarantineResource:
    """Memory that is filled with `POISON` when it is given back, and never used again, so that late readers show."""

    POISON = 0xDD

    def __init__(self):
        self._lock = threading.RLock()
        self._live = {}
        self._freed = []
        self.live_nbytes = self.peak_nbytes = 0

    def allocate(self, nbytes, alignment=64, stream=None):
        memory = ctypes.create_string_buffer(nbytes + alignment)
        address = -(-ctypes.addressof(memory) // alignment) * alignment
        with self._lock:
            self._live[address] = (nbytes, memory)
            self.live_nbytes += nbytes
            self.peak_nbytes = max(self.peak_nbytes, self.live_nbytes)
        return address

    def deallocate(self, address, nbytes, alignment=64, stream=None):
        with self._lock:
            expected, memory = self._live.pop(address)
            assert nbytes == expected
            self.live_nbytes -= nbytes
            self._freed.append(memory)
        ctypes.memset(address, self.POISON, nbytes)
