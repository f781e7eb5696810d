"""Constants of 4-bit elements as files have them: what stands for them without a copy of one byte an element."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from graphpool.graph.logical_tensor import LogicalTensor
from graphpool.typing import DataType

from ._tensor import unpack

__all__ = ["Nibbles", "in_bytes"]


class Nibbles:
    """A constant of 4-bit elements, two to a byte, the first in the low bits; unpacked whenever its elements are read.

    It looks like an array. `raw` has the bytes, `shape` and `data_type` say what they are. Ownership: keeps the bytes.
    Threads: immutable, safe. Cost of reading: one pass over the elements, and a byte or two each while it lasts.
    """

    __slots__ = ("_bytes", "_tensor", "raw")

    def __init__(self, raw: np.ndarray[Any, Any], data_type: DataType, shape: tuple[int, ...]) -> None:
        self.raw = raw
        self._bytes: np.ndarray[Any, Any] | None = None
        self._tensor = LogicalTensor(0, data_type, shape)

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of elements along each axis."""
        assert self._tensor.shape is not None
        return self._tensor.shape

    @property
    def data_type(self) -> DataType:
        """Type of the elements."""
        return self._tensor.dtype

    @property
    def dtype(self) -> np.dtype[Any]:
        """NumPy's type, which takes a byte an element."""
        return self._tensor.dtype.numpy

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Size of the bytes. Unit: bytes."""
        return int(self.raw.nbytes)

    @property
    def in_bytes(self) -> np.ndarray[Any, Any]:
        """The elements as integers of one byte each, read-only; the same array each time, kept from the first on."""
        if self._bytes is None:
            self._bytes = in_bytes(self)
        return self._bytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array: np.ndarray[Any, Any] = unpack(self.raw, self._tensor)
        array.setflags(write=False)
        return array if dtype is None else array.astype(dtype, copy=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Nibbles, (self.raw, self.data_type, self.shape)

    def __repr__(self) -> str:
        return f"<Nibbles {self.dtype} {self.shape}>"


def in_bytes(array: Any) -> np.ndarray[Any, Any]:
    """4-bit elements as integers of one byte each, read-only; there is never a second copy of so many bytes."""
    if isinstance(array, Nibbles):
        found: np.ndarray[Any, Any] = unpack(array.raw, array._tensor).view(np.uint8)
        if array.data_type is DataType.S4:
            found = found.view(np.int8)
            np.left_shift(found, 4, out=found)  # the sign of four bits becomes that of eight
            np.right_shift(found, 4, out=found)
    else:
        found = array.astype(np.uint8 if array.dtype == DataType.U4.numpy else np.int8)
    found.setflags(write=False)
    return found
