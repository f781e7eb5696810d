"""Reduction kernels (``norm/reduce.c``) and walks along one axis (``norm/scan.c``)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError, explain
from graphpool.typing import dense_strides

from ..core.call import KernelCall, pack
from ..core.spaces import check_strides, normalise_axis, space, split_axes, take_contiguous

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["REDUCTIONS", "arg_extreme", "reduce", "running"]

_TILE = 64
_TASK_ELEMENTS = 16384
_VALUE, _ABS, _SQUARE, _BEST, _PRODUCT, _EXP = range(6)
_PLAIN, _MEAN, _ROOT, _LOG = range(4)

REDUCTIONS = {
    "sum": (_VALUE, _PLAIN, 1), "mean": (_VALUE, _MEAN, 1), "l1": (_ABS, _PLAIN, 1), "l2": (_SQUARE, _ROOT, 1),
    "sum_square": (_SQUARE, _PLAIN, 1), "max": (_BEST, _PLAIN, 1), "min": (_BEST, _PLAIN, -1),
    "prod": (_PRODUCT, _PLAIN, 1), "log_sum": (_VALUE, _LOG, 1), "log_sum_exp": (_EXP, _LOG, 1),
}  # fmt: skip
"""Name -> what is accumulated, what is done at the end, sign of x."""


def reduce(
    name: str,
    shape: Sequence[int],
    axes: Sequence[int],
    *,
    src_strides: Sequence[int] | None = None,
    dst_strides: Sequence[int] | None = None,
    epilogue: bytes = b"",
    isa: str | None = None,
) -> KernelCall:
    """Reduce f32 over a set of axes.

    Parameters
    ----------
    name : str
        A key of `REDUCTIONS`.
    shape : sequence of int
        Shape of src.
    axes : sequence of int
        Reduced axes, each once; negative counts from the end. None of them is a copy (or |x|, x^2, ...).
    src_strides : sequence of int, optional
        Dense by default. Unit: elements.
    dst_strides : sequence of int, optional
        One for each kept axis, dense by default. With an epilogue, the strides of its linear index.
    epilogue : bytes, optional
        Block of an elementwise program, run on the results instead of a plain write.
    isa : str, optional
        Instruction set; the best one by default.

    Returns
    -------
    KernelCall
        Arguments: src, dst, [the epilogue's]. Tasks: up to 64 neighbouring results each.

    Raises
    ------
    InvalidArgumentError
        Unknown name, or an axis given twice.
    InvalidShapeError
        Shape, axes and strides do not fit together.

    Notes
    -----
    A reduction of nothing gives the identity: 0, 1 for prod, -inf for max, inf for min, NaN for mean. NaN wins in max
    and min. Sums are blocked and collected in f64; squares that f32 cannot hold are added in f64.
    """
    term, finish, sign = _find_reduction(name)
    src = check_strides("src", shape, src_strides)
    reduced = [normalise_axis(axis, len(shape)) for axis in axes]
    if len(set(reduced)) != len(reduced):
        raise InvalidArgumentError(explain("reduced axes", accepted="each axis once", got=tuple(axes)))
    kept = [k for k in range(len(shape)) if k not in reduced]
    dst = check_strides("dst", [shape[k] for k in kept], dst_strides)
    values = _divide(shape, src, dst, kept, sorted(reduced))
    values |= {"term": term, "finish": finish, "sign": sign, "has_program": bool(epilogue)}
    ntasks = values.pop("outer_size") * -(-values["width"] // values["tile"])
    return pack("f32_reduce", values, ntasks=ntasks, tail=epilogue, isa=isa)


def arg_extreme(
    shape: Sequence[int],
    axis: int,
    *,
    is_min: bool = False,
    select_last_index: bool = False,
    src_strides: Sequence[int] | None = None,
    isa: str | None = None,
) -> KernelCall:
    """Index of the largest (or smallest) f32 along an axis; as in NumPy a NaN counts as the extreme.

    Parameters
    ----------
    shape : sequence of int
        Shape of src.
    axis : int
        The axis, not empty; negative counts from the end.
    is_min : bool, default=False
        Look for the smallest.
    select_last_index : bool, default=False
        Of equal extremes take the last instead of the first.
    src_strides : sequence of int, optional
        Dense by default. Unit: elements.
    isa : str, optional
        Instruction set; the best one by default.

    Returns
    -------
    KernelCall
        Arguments: src, dst; dst is dense, s64, of the other axes. Tasks: up to 64 lines each.

    Raises
    ------
    InvalidShapeError
        Shape, axis and strides do not fit together, or the axis is empty.
    UnsupportedError
        The axis has 2^31 elements or more.
    """
    src = check_strides("src", shape, src_strides)
    axis = normalise_axis(axis, len(shape))
    if shape[axis] == 0:
        raise InvalidShapeError(explain("axis of an extreme", accepted="at least one element", got=tuple(shape)))
    if shape[axis] >= 2**31:
        raise UnsupportedError(explain("axis of an extreme", accepted="less than 2^31 elements", got=shape[axis]))
    dst = list(dense_strides([dim for k, dim in enumerate(shape) if k != axis]))
    dst.insert(axis, 0)
    flags = {"is_min": is_min, "is_last": select_last_index}
    return _scan("f32_arg_extreme", shape, axis, src, dst, flags, isa)


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
    """Running sum or product along an axis.

    Parameters
    ----------
    shape : sequence of int
        Shape of src and dst.
    axis : int
        The axis; negative counts from the end.
    dtype : {"f32", "f64", "s64"}
        Type of src and dst. f32 is collected in f64; s64 wraps around.
    is_product : bool, default=False
    is_exclusive : bool, default=False
        Leave the element itself out of its own result.
    is_reverse : bool, default=False
        Go from the end.
    src_strides, dst_strides : sequence of int, optional
        Dense by default. Unit: elements.
    isa : str, optional
        Instruction set; the best one by default.

    Returns
    -------
    KernelCall
        Arguments: src, dst, which may be the same memory where strides are equal. Tasks: up to 64 lines each.

    Raises
    ------
    InvalidShapeError
        Shape, axis and strides do not fit together.
    """
    src, dst = check_strides("src", shape, src_strides), check_strides("dst", shape, dst_strides)
    flags = {"is_exclusive": is_exclusive, "is_reverse": is_reverse, "is_product": is_product}
    return _scan(f"{dtype}_running", shape, normalise_axis(axis, len(shape)), src, dst, flags, isa)


def _find_reduction(name: str) -> tuple[int, int, int]:
    if name not in REDUCTIONS:
        raise InvalidArgumentError(explain("unknown reduction", accepted=", ".join(REDUCTIONS), got=name))
    return REDUCTIONS[name]


def _divide(
    shape: Sequence[int], src: Sequence[int], dst: Sequence[int], kept: list[int], reduced: list[int]
) -> dict[str, Any]:
    """Split kept axes into outer and width, reduced ones into points and run."""
    points, [point_strides] = split_axes([shape[k] for k in reduced], [src[k] for k in reduced])
    dims, strides = split_axes([shape[k] for k in kept], [src[k] for k in kept], dst)
    count = prod(points)
    by_column = 1 in strides[0] and not (points and point_strides[-1] == 1)
    run, run_stride = (1, 1) if by_column or not points else (points.pop(), point_strides.pop())
    if by_column:
        width, width_strides = take_contiguous(dims, strides)
    else:
        width, width_strides = (dims.pop(), [s.pop() for s in strides]) if dims else (1, [0, 0])
    record, npoints = space(points, point_strides)
    outer, outer_size = space(dims, *strides)
    return {
        "points": record, "npoints": npoints, "run": run, "run_stride": run_stride, "outer": outer, "width": width,
        "width_stride": width_strides, "outer_size": outer_size, "by_column": by_column,
        "tile": _TILE if by_column else max(1, min(_TILE, _TASK_ELEMENTS // max(count, 1))),
    }  # fmt: skip


def _scan(
    name: str, shape: Sequence[int], axis: int, src: Sequence[int], dst: Sequence[int], flags: dict[str, Any],
    isa: str | None,
) -> KernelCall:  # fmt: skip
    rest = [k for k in range(len(shape)) if k != axis]
    dims, strides = split_axes([shape[k] for k in rest], [src[k] for k in rest], [dst[k] for k in rest])
    width, width_strides = (dims.pop(), [s.pop() for s in strides]) if dims else (1, [0, 0])
    outer, count = space(dims, *strides)
    values = {
        "outer": outer, "axis": shape[axis], "axis_stride": (src[axis], dst[axis]), "width": width,
        "width_stride": width_strides, **flags,
    }  # fmt: skip
    ntasks = count * -(-width // _TILE) if shape[axis] else 0
    return pack(name, values, ntasks=ntasks, isa=isa)
