"""Draws of elementwise ops: one input, several inputs, gradients, biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.graph.schema import get_schema
from tests.helpers.kinds import BINARY, GRADIENTS, UNARY, accepted, fixed_result, values

from .maker import Maker, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DRAWS", "post_op", "types_of"]


def types_of(kind: str, variable: str = "T") -> list[str]:
    """Data types that a type variable of a kind may be."""
    return sorted(str(dtype) for dtype in get_schema(kind).types[variable])


TESTS = [kind for kind in UNARY if fixed_result(kind)]
FUNCTIONS = [kind for kind in UNARY if kind not in TESTS]
DOMAIN = {
    "Log": (0.05, 3.0), "Sqrt": (0.0, 3.0), "Reciprocal": (0.2, 3.0), "Pow": (0.2, 3.0), "Acos": (-0.98, 0.98),
    "Asin": (-0.98, 0.98), "Atanh": (-0.95, 0.95), "Acosh": (1.05, 4.0), "Tan": (-1.3, 1.3),
}  # fmt: skip
"""Where a function is defined and does not blow rounding errors up."""


def unary_attrs(m: Maker, kind: str) -> dict[str, Any]:
    if kind in ("Clamp", "ClampBackward"):
        low = round(m.number(-1.5, 0.5) * 32) / 32  # which all types have, so that the result is exact
        return {"min": low, "max": low + m.choose([0.0, 0.25, 1.0, 3.0])}
    if kind in ("Elu", "LeakyReLU", "EluBackward"):
        return {"alpha": m.choose([0.0, 0.125, 0.5, 1.0, 1.5])}
    if kind in ("HardSigmoid", "HardSigmoidBackward"):
        return {"alpha": m.number(0.1, 1.0), "beta": m.number(-0.5, 1.0)}
    if kind == "Pow":
        return {"beta": m.choose([2.0, 3.0, -1.0, 0.5, -0.5, 0.0, 1.0, 1.7])}
    if kind in ("SoftPlus", "SoftPlusBackward"):
        return {"beta": m.choose([1.0, 1.0, 0.5, 2.0, -1.0])}
    return other_attrs(m, kind)


def other_attrs(m: Maker, kind: str) -> dict[str, Any]:
    """A value of each attribute of a kind; not of how the inputs are to be understood."""
    given = [item for item in get_schema(kind).attributes.values() if item.name not in ("auto_broadcast", "use_dst")]
    return {item.name: m.chance(0.5) if item.kind == "bool" else m.choose(values(item)) for item in given}


def unary(m: Maker, kind: str, x: int) -> int:
    """A function of one tensor, kept to where it is defined."""
    low, high = DOMAIN.get(
        kind, (-60.0 if kind != "Exp" else -30.0, 1e6 if kind not in ("Exp", "Sinh", "Cosh") else 8.0)
    )
    if m.dtypes[x][0] in "fb" and m.dtypes[x] != "boolean" and not m.bound(x, low, high):
        if m.chance(0.5) and kind in ("Log", "Sqrt", "Pow", "Acos", "Asin"):
            x = m.add("Sigmoid", [x])
        else:
            x = m.fresh(
                m.dtypes[x], m.shape_of(x), how="uniform", low=max(low, -2.0), high=min(high, 4.0), any_value=False
            )
    return m.add(kind, [x], **unary_attrs(m, kind))


def one_input(m: Maker) -> int:
    kind = m.choose(FUNCTIONS)
    return unary(m, kind, m.source(accepted(kind)))


def test(m: Maker) -> int:
    kind = m.choose(TESTS)
    attrs = other_attrs(m, kind)
    return m.add(kind, [m.source(accepted(kind))], fixed_result(kind), **attrs)


def gradient(m: Maker) -> int:
    kind = m.choose(GRADIENTS)
    diff = m.source(accepted(kind))
    dtype, shape = m.dtypes[diff], m.shape_of(diff)
    attrs = unary_attrs(m, kind)
    if "use_dst" in get_schema(kind).attributes:
        attrs["use_dst"] = m.chance(0.5)
    low = 0.25 if kind == "SqrtBackward" else -0.4 if attrs.get("use_dst") else -2
    x = m.fresh(dtype, shape, how=m.choose(["uniform", "lattice"]), low=low, high=2)
    return m.add(kind, [x, diff], **attrs)


def broadcast_to(m: Maker, shape: tuple[int, ...]) -> tuple[int, ...]:
    """A shape that broadcasts with `shape`: the same, a scalar, shape (1,), or with some dimensions 1 or left out."""
    draw = m.rng.random()
    if draw < 0.35:
        return shape
    if draw < 0.45:
        return ()
    if draw < 0.55:
        return (1,) * m.integer(1, max(len(shape), 1))
    kept = tuple(dim if m.chance(0.6) else 1 for dim in shape)
    kept = kept[m.integer(0, len(kept)) :] if m.chance(0.5) else kept
    if m.chance(0.1) and len(kept) < 8:
        kept = (*(m.integer(1, 3) for _ in range(m.integer(1, 2))), *([1] * (len(shape) - len(kept))), *kept)[-8:]
    return kept


def binary(m: Maker) -> int:
    kind = m.choose(BINARY)
    return pair(m, kind, m.source(accepted(kind)))


def second_fill(m: Maker, kind: str, dtype: str) -> dict[str, Any]:
    """Content for the second input, where not every number is sensible."""
    whole = dtype[0] in "su"
    if kind in ("Divide", "Mod"):
        return {"low": 1, "high": 20} if whole else {"how": "uniform", "low": 0.5, "high": 3.0, "any_value": False}
    if kind == "BitShift":
        return {"low": 0, "high": int(dtype[1:]) - 1}
    if kind == "Power":
        return {"low": 0, "high": 3} if whole else {"how": "uniform", "low": -1.5, "high": 2.0, "any_value": False}
    return {}


def pair(m: Maker, kind: str, a: int) -> int:
    """A function of `a` and a second operand, on either side."""
    dtype, shape = m.dtypes[a], m.shape_of(a)
    other = dtype
    out = fixed_result(kind)
    if kind in ("Add", "Subtract", "Multiply", "Divide") and m.chance(0.15):
        mixed = ["f32", "bf16", "f16"] + (["s32"] if kind in ("Add", "Subtract") else [])
        if dtype in mixed:
            other, out = m.choose(mixed), m.choose([dtype, "f32"])
    if kind == "Power":
        other = m.choose([dtype, "f32", "s32"])
        fill = {"low": 0, "high": 5} if dtype[0] in "su" else {"how": "uniform", "low": 0.3, "high": 2.5}
        a = m.fresh(dtype, shape, any_value=False, **fill)
    fill = second_fill(m, kind, other)
    attrs = other_attrs(m, kind)
    if m.chance(0.1):
        b, attrs["auto_broadcast"] = m.operand(other, shape, **fill), "none"
    else:
        b = m.operand(other, broadcast_to(m, shape), m.chance(0.2), **fill)
    turned = not fill and kind != "Power" and m.chance(0.4)
    return m.add(kind, [b, a] if turned else [a, b], out or dtype, **attrs)


def select(m: Maker) -> int:
    a = m.source(types_of("Select", "T2"))
    shape = m.shape_of(a)
    b = m.operand(m.dtypes[a], broadcast_to(m, shape))
    whole = np.broadcast_shapes(shape, m.shape_of(b))
    cond = m.operand("boolean", tuple(dim if m.chance(0.7) else 1 for dim in whole))
    return m.add("Select", [cond, a, b] if m.chance(0.5) else [cond, b, a], m.dtypes[a])


def bias(m: Maker) -> int:
    x = m.source(types_of("BiasAdd"), low=2)
    data_format = m.choose(["NCX", "NXC"])
    channels = m.shape_of(x)[1 if data_format == "NCX" else -1]
    if m.chance(0.3):
        return m.add("BiasAddBackward", [x], data_format=data_format)
    return m.add("BiasAdd", [x, m.operand(m.dtypes[x], (channels,), m.chance(0.5))], data_format=data_format)


def prelu(m: Maker) -> int:
    x = m.source(types_of("PReLU"), low=2)
    shape = m.shape_of(x)
    data_format = m.choose(["NCX", "NXC"])
    channels = shape[1 if data_format == "NCX" else -1]
    slope = (channels,) if m.chance(0.5) else (1,) * m.integer(1, len(shape)) if m.chance(0.5) else shape
    attrs = {"data_format": data_format}
    if m.chance(0.3) and (len(slope) > 1 or slope == (channels,)):
        x = m.fresh(m.dtypes[x], shape)
        return m.add("PReLUBackward", [x, m.fresh(m.dtypes[x], slope), m.operand(m.dtypes[x], shape)],
                     [m.dtypes[x]] * 2, **attrs)  # fmt: skip
    return m.add("PReLU", [x, m.operand(m.dtypes[x], slope)], **attrs)


def dropout(m: Maker) -> int:
    """Its result is no function that the oracle knows: nothing reads it."""
    dtype = m.choose(types_of("Dropout"))
    scalars = [m.fresh("s64", m.choose([(), (1,)]), low=0, high=1000) for _ in range(2)]
    scalars.append(m.fresh("f32", m.choose([(), (1,)]), how="uniform", low=0.0, high=0.9, any_value=False))
    return m.add("Dropout", [m.fresh(dtype, m.shape(), any_value=False), *scalars],
                 [dtype, "u8"] if m.chance(0.5) else dtype)  # fmt: skip


def end(m: Maker) -> int:
    """A mark on a result, which then leaves its partition."""
    found = m.live(types_of("End"))
    if not found:
        raise Refused("End")
    return m.add("End", [m.choose(found)], [])


def post_op(m: Maker, x: int) -> int:
    """An elementwise op behind another op, of the kinds that are fused."""
    dtype = m.dtypes[x]
    if dtype not in ("f32", "bf16", "f16"):
        raise Refused(dtype)
    if m.chance(0.5):
        kinds = ("ReLU", "Tanh", "Sigmoid", "GELU", "HardSwish", "Elu", "LeakyReLU", "Clamp", "Abs", "SoftPlus", "Mish",
                 "Square", "HardSigmoid")  # fmt: skip
        return unary(m, m.choose(kinds), x)
    return pair(m, m.choose(["Add", "Multiply", "Subtract", "Maximum", "Minimum", "Divide"]), x)


DRAWS: tuple[tuple[float, Callable[[Maker], int]], ...] = (
    (4, one_input), (0.3, test), (1.5, gradient), (5, binary), (0.7, select), (0.5, bias), (0.5, prelu), (0.2, dropout),
    (0.3, end),
)  # fmt: skip
