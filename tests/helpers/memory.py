"""Memory's test kit: resources to try everything on, threads that report their errors, children, bytes at addresses."""

from __future__ import annotations

import ctypes
import io
import os
import threading
import traceback

from graphpool.memory import (
    Budget,
    CallbackResource,
    FailureCallbackResource,
    HostResource,
    LimitingResource,
    LoggingResource,
    SnapshotResource,
    StatisticsResource,
    TrackingResource,
)
from graphpool.memory.adaptors import TracedResource

TIMEOUT_S = 600.0 if os.environ.get("GRAPHPOOL_STRESS") else 60.0
"""How long a test waits for another thread before it calls that a deadlock."""


def callback_resource(host):
    """A user's allocator pair over `host`."""
    sizes = {}

    def malloc(nbytes, alignment):
        address = host.allocate(nbytes, alignment)
        sizes[address] = nbytes
        return address

    def free(address):
        host.deallocate(address, sizes.pop(address))

    return CallbackResource(malloc, free)


def stack(host):
    """Every adaptor on one host."""
    limited = LimitingResource(TrackingResource(host), Budget("1GiB"))
    return StatisticsResource(FailureCallbackResource(LoggingResource(limited, io.StringIO()), lambda nbytes: False))


RESOURCES = {
    "host": lambda host: host,
    "callback": callback_resource,
    "limiting": lambda host: LimitingResource(host, "1GiB"),
    "statistics": StatisticsResource,
    "tracking": TrackingResource,
    "traced": lambda host: TracedResource(host, 7),
    "snapshot": SnapshotResource,
    "logging": lambda host: LoggingResource(host, io.StringIO()),
    "failure_callback": lambda host: FailureCallbackResource(host, lambda nbytes: False),
    "stack": stack,
    "stack_on_callback": lambda host: stack(callback_resource(host)),
}
"""name -> function that builds the resource on a `HostResource`, which the test inspects."""


class GatedResource:
    """A resource whose allocations stop at a gate, so that a test decides who runs when."""

    def __init__(self, upstream=None):
        self.upstream = upstream or HostResource()
        self.entered = threading.Semaphore(0)
        self.may_go = threading.Semaphore(0)
        self.error = None

    def allocate(self, nbytes, alignment=64, stream=None):
        self.entered.release()
        assert self.may_go.acquire(timeout=TIMEOUT_S), "the test never opened the gate"
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self.upstream.allocate(nbytes, alignment, stream)

    def deallocate(self, address, nbytes, alignment=64, stream=None):
        self.upstream.deallocate(address, nbytes, alignment, stream)

    def await_callers(self, n):
        """Return once `n` more callers stand at the gate."""
        for _ in range(n):
            assert self.entered.acquire(timeout=TIMEOUT_S), "too few callers reached the resource"

    def open(self, n=1):
        """Let `n` callers through."""
        self.may_go.release(n)


class Worker(threading.Thread):
    """A thread that keeps what its function returned or raised."""

    def __init__(self, function, *args):
        super().__init__(daemon=True)
        self._function, self._args = function, args
        self.value = self.error = None
        self.start()

    def run(self):
        try:
            self.value = self._function(*self._args)
        except BaseException as error:
            self.error = error

    def result(self):
        """Its value, or its error raised here."""
        self.join(TIMEOUT_S)
        assert not self.is_alive(), "deadlock: the thread never ended"
        if self.error is not None:
            raise self.error
        return self.value


def run_threads(n, function):
    """Run ``function(i)`` in `n` threads that start together; returns their results, or raises the first error."""
    barrier = threading.Barrier(n)

    def body(i):
        barrier.wait(TIMEOUT_S)
        return function(i)

    workers = [Worker(body, i) for i in range(n)]
    return [worker.result() for worker in workers]


def await_waiters(pool, n):
    """Return once `n` acquires have had to sleep in `pool`."""
    deadline = threading.Event()
    for _ in range(int(TIMEOUT_S * 1000)):
        if pool.stats().waits >= n:
            return
        deadline.wait(0.001)
    raise AssertionError("nobody waits")


def run_in_child(function):
    """Run `function` in a forked child; its failure fails the caller, with the child's traceback."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 0
        try:
            function()
        except BaseException:
            os.write(writer, traceback.format_exc().encode()[-4000:])
            code = 1
        os._exit(code)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        report = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"child failed: {report or status}"


def write_bytes(address, nbytes, value):
    """Fill memory with one byte."""
    ctypes.memset(address, value, nbytes)


def read_bytes(address, nbytes):
    """A copy of memory."""
    return ctypes.string_at(address, nbytes)


class HostBytes:
    """Bytes of host memory, for tests that run on memory of other devices too."""

    write = staticmethod(write_bytes)
    read = staticmethod(read_bytes)
