"""Softmax, norms, reductions and walks along rows: a block of threads for each."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

import numpy as np

from graphpool.typing import DataType

from .products import dense
from .program import add_program, add_store
from .source import KernelSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..eltwise.eltwise import Program
    from .source import CudaCall

__all__ = ["REDUCTIONS", "best", "norm", "reduce", "running", "softmax"]

REDUCTIONS = {
    "sum": ("0", "gp_add(a, b)", "(x)", "(x)"),
    "mean": ("0", "gp_add(a, b)", "(x)", "(x) / (GP_REG)p.cols"),
    "prod": ("1", "gp_mul(a, b)", "(x)", "(x)"),
    "max": ("GP_LEAST", "gp_max(a, b)", "(x)", "(x)"),
    "min": ("GP_MOST", "gp_min(a, b)", "(x)", "(x)"),
    "least": ("0", "gp_min(a, b)", "(gp_is_nan(x) != 0 ? 0 : x)", "(x)"),
    "greatest": ("0", "gp_max(a, b)", "(gp_is_nan(x) != 0 ? 0 : x)", "(x)"),
    "l1": ("0", "gp_add(a, b)", "gp_abs(x)", "(x)"),
    "l2": ("0", "gp_add(a, b)", "(x) * (x)", "gp_sqrt(x)"),
}
"""Mode -> the neutral number, and as expressions: a and b joined, an element x, the result of the joined x.

``least`` and ``greatest`` are those of the numbers and 0; a NaN is none.
"""


def _define_limits(source: KernelSource, dtype: str) -> None:
    """Say what no element passes: ``GP_LEAST`` and ``GP_MOST``."""
    numpy = DataType(dtype).numpy
    if source.register == "s64":
        limits = np.iinfo(numpy)
        source.define(GP_LEAST=f"({limits.min + 1}ll - 1)", GP_MOST=f"{limits.max}ll")
    else:
        source.define(GP_LEAST="__uint_as_float(0xff800000u)", GP_MOST="__uint_as_float(0x7f800000u)")


def _rows(
    family: str,
    shape: Sequence[int],
    axes: Sequence[int],
    dtype: str,
    strides: Sequence[int],
    register: str = "f32",
    result: Sequence[int] | None = None,
) -> KernelSource:
    """A kernel whose rows run along `axes`, which are counted from the front; `result` is the result's shape."""
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    source = KernelSource(family, "gp_block.cuh", register=register)
    source.load("src", dtype)
    for name, own in (("row", kept), ("col", list(axes))):
        dims = [shape[axis] for axis in own]
        source.numbers(**{f"{name}s": prod(dims)})
        source.view(f"{name}_src", dims, [strides[axis] for axis in own])
        source.view(f"{name}_dst", dims, dense(shape if result is None else result, own))
    return source


def _build(source: KernelSource, nargs: int, shape: Sequence[int], axes: Sequence[int]) -> CudaCall:
    cols = prod(shape[axis] for axis in axes)
    threads = min(256, max(32, 1 << (cols - 1).bit_length())) if cols else 32
    return source.build(nargs, prod(shape[axis] for axis in range(len(shape)) if axis not in axes), threads)


def softmax(
    shape: Sequence[int],
    axis: int,
    dtype: str,
    strides: Sequence[int],
    program: Program,
    *,
    is_log: bool = False,
    inf_as_zero: bool = False,
    stats: bool = False,
) -> CudaCall:
    """Softmax or log-softmax over one axis. Arguments: src, [stats], those of the program, whose space is `shape`.

    Stats are f32, one number for each row, dense; else as `graphpool._kernels.norm.softmax.softmax`.
    """
    source = _rows("softmax", shape, [axis], dtype, strides)
    source.numbers(inf_as_zero=inf_as_zero)
    source.define(GP_IS_LOG=str(int(is_log)), GP_STATS_ARG="char *stats," if stats else "")
    store = "gp_store_f32(stats, row, x)" if stats else "((void)0)"
    source.define(**{"GP_STORE_STATS(row, x)": store})
    return _build(source, 1 + stats + add_program(source, program), shape, [axis])


def norm(
    shape: Sequence[int],
    axes: Sequence[int],
    dtype: str,
    strides: Sequence[int],
    affine: Sequence[tuple[str, Sequence[int]]],
    program: Program,
    *,
    epsilon: float,
    is_rms: bool = False,
    stats: bool = False,
) -> CudaCall:
    """Layer, group or RMS norm over `axes`, which are counted from the front.

    Arguments: src, those of `affine`, [mean, variance], those of the program, whose space is `shape`. `affine` has
    element type and strides of gamma and of beta, by all axes; either may be left out, beta first.
    """
    source = _rows("norm", shape, axes, dtype, strides)
    names = ("gamma", "beta")[: len(affine)]
    value = "(x)"
    for name, (own, along), sign in zip(names, affine, "*+", strict=False):
        source.load(name, own)
        source.view(name, shape, along)
        value = f"{value} {sign} gp_load_{name}({name}, gp_{name}(p, i))"
    source.reals(epsilon=epsilon)
    source.define(
        GP_IS_RMS=str(int(is_rms)),
        GP_AFFINE_ARGS="".join(f"const char *{name}, " for name in names),
        GP_STATS_ARGS="char *means, char *variances," if stats else "",
    )
    store = "(gp_store_f32(means, row, mean), gp_store_f32(variances, row, variance))" if stats else "((void)0)"
    source.define(**{"GP_AFFINE(x, i)": value, "GP_STORE_STATS(row, mean, variance)": store})
    return _build(source, 1 + len(names) + 2 * stats + add_program(source, program), shape, axes)


def reduce(
    mode: str,
    shape: Sequence[int],
    axes: Sequence[int],
    dtype: str,
    strides: Sequence[int],
    program: Program | None,
    *,
    register: str = "f32",
) -> CudaCall:
    """A reduction of `REDUCTIONS` over axes. Arguments: src, those of the program over the other axes.

    Without a program the one other argument is the result, dense, of the type of src. Integers are computed exactly in
    registers of s64, modulo the range of their type; mean, l1 and l2 are those of floats.
    """
    source = _rows("reduce", shape, axes, dtype, strides, register)
    neutral, join, element, result = REDUCTIONS[mode]
    _define_limits(source, dtype)
    source.define(GP_NEUTRAL=neutral)
    source.define(**{"GP_JOIN(a, b)": join, "GP_ELEMENT(x)": element, "GP_RESULT(x)": result})
    nargs = add_store(source, dtype) if program is None else add_program(source, program)
    return _build(source, 1 + nargs, shape, axes)


def running(
    shape: Sequence[int],
    axis: int,
    dtype: str,
    strides: Sequence[int],
    *,
    register: str,
    is_product: bool = False,
    is_exclusive: bool = False,
    is_reverse: bool = False,
) -> CudaCall:
    """Running sums or products along an axis. Arguments: src, dst, which is dense and of the same type.

    They are collected in the register. Else as `graphpool._kernels.norm.reduce.running`.
    """
    source = _rows("running", shape, [axis], dtype, strides, register)
    neutral, join, *_ = REDUCTIONS["prod" if is_product else "sum"]
    source.numbers(is_exclusive=is_exclusive, is_reverse=is_reverse)
    source.define(**{"GP_NEUTRAL": neutral, "GP_JOIN(a, b)": join, "gp_store_dst": f"gp_store_{dtype}"})
    return _build(source, 2, shape, [axis])


def best(
    shape: Sequence[int],
    axis: int,
    count: int,
    dtype: str,
    strides: Sequence[int],
    *,
    register: str,
    is_largest: bool,
    is_nan_first: bool,
    is_last: bool = False,
    has_values: bool = False,
) -> CudaCall:
    """The `count` largest or smallest elements of each line, in order. Arguments: src, indices (s64), [values].

    Results are dense, `count` in place of the axis. A NaN comes before all numbers or behind them; of equal elements
    the one in front comes first, or with `is_last` the one behind. Cost: a pass over the line for each.
    """
    result = [count if k == axis else dim for k, dim in enumerate(shape)]
    source = _rows("best", shape, [axis], dtype, strides, register, result)
    source.numbers(
        count=count, step=prod(shape[axis + 1 :]), is_largest=is_largest, is_nan_first=is_nan_first, is_last=is_last
    )
    store = f"gp_store_{dtype}(values, i, x)" if has_values else "((void)0)"
    source.define(**{"GP_VALUES_ARG": "char *values," if has_values else "", "GP_STORE_VALUE(i, x)": store})
    return _build(source, 2 + has_values, shape, [axis])
