"""Gradients of elementwise kinds: diff_dst times the derivative, at the input or, with use_dst, from the output."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .elementwise import normal_distribution, sigmoid, softplus

if TYPE_CHECKING:
    from collections.abc import Callable

    from .numbers import Array

Attrs = dict[str, Any]


def times(derivative: Callable[[Attrs, Array], Array]) -> Callable[..., Array]:
    """The gradient of a kind whose derivative at its first input is known."""
    return lambda attrs, x, diff: diff * derivative(attrs, x)


def where(reaches: Callable[[Attrs, Array], Array], derivative: Callable[[Attrs, Array], Any]) -> Callable[..., Array]:
    """The gradient of a kind with flat parts, through which nothing goes, not even NaN or an infinity."""
    return lambda attrs, x, diff: np.where(reaches(attrs, x), diff * derivative(attrs, x), 0.0)


def within_clamp(attrs: Attrs, x: Array) -> Array:
    """Without the ends, so that the output tells as well as the input."""
    return (x > attrs["min"]) & (x < attrs["max"])


def elu(attrs: Attrs, x: Array) -> Array:
    below = x + attrs["alpha"] if attrs["use_dst"] else attrs["alpha"] * np.exp(np.minimum(x, 0))
    return np.where(x > 0, 1.0, below)


def gelu(attrs: Attrs, x: Array) -> Array:
    if attrs["mode"] == "gelu_erf":
        return normal_distribution(x) + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    c, k = math.sqrt(2 / math.pi), 0.044715
    u = c * (x + k * x**3)
    return sigmoid(2 * u) + 2 * x * sigmoid(2 * u) * sigmoid(-2 * u) * c * (1 + 3 * k * x * x)


def within_hard_sigmoid(attrs: Attrs, x: Array) -> Array:
    y = attrs["alpha"] * x + attrs["beta"]
    return (y > 0) & (y < 1)


def mish(attrs: Attrs, x: Array) -> Array:
    t = np.tanh(softplus(x))
    return t + x * (1 - t * t) * sigmoid(x)


def by_output(
    from_dst: Callable[[Array], Array], from_src: Callable[[Array], Array]
) -> Callable[..., Array]:  # fmt: skip
    """The gradient of a kind whose derivative is a function of its output, and one of its input."""
    return lambda attrs, x, diff: diff * (from_dst(x) if attrs["use_dst"] else from_src(x))


KINDS = {
    "AbsBackward": times(lambda attrs, x: np.sign(x)),
    "ClampBackward": where(within_clamp, lambda attrs, x: 1.0),
    "EluBackward": times(elu),
    "GELUBackward": times(gelu),
    "HardSigmoidBackward": where(within_hard_sigmoid, lambda attrs, x: attrs["alpha"]),
    "HardSwishBackward": where(lambda attrs, x: x > -3, lambda attrs, x: np.where(x < 3, x / 3 + 0.5, 1.0)),
    "MishBackward": times(mish),
    "ReLUBackward": where(lambda attrs, x: x > 0, lambda attrs, x: 1.0),
    "SigmoidBackward": by_output(lambda y: y * (1 - y), lambda x: sigmoid(x) * sigmoid(-x)),
    "SoftPlusBackward": times(lambda attrs, x: sigmoid(attrs["beta"] * x)),
    "SqrtBackward": by_output(lambda y: 0.5 / y, lambda x: 0.5 / np.sqrt(x)),
    "TanhBackward": by_output(lambda y: 1 - y * y, lambda x: 1 / np.cosh(x) ** 2),
}

DISCONTINUOUS = frozenset({
    "AbsBackward", "ClampBackward", "EluBackward", "HardSigmoidBackward", "HardSwishBackward", "ReLUBackward",
})  # fmt: skip
