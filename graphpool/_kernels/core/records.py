"""What the text of the C sources says to Python: structs such as parameter blocks, enumerations, numbers."""

from __future__ import annotations

import math
import struct
from functools import cache
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass
from graphpool._sizes import Real, Size, hint_of
from graphpool.fork import cached_property

from ._dispatch import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    Patch = tuple[int, str, Size | Real]

__all__ = ["Block", "Record", "enumeration", "join_blocks", "number", "record"]

_NUMBERS = {
    "int32_t": ("i", 4), "uint32_t": ("I", 4), "int64_t": ("q", 8), "uint64_t": ("Q", 8), "float": ("f", 4),
    "double": ("d", 8),
}  # fmt: skip
"""Type of a number -> its letter for `struct`, and its size, which is its alignment too."""

_MOST_F32 = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]


@dataclass(frozen=True, slots=True)
class Block:
    """The bytes of a struct of which some numbers vary.

    Attributes
    ----------
    data : bytes
        With the values that the numbers have now.
    patches : tuple of (int, str, Size or Real)
        Of each number that varies its offset in bytes, its letter for `struct`, and what it is.
    """

    data: bytes
    patches: tuple[Patch, ...]

    def __add__(self, other: bytes | Block) -> Any:
        return join_blocks([self, other])

    def __radd__(self, other: bytes) -> Any:
        return join_blocks([other, self])

    def __len__(self) -> int:
        return len(self.data)


_VARYING = frozenset({Size, Real, Block})
"""Types of what may be another number for other sizes."""


def join_blocks(blocks: Iterable[bytes | Block]) -> Any:
    """Blocks one behind the other: bytes where nothing varies, else a `Block`."""
    parts: list[bytes] = []
    patches: list[Patch] = []
    end = 0
    for block in blocks:
        if isinstance(block, Block):
            patches += [(end + offset, letter, size) for offset, letter, size in block.patches]
            block = block.data
        parts.append(block)
        end += len(block)
    data = b"".join(parts)
    return Block(data, tuple(patches)) if patches else data


class Record:
    """A C struct with the alignment that compilers give it; immutable. Cost: about 0.1 us a field.

    `fields` are what C declares: numbers, arrays of numbers with one axis or two, and structs that `record` knows.

    >>> from graphpool._kernels.core.records import Record
    >>> Record("int32_t n, sizes[3];").pack({"n": 1, "sizes": [2]}).hex()
    '01000000020000000000000000000000'
    """

    def __init__(self, fields: str) -> None:
        self._slots: dict[str, tuple[int, tuple[int, ...], int, Record | None]] = {}  # first number, shape, numbers
        self._zeros: list[Any] = []
        self._runs: list[tuple[int, int, str, int]] = []  # of each field its offset, size of a number, letter, numbers
        letters, self.nbytes, self._alignment = "<", 0, 1
        for kind, name, shape in _declared(fields):
            inner = None if kind in _NUMBERS else record(kind)
            letter, nbytes = (f"{inner.nbytes}s", inner.nbytes) if inner else _NUMBERS[kind]
            alignment = inner._alignment if inner else nbytes
            count, gap = math.prod(shape), -self.nbytes % alignment
            self._slots[name] = len(self._zeros), shape, count, inner
            self._zeros += [bytes(nbytes) if inner else 0] * count
            letters += f"{gap}x" + letter * count
            self._runs.append((self.nbytes + gap, nbytes, letter[-1], count))
            self.nbytes += gap + nbytes * count
            self._alignment = max(self._alignment, alignment)
        end = -self.nbytes % self._alignment
        self.nbytes += end
        self._struct = struct.Struct(f"{letters}{end}x")

    @cached_property
    def _places(self) -> list[tuple[int, str]]:
        """Of each number its offset and letter; few records have numbers that vary."""
        return [(start + k * nbytes, letter) for start, nbytes, letter, count in self._runs for k in range(count)]

    def pack(self, values: Mapping[str, Any]) -> Any:
        """The struct with these values as bytes, a `Block` where some vary; what is missing is zero, also in arrays.

        By field: mappings for structs, sequences for arrays. Floats beyond the range of f32 become infinite. KeyError:
        there is no such field; ValueError: it has no room for so many numbers.
        """
        flat = self._zeros.copy()
        for name, value in values.items():
            start, shape, count, inner = self._slots[name]
            if not shape:
                flat[start] = value if inner is None else inner.pack(value)
                continue
            pitch, end = shape[-1], start + count
            for row in value if len(shape) > 1 else (value,):
                if len(row) > pitch or start >= end:
                    raise ValueError(f"{name}: {len(row)} numbers in a row, and {shape} have room")
                flat[start : start + len(row)] = row
                start += pitch
        return self._pack_row(flat)

    def pack_rows(self, rows: Sequence[Sequence[Any]]) -> Any:
        """Structs one behind the other, each from all its numbers in order; floats as in `pack`."""
        return join_blocks([self._pack_row(row) for row in rows])

    def read(self, block: bytes, name: str) -> Any:
        """The number of a field of a struct's bytes."""
        offset, letter = self._places[self._slots[name][0]]
        return struct.unpack_from(f"<{letter}", block, offset)[0]

    def place_of(self, name: str) -> int | None:
        """Where a field begins; None where there is none of that name. Unit: bytes."""
        slot = self._slots.get(name)
        return None if slot is None else self._places[slot[0]][0]

    def _pack_row(self, row: Sequence[Any]) -> bytes | Block:
        patches: list[Patch] = []
        if not _VARYING.isdisjoint(map(type, row)):
            varying = [k for k, number in enumerate(row) if type(number) in _VARYING]
            row = list(row)
            for k in varying:
                row[k] = _plain(*self._places[k], row[k], patches)
        try:
            data = self._struct.pack(*row)
        except OverflowError:
            data = self._struct.pack(*map(_as_f32, row))
        return Block(data, tuple(patches)) if patches else data


@cache
def record(name: str) -> Record:
    """The C struct of that name (``GP_RECORD``); KeyError where there is none."""
    fields, nbytes = describe(name)
    found = Record(fields)
    if found.nbytes != nbytes:
        raise AssertionError(f"{name}: struct of {nbytes} bytes, read as {found.nbytes} from {fields}")
    return found


@cache
def enumeration(name: str, prefix: str = "") -> dict[str, int]:
    """The enumerators of that name (``GP_ENUM``), in order, without the prefix and in lower case, and their numbers."""
    numbers: dict[str, int] = {}
    following = 0
    for enumerator in describe(name)[0].split(","):
        word, _, value = enumerator.partition("=")
        numbers[word.strip().removeprefix(prefix).lower()] = following = int(value or following)
        following += 1
    return numbers


@cache
def number(name: str) -> int:
    """The value of the macro of that name (``GP_NUMBER``)."""
    return int(describe(name)[0])


def _declared(fields: str) -> list[tuple[str, str, tuple[int, ...]]]:
    """Type, name and sizes of each field of a C struct."""
    found = []
    for declaration in fields.strip("{} ").split(";")[:-1]:
        kind, declarators = declaration.split(maxsplit=1)
        for declarator in declarators.split(","):
            name, *sizes = declarator.replace("]", "").split("[")
            found.append((kind, name.strip(), tuple(map(int, sizes))))
    return found


def _plain(place: int, letter: str, number: Any, patches: list[Patch]) -> Any:
    """A number as it is now; `patches` is extended if it varies."""
    if type(number) is Block:
        patches += [(place + offset, inner, size) for offset, inner, size in number.patches]
        return number.data
    if type(number) is Size or (type(number) is Real and letter in "fd"):
        patches.append((place, letter, number))
        return hint_of(number)
    return number


def _as_f32(value: Any) -> Any:
    """A float as f32 has it, infinite where it has none."""
    is_beyond = isinstance(value, float) and abs(value) > _MOST_F32
    return math.copysign(math.inf, value) if is_beyond else value
