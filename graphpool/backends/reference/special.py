"""Special functions of SciPy, imported at the first call: that takes 0.2 s and 18 MB, and most models need none."""

from __future__ import annotations

from typing import Any

__all__ = ["erf", "erfc", "expit"]


def erf(x: Any, **options: Any) -> Any:
    """The error function, elementwise; options are those of NumPy's universal functions."""
    from scipy import special

    return special.erf(x, **options)


def erfc(x: Any) -> Any:
    """1 - erf(x), elementwise, without cancellation."""
    from scipy import special

    return special.erfc(x)


def expit(x: Any) -> Any:
    """1 / (1 + e^-x), elementwise, without overflow."""
    from scipy import special

    return special.expit(x)
