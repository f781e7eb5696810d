"""The note of which files of a store were read whole and found undamaged, so that other processes need not read them.

The file holds digests of 16 bytes, one behind the other: of each file's name and what the system told of it when it was
checked. What a killed writer left of a digest, and what was cut off, equals none.
"""

from __future__ import annotations

import os
import stat
import threading
from typing import TYPE_CHECKING

from ..fork import reset_in_child
from ..mapped_file import open_regular
from .identity import DIGEST_NBYTES, digest_of_text

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CheckedFiles"]

_MOST_NBYTES = 1 << 20
"""Beyond which the note is begun anew: it has those of files that are gone."""


class CheckedFiles:
    """What the note at a path says, read once.

    Threads: safe, between processes too: a digest is added by one write behind all others.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._digests: set[bytes] | None = None
        self._reset_in_child()
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        self._lock = threading.Lock()

    def has(self, identity: tuple[str | int, ...]) -> bool:
        """Whether a file of this identity was checked."""
        with self._lock:
            if self._digests is None:
                self._digests = _read(self._path)
            return _digest(identity) in self._digests

    def add(self, identity: tuple[str | int, ...]) -> None:
        """Say that the file of this identity was checked. Raises OSError where the system refuses."""
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(self._path, flags, 0o644)
        try:
            nbytes = _own_nbytes(descriptor)
            if nbytes is not None:
                if nbytes >= _MOST_NBYTES or nbytes % DIGEST_NBYTES:
                    os.ftruncate(descriptor, 0)
                os.write(descriptor, _digest(identity))
        finally:
            os.close(descriptor)


def _read(path: Path) -> set[bytes]:
    """The digests in the note; none where it cannot be read, or another user has written it."""
    try:
        descriptor = open_regular(path, os.O_NOFOLLOW)
    except OSError:
        return set()
    with os.fdopen(descriptor, "rb") as file:
        data = b"" if _own_nbytes(descriptor) is None else file.read(_MOST_NBYTES + DIGEST_NBYTES)
    return {data[at : at + DIGEST_NBYTES] for at in range(0, len(data), DIGEST_NBYTES)}


def _own_nbytes(descriptor: int) -> int | None:
    """The size of a regular file of this user that no other may write to; None of another one."""
    about = os.fstat(descriptor)
    is_own = about.st_uid == os.geteuid() and not about.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    return about.st_size if is_own and stat.S_ISREG(about.st_mode) else None


def _digest(identity: tuple[str | int, ...]) -> bytes:
    return digest_of_text(repr(identity).encode())
