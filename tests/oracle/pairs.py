"""Kinds with several inputs that broadcast: arithmetic, comparisons, logic, bits; biases and slopes of channels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .numbers import bits_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from .numbers import Array

Attrs = dict[str, Any]


def reals(a: Array, b: Array) -> tuple[Array, Array]:
    """Both as they are, or as reals where one of them is."""
    if a.dtype != b.dtype:
        return a.astype(np.float64), b.astype(np.float64)
    return a, b


def plain(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """A function of two inputs; integers beside reals are reals."""
    return lambda attrs, a, b: function(*reals(a, b))


def by_integers(on_integers: Callable[[int, int], int], on_reals: Callable[..., Any]) -> Callable[..., Any]:
    """One function of two Python integers, another of two arrays of reals."""
    each = np.frompyfunc(on_integers, 2, 1)

    def function(attrs: Attrs, a: Array, b: Array) -> Any:
        a, b = reals(a, b)
        return np.asarray(each(a, b), dtype=object) if a.dtype == object else on_reals(a, b)

    return function


def truncated_quotient(a: int, b: int) -> int:
    if b == 0:
        return 0
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def modulo(attrs: Attrs, a: Array, b: Array) -> Array:
    """The remainder, with the sign of b or (fmod) of a; an integer by 0 gives 0."""
    if a.dtype != object:
        return np.fmod(a, b) if attrs["fmod"] else np.mod(a, b)

    def remainder(x: int, y: int) -> int:
        if y == 0:
            return 0
        return x - y * truncated_quotient(x, y) if attrs["fmod"] else x % y

    return np.asarray(np.frompyfunc(remainder, 2, 1)(a, b), dtype=object)


def power(attrs: Attrs, a: Array, b: Array) -> Array:
    """Cut to an integer where a is one."""
    is_whole = a.dtype == object
    result = np.power(a.astype(np.float64), b.astype(np.float64))
    return np.trunc(result) if is_whole else result


def shift(attrs: Attrs, a: Array, b: Array) -> Array:
    bits = bits_of(attrs["in_dtypes"][0])

    def one(x: int, places: int) -> int:
        if attrs["direction"] == "LEFT":
            return x << places if places < bits else 0
        return x >> places

    return np.asarray(np.frompyfunc(one, 2, 1)(a, b), dtype=object)


def compare(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda attrs, a, b: np.asarray(function(a, b), dtype=bool)


def along_channels(attrs: Attrs, vector: Array, ndim: int) -> Array:
    """A vector of channels, to be broadcast."""
    shape = [1] * ndim
    shape[1 if attrs["data_format"] == "NCX" else -1] = len(vector)
    return vector.reshape(shape)


def other_axes(attrs: Attrs, ndim: int) -> tuple[int, ...]:
    """All axes but that of the channels."""
    channel = 1 if attrs["data_format"] == "NCX" else ndim - 1
    return tuple(axis for axis in range(ndim) if axis != channel)


def slope_for(attrs: Attrs, x: Array, slope: Array) -> Array:
    """The slope as it meets x: one number a channel, or by NumPy's rules."""
    per_channel = attrs.get("per_channel_broadcast", True)
    return along_channels(attrs, slope, x.ndim) if per_channel and slope.ndim == 1 and slope.size != 1 else slope


def prelu(attrs: Attrs, x: Array, slope: Array) -> Array:
    return np.where(x > 0, x, x * slope_for(attrs, x, slope))


def prelu_backward(attrs: Attrs, x: Array, slope: Array, diff: Array) -> tuple[Array, Array]:
    """Gradients for x and for the slope, the latter summed over all that one slope meets."""
    met = slope_for(attrs, x, slope)
    terms = np.where(x > 0, 0.0, diff * x)
    lead = (1,) * (x.ndim - met.ndim) + met.shape
    axes = tuple(axis for axis, dim in enumerate(lead) if dim == 1)
    return np.where(x > 0, diff, diff * met), terms.sum(axis=axes, keepdims=True).reshape(slope.shape)


def dropout(attrs: Attrs, x: Array, seed: Array, offset: Array, probability: Array) -> tuple[Array, Array]:
    """What is kept when nothing is dropped: the random choice itself is no function that is defined."""
    scale = 1 / (1 - float(probability.reshape(-1)[0]))
    return x * scale, np.ones(x.shape, dtype=object)


KINDS = {
    "Add": plain(lambda a, b: a + b),
    "Divide": by_integers(truncated_quotient, lambda a, b: a / b),
    "GreaterEqual": compare(lambda a, b: a >= b),
    "Maximum": plain(np.maximum),
    "Minimum": plain(np.minimum),
    "Multiply": plain(lambda a, b: a * b),
    "SquaredDifference": plain(lambda a, b: (a - b) ** 2),
    "Subtract": plain(lambda a, b: a - b),
    "Select": lambda attrs, cond, a, b: np.where(cond, a, b),
    "BiasAdd": lambda attrs, x, bias: x + along_channels(attrs, bias, x.ndim),
    "BiasAddBackward": lambda attrs, diff: diff.sum(axis=other_axes(attrs, diff.ndim)),
    "PReLU": prelu,
    "PReLUBackward": prelu_backward,
    "Dropout": dropout,
    "And": lambda attrs, a, b: a & b,
    "Or": lambda attrs, a, b: a | b,
    "Xor": lambda attrs, a, b: a ^ b,
    "BitwiseAnd": lambda attrs, a, b: a & b,
    "BitwiseOr": lambda attrs, a, b: a | b,
    "BitwiseXor": lambda attrs, a, b: a ^ b,
    "BitShift": shift,
    "Equal": compare(lambda a, b: a == b),
    "Greater": compare(lambda a, b: a > b),
    "Less": compare(lambda a, b: a < b),
    "LessEqual": compare(lambda a, b: a <= b),
    "Mod": modulo,
    "Power": power,
}

COMPARISONS = frozenset({"Equal", "Greater", "GreaterEqual", "Less", "LessEqual"})
EXACT = COMPARISONS | {
    "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitShift", "Maximum", "Minimum", "Select",
}  # fmt: skip
DISCONTINUOUS = COMPARISONS | {"PReLUBackward", "Mod", "Power"}
