"""The file of one packed weight: a page that says what follows, then the bytes, for mapping.

    0      magic, 8 bytes
    8      digest of the rest of the page
    24     length of the text, 4 bytes, little-endian
    28     text: the key, the number of bytes that follow and their checksum; zeros up to the end of the page
    4096   the packed weight

A file is trusted only if its page is the one that would be written for its key and its bytes, so what a killed writer
or a failing disk left is a miss.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidArgumentError, brief, explain
from ..mapped_file import MappedFile, open_regular
from ._handle import ConstantBuffer
from ._quick import KEYS_NBYTES, Digest
from .identity import DIGEST_NBYTES, Fingerprint, PackedKey, digest_of_text

if TYPE_CHECKING:
    from pathlib import Path

    from ..typing import MemoryResource
    from ._checked_files import CheckedFiles

MAGIC = b"GPPACK\x00\x03"
HEADER_NBYTES = 4096
CHUNK_NBYTES = 8 << 20
ALIGNMENT = 64
PROGRAM = "program:"
"""Begins the layout of what is no packed weight."""


_keys = [digest_of_text(f"checksums of graphpool {k}".encode()) for k in range(-(-KEYS_NBYTES // DIGEST_NBYTES))]
checksum = Digest(b"".join(_keys)[:KEYS_NBYTES])
"""126 bits, alike in every process, that tell whether bytes, of which there are as many, were damaged."""


class DamagedFileError(Exception):
    """A file that does not hold what its name promises."""


class _StoredFile(MappedFile):
    """One whose time of reading is that of its last use, and that the store may remove at any time.

    Runs read all of it, again and again.
    """

    has_small_pages = False

    def check(self) -> None:
        """Raise `StateError` if the file was cut short."""
        if not self.is_whole:
            super().check()

    def _identify(self, about: os.stat_result) -> tuple[str | int, ...]:
        """Its name too; without the system's time of change, which each use sets."""
        *rest, _changed_ns = super()._identify(about)
        return self.path.rpartition("/")[2], *rest

    def content(self) -> None:
        """None: nothing may refer to it."""


def file_name(key: PackedKey) -> str:
    """A name for the key, the same in every process; InvalidArgumentError for what is no key."""
    is_key = isinstance(key, PackedKey) and isinstance(key.content, Fingerprint)
    if not (is_key and isinstance(key.layout, str) and isinstance(key.isa, str)):
        accepted = "a PackedKey of a fingerprint and two strings"
        raise InvalidArgumentError(explain("key of a packed weight", accepted=accepted, got=brief(key)))
    return digest_of_text(_text_of(describe_key(key))).hex() + (".program" if is_program(key) else ".packed")


def is_program(key: PackedKey) -> bool:
    """Whether a compiled program is meant, which is known by what it was made of, and no packed weight."""
    return key.layout.startswith(PROGRAM)


def describe_key(key: PackedKey) -> list[Any]:
    """What a key is, for texts."""
    content = key.content
    return [content.digest.hex(), content.dtype, list(content.shape), key.layout, key.isa]


def _text_of(described: Any) -> bytes:
    return ascii(described).encode()


def as_bytes(data: Any) -> memoryview:
    """The bytes of what is to be stored; InvalidArgumentError where they do not lie one behind the other."""
    try:
        if isinstance(data, np.ndarray) and data.flags.c_contiguous:
            data = data.reshape(-1).view(np.uint8)  # types of ml_dtypes are none of buffers
        view = memoryview(data)
        return view.cast("B") if view.nbytes else memoryview(b"")
    except (BufferError, TypeError, ValueError) as error:
        accepted, got = "a C-contiguous array or buffer", f"{type(data).__name__} ({error})"
        raise InvalidArgumentError(explain("data of a packed weight", accepted=accepted, got=got)) from error


def _header(key: PackedKey, data: memoryview) -> bytes:
    text = _text_of((describe_key(key), data.nbytes, checksum(data).hex()))
    rest = len(text).to_bytes(4, "little") + text
    if len(rest) > HEADER_NBYTES - 24:
        raise InvalidArgumentError(explain("key of a packed weight", accepted="up to 3 KiB of names", got=len(text)))
    rest = rest.ljust(HEADER_NBYTES - 24, b"\0")
    return MAGIC + digest_of_text(rest) + rest


def write_file(descriptor: int, key: PackedKey, data: memoryview) -> None:
    """Write a whole file."""
    write_all(descriptor, _header(key, data), data)


def write_all(descriptor: int, *parts: bytes | memoryview) -> None:
    """Write parts one behind the other."""
    for part in parts:
        view, start = memoryview(part), 0
        while start < view.nbytes:
            start += os.write(descriptor, view[start : start + CHUNK_NBYTES])


def map_file(path: Path, key: PackedKey, checked: CheckedFiles | None) -> ConstantBuffer:
    """The packed weight of a file, mapped read-only, after all of it was checked, unless it is one of those `checked`.

    Raises DamagedFileError where something is not as it should be, OSError where it is not there or cannot be read; a
    symbolic link is not followed.
    """
    try:
        mapped = _StoredFile(path, os.O_NOFOLLOW)
    except ValueError as error:
        raise DamagedFileError("the file is empty") from error
    whole = np.frombuffer(mapped, np.uint8)
    blob = whole[HEADER_NBYTES:]
    if checked is None or not blob.nbytes or not checked.has(mapped.identity):
        _check_header(whole[:HEADER_NBYTES].tobytes(), key, blob.data)
        if checked is not None and mapped.is_settled:
            with suppress(OSError):  # the next process checks it again
                checked.add(mapped.identity)
    buffer = ConstantBuffer(blob.ctypes.data, blob.nbytes, owner=mapped)
    buffer.freeze()
    return buffer


def copy_file(path: Path, key: PackedKey, resource: MemoryResource | None, most_nbytes: float) -> ConstantBuffer:
    """The packed weight of a file, of so many bytes at most, in memory of a resource, or of Python's without one.

    Raises as `map_file`, and OutOfMemoryError.
    """
    with os.fdopen(open_regular(path, os.O_NOFOLLOW), "rb", buffering=0) as file:
        nbytes = max(os.fstat(file.fileno()).st_size - HEADER_NBYTES, 0)
        if nbytes > most_nbytes:
            raise DamagedFileError(f"it has {nbytes} bytes")
        page = file.read(HEADER_NBYTES)
        buffer = _allocate(nbytes) if resource is None else ConstantBuffer.allocate(resource, nbytes, ALIGNMENT)
        content, at = memoryview(buffer), 0
        while at < nbytes and (count := file.readinto(content[at : at + CHUNK_NBYTES])):
            at += count
    _check_header(page, key, content)
    buffer.freeze()
    return buffer


def _allocate(nbytes: int) -> ConstantBuffer:
    room = np.empty(nbytes + ALIGNMENT, np.uint8)
    return ConstantBuffer(-(-room.ctypes.data // ALIGNMENT) * ALIGNMENT, nbytes, owner=room)


def _check_header(page: bytes, key: PackedKey, content: Any) -> None:
    """Check a first page against the one that the content would have: so nothing in it is ever parsed."""
    if page != _header(key, content):
        raise DamagedFileError(f"it does not hold all of {key.layout} for {key.isa}")
