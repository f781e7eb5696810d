import fcntl
import mmap
import os
import pickle
import signal
import socket
from pathlib import Path

import numpy as np
import pytest

from graphpool.cache import PackedKey, fingerprint, sealed_store
from graphpool.cache.sealed_store import SealedStore
from graphpool.errors import OutOfMemoryError, StateError, UnsupportedError
from tests.helpers.memory import run_in_child

DATA = np.arange(3000, dtype=np.float32)


def key_of(number, layout="panels"):
    return PackedKey(fingerprint(np.array([number])), layout, "avx2")


def make_store():
    return SealedStore.make({key_of(0): DATA, key_of(1): b"", key_of(2): bytes(range(7))})


def contents_of(store):
    return [store.get(key_of(number)) for number in range(4)]


def is_complete(store):
    first, second, third, none = contents_of(store)
    return (
        np.array_equal(np.frombuffer(first, np.float32), DATA)
        and (bytes(second), bytes(third), none) == (b"", bytes(range(7)), None)
        and store.get(key_of(0, "other")) is None
    )


def test_what_was_written_is_found_and_lies_at_pages():
    store = make_store()
    assert is_complete(store)
    buffer = store.get(key_of(0))
    assert (buffer.address % 4096, buffer.is_frozen) == (0, True)
    assert memoryview(buffer).readonly
    assert "3 contents" in repr(store)


def test_a_process_has_one_object_a_store():
    store = make_store()
    assert SealedStore.open(pickle.loads(pickle.dumps(store.name))) is store


def test_buffers_outlive_the_store():
    store = make_store()
    buffer, name = store.get(key_of(0)), store.name
    del store
    assert np.array_equal(np.frombuffer(buffer, np.float32), DATA)
    # the mapping has a descriptor of its own, by which it is found again
    assert is_complete(SealedStore.open(name))
    del buffer
    with pytest.raises(StateError, match=r"is gone.*share with a folder"):
        SealedStore.open(name)


def test_nobody_can_write_cut_or_unseal():
    store = make_store()
    writing = os.open(f"/proc/self/fd/{store.name.descriptor}", os.O_RDWR)
    try:
        for attempt in (
            lambda: os.pwrite(writing, b"x", 0),
            lambda: os.ftruncate(writing, 0),
            lambda: os.ftruncate(writing, store.nbytes + 1),
            lambda: mmap.mmap(writing, store.nbytes),
            lambda: fcntl.fcntl(writing, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW),
        ):
            with pytest.raises(PermissionError):
                attempt()
    finally:
        os.close(writing)
    assert is_complete(store)


@pytest.mark.native
def test_another_process_finds_it_at_whoever_has_it():
    store = make_store()
    name = store.name
    reader, writer = os.pipe()
    holder = os.fork()
    if not holder:
        os.write(writer, b".")
        signal.pause()
        os._exit(1)
    try:
        os.read(reader, 1)
        del store  # only the child has it

        def child():
            assert is_complete(SealedStore.open(name))
            assert SealedStore.open(name).name.pid == os.getpid()

        run_in_child(child)
        run_in_child(lambda: SealedStore.open(name._replace(pid=2**22 + 1, descriptor=5)))  # nobody there
        run_in_child(lambda: SealedStore.open(name._replace(pid=os.getpid(), descriptor=reader)))  # a pipe there
    finally:
        os.kill(holder, signal.SIGKILL)
        os.waitpid(holder, 0)
        os.close(reader)
        os.close(writer)
    with pytest.raises(StateError, match="is gone"):
        SealedStore.open(name)


def test_who_gets_it_behind_the_look_is_found(monkeypatch):
    store = make_store()
    name, (sender, receiver) = store.name, socket.socketpair()
    socket.send_fds(sender, [b"."], [name.descriptor])
    del store  # no process has it now, until one takes it from the socket
    taken = []
    look = sealed_store._places_of

    def look_and_take(name):
        yield from look(name)
        if not taken:
            taken.extend(socket.recv_fds(receiver, 1, 1)[1])

    monkeypatch.setattr(sealed_store, "_places_of", look_and_take)
    try:
        assert is_complete(SealedStore.open(name))
    finally:
        for descriptor in taken:
            os.close(descriptor)
        sender.close()
        receiver.close()


def test_what_is_not_what_the_name_says_is_refused():
    store = make_store()
    name = store.name
    others = [os.memfd_create(f"graphpool-{name.id}", os.MFD_ALLOW_SEALING)]  # of this name, and not sealed
    os.ftruncate(others[0], name.nbytes)
    content = os.pread(name.descriptor, name.nbytes, 0)
    others.append(os.memfd_create(f"graphpool-{name.id}", os.MFD_ALLOW_SEALING))
    os.pwrite(others[1], content[:-1] + b"!", 0)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(others[1], fcntl.F_ADD_SEALS, seals)  # sealed, and of another content
    try:
        del store
        with pytest.raises(StateError, match="does not hold what its name says"):
            SealedStore.open(name)
        os.close(others.pop())
        with pytest.raises(StateError, match="is gone"):
            SealedStore.open(name)
    finally:
        for descriptor in others:
            os.close(descriptor)


def test_without_memory_nothing_is_left(monkeypatch):
    before = len(list(Path("/proc/self/fd").iterdir()))

    def refuse(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", refuse)
    with pytest.raises(OutOfMemoryError, match="No space left"):
        SealedStore.make({key_of(0): DATA})
    monkeypatch.setattr(os, "memfd_create", refuse)
    with pytest.raises(UnsupportedError, match="share with a folder"):
        SealedStore.make({key_of(0): DATA})
    assert len(list(Path("/proc/self/fd").iterdir())) == before
