"""Draws of ops over windows and rows: pooling, interpolation, normalisation, softmax, reductions, recurrence."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from .draw_eltwise import types_of
from .draw_products import FLOAT, image_like, laid_out, tail, window_attrs
from .maker import Maker, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DRAWS"]


def image(m: Maker, data_format: str, most: int = 9) -> tuple[int, list[int]]:
    """An image and its spatial sizes."""
    x = image_like(m)
    if x is None or math.prod(m.shape_of(x)) > 4000:
        count = m.choose([1, 2, 2, 2, 3])
        sizes = [m.integer(1, most if count < 3 else 5) for _ in range(count)]
        channels = m.choose([1, 2, 3, 8, 15, 16, 17, 20, 33, 64])
        x = m.fresh(m.allowed(FLOAT), laid_out(data_format, m.choose([1, 1, 2, 3]), channels, sizes))
    shape = m.shape_of(x)
    return x, list(shape[2:] if data_format == "NCX" else shape[1:-1])


def pool(m: Maker) -> int:
    kind, data_format = m.choose(["AvgPool", "MaxPool"]), m.choose(["NCX", "NXC"])
    x, sizes = image(m, data_format)
    kernel = [m.integer(1, min(n + 1, 4)) for n in sizes]
    attrs = window_attrs(m, sizes, kernel, kind == "MaxPool") | {"kernel": kernel, "data_format": data_format}
    attrs["rounding_type"] = m.choose(["floor", "floor", "ceil"])
    if kind == "AvgPool":
        attrs["exclude_pad"] = m.chance(0.5)
        del attrs["dilations"]
    if not covers_data(sizes, attrs):
        raise Refused("a window of padding")
    back = m.chance(0.2) and attrs["rounding_type"] == "floor"
    y = m.add(kind, [x], **attrs)
    if not back:
        return tail(m, y)
    diff, shape = m.fresh(m.dtypes[y], m.shape_of(y)), m.shape_of(x)
    own = {name: value for name, value in attrs.items() if name != "rounding_type"}
    if kind == "AvgPool" and m.chance(0.3):
        return m.add("AvgPoolBackward", [diff, m.numbers(shape)], **own)
    if kind == "AvgPool":
        return m.add("AvgPoolBackward", [diff], src_shape=list(shape), **own)
    return m.add("MaxPoolBackward", [m.fresh(m.dtypes[x], shape), diff], **own)


def covers_data(sizes: list[int], attrs: dict[str, Any]) -> bool:
    """Whether every window meets an element that is no padding, as far as explicit padding goes."""
    if attrs.get("auto_pad", "None") not in ("None",):
        return True
    for n, k, d, s, a, b in zip(sizes, attrs["kernel"], attrs.get("dilations", [1] * len(sizes)), attrs["strides"],
                                attrs["pads_begin"], attrs["pads_end"], strict=True):  # fmt: skip
        steps = (n + a + b - d * (k - 1) - 1) / s
        count = (math.ceil(steps) if attrs["rounding_type"] == "ceil" else math.floor(steps)) + 1
        if any(not any(0 <= p * s - a + t * d < n for t in range(k)) for p in range(count)):
            return False
    return True


def interpolate(m: Maker) -> int:
    data_format = m.choose(["NCX", "NXC"])
    x, sizes = image(m, data_format, 6)
    attrs: dict[str, Any] = {"mode": m.choose(["nearest", "linear"]), "data_format": data_format}
    if len(sizes) > 1 and attrs["mode"] == "linear":
        attrs["mode"] = m.choose(["linear", "bilinear" if len(sizes) == 2 else "trilinear"])
    attrs["coordinate_transformation_mode"] = m.choose(["half_pixel", "align_corners"])
    if m.chance(0.3):
        attrs["scales"] = [m.choose([2.0, 0.5, 1.5, 3.0, 1.0]) for _ in sizes]
        if any(int(n * s) < 1 for n, s in zip(sizes, attrs["scales"], strict=True)):
            raise Refused("scales")
    else:
        attrs["sizes"] = [m.integer(1, 9) for _ in sizes]
    if m.chance(0.3):
        out = attrs.get("sizes") or [int(np.float32(n * s)) for n, s in zip(sizes, attrs["scales"], strict=True)]
        shape = m.shape_of(x)
        channels = shape[1 if data_format == "NCX" else -1]
        diff = m.fresh(m.dtypes[x], laid_out(data_format, shape[0], channels, out))
        return m.add("InterpolateBackward", [x, diff], m.dtypes[x], **attrs)
    if "sizes" in attrs and m.chance(0.2):
        return m.add("Interpolate", [x, m.numbers(attrs.pop("sizes"))], m.dtypes[x], **attrs)
    return tail(m, m.add("Interpolate", [x], **attrs))


def parameter_type(m: Maker, dtype: str) -> str:
    return "bf16" if dtype == "bf16" and m.chance(0.4) else "f32"


def variance(m: Maker, dtype: str, shape: tuple[int, ...]) -> int:
    return m.fresh(dtype, shape, how="uniform", low=0.3, high=2.0, any_value=False)


def batch_norm(m: Maker) -> int:
    x = m.source(FLOAT, low=2, zero=False)
    dtype, shape, data_format = m.dtypes[x], m.shape_of(x), m.choose(["NCX", "NXC"])
    other = parameter_type(m, dtype)
    channels = (shape[1 if data_format == "NCX" else -1],)
    attrs: dict[str, Any] = {"epsilon": m.choose([1e-5, 0.01, 0.5]), "data_format": data_format}
    draw = m.integer(0, 3)
    if draw <= 1:
        params = [m.operand(other, channels, True) for _ in range(3)]
        return m.add("BatchNormInference", [x, *params, variance(m, other, channels)], **attrs)
    attrs["epsilon"] = max(attrs["epsilon"], 0.01)
    if draw == 2:
        affine = [m.fresh(other, channels) for _ in range(m.integer(0, 2))]
        attrs |= {"momentum": m.choose([0.1, 0.9, 0.5, 0.0, 1.0])} if m.chance(0.9) else {}
        inputs = [x, m.fresh(other, channels), variance(m, other, channels), *affine]
        return m.add("BatchNormForwardTraining", inputs, [dtype] + [other] * 4, **attrs)
    gamma = [m.fresh(other, channels)] if m.chance(0.6) else []
    inputs = [x, m.operand(dtype, shape), m.fresh(other, channels), variance(m, other, channels), *gamma]
    return m.add("BatchNormTrainingBackward", inputs, [dtype, *([other] * m.integer(0, 2))], **attrs)


def row_norm(m: Maker) -> int:
    x = m.source(FLOAT, low=1, zero=False)
    dtype, shape = m.dtypes[x], m.shape_of(x)
    begin = m.choose([-1, -1, m.integer(-len(shape), len(shape) - 1)])
    attrs: dict[str, Any] = {"begin_norm_axis": begin, "epsilon": m.choose([1e-5, 0.01, 0.5])}
    inner = shape[begin:]
    normal = inner if m.chance(0.7) else tuple(dim if m.chance(0.7) else 1 for dim in inner)
    if m.chance(0.35):
        gamma = [m.operand(m.choose([dtype, "f32"]), normal)] if m.chance(0.7) else []
        return tail(m, m.add("RMSNorm", [x, *gamma], dtype, **attrs))
    other = parameter_type(m, dtype)
    if math.prod(inner) < 3:
        raise Refused("too few elements for a variance")
    if m.chance(0.25):
        outer = shape[: len(shape) - len(inner)]
        use = m.chance(0.7)
        affine = [m.fresh(other, normal) for _ in range(m.integer(0, 2))]
        inputs = [x, m.operand(dtype, shape), m.fresh(other, outer), variance(m, other, outer), *affine]
        return m.add("LayerNormBackward", inputs, [dtype, *([other] * 2 if use else [])], use_affine=use, **attrs)
    keep, affine = m.chance(0.5), [m.operand(other, normal) for _ in range(m.choose([0, 2, 2]))]
    attrs |= {"keep_stats": keep, "use_affine": m.chance(0.8)}
    y = m.add("LayerNorm", [x, *affine], [dtype, *([other] * 2 if keep else [])], **attrs)
    return tail(m, y)


def group_norm(m: Maker) -> int:
    data_format, groups = m.choose(["NCX", "NXC"]), m.integer(1, 4)
    channels = groups * m.integer(1, 6)
    sizes = [m.integer(1, 7) for _ in range(m.integer(1, 3))]
    dtype = m.allowed(FLOAT)
    x = m.operand(dtype, laid_out(data_format, m.integer(1, 3), channels, sizes))
    if channels // groups * math.prod(sizes) < 3:
        raise Refused("too few elements for a variance")
    other, keep = parameter_type(m, dtype), m.chance(0.5)
    affine = [m.operand(other, (channels,)) for _ in range(m.choose([0, 2, 2]))]
    attrs = {"groups": groups, "data_format": data_format, "keep_stats": keep, "use_affine": m.chance(0.8),
             "epsilon": m.choose([1e-5, 0.01])}  # fmt: skip
    return tail(m, m.add("GroupNorm", [x, *affine], [dtype, *([other] * 2 if keep else [])], **attrs))


def softmax(m: Maker) -> int:
    kind = m.choose(["SoftMax", "SoftMax", "LogSoftmax", "SoftMaxBackward", "LogSoftmaxBackward"])
    x = m.source(FLOAT, low=1)
    dtype, shape = m.dtypes[x], m.shape_of(x)
    attrs: dict[str, Any] = {"axis": m.integer(-len(shape), len(shape) - 1)}
    if kind.endswith("Backward"):
        y = m.fresh(
            dtype, shape, how="uniform", low=0.0 if kind[0] == "S" else -3.0, high=1.0 if kind[0] == "S" else 0.0
        )
        out = m.choose([dtype, "f32"]) if kind[0] == "S" else dtype
        return m.add(kind, [x, y], out, **attrs)
    if kind == "LogSoftmax":
        return tail(m, m.add(kind, [x], **attrs))
    attrs["mode"] = m.choose(["none", "none", "inf_as_zero"])
    out = m.choose([dtype, dtype, "f32", "bf16"]) if dtype == "f32" else m.choose([dtype, "f32"])
    return tail(m, m.add(kind, [x], [out, "f32"] if m.chance(0.25) else out, **attrs))


def reduction(m: Maker) -> int:
    kind = m.choose(["ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"])
    x = m.source(types_of(kind, "T1"), low=1, zero=kind in ("ReduceSum", "ReduceProd", "ReduceL1"))
    shape = m.shape_of(x)
    count = m.integer(1, len(shape))
    axes = [int(axis) - m.choose([0, len(shape)]) for axis in m.rng.permutation(len(shape))[:count]]
    if kind == "ReduceProd" and math.prod(shape[axis] for axis in axes) > 40:
        raise Refused("a product of many")
    if m.chance(0.1):
        return m.add(kind, [x, m.numbers(axes)], keep_dims=m.chance(0.5))
    y = m.add(kind, [x], axes=axes, keep_dims=m.chance(0.5))
    return tail(m, y) if m.dtypes[y] in FLOAT else y


def recurrent(m: Maker) -> int:
    cell, direction = m.choose(["rnn", "gru", "lstm"]), m.choose(["forward", "reverse", "bidirectional"])
    directions, gates = 1 + (direction == "bidirectional"), {"rnn": 1, "gru": 3, "lstm": 4}[cell]
    steps, batch, hidden = m.integer(0, 5), m.choose([1, 1, 2, 6, 7, 9]), m.choose([1, 3, 4, 8, 15, 16, 17, 24])
    dtype, width = m.allowed(FLOAT), gates * hidden
    attrs: dict[str, Any] = {"cell": cell, "direction": direction, "transpose_b": m.chance(0.5)}
    if m.chance(0.3):
        attrs["clip"] = m.choose([0.5, 1.25])
    if m.chance(0.3):
        names = ["sigmoid", "tanh", "affine", "scaledtanh", "hardsigmoid", "softsign"]
        count = directions * {"rnn": 1, "gru": 2, "lstm": 3}[cell]
        attrs["activations"] = " ".join(m.choose(names) for _ in range(count))
        attrs |= {name: [m.choose([0.25, 0.5]) for _ in range(count)] for name in ("alpha", "beta")}
    attrs["linear_before_reset" if cell == "gru" else "input_forget"] = m.chance(0.4)
    weights = (directions, width, hidden) if attrs["transpose_b"] else (directions, hidden, width)
    rows = m.choose([1, batch])
    inputs = [
        m.operand(dtype, (steps, batch, directions * width)), m.fresh(dtype, weights, m.chance(0.7)),
        m.fresh(dtype, (directions, 2 * width)), m.fresh("s32", (m.choose([1, batch]),), low=0, high=steps),
        *(m.fresh(dtype, (directions, rows, hidden)) for _ in range(2 if cell == "lstm" else 1)),
    ]  # fmt: skip
    if cell == "lstm" and m.chance(0.4):
        inputs.append(m.fresh(dtype, (directions, 3 * hidden)))
    return tail(m, m.add("Recurrent", inputs, [dtype] * (3 if cell == "lstm" else 2), **attrs))


DRAWS: tuple[tuple[float, Callable[[Maker], int]], ...] = (
    (1.5, pool), (1, interpolate), (1, batch_norm), (1.5, row_norm), (0.6, group_norm), (1.5, softmax), (2, reduction),
    (0.6, recurrent),
)  # fmt: skip
