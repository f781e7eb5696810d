"""Matrix products: batches, any strides, f32 and f64, an elementwise epilogue on every tile.

Two implementations, one kernel name each: ``f32_matmul_blas`` calls SciPy's BLAS on tiles, ``f32_matmul_simd`` runs our
own register-blocked loops (`gemm/gemm.c`), which need no packing call and no BLAS threads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, UnsupportedError, explain

from ..core._dispatch import blas_slot, isas
from ..core.call import KernelCall, pack
from .post_ops import NO_POST_OPS, PostOps
from .problem import MatmulProblem, merge_batch

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BLAS_INT_MAX", "PANEL_NBYTES", "aligned", "choose_matmul", "matmul", "needs_pack"]

BLAS_INT_MAX = 2**31 - 1
"""Largest extent or stride that BLAS takes."""

PANEL_NBYTES = 512
"""Bytes of scratch that one row of a panel of the own loops takes (``GP_PANEL_NBYTES``)."""

_BLOCKS = {"blas": (256, 512), "simd": (64, 512)}
"""Most rows and columns of a task: a tile stays in L2; BLAS gets more rows because it packs B anew for each tile."""

_SMALL = 64**3
"""Multiply-adds of a product (about 5 microseconds) from which on columns are split, so that threads can share it."""


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to whole cache lines of 64 bytes."""
    return (nbytes + 63) // 64 * 64


def needs_pack(rows: int, cols: int, row_stride: int, col_stride: int) -> bool:
    """Whether BLAS cannot read a matrix where it lies: neither rows nor columns are contiguous and disjoint."""
    by_rows = (col_stride == 1 or cols <= 1) and (row_stride >= cols or rows <= 1)
    by_cols = (row_stride == 1 or rows <= 1) and (col_stride >= rows or cols <= 1)
    return not (by_rows or by_cols) or max(row_stride, col_stride) > BLAS_INT_MAX


@dataclass(frozen=True)
class _Problem:
    """The checked geometry: batch axes as (size, a stride, b stride, dst stride), outermost first."""

    batch: tuple[tuple[int, ...], ...]
    m: int
    n: int
    k: int
    a_row: int
    a_col: int
    b_row: int
    b_col: int
    dst_row: int

    @classmethod
    def of(cls, problem: MatmulProblem, b: Sequence[int]) -> _Problem:
        """Check what `MatmulProblem` has not, and merge batch axes."""
        ndim, a, c = len(problem.batch_shape), problem.a_strides, problem.c_strides
        problem.check_strides("b_strides", b, 2)
        dst_row = max(problem.n, 1) if problem.m <= 1 else c[-1]
        batch = tuple(zip(problem.batch_shape, a[:ndim], b[:ndim], c[:ndim], strict=True))
        return cls(batch, problem.m, problem.n, problem.k, a[-2], a[-1], b[-2], b[-1], dst_row)._merged()

    def _merged(self) -> _Problem:
        """Rows of consecutive matrices that share B become rows of one matrix; axes of size one vanish."""
        batch, m, (a_row, dst_row) = merge_batch(self.batch, self.m, (self.a_row, self.dst_row))
        return _Problem(batch, m, self.n, self.k, a_row, self.a_col, self.b_row, self.b_col, dst_row)

    def fits_blas(self) -> bool:
        """Whether every extent that BLAS sees fits its integer."""
        return max(self.k, self.n, self.dst_row) <= BLAS_INT_MAX

    def transposed_b(self) -> bool:
        """Whether the columns of B are not contiguous along n."""
        return self.b_col != 1 and self.n > 1


def choose_matmul(m: int, *, transposed_b: bool = False, isa: str | None = None, macs: int | None = None) -> str:
    """The faster implementation for one product: ``"blas"`` or ``"simd"``.

    Measured on one core of an AMD EPYC (family 25) with SciPy 1.17's OpenBLAS 0.3, time of simd:avx512 and simd:avx2
    over that of blas for m x n x k. B by rows: 4x768x3072 0.34 and 0.96, 16x768x768 0.48 and 0.65, 128x128x64 0.83 and
    0.87, 256x256x256 0.93 and 1.07, 512x512x512 0.96 and 1.12, 1024x1024x1024 0.93 and 1.26. Transposed B, which the
    own loops must copy: 1x768x768 3.04 and 2.90, 2x768x768 2.95 and 3.28, 4x768x768 0.56 and 0.56, 128x128x64 0.84 and
    0.86, 512x512x512 0.95 and 1.04. Without fused multiply-add (``generic``) the own loops win only up to a few rows. A
    run that calls BLAS takes 6 us more, for the setting of its threads, so a small product is not left to it.

    Parameters
    ----------
    m : int
        Rows of A; n and k move the two alike.
    transposed_b : bool, default=False
        The columns of B are contiguous instead of its rows.
    isa : str, optional
        Instruction set; the best one by default.
    macs : int, optional
        m x n x k.
    """
    name = isa or isas()[-1]
    if macs is not None and macs <= _SMALL and name != "generic":
        return "simd"
    if transposed_b and m <= 2:
        return "blas"
    most = {"generic": 8 if transposed_b else 4, "avx2": 64, "neon": 64}.get(name)
    return "simd" if most is None or m <= most or (transposed_b and name == "avx2") else "blas"


def _choose(problem: _Problem, dtype: str, impl: str, isa: str | None) -> str:
    """The implementation to use, checked against what the problem allows."""
    if impl not in ("auto", "blas", "simd"):
        raise InvalidArgumentError(explain("impl", accepted="auto, blas, simd", got=repr(impl)))
    if impl == "blas" and not problem.fits_blas():
        raise UnsupportedError(explain("a matrix too large for BLAS", accepted=f"extents <= {BLAS_INT_MAX}"))
    if impl != "auto":
        return impl
    if not problem.fits_blas():
        return "simd"
    if dtype == "f64":
        return "blas"
    macs = problem.m * problem.n * problem.k
    return choose_matmul(problem.m, transposed_b=problem.transposed_b(), isa=isa, macs=macs)


def matmul(
    problem: MatmulProblem,
    b_strides: Sequence[int],
    post_ops: PostOps = NO_POST_OPS,
    *,
    impl: str = "auto",
    exact_depth: int = 0,
    isa: str | None = None,
) -> KernelCall:
    """A kernel for products of operands as they lie.

    Arguments of the kernel: a, b, dst, then arguments 1, 2, ... of the epilogue (its argument 0 is dst).

    Parameters
    ----------
    problem : MatmulProblem
        Its type is f32 or f64: that of a and b, and of dst where there is no epilogue.
    b_strides : sequence of int
        As `MatmulProblem.a_strides`. Unit: elements.
    post_ops : PostOps
        An epilogue, and nothing else; f32 only.
    impl : {"auto", "blas", "simd"}
        "auto" takes `choose_matmul`, and "blas" for f64.
    exact_depth : int, default=0
        Terms that are summed in f32 at a time, their sums then in f64; 0 sums all in the type of the operands. For
        integers whose partial sums stay within 2**24 that is exact, as an s32 accumulator would be. f32 only.
    isa : str, optional
        Instruction set; the best one by default.

    Returns
    -------
    KernelCall
        One task for each tile; scratch is at most a tile of 512 KiB and packed copies of its operands.

    Raises
    ------
    InvalidShapeError, InvalidDataTypeError, InvalidArgumentError
        The arguments do not fit each other.
    UnsupportedError
        An f64 epilogue or exact depth, or extents beyond BLAS's integer with ``impl="blas"``.

    Notes
    -----
    Threads: the KernelCall is immutable; tasks write disjoint parts of dst.
    Cost: 2 m n k operations a matrix; "blas" copies operands of which neither rows nor columns are contiguous.
    """
    dtype = problem.a_dtype
    if dtype not in ("f32", "f64"):
        raise InvalidDataTypeError(explain("dtype of a matrix product", accepted="f32, f64", got=dtype), dtype=dtype)
    post_ops.check_only_epilogue()
    if (post_ops.epilogue or exact_depth) and dtype != "f32":
        raise UnsupportedError(explain(f"epilogue or exact depth of a {dtype} product", accepted="f32"))
    if exact_depth < 0:
        raise InvalidArgumentError(explain("exact_depth", accepted=">= 0", got=exact_depth))
    depth = exact_depth if exact_depth < problem.k else 0
    folded = _Problem.of(problem, b_strides)
    return _build(folded, dtype, _choose(folded, dtype, impl, isa), depth, post_ops, isa)


def _blocks(p: _Problem, impl: str) -> tuple[int, int]:
    """Rows and columns of a task: even parts, and for the own loops whole panels, up to eight for few rows.

    Parts for BLAS are equal where they can be: its order of summation depends on their size.
    """
    most_rows, most_cols = _BLOCKS[impl]
    rows, unit = max(min(most_rows, p.m), 1), 4 if impl == "blas" else 128 if p.m <= 2 else 48
    parts = max(-(-p.n // most_cols), 1)
    if impl == "simd" and p.m <= most_rows and p.m * p.n * p.k > _SMALL:
        parts = max(parts, min(p.n // (2 * unit), 8))
    return rows, max(min(-(-p.n // (parts * unit)) * unit, p.n), 1)


def _build(
    problem: _Problem,
    dtype: str,
    impl: str,
    depth: int,
    post_ops: PostOps,
    isa: str | None,
) -> KernelCall:
    """Blocks, scratch parts and parameter block of a problem."""
    has_epilogue = bool(post_ops.epilogue)
    tile_in_scratch = has_epilogue and post_ops.dst_needs_scratch
    p, itemsize = problem, 4 if dtype == "f32" else 8
    rows, cols = _blocks(p, impl)
    on_blas = impl == "blas"
    pack_a = on_blas and needs_pack(p.m, p.k, p.a_row, p.a_col)
    pack_b = on_blas and needs_pack(p.k, p.n, p.b_row, p.b_col)
    pack_a_offset = aligned(rows * cols * itemsize) if tile_in_scratch else 0
    pack_b_offset = pack_a_offset + (aligned(rows * p.k * itemsize) if pack_a else 0)
    room_b = p.k * (cols * itemsize if pack_b else 0 if on_blas else PANEL_NBYTES)
    sums_offset = aligned(pack_b_offset + room_b)
    scratch_nbytes = sums_offset + rows * cols * 8 if depth else pack_b_offset + room_b
    sizes, a_batch, b_batch, dst_batch = ([axis[i] for axis in p.batch] for i in range(4))
    values = {
        "m": p.m, "n": p.n, "k": p.k, "row_block": rows, "col_block": cols, "nbatch": len(sizes),
        "batch_shape": sizes, "a_batch": a_batch, "b_batch": b_batch, "dst_batch": dst_batch,
        "a_row": p.a_row, "a_col": p.a_col, "b_row": p.b_row, "b_col": p.b_col, "dst_row": p.dst_row,
        "pack_a": pack_a, "pack_b": pack_b, "tile_in_scratch": tile_in_scratch, "has_epilogue": has_epilogue,
        "pack_a_offset": pack_a_offset, "pack_b_offset": pack_b_offset,
        "exact_depth": depth, "sums_offset": sums_offset,
        "blas": blas_slot(dtype) if on_blas else 0,
    }  # fmt: skip
    ntasks = int(np.prod(sizes, dtype=np.int64)) * -(-p.m // rows) * -(-p.n // cols)
    return pack(
        f"{dtype}_matmul_{impl}", values,
        ntasks=ntasks, scratch_nbytes=scratch_nbytes, tail=post_ops.epilogue, isa=isa,
    )  # fmt: skip
