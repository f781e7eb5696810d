"""Draws of ops that move elements, reach them by index, search, scan, convert or quantise them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tests.oracle.numbers import FLOATS, INTEGERS

from .draw_eltwise import types_of
from .draw_products import bytes_of, quantize_back, scales
from .maker import Maker, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["DRAWS"]

ANY = (*FLOATS, *[dtype for dtype in INTEGERS if dtype[1:] != "4"], "boolean")


def concat(m: Maker) -> int:
    x = m.source(ANY, low=1)
    dtype, shape = m.dtypes[x], m.shape_of(x)
    axis = m.integer(-len(shape), len(shape) - 1)
    parts = [x]
    for _ in range(m.choose([0, 1, 1, 2, 3, 7])):
        other = list(shape)
        other[axis] = m.integer(0, 6)
        parts.append(m.operand(dtype, other))
    return m.add("Concat", [parts[int(n)] for n in m.rng.permutation(len(parts))], axis=axis)


def reshape(m: Maker) -> int:
    x = m.source(ANY)
    shape, size = m.shape_of(x), math.prod(m.shape_of(x))
    draw = m.integer(0, 3)
    attrs: dict[str, Any] = {"special_zero": False}
    if draw == 0 and size:
        target = [-1]
    elif draw == 1:
        target, attrs["special_zero"] = [0 if m.chance(0.5) or dim == 0 else dim for dim in shape], True
    elif draw == 2 and size:
        divisors = [n for n in range(1, min(size, 60) + 1) if size % n == 0]
        first = m.choose(divisors)
        target = [first, -1, 1] if m.chance(0.5) else [1, size // first, first]
    else:
        target = [int(dim) for dim in m.rng.permutation(np.array(shape, dtype=int))] if shape else [1, 1]
    return m.add("StaticReshape", [x], shape=target, **attrs)


def transpose(m: Maker) -> int:
    x = m.source(ANY)
    ndim = len(m.shape_of(x))
    order = [int(axis) - (ndim if m.chance(0.2) else 0) for axis in m.rng.permutation(ndim)]
    return m.add("StaticTranspose", [x], order=[] if m.chance(0.1) else order)


def copy(m: Maker) -> int:
    x = m.source(ANY)
    dtype, shape = m.dtypes[x], m.shape_of(x)
    kind = m.choose(["Reorder", "Expand", "Tile", "Trilu", "GenIndex"])
    if kind == "Reorder":
        return m.add(kind, [x])
    if kind == "Expand":
        wanted = [m.choose([1, dim]) if dim != 1 else m.integer(0 if m.chance(0.05) else 1, 5) for dim in shape]
        wanted = [m.integer(1, 3)] * m.integer(0, 1) + wanted if len(shape) < 8 else wanted
        return m.add(
            kind, [x], shape=wanted[-len(wanted) + m.integer(0, 1) * (len(wanted) > 1) :] if wanted else wanted
        )
    if kind == "Tile":
        return m.add(kind, [x], repeats=[m.choose([1, 1, 2, 3, 0 if m.chance(0.1) else 1]) for _ in shape])
    if kind == "Trilu":
        if len(shape) < 2 or dtype.startswith("f8"):
            raise Refused(kind)
        return m.add(kind, [x], upper=m.chance(0.5), k=m.integer(-4, 4))
    if dtype not in types_of(kind, "T1") or not shape:
        raise Refused(kind)
    return m.add(kind, [x], "s32", axis=m.integer(-len(shape), len(shape) - 1))


def pad(m: Maker) -> int:
    x = m.source(ANY)
    dtype, shape = m.dtypes[x], m.shape_of(x)
    mode = m.choose(["constant", "constant", "reflect", "edge", "wrap"])
    least = -1 if mode == "constant" else 0
    before = [m.choose([0, 0, 1, 2, least]) for _ in shape]
    after = [m.choose([0, 0, 1, 3, least]) for _ in shape]
    if any(
        dim + a + b < 0 or (dim == 0 and mode != "constant") for dim, a, b in zip(shape, before, after, strict=True)
    ):
        raise Refused("pads")
    if any(dim + min(a, 0) + min(b, 0) < 0 for dim, a, b in zip(shape, before, after, strict=True)):
        raise Refused("pads")
    value = float(m.integer(0, 1 if dtype == "boolean" else 9)) if dtype not in FLOATS else m.choose([0.0, 1.5, -0.5])
    return m.add("Pad", [x], pads_begin=before, pads_end=after, mode=mode, value=value)


def slice_(m: Maker) -> int:
    x = m.source(ANY, low=1)
    shape = m.shape_of(x)
    axes = [int(axis) for axis in m.rng.permutation(len(shape))[: m.integer(1, len(shape))]]
    steps = [m.choose([1, 1, 1, 2, 3, -1, -2]) for _ in axes]
    starts = [m.integer(-shape[axis] - 2, shape[axis] + 2) for axis in axes]
    ends = [m.choose([m.integer(-shape[axis] - 2, shape[axis] + 2), 2**40, -(2**40)]) for axis in axes]
    axes = [axis - m.choose([0, len(shape)]) for axis in axes]
    return m.add("Slice", [x], starts=starts, ends=ends, axes=axes, steps=steps if m.chance(0.8) else [])


def split(m: Maker) -> int:
    x = m.source(ANY, low=1)
    dtype, shape = m.dtypes[x], m.shape_of(x)
    axis, count = m.integer(-len(shape), len(shape) - 1), m.integer(1, 4)
    attrs: dict[str, Any] = {}
    if m.chance(0.5):
        cuts = sorted(m.integer(0, shape[axis]) for _ in range(count - 1))
        attrs["split"] = [b - a for a, b in zip([0, *cuts], [*cuts, shape[axis]], strict=True)]
    return m.add("Split", [x], [dtype] * count, axis=axis, **attrs)


def indices(m: Maker, shape: Sequence[int], size: int) -> int:
    """Whole numbers for an axis of `size`, some of them negative."""
    low = -size if m.chance(0.3) else 0
    return m.fresh(m.choose(["s32", "s64"]), shape, low=low, high=max(size - 1, 0))


def by_index(m: Maker) -> int:
    x = m.source(ANY, low=1, zero=False)
    shape = m.shape_of(x)
    kind = m.choose(["Gather", "GatherElements", "GatherND"])
    if kind == "GatherND":
        batch = m.integer(0, min(len(shape) - 1, 1))
        length = m.integer(1, len(shape) - batch)
        index = indices(m, (*shape[:batch], *m.shape(0, 2, False), length), min(shape[batch : batch + length]))
        return m.add(kind, [x, index], m.dtypes[x], batch_dims=batch)
    axis = m.integer(-len(shape), len(shape) - 1)
    if kind == "Gather":
        return m.add(kind, [x, indices(m, m.shape(0, 2), shape[axis])], m.dtypes[x], axis=axis)
    smaller = [m.integer(1, dim) for dim in shape]
    smaller[axis] = m.integer(0, 9)
    return m.add(kind, [x, indices(m, smaller, shape[axis])], m.dtypes[x], axis=axis)


def scatter(m: Maker) -> int:
    x = m.source(ANY, low=1, zero=False)
    dtype, shape = m.dtypes[x], m.shape_of(x)
    reduction = m.choose(["none", "none", "add", "mul", "max", "min"])
    if reduction != "none" and (dtype == "boolean" or dtype.startswith("f8")):
        reduction = "none"
    if reduction == "add" and dtype in ("bf16", "f16"):
        raise Refused("sums in 16 bits")
    if m.chance(0.5):
        axis = m.integer(0, len(shape) - 1)
        smaller = [m.integer(1, min(dim, 9)) for dim in shape]
        if reduction == "none":
            index = m.fresh(m.choose(["s32", "s64"]), smaller, how="distinct", axis=axis, size=shape[axis])
        else:
            index = indices(m, smaller, shape[axis])
        return m.add("ScatterElements", [x, index, m.fresh(dtype, smaller)], axis=axis, reduction=reduction)
    length = m.integer(1, len(shape))
    count = m.integer(1, min(8, math.prod(shape[:length])))
    if reduction == "none":
        index = m.fresh(m.choose(["s32", "s64"]), (count, length), how="tuples", dims=list(shape[:length]))
    else:
        index = indices(m, (count, length), min(shape[:length]))
    return m.add("ScatterND", [x, index, m.fresh(dtype, (count, *shape[length:]))], reduction=reduction)


def one_hot(m: Maker) -> int:
    depth = m.integer(1, 9)
    index = m.fresh(m.choose([d for d in types_of("OneHot", "T1") if d[0] in "su"]), m.shape(0, 3), low=-2, high=depth)
    dtype = m.choose(types_of("OneHot", "T2"))
    ndim = len(m.shape_of(index)) + 1
    return m.add("OneHot", [index, m.fresh(dtype, (2,))], dtype, depth=depth, axis=m.integer(-ndim, ndim - 1))


def rotary(m: Maker) -> int:
    batch, heads, length, size = m.integer(1, 2), m.integer(1, 3), m.integer(1, 9), 2 * m.integer(1, 20)
    dtype = m.allowed(["f32", "bf16", "f16"])
    attrs: dict[str, Any] = {"interleaved": m.chance(0.5)}
    if m.chance(0.4):
        attrs["rotary_embedding_dim"] = 2 * m.integer(1, size // 2)
    half = (attrs.get("rotary_embedding_dim") or size) // 2
    if m.chance(0.5):
        x = m.operand(dtype, (batch, heads, length, size))
    else:
        attrs["num_heads"], x = heads, m.operand(dtype, (batch, length, heads * size))
    if m.chance(0.5):
        caches = [m.fresh(dtype, (12, half)) for _ in range(2)]
        return m.add("RotaryEmbedding", [x, *caches, indices(m, (batch, length), 12)], **attrs)
    return m.add("RotaryEmbedding", [x, *(m.fresh(dtype, (batch, length, half)) for _ in range(2))], **attrs)


def reverse_sequence(m: Maker) -> int:
    x = m.source(types_of("ReverseSequence", "T1"), low=2)
    shape = m.shape_of(x)
    batch, time = (int(axis) for axis in m.rng.permutation(len(shape))[:2])
    lengths = m.fresh(m.choose(["s32", "s64"]), (shape[batch],), low=0, high=shape[time])
    return m.add("ReverseSequence", [x, lengths], batch_axis=batch, time_axis=time - len(shape) * m.chance(0.3))


def search(m: Maker) -> int:
    kind = m.choose(["ArgMax", "ArgMin", "TopK"])
    x = m.source(types_of(kind, "T1"), low=1, zero=False)
    dtype, shape = m.dtypes[x], m.shape_of(x)
    axis = m.integer(-len(shape), len(shape) - 1)
    if kind == "TopK":
        k = m.integer(0, min(shape[axis], 20))
        return m.add(kind, [x], [dtype, "s64"], k=k, axis=axis, largest=m.chance(0.5), sorted=True)
    return m.add(kind, [x], "s64", axis=axis, keep_dims=m.chance(0.5), select_last_index=m.chance(0.3))


def scan(m: Maker) -> int:
    kind = m.choose(["CumSum", "CumProd"])
    x = m.source(types_of(kind), low=1)
    shape = m.shape_of(x)
    axis = m.integer(-len(shape), len(shape) - 1)
    if kind == "CumProd" and shape[axis] > 30:
        raise Refused("a product of many")
    return m.add(kind, [x], axis=axis, exclusive=m.chance(0.4), reverse=m.chance(0.4))


def cast(m: Maker) -> int:
    x = m.source(ANY)
    dtype = m.dtypes[x]
    target = m.choose([other for other in ANY if other != dtype])
    attrs = {"saturate": m.chance(0.5)} if target.startswith("f8") and m.chance(0.5) else {}
    return m.add("TypeCast", [x], target, **attrs)


def quantise(m: Maker) -> int:
    found = m.live({"f32"})
    x = m.choose(found) if found and m.chance(m.reuse) else m.fresh("f32", m.shape())
    shape = m.shape_of(x)
    target = m.choose(["u8", "s8", "u8", "s8", "f8_e5m2", "f8_e4m3"])
    per_channel = bool(shape) and 0 not in shape and m.chance(0.3)
    axis = m.integer(-len(shape), len(shape) - 1) if per_channel else 1
    count = shape[axis] if per_channel else 1
    if count > 300:
        raise Refused("many scales")
    attrs: dict[str, Any] = {"qtype": "per_channel", "axis": axis} if per_channel else {}
    if m.chance(0.3) and target in ("u8", "s8"):
        inputs = [x, m.fresh("f32", (count,), how="uniform", low=0.02, high=0.2, any_value=False)]
        if m.chance(0.5):
            zps = m.choose([target, "s32"])
            inputs.append(m.fresh(zps, (count,), low=0, high=60))
        return m.add("DynamicQuantize", inputs, target, **attrs)
    attrs["scales"] = scales(m, count, 0.02, 0.2)
    if target in ("u8", "s8"):
        attrs["zps"] = [m.integer(0, 60) for _ in range(count)]
        attrs["rounds_first"] = m.chance(0.3)
    y = m.add("Quantize", [x], target, **attrs)
    if m.chance(0.5):
        own = {name: value for name, value in attrs.items() if name != "rounds_first"}
        return m.add("Dequantize", [y], "f32", **own)
    return y


def bytes_through(m: Maker) -> int:
    """Ops between a Dequantize and a Quantize, which may be a table of 256 bytes."""
    x = bytes_of(m, m.shape(0, 4))
    for _ in range(m.integer(0, 3)):
        kind = m.choose(["GELU", "Tanh", "HardSwish", "Sigmoid", "ReLU", "Square"])
        x = m.add(kind, [x])
    return quantize_back(m, x)


def by_range(m: Maker) -> int:
    x = m.source({"f32"})
    return m.add("DynamicQuantizeLinear", [x], ["u8", "f32", "u8"])


def trees(m: Maker) -> int:
    """Nodes, of which about half have children that come behind them."""
    dtype, nfeatures = m.choose(["f32", "f32", "f64"]), m.integer(1, 6)
    found = [x for x in m.live({dtype}, low=2, high=2) if m.shape_of(x)[1] > 0]
    x = m.choose(found) if found and m.chance(m.reuse) else m.fresh(dtype, (m.integer(1, 140), nfeatures))
    nnodes, nentries, ntargets = m.integer(1, 60), m.integer(0, 20), m.integer(1, 4)
    out, constant = m.choose(["f32", "f64"]), m.chance(0.7)
    parts = [
        (dtype, (nnodes,), {}), ("s32", (nnodes, 3), {"low": -1, "high": nnodes}),
        ("s32", (m.integer(0, 40),), {"low": -1, "high": nnodes}), (out, (nentries,), {}),
        ("s32", (nentries,), {"low": -1, "high": ntargets}), (out, (ntargets,), {}),
    ]  # fmt: skip
    inputs = [m.fresh(kind, shape, constant, **fill) for kind, shape, fill in parts]
    return m.add("TreeEnsemble", [x, *inputs], out, aggregate=m.choose(["sum", "sum", "average", "min", "max"]))


DRAWS: tuple[tuple[float, Callable[[Maker], int]], ...] = (
    (1, concat), (1, reshape), (1, transpose), (1.2, copy), (0.8, pad), (1.2, slice_), (0.8, split), (1, by_index),
    (0.8, scatter), (0.4, one_hot), (0.4, rotary), (0.3, reverse_sequence), (1, search), (1, scan), (1, cast),
    (1.2, quantise), (0.7, bytes_through), (0.3, by_range), (0.4, trees),
)  # fmt: skip
