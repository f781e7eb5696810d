"""Nearest and linear resampling of one to three spatial axes, any layout, with an elementwise epilogue.

Result o of an axis that goes from n to m elements reads the source at

    half_pixel      (o + 1/2) / scale - 1/2       scale = m / n, exactly, unless one is given
    align_corners   o (n - 1) / (m - 1)           0 where m = 1; scales play no part

Nearest takes the nearest element, halves upward (oneDNN rounds half away from zero: the same for what lies inside), and
clips it to the axis. Linear clips the coordinate to [0, n - 1] and weighs its two neighbours. Without given scales the
coordinates are exact ratios of integers. A neighbour of weight 0 is not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.errors import InvalidArgumentError, InvalidShapeError, explain

from ..core.call import KernelCall, pack
from ..core.records import record
from ..gemm.post_ops import NO_POST_OPS, PostOps
from .window import MOST_LANES, Window, channel_block, plan_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["resample"]

_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear"}


def _coordinates(n: int, m: int, transformation: str, scale: float | None) -> tuple[NDArray[Any], int | float]:
    """Numerators and the common denominator of the source coordinate of each result."""
    out = np.arange(m)
    if transformation == "align_corners":
        return out * (n - 1), max(m - 1, 1)
    if scale is None:
        return (2 * out + 1) * n - m, 2 * m
    return (2 * out + 1) - scale, 2 * scale


def _tables(n: int, m: int, mode: str, transformation: str, scale: float | None) -> list[NDArray[Any]]:
    """The two source indices of each result, int32, and the weight of the second one, float32."""
    numerator, denominator = _coordinates(n, m, transformation, scale)
    if mode == "nearest":
        index = np.clip((2 * numerator + denominator) // (2 * denominator), 0, n - 1).astype(np.int32)
        return [index, index, np.zeros(m, np.float32)]
    numerator = np.clip(numerator, 0, (n - 1) * denominator)
    low = np.minimum(numerator // denominator, n - 1).astype(np.int32)
    weight = ((numerator - low * denominator) / denominator).astype(np.float32)
    high = np.where(weight > 0, np.minimum(low + 1, n - 1), low).astype(np.int32)
    return [low, high, weight]


def _tail(axes: Sequence[Sequence[NDArray[Any]]]) -> tuple[bytes, dict[str, Any]]:
    """The tables of all axes as bytes behind the fixed block, each on 8 bytes, and the fields that say where."""
    begin = record("gp_resample").nbytes
    tail, fields = b"", dict[str, Any](low_offset=[], high_offset=[], weight_offset=[])
    for tables in axes:
        for places, table in zip(fields.values(), tables, strict=True):
            places.append(begin + len(tail))
            tail += table.tobytes() + bytes(4 * (MOST_LANES + table.size % 2))
    return tail, fields | {"epilogue_offset": begin + len(tail)}


def _checked_scales(scales: Sequence[float] | None, ndim: int) -> list[float | None]:
    """Scales for three axes; None stands for the exact ratio of the sizes."""
    if scales is None:
        return [None, None, None]
    if len(scales) != ndim or not all(0 < scale < float("inf") for scale in scales):
        raise InvalidShapeError(explain("scales", accepted=f"{ndim} finite values > 0", got=tuple(scales)))
    return [None] * (3 - ndim) + [float(scale) for scale in scales]


def resample(
    mode: str,
    batch: int,
    channels: int,
    src_spatial: Sequence[int],
    dst_spatial: Sequence[int],
    *,
    src_strides: Sequence[int],
    dst_strides: Sequence[int],
    scales: Sequence[float] | None = None,
    coordinate_transformation_mode: str = "half_pixel",
    post_ops: PostOps = NO_POST_OPS,
    isa: str | None = None,
) -> KernelCall:
    """A kernel that resamples images; the module says how coordinates are computed, `window.Window` what images are.

    Arguments: src, dst. `mode` is nearest, linear, bilinear or trilinear: the linear modes differ in name only, every
    spatial axis is interpolated. `scales`: what half_pixel divides by, for each axis; dst_spatial / src_spatial by
    default. InvalidShapeError also where results are wanted from an empty source. The parameter block holds the
    coordinate tables: 12 bytes for each element of each result axis. Cost: linear reads 2 to 8 elements a result.
    Tasks: a row of results and block of channels each.
    """
    post_ops.check_only_epilogue()
    transformation = coordinate_transformation_mode
    if mode not in _MODES:
        raise InvalidArgumentError(explain("mode of resampling", accepted=", ".join(_MODES), got=repr(mode)))
    if transformation not in ("half_pixel", "align_corners"):
        accepted = "half_pixel, align_corners"
        raise InvalidArgumentError(explain("coordinate_transformation_mode", accepted=accepted, got=transformation))
    window = Window.make(
        src_spatial, dst_spatial, [1] * len(src_spatial), strides=None, dilations=None, pads_begin=None,
        src_strides=src_strides, dst_strides=dst_strides,
    )  # fmt: skip
    if 0 in window.src and window.pixels:
        raise InvalidShapeError(explain("source of resampling is empty", got=tuple(src_spatial)))
    factors = _checked_scales(scales, len(src_spatial))
    tables = [
        _tables(n, m, _MODES[mode], transformation, scale)
        for n, m, scale in zip(window.src, window.dst, factors, strict=True)
    ]
    tail, fields = _tail(tables)
    rows, ntasks, scratch = plan_rows(window, batch, channels, post_ops)
    scratch += 4 * channel_block(window, channels) * (window.src[2] + MOST_LANES)
    return pack(
        f"f32_resample_{_MODES[mode]}", {"rows": rows, **fields},
        ntasks=ntasks, scratch_nbytes=scratch, tail=tail + post_ops.epilogue, isa=isa,
    )  # fmt: skip
