"""SealedStore: packed weights in anonymous memory, written once, mapped by any number of processes.

    0      the contents, each from a multiple of 4096
    ...    a pickle: of each key the offset and size in bytes of its content; from the offset in the store's name on

The memory is a file of the kernel without a name in any folder (``memfd``): it is gone with the last process that has
it, whatever way that one ends. Others reach it through ``/proc/PID/fd`` of one that has it.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import pickle
import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from graphpool._dataclasses import NamedTuple

from ..errors import OutOfMemoryError, StateError, UnsupportedError, explain
from ..fork import reset_in_child
from ..mapped_file import ReadMapping
from ._handle import ConstantBuffer
from .identity import digest_of_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ..typing import MemoryResource
    from .identity import PackedKey

_CHUNK_NBYTES = 64 << 20
_MOST_LOOKS = 4
"""At all processes, for a store: one may hand it on behind the look, to one that was looked at before, and end."""
_SEALS = sum(getattr(fcntl, f"F_SEAL_{what}", 0) for what in ("SEAL", "SHRINK", "GROW", "WRITE"))  # 0: no Linux


class SealedName(NamedTuple):
    """By what another process finds a store and knows it: `id` is random, `digest` that of its index.

    `pid` and `descriptor` say where to look first. Units: bytes.
    """

    id: str
    nbytes: int
    index_offset: int
    digest: bytes
    pid: int
    descriptor: int


class SealedStore:
    """Packed weights that outlive no process: each is mapped read-only by all who have the store's name.

    `make` and `open` give one; a process has one object a store.

    Attributes
    ----------
    nbytes : int
        Size of the memory. Unit: bytes.

    Notes
    -----
    The memory is sealed when it has been written: nobody can write to it, cut it short or unseal it, so that no page of
    a mapping can change or vanish. Who opens a store checks the seals, the size and the digest of the index; contents
    are those of a process of this user, the only ones that can hand them out, and are not read once more.
    Ownership: this object holds a descriptor, and buffers keep the mapping alive. The system frees the memory when the
    last process has neither; it counts where it was written, in a control group too, and cannot be taken away as the
    pages of files can. Threads: safe, also after ``fork``. Cost: `make` writes all bytes once, `open` maps them.
    Needs Linux, and ``/proc``. Processes find each other's memory if they belong to one user and see each other there.
    """

    def __init__(self, name: SealedName, descriptor: int) -> None:
        self._name, self._descriptor = name, descriptor
        self._mapping = ReadMapping(descriptor, name.nbytes, flags=mmap.MAP_SHARED, prot=mmap.PROT_READ)
        index = self._mapping[name.index_offset :]
        if digest_of_text(index) != name.digest:
            raise StateError(explain(f"shared memory graphpool-{name.id} does not hold what its name says"))
        self._places: dict[PackedKey, tuple[int, int]] = pickle.loads(index)  # noqa: S301 - of who made the name
        self._start = np.frombuffer(self._mapping, np.uint8).ctypes.data

    @classmethod
    def make(cls, contents: Mapping[PackedKey, Any]) -> SealedStore:
        """A store of these contiguous buffers.

        Raises `OutOfMemoryError` where the system has no memory for them, `UnsupportedError` where it has no sealed
        memory; then nothing is left.
        """
        id = os.urandom(16).hex()
        try:
            descriptor = os.memfd_create(f"graphpool-{id}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except (AttributeError, OSError) as error:
            hint = "share with a folder: share(model, store=...)"
            raise UnsupportedError(explain("the system has no sealed memory", got=error, hint=hint)) from error
        try:
            nbytes, index_offset, digest = _write(descriptor, contents)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            # a descriptor for reading alone, which older kernels want for a shared mapping of sealed memory
            reading = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            hint = "share with a folder: share(model, store=...)"
            raise OutOfMemoryError(explain("no memory to share packed weights in", got=error, hint=hint)) from error
        finally:
            os.close(descriptor)
        return _opened.keep(SealedName(id, nbytes, index_offset, digest, os.getpid(), reading), reading)

    @classmethod
    def open(cls, name: SealedName) -> SealedStore:
        """The store of this name, of whichever process has it; raises `StateError` if none has, or it is not whole."""
        return _opened.find(name)

    @property
    def name(self) -> SealedName:
        """What another process opens it by, through this one."""
        return self._name._replace(pid=os.getpid(), descriptor=self._descriptor)

    @property
    def nbytes(self) -> int:
        """Size of the memory. Unit: bytes."""
        return self._name.nbytes

    def get(self, key: PackedKey, resource: MemoryResource | None = None) -> ConstantBuffer | None:
        """The content of a key, read-only, or None; nothing is taken of the resource."""
        place = self._places.get(key)
        if place is None:
            return None
        buffer = ConstantBuffer(self._start + place[0], place[1], owner=self._mapping)
        buffer.freeze()
        return buffer

    def __del__(self) -> None:
        with suppress(OSError, AttributeError):
            os.close(self._descriptor)

    def __repr__(self) -> str:
        return f"<SealedStore {self._name.id}: {len(self._places)} contents, {self.nbytes} bytes>"


def _write(descriptor: int, contents: Mapping[PackedKey, Any]) -> tuple[int, int, bytes]:
    """Write all of it; its size, and offset and digest of the index. Units: bytes."""
    index: dict[PackedKey, tuple[int, int]] = {}
    offset = 0
    for key, data in contents.items():
        view = memoryview(data).cast("B")
        index[key] = offset, view.nbytes
        _write_at(descriptor, view, offset)
        offset = -(-(offset + view.nbytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    text = pickle.dumps(index, 5)
    _write_at(descriptor, memoryview(text), offset)
    return offset + len(text), offset, digest_of_text(text)


def _write_at(descriptor: int, view: memoryview, offset: int) -> None:
    start = 0
    while start < view.nbytes:
        start += os.pwrite(descriptor, view[start : start + _CHUNK_NBYTES], offset + start)


# ---- who has it


class _OpenedStores:
    """The stores that this process has, by id."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._stores: WeakValueDictionary[str, SealedStore] = WeakValueDictionary()
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        self._lock = threading.RLock()

    def keep(self, name: SealedName, descriptor: int) -> SealedStore:
        with self._lock:
            store = self._stores[name.id] = SealedStore(name, descriptor)
            return store

    def find(self, name: SealedName) -> SealedStore:
        with self._lock:
            store = self._stores.get(name.id)
            if store is not None:
                return store
            opened = (_open_at(path, name) for _ in range(_MOST_LOOKS) for path in _places_of(name))
            descriptor = next((found for found in opened if found is not None), None)
            if descriptor is None:
                raise StateError(
                    explain(
                        f"shared memory graphpool-{name.id} is gone, or this process cannot see who has it",
                        accepted="a process of the same user that has it, in the same namespace of processes",
                        hint="keep the process that called share(), or one that opened the model; or share with a "
                        "folder: share(model, store=...)",
                    )
                )
            return self.keep(name, descriptor)


_opened = _OpenedStores()


def _places_of(name: SealedName) -> Iterator[str]:
    """Where its descriptor may be: where the name says, else at any process that shows its descriptors."""
    yield f"/proc/{name.pid}/fd/{name.descriptor}"
    with os.scandir("/proc") as processes:
        pids = [entry.name for entry in processes if entry.name.isdecimal()]
    for pid in pids:
        with suppress(OSError), os.scandir(f"/proc/{pid}/fd") as descriptors:
            yield from [entry.path for entry in descriptors]


def _open_at(path: str, name: SealedName) -> int | None:
    """A descriptor of the memory, if it is there, as large as it was and sealed."""
    if not _leads_to(path, name):
        return None
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    except OSError:
        return None
    try:
        if (
            _leads_to(f"/proc/self/fd/{descriptor}", name)  # it may have been closed in between, and another opened
            and os.fstat(descriptor).st_size == name.nbytes
            and fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & _SEALS == _SEALS
        ):
            return descriptor
    except OSError:
        pass
    os.close(descriptor)
    return None


def _leads_to(path: str, name: SealedName) -> bool:
    try:
        # of every descriptor of the machine, perhaps: pathlib takes four times as long
        return os.readlink(path) == f"/memfd:graphpool-{name.id} (deleted)"  # noqa: PTH115
    except OSError:
        return False
