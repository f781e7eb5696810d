import ctypes
import gc
import os
import threading
import time

import numpy as np
import pytest

from graphpool.cache import ConstantBuffer
from graphpool.cache._handle import ConstantHandle
from graphpool.errors import InvalidArgumentError, StateError
from tests.helpers.caches import QuarantineResource, switching_every, wait_until
from tests.helpers.memory import run_threads


def make(resource=None, nbytes=64):
    return ConstantBuffer.allocate(resource or QuarantineResource(), nbytes)


# ---- the buffer


def test_memory_goes_back_with_the_last_user():
    resource = QuarantineResource()
    buffer = make(resource, 100)
    assert buffer.address % 64 == 0
    view = np.frombuffer(buffer, np.uint8)
    del buffer
    assert resource.live_nbytes == 100
    del view
    assert resource.live_nbytes == 0


def test_the_buffer_keeps_its_owner_alive():
    data = np.arange(8.0)
    buffer = ConstantBuffer(data.ctypes.data, data.nbytes, owner=data)
    del data
    gc.collect()
    assert np.frombuffer(buffer).tolist() == list(range(8))


def test_a_frozen_buffer_is_read_only():
    buffer = make()
    np.frombuffer(buffer, np.uint8)[:] = 7
    buffer.freeze()
    assert buffer.is_frozen
    assert not np.frombuffer(buffer, np.uint8).flags.writeable
    with pytest.raises((BufferError, TypeError)):
        (ctypes.c_char * 64).from_buffer(buffer)


@pytest.mark.parametrize(("address", "nbytes"), [(0, 1), (-1, 1), (64, -1)])
def test_impossible_memory_is_refused(address, nbytes):
    with pytest.raises(InvalidArgumentError):
        ConstantBuffer(address, nbytes)


# ---- the protocol, step by step


def test_a_new_handle_gives_nothing():
    handle = ConstantHandle("k")
    assert (handle.is_valid, handle.try_acquire(), handle.users, handle.generation) == (False, 0, 0, 0)


def test_acquire_counts_users_and_gives_the_address():
    handle, buffer = ConstantHandle("k"), make()
    assert handle.bind(buffer)
    assert handle.try_acquire() == handle.try_acquire() == buffer.address
    assert (handle.users, handle.generation, handle.take_hits(), handle.take_hits()) == (2, 1, 2, 0)


def test_evicted_without_users_frees_at_once():
    resource, handle = QuarantineResource(), ConstantHandle("k")
    handle.bind(make(resource))
    assert resource.live_nbytes == 64
    handle.evict()
    assert (resource.live_nbytes, handle.is_valid, handle.try_acquire(), handle.users) == (0, False, 0, 0)
    handle.evict()
    assert handle.users == 0


def test_evicted_in_use_frees_with_the_last_release():
    resource, handle = QuarantineResource(), ConstantHandle("k")
    handle.bind(make(resource))
    handle.try_acquire()
    handle.try_acquire()
    handle.evict()
    assert handle.try_acquire() == 0
    handle.give_back()
    assert resource.live_nbytes == 64
    handle.give_back()
    assert (resource.live_nbytes, handle.users) == (0, 0)


def test_bind_waits_for_the_users_of_what_was_evicted():
    resource, handle = QuarantineResource(), ConstantHandle("k")
    handle.bind(make(resource))
    handle.try_acquire()
    assert not handle.bind(make(resource))  # valid
    handle.evict()
    newer = make(resource)
    assert not handle.bind(newer)  # in use
    handle.give_back()
    assert handle.bind(newer)
    assert (handle.generation, handle.try_acquire()) == (2, newer.address)


def test_giving_back_what_was_not_acquired_is_refused():
    handle = ConstantHandle("k")
    with pytest.raises(StateError, match="not in use"):
        handle.give_back()
    handle.bind(make())
    with pytest.raises(StateError):
        handle.give_back()
    assert (handle.users, handle.is_valid) == (0, True)


def test_a_dying_handle_lets_go():
    resource = QuarantineResource()
    handle = ConstantHandle("k")
    handle.bind(make(resource))
    del handle
    assert resource.live_nbytes == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("is_evicted", [False, True])
def test_a_child_counts_no_users(is_evicted):
    resource, handle = QuarantineResource(), ConstantHandle("k")
    handle.bind(make(resource))
    handle.try_acquire()
    if is_evicted:
        handle.evict()
    pid = os.fork()
    if pid == 0:
        good = handle.users == 0 and resource.live_nbytes == (0 if is_evicted else 64)
        os._exit(0 if good and handle.is_valid is not is_evicted else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert handle.users == 1


# ---- every interleaving of the atomic steps, on a model of the word


EVICTED, USER = 1 << 32, 1


class Word:
    """The handle's state; each method that is called between two yields of a script is one atomic step."""

    def __init__(self):
        self.word, self.buffer, self.address, self.freed = 0, "old", "old", set()

    def drop(self):
        if self.word & EVICTED and not self.word & (EVICTED - 1):
            self.freed.add(self.buffer)
            self.buffer = self.address = None

    def acquire_use_release(self):
        yield
        before, self.word = self.word, self.word + USER
        if before & EVICTED:
            yield from self.release()
            return
        yield
        address = self.address
        yield
        assert address not in {None, *self.freed}, "used after it was freed"
        yield from self.release()

    def release(self):
        yield
        assert self.word & (EVICTED - 1), "more releases than acquires"
        self.word -= USER
        if self.word & EVICTED and not self.word & (EVICTED - 1):
            yield
            self.drop()

    def evict(self):
        yield
        before, self.word = self.word, self.word | EVICTED
        if not before & (EVICTED - 1):
            yield
            self.drop()

    def bind(self):
        yield
        if self.word & EVICTED and self.buffer is None:
            self.buffer = self.address = "new"
            self.word += EVICTED


SCRIPTS = [
    ("acquire_use_release", "evict"),
    ("acquire_use_release", "acquire_use_release", "evict"),
    ("acquire_use_release", "evict", "bind"),
    ("acquire_use_release", "evict", "bind", "evict"),
    ("acquire_use_release", "acquire_use_release", "evict", "bind"),
]


def explore(names):
    """Run every order of the steps of these threads; the number of orders."""
    orders, todo = 0, [[]]
    while todo:
        order = todo.pop()
        state = Word()
        threads = [getattr(state, name)() for name in names]
        for thread in threads:
            next(thread)
        alive = set(range(len(threads)))
        for i in order:
            try:
                next(threads[i])
            except StopIteration:
                alive.discard(i)
        if alive:
            todo += [[*order, i] for i in alive]
            continue
        orders += 1
        assert not state.word & (EVICTED - 1), "a user is still counted"
        assert (state.buffer is None) == bool(state.word & EVICTED), "a dropped or a leaked buffer"
    return orders


@pytest.mark.parametrize("names", SCRIPTS, ids="+".join)
def test_no_interleaving_uses_freed_memory_or_leaks(names):
    assert explore(names) > 1


# ---- the real thing, without the GIL


def c_functions(handle):
    """`acquire` and `release` as C code calls them: through the vtable, with the GIL released."""
    capsule = ctypes.pythonapi.PyCapsule_GetPointer
    capsule.restype, capsule.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    table = (ctypes.c_void_p * 2).from_address(capsule(type(handle).__pyx_vtable__, None))
    acquire = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(table[0])
    release = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(table[1])
    return acquire, release


@pytest.fixture
def busy_switching():
    with switching_every(1e-5):
        yield


@pytest.mark.usefixtures("busy_switching")
def test_many_threads_never_see_freed_memory():
    resource, handle, stop = QuarantineResource(), ConstantHandle("k"), threading.Event()
    acquire, release = c_functions(handle)
    compare = ctypes.CDLL(None).memcmp  # called without the GIL, so the reading overlaps with evictions
    nbytes = 1 << 16
    good = (ctypes.c_char * nbytes)(*b"\x5a" * nbytes)
    uses = []

    def use():
        while not stop.is_set():
            address = acquire(id(handle))
            if address:
                same = compare(ctypes.c_void_p(address), good, nbytes)
                release(id(handle))
                uses.append(same)

    def bind():
        buffer = make(resource, nbytes)
        np.frombuffer(buffer, np.uint8)[:] = 0x5A
        handle.bind(buffer)

    def churn():
        wait_until(lambda: uses)
        for _ in range(300):
            bind()
            time.sleep(0)  # let users in
            handle.evict()

    def work(i):
        try:
            use() if i >= 2 else churn()
        finally:
            if i == 0:
                stop.set()

    bind()
    run_threads(6, work)
    assert set(uses) == {0}
    handle.evict()
    assert handle.users == 0
    assert resource.live_nbytes == 0
