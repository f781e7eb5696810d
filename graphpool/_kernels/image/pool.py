"""Maximum and average pooling in one to three spatial axes, any layout, with an elementwise epilogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, explain

from ..core.call import DTYPE_CODES, KernelCall, pack
from ..core.records import number
from ..gemm.post_ops import NO_POST_OPS, PostOps
from .window import MOST_LANES, Window, fill_geometry, plan_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["pooling"]

_LINES = number("GP_POOL_ROWS")
"""Rows of results whose lines are filled together."""

_SHORT_LINE = 4096
"""Elements of a line up to which its padding is of no matter."""


def pooling(
    mode: str,
    batch: int,
    channels: int,
    src_spatial: Sequence[int],
    dst_spatial: Sequence[int],
    kernel: Sequence[int],
    *,
    src_strides: Sequence[int],
    dst_strides: Sequence[int],
    strides: Sequence[int] | None = None,
    pads_begin: Sequence[int] | None = None,
    pads_end: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    exclude_pad: bool = True,
    src_dtype: str = "f32",
    zero_point: int = 0,
    post_ops: PostOps = NO_POST_OPS,
    isa: str | None = None,
) -> KernelCall:
    """A kernel for the maximum or the mean of each window.

    Arguments: src, dst; geometry as of `window.Window`. max: padding never wins, a NaN in the window does; a window of
    padding only gives -inf. avg: a window in which no cell counts gives 0; `exclude_pad` divides by the cells inside
    the source, without it also those of pads_begin and pads_end count, but never what lies beyond them (ONNX
    ``count_include_pad``). The result extent decides between floor and ceil rounding: windows may stick out.
    `src_dtype` u8 and s8 want channels side by side in src and dst, and give the maximum or mean of the integers less
    `zero_point`.

    Cost: with channels side by side on both sides a load for each tap, else for each row and each column of the kernel;
    taps outside the source cost next to nothing, however many there are. Sums are f32. Tasks: a row of results and
    block of channels each.
    """
    post_ops.check_only_epilogue()
    if mode not in ("max", "avg"):
        raise InvalidArgumentError(explain("mode of pooling", accepted="max, avg", got=repr(mode)))
    window = Window.make(
        src_spatial, dst_spatial, kernel, strides=strides, dilations=dilations, pads_begin=pads_begin,
        src_strides=src_strides, dst_strides=dst_strides,
    )  # fmt: skip
    if src_dtype != "f32" and not (src_dtype in ("u8", "s8") and window.channels_last and window.src_strides[1] == 1):
        accepted = "f32, or u8 and s8 with channels side by side"
        raise InvalidArgumentError(explain("source of pooling", accepted=accepted, got=(src_dtype, tuple(src_strides))))
    ndim = len(src_spatial)
    ends = [*[0] * (3 - ndim), *fill_geometry(ndim, None, pads_end, None, None)[1]]
    rows, ntasks, room_offset = plan_rows(window, batch, channels, post_ops)
    counted = [extent + (0 if exclude_pad else end) for extent, end in zip(window.src, ends, strict=True)]
    fields = {
        "rows": rows, "counted": counted, "exclude_pad": exclude_pad, "src_dtype": DTYPE_CODES[src_dtype],
        "zero": zero_point + (128 if src_dtype == "s8" else 0), "is_sparse": _is_sparse(window),
    }  # fmt: skip
    name = f"{'f32' if src_dtype == 'f32' else 'x8'}_{mode}_pool"
    scratch_nbytes = room_offset + 4 * (window.dst[2] + _line_elements(window))
    return pack(name, fields, ntasks=ntasks, scratch_nbytes=scratch_nbytes, tail=post_ops.epilogue, isa=isa)


def _reach(window: Window) -> int:
    """Elements of a line that windows reach which make whole vectors of results."""
    results = -(-window.dst[2] // MOST_LANES) * MOST_LANES
    return results * window.strides[2] + (window.kernel[2] - 1) * window.dilations[2]


def _is_sparse(window: Window) -> bool:
    """Whether lines with their padding were much longer than what is read and written."""
    return _reach(window) > 4 * (window.src[2] + window.dst[2]) + _SHORT_LINE


def _line_elements(window: Window) -> int:
    """Room for the lines of some rows and a blank one, a vector more each, and one behind them."""
    return (_LINES + 1) * ((window.src[2] if _is_sparse(window) else _reach(window)) + MOST_LANES) + MOST_LANES
