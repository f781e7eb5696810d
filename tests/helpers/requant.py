"""What products of bytes do behind their sums, by definition."""

import numpy as np

LIMITS = {"u8": (0, 255), "s8": (-128, 127)}
TYPES = {"u8": np.uint8, "s8": np.int8}


def rounded(x, rounding):
    """The integers of a rounding, as float64."""
    scaled = np.clip(x, *rounding.clamp).astype(np.float64) / rounding.scale
    if rounding.rounds_first:
        numbers = np.rint(scaled) + rounding.zero_point
    else:
        numbers = np.rint(scaled + rounding.zero_point)
    return np.clip(numbers, *LIMITS[rounding.dtype])


def requantized(x, requant, late_bias=None, residual=None):
    """`Requant` applied to real numbers; exact where the scales are powers of two."""
    if requant.inner is not None:
        x = (rounded(x, requant.inner) - requant.inner.zero_point) * requant.inner.scale
    if late_bias is not None:
        x = x + late_bias
    if residual is not None:
        x = x + (residual.astype(np.float64) - requant.residual.zero_point) * requant.residual.scale
    if requant.outer is None:
        return np.clip(x, *requant.clamp).astype(np.float32)
    return rounded(x, requant.outer).astype(TYPES[requant.outer.dtype])
