"""Threads and producers for tests of caches: steps are forced by events, never by sleeping."""

import threading
from concurrent.futures import ThreadPoolExecutor

TIMEOUT_S = 60


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


def together(count, function):
    """Run ``function(i)`` in `count` threads that start at once; the list of results."""
    barrier = threading.Barrier(count)

    def start(i):
        barrier.wait(TIMEOUT_S)
        return function(i)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(start, range(count), timeout=TIMEOUT_S))


def wait_until(condition):
    """Give way to other threads until `condition()` holds; for states that no event announces."""
    for _ in range(TIMEOUT_S * 1000):
        if condition():
            return
        threading.Event().wait(0.001)
    raise AssertionError("the condition never held")
