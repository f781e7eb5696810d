"""What of constants lies in memory, and how their elements are read from there.

Most are dense arrays. Those of 4-bit elements lie as files have them (`Nibbles`), and a large array of which all
elements are one number, as ``ConstantOfShape`` gives it, has that number alone, at strides of 0, which kernels read.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import NamedTuple
from graphpool.errors import InvalidDataTypeError
from graphpool.typing import DataType

from .nibbles import Nibbles

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

__all__ = ["Reading", "content_key", "filled", "is_one_number", "memory_of", "read_as", "reading_of"]

_LARGE_NBYTES = 2**16
"""Smaller arrays are dense: kernels take vectors whose elements follow one another, and would copy others."""


class Reading(NamedTuple):
    """How the elements of a constant are read: of 4 bits each if there is a `data_type`, else one number for all."""

    data_type: DataType | None
    shape: tuple[int, ...]


def is_one_number(value: Any) -> bool:
    """Whether a constant stays one number: all elements lie in one place, and would else take much memory."""
    if not isinstance(value, np.ndarray) or value.nbytes <= _LARGE_NBYTES or any(value.strides):
        return False
    return _lies_in_buffers(value.dtype)


def _lies_in_buffers(dtype: np.dtype[Any]) -> bool:
    """Whether elements of a NumPy type lie in buffers as they do in arrays."""
    try:
        return dtype.isnative and DataType.parse(dtype).bits >= 8
    except InvalidDataTypeError:
        return False


def filled(shape: Sequence[int], number: Any) -> np.ndarray[Any, Any]:
    """An array of one number, for reading: where it is large, one that stays so."""
    if prod(shape) * number.itemsize <= _LARGE_NBYTES:
        return np.full(shape, number, number.dtype)
    return np.broadcast_to(number, shape)


def memory_of(value: Any) -> Any:
    """What has the elements of a constant in memory: bytes, or one number, as an array; else the constant itself."""
    if isinstance(value, Nibbles):
        return value.raw
    if is_one_number(value):
        return value[(slice(1),) * value.ndim]
    return value


def content_key(value: Any) -> Hashable:
    """Equal for constants that lie in one memory, while both are alive: importers view a weight anew for each form."""
    memory = memory_of(value)
    if isinstance(memory, np.ndarray) and memory.nbytes and not memory.dtype.hasobject:
        return memory.__array_interface__["data"][0], memory.nbytes
    return id(value)


def reading_of(value: Any) -> Reading | None:
    """How `read_as` makes the constant of `memory_of` it again; None for one that is its own memory."""
    if isinstance(value, Nibbles):
        return Reading(value.data_type, value.shape)
    return Reading(None, value.shape) if is_one_number(value) else None


def read_as(memory: np.ndarray[Any, Any], reading: Reading | None) -> Any:
    """The constant that lies in memory, without a copy."""
    if reading is None:
        return memory
    if reading.data_type is not None:
        return Nibbles(memory, reading.data_type, reading.shape)
    return np.broadcast_to(memory, reading.shape)
