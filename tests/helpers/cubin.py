"""What cubins say of their kernels: registers, shared memory, stack; the format is in `tests/cuda/driver/library.c`."""

from __future__ import annotations

import struct
from typing import NamedTuple

_SIZED_FORMAT = 4
_REGISTERS, _FRAME = 0x2F, 0x11


class KernelFacts(NamedTuple):
    """Of one kernel: registers of a thread, shared memory of a block, local memory of a thread. Unit: bytes."""

    registers: int
    shared_nbytes: int
    local_nbytes: int


def _sections(image: bytes) -> dict[str, tuple[int, bytes, int]]:
    """Name -> (symbol of the info field, content, size)."""
    (start,) = struct.unpack_from("<Q", image, 0x28)
    nbytes, count, names = struct.unpack_from("<HHH", image, 0x3A)
    headers = [struct.unpack_from("<IIQQQQIIQQ", image, start + nbytes * k) for k in range(count)]
    strings = headers[names][4]
    found = {}
    for name_at, kind, _, _, offset, size, _, info, _, _ in headers:
        name = image[strings + name_at : image.index(b"\0", strings + name_at)].decode()
        found[name] = info & 0xFFFFFF, b"" if kind == 8 else image[offset : offset + size], size  # 8: no content
    return found


def _attributes(content: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 0
    while at + 4 <= len(content):
        kind, attribute, value = struct.unpack_from("<BBH", content, at)
        nbytes = value if kind == _SIZED_FORMAT else 0
        found.append((attribute, content[at + 4 : at + 4 + nbytes]))
        at += 4 + nbytes
    return found


def facts_of(cubin: bytes, entry: str) -> KernelFacts:
    """What a cubin says of one of its kernels."""
    sections = _sections(cubin)
    symbol = sections[f".text.{entry}"][0]
    numbers = {_REGISTERS: 0, _FRAME: 0}
    for attribute, value in _attributes(sections[".nv.info"][1]):
        if attribute in numbers and struct.unpack_from("<I", value)[0] == symbol:
            numbers[attribute] = struct.unpack_from("<I", value, 4)[0]
    shared = sections.get(f".nv.shared.{entry}", (0, b"", 0))[2]
    return KernelFacts(numbers[_REGISTERS], shared, numbers[_FRAME])
