"""Data types: what an array holds exactly, and the nearest element of a type."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

FLOATS = {
    "f64": np.dtype(np.float64), "f32": np.dtype(np.float32), "f16": np.dtype(np.float16),
    "bf16": np.dtype(ml_dtypes.bfloat16), "f8_e5m2": np.dtype(ml_dtypes.float8_e5m2),
    "f8_e4m3": np.dtype(ml_dtypes.float8_e4m3fn),
}  # fmt: skip
INTEGERS = {
    "s64": np.dtype(np.int64), "s32": np.dtype(np.int32), "s16": np.dtype(np.int16), "s8": np.dtype(np.int8),
    "u64": np.dtype(np.uint64), "u32": np.dtype(np.uint32), "u16": np.dtype(np.uint16), "u8": np.dtype(np.uint8),
    "s4": np.dtype(ml_dtypes.int4), "u4": np.dtype(ml_dtypes.uint4),
}  # fmt: skip
NUMPY = FLOATS | INTEGERS | {"boolean": np.dtype(bool)}

FORMAT = {"f64": (53, -1022), "f32": (24, -126), "f16": (11, -14), "bf16": (8, -126), "f8_e5m2": (3, -14),
          "f8_e4m3": (4, -6)}  # fmt: skip
"""Bits of the significand with the leading one, and the least exponent of normal numbers."""

LARGEST = {"f64": np.finfo(np.float64).max, "f32": np.finfo(np.float32).max, "f16": 65504.0,
           "bf16": (2 - 2**-7) * 2.0**127, "f8_e5m2": 57344.0, "f8_e4m3": 448.0}  # fmt: skip


def bits_of(dtype: str) -> int:
    """Bits of an integer type."""
    return int(dtype[1:])


def limits(dtype: str) -> tuple[int, int]:
    """Least and largest element of an integer type."""
    bits = bits_of(dtype)
    return (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if dtype[0] == "s" else (0, 2**bits - 1)


def exact(array: Any, dtype: str) -> Array:
    """The content: float64, Python's integers, or bool."""
    array = np.asarray(array)
    if dtype in FLOATS:
        return array.astype(np.float64)
    if dtype == "boolean":
        return array.astype(bool)
    small = array.astype(np.int64) if bits_of(dtype) == 4 else array
    return small.astype(object)


def nearest_float(x: Array, dtype: str) -> Array:
    """The nearest float of a type, halves to the even one; beyond the largest by half a step and more: infinite."""
    if dtype == "f64":
        return x
    digits, least = FORMAT[dtype]
    _, exponent = np.frexp(x)
    step = np.maximum(exponent, least + 1) - digits
    with np.errstate(all="ignore"):
        rounded = np.where(np.isfinite(x), np.ldexp(np.rint(np.ldexp(x, -step)), step), x)
        return np.where(np.abs(rounded) > LARGEST[dtype], np.copysign(np.inf, x), rounded)


def to_float(x: Any, dtype: str) -> Array:
    """The array of a float type nearest to real numbers, Python's integers or truth values."""
    x = np.asarray(x)
    real = np.array([float(item) for item in x.reshape(-1)]).reshape(x.shape) if x.dtype == object else x
    real = nearest_float(real.astype(np.float64), dtype)
    with np.errstate(all="ignore"):
        return real.astype(NUMPY[dtype])


def wrap(x: Any, dtype: str) -> Array:
    """Python's integers modulo the range of an integer type."""
    low, high = limits(dtype)
    wrapped = np.asarray((np.asarray(x, dtype=object) - low) % (high - low + 1) + low, dtype=object)
    return wrapped.astype(np.int8).astype(NUMPY[dtype]) if bits_of(dtype) == 4 else wrapped.astype(NUMPY[dtype])


def whole(x: Any) -> Array:
    """Python's integers, from finite floats that are whole."""
    x = np.asarray(x)
    return np.array([int(item) for item in x.reshape(-1)], dtype=object).reshape(x.shape)


def clip(x: Any, dtype: str) -> Array:
    """Floats limited to the range of an integer type, as Python's integers (cut off); NaN becomes 0."""
    low, high = limits(dtype)
    x = np.nan_to_num(np.asarray(x, dtype=np.float64), nan=0.0, posinf=2.0**70, neginf=-(2.0**70))
    return np.asarray(np.frompyfunc(lambda item: min(max(item, low), high), 1, 1)(whole(np.trunc(x))), dtype=object)


def round_to(x: Any, dtype: str) -> Array:
    """A result as a tensor holds it: floats are rounded, integers wrap, reals are rounded and limited to integers."""
    x = np.asarray(x)
    if dtype in FLOATS:
        return to_float(x, dtype)
    if dtype == "boolean":
        return x.astype(bool)
    if x.dtype == object or x.dtype.kind in "iub":
        return wrap(x.astype(object) if x.dtype != bool else x.astype(int), dtype)
    return wrap(clip(np.rint(x), dtype), dtype)
