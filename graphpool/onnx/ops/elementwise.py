"""Activations, arithmetic, comparison and casts."""

from __future__ import annotations

from functools import reduce
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.onnx.types import data_type, is_f32_number
from graphpool.typing import DataType

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.onnx.build import NodeView, Value

# Defaults are those of the ONNX operator specification.


def _variadic(kind: str) -> Callable[[NodeView], Value]:
    return lambda n: reduce(lambda a, b: n.emit(kind, a, b), [n[k] for k in range(len(n.inputs))])


def swish(n: NodeView, alpha: float) -> Value:
    """X * sigmoid(alpha x)."""
    scaled = n[0] if alpha == 1 else n.emit("Multiply", n[0], n.literal(alpha, n[0]))
    return n.emit("Multiply", n[0], n.emit("Sigmoid", scaled))


def _celu(n: NodeView) -> Value:
    """Elu(x / alpha) times alpha."""
    alpha = n.attr("alpha", 1.0)
    n.require(alpha > 0, "alpha is not positive")
    scaled = n.emit("Multiply", n[0], n.literal(1 / alpha, n[0]))
    return n.emit("Multiply", n.emit("Elu", scaled, alpha=1.0), n.literal(alpha, n[0]))


def _above(n: NodeView, a: Value, b: Value) -> Value:
    return n.emit_several("Greater", [DataType.BOOLEAN], a, b)[0]


def _thresholded_relu(n: NodeView) -> Value:
    """X above alpha, else 0; NaN is not above it."""
    x = n[0]
    return n.emit_several("Select", [x.dtype], _above(n, x, n.literal(n.attr("alpha", 1.0), x)), x, n.literal(0, x))[0]


def _shrink(n: NodeView) -> Value:
    """X + bias below -lambd, x - bias above lambd, else 0, of NaN too."""
    x, bias, lambd = n[0], n.attr("bias", 0.0), n.attr("lambd", 0.5)
    types, zero = [x.dtype], n.literal(0, x)
    low, high = (n.emit("Add", x, n.literal(shift, x)) for shift in (bias, -bias))
    inner = n.emit_several("Select", types, _above(n, n.literal(-lambd, x), x), low, zero)[0]
    return n.emit_several("Select", types, _above(n, x, n.literal(lambd, x)), high, inner)[0]


def _clip(n: NodeView) -> Value:
    """Clamp by known bounds that f32 holds, else Maximum and Minimum, which also keep integers exact."""
    x, is_float = n[0], n[0].dtype in _FLOATS
    limits: dict[str, float] = {}
    for k, (name, kind) in enumerate((("min", "Maximum"), ("max", "Minimum")), 1):
        if n.opset < 11:
            limits[name] = n.attr(name, _UNBOUNDED[name])
        elif n.has(k) and is_float and n[k].is_known and is_f32_number(n.known(k).item()):
            limits[name] = float(n.known(k).reshape(()))
        elif n.has(k):
            x = n.emit(kind, x, n[k])
    return n.emit("Clamp", x, **_UNBOUNDED | limits) if limits else x


_UNBOUNDED = {"min": -np.inf, "max": np.inf}
_FLOATS = (DataType.F32, DataType.F16, DataType.BF16, DataType.F64)


def _pow(n: NodeView) -> Value:
    """Square or Pow for one known exponent, else Power."""
    x, exponent = n[0], n[1]
    is_number = exponent.is_known and exponent.content.size == 1 and len(exponent.shape) <= len(x.shape)
    if not is_number or x.dtype not in (DataType.F32, DataType.F16, DataType.BF16):
        return n.emit("Power", x, exponent)
    number = float(np.reshape(exponent.content, ()))
    return n.emit("Square", x) if number == 2 else n.emit("Pow", x, beta=number)


def _prelu(n: NodeView) -> Value:
    """Slopes broadcast; before opset 7 they were one number, or one for each channel."""
    slope = n[1]
    if n.opset < 7 and prod(slope.shape) > 1:
        slope = n.reshape(slope, (prod(slope.shape), *[1] * (len(n[0].shape) - 2)))
    return n.emit("PReLU", n[0], slope, per_channel_broadcast=False)


def _where(n: NodeView) -> Value:
    """Select, whose condition must not enlarge the result."""
    condition, a, b = n[0], n[1], n[2]
    both = n.broadcast(a.shape, b.shape)
    shape = n.broadcast(condition.shape, both)
    if both != shape:
        a = n.emit("Expand", a, shape=shape)
    return n.emit_several("Select", [a.dtype], condition, a, b)[0]


def _cast(n: NodeView) -> Value:
    target = data_type(n.attr("to"))
    n.require(target is not None, "a type that we do not have")
    assert target is not None  # required above
    return n.cast(n[0], target, **_saturation(n))


def _saturation(n: NodeView) -> dict[str, bool]:
    return {} if n.attr("saturate", 1) else {"saturate": False}


def _dropout(n: NodeView) -> list[Value]:
    """Nothing happens at inference, or where nothing is dropped: the mask is true."""
    if n.has(1) and n[1].is_known:
        ratio = n.known(1)
        n.check(bool(np.all((ratio >= 0) & (ratio < 1))), "ratio", "0 to below 1", ratio)
    n.require(n.opset >= 7 or bool(n.attr("is_test", 0)), "training")
    drops = n.has(2) and n.known(2).any() and not (n.has(1) and not n.known(1).any())
    n.require(not drops, "training")
    if n.used_outputs < 2:
        return [n[0]]
    mask_type = DataType.BOOLEAN if n.opset >= 10 else n[0].dtype
    return [n[0], n.cast(n.builder.full(1.0, n[0].shape), mask_type)]


CONVERTERS: dict[str, Callable[[NodeView], Any]] = {
    **{theirs: _variadic(ours) for theirs, ours in {"Sum": "Add", "Max": "Maximum", "Min": "Minimum"}.items()},
    "Mean": lambda n: n.emit("Multiply", _variadic("Add")(n), n.literal(1 / len(n.inputs), n[0])),
    "Gelu": lambda n: n.emit("GELU", n[0], mode="gelu_tanh" if n.attr("approximate") == "tanh" else "gelu_erf"),
    "Swish": lambda n: swish(n, n.attr("alpha", 1.0)),
    "Softsign": lambda n: n.emit("Divide", n[0], n.emit("Add", n.emit("Abs", n[0]), n.literal(1, n[0]))),
    "Selu": lambda n: n.emit(
        "Multiply", n.emit("Elu", n[0], alpha=n.attr("alpha", 1.6732632423543772)),
        n.literal(n.attr("gamma", 1.0507009873554805), n[0]),
    ),
    "Celu": _celu, "ThresholdedRelu": _thresholded_relu, "Shrink": _shrink, "Clip": _clip, "Pow": _pow,
    "PRelu": _prelu, "Where": _where, "Cast": _cast, "Dropout": _dropout,
    "CastLike": lambda n: n.cast(n[0], n[1].dtype, **_saturation(n)), "Identity": lambda n: n[0],
}  # fmt: skip
