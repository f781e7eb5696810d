"""Matrix products of float32 with constant weights of 8 or 4 bits, which stay compressed in memory.

    layout = compressed_layout(4096, 4096, 4, group=32)    # how many bytes
    pack_compressed(4096, 4096, "u4", (4096, 1), group=32, scales=("f32", (4096, 1)))(q, scales, packed)   # once
    compressed_matmul(1, 4096, 4096, (4096, 1), dtype="u4", group=32)(a, packed, dst)

A weight is (q - zero) * scale, with a scale and perhaps a zero point for each column, and within it for each `group` of
rows. ``include/gp_compressed.h`` describes the form. Kernels: ``f32_matmul_compressed`` and ``pack_compressed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, explain

from ._dispatch import isas
from .call import DTYPE_CODES, KernelCall, pack
from .matmul import aligned
from .packed import TILE_PANELS, l2_nbytes, lanes_of, row_block, streams, tail_fields
from .records import Record

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BITS", "CompressedLayout", "compressed_layout", "compressed_matmul", "pack_compressed"]

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

_DIGIT_ROWS = 32
"""Rows of a task with digits: enough to hide that a panel comes from L3."""

_LEAST_WORK = 2**18
"""Multiply-adds (rows counted as 4 at least) of a task, about 10 microseconds, so that handing it out costs little."""

_WIDE, _LEAST_TASKS = 256, 4
"""Columns from which on making the digits of a row costs under a tenth of a task; tasks that are worth more than that
one tenth."""

_COMPRESS_LAYOUT = Record(
    [
        *[(name, "i8") for name in ("k", "n", "row", "col", "dtype", "ngroups")],
        *[(name, "i8") for name in ("scale_group", "scale_col", "scale_dtype", "zero_group", "zero_col", "zero_dtype")],
        *[(name, "i8") for name in ("has_zeros", "scales_offset", "zeros_offset")],
    ]
)
_LAYOUT = Record(
    [
        *[(name, "i8") for name in ("m", "n", "k", "row_block", "col_block", "k_block", "group", "ngroups", "bits")],
        *[(name, "i8") for name in ("has_zeros", "zero")],
        *[(name, "i8") for name in ("scales_offset", "zeros_offset", "a_row", "a_col", "dst_row", "residual_row")],
        *[(name, "i8") for name in ("bias_arg", "residual_arg", "dst_arg", "tile_in_scratch", "has_epilogue")],
        *[(name, "i8") for name in ("partial_offset", "panels_offset", "digit_block", "nblocks")],
        *[(name, "i8") for name in ("digits_offset", "digits_nbytes")],
        *[(name, "f4") for name in ("lo", "hi")],
    ]
)


@dataclass(frozen=True, slots=True)
class CompressedLayout:
    """Where the parts of compressed weights lie.

    Attributes
    ----------
    nbytes : int
        Of all. Unit: bytes.
    scales_offset, zeros_offset : int
        Unit: bytes.
    group, ngroups : int
        Rows of a group, and how many groups there are.
    panel : int
        Columns of a panel.
    """

    nbytes: int
    scales_offset: int
    zeros_offset: int
    group: int
    ngroups: int
    panel: int


def compressed_layout(
    k: int, n: int, bits: int, *, group: int | None = None, zeros: bool = False, isa: str | None = None
) -> CompressedLayout:
    """The layout of k x n weights.

    Parameters
    ----------
    k, n : int
        Zero is allowed.
    bits : {8, 4}
        Of a number.
    group : int, optional
        Rows that share a scale, a multiple of 8: by default, and where it covers them, all.
    zeros : bool, default=False
        There are zero points.
    isa : str, optional
        Instruction set of the kernels that will read them; the best one by default.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError, UnsupportedError
        A negative size; other bits; a group that the kernels do not take; an unknown instruction set.
    """
    if bits not in (8, 4):
        raise InvalidArgumentError(explain("bits of compressed weights", accepted="8, 4", got=bits))
    if min(k, n) < 0:
        raise InvalidShapeError(explain("a size is negative", accepted=">= 0", got=(k, n)))
    lanes = lanes_of(isa)
    size = max(k, 1) if group is None else min(group, max(k, 1))
    if size < 1 or (size < k and size % _WHOLE):
        accepted = f"a multiple of {_WHOLE}, or all {k} rows"
        raise InvalidArgumentError(explain("rows of a group", accepted=accepted, got=group))
    cols, ngroups = -(-n // lanes) * lanes, -(-k // size)
    column = -(-k * bits // 32) * 4
    scales_offset = aligned(column * cols)
    zeros_offset = scales_offset + ngroups * cols * 4
    nbytes = aligned(zeros_offset + (ngroups * cols * 4 if zeros else 0))
    return CompressedLayout(nbytes, scales_offset, zeros_offset, size, ngroups, 2 * lanes)


def pack_compressed(
    k: int,
    n: int,
    dtype: str,
    strides: Sequence[int],
    *,
    scales: tuple[str, Sequence[int]],
    zeros: tuple[str, Sequence[int]] | None = None,
    group: int | None = None,
    isa: str | None = None,
) -> KernelCall:
    """A kernel that brings quantised weights into the form in which they are read.

    Arguments of the kernel: q, scales, the zero points if there are any, packed (`compressed_layout` says how many
    bytes).

    Parameters
    ----------
    k, n, group, isa
        As in `compressed_layout`.
    dtype : {"s8", "u8", "s4", "u4"}
        Of q; two 4-bit numbers lie in a byte, the first in the low bits.
    strides : (int, int)
        Row and column stride of q, any. Unit: elements.
    scales : (str, (int, int))
        Their type, and their strides over groups and columns (0 broadcasts). Unit: elements.
    zeros : (str, (int, int)), optional
        Likewise of the zero points, integers of at most 9 bits.

    Returns
    -------
    KernelCall
        One task for each panel; no scratch.

    Raises
    ------
    InvalidShapeError, InvalidDataTypeError, InvalidArgumentError, UnsupportedError
        As in `compressed_layout`; another type; strides that are no pairs.

    Notes
    -----
    Cost: one read and one write of the weights, about a nanosecond an element.
    """
    if dtype not in BITS:
        raise InvalidDataTypeError(explain("dtype of compressed weights", accepted=", ".join(BITS), got=dtype))
    layout = compressed_layout(k, n, BITS[dtype], group=group, zeros=zeros is not None, isa=isa)
    zero_dtype, zero_strides = zeros or ("f32", (0, 0))
    for name, pair in (("strides", strides), ("strides of scales", scales[1]), ("strides of zeros", zero_strides)):
        if len(pair) != 2:
            raise InvalidShapeError(explain(name, accepted="2 strides", got=tuple(pair)))
    values = {
        "k": k, "n": n, "row": strides[0], "col": strides[1], "dtype": DTYPE_CODES[dtype],
        "ngroups": layout.ngroups,
        "scale_group": scales[1][0], "scale_col": scales[1][1], "scale_dtype": DTYPE_CODES[scales[0]],
        "zero_group": zero_strides[0], "zero_col": zero_strides[1], "zero_dtype": DTYPE_CODES[zero_dtype],
        "has_zeros": zeros is not None,
        "scales_offset": layout.scales_offset, "zeros_offset": layout.zeros_offset,
    }  # fmt: skip
    return pack("pack_compressed", _COMPRESS_LAYOUT, values, ntasks=-(-n // layout.panel), isa=isa)


def compressed_matmul(
    m: int,
    n: int,
    k: int,
    a_strides: Sequence[int],
    *,
    dtype: str,
    group: int | None = None,
    zeros: bool | int = 0,
    bias: bool = False,
    residual: bool = False,
    clamp: tuple[float, float] | None = None,
    epilogue: bytes = b"",
    dst_needs_scratch: bool = True,
    isa: str | None = None,
) -> KernelCall:
    """A kernel for ``dst = clamp(a @ ((q - zero) * scale) + bias + residual)``.

    Arguments of the kernel: a, the packed weights, bias and residual if they are asked for, dst, then arguments 1, 2,
    ... of the epilogue (its argument 0 is dst). a, bias, residual and dst are f32.

    Parameters
    ----------
    m, n, k : int
        Zero is allowed.
    a_strides : (int, int)
        Row and column stride, any. Unit: elements.
    dtype : {"s8", "u8", "s4", "u4"}
        Of the weights, as they were packed.
    group, isa
        As in `compressed_layout`.
    zeros : bool or int, default=0
        True: zero points were packed; a number is the zero point of all weights.
    bias : bool, default=False
        There is a bias of shape (n,).
    residual : bool, default=False
        There is a residual of shape (m, n), contiguous as dst is; it may be dst itself.
    clamp, epilogue, dst_needs_scratch
        As in `graphpool._kernels.packed.packed_matmul`; the epilogue's iteration space is (m, n).

    Returns
    -------
    KernelCall
        Tasks are blocks of rows and columns. The last bits of a row may depend on which rows there are, but not on how
        tasks are divided.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError, UnsupportedError
        The arguments do not fit each other; an unknown instruction set.

    Notes
    -----
    Threads: the KernelCall is immutable; tasks write disjoint parts of dst. dst must not overlap a.
    Cost: with VNNI 3/4 of the multiplications of `packed_matmul`, so that one row takes the time to read the weights,
    an eighth or a quarter of f32's; else, beyond 4 rows, that of `packed_matmul` and some instructions a weight.
    Error: with VNNI activations are integers of 23 bits, with one exponent for those of at most 256 rows of the
    weights; their products are exact. A result's error is then about 2**-23 of the largest activation among them times
    the sum of their weights' magnitudes; elsewhere it is that of sums in f32.
    """
    if dtype not in BITS:
        raise InvalidDataTypeError(explain("dtype of compressed weights", accepted=", ".join(BITS), got=dtype))
    layout = compressed_layout(k, n, BITS[dtype], group=group, zeros=zeros is True, isa=isa)
    if m < 0:
        raise InvalidShapeError(explain("a size is negative", accepted=">= 0", got=m))
    if len(a_strides) != 2:
        raise InvalidShapeError(explain("a_strides", accepted="2 strides", got=tuple(a_strides)))
    tail = tail_fields(bias=bias, residual=residual, clamp=clamp, epilogue=epilogue, in_scratch=dst_needs_scratch)
    has_digits = (isa or isas()[-1]) == "avx512_bf16"
    rows = min(row_block(m), _DIGIT_ROWS) if has_digits else row_block(m)
    cols = _col_block(rows, n, k, layout.panel, max(min(_WIDE, n // _LEAST_TASKS), 1) if has_digits else 1)
    k_block = 0 if has_digits or rows <= _FEW_ROWS else _k_block(rows, k, layout.panel)
    partial_offset = aligned(rows * cols * 4) if tail["tile_in_scratch"] else 0
    panels_offset = partial_offset + (aligned(rows * TILE_PANELS * layout.panel * 4) if 0 < k_block < k else 0)
    digits_offset = panels_offset + k_block * streams(rows) * layout.panel * 4
    block, nblocks = _digit_blocks(layout) if has_digits else (0, 0)
    # a vector of the last digits may reach up to 12 numbers beyond whole words
    digits_nbytes = _FEW_ROWS * _DIGITS * (k + 16) // 64 * 64 + 64 if has_digits else 0
    fields = tail | {
        "m": m, "n": n, "k": k, "row_block": rows, "col_block": cols, "k_block": k_block, "group": layout.group,
        "ngroups": layout.ngroups, "bits": BITS[dtype],
        "has_zeros": zeros is True, "zero": _HALVES.get(dtype, 0) + int(zeros),
        "scales_offset": layout.scales_offset, "zeros_offset": layout.zeros_offset,
        "a_row": a_strides[0], "a_col": a_strides[1], "dst_row": n, "residual_row": n,
        "partial_offset": partial_offset, "panels_offset": panels_offset,
        "digit_block": block, "nblocks": nblocks, "digits_offset": digits_offset, "digits_nbytes": digits_nbytes,
    }  # fmt: skip
    numbers_nbytes = _FEW_ROWS * (1 + _DIGITS) * 4 * nblocks
    row_nbytes = k * 4 if has_digits and a_strides[1] != 1 else 0
    return pack(
        "f32_matmul_compressed", _LAYOUT, fields, ntasks=-(-m // rows) * -(-n // cols),
        scratch_nbytes=digits_offset + digits_nbytes + numbers_nbytes + row_nbytes, tail=epilogue, isa=isa,
    )  # fmt: skip


def _digit_blocks(layout: CompressedLayout) -> tuple[int, int]:
    """Rows of the weights with one exponent, in even parts of a group, and at most how many such blocks there are."""
    parts = -(-layout.group // _DIGIT_BLOCK)
    block = -(-layout.group // (parts * _WHOLE)) * _WHOLE
    return block, layout.ngroups * parts


def _col_block(rows: int, n: int, k: int, panel: int, least: int) -> int:
    """Columns of a task: whole groups of panels, at least so many, as few as still make a task worth handing out."""
    unit = panel * (streams(rows) if rows > _FEW_ROWS else max(TILE_PANELS // rows, 1))
    cols = max(-(-_LEAST_WORK // (max(rows, 4) * max(k, 4))), least)
    parts = max(n // cols, 1)
    return max(-(-n // (parts * unit)) * unit, unit)


def _k_block(rows: int, k: int, panel: int) -> int:
    """Rows of the weights that are panels at a time, a multiple of 8: a quarter of L2 holds them."""
    most = max(l2_nbytes() // 4 // (streams(rows) * panel * 4), 64)
    parts = max(-(-k // most), 1)
    return max(-(-k // (parts * _WHOLE)) * _WHOLE, _WHOLE)
