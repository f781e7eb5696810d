"""Matrix products of float32 with constant weights of 8 or 4 bits, which stay compressed in memory.

    weights = CompressedFormat(4096, 4096, "u4", group=32)
    weights.pack("numbers", (4096, 1))(q, numbers)      # once; `weights.nbytes("numbers")` says how large numbers are
    weights.pack("scales", (4096, 1))(plain, scales)
    weights.matmul(MatmulProblem((), 1, 4096, 4096, (4096, 1), (4096,)))(a, numbers, scales, dst)

A weight is (q - zero) * scale, with a scale and perhaps a zero point for each column, and within it for each `group` of
rows, as ``gemm/gp_compressed.h`` describes. Kernels: ``f32_matmul_compressed``,
``f32_matmul_compressed_dynamic``, and those of ``gemm/compressed_weights.c``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from graphpool._dataclasses import dataclass, field
from graphpool._sizes import largest, least
from graphpool.errors import InvalidArgumentError, UnsupportedError, explain

from ..core._dispatch import isas
from ..core.call import DTYPE_CODES, KernelCall, pack
from .packed import (
    CHAIN,
    HAS_BF16,
    PANEL_ROWS,
    TILE_PANELS,
    TILE_ROWS,
    MatrixFormat,
    behind,
    l2_nbytes,
    row_block,
    share_cols,
    streams,
    worthwhile_cols,
)
from .post_ops import NO_POST_OPS, PostOps
from .problem import aligned, even_part, shared_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .problem import MatmulProblem

__all__ = ["BITS", "CompressedFormat", "Part"]

Part = Literal["numbers", "scales", "zeros"]
"""What of compressed weights is packed by itself."""

BITS = {"s8": 8, "u8": 8, "s4": 4, "u4": 4}
"""Bits of a number of each type."""

_HALVES = {"s8": 128, "s4": 8}
"""What is added to signed numbers, which are stored unsigned."""

_WHOLE = 8
"""Rows of the weights of which every group has a multiple: whole words of either kind."""

_FEW_ROWS = 4
"""Rows of a tile, and up to which other instruction sets than VNNI make no panels (``GP_FEW_ROWS``)."""

_DIGITS, _DIGIT_BLOCK = 3, 256
"""Bytes of an activation as an integer, and rows of the weights, at most, for which activations share an exponent."""

_INT8_BLOCK = 128
"""The same for activations of one byte, which share a scale: fewer would cost more than a tenth of the time."""

_DIGIT_ROWS = 32
"""Rows of a task with digits: enough to hide that a panel comes from L3."""

_EXPANDED_ROWS = 2 * PANEL_ROWS
"""Rows whose products take about the time in which a panel comes from L3 and becomes floats."""

_WIDE, _LEAST_TASKS = 256, 4
"""Columns from which on making the digits of a row costs under a tenth of a task; tasks that are worth more than that
one tenth."""


@dataclass(frozen=True)
class CompressedFormat(MatrixFormat):
    """A `MatrixFormat`: numbers of s8, u8, s4 or u4 with their scales and zero points.

    Two numbers of 4 bits lie in a byte, the first in the low bits.

    Attributes
    ----------
    group : int, optional
        Rows that share a scale, a multiple of 8: by default, and where it covers them, all.
    zero : int or None, default=0
        The zero point of all weights; None: each scale has its own.

    Raises
    ------
    InvalidArgumentError
        A group that the kernels do not take; else as `MatrixFormat`.
    """

    group: int | None = field(default=None, kw_only=True)
    zero: int | None = field(default=0, kw_only=True)
    dtypes = BITS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group_rows < 1 or (self.group_rows < self.k and self.group_rows % _WHOLE):
            accepted = f"a multiple of {_WHOLE}, or all {self.k} rows"
            raise InvalidArgumentError(explain("rows of a group", accepted=accepted, got=self.group))

    @property
    def group_rows(self) -> int:
        """Rows of a group."""
        return max(self.k, 1) if self.group is None else min(self.group, max(self.k, 1))

    @property
    def ngroups(self) -> int:
        """How many groups there are."""
        return -(-self.k // self.group_rows)

    @property
    def half(self) -> int:
        """What is added to numbers and zero points, so that they are not signed."""
        return _HALVES.get(self.dtype, 0)

    def nbytes(self, part: Part) -> int:
        """Of a part; 0 for zero points where all weights have one. Unit: bytes."""
        if part == "numbers":
            return aligned((-(-self.k * BITS[self.dtype] // 32) * self.n + behind(self.n, self.isa)) * 4)
        has_part = part == "scales" or self.zero is None
        count = self.ngroups * self.n + behind(self.n, self.isa)
        return aligned(count * (4 if part == "scales" else 2)) if has_part else 0

    def pack(self, part: Part, strides: Sequence[int], dtype: str | None = None) -> KernelCall:
        """A kernel that packs a part; arguments: plain, packed. A panel a task.

        `strides` of plain over rows and columns for numbers, else over groups and columns; 0 broadcasts scales and zero
        points. Unit: elements. `dtype`: of plain; f32 by default, which may be any float for scales, and for zero
        points integers of at most 9 bits too. Numbers have that of the format. Cost: one read and one write, about a
        nanosecond a number.

        Raises
        ------
        InvalidShapeError
            Other than two strides.
        """
        return self._move_part("pack", part, strides, dtype, -(-self.n // self.panel))

    def unpack(self, part: Part, strides: Sequence[int]) -> KernelCall:
        """The inverse of `pack`, with the same strides, to f32 but for numbers; arguments: packed, plain.

        Numbers are one task.
        """
        ntasks = int(0 not in (self.k, self.n)) if part == "numbers" else -(-self.n // self.panel)
        return self._move_part("unpack", part, strides, None, ntasks)

    def _move_part(self, what: str, part: Part, strides: Sequence[int], dtype: str | None, ntasks: int) -> KernelCall:
        name = f"{'f32' if part == 'scales' else 'any'}_matmul_{what}_{part}"
        if part == "numbers":
            return self._move(name, strides, {"k": self.k, "dtype": DTYPE_CODES[self.dtype]}, ntasks)
        values = {"ngroups": self.ngroups, "dtype": DTYPE_CODES[dtype or "f32"], "half": self.half}
        return self._move(name, strides, values, ntasks, "group")

    def matmul(self, problem: MatmulProblem, post_ops: PostOps = NO_POST_OPS, *, int8: bool = False) -> KernelCall:
        """A kernel for products with these weights; arguments: a, numbers, scales, zero points, those of the post-ops.

        Zero points are left out where all weights have one.

        f32 without a batch; rows of dst lie side by side, as do those of a residual. Tasks are blocks of rows and
        columns; they write disjoint parts of dst, which must not overlap a. The last bits of a row may depend on which
        rows there are, but not on how tasks are divided.

        With `int8` activations are rounded to integers of 8 bits: round(127 x / m), m the largest magnitude of their
        row in a block of rows of the weights, a group or at most 128 rows of one. A row then depends on no other one; a
        block of it that is not finite makes all its results NaN.

        Raises
        ------
        InvalidShapeError, InvalidArgumentError
            The arguments do not fit each other.
        UnsupportedError
            A batch; rows with gaps; another type than f32.

        Notes
        -----
        Cost: with AVX-512 VNNI 3/4 of the multiplications of `PackedFormat.matmul`, so that one row takes the time to
        read the weights, an eighth or a quarter of f32's; else, beyond 4 rows, that of `PackedFormat.matmul` and some
        instructions a weight. With `int8` a row takes the time to read the weights everywhere.
        Error: with `int8` an activation's is at most m / 254, and sums over a block are exact. Else with AVX-512 VNNI
        activations are integers of 23 bits, with one exponent for those of at most 256 rows of the weights; their
        products are exact. A result's error is then about 2**-23 of the largest activation among them times the sum of
        their weights' magnitudes; elsewhere it is that of sums in f32.
        """
        m, n, k, panel, isa = problem.m, self.n, self.k, self.panel, self.isa
        _check(self, problem, post_ops)
        post = post_ops.float_fields(4 if self.zero is None else 3)
        ndigits = 1 if int8 else _DIGITS if (isa or isas()[-1]) in HAS_BF16 else 0
        has_digits = ndigits > 0
        rows = least(row_block(m), _DIGIT_ROWS) if has_digits else row_block(m)
        unit, few = (panel, max(min(_WIDE, n // _LEAST_TASKS), 1)) if has_digits else (_unit(rows, panel), 1)
        k_block = 0 if has_digits or rows <= _FEW_ROWS else _k_block(rows, k, panel)
        if k_block:

            def tasks(rows: int) -> tuple[int, int]:
                cols = _col_block(rows, n, k, unit, few)
                return -(-n // cols), cols

            rows = shared_part(problem.threads, m, rows, tasks, _EXPANDED_ROWS, TILE_ROWS, rows)
        cols, least_cols = _col_block(rows, n, k, unit, few), largest(worthwhile_cols(rows, k), few)
        cols = share_cols(problem.threads, n, cols, rows, -(-m // rows), panel, least_cols, converts=has_digits)
        partial_offset = aligned(rows * cols * 4) if post["tile_in_scratch"] else 0
        panels_offset = partial_offset + (aligned(rows * TILE_PANELS * panel * 4) if 0 < k_block < k else 0)
        digits_offset = panels_offset + (k_block * streams(rows) * panel * 4 if k_block else 0)
        block, nblocks = _digit_blocks(self, _INT8_BLOCK if int8 else _DIGIT_BLOCK) if has_digits else (0, 0)
        # a vector of the last digits may reach up to 12 numbers beyond whole words
        digits_nbytes = _FEW_ROWS * ndigits * (k + 16) // 64 * 64 + 64 if has_digits else 0
        fields = post | {
            "m": m, "n": n, "k": k, "row_block": rows, "col_block": cols, "k_block": k_block, "group": self.group_rows,
            "ngroups": self.ngroups, "bits": BITS[self.dtype],
            "has_zeros": self.zero is None, "zero": self.half + (self.zero or 0),
            "a_row": problem.a_strides[0], "a_col": problem.a_strides[1], "dst_row": n, "residual_row": n,
            "partial_offset": partial_offset, "panels_offset": panels_offset,
            "ndigits": ndigits, "digit_block": block, "nblocks": nblocks,
            "digits_offset": digits_offset, "digits_nbytes": digits_nbytes,
        }  # fmt: skip
        numbers_nbytes = _FEW_ROWS * (1 + ndigits) * 4 * nblocks
        row_nbytes = k * 4 if has_digits and problem.a_strides[1] != 1 else 0
        return pack(
            "f32_matmul_compressed_dynamic" if int8 else "f32_matmul_compressed", fields,
            ntasks=-(-m // rows) * -(-n // cols),
            scratch_nbytes=digits_offset + digits_nbytes + numbers_nbytes + row_nbytes, tail=post_ops.epilogue,
            isa=isa,
        )  # fmt: skip


def _check(weights: CompressedFormat, problem: MatmulProblem, post_ops: PostOps) -> None:
    """Check that the problem is one for the weights."""
    problem.check_weights(weights.k, weights.n)
    if problem.batch_shape or problem.a_dtype != "f32":
        asked = tuple(problem.batch_shape), problem.a_dtype
        raise UnsupportedError(explain("a product with compressed weights", accepted="no batch, f32", got=asked))
    sides = problem.c_strides, post_ops.residual_strides or (problem.n,)
    if problem.m > 1 and any(tuple(side) != (problem.n,) for side in sides):
        raise UnsupportedError(explain("strides of dst and residual", accepted=(problem.n,), got=sides))


def _digit_blocks(weights: CompressedFormat, most: int) -> tuple[int, int]:
    """Rows of the weights with one factor, in even parts of a group, and at most how many such blocks there are."""
    parts = -(-weights.group_rows // most)
    return even_part(weights.group_rows, parts, _WHOLE), weights.ngroups * parts


def _unit(rows: int, panel: int) -> int:
    """Columns that tiles of f32 read at once."""
    return panel * (streams(rows) if rows > _FEW_ROWS else max(TILE_PANELS // rows, 1))


def _col_block(rows: int, n: int, k: int, unit: int, few: int) -> int:
    """Columns of a task: whole units, at least so `few`, as few as still make a task worth handing out."""
    cols = largest(worthwhile_cols(rows, k), few)
    return even_part(n, n // cols, unit)


def _k_block(rows: int, k: int, panel: int) -> int:
    """Rows of the weights that are panels at a time, whole chains of sums: a quarter of L2 holds them."""
    parts = -(-k // max(l2_nbytes() // 4 // (streams(rows) * panel * 4), 64))
    return min(even_part(k, parts, CHAIN), even_part(k, 1, _WHOLE))
