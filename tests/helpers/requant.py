"""What int8 products do to their accumulators, by definition."""

import numpy as np

LIMITS = {"u8": (0, 255), "s8": (-128, 127)}
TYPES = {"u8": np.uint8, "s8": np.int8}


def rounded(x, rounding):
    """The integers of a rounding, as float64."""
    scaled = np.clip(x, *rounding.clamp).astype(np.float64) / rounding.scale
    early, late = (0, rounding.zero_point) if rounding.rounds_first else (rounding.zero_point, 0)
    return np.clip(np.rint(scaled + early) + late, *LIMITS[rounding.dtype])


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
    numbers = rounded(x, requant.outer)
    if requant.is_real:
        return ((numbers - requant.outer.zero_point) * requant.outer.scale).astype(np.float32)
    return numbers.astype(TYPES[requant.outer.dtype])
