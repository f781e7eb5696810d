"""Matrix products: batches, any strides, f32 and f64, an elementwise epilogue on every tile.

Two implementations, one kernel name each: ``f32_matmul_blas`` calls SciPy's BLAS on tiles, ``f32_matmul_simd`` runs our
own register-blocked loops (`gemm/gemm.c`), which need no packing call and no BLAS threads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool._sizes import Preference, largest, least
from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, UnsupportedError, explain

from ..core._dispatch import blas_slot, isas
from ..core.call import KernelCall, pack
from .post_ops import NO_POST_OPS, PostOps
from .problem import aligned, choose, even_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .problem import Folded, MatmulProblem

__all__ = ["BLAS_INT_MAX", "choose_matmul", "matmul", "needs_pack", "panel_nbytes"]

BLAS_INT_MAX = 2**31 - 1
"""Largest extent or stride that BLAS takes."""

_PANEL_NBYTES = 512
"""Bytes of scratch that one row of a panel of the own loops takes at most (``GP_PANEL_NBYTES``)."""

_BLOCKS = {"blas": (256, 512), "simd": (64, 512)}
"""Most rows and columns of a task: a tile stays in L2; BLAS gets more rows because it packs B anew for each tile."""

_SMALL = 64**3
"""Multiply-adds of a product (about 5 microseconds) from which on columns are split, so that threads can share it."""


def needs_pack(rows: int, cols: int, row_stride: int, col_stride: int) -> bool:
    """Whether BLAS cannot read a matrix where it lies: neither rows nor columns are contiguous and disjoint."""
    by_rows = (col_stride == 1 or cols <= 1) and (row_stride >= cols or rows <= 1)
    by_cols = (row_stride == 1 or rows <= 1) and (col_stride >= rows or cols <= 1)
    return not (by_rows or by_cols) or max(row_stride, col_stride) > BLAS_INT_MAX


def choose_matmul(m: int, *, transposed_b: bool = False, isa: str | None = None, macs: int | None = None) -> str:
    """The faster implementation for one product: ``"blas"`` or ``"simd"``.

    Measured on one core of an AMD EPYC (family 25) with SciPy 1.17's OpenBLAS 0.3, time of simd:avx512 and simd:avx2
    over that of blas for m x n x k. B by rows: 4x768x3072 0.34 and 0.96, 16x768x768 0.48 and 0.65, 128x128x64 0.83 and
    0.87, 256x256x256 0.93 and 1.07, 512x512x512 0.96 and 1.12, 1024x1024x1024 0.93 and 1.26. Transposed B, which the
    own loops must copy from three rows on: 4x768x768 0.56 and 0.56, 128x128x64 0.84 and 0.86, 512x512x512 0.95 and
    1.04. Without fused multiply-add (``generic``) the own loops win only up to a few rows. A run that calls BLAS takes
    6 us more, for the setting of its threads, so a small product is not left to it.

    n and k move the two alike, but for `macs`, m x n x k.
    """
    name = isa or isas()[-1]
    most = {"generic": 8 if transposed_b else 4, "avx2": 64, "neon": 64, "neon_dotprod": 64}.get(name)
    if most is None or (transposed_b and name == "avx2"):
        return "simd"
    if macs is not None and macs <= _SMALL and name != "generic":
        return "simd"
    return "simd" if m <= most else "blas"


def matmul(
    problem: MatmulProblem,
    b_strides: Sequence[int],
    post_ops: PostOps = NO_POST_OPS,
    *,
    impl: str = "auto",
    exact_depth: int = 0,
    isa: str | None = None,
) -> KernelCall:
    """A kernel for products of operands as they lie; arguments: a, b, those of `post_ops`: an epilogue at most.

    a, b and, without an epilogue, dst are f32 or f64; f32 alone has an epilogue or an exact depth. `b_strides` are as
    `MatmulProblem.a_strides`; `impl` is "blas", "simd", or "auto": `choose_matmul`. `exact_depth`:
    terms that are summed in f32 at a time, their sums then in f64, which is exact for integers whose partial sums stay
    within 2**24; 0 sums all in the type of the operands. Tasks are tiles; scratch: a tile of up to 512 KiB and packed
    copies of operands of which BLAS can read neither rows nor columns.

    Raises
    ------
    InvalidShapeError, InvalidDataTypeError, InvalidArgumentError
        The arguments do not fit each other.
    UnsupportedError
        An f64 epilogue or exact depth, or extents beyond BLAS's integer with ``impl="blas"``.
    """
    dtype = problem.a_dtype
    if dtype not in ("f32", "f64"):
        raise InvalidDataTypeError(explain("dtype of a matrix product", accepted="f32, f64", got=dtype), dtype=dtype)
    post_ops.check_only_epilogue()
    if (post_ops.epilogue or exact_depth) and dtype != "f32":
        raise UnsupportedError(explain(f"epilogue or exact depth of a {dtype} product", accepted="f32"))
    if exact_depth < 0:
        raise InvalidArgumentError(explain("exact_depth", accepted=">= 0", got=exact_depth))
    problem.check_strides("b_strides", b_strides, 2)
    dst_row = max(problem.n, 1) if problem.m <= 1 else problem.c_strides[-1]
    p = problem.folded(b_strides[:-2], (*problem.c_strides[:-1], dst_row))
    depth = exact_depth if exact_depth < problem.k else 0
    return _build(problem, b_strides, p, _choose(problem, b_strides, p, impl, isa), depth, post_ops, isa)


def _choose(problem: MatmulProblem, b_strides: Sequence[int], p: Folded, impl: str, isa: str | None) -> str:
    """The implementation to use, checked against what the problem allows."""
    if impl not in ("auto", "blas", "simd"):
        raise InvalidArgumentError(explain("impl", accepted="auto, blas, simd", got=repr(impl)))
    fits_blas = max(problem.k, problem.n, p.rows[1]) <= BLAS_INT_MAX
    if impl == "blas" and not fits_blas:
        raise UnsupportedError(explain("a matrix too large for BLAS", accepted=f"extents <= {BLAS_INT_MAX}"))
    if impl != "auto":
        return impl
    if not fits_blas:
        return "simd"
    macs, is_transposed = p.m * problem.n * problem.k, b_strides[-1] != 1 and problem.n > 1
    with Preference(macs):
        return choose_matmul(p.m, transposed_b=is_transposed, isa=isa, macs=macs)


def panel_nbytes(k: int, cols: int, itemsize: int = 4) -> int:
    """Scratch of the own loops for a panel of so many columns of B, in whole vectors, or of the widest one."""
    return k * least(_PANEL_NBYTES, aligned(cols * itemsize))


def _blocks(m: int, n: int, k: int, impl: str) -> tuple[int, int]:
    """Rows and columns of a task: even parts, and for the own loops whole panels, up to eight for few rows.

    Parts for BLAS are equal where they can be: its order of summation depends on their size.
    """
    most_rows, most_cols = _BLOCKS[impl]
    unit = 4 if impl == "blas" else choose(m, 2, 128, 48)
    parts = -(-n // most_cols)
    if impl == "simd":
        several = choose(m, most_rows, least(n // (2 * unit), 8), 1)
        parts = largest(parts, choose(m * n * k, _SMALL, 1, several))
    return largest(least(most_rows, m), 1), largest(least(even_part(n, parts, unit), n), 1)


def _build(
    problem: MatmulProblem,
    b_strides: Sequence[int],
    p: Folded,
    impl: str,
    depth: int,
    post_ops: PostOps,
    isa: str | None,
) -> KernelCall:
    """Blocks, scratch parts and parameter block of a problem."""
    dtype, n, k, a_row, a_col = problem.a_dtype, problem.n, problem.k, p.rows[0], problem.a_strides[-1]
    tile_in_scratch = bool(post_ops.epilogue) and post_ops.dst_needs_scratch
    itemsize, on_blas, (b_row, b_col) = 4 if dtype == "f32" else 8, impl == "blas", b_strides[-2:]
    rows, cols = _blocks(p.m, n, k, impl)
    pack_a, pack_b = on_blas and needs_pack(p.m, k, a_row, a_col), on_blas and needs_pack(k, n, b_row, b_col)
    pack_a_offset = aligned(rows * cols * itemsize) if tile_in_scratch else 0
    pack_b_offset = pack_a_offset + (aligned(rows * k * itemsize) if pack_a else 0)
    room_b = 0 if on_blas else panel_nbytes(k, cols, itemsize)
    room_b = k * cols * itemsize if pack_b else room_b
    sums_offset = aligned(pack_b_offset + room_b)
    values = p.fields() | {
        "n": n, "k": k, "row_block": rows, "col_block": cols, "a_col": a_col, "b_row": b_row, "b_col": b_col,
        "pack_a": pack_a, "pack_b": pack_b, "tile_in_scratch": tile_in_scratch, "has_epilogue": bool(post_ops.epilogue),
        "pack_a_offset": pack_a_offset, "pack_b_offset": pack_b_offset, "exact_depth": depth,
        "sums_offset": sums_offset, "blas": blas_slot(dtype) if on_blas else 0,
    }  # fmt: skip
    return pack(
        f"{dtype}_matmul_{impl}", values, ntasks=p.matrices * -(-p.m // rows) * -(-n // cols),
        scratch_nbytes=sums_offset + rows * cols * 8 if depth else pack_b_offset + room_b, tail=post_ops.epilogue,
        isa=isa,
    )  # fmt: skip
