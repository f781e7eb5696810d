"""Files mapped for reading, which say so when somebody has changed them in place; files named by their content.

The pages of a mapped file are the file's: where it was cut short they cannot be read (SIGBUS), and what was written
into it is read instead of what was there. A file that is replaced by renaming another one stays whole for those who
have it mapped. Imports only errors, so every package may use it.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
import time
from contextlib import suppress
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar

from graphpool._dataclasses import NamedTuple

from .errors import InvalidArgumentError, StateError, brief, explain

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

MAPPINGS = ("map", "copy")
"""Whether a file is mapped or read."""


def check_mapping(mapping: object) -> str:
    """One of `MAPPINGS`, or `InvalidArgumentError`."""
    if not isinstance(mapping, str) or mapping not in MAPPINGS:
        raise InvalidArgumentError(explain("mapping", accepted=", ".join(MAPPINGS), got=brief(mapping)))
    return mapping


def open_regular(path: str | Path, flags: int = 0) -> int:
    """A descriptor for reading a regular file; never waits for the writer of a pipe.

    `flags` are further ones of `os.open`. Raises OSError where it cannot be opened, or is a folder, a pipe, a socket or
    a device.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | flags, 0o644)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return descriptor


class ReadMapping(mmap.mmap):
    """Memory mapped for reading, and digests of parts of it by offset and size in bytes.

    `known` are those that came with the mapping, by which contents are named in caches; `taken` those taken since, as
    names must not change. `address` is that of its first byte, for whoever asked before.
    """

    known: dict[tuple[int, int], bytes]
    taken: dict[tuple[int, int], bytes]
    address: int | None

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:
        """Map as `mmap.mmap` does."""
        self = super().__new__(cls, *args, **kwargs)
        self.known, self.taken, self.address = {}, {}, None
        return self


class MappedFile(ReadMapping):
    """A whole file, mapped for reading; `path` and `flags` as for `open_regular`.

    With `has_small_pages` the system brings in what lies around a page that is read, 64 KiB, and not 2 MiB where its
    cache has the file in such pieces: most weights of a file are packed, and a bias of a few bytes is all that is read.

    Raises OSError as that does, ValueError for an empty file. Ownership: arrays over it keep it alive. Threads: safe.
    Cost of a check: two system calls.
    """

    has_small_pages: ClassVar[bool] = True
    path: str
    _known: os.stat_result
    _opened_ns: int
    _content: FileContent | None

    def __new__(cls, path: str | Path, flags: int = 0) -> Self:
        """Map the file, and remember what it was."""
        descriptor, opened_ns = open_regular(path, flags), time.time_ns()
        try:
            known = os.fstat(descriptor)
            self = super().__new__(cls, descriptor, known.st_size, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        if cls.has_small_pages and hasattr(mmap, "MADV_NOHUGEPAGE"):
            with suppress(OSError):  # a system that never has larger ones
                self.madvise(mmap.MADV_NOHUGEPAGE)
        name = os.fspath(path)  # no Path: pathlib takes 4 ms of a worker's start
        self.path = name if name.startswith("/") else f"{os.getcwd()}/{name}"  # noqa: PTH109
        self._known, self._opened_ns, self._content = known, opened_ns, None
        return self

    @property
    def is_whole(self) -> bool:
        """Whether the file has the size that it had, so that every page can be read."""
        return self.size() == self._known.st_size

    def check(self) -> None:
        """Raise `StateError` if the file was changed in place; a file that was removed or replaced stays as it was."""
        known = self._known
        now = _stat(self.path) or known
        is_same = (now.st_dev, now.st_ino) == (known.st_dev, known.st_ino)
        if not self.is_whole or (is_same and now.st_mtime_ns != known.st_mtime_ns):
            raise StateError(
                explain(
                    f"file {self.path!r} was changed in place while it is mapped",
                    accepted=f"the {known.st_size} bytes that were there",
                    got=f"{self.size()} bytes",
                    hint='load it again, and replace files by renaming new ones; mapping="copy" reads instead',
                )
            )

    @property
    def identity(self) -> tuple[str | int, ...]:
        """What the system of this machine told of the file when it was mapped; the last time of change stands last.

        A file of which `is_settled` was true then, and which has this identity, has the content that it had.
        """
        return self._identify(self._known)

    def _identify(self, about: os.stat_result) -> tuple[str | int, ...]:
        return _identity(about)

    @property
    def is_settled(self) -> bool:
        """Whether the file is as it was when it was mapped, and had not been written just before.

        One that was written a moment ago may be written again without another time of change.
        """
        now, identity = _stat(self.path), self.identity
        is_old = self._opened_ns - int(identity[-1]) > _SETTLED_NS
        return is_old and now is not None and self._identify(now) == identity

    def content(self) -> FileContent | None:
        """What the file is called and holds, for other processes; None if another one has its name, or none.

        Cost: the first call reads the whole file, and so does one after the file was touched.
        """
        started_ns, now = time.time_ns(), _stat(self.path)
        if now is None or (now.st_dev, now.st_ino) != (self._known.st_dev, self._known.st_ino):
            return None
        identity = _identity(now)
        if self._content is None or self._content.identity != identity:
            digest = self._digest()
            # a file that was written a moment ago may be written again without another time of change
            is_settled = started_ns - now.st_ctime_ns > _SETTLED_NS and _stat(self.path) == now
            self._content = FileContent(self.path, len(self), digest, identity if is_settled else None)
        return self._content

    def _digest(self) -> bytes:
        import hashlib

        digest = hashlib.sha256(self).digest()
        self.madvise(mmap.MADV_DONTNEED)  # all of it is in memory now, and few will read all of it
        return digest


_SETTLED_NS = 2 * 10**9


class FileContent(NamedTuple):
    """A file by path and content.

    `nbytes` and `digest` (SHA-256) are those of all of it. `identity` is what the system of the machine that took the
    digest told of the file then: where it tells the same now, the content is the same and need not be read. It is None
    for a file that was written just before.
    """

    path: str
    nbytes: int
    digest: bytes
    identity: tuple[str | int, ...] | None

    def open(self) -> MappedFile:
        """The file, mapped, if it has this content.

        Raises StateError where it was changed, OSError where it is not there or cannot be read. Cost: a read of the
        whole file, unless the system says that nobody has written it since the digest was taken.
        """
        try:
            mapped = MappedFile(self.path)
        except ValueError:
            raise self._changed("0 bytes") from None
        if len(mapped) != self.nbytes:
            raise self._changed(f"{len(mapped)} bytes")
        if self.identity is None or self.identity != _identity(mapped._known):
            digest = mapped._digest()
            if digest != self.digest:
                raise self._changed(f"{len(mapped)} bytes with digest {digest.hex()[:16]}...")
        return mapped

    def _changed(self, got: str) -> StateError:
        return StateError(
            explain(
                f"file {self.path!r} was changed since the model that reads it was pickled or shared",
                accepted=f"{self.nbytes} bytes with digest {self.digest.hex()[:16]}...",
                got=got,
                hint="put the file back, or load the model again and pickle or share that",
            )
        )


def _stat(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116
    except OSError:
        return None


def _identity(about: os.stat_result) -> tuple[str | int, ...]:
    """What differs between files, and between times at which one was written, on one machine since it was started.

    The time of change, which writing sets, is the system's: users cannot set it.
    """
    return _boot_id(), about.st_dev, about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


_BOOT_ID = "/proc/sys/kernel/random/boot_id"


def can_identify() -> bool:
    """Whether the system tells enough of files for other processes to know them by what it tells."""
    return os.access(_BOOT_ID, os.R_OK)


@cache
def _boot_id() -> str:
    try:
        descriptor = open_regular(_BOOT_ID)
        try:
            return os.read(descriptor, 64).decode().strip()
        finally:
            os.close(descriptor)
    except OSError:  # no Linux: a name of this process alone
        return str(time.time_ns())
