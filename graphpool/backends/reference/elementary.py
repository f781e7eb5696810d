"""Extension kinds on each element of one tensor: elementary functions, rounding, tests."""

from __future__ import annotations

import numpy as np

from .registry import Array, Attrs, reference, unary
from .special import erf

unary({
    "Acos": np.arccos, "Acosh": np.arccosh, "Asin": np.arcsin, "Asinh": np.arcsinh, "Atan": np.arctan,
    "Atanh": np.arctanh, "BitwiseNot": np.bitwise_not, "Ceil": np.ceil, "Cos": np.cos, "Cosh": np.cosh, "Erf": erf,
    "Floor": np.floor, "IsNaN": np.isnan, "Neg": np.negative, "Not": np.logical_not, "Sign": np.sign, "Sin": np.sin,
    "Sinh": np.sinh, "Tan": np.tan,
})  # fmt: skip


@reference("IsInf")
def _is_inf(attrs: Attrs, src: Array) -> Array:
    """Infinite, of a sign that is looked for."""
    positive, negative = np.isposinf(src), np.isneginf(src)
    return np.asarray((positive & attrs["detect_positive"]) | (negative & attrs["detect_negative"]))
