"""What holds of random results, whatever the generator of random numbers."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .numbers import Array

__all__ = ["dropout_problem"]


def dropout_problem(x: Array, probability: float, y: Array, mask: Array | None, error: Array) -> str | None:
    """What contradicts that `y` is `x`, a share `probability` of it dropped at random and the rest scaled; or None.

    All arrays hold float64. `error` is how far each element of `y` may be off.
    """
    scaled = x / (1 - probability) if probability < 1 else np.full(x.shape, np.inf)
    is_kept = np.abs(y - scaled) <= error
    if not (is_kept | (y == 0)).all():
        return "an element is neither 0 nor scaled"
    if mask is not None and not (np.isin(mask, (0, 1)).all() and (is_kept | (mask == 0)).all()):
        return "the mask is not 1 where elements are kept"
    if mask is not None and (y[mask == 0] != 0).any():
        return "an element is kept where the mask is 0"
    kept = int((mask if mask is not None else is_kept & (x != 0)).sum())
    count = int(x.size if mask is not None else (x != 0).sum())
    deviation = math.sqrt(count * probability * (1 - probability)) + 1
    if abs(kept - count * (1 - probability)) > 6 * deviation:
        return f"{kept} of {count} are kept at probability {probability} of dropping"
    return None
