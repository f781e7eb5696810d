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

__all__ = [
    "TILE_THREADS", "are_few", "eltwise", "index_type", "matmul", "tile_depth", "tile_header", "tiles",
]  # fmt: skip

TILE_THREADS = 256
"""Of ``gp_tile.cuh``: threads of the block that computes a tile."""

_TILES = (8, 8), (4, 8), (4, 4), (2, 2)
"""Sums of a thread down and across a tile, which has 16 times as many rows and columns; the largest first."""
_INDEX_ROOM = 1 << 16  # tiles and stages go beyond the end
_USUAL = 4, 4
_FEW_TILES, _MANY_TILES = 128, 264
"""Fewer usual tiles than the first number leave multiprocessors of a large device idle, and smaller ones are faster;
from the second on there are two for each, and larger ones are. Measured on an H200.
"""
_MOST_COMPUTED = 1.3
"""Sums of tiles by sums that are wanted, for tiles that are not the smallest."""

_ELTWISE_THREADS = 256


def tile_header(a: str, b: str) -> str:
    """Who multiplies tiles of these types: tensor cores where both are bf16, whose products f32 holds."""
    return "gp_mma.cuh" if a == b == "bf16" else "gp_tile.cuh"


def tile_depth(a: str, b: str) -> int:
    """Terms of a stage of tiles of these types: ``GP_DEPTH`` of their header."""
    return 32 if tile_header(a, b) == "gp_mma.cuh" else 16


def index_type(*reached: Sequence[tuple[int, int]]) -> str:
    """The C++ type that holds sums of indices times strides: 32 bits, where numbers of 64 would be pairs, if it can.

    Each of `reached` is a list of (dim, stride).
    """
    most = max(sum(dim * max(abs(stride), 1) for dim, stride in axes) for axes in reached)
    return "int" if most < 2**31 - _INDEX_ROOM else "long long"


def tiles(source: KernelSource, count: int, rows: int, cols: int) -> int:
    """Define the tiles of `count` products of so many rows and columns: how many there are.

    Small tiles where large ones would be few, since a device has some hundred multiprocessors, or mostly empty.
    """
    for down, across in _TILES:
        found = _count_tiles(count, rows, cols, down, across)
        computed = 256 * down * across * found
        if (down, across) == _USUAL and found >= _FEW_TILES:
            break
        if found >= _MANY_TILES and computed <= _MOST_COMPUTED * count * rows * cols:
            break
    source.define(GP_DOWN=str(down), GP_ACROSS=str(across))
    return found


def _count_tiles(count: int, rows: int, cols: int, down: int, across: int) -> int:
    return count * -(-rows // (16 * down)) * -(-cols // (16 * across))


def are_few(count: int, rows: int, cols: int) -> bool:
    """Whether large tiles of so many products leave multiprocessors of a large device idle."""
    return _count_tiles(count, rows, cols, *_USUAL) < _MANY_TILES


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
    columns. Sums are f32, of bf16 by tensor cores. A block a tile.
    """
    source = KernelSource("matmul", tile_header(a[0], b[0]))
    count = prod(batch)
    source.numbers(batch=count, rows=rows, cols=cols, depth=depth)
    for name, (dtype, strides), axes in (("a", a, ("a_row", "a_depth")), ("b", b, ("b_depth", "b_col"))):
        source.load(name, dtype)
        source.view(f"batch_{name}", batch, strides[:-2])
        source.numbers(**dict(zip(axes, strides[-2:], strict=True)))
    blocks = tiles(source, count, rows, cols)
    of_a, of_b = ((sizes, at[1][-2:]) for sizes, at in (((rows, depth), a), ((depth, cols), b)))
    reached = [tuple(zip(*axes, strict=True)) for axes in (((rows, cols), (1, 1)), of_a, of_b)]
    source.define(GP_INDEX=index_type(*reached))
    nargs = 2 + add_program(source, program)
    return source.build(nargs, blocks, TILE_THREADS)


def dense(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    """Strides of some axes of the row-major space of a shape."""
    strides = dense_strides(shape)
    return [strides[axis] for axis in axes]
