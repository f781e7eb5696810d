"""Softmax, norms and reductions: a block of threads for each row."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from .products import dense
from .program import add_program
from .source import KernelSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..eltwise.eltwise import Program
    from .source import CudaCall

__all__ = ["REDUCTIONS", "norm", "reduce", "softmax"]

_LARGEST, _LEAST = "__uint_as_float(0x7f800000u)", "__uint_as_float(0xff800000u)"

REDUCTIONS = {
    "sum": ("0.0f", "(a) + (b)", "(x)", "(x)"),
    "mean": ("0.0f", "(a) + (b)", "(x)", "(x) / (float)p.cols"),
    "prod": ("1.0f", "(a) * (b)", "(x)", "(x)"),
    "max": (_LEAST, "gp_max(a, b)", "(x)", "(x)"),
    "min": (_LARGEST, "gp_min(a, b)", "(x)", "(x)"),
    "l1": ("0.0f", "(a) + (b)", "fabsf(x)", "(x)"),
    "l2": ("0.0f", "(a) + (b)", "(x) * (x)", "sqrtf(x)"),
}
"""Mode -> the neutral number, and as expressions: a and b joined, an element x, the result of the joined x."""


def _rows(family: str, shape: Sequence[int], axes: Sequence[int], dtype: str, strides: Sequence[int]) -> KernelSource:
    """A kernel whose rows run along `axes`, which are counted from the front."""
    kept = [axis for axis in range(len(shape)) if axis not in axes]
    source = KernelSource(family, "gp_block.cuh")
    source.load("src", dtype)
    for name, own in (("row", kept), ("col", list(axes))):
        dims = [shape[axis] for axis in own]
        source.numbers(**{f"{name}s": prod(dims)})
        source.view(f"{name}_src", dims, [strides[axis] for axis in own])
        source.view(f"{name}_dst", dims, dense(shape, own))
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
    mode: str, shape: Sequence[int], axes: Sequence[int], dtype: str, strides: Sequence[int], program: Program
) -> CudaCall:
    """A reduction of `REDUCTIONS` over axes. Arguments: src, those of the program over the other axes."""
    source = _rows("reduce", shape, axes, dtype, strides)
    neutral, join, element, result = REDUCTIONS[mode]
    source.define(GP_NEUTRAL=neutral)
    source.define(**{"GP_JOIN(a, b)": join, "GP_ELEMENT(x)": element, "GP_RESULT(x)": result})
    return _build(source, 1 + add_program(source, program), shape, axes)
