"""Extension kinds that cut, repeat, pad, or rotate."""

from __future__ import annotations

import numpy as np

from .indexing import within
from .registry import Array, Attrs, reference


@reference("Expand", raw=True)
def _expand(attrs: Attrs, src: Array) -> Array:
    return np.broadcast_to(src, np.broadcast_shapes(src.shape, tuple(attrs["shape"])))


@reference("Slice", raw=True)
def _slice(attrs: Attrs, src: Array) -> Array:
    """A Python slice along each axis."""
    starts, ends = attrs["starts"], attrs["ends"]
    cut = [slice(None)] * src.ndim
    for k, axis in enumerate(attrs["axes"] or range(len(starts))):
        cut[axis] = slice(starts[k], ends[k], attrs["steps"][k] if attrs["steps"] else 1)
    return src[tuple(cut)]


@reference("Split", typed=True, raw=True)
def _split(attrs: Attrs, src: Array) -> tuple[Array, ...]:
    dim, count = src.shape[attrs["axis"]], attrs["noutputs"]
    sizes = attrs["split"] or [-(-dim // count)] * (count - 1)
    return tuple(np.split(src, np.cumsum(sizes, dtype=np.int64)[: count - 1], axis=attrs["axis"]))


@reference("Tile", raw=True)
def _tile(attrs: Attrs, src: Array) -> Array:
    return np.tile(src, attrs["repeats"])


@reference("Pad", raw=True)
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


@reference("Trilu", raw=True)
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
