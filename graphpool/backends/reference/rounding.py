"""Between element types and the types that the reference computes in: widening is exact, narrowing rounds once."""

from __future__ import annotations

from typing import Any

import numpy as np

from graphpool.typing import DataType

_Array = np.ndarray[Any, np.dtype[Any]]

BLOCK = 1 << 14
"""Elements that are rounded at a time, so that intermediates stay in cache."""


def widen(array: _Array) -> _Array:
    """`array` as float64, int64, uint64 or bool: the same values, in a type that the reference computes in."""
    dtype = DataType.parse(array.dtype)
    if dtype in (DataType.BOOLEAN, DataType.U64):
        return array
    return array.astype(np.int64 if _is_integer(dtype) else np.float64)


def round_to(array: _Array, dtype: DataType, *, saturate: bool = True) -> _Array:
    """A new C-contiguous array of type `dtype`; to nearest even, floats saturate at integers and f8, integers wrap.

    Without `saturate` f8 overflows, to infinity or, where it has none, to NaN.
    """
    if dtype is DataType.BOOLEAN:
        return array.astype(np.bool_, order="C")
    if _is_integer(dtype):
        whole = _saturate(array, dtype) if array.dtype.kind == "f" else array
        return whole.astype(dtype.numpy, order="C")
    if dtype in (DataType.F64, DataType.F32, DataType.F16):
        return array.astype(dtype.numpy, order="C")
    narrow = _to_odd_f32(array.astype(np.float64))
    if saturate and dtype in (DataType.F8_E4M3, DataType.F8_E5M2):
        narrow = _saturate_f8(narrow, dtype)
    return narrow.astype(dtype.numpy, order="C")


def _is_integer(dtype: DataType) -> bool:
    return dtype.value[0] in "su"


def _saturate(array: _Array, dtype: DataType) -> _Array:
    """Floats rounded half to even and kept in the range of the integer type; NaN becomes 0."""
    signed = dtype.value[0] == "s"
    low, high = (-(1 << dtype.bits - 1), (1 << dtype.bits - 1) - 1) if signed else (0, (1 << dtype.bits) - 1)
    # 2**63 - 1 and 2**64 - 1 are no float64 values: what lies above the next lower one is put in behind.
    top = float(high) if int(float(high)) <= high else float(np.nextafter(float(high), 0.0))
    inside = np.clip(np.where(np.isnan(array), 0.0, np.rint(array)), low, top)
    whole = inside.astype(np.int64 if signed else np.uint64)
    return np.asarray(np.where(array > top, whole.dtype.type(high), whole))


def _to_odd_f32(array: _Array) -> _Array:
    """Round float64 to float32 to odd, so that rounding again to 8 or fewer bits equals rounding once.

    What is inexact is rounded towards zero, and its last bit set.
    Source: Boldo and Melquiond, "When double rounding is odd", 2005.
    """
    result = np.empty(array.shape, np.float32)
    source, target = array.reshape(-1), result.reshape(-1)
    for start in range(0, source.size, BLOCK):
        exact, nearest = source[start : start + BLOCK], target[start : start + BLOCK]
        nearest[...] = exact
        back, bits = nearest.astype(np.float64), nearest.view(np.uint32)
        bits -= np.abs(back) > np.abs(exact)
        bits |= back != exact
    return result


def _saturate_f8(array: _Array, dtype: DataType) -> _Array:
    """Clip to the finite range of an f8 type, infinities too; NaN stays.

    Source: OCP 8-bit floating point specification (OFP8) revision 1.0, saturating conversion.
    """
    limit = np.float32(448.0 if dtype is DataType.F8_E4M3 else 57344.0)
    return np.clip(array, -limit, limit)
