"""Extension kinds of two tensors that broadcast: comparisons, logic, bits, remainders, powers.

Any comparison with NaN is false.
"""

from __future__ import annotations

import numpy as np

from .registry import Array, Attrs, binary, reference

binary({
    "And": np.logical_and, "BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor,
    "Equal": np.equal, "Greater": np.greater, "GreaterEqual": np.greater_equal, "Less": np.less,
    "LessEqual": np.less_equal, "Or": np.logical_or, "Xor": np.logical_xor,
})  # fmt: skip


@reference("BitShift")
def _bit_shift(attrs: Attrs, src_0: Array, src_1: Array) -> Array:
    """To the right copies of the sign come in; by 64 places or more, or a negative number, nothing else is left."""
    return np.left_shift(src_0, src_1) if attrs["direction"] == "LEFT" else np.right_shift(src_0, src_1)


@reference("Mod")
def _mod(attrs: Attrs, src_0: Array, src_1: Array) -> Array:
    return np.fmod(src_0, src_1) if attrs["fmod"] else np.remainder(src_0, src_1)


@reference("Power")
def _power(attrs: Attrs, src_0: Array, src_1: Array) -> Array:
    """In float64, but exactly of integers with exponents of at least 0; of an integer without its fraction."""
    result = np.power(src_0.astype(np.float64), src_1.astype(np.float64))
    if src_0.dtype.kind == "f":
        return result
    if src_1.dtype.kind == "f":
        return np.trunc(result)
    exact = np.power(src_0, np.maximum(src_1, 0).astype(src_0.dtype))
    return np.asarray(np.where(src_1 < 0, np.trunc(np.nan_to_num(result, posinf=0)).astype(src_0.dtype), exact))
