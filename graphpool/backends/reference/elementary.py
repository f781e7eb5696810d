"""Extension kinds on each element of one tensor: elementary functions, rounding, tests."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .registry import Array, Attrs, reference
from .special import erf


def _function(kind: str, function: Callable[[Array], Array]) -> None:
    """Register `function(src)` as the meaning of `kind`."""

    @reference(kind)
    def evaluate_function(attrs: Attrs, src: Array) -> Array:
        return np.asarray(function(src))


_function("Acos", np.arccos)
_function("Acosh", np.arccosh)
_function("Asin", np.arcsin)
_function("Asinh", np.arcsinh)
_function("Atan", np.arctan)
_function("Atanh", np.arctanh)
_function("BitwiseNot", np.bitwise_not)
_function("Ceil", np.ceil)
_function("Cos", np.cos)
_function("Cosh", np.cosh)
_function("Erf", erf)
_function("Floor", np.floor)
_function("IsNaN", np.isnan)
_function("Neg", np.negative)
_function("Not", np.logical_not)
_function("Sign", np.sign)
_function("Sin", np.sin)
_function("Sinh", np.sinh)
_function("Tan", np.tan)


@reference("IsInf")
def _is_inf(attrs: Attrs, src: Array) -> Array:
    """Infinite, of a sign that is looked for."""
    positive, negative = np.isposinf(src), np.isneginf(src)
    return np.asarray((positive & attrs["detect_positive"]) | (negative & attrs["detect_negative"]))
