"""Reduction kernels (``norm/reduce.c``, ``norm/reduce_wide.c``) and walks along one axis (``norm/scan.c``)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from graphpool._sizes import largest, least
from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError, explain
from graphpool.typing import dense_strides

from ..core.call import KernelCall, pack
from ..core.records import enumeration, number
from ..core.spaces import (
    check_strides,
    normalise_axis,
    space,
    split_axes,
    take_contiguous,
    take_innermost,
    without,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["REDUCTIONS", "arg_extreme", "reduce", "reduce_row", "running"]

_COLUMNS, _MOST_COLUMNS = number("GP_COLUMNS"), number("GP_MOST_COLUMNS")
_LEAST_TASKS = 8
"""Columns are divided among so many tasks before one takes more than `_COLUMNS`."""
_TASK_ELEMENTS = 16384
_TERMS, _FINISHES = enumeration("reduce_term"), enumeration("reduce_finish")

REDUCTIONS = {
    "sum": ("value", "plain", 1), "mean": ("value", "mean", 1), "l1": ("abs", "plain", 1), "l2": ("square", "root", 1),
    "max": ("best", "plain", 1), "min": ("best", "plain", -1), "prod": ("product", "plain", 1),
}  # fmt: skip
"""Name -> what is accumulated, what is done at the end, sign of x."""

_OF_ALL_TYPES = ("sum", "prod", "max", "min")


def reduce(
    name: str,
    shape: Sequence[int],
    axes: Sequence[int],
    *,
    dtype: str = "f32",
    src_strides: Sequence[int] | None = None,
    dst_strides: Sequence[int] | None = None,
    epilogue: bytes = b"",
    isa: str | None = None,
) -> KernelCall:
    """Reduce over a set of axes, each given once; over none it copies (or takes |x|, x^2, ...). Arguments: src, dst.

    `name` is a key of `REDUCTIONS`; dst_strides are those of the kept axes. A reduction of nothing gives the identity:
    0, 1 for prod, -inf or the least integer for max, inf or the largest one for min, NaN for mean. NaN wins in max and
    min. `dtype`, of both: f32, whose sums are blocked and collected in f64, as are squares that f32 cannot hold; f64;
    or an integer type of 8 to 64 bits, which wraps around. InvalidArgumentError: unknown name, or an axis given twice.
    UnsupportedError: a type other than f32 with an epilogue, or another name than sum, prod, max and min.
    Tasks: up to 512 neighbouring results each.
    """
    if name not in REDUCTIONS:
        raise InvalidArgumentError(explain("unknown reduction", accepted=", ".join(REDUCTIONS), got=name))
    term, finish, sign = REDUCTIONS[name]
    if dtype != "f32" and (epilogue or name not in _OF_ALL_TYPES):
        accepted = f"{', '.join(_OF_ALL_TYPES)} without an epilogue"
        raise UnsupportedError(explain(f"reduction of {dtype}", accepted=accepted, got=name), dtype=dtype)
    values = _divide(shape, axes, src_strides, dst_strides)
    values |= {"term": _TERMS[term], "finish": _FINISHES[finish], "sign": sign, "has_program": bool(epilogue)}
    ntasks = values.pop("outer_size") * -(-values["width"] // values["tile"])
    return pack(f"{dtype}_reduce", values, ntasks=ntasks, tail=epilogue, isa=isa)


def reduce_row(shape: Sequence[int], axes: Sequence[int], src_strides: Sequence[int]) -> tuple[int, int]:
    """How many results the kernel hands over to its epilogue at once, and how far they lie apart in a dense dst."""
    values = _divide(shape, axes, src_strides, None)
    return least(values["width"], values["tile"]), values["width_stride"][1]


def arg_extreme(
    shape: Sequence[int],
    axis: int,
    *,
    dtype: str = "f32",
    is_min: bool = False,
    select_last_index: bool = False,
    src_strides: Sequence[int] | None = None,
    isa: str | None = None,
) -> KernelCall:
    """Index of the largest (or smallest) element along an axis; as in NumPy a NaN counts as the extreme.

    Arguments: src, dst (s64, dense, of the other axes). `select_last_index`: of equal extremes the last instead of the
    first. `dtype` of src: f32, f64, s32, u32, s64 or u64. UnsupportedError: the axis has 2^31 elements or more.
    Tasks: up to 512 lines each.
    """
    src = check_strides("src", shape, src_strides)
    axis = normalise_axis(axis, len(shape))
    if shape[axis] == 0:
        raise InvalidShapeError(explain("axis of an extreme", accepted="at least one element", got=tuple(shape)))
    if shape[axis] >= 2**31:
        raise UnsupportedError(explain("axis of an extreme", accepted="less than 2^31 elements", got=shape[axis]))
    dst = list(dense_strides(*without(axis, shape)))
    dst.insert(axis, 0)
    flags = {"is_min": is_min, "is_last": select_last_index}
    return _scan(f"{dtype}_arg_extreme", shape, axis, src, dst, flags, isa)


def running(
    shape: Sequence[int],
    axis: int,
    *,
    dtype: str = "f32",
    is_product: bool = False,
    is_exclusive: bool = False,
    is_reverse: bool = False,
    src_strides: Sequence[int] | None = None,
    dst_strides: Sequence[int] | None = None,
    isa: str | None = None,
) -> KernelCall:
    """Running sum or product along an axis. Arguments: src, dst, which may be src where strides are equal.

    `dtype`, of both: f32, which is collected in f64, f64, or s32 and s64, which wrap around. `is_exclusive`: without
    the element itself; `is_reverse`: from the end. Tasks: up to 512 lines each.
    """
    src, dst = check_strides("src", shape, src_strides), check_strides("dst", shape, dst_strides)
    flags = {"is_exclusive": is_exclusive, "is_reverse": is_reverse, "is_product": is_product}
    return _scan(f"{dtype}_running", shape, normalise_axis(axis, len(shape)), src, dst, flags, isa)


def _divide(
    shape: Sequence[int], axes: Sequence[int], src_strides: Sequence[int] | None, dst_strides: Sequence[int] | None
) -> dict[str, Any]:
    """Split kept axes into outer and width, reduced ones into points and run."""
    src, reduced = check_strides("src", shape, src_strides), sorted(normalise_axis(axis, len(shape)) for axis in axes)
    if len(set(reduced)) != len(reduced):
        raise InvalidArgumentError(explain("reduced axes", accepted="each axis once", got=tuple(axes)))
    kept = [axis for axis in range(len(shape)) if axis not in reduced]
    dst = check_strides("dst", [shape[axis] for axis in kept], dst_strides)
    points, [point_strides] = split_axes([shape[k] for k in reduced], [src[k] for k in reduced])
    dims, strides = split_axes([shape[k] for k in kept], [src[k] for k in kept], dst)
    count = prod(points)
    by_column = 1 in strides[0] and not (points and point_strides[-1] == 1)
    run, run_stride = (1, 1) if by_column or not points else (points.pop(), point_strides.pop())
    width, width_strides = (take_contiguous if by_column else take_innermost)(dims, strides)
    walked, npoints = space(points, point_strides)
    outer, outer_size = space(dims, *strides)
    return {
        "points": walked, "npoints": npoints, "run": run, "run_stride": run_stride, "outer": outer, "width": width,
        "width_stride": width_strides, "outer_size": outer_size, "by_column": by_column,
        "tile": _tile(width, count) if by_column else largest(1, least(_COLUMNS, _TASK_ELEMENTS // largest(count, 1))),
    }  # fmt: skip


def _tile(width: int, count: int) -> int:
    """Columns, or lines, of a task, each of `count` elements."""
    most = largest(width // _LEAST_TASKS, _TASK_ELEMENTS // largest(count, 1))
    return least(_MOST_COLUMNS, largest(_COLUMNS, most // _COLUMNS * _COLUMNS))


def _scan(
    name: str, shape: Sequence[int], axis: int, src: Sequence[int], dst: Sequence[int], flags: dict[str, Any],
    isa: str | None,
) -> KernelCall:  # fmt: skip
    dims, strides = split_axes(*without(axis, shape, src, dst))
    width, width_strides = take_innermost(dims, strides)
    outer, count = space(dims, *strides)
    values = {
        "outer": outer, "axis": shape[axis], "axis_stride": (src[axis], dst[axis]), "width": width,
        "width_stride": width_strides, "tile": _tile(width, shape[axis]), **flags,
    }  # fmt: skip
    ntasks = count * -(-width // values["tile"]) if shape[axis] else 0
    return pack(name, values, ntasks=ntasks, isa=isa)
