"""Nearest and linear resampling of one to three spatial axes, any layout, with an elementwise epilogue.

Result o of an axis that goes from n to m elements reads the source at

    half_pixel      (o + 1/2) n / m - 1/2
    align_corners   o (n - 1) / (m - 1)           0 where m = 1

Nearest takes the nearest element, halves upward (oneDNN rounds half away from zero: the same for what lies inside), and
clips it to the axis. Linear clips the coordinate to [0, n - 1] and weighs its two neighbours. Coordinates are exact
ratios of integers. A neighbour of weight 0 is not read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, InvalidShapeError, explain

from ..core.call import KernelCall, pack
from ..core.records import record
from ..gemm.post_ops import NO_POST_OPS, PostOps
from ..gemm.problem import aligned
from .window import MOST_LANES, Window, channel_block, plan_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["resample"]

_MODES = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "trilinear": "linear"}


def resample(
    mode: str,
    batch: int,
    channels: int,
    src_spatial: Sequence[int],
    dst_spatial: Sequence[int],
    *,
    src_strides: Sequence[int],
    dst_strides: Sequence[int],
    coordinate_transformation_mode: str = "half_pixel",
    post_ops: PostOps = NO_POST_OPS,
    isa: str | None = None,
) -> KernelCall:
    """A kernel that resamples images; the module says how coordinates are computed, `window.Window` what images are.

    Arguments: src, dst. `mode` is nearest, linear, bilinear or trilinear: the linear modes differ in name only, every
    spatial axis is interpolated. InvalidShapeError also where results are wanted from an empty source. Scratch holds
    the coordinate tables of the last axis, 12 bytes for each result, and of the one before, 4 bytes. Cost: linear reads
    2 to 8 elements a result. Tasks: a row of results and block of channels each.
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
    rows, ntasks, scratch = plan_rows(window, batch, channels, post_ops)
    if 0 in window.src:
        if window.pixels:
            raise InvalidShapeError(explain("source of resampling is empty", got=tuple(src_spatial)))
        ntasks = 0
    tables = scratch + aligned(4 * channel_block(window, channels) * (window.src[2] + MOST_LANES))
    table_nbytes = 4 * (window.dst[2] + MOST_LANES)
    fields = {
        "low_offset": tables, "high_offset": tables + table_nbytes, "weight_offset": tables + 2 * table_nbytes,
        "line_offset": tables + 3 * table_nbytes,
        "aligns_corners": transformation == "align_corners", "epilogue_offset": record("gp_resample").nbytes,
    }  # fmt: skip
    return pack(
        f"f32_resample_{_MODES[mode]}", {"rows": rows, **fields},
        ntasks=ntasks, scratch_nbytes=tables + 3 * table_nbytes + 4 * window.dst[1], tail=post_ops.epilogue, isa=isa,
    )  # fmt: skip
