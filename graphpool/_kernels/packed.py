"""Matrix products with constant weights: packed once into panels, then multiplied by any number of activations.

    layout = packed_layout(768, 3072)                      # how many bytes, and the id of the opaque layout
    pack_weights(768, 3072, (3072, 1))(b, packed)          # once
    packed_matmul((), 16, 3072, 768, (768, 1), (3072,), bias=True, clamp=(0, inf))(a, packed, bias, dst)

The layout and the method are described in ``include/gp_packed.h``. Kernels: ``f32_matmul_packed``,
``bf16_matmul_packed``, ``s8_matmul_packed``, ``pack_weights``, ``unpack_weights``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, UnsupportedError, explain

from ._dispatch import isas
from .call import DTYPE_CODES, KernelCall, pack
from .matmul import aligned
from .records import Record
from .requant import DYNAMIC_LAYOUT, NO_LIMITS, REQUANT_LAYOUT, Dynamic, Requant, Residual

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PackedLayout", "k_parts", "pack_weights", "packed_layout", "packed_matmul", "unpack_weights"]

_MAX_BATCH = 10
DEPTH = {"f32": 1, "bf16": 2, "s8": 4}
"""Elements along k in a word of 32 bits."""

_A_DTYPES = {"f32": ("f32",), "bf16": ("f32", "bf16", "f16"), "s8": ("u8", "s8")}
"""Types of the activations for each type of weights, the default first."""

LANES = {"avx512_bf16": 16, "avx512": 16, "avx2": 8, "neon": 4, "generic": 4}
"""Columns of a vector (``GP_VL``)."""

TILE_ROWS, TILE_PANELS, _PACK_PANELS = 6, 4, 4
"""``GP_TILE_ROWS``, ``GP_TILE_PANELS`` and ``GP_PACK_PANELS``."""

_MAX_S8_K = 2**15
"""Terms up to which the sum of (a - zero)(b - zero) fits s32 whatever the operands."""

_KIND = 1
"""The kind of opaque layout: weights of a matrix product."""

MOST_ROWS = 96
"""Rows of a task: enough to hide that a panel comes from L3, few enough to share a product among many threads."""

_LEAST_WORK = 2**18
"""Multiply-adds (rows counted as 4 at least) of a task, about 5 microseconds, so that handing it out costs little."""

_SPLIT_TASKS, _SPLIT_WORK, _SPLIT_K = 8, 4 * _LEAST_WORK, 1024
"""Tasks up to which k is split to have more; the least multiply-adds and the least terms of a part, beside which adding
up the parts costs under 3 %."""

_WIDE = 256
"""Columns from which on converting A and starting an epilogue's rows cost under 3 % of a task."""

_PACK_LAYOUT = Record([(name, "i8") for name in ("k", "n", "row", "col", "batch", "pitch", "dtype", "b_dtype")])
_LAYOUT = Record(
    [
        *[(name, "i8") for name in ("m", "n", "k", "row_block", "col_block", "word_block")],
        *[(name, "i8") for name in ("parts", "part_words", "dst_part", "nbatch")],
        *[(name, "i8", _MAX_BATCH) for name in ("batch_shape", "a_batch", "b_batch", "dst_batch", "residual_batch")],
        *[(name, "i8") for name in ("a_row", "a_col", "dst_row", "residual_row")],
        *[(name, "i8") for name in ("bias_arg", "residual_arg", "scale_arg", "dst_arg")],
        *[(name, "i8") for name in ("tile_in_scratch", "has_epilogue", "partial_offset", "words_offset", "row_offset")],
        *[(name, "i8") for name in ("a_dtype", "a_zero")],
        *[(name, "f4") for name in ("lo", "hi")],
        ("requant", REQUANT_LAYOUT),
        ("dynamic", DYNAMIC_LAYOUT),
    ]
)


@dataclass(frozen=True, slots=True)
class PackedLayout:
    """Where weights lie in panels.

    Attributes
    ----------
    layout_id : int
        Kind, data type and panel width: weights of one shape with one id are the same bytes. Instruction sets with
        registers of one width share it.
    nbytes : int
        Of all matrices. Unit: bytes.
    pitch : int
        From one matrix of the batch to the next, a multiple of 64. Unit: bytes.
    panel : int
        Columns of a panel.
    words : int
        Words of 32 bits along k, each of 1 f32, 2 bf16 or 4 s8.
    """

    layout_id: int
    nbytes: int
    pitch: int
    panel: int
    words: int


def lanes_of(isa: str | None) -> int:
    """Columns of a vector of an instruction set, by default the best one.

    Raises
    ------
    UnsupportedError
        There is no such instruction set.
    """
    lanes = LANES.get(isa or isas()[-1])
    if lanes is None:
        raise UnsupportedError(explain(f"instruction set {isa}", accepted=", ".join(isas())), isa=isa)
    return lanes


def packed_layout(k: int, n: int, dtype: str = "f32", isa: str | None = None, *, batch: int = 1) -> PackedLayout:
    """The layout of `batch` matrices of k x n weights.

    Parameters
    ----------
    k, n : int
        Zero is allowed.
    dtype : {"f32", "bf16", "s8"}
        Of the packed weights.
    isa : str, optional
        Instruction set of the kernels that will read them; the best one by default.
    batch : int, default=1
        Number of matrices.

    Returns
    -------
    PackedLayout
        Columns are filled up to whole vectors and k to whole words; s8 takes 4 bytes more a column. Any address will
        do, but few rows are up to 1.5 times as fast where it is a multiple of 64.

    Raises
    ------
    InvalidShapeError, InvalidDataTypeError, UnsupportedError
        A negative size; another data type; an unknown instruction set.
    """
    if dtype not in DEPTH:
        raise InvalidDataTypeError(explain("dtype of packed weights", accepted="f32, bf16, s8", got=dtype), dtype=dtype)
    if min(k, n, batch) < 0:
        raise InvalidShapeError(explain("a size is negative", accepted=">= 0", got=(batch, k, n)))
    lanes = lanes_of(isa)
    words, cols = -(-k // DEPTH[dtype]), -(-n // lanes) * lanes
    pitch = aligned(words * cols * 4 + (cols * 4 if dtype == "s8" else 0))
    layout_id = _KIND << 24 | DTYPE_CODES[dtype] << 16 | 2 * lanes
    return PackedLayout(layout_id, batch * pitch, pitch, 2 * lanes, words)


def pack_weights(
    k: int,
    n: int,
    strides: Sequence[int],
    dtype: str = "f32",
    isa: str | None = None,
    *,
    batch: int = 1,
    batch_stride: int = 0,
    b_dtype: str | None = None,
) -> KernelCall:
    """A kernel that brings weights into panels.

    Arguments of the kernel: b, packed (`packed_layout` says how many bytes).

    Parameters
    ----------
    k, n, dtype, isa, batch
        As in `packed_layout`.
    strides : (int, int)
        Row and column stride of b; any, swapped for transposed weights. Unit: elements.
    batch_stride : int, default=0
        From one matrix to the next in b. Unit: elements.
    b_dtype : str, optional
        Type of b: `dtype` by default; f32 becomes bf16, rounded to nearest even; u8 becomes s8, less 128.

    Returns
    -------
    KernelCall
        One task for each four panels of a matrix; no scratch.

    Raises
    ------
    InvalidShapeError, InvalidDataTypeError, UnsupportedError
        As in `packed_layout`; types that do not fit each other.

    Notes
    -----
    Cost: one read and one write of the weights. Every byte of the layout is written but the gap between matrices.
    """
    b_dtype = b_dtype or dtype
    if b_dtype != dtype and (dtype, b_dtype) not in (("bf16", "f32"), ("s8", "u8")):
        raise InvalidDataTypeError(explain(f"weights to pack as {dtype}", accepted=dtype, got=b_dtype), dtype=b_dtype)
    return _move("pack_weights", k, n, strides, dtype, isa, batch, batch_stride, b_dtype)


def unpack_weights(
    k: int,
    n: int,
    strides: Sequence[int],
    dtype: str = "f32",
    isa: str | None = None,
    *,
    batch: int = 1,
    batch_stride: int = 0,
) -> KernelCall:
    """The inverse of `pack_weights`, bit for bit, with the same parameters; arguments of the kernel: packed, b."""
    return _move("unpack_weights", k, n, strides, dtype, isa, batch, batch_stride, dtype)


def _move(
    name: str,
    k: int,
    n: int,
    strides: Sequence[int],
    dtype: str,
    isa: str | None,
    batch: int,
    batch_stride: int,
    b_dtype: str,
) -> KernelCall:
    """The kernel `name` between a matrix and its panels."""
    layout = packed_layout(k, n, dtype, isa, batch=batch)
    if len(strides) != 2:
        raise InvalidShapeError(explain("strides of weights", accepted="2 strides", got=tuple(strides)))
    values = {
        "k": k, "n": n, "row": strides[0], "col": strides[1], "batch": batch_stride, "pitch": layout.pitch,
        "dtype": DTYPE_CODES[dtype], "b_dtype": DTYPE_CODES[b_dtype],
    }  # fmt: skip
    return pack(name, _PACK_LAYOUT, values, ntasks=batch * -(-n // (_PACK_PANELS * layout.panel)), isa=isa)


@dataclass(frozen=True)
class _Problem:
    """The checked geometry: batch axes as (size, a, packed matrices, dst, residual strides), outermost first."""

    batch: tuple[tuple[int, ...], ...]
    m: int
    n: int
    k: int
    a_row: int
    a_col: int
    dst_row: int
    residual_row: int

    def fold(self) -> _Problem:
        """Rows of consecutive matrices that share weights become rows of one; axes of size one vanish."""
        batch = [axis for axis in self.batch if axis[0] != 1]
        m, rows = self.m, (self.a_row, self.dst_row, self.residual_row)
        while batch and batch[-1][2] == 0:
            size, a, _, dst, residual = batch[-1]
            if m != 1 and (a, dst, residual) != tuple(m * row for row in rows):
                break
            rows = (a, dst, residual) if m == 1 else rows
            m *= size
            batch.pop()
        return _Problem(tuple(batch), m, self.n, self.k, rows[0], self.a_col, rows[1], rows[2])


def _check(
    batch_shape: Sequence[int],
    sizes: tuple[int, int, int],
    a: Sequence[int],
    b: Sequence[int],
    c: Sequence[int],
    residual: Sequence[int],
) -> _Problem:
    """The problem of checked arguments."""
    m, n, k = sizes
    ndim = len(batch_shape)
    if ndim > _MAX_BATCH:
        raise InvalidShapeError(explain("batch_shape", accepted=f"at most {_MAX_BATCH} axes", got=ndim))
    if min(*sizes, *batch_shape) < 0:
        raise InvalidShapeError(explain("a size is negative", accepted=">= 0", got=(*batch_shape, m, n, k)))
    named = [("a_strides", a, 2), ("weight_strides", b, 0), ("c_strides", c, 1), ("residual_strides", residual, 1)]
    for name, strides, own in named:
        if len(strides) != ndim + own:
            raise InvalidShapeError(explain(name, accepted=f"{ndim + own} strides", got=tuple(strides)))
    if m > 1 and c[-1] < n:
        raise InvalidShapeError(explain("rows of dst overlap", accepted=f"row stride >= {n}", got=c[-1]))
    batch = tuple(zip(batch_shape, a[:ndim], b, c[:ndim], residual[:ndim], strict=True))
    return _Problem(batch, m, n, k, a[-2], a[-1], c[-1], residual[-1])


def _check_types(dtype: str, a_dtype: str | None, k: int, zero_point: int) -> str:
    """The type of the activations, where everything about types is right."""
    accepted = _A_DTYPES[dtype]
    if a_dtype is not None and a_dtype not in accepted:
        what = f"activations of {dtype} weights"
        raise InvalidDataTypeError(explain(what, accepted=", ".join(accepted), got=a_dtype), dtype=a_dtype)
    if dtype == "s8" and k > _MAX_S8_K:
        raise UnsupportedError(explain("terms of an 8-bit sum", accepted=f"at most {_MAX_S8_K}", got=k), k=k)
    if dtype != "s8" and zero_point:
        raise InvalidArgumentError(explain(f"zero point beside {dtype} weights", accepted="0", got=zero_point))
    return a_dtype or accepted[0]


def packed_matmul(
    batch_shape: Sequence[int],
    m: int,
    n: int,
    k: int,
    a_strides: Sequence[int],
    c_strides: Sequence[int],
    *,
    weight_strides: Sequence[int] | None = None,
    dtype: str = "f32",
    a_dtype: str | None = None,
    zero_point: int = 0,
    bias: bool = False,
    residual_strides: Sequence[int] | None = None,
    clamp: tuple[float, float] | None = None,
    epilogue: bytes = b"",
    dst_needs_scratch: bool = True,
    requant: Requant | None = None,
    dynamic: Dynamic | None = None,
    parts: int = 1,
    isa: str | None = None,
) -> KernelCall:
    """A kernel for ``dst[..., i, j] = clamp(sum(a[..., i, :] * b[..., :, j]) + bias[j] + residual[..., i, j])``.

    Arguments of the kernel: a, packed b, for s8 the scales and what is `dynamic`, bias and residual if they are asked
    for, dst, then arguments 1, 2, ... of the epilogue (its argument 0 is dst). Bias, residual and clamp are done on
    registers and cost next to nothing; an epilogue then reads what they made.

    Parameters
    ----------
    batch_shape : sequence of int
        At most 10 axes, outermost first, after broadcasting.
    m, n, k : int
        Zero is allowed; k = 0 gives sums of zero.
    a_strides : sequence of int
        One stride for each batch axis (0 broadcasts), then row and column stride, any. Unit: elements.
    c_strides : sequence of int
        One stride of dst for each batch axis, then its row stride; its columns are contiguous. Unit: elements.
        Ignored where an epilogue stores the results, except with ``dst_needs_scratch=False``.
    weight_strides : sequence of int, optional
        One stride for each batch axis; by default all share one matrix. Unit: packed matrices.
    dtype : {"f32", "bf16", "s8"}
        Of the weights, as they were packed. bf16 rounds activations to bf16 and sums in f32. s8 sums in s32, exactly,
        and multiplies by scales of shape (n,), f32: the product of both operands' scales.
    a_dtype : str, optional
        Of a: f32 for f32; f32 (default), bf16 or f16 for bf16; u8 (default) or s8 for s8.
    zero_point : int, default=0
        s8 only: of a.
    bias : bool, default=False
        There is a bias of shape (n,), f32.
    residual_strides : sequence of int, optional
        There is a residual, f32, which may be dst itself; strides as in `c_strides`.
    clamp : (float, float), optional
        Least and greatest result, f32; ``(0, inf)`` is ReLU. NaN stays.
    epilogue : bytes
        A program from ``EltwiseBuilder.epilogue()`` over the iteration space (batch..., m, n) in row-major order, that
        reads the results as its accumulator.
    dst_needs_scratch : bool, default=True
        With an epilogue, tiles are computed in scratch. False computes them in dst itself: allowed where dst is f32,
        lies as `c_strides` says, and the epilogue stores every element to its own place and reads dst nowhere.
    requant : Requant, optional
        s8 only, instead of clamp and epilogue: what is done behind the bias, and the type of dst. Its late bias and its
        residual, which lies as `residual_strides` says, are the arguments in front of dst.
    dynamic : Dynamic, optional
        s8 only: numbers of a that the run decides, its zero point instead of `zero_point`; zero points of b.
    parts : int, default=1
        In how many parts k is split, each a task of its own; `k_parts` tells a good number. With several, dst is a
        dense array (parts, batch..., m, n) of sums to be added up, and there are no post-ops; not for s8.
    isa : str, optional
        Instruction set; the best one by default. It must be one with the layout of the packed weights.

    Returns
    -------
    KernelCall
        Tasks are blocks of rows and columns, and parts of k. A row's result does not depend on m nor on how tasks are
        divided, but for `parts`.

    Raises
    ------
    InvalidShapeError, InvalidDataTypeError, InvalidArgumentError
        The arguments do not fit each other.
    UnsupportedError
        An unknown instruction set; k above 32768 with s8.

    Notes
    -----
    Threads: the KernelCall is immutable; tasks write disjoint parts of dst. dst must not overlap a.
    Cost: 2 m n k operations a matrix; up to 3 rows it is the time to read the packed weights.
    """
    layout = packed_layout(k, n, dtype, isa)
    a_dtype = _check_types(dtype, a_dtype, k, zero_point)
    if dtype != "s8" and dynamic is not None:
        raise InvalidArgumentError(explain("dynamic", accepted="s8 weights", got=dtype))
    quantised, first_arg = (dynamic or Dynamic()).record(3 if dtype == "s8" else 2)
    tail = tail_fields(
        first_arg=first_arg,
        bias=bias,
        residual=residual_strides is not None,
        clamp=clamp,
        epilogue=epilogue,
        in_scratch=dst_needs_scratch,
    )
    shared = [0] * len(batch_shape)
    residual = [*shared, 0] if residual_strides is None else residual_strides
    weights = shared if weight_strides is None else weight_strides
    problem = _check(batch_shape, (m, n, k), a_strides, weights, c_strides, residual).fold()
    if dtype == "s8":
        given = Requant(residual=None if residual_strides is None else Residual("f32"), clamp=clamp or NO_LIMITS)
        record, dst_arg = (requant or given).record(first_arg + bias)
        tail |= {"requant": record, "residual_arg": 0, "dst_arg": dst_arg, "scale_arg": 2, "dynamic": quantised}
    if requant is not None and (dtype != "s8" or epilogue):
        raise InvalidArgumentError(explain("requant", accepted="s8 weights and no epilogue", got="another product"))
    if parts > 1 and (dtype == "s8" or epilogue or clamp or bias or residual_strides is not None):
        raise InvalidArgumentError(explain("parts of k", accepted="1 for s8 weights and with post-ops", got=parts))
    part_words = max(-(-layout.words // (parts * 16)) * 16, 1) if parts > 1 else max(layout.words, 1)
    if parts > 1 and (parts - 1) * part_words >= layout.words:
        raise InvalidArgumentError(explain("parts of k", accepted="16 words or more in each", got=parts))
    values = tail | {
        "parts": parts, "part_words": part_words, "dst_part": math.prod(batch_shape) * m * n,
        "a_dtype": DTYPE_CODES[a_dtype], "a_zero": zero_point + (128 if a_dtype == "s8" else 0),
    }  # fmt: skip
    return _build(problem, layout, dtype, values, epilogue, isa)


def tail_fields(
    *,
    bias: bool,
    residual: bool,
    clamp: tuple[float, float] | None,
    epilogue: bytes,
    in_scratch: bool,
    first_arg: int = 2,
) -> dict[str, Any]:
    """Fields of a parameter block for what a kernel on packed weights does to its results.

    Argument numbers from `first_arg` on: bias and residual that are present in order, 0 for the others, dst last.

    Raises
    ------
    InvalidArgumentError
        The clamp is no range.
    """
    lo, hi = (-math.inf, math.inf) if clamp is None else clamp
    if not lo <= hi:
        raise InvalidArgumentError(explain("clamp", accepted="(low, high) with low <= high", got=clamp))
    fields: dict[str, Any] = {
        "lo": lo, "hi": hi, "tile_in_scratch": bool(epilogue) and in_scratch, "has_epilogue": bool(epilogue),
    }  # fmt: skip
    number = first_arg
    for name, is_present in (("bias_arg", bias), ("residual_arg", residual)):
        fields[name] = number if is_present else 0
        number += is_present
    return fields | {"dst_arg": number}


def _build(
    p: _Problem, layout: PackedLayout, dtype: str, values: dict[str, Any], epilogue: bytes, isa: str | None
) -> KernelCall:
    """Blocks, parts of scratch and parameter block of a problem."""
    part_words, parts = values["part_words"], values["parts"]
    sizes, a_batch, b_batch, dst_batch, residual_batch = ([axis[i] for axis in p.batch] for i in range(5))
    matrices = math.prod(sizes)
    rows = row_block(p.m)
    cols = _col_block(p.n, p.k, rows, matrices * -(-p.m // rows), layout.panel, dtype != "f32", bool(epilogue))
    word_block = _word_block(rows, part_words, layout.panel)
    partial_offset = aligned(rows * cols * 4) if values["tile_in_scratch"] else 0
    is_split = word_block < part_words
    words_offset = partial_offset + (rows * TILE_PANELS * layout.panel * 4 if is_split else 0)
    row_offset = words_offset + (0 if dtype == "f32" else aligned(rows * (part_words + 1) * 4))
    fields = values | {
        "m": p.m, "n": p.n, "k": p.k, "row_block": rows, "col_block": cols, "word_block": word_block,
        "nbatch": len(sizes), "batch_shape": sizes, "a_batch": a_batch, "dst_batch": dst_batch,
        "b_batch": [stride * layout.pitch for stride in b_batch], "residual_batch": residual_batch,
        "a_row": p.a_row, "a_col": p.a_col, "dst_row": p.dst_row, "residual_row": p.residual_row,
        "partial_offset": partial_offset, "words_offset": words_offset, "row_offset": row_offset,
    }  # fmt: skip
    return pack(
        f"{dtype}_matmul_packed", _LAYOUT, fields, ntasks=matrices * -(-p.m // rows) * -(-p.n // cols) * parts,
        scratch_nbytes=row_offset + (p.k * 4 if dtype == "bf16" else 0), tail=epilogue, isa=isa,
    )  # fmt: skip


def row_block(m: int, most: int = MOST_ROWS) -> int:
    """Rows of a task, about `most`: even parts, in whole tiles where there are several."""
    parts = max(-(-m // most), 1)
    if parts == 1:
        return max(m, 1)
    return -(-m // (parts * TILE_ROWS)) * TILE_ROWS


def streams(rows: int) -> int:
    """Panels that a tile reads at once where there are registers for it."""
    return TILE_PANELS if rows <= 3 else 2


def _col_block(n: int, k: int, rows: int, others: int, panel: int, converts: bool, has_epilogue: bool) -> int:
    """Columns of a task: whole groups of panels, as few as still make a task worth handing out.

    `others` are the blocks that have the same columns; `converts` says that each task brings its rows into words.
    """
    unit = panel * streams(rows)
    cols = max(-(-_LEAST_WORK // (max(rows, 4) * max(k, 4))), 1)
    if converts or (has_epilogue and others * (n // _WIDE) >= 16):
        cols = max(cols, _WIDE)
    parts = max(n // cols, 1)
    return max(-(-n // (parts * unit)) * unit, unit)


def k_parts(m: int, n: int, k: int, dtype: str = "f32", isa: str | None = None) -> int:
    """In how many parts to split the sums of a product whose few results would make too few tasks for many threads.

    Parameters
    ----------
    m, n, k : int
        All rows that share the weights, columns, terms.
    dtype : {"f32", "bf16"}
    isa : str, optional

    Returns
    -------
    parts : int
        For `packed_matmul`. The number of threads has no say, so that results do not depend on it.
    """
    if 0 in (m, n, k):
        return 1
    rows = row_block(m)
    blocks = -(-m // rows)
    lanes = lanes_of(isa)
    cols = min(_col_block(n, k, rows, blocks, 2 * lanes, dtype != "f32", False), -(-n // lanes) * lanes)
    work = max(rows, 4) * cols * k
    return max(min(_SPLIT_TASKS // (blocks * -(-n // cols)), work // _SPLIT_WORK, k // _SPLIT_K), 1)


def _word_block(rows: int, words: int, panel: int) -> int:
    """Steps along k at a time: all, unless several tiles of rows read panels that L2 would not keep."""
    if rows <= TILE_ROWS:
        return max(words, 1)
    most = max(l2_nbytes() * 3 // 4 // (streams(rows) * panel * 4), 64)
    parts = max(-(-words // most), 1)
    return max(-(-words // (parts * 16)) * 16, 1)


@cache
def l2_nbytes() -> int:
    """Size of the second cache of a core; where the system does not say, what most have at least."""
    try:
        size = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        return int(size.removesuffix("K")) * 1024
    except (OSError, ValueError):
        return 512 * 1024
