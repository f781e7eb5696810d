"""Kinds with one input and one output of its shape, element by element."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from .numbers import Array

erf = np.frompyfunc(math.erf, 1, 1)


def real(function: Callable[[Array], Any]) -> Callable[..., Any]:
    """A function of the attributes and a real input."""
    return lambda attrs, x: function(x)


def normal_distribution(x: Array) -> Array:
    """Probability that a normal variable is at most x; accurate for small ones too."""
    erfc = np.frompyfunc(math.erfc, 1, 1)
    return 0.5 * np.asarray(erfc(-x / math.sqrt(2)), dtype=np.float64)


def sigmoid(x: Array) -> Array:
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


def softplus(x: Array, beta: float = 1.0) -> Array:
    return np.logaddexp(0, beta * x) / beta


def gelu(attrs: dict[str, Any], x: Array) -> Array:
    if attrs["mode"] == "gelu_erf":
        return x * normal_distribution(x)
    u = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return x * sigmoid(2 * u)  # (1 + tanh(u)) / 2, without its cancellation


def is_infinite(attrs: dict[str, Any], x: Array) -> Array:
    return ((x == np.inf) & attrs["detect_positive"]) | ((x == -np.inf) & attrs["detect_negative"])


def sign(attrs: dict[str, Any], x: Array) -> Array:
    if x.dtype == object:
        return np.asarray((x > 0).astype(int) - (x < 0).astype(int)).astype(object)
    return np.sign(x)


KINDS = {
    "Abs": real(np.abs),
    "Clamp": lambda attrs, x: np.minimum(np.maximum(x, attrs["min"]), attrs["max"]),
    "Elu": lambda attrs, x: np.where(x > 0, x, attrs["alpha"] * np.expm1(np.minimum(x, 0))),
    "Exp": real(np.exp),
    "GELU": gelu,
    "HardSigmoid": lambda attrs, x: np.clip(attrs["alpha"] * x + attrs["beta"], 0, 1),
    "HardSwish": real(lambda x: x * np.clip((x + 3) / 6, 0, 1)),
    "LeakyReLU": lambda attrs, x: np.where(x > 0, x, attrs["alpha"] * x),
    "Log": real(np.log),
    "Mish": real(lambda x: x * np.tanh(softplus(x))),
    "Pow": lambda attrs, x: np.power(x, attrs["beta"]),
    "ReLU": real(lambda x: np.maximum(x, 0)),
    "Reciprocal": real(lambda x: 1 / x),
    "Round": real(np.rint),
    "Sigmoid": real(sigmoid),
    "SoftPlus": lambda attrs, x: softplus(x, attrs["beta"]),
    "Sqrt": real(np.sqrt),
    "Square": real(lambda x: x * x),
    "Tanh": real(np.tanh),
    "Acos": real(np.arccos),
    "Acosh": real(np.arccosh),
    "Asin": real(np.arcsin),
    "Asinh": real(np.arcsinh),
    "Atan": real(np.arctan),
    "Atanh": real(np.arctanh),
    "BitwiseNot": real(lambda x: -1 - x),
    "Ceil": real(np.ceil),
    "Cos": real(np.cos),
    "Cosh": real(np.cosh),
    "Erf": real(lambda x: np.asarray(erf(x), dtype=np.float64)),
    "Floor": real(np.floor),
    "IsInf": is_infinite,
    "IsNaN": real(np.isnan),
    "Neg": real(lambda x: -x),
    "Not": real(lambda x: ~x),
    "Sign": sign,
    "Sin": real(np.sin),
    "Sinh": real(np.sinh),
    "Tan": real(np.tan),
}

EXACT = frozenset({
    "Abs", "Clamp", "ReLU", "Round", "Ceil", "Floor", "Neg", "Sign", "Not", "BitwiseNot", "IsInf", "IsNaN",
})  # fmt: skip
DISCONTINUOUS = frozenset({"Round", "Ceil", "Floor", "Sign", "IsInf", "IsNaN"})
