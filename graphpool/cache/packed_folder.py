"""PackedStore: packed weights and compiled programs in files, mapped by any number of processes."""

from __future__ import annotations

import fcntl
import os
import stat
import threading
import time
import warnings
from contextlib import contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakValueDictionary

from graphpool._dataclasses import NamedTuple

from ..errors import InvalidArgumentError, PerformanceWarning, StateError, explain
from ..fork import reset_in_child
from ..mapped_file import check_mapping, open_regular
from ._bounded import CacheStats, show_stats
from ._check import check_limit
from ._checked_files import CheckedFiles
from ._digest_file import digests_name, encode_digests, read_digests
from ._packed_file import (
    HEADER_NBYTES,
    DamagedFileError,
    as_bytes,
    copy_file,
    file_name,
    is_program,
    map_file,
    write_all,
    write_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..mapped_file import MappedFile
    from ..typing import MemoryResource
    from ._handle import ConstantBuffer
    from .identity import PackedKey


class StoredFile(NamedTuple):
    """A file of a store, and when it was used last."""

    path: Path
    nbytes: int
    used_ns: int


class PackedStore:
    """Packed weights that outlive the process: each is packed once, and mapped read-only by all who need it.

    Compiled programs lie beside them, in a folder that nobody else may write to.

    Parameters
    ----------
    path : str or path
        A folder, made if need be, which only trusted users can write to: checksums find damage, not malice.
    capacity_nbytes : int, str or None, default="4GiB"
        Most bytes of all files, those being written included; None sets no bound. Unit: bytes.
    mapping : {"map", "copy"}, optional
        Whether a file is mapped, and shared by all processes that do so, or read into memory of the engine: for folders
        in which others may cut files short, which takes the pages of a mapped one away (SIGBUS). By default files are
        mapped in a folder that this user owns and no other may write to, and read in any other.

    Attributes
    ----------
    path : Path
    mapping : str
        As given, or as the folder was found.

    Raises
    ------
    InvalidArgumentError
        `path` is not a folder, the capacity is not a size, or there is no such mapping.

    Notes
    -----
    A file is written beside its place, flushed to the disk and then renamed, so readers see all of it or nothing. One
    that is damaged, or is for another instruction set than its name says, is a miss with one warning, and is removed.
    When the files exceed the capacity, those used longest ago, by any process, are removed; who has them mapped keeps
    them. Digests of the parts of mapped files, of a few kilobytes a file, come and go in the same way: see `note`.
    What killed writers left is removed by the next writer. Links are not followed; what is no regular file is
    ignored. Nothing here writes a file in place, and nobody else may: replace by renaming.
    Ownership: a buffer keeps its mapping alive. Threads: safe, between processes as well, also after ``fork``. Cost: a
    first `get` reads and checks the file, at the speed of memory where it is cached; further ones, while a buffer of it
    lives, are a look-up. In a folder that nobody else may write to, a file that a process has found undamaged is not
    read again for checking by others, as long as the system tells the same device, inode, size and time of writing of
    it, since the machine was started.
    Needs a file system with renaming and advisory locks (``flock``).
    Source: the mapped weights of inference servers; atomic replacement as databases do it.
    """

    keeps_weights = True
    _locking = fcntl.LOCK_EX

    def __init__(
        self, path: str | Path, *, capacity_nbytes: int | str | None = "4GiB", mapping: str | None = None
    ) -> None:
        self.path = Path(path).absolute()
        self._chosen = chosen = None if mapping is None else check_mapping(mapping)
        self._capacity_nbytes = check_limit(capacity_nbytes)
        try:
            self._make_folder()
            self.mapping = chosen or ("map" if _is_ours_alone(self.path) else "copy")
        except OSError as error:
            raise InvalidArgumentError(explain(f"store at {path}", accepted="a folder", got=error)) from error
        self._lock = threading.RLock()
        self._checked_path = self.path / ".checked"
        self._checked = CheckedFiles(self._checked_path)
        self._mapped: WeakValueDictionary[str, ConstantBuffer] = WeakValueDictionary()
        self._warned: set[str] = set()
        self._noted: dict[str, int] = {}  # name of a file of digests that this object wrote -> how many
        self._named: set[str] = set()  # of these the ones for files whose contents had other names before
        self._hits = self._misses = self._evictions = self._declined = 0
        reset_in_child(self)

    def _make_folder(self) -> None:
        self.path.mkdir(mode=0o755, parents=True, exist_ok=True)

    @property
    def keeps_programs(self) -> bool:
        """Whether compiled programs may lie there, which are as powerful as code: nobody else may write to it now."""
        try:
            return _is_ours_alone(self.path)
        except OSError:
            return False

    @property
    def capacity_nbytes(self) -> int | None:
        """Most bytes of all files, or None. Unit: bytes."""
        return self._capacity_nbytes

    @property
    def most_nbytes(self) -> float:
        """The most that one file may hold. Unit: bytes."""
        return inf if self._capacity_nbytes is None else self._capacity_nbytes - HEADER_NBYTES

    # ---- read

    def get(self, key: PackedKey, resource: MemoryResource | None = None) -> ConstantBuffer | None:
        """The packed weight, read-only and aligned to 64 bytes, or None if there is none that can be trusted.

        Parameters
        ----------
        key : PackedKey
        resource : MemoryResource, optional
            Of the memory that it is read into, unless the store maps; by default Python's.

        Returns
        -------
        buffer : ConstantBuffer or None

        Raises
        ------
        InvalidArgumentError
            The key is none.
        OutOfMemoryError
            The resource has no room for it.
        """
        name = file_name(key)
        with self._lock:
            buffer = self._mapped.get(name)
            if buffer is not None and not cast("MappedFile", buffer.owner).is_whole:
                buffer = None
                del self._mapped[name]
        if buffer is None:
            buffer = self._open(name, key, resource)
        with self._lock:
            self._hits += buffer is not None
            self._misses += buffer is None
        return buffer

    def _open(self, name: str, key: PackedKey, resource: MemoryResource | None) -> ConstantBuffer | None:
        path, is_mapped = self.path / name, self.mapping == "map"
        try:
            checked = self._checked if is_mapped and self.keeps_programs else None
            buffer = map_file(path, key, checked) if is_mapped else copy_file(path, key, resource, self.most_nbytes)
        except FileNotFoundError:
            return None
        except DamagedFileError as error:
            with suppress(OSError):
                path.unlink()
            self._warn(name, f"{_what(key)} {path} is damaged and will be {_verb(key)} again: {error}")
            return None
        except OSError as error:
            self._warn(name, f"{_what(key)} {path} cannot be read: {error}")
            return None
        with suppress(OSError):
            _note_use(path)  # a store that only others may write to has its own order of eviction
        with self._lock:
            return self._mapped.setdefault(name, buffer) if is_mapped else buffer

    def _warn(self, name: str, message: str) -> None:
        with self._lock:
            if name in self._warned:
                return
            self._warned.add(name)
        warnings.warn(message, PerformanceWarning, stacklevel=3)

    # ---- write

    def put(self, key: PackedKey, data: Any) -> bool:
        """Write a packed weight, after removing those used longest ago if it would not fit.

        Parameters
        ----------
        key : PackedKey
        data : contiguous buffer
            For instance an array or a `ConstantBuffer`.

        Returns
        -------
        is_kept : bool
            False if it can never fit, or the disk refuses it (with one warning).

        Raises
        ------
        InvalidArgumentError
            The key is none, or the data no contiguous buffer.
        """
        name, view = file_name(key), as_bytes(data)
        with self._lock:
            if view.nbytes > self.most_nbytes:
                self._declined += 1
                return False
        try:
            self._write(name, key, view)
        except OSError as error:
            self._warn(name, f"{_what(key)} is not stored in {self.path}: {error}")
            return False
        return True

    def _write(self, name: str, key: PackedKey, view: memoryview) -> None:
        self._write_file(name, HEADER_NBYTES + view.nbytes, lambda descriptor: write_file(descriptor, key, view))

    def _write_file(self, name: str, nbytes: int, write: Callable[[int], None]) -> None:
        """A file of so many bytes, which a call writes to a descriptor."""
        temporary = self.path / f"{os.urandom(16).hex()}.writing"
        descriptor = self._reserve(temporary, nbytes)
        try:
            write(descriptor)
            self._sync(descriptor)
            with self._folder_lock():  # who lists the folder meanwhile may find the file under neither name
                temporary.replace(self.path / name)
            self._sync_folder()
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise
        finally:
            os.close(descriptor)

    def _reserve(self, temporary: Path, nbytes: int) -> int:
        """Make room, and a file of the full size, locked so that others see that its writer lives; its descriptor."""
        with self._folder_lock():
            self._make_room(nbytes)
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                os.ftruncate(descriptor, nbytes)
            except BaseException:
                os.close(descriptor)
                with suppress(OSError):
                    temporary.unlink()
                raise
            return descriptor

    def _make_room(self, nbytes: int) -> None:
        """Remove what killed writers left, then files by their last use. Under the folder's lock."""
        for file in self._files(".writing"):
            _remove_if_orphaned(file.path)
        if self._capacity_nbytes is None:
            return
        files = self._files(*_KEPT, ".writing")
        in_use = nbytes + sum(file.nbytes for file in files)
        for file in sorted([file for file in files if file.path.suffix in _KEPT], key=lambda file: file.used_ns):
            if in_use <= self._capacity_nbytes:
                break
            self._evict(file)
            in_use -= file.nbytes

    def _evict(self, file: StoredFile) -> None:
        with suppress(FileNotFoundError):
            file.path.unlink()
        with self._lock:
            self._evictions += 1
            self._mapped.pop(file.path.name, None)

    @contextmanager
    def _folder_lock(self) -> Iterator[None]:
        """Exclude other writers' reservations, in this process and in others; the system frees it if we are killed."""
        descriptor = _open_lock(self.path / ".lock")
        try:
            fcntl.flock(descriptor, self._locking)
            yield
        finally:
            os.close(descriptor)

    def _sync_folder(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            self._sync(descriptor)
        finally:
            os.close(descriptor)

    def _sync(self, descriptor: int) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(descriptor)

    # ---- what packed weights are named by

    def note(self, mapped: MappedFile) -> None:
        """Keep the digests that were taken of parts of a mapped file, so that other processes need not read these.

        Nothing is kept of a file that was written just before it was mapped, or since.

        Parameters
        ----------
        mapped : MappedFile
        """
        name, digests = digests_name(mapped.identity), {**mapped.known, **mapped.taken}
        if not mapped.taken or self._noted.get(name) == len(digests) or not mapped.is_settled:
            return
        self._noted[name] = len(digests)
        if not mapped.known:
            self._named.add(name)
        data = encode_digests(mapped.identity, digests)
        if self._capacity_nbytes is None or len(data) <= self._capacity_nbytes:
            try:
                self._write_file(name, len(data), lambda descriptor: write_all(descriptor, data))
            except OSError as error:
                self._warn(name, f"digests of {mapped.path} are not stored in {self.path}: {error}")

    def recall(self, mapped: MappedFile) -> None:
        """Let a mapped file know the digests that other processes kept of its parts, if nobody has written it since.

        Those of which this object kept the first stay out: the contents have other names in this process already.

        Parameters
        ----------
        mapped : MappedFile
            Nothing has asked for the name of its contents yet.
        """
        name = digests_name(mapped.identity)
        if name in self._named:
            return
        path = self.path / name
        try:
            mapped.known.update(read_digests(path, mapped.identity))
            _note_use(path)
        except FileNotFoundError:
            pass
        except DamagedFileError as error:
            with suppress(OSError):
                path.unlink()
            self._warn(name, f"{path} is damaged and will be made again: {error}")
        except OSError as error:
            self._warn(name, f"{path} cannot be read: {error}")

    # ---- observe and clear

    def _files(self, *suffixes: str) -> list[StoredFile]:
        found: dict[int, StoredFile] = {}  # by inode: a file that is renamed meanwhile may be listed under both names
        with os.scandir(self.path) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):
                    if entry.name.endswith(suffixes):
                        about = entry.stat(follow_symlinks=False)
                        if stat.S_ISREG(about.st_mode):
                            found[about.st_ino] = StoredFile(Path(entry.path), about.st_size, about.st_atime_ns)
        return list(found.values())

    @contextmanager
    def _readable_folder(self) -> Iterator[None]:
        """Turn the system's refusals into `StateError`."""
        try:
            yield
        except OSError as error:
            hint = "let this user read and write the folder, or set another store"
            raise StateError(explain(f"store at {self.path} cannot be used", got=error, hint=hint)) from error

    @property
    def nbytes(self) -> int:
        """What all files take, those being written included; raises `StateError` if they cannot be listed."""
        with self._readable_folder():
            return sum(file.nbytes for file in self._files(*_KEPT, ".writing"))

    def __len__(self) -> int:
        with self._readable_folder():
            return len(self._files(".packed"))

    def clear(self) -> None:
        """Remove all files; who has one mapped keeps it.

        Raises
        ------
        StateError
            The system refuses.
        """
        with self._readable_folder(), self._folder_lock():
            for file in self._files(*_KEPT):
                self._evict(file)
            self._checked_path.unlink(missing_ok=True)

    def stats(self) -> CacheStats:
        """The counters of this object, and the files of all processes; raises `StateError` if they cannot be listed.

        Returns
        -------
        CacheStats
        """
        with self._lock:
            return CacheStats(
                hits=self._hits,
                misses=self._misses,
                evictions=self._evictions,
                declined=self._declined,
                entries=len(self),
                nbytes=self.nbytes,
                capacity=None,
                capacity_nbytes=self._capacity_nbytes,
            )

    def __repr__(self) -> str:
        try:
            return f"<PackedStore {self.path}: {len(self)} files, {self.nbytes} bytes>"
        except StateError:
            return f"<PackedStore {self.path}: cannot be read>"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from ..notebook import html_table

        try:
            return show_stats(f"PackedStore {self.path}", self.stats())
        except StateError:
            return html_table(f"PackedStore {self.path}", {"state": "cannot be read"})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by path: the copy is of the same folder, as its process finds it."""
        make = partial(PackedStore, capacity_nbytes=self._capacity_nbytes, mapping=self._chosen)
        return make, (str(self.path),)

    def _reset_in_child(self) -> None:
        self._lock = threading.RLock()


_KEPT = ".packed", ".program", ".digests"
"""Ends of the names of files that stay until there is no room."""


def _what(key: PackedKey) -> str:
    """What a file holds, for messages."""
    return "compiled program" if is_program(key) else "packed weight"


def _verb(key: PackedKey) -> str:
    return "compiled" if is_program(key) else "packed"


def _note_use(path: Path) -> None:
    """Set the time of reading, by which files are evicted; that of writing stays, by which they are known."""
    about = path.stat()
    os.utime(path, ns=(time.time_ns(), about.st_mtime_ns))


def _is_ours_alone(folder: Path) -> bool:
    """Whether no other user may write to a folder, and so cut its files short."""
    about = folder.stat()
    return about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _open_lock(path: Path) -> int:
    """A descriptor of the lock, for reading, so that another user's will do; made if need be, for all to read.

    An existing one is opened without O_CREAT, which systems refuse for files of others in folders as /tmp is.
    """
    while True:
        try:
            return open_regular(path, os.O_NOFOLLOW)
        except FileNotFoundError:
            with suppress(FileExistsError):
                descriptor = open_regular(path, os.O_CREAT | os.O_EXCL)
                os.fchmod(descriptor, 0o644)
                return descriptor


def _remove_if_orphaned(path: Path) -> None:
    """Remove a file that no living process is writing: then its lock is free."""
    with suppress(OSError), os.fdopen(open_regular(path, os.O_NOFOLLOW), "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink()
