"""The file of what a mapped file's parts are named by, so that other processes need not read them.

    0      magic, 8 bytes
    8      digest of the rest
    24     length of the text, 4 bytes, little-endian
    28     text: what the system tells of the mapped file
    ...    of each part offset and size in bytes, 8 bytes each, little-endian, and the digest of its content, 16 bytes

A file is trusted only if it begins as that of this mapped file does and its digest is right.
"""

from __future__ import annotations

import os
import struct
from typing import TYPE_CHECKING

from ..mapped_file import open_regular
from ._packed_file import DamagedFileError
from .identity import DIGEST_NBYTES, digest_of_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Identity = tuple[str | int, ...]
    Digests = Mapping[tuple[int, int], bytes]

_MAGIC = b"GPDIGS\x00\x02"
_PART = struct.Struct(f"<QQ{DIGEST_NBYTES}s")
_MOST_NBYTES = 64 << 20
"""Beyond any file of this kind: one for each of two million parts."""


def digests_name(identity: Identity) -> str:
    """A name for a mapped file, the same in every process of a machine."""
    return digest_of_text(repr(identity).encode()).hex() + ".digests"


def encode_digests(identity: Identity, digests: Digests) -> bytes:
    """The file's bytes."""
    rest = _beginning(identity) + b"".join(_PART.pack(*place, digest) for place, digest in digests.items())
    return _MAGIC + digest_of_text(rest) + rest


def read_digests(path: Path, identity: Identity) -> dict[tuple[int, int], bytes]:
    """The digests in a file.

    Raises DamagedFileError where something is not as it should be, OSError where it is not there or cannot be read; a
    symbolic link is not followed.
    """
    with os.fdopen(open_regular(path, os.O_NOFOLLOW), "rb") as file:
        data = file.read(_MOST_NBYTES + 1)
    begin = len(_MAGIC) + DIGEST_NBYTES
    start = _beginning(identity)
    parts = data[begin + len(start) :]
    is_whole = len(data) <= _MOST_NBYTES and data[:begin] == _MAGIC + digest_of_text(data[begin:])
    if not is_whole or not data.startswith(start, begin) or len(parts) % _PART.size:
        raise DamagedFileError("it does not hold digests of the file that its name says")
    return {(offset, nbytes): digest for offset, nbytes, digest in _PART.iter_unpack(parts)}


def _beginning(identity: Identity) -> bytes:
    """What the digests follow."""
    text = repr(identity).encode()
    return len(text).to_bytes(4, "little") + text
