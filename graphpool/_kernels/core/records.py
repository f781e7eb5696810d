"""C structs as Python writes them: the parameter blocks of kernels."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["Record"]

_CODES = {"i4": ("i", 4), "u4": ("I", 4), "i8": ("q", 8), "u8": ("Q", 8), "f4": ("f", 4), "f8": ("d", 8)}
"""Type of a number -> its letter for `struct`, and its size, which is its alignment too."""

_MOST_F4 = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]


class Record:
    """A C struct with the alignment that compilers give it.

    Parameters
    ----------
    fields : sequence of (name, type) or (name, type, size or sizes)
        In order. A type is ``"i4"``, ``"u4"``, ``"i8"``, ``"u8"``, ``"f4"``, ``"f8"`` or another record; arrays of
        numbers have one axis or two.

    Attributes
    ----------
    nbytes : int
        Unit: bytes.

    Notes
    -----
    Immutable; usable from any thread. Cost: about 0.1 us a field.

    Examples
    --------
    >>> from graphpool._kernels.core.records import Record
    >>> Record([("n", "i4"), ("sizes", "i4", 3)]).pack({"n": 1, "sizes": [2]}).hex()
    '01000000020000000000000000000000'
    """

    def __init__(self, fields: Sequence[tuple[Any, ...]]) -> None:
        self._slots: dict[str, tuple[int, tuple[int, ...]]] = {}
        self._zeros: list[Any] = []
        letters, self.nbytes, self._alignment = "<", 0, 1
        for name, kind, *sizes in fields:
            shape = (sizes[0],) if sizes and isinstance(sizes[0], int) else tuple(*sizes)
            letter, nbytes, alignment = _describe(kind)
            count, gap = math.prod(shape), -self.nbytes % alignment
            self._slots[name] = len(self._zeros), shape
            self._zeros += [bytes(nbytes) if isinstance(kind, Record) else 0] * count
            letters += f"{gap}x" + letter * count
            self.nbytes += gap + nbytes * count
            self._alignment = max(self._alignment, alignment)
        end = -self.nbytes % self._alignment
        self.nbytes += end
        self._struct = struct.Struct(f"{letters}{end}x")

    def pack(self, values: Mapping[str, Any]) -> bytes:
        """The struct with these values; what is missing is zero, also at the end of an array.

        Parameters
        ----------
        values : mapping of str to number, bytes, sequence of numbers or sequence of sequences
            By field: bytes for a record, sequences for arrays. Floats beyond the range of f32 become infinite.

        Raises
        ------
        KeyError, ValueError
            There is no such field; it has no room for so many numbers.
        """
        flat = self._zeros.copy()
        for name, value in values.items():
            start, shape = self._slots[name]
            if not shape:
                flat[start] = value
                continue
            rows, pitch = ([value], shape[0]) if len(shape) == 1 else (value, shape[1])
            for k, row in enumerate(rows):
                if len(row) > pitch or k * pitch >= math.prod(shape):
                    raise ValueError(f"{name}: {len(row)} numbers in row {k}, and {shape} have room")
                flat[start + k * pitch : start + k * pitch + len(row)] = row
        return self.pack_rows([flat])

    def pack_rows(self, rows: Sequence[Sequence[Any]]) -> bytes:
        """Structs one behind the other, each from all its numbers in order; floats as in `pack`."""
        try:
            return b"".join([self._struct.pack(*row) for row in rows])
        except OverflowError:
            return b"".join([self._struct.pack(*map(_as_f4, row)) for row in rows])


def _describe(kind: str | Record) -> tuple[str, int, int]:
    """Letters for `struct`, size and alignment of a field."""
    if isinstance(kind, Record):
        return f"{kind.nbytes}s", kind.nbytes, kind._alignment
    letter, nbytes = _CODES[kind]
    return letter, nbytes, nbytes


def _as_f4(value: Any) -> Any:
    """A float as f32 has it, infinite where it has none."""
    is_beyond = isinstance(value, float) and abs(value) > _MOST_F4
    return math.copysign(math.inf, value) if is_beyond else value
