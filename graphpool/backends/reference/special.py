"""Special functions of SciPy, imported when one is first called.

Importing `scipy.special` takes longer than loading a small model, and 15 MB; most models need none of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from .registry import Array

__all__ = ["erf", "expit"]


def erf(src: Array, *, out: Array | None = None) -> Array:
    """The error function."""
    from scipy import special

    return np.asarray(special.erf(src, out=out))


def expit(src: Array) -> Array:
    """The logistic function."""
    from scipy import special

    return np.asarray(special.expit(src))
