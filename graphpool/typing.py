"""Data types, layouts, properties and the protocols that join the packages.

Nothing here imports anything of graphpool but `errors`, so every package may use it.
"""

from __future__ import annotations

import re
from enum import StrEnum
from numbers import Integral
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np

from .errors import InvalidDataTypeError, UnsupportedError, brief, explain
from .fork import cached_property

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "MAX_NDIM",
    "UNKNOWN_DIM",
    "DataType",
    "LayoutType",
    "MemoryResource",
    "PropertyType",
    "dense_strides",
    "parse_nbytes",
]

UNKNOWN_DIM = -(2**63)
"""A dimension that is not known yet (oneDNN: INT64_MIN)."""

MAX_NDIM = 12
"""Highest rank of a tensor (oneDNN's limit)."""

_BITS = {
    "f64": 64, "f32": 32, "f16": 16, "bf16": 16, "f8_e5m2": 8, "f8_e4m3": 8,
    "s64": 64, "s32": 32, "s16": 16, "s8": 8, "s4": 4, "u64": 64, "u32": 32, "u16": 16, "u8": 8, "u4": 4,
    "boolean": 8, "undef": 0,
}  # fmt: skip
_NUMPY_NAMES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "s64": "int64", "s32": "int32", "s16": "int16",
    "s8": "int8", "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "boolean": "bool",
}  # fmt: skip
_ML_DTYPES_NAMES = {
    "bf16": "bfloat16", "f8_e5m2": "float8_e5m2", "f8_e4m3": "float8_e4m3fn", "s4": "int4", "u4": "uint4",
}  # fmt: skip


class DataType(StrEnum):
    """Element type of a tensor, spelt as oneDNN spells it; a member equals its string (``DataType.F32 == "f32"``)."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    F8_E5M2 = "f8_e5m2"
    F8_E4M3 = "f8_e4m3"
    S64 = "s64"
    S32 = "s32"
    S16 = "s16"
    S8 = "s8"
    S4 = "s4"
    U64 = "u64"
    U32 = "u32"
    U16 = "u16"
    U8 = "u8"
    U4 = "u4"
    BOOLEAN = "boolean"
    UNDEF = "undef"

    @cached_property
    def bits(self) -> int:
        """Bits an element takes in a graphpool buffer; 4-bit types are packed two to a byte, low nibble first."""
        return _BITS[self.value]

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype of an array of this type (one byte per element for 4-bit types, as ml_dtypes has it).

        Raises
        ------
        UnsupportedError
            The type needs ml_dtypes, which is not installed.
        """
        if self.value in _NUMPY_NAMES:
            return np.dtype(_NUMPY_NAMES[self.value])
        if self.value not in _ML_DTYPES_NAMES:
            raise InvalidDataTypeError(explain(f"data type {self.value} has no elements", accepted="a typed tensor"))
        try:
            import ml_dtypes
        except ImportError as error:
            hint = "install the extra graphpool[dtypes]"
            raise UnsupportedError(explain(f"data type {self.value} needs ml_dtypes", hint=hint)) from error
        dtype: np.dtype[Any] = np.dtype(getattr(ml_dtypes, _ML_DTYPES_NAMES[self.value]))
        return dtype

    def nbytes(self, count: int) -> int:
        """Bytes that `count` elements take: 4-bit types are rounded up to whole bytes."""
        return (count * self.bits + 7) // 8

    @classmethod
    def parse(cls, value: object) -> DataType:
        """The member for a member, its string, a NumPy dtype or scalar type, or the dtype's name such as ``"float32"``.

        Short codes that NumPy has for its types are refused: ``"u8"`` is a type of 8 bits here.

        Raises
        ------
        InvalidDataTypeError
            `value` names no type.
        """
        found = _BY_VALUE.get(value) or _BY_NUMPY_NAME.get(value) if isinstance(value, str) else None
        if found is None and value is not None and not isinstance(value, str):
            try:
                dtype: np.dtype[Any] = np.dtype(value)  # type: ignore[call-overload]
                found = _BY_NUMPY.get(dtype) or _BY_NUMPY_NAME.get(dtype.name)
            except (TypeError, ValueError, RecursionError):
                pass
        if found is None:
            raise InvalidDataTypeError(
                explain(f"unknown data type {brief(value)}", accepted=f"{', '.join(_BY_VALUE)}, or a NumPy dtype"),
                dtype=value,
            )
        return found


_BY_VALUE = {member.value: member for member in DataType}


_BY_NUMPY = {np.dtype(name): DataType(key) for key, name in _NUMPY_NAMES.items()}
_BY_NUMPY_NAME = {name: DataType(key) for key, name in (_NUMPY_NAMES | _ML_DTYPES_NAMES).items()}
"""For types of another byte order and of ml_dtypes, which need not be there; NumPy takes microseconds for a name."""


class LayoutType(StrEnum):
    """How the elements of a tensor lie in memory."""

    UNDEF = "undef"
    ANY = "any"
    STRIDED = "strided"
    OPAQUE = "opaque"


class PropertyType(StrEnum):
    """What a tensor's content does between executions."""

    UNDEF = "undef"
    VARIABLE = "variable"
    CONSTANT = "constant"
    HOST_SCALAR = "host_scalar"


@runtime_checkable
class MemoryResource(Protocol):
    """A source of memory. Implementations are safe to call from any thread.

    ``allocate`` returns an address, aligned to `alignment` (a power of two), of at least `nbytes` bytes, or raises
    `OutOfMemoryError` and changes nothing. ``deallocate`` takes back exactly what ``allocate`` gave. `stream` orders
    the call on devices that need it; host resources ignore it.

    A finaliser may call ``deallocate`` at any moment, also in the middle of another call of the same thread: locks must
    be re-entrant (`threading.RLock`). Without a GIL this happens often, since what another thread has let go of is
    collected by the thread that made it.
    """

    def allocate(self, nbytes: int, alignment: int = 64, stream: object = None) -> int:
        """Return the address of at least `nbytes` bytes.

        Parameters
        ----------
        nbytes : int
            Unit: bytes.
        alignment : int, default=64
            A power of two. Unit: bytes.
        stream : object, optional
            Orders the call on devices that need it.

        Returns
        -------
        address : int

        Raises
        ------
        OutOfMemoryError
            There is no such memory; nothing is changed.
        """
        ...

    def deallocate(self, address: int, nbytes: int, alignment: int = 64, stream: object = None) -> None:
        """Take back what `allocate` returned.

        Parameters
        ----------
        address : int
        nbytes, alignment : int
            As they were asked for. Unit: bytes.
        stream : object, optional
            As for `allocate`.
        """
        ...


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides of `shape`. Unit: elements."""
    strides, step = [], 1
    for dim in reversed(shape):
        strides.append(step)
        step *= dim or 1
    return tuple(reversed(strides))


_UNITS = {"": 1, "B": 1} | {
    prefix + unit: base**power
    for power, prefix in enumerate("KMGT", 1)
    for unit, base in (("", 1000), ("B", 1000), ("I", 1024), ("IB", 1024))
}


def parse_nbytes(value: int | str, *, whole_nbytes: int | None = None, auto: bool = False) -> int:
    """A size in bytes from an integer, NumPy's too, or a string such as ``"512MiB"``, ``"300M"``, ``"1.5 GB"``.

    With `whole_nbytes` a share of so much is accepted too, such as ``"60%"``; `auto` says that the caller understands
    ``"auto"``, for the message, and no share above 100%.

    Raises
    ------
    InvalidArgumentError
        Not a size, or negative.
    """
    from .errors import InvalidArgumentError

    if isinstance(value, Integral) and not isinstance(value, bool) and value >= 0:
        return int(value)
    if isinstance(value, str):
        text = value.strip().upper()
        digits = text.rstrip("BGIKMT% ")
        unit = text[len(digits) :].strip()
        units = _UNITS if whole_nbytes is None else _UNITS | {"%": whole_nbytes / 100}
        is_number = len(digits) < 32 and re.fullmatch(r"[0-9]+\.?[0-9]*|\.[0-9]+", digits)
        if unit in units and is_number and not (auto and unit == "%" and float(digits) > 100):
            return int(float(digits) * units[unit])
    shares = (
        ', "auto", or a share up to 100%, as "60%"' if auto else ', or a share such as "50%"' if whole_nbytes else ""
    )
    raise InvalidArgumentError(
        explain(
            "not a size", accepted=f'bytes as an int, or a string such as "512MiB" or "2GB"{shares}', got=brief(value)
        )
    )
