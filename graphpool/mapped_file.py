"""Files mapped for reading, which say so when somebody has changed them in place.

The pages of a mapped file are the file's: where it was cut short they cannot be read (SIGBUS), and what was written
into it is read instead of what was there. A file that is replaced by renaming another one stays whole for those who
have it mapped. Imports only errors, so every package may use it.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from .errors import InvalidArgumentError, StateError, explain

if TYPE_CHECKING:
    from typing import Self

MAPPINGS = ("map", "copy")
"""Whether a file is mapped or read."""


def check_mapping(mapping: object) -> str:
    """One of `MAPPINGS`, or `InvalidArgumentError`."""
    if not isinstance(mapping, str) or mapping not in MAPPINGS:
        raise InvalidArgumentError(explain("mapping", accepted=", ".join(MAPPINGS), got=repr(mapping)))
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


class MappedFile(mmap.mmap):
    """A whole file, mapped for reading; `path` and `flags` as for `open_regular`.

    Raises OSError as that does, ValueError for an empty file. Ownership: arrays over it keep it alive. Threads: safe.
    Cost of a check: two system calls.
    """

    path: str | Path
    _known: os.stat_result

    def __new__(cls, path: str | Path, flags: int = 0) -> Self:
        """Map the file, and remember what it was."""
        descriptor = open_regular(path, flags)
        try:
            known = os.fstat(descriptor)
            self = super().__new__(cls, descriptor, known.st_size, access=mmap.ACCESS_READ)
        finally:
            os.close(descriptor)
        self.path, self._known = path, known
        return self

    @property
    def is_whole(self) -> bool:
        """Whether the file has the size that it had, so that every page can be read."""
        return self.size() == self._known.st_size

    def check(self) -> None:
        """Raise `StateError` if the file was changed in place; a file that was removed or replaced stays as it was."""
        known = self._known
        try:
            now = Path(self.path).stat()
        except OSError:
            now = known
        is_same = (now.st_dev, now.st_ino) == (known.st_dev, known.st_ino)
        if not self.is_whole or (is_same and now.st_mtime_ns != known.st_mtime_ns):
            raise StateError(
                explain(
                    f"file {str(self.path)!r} was changed in place while it is mapped",
                    accepted=f"the {known.st_size} bytes that were there",
                    got=f"{self.size()} bytes",
                    hint='load it again, and replace files by renaming new ones; mapping="copy" reads instead',
                )
            )
