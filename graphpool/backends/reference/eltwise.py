"""Elementwise operations of one tensor, and their gradients.

Every formula is evaluated in IEEE arithmetic, literally unless that cancels in the tails. NaN propagates forward
through all of them, clipping ones included; HardSwish, Mish and GELU of minus infinity are NaN (infinity times zero).
Gradients are one-sided at kinks: a comparison with the kink itself, or with NaN, is false. With ``use_dst`` a gradient
takes the forward result instead of its input.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .registry import Array, Attrs, formulas, reference, unary

_SQRT_2_OVER_PI = math.sqrt(2.0 / math.pi)
_GELU_CUBIC = 0.044715  # Hendrycks and Gimpel, "Gaussian error linear units", 2016


def _special(name: str) -> Callable[[Array], Array]:
    """A function of SciPy, imported at the first call: that takes 0.2 s and 18 MB, and most models need none."""

    def call(x: Array) -> Array:
        from scipy import special

        return np.asarray(getattr(special, name)(x))

    return call


_erf, _erfc = _special("erf"), _special("erfc")


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x), without overflow."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x < 0, small, 1.0) / (1.0 + small))


def _softplus(x: Array, beta: float = 1.0) -> Array:
    """log(1 + e^(beta x)) / beta, without overflow."""
    return np.asarray(np.logaddexp(0.0, beta * x) / beta)


def _normal_cdf(x: Array) -> Array:
    """(1 + erf(x / sqrt 2)) / 2, without cancellation."""
    return 0.5 * _erfc(-x / math.sqrt(2.0))


def _gelu_tanh_argument(x: Array) -> Array:
    return _SQRT_2_OVER_PI * (x + _GELU_CUBIC * x**3)


unary({
    "Abs": np.abs, "Acos": np.arccos, "Acosh": np.arccosh, "Asin": np.arcsin, "Asinh": np.arcsinh, "Atan": np.arctan,
    "Atanh": np.arctanh, "BitwiseNot": np.bitwise_not, "Ceil": np.ceil, "Cos": np.cos, "Cosh": np.cosh, "Erf": _erf,
    "Exp": np.exp, "Floor": np.floor, "IsNaN": np.isnan, "Log": np.log, "Neg": np.negative, "Not": np.logical_not,
    "Reciprocal": np.reciprocal, "Round": np.rint, "Sigmoid": sigmoid, "Sign": np.sign, "Sin": np.sin,
    "Sinh": np.sinh, "Sqrt": np.sqrt, "Square": np.square, "Tan": np.tan, "Tanh": np.tanh,
})  # fmt: skip

formulas({
    "Clamp": lambda attrs, src: np.minimum(np.maximum(src, attrs["min"]), attrs["max"]),
    "Elu": lambda attrs, src: np.where(src > 0, src, attrs["alpha"] * np.expm1(src)),
    "HardSigmoid": lambda attrs, src: np.clip(attrs["alpha"] * src + attrs["beta"], 0.0, 1.0),
    "HardSwish": lambda attrs, src: src * np.clip(src + 3.0, 0.0, 6.0) / 6.0,
    "IsInf": lambda attrs, src: (
        (np.isposinf(src) & attrs["detect_positive"]) | (np.isneginf(src) & attrs["detect_negative"])
    ),
    "LeakyReLU": lambda attrs, src: np.where(src < 0, attrs["alpha"] * src, src),
    "Mish": lambda attrs, src: src * np.tanh(_softplus(src)),
    # np.power takes a square root for 1/2, which differs at -0 and -inf
    "Pow": lambda attrs, src: np.float_power(src, attrs["beta"]),
    "ReLU": lambda attrs, src: np.maximum(src, 0.0),
    "SoftPlus": lambda attrs, src: _softplus(src, attrs["beta"]),
    "AbsBackward": lambda attrs, src, diff_dst: diff_dst * np.sign(src),
    # of Clamp and ReLU from src as from dst
    "ClampBackward": lambda attrs, data, diff_dst: (
        np.where((data > attrs["min"]) & (data < attrs["max"]), diff_dst, 0.0)
    ),
    "ReLUBackward": lambda attrs, data, diff_dst: np.where(data > 0, diff_dst, 0.0),
    "SoftPlusBackward": lambda attrs, src, diff_dst: diff_dst * sigmoid(attrs["beta"] * src),
    "SqrtBackward": lambda attrs, data, diff_dst: diff_dst / (2.0 * (data if attrs["use_dst"] else np.sqrt(data))),
})  # fmt: skip


@reference("GELU")
def _gelu(attrs: Attrs, src: Array) -> Array:
    """`x (1 + erf(x / sqrt 2)) / 2`, or its tanh approximation."""
    if attrs["mode"] == "gelu_tanh":
        return src * sigmoid(2.0 * _gelu_tanh_argument(src))  # (1 + tanh(u)) / 2 without cancellation
    return src * _normal_cdf(src)


@reference("EluBackward")
def _elu_backward(attrs: Attrs, data: Array, diff_dst: Array) -> Array:
    """`dy` for x > 0, else `dy alpha e^x`; and `alpha e^x = dst + alpha`."""
    alpha = attrs["alpha"]
    slope = data + alpha if attrs["use_dst"] else alpha * np.exp(data)
    return np.where(data > 0, diff_dst, diff_dst * slope)


@reference("GELUBackward")
def _gelu_backward(attrs: Attrs, src: Array, diff_dst: Array) -> Array:
    """`dy (Phi(x) + x phi(x))`, or the derivative of the tanh approximation."""
    if attrs["mode"] == "gelu_tanh":
        u = _gelu_tanh_argument(src)
        inner = _SQRT_2_OVER_PI * (1.0 + 3.0 * _GELU_CUBIC * src**2)
        return diff_dst * sigmoid(2.0 * u) * (1.0 + 2.0 * src * sigmoid(-2.0 * u) * inner)
    density = np.exp(-0.5 * src**2) / math.sqrt(2.0 * math.pi)
    return np.asarray(diff_dst * (_normal_cdf(src) + src * density))


@reference("HardSigmoidBackward")
def _hard_sigmoid_backward(attrs: Attrs, src: Array, diff_dst: Array) -> Array:
    """`dy alpha` where 0 < alpha x + beta < 1, else 0."""
    line = attrs["alpha"] * src + attrs["beta"]
    return np.where((line > 0) & (line < 1), diff_dst * attrs["alpha"], 0.0)


@reference("HardSwishBackward")
def _hard_swish_backward(attrs: Attrs, src: Array, diff_dst: Array) -> Array:
    """`dy (2x + 3) / 6` where -3 < x < 3; dy above, 0 below."""
    inside = (src > -3) & (src < 3)
    return np.where(inside, diff_dst * (2.0 * src + 3.0) / 6.0, np.where(src >= 3, diff_dst, 0.0))


@reference("MishBackward")
def _mish_backward(attrs: Attrs, src: Array, diff_dst: Array) -> Array:
    """`dy (t + x (1 - t^2) sigmoid(x))` with t = tanh(softplus(x))."""
    t = np.tanh(_softplus(src))
    return diff_dst * (t + src * (1.0 - t**2) * sigmoid(src))


@reference("SigmoidBackward")
def _sigmoid_backward(attrs: Attrs, data: Array, diff_dst: Array) -> Array:
    """`dy y (1 - y)`."""
    y, rest = (data, 1.0 - data) if attrs["use_dst"] else (sigmoid(data), sigmoid(-data))
    return np.asarray(diff_dst * y * rest)


@reference("TanhBackward")
def _tanh_backward(attrs: Attrs, data: Array, diff_dst: Array) -> Array:
    """`dy (1 - y^2)`."""
    if attrs["use_dst"]:
        return diff_dst * (1.0 - data) * (1.0 + data)
    return np.asarray(diff_dst / np.square(np.cosh(data)))
