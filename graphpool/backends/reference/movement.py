"""Operations that move or convert elements, whole, in parts or by index, and RotaryEmbedding, which turns pairs.

Reorder returns its input: the layout is not the reference's concern. `evaluate` rounds what TypeCast returns. A
negative index counts from the end; one outside its axis is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import normalize_axis_index

from .axes import within
from .registry import Array, Attrs, reference
from .rounding import round_to, widen


@reference("Reorder", "raw")
def _reorder(attrs: Attrs, src: Array) -> Array:
    return src


@reference("TypeCast", "typed")
def _type_cast(attrs: Attrs, src: Array) -> Array:
    """Floats lose their fraction on the way to an integer."""
    if attrs["dtype"].value[0] in "su" and src.dtype.kind == "f":
        return np.trunc(src)
    return src if attrs.get("saturate", True) else round_to(src, attrs["dtype"], saturate=False)


@reference("Concat", "raw")
def _concat(attrs: Attrs, *sources: Array) -> Array:
    return np.concatenate(sources, axis=attrs["axis"])


def _target_shape(shape: Sequence[int], src: Array, special_zero: bool) -> list[int]:
    """The shape with zeros copied from src (if special_zero) and -1 resolved; -1 among zero-size dims is 0."""
    target = [src.shape[i] if dim == 0 and special_zero else dim for i, dim in enumerate(shape)]
    if -1 in target:
        known = math.prod(dim for dim in target if dim != -1)
        target[target.index(-1)] = src.size // known if known else 0
    return target


@reference("StaticReshape", "raw")
def _static_reshape(attrs: Attrs, src: Array) -> Array:
    return src.reshape(_target_shape(attrs["shape"], src, attrs["special_zero"]))


@reference("StaticTranspose", "raw")
def _static_transpose(attrs: Attrs, src: Array) -> Array:
    """Axis i of dst is axis order[i] of src; an empty order reverses the axes."""
    return src.transpose(attrs["order"] or None)


@reference("GenIndex")
def _gen_index(attrs: Attrs, src: Array) -> Array:
    """The position of each element along axis."""
    axis = normalize_axis_index(attrs["axis"], src.ndim)
    position = np.arange(src.shape[axis]).reshape([-1 if i == axis else 1 for i in range(src.ndim)])
    return np.broadcast_to(position, src.shape)


# ---- parts and copies


@reference("Expand", "raw")
def _expand(attrs: Attrs, src: Array) -> Array:
    return np.broadcast_to(src, np.broadcast_shapes(src.shape, tuple(attrs["shape"])))


@reference("Slice", "raw")
def _slice(attrs: Attrs, src: Array) -> Array:
    """A Python slice along each axis."""
    starts, ends = attrs["starts"], attrs["ends"]
    cut = [slice(None)] * src.ndim
    for k, axis in enumerate(attrs["axes"] or range(len(starts))):
        cut[axis] = slice(starts[k], ends[k], attrs["steps"][k] if attrs["steps"] else 1)
    return src[tuple(cut)]


@reference("Split", "typed", "raw")
def _split(attrs: Attrs, src: Array) -> tuple[Array, ...]:
    dim, count = src.shape[attrs["axis"]], attrs["noutputs"]
    sizes = attrs["split"] or [-(-dim // count)] * (count - 1)
    return tuple(np.split(src, np.cumsum(sizes, dtype=np.int64)[: count - 1], axis=attrs["axis"]))


@reference("Tile", "raw")
def _tile(attrs: Attrs, src: Array) -> Array:
    return np.tile(src, attrs["repeats"])


@reference("Pad", "raw")
def _pad(attrs: Attrs, src: Array) -> Array:
    """NumPy's pad, after negative amounts are cut off."""
    before, after = attrs["pads_begin"], attrs["pads_end"]
    if attrs["mode"] != "constant":
        return np.pad(src, list(zip(before, after, strict=True)), mode=attrs["mode"]) if src.ndim else src
    value = int(attrs["value"]) if src.dtype.kind in "iub" else attrs["value"]
    shape = [dim + a + b for dim, a, b in zip(src.shape, before, after, strict=True)]
    result = np.full(shape, value, src.dtype)
    kept = [
        slice(min(max(-a, 0), dim), max(min(dim + b, dim), 0))
        for dim, a, b in zip(src.shape, before, after, strict=True)
    ]
    part = src[tuple(kept)]
    result[tuple(slice(max(a, 0), max(a, 0) + n) for a, n in zip(before, part.shape, strict=True))] = part
    return result


@reference("Trilu", "raw")
def _trilu(attrs: Attrs, src: Array) -> Array:
    height, width = src.shape[-2:]
    k = min(max(attrs["k"], -height), width)
    return np.triu(src, k) if attrs["upper"] else np.tril(src, k)


@reference("RotaryEmbedding")
def _rotary(attrs: Attrs, src: Array, cos: Array, sin: Array, ids: Array | None = None) -> Array:
    """(a cos - b sin, a sin + b cos) for each pair (a, b) of the rotated elements of a head."""
    x = src if src.ndim == 4 else src.reshape(*src.shape[:2], attrs["num_heads"], -1).swapaxes(1, 2)
    if ids is not None:
        cos, sin = (cache[within(ids, len(cache))] for cache in (cos, sin))
    cos, sin = cos[:, None], sin[:, None]
    half = cos.shape[-1]
    a, b = _pairs(half, attrs["interleaved"])
    result = x.copy()
    result[..., a] = x[..., a] * cos - x[..., b] * sin
    result[..., b] = x[..., a] * sin + x[..., b] * cos
    return result if src.ndim == 4 else result.swapaxes(1, 2).reshape(src.shape)


def _pairs(half: int, interleaved: bool) -> tuple[slice, slice]:
    """Where the first and the second elements of the pairs lie."""
    if interleaved:
        return slice(0, 2 * half, 2), slice(1, 2 * half, 2)
    return slice(0, half), slice(half, 2 * half)


# ---- by index


def _tuples(indices: Array, dims: Sequence[int]) -> tuple[Array, ...]:
    """The columns of index tuples."""
    return tuple(within(indices[..., k], dims[k]) for k in range(indices.shape[-1]))


def _along(indices: Array, axis: int, dim: int) -> tuple[Array, ...]:
    """Coordinates of the elements that indices along an axis mean."""
    places: list[Any] = list(np.indices(indices.shape, sparse=True))
    places[axis] = within(indices, dim)
    return tuple(places)


@reference("Gather", "raw")
def _gather(attrs: Attrs, src: Array, indices: Array) -> Array:
    return np.take(src, within(indices, src.shape[attrs["axis"]]), axis=attrs["axis"])


@reference("GatherElements", "raw")
def _gather_elements(attrs: Attrs, src: Array, indices: Array) -> Array:
    return np.asarray(src[_along(indices, attrs["axis"], src.shape[attrs["axis"]])])


@reference("GatherND", "raw")
def _gather_nd(attrs: Attrs, src: Array, indices: Array) -> Array:
    batch = attrs["batch_dims"]
    lead = [k.reshape(k.shape + (1,) * (indices.ndim - 1 - batch)) for k in np.indices(src.shape[:batch], sparse=True)]
    return np.asarray(src[(*lead, *_tuples(indices, src.shape[batch:]))])


@reference("ReverseSequence", "raw")
def _reverse_sequence(attrs: Attrs, src: Array, lengths: Array) -> Array:
    batch, time = attrs["batch_axis"] % src.ndim, attrs["time_axis"] % src.ndim
    rows = np.moveaxis(src, (batch, time), (0, 1))
    steps, lengths = np.arange(rows.shape[1]), lengths.reshape(-1, 1)
    places = np.where(lengths < 0, lengths - rows.shape[1], np.where(steps < lengths, lengths - 1 - steps, steps))
    sources = within(places, rows.shape[1])
    return np.moveaxis(rows[np.arange(len(rows)).reshape(-1, 1), sources], (0, 1), (batch, time))


_REDUCTIONS: dict[str, Callable[..., None]] = {
    "add": np.add.at, "mul": np.multiply.at, "max": np.maximum.at, "min": np.minimum.at,
}  # fmt: skip


def _scatter(attrs: Attrs, src: Array, places: tuple[Array, ...], updates: Array) -> Array:
    """A copy of src with updates put in or reduced into it, in order: of equal places the last one stays."""
    reduce = _REDUCTIONS.get(attrs["reduction"])
    result = (src if reduce is None else widen(src)).copy()
    if reduce is None:
        result[places] = updates
    else:
        reduce(result, places, widen(updates))
    return result


@reference("ScatterElements", "raw")
def _scatter_elements(attrs: Attrs, src: Array, indices: Array, updates: Array) -> Array:
    return _scatter(attrs, src, _along(indices, attrs["axis"], src.shape[attrs["axis"]]), updates)


@reference("ScatterND", "raw")
def _scatter_nd(attrs: Attrs, src: Array, indices: Array, updates: Array) -> Array:
    return _scatter(attrs, src, _tuples(indices, src.shape), updates)


@reference("OneHot", "raw")
def _one_hot(attrs: Attrs, indices: Array, values: Array) -> Array:
    """Indices lose their fraction; one outside -depth .. depth - 1 is hot nowhere."""
    depth = attrs["depth"]
    wide = widen(indices)
    position = np.trunc(wide) if wide.dtype.kind == "f" else wide.astype(np.int64)
    position = np.expand_dims(np.where(position < 0, position + depth, position), attrs["axis"])
    shape = [1] * position.ndim
    shape[attrs["axis"]] = depth
    return np.asarray(np.where(position == np.arange(depth).reshape(shape), values[1], values[0]))
