"""Elementwise programs by themselves, and matrix products."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphpool.typing import dense_strides

from .program import add_program
from .source import KernelSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..eltwise.eltwise import Program
    from .source import CudaCall

__all__ = ["TILE", "TILE_THREADS", "eltwise", "matmul", "tile_header"]

TILE, TILE_THREADS = 64, 256
"""Of ``gp_tile.cuh``: rows and columns of a tile, threads of its block."""

_ELTWISE_THREADS = 256


def tile_header(a: str, b: str) -> str:
    """Who multiplies tiles of these types: tensor cores where both are bf16, whose products f32 holds."""
    return "gp_mma.cuh" if a == b == "bf16" else "gp_tile.cuh"


def eltwise(program: Program) -> CudaCall:
    """A program by itself: arguments as its loads and stores number them. A thread an index."""
    source = KernelSource("eltwise", register=program.register)
    size = prod(program.shape)
    source.numbers(size=size)
    nargs = add_program(source, program)
    return source.build(nargs, -(-size // _ELTWISE_THREADS), _ELTWISE_THREADS)


def matmul(
    batch: Sequence[int],
    rows: int,
    cols: int,
    depth: int,
    a: tuple[str, Sequence[int]],
    b: tuple[str, Sequence[int]],
    program: Program,
) -> CudaCall:
    """Products of matrices. Arguments: a, b, then those of the program, whose space is (batch..., rows, cols).

    `a` and `b` are an element type and strides: one for each axis of the batch, 0 to broadcast, then for rows and
    columns. Sums are f32, of bf16 by tensor cores. A block a tile of `TILE` rows and columns.
    """
    source = KernelSource("matmul", tile_header(a[0], b[0]))
    count = prod(batch)
    source.numbers(batch=count, rows=rows, cols=cols, depth=depth)
    for name, (dtype, strides), axes in (("a", a, ("a_row", "a_depth")), ("b", b, ("b_depth", "b_col"))):
        source.load(name, dtype)
        source.view(f"batch_{name}", batch, strides[:-2])
        source.numbers(**dict(zip(axes, strides[-2:], strict=True)))
    nargs = 2 + add_program(source, program)
    return source.build(nargs, count * -(-rows // TILE) * -(-cols // TILE), TILE_THREADS)


def dense(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """Strides of some axes of the row-major space of a shape."""
    strides = dense_strides(shape)
    return [strides[axis] for axis in axes]
