"""Softmax and log-softmax kernels (``norm/softmax.c``)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphpool._sizes import least

from ..core.call import KernelCall, pack
from ..core.records import number
from ..core.spaces import check_strides, normalise_axis, space, split_axes, take_contiguous, without

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["softmax", "softmax_row"]

_COLUMNS = number("GP_COLUMNS")


def softmax(
    shape: Sequence[int],
    axis: int,
    *,
    is_log: bool = False,
    inf_as_zero: bool = False,
    stats: bool = False,
    src_strides: Sequence[int] | None = None,
    dst_strides: Sequence[int] | None = None,
    stats_strides: Sequence[int] | None = None,
    epilogue: bytes = b"",
    isa: str | None = None,
) -> KernelCall:
    """Softmax over one axis: exp(x - max) / sum(exp(x - max)), or its logarithm (x - max) - log(sum(exp(x - max))).

    Arguments: src, [stats], dst. `stats` asks for max + log(sum(exp(x - max))), of the shape of src with 1 at `axis`.
    With `inf_as_zero` a row of nothing but -inf gives zeros instead of NaN (but not log-softmax). A NaN, or +inf, makes
    its row NaN. src and dst may be the same memory where their strides are equal. Tasks: rows, or tiles of columns
    where the axis is strided.
    """
    src, dst = check_strides("src", shape, src_strides), check_strides("dst", shape, dst_strides)
    axis = normalise_axis(axis, len(shape))
    stat = check_strides("stats", [*shape[:axis], 1, *shape[axis + 1 :]], stats_strides)
    dims, strides, width, inner_strides = _divide(shape, axis, src, dst, stat)
    outer, count = space(dims, *strides)
    values = {
        "outer": outer, "axis": shape[axis], "axis_stride": (src[axis], dst[axis]), "inner": width,
        "inner_stride": inner_strides,
        "is_log": is_log, "inf_as_zero": inf_as_zero, "has_stats": stats, "has_program": bool(epilogue),
    }  # fmt: skip
    ntasks = count * -(-width // _COLUMNS) if prod(shape) else 0
    scratch_nbytes = 4 * shape[axis] * least(width, _COLUMNS)
    return pack("f32_softmax", values, ntasks=ntasks, scratch_nbytes=scratch_nbytes, tail=epilogue, isa=isa)


def softmax_row(shape: Sequence[int], axis: int, src_strides: Sequence[int]) -> tuple[int, int]:
    """How many results the kernel hands over to its epilogue at once, and how far they lie apart in a dense dst."""
    axis, dst = normalise_axis(axis, len(shape)), check_strides("dst", shape, None)
    _, _, width, (_, step) = _divide(shape, axis, tuple(src_strides), dst)
    return (width, step) if width > 1 else (shape[axis], dst[axis])


def _divide(
    shape: Sequence[int], axis: int, src: Sequence[int], *others: Sequence[int]
) -> tuple[list[int], list[list[int]], int, list[int]]:
    """The other axes and their strides in each operand, but for the one along which columns lie, its size and strides.

    That is one column without strides where the axis itself is contiguous.
    """
    dims, strides = split_axes(*without(axis, shape, src, *others))
    width, steps = take_contiguous(dims, strides) if src[axis] != 1 else (1, [0] * len(strides))
    return dims, strides, width, steps
