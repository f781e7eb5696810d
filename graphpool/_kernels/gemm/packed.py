"""Matrix products with constant weights: packed once into panels, then multiplied by any number of activations.

    weights = PackedFormat(768, 3072)
    weights.pack((3072, 1))(b, packed)                     # once; `weights.nbytes` says how large packed is
    problem = MatmulProblem((), 16, 3072, 768, (768, 1), (3072,))
    weights.matmul(problem, PostOps(bias=True, clamp=(0, inf)))(a, packed, bias, dst)

The layout and the method are described in ``gemm/gp_packed.h``. Kernels: ``f32_matmul_packed``,
``bf16_matmul_packed``, ``s8_matmul_packed``, ``any_matmul_pack``, ``any_matmul_unpack``.
"""

from __future__ import annotations

import math
import platform
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from graphpool._dataclasses import dataclass, field
from graphpool._sizes import Preference, largest, least
from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, UnsupportedError, explain

from ..core._dispatch import isas
from ..core.call import DTYPE_CODES, KernelCall, pack
from .post_ops import NO_POST_OPS, PostOps
from .problem import MOST_BATCH_AXES, aligned, choose, even_part, shared_part

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .problem import Folded, MatmulProblem

__all__ = ["PackedFormat", "k_parts"]

DEPTH = {"f32": 1, "bf16": 2, "s8": 4}
"""Elements along k in a word of 32 bits."""

_A_DTYPES = {"f32": ("f32",), "bf16": ("f32", "bf16", "f16"), "s8": ("u8", "s8")}
"""Types of the activations for each type of weights."""

LANES = {
    "avx512_amx": 16, "avx512_bf16": 16, "avx512": 16, "avx2_vnni": 8, "avx2": 8,
    "neon_dotprod": 4, "neon": 4, "generic": 4,
}  # fmt: skip
"""Columns of a vector (``GP_VL``)."""

PAIR_WORDS = 8
"""Words of a run from which on its pairs are compared with their limits (``GP_PAIR_WORDS``)."""

LEAST_ZERO = 32
"""The least zero point with shifts (``GP_LEAST_ZERO``)."""

_SHIFTED_WORDS = 32
"""Words of a row whose two shifts are one word (``GP_SHIFT_WORDS``)."""

_HAS_PAIRS = ("generic", "avx2", "avx512") if platform.machine().lower() in ("x86_64", "amd64") else ()
"""Instruction sets that add products of bytes in s16 (``GP_HAS_PAIRS``)."""

HAS_BF16 = ("avx512_bf16", "avx512_amx")
"""Instruction sets that multiply bf16, and bytes too."""

_AMX_ROWS, _AMX_WORDS, _AMX_NBYTES, _PIECE_NBYTES = 16, 16, 1024, 24
"""``GP_AMX_ROWS``, ``GP_AMX_WORDS``, ``GP_AMX_NBYTES``, and the size of ``gp_amx_piece``."""

TILE_ROWS, TILE_PANELS, _PACK_PANELS, CHAIN = 6, 4, 4, 256
"""``GP_TILE_ROWS``, ``GP_TILE_PANELS``, ``GP_PACK_PANELS`` and ``GP_CHAIN``."""

_MAX_S8_K = 2**15
"""Terms up to which the sum of (a - zero)(b - zero) fits s32 whatever the operands."""

MOST_ROWS, _MOST_AMX_ROWS = 96, 256
"""Rows of a task, without and with tiles, which are faster: enough to hide that a panel comes from L3, few enough to
share a product among many threads."""

_ROW_NUMBERS = 2**14
"""Numbers of A or of results up to which a task takes more rows where its products are few: L2 holds them."""

PANEL_ROWS = 12
"""Rows whose products take about the time in which a panel comes from L3, where many threads share that."""

_FEW_ROWS, _LONG_WORDS, _NEAR_WORDS = 16, 511, 64
"""Panels come to L1 in parts where there are at most so many rows and more words: in parts of so many, of which two
panels take a third of L1. Measured on an Emerald Rapids: 8 rows take 0.66 of the time with 3,072 words, 0.90 with 768;
18 rows would take 0.83 and 1.10."""

_LEAST_WORK = 2**18
"""Multiply-adds (rows counted as 4 at least) of a task, about 5 microseconds, so that handing it out costs little."""

_SPLIT_TASKS, _SPLIT_WORK, _SPLIT_K = 8, 4 * _LEAST_WORK, 1024
"""Tasks up to which k is split to have more; the least multiply-adds and the least terms of a part, beside which adding
up the parts costs under 3 %."""

_WIDE = 256
"""Columns from which on converting A and starting an epilogue's rows cost under 3 % of a task."""

_SHARED_TASKS = 4
"""Tasks that each thread beyond the first finds at least where an epilogue makes them wider."""


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


def behind(n: int, isa: str | None) -> int:
    """Columns that kernels read behind the last of n, whatever is there: what lacks of whole vectors."""
    return -n % lanes_of(isa)


def pair_count(words: int, dtype: str, isa: str | None) -> int:
    """Pairs of so many words of weights that have limits: of s8 without VNNI."""
    return words // 2 if dtype == "s8" and (isa or isas()[-1]) in _HAS_PAIRS else 0


def shift_count(words: int, dtype: str, isa: str | None) -> int:
    """Words of the shifts of a row of so many, two groups each: where there are limits of pairs."""
    return -(-words // _SHIFTED_WORDS) if pair_count(2, dtype, isa) else 0


def has_amx(isa: str | None = None) -> bool:
    """Whether an instruction set, by default the best one, multiplies tiles (``GP_HAS_AMX``)."""
    return (isa or isas()[-1]) == "avx512_amx"


def tiles_nbytes(rows: int, words: int, runs: int) -> int:
    """Of rows of so many words of bf16 or s8, in so many runs, as tiles of AMX, and of their pieces. Unit: bytes."""
    depth = -(-words // _AMX_WORDS)
    return -(-rows // _AMX_ROWS) * depth * _AMX_NBYTES + (depth + runs) * _PIECE_NBYTES


def pairs_nbytes(count: int, pairs: int) -> int:
    """Of the bytes of pairs of so many panels or tiles, and what is read behind the last. Unit: bytes."""
    return count * pairs + 32 if pairs else 0


@dataclass(frozen=True)
class MatrixFormat:
    """Constant weights of a matrix product, k x n, as one kernel reads them: in panels (``gemm/gp_packed.h``).

    Attributes
    ----------
    k, n : int
        Zero is allowed.
    dtype : str
        Of the packed weights.
    isa : str, optional
        Instruction set of the kernels that read them; the best one by default.

    Raises
    ------
    InvalidShapeError, InvalidDataTypeError, UnsupportedError
        A negative size; another data type; an unknown instruction set.

    Notes
    -----
    Formats are equal where the bytes that they pack are. Immutable; usable from any thread.
    """

    k: int
    n: int
    dtype: str
    isa: str | None = field(default=None, kw_only=True)
    dtypes: ClassVar[Iterable[str]]

    def __post_init__(self) -> None:
        if self.dtype not in self.dtypes:
            accepted = ", ".join(self.dtypes)
            raise InvalidDataTypeError(explain("dtype of packed weights", accepted=accepted, got=self.dtype))
        if min(self.k, self.n) < 0:
            raise InvalidShapeError(explain("a size is negative", accepted=">= 0", got=(self.k, self.n)))
        lanes_of(self.isa)

    @property
    def panel(self) -> int:
        """Columns of a panel."""
        return 2 * lanes_of(self.isa)

    @property
    def cols(self) -> int:
        """Columns up to whole vectors, as kernels read them."""
        return self.n + behind(self.n, self.isa)

    def _move(
        self, name: str, strides: Sequence[int], values: dict[str, Any], ntasks: int, row: str = "row"
    ) -> KernelCall:
        """The kernel `name` between plain weights and packed ones; it calls the first stride `row`."""
        if len(strides) != 2:
            raise InvalidShapeError(explain("strides of weights", accepted="2 strides", got=tuple(strides)))
        values = values | {"n": self.n, row: strides[0], "col": strides[1]}
        return pack(name, values, ntasks=ntasks, isa=self.isa)


@dataclass(frozen=True)
class PackedFormat(MatrixFormat):
    """A `MatrixFormat`: a `batch` of matrices of f32, bf16 or s8, k in whole words.

    s8 takes 4 bytes more a column, and without VNNI a byte for each word of a panel and a word for each 32 of a column.

    Any address will do, but few rows are up to 1.5 times as fast where it is a multiple of 64.
    """

    dtype: str = "f32"
    batch: int = field(default=1, kw_only=True)
    dtypes = DEPTH

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch < 0:
            raise InvalidShapeError(explain("batch", accepted=">= 0", got=self.batch))

    @property
    def words(self) -> int:
        """Words of 32 bits along k, each of 1 f32, 2 bf16 or 4 s8."""
        return -(-self.k // DEPTH[self.dtype])

    @property
    def pitch(self) -> int:
        """From one matrix of the batch to the next, a multiple of 64. Unit: bytes."""
        pairs = pairs_nbytes(-(-self.n // self.panel), 2 * pair_count(self.words, self.dtype, self.isa))
        shifts = shift_count(self.words, self.dtype, self.isa)
        words = (self.words + (self.dtype == "s8") + shifts) * self.n + behind(self.n, self.isa)
        return aligned(words * 4 + pairs)

    @property
    def nbytes(self) -> int:
        """Of all matrices. Unit: bytes."""
        return self.batch * self.pitch

    def pack(
        self,
        strides: Sequence[int],
        *,
        batch_shape: Sequence[int] = (),
        batch_strides: Sequence[int] = (),
        b_dtype: str | None = None,
    ) -> KernelCall:
        """A kernel that brings weights into panels, four a task; arguments: b, packed.

        `strides`: row and column stride of b, any, swapped for transposed weights; `batch_strides`: one for each axis
        of `batch_shape`, whose matrices are `batch`. Unit: elements. `b_dtype`: of b, where it is not `dtype`: f32
        becomes bf16, rounded to nearest even; u8 becomes s8, less 128. Every byte is written but, of s8, the gap
        between matrices. Cost: one read and one write.

        Raises
        ------
        InvalidShapeError, InvalidDataTypeError
            Other than two strides; axes that make another number of matrices, or have other than one stride each; types
            that do not fit each other.
        """
        b_dtype = b_dtype or self.dtype
        if b_dtype != self.dtype and (self.dtype, b_dtype) not in (("bf16", "f32"), ("s8", "u8")):
            what = f"weights to pack as {self.dtype}"
            raise InvalidDataTypeError(explain(what, accepted=self.dtype, got=b_dtype), dtype=b_dtype)
        return self._move_panels("any_matmul_pack", strides, (batch_shape, batch_strides), b_dtype)

    def unpack(
        self, strides: Sequence[int], *, batch_shape: Sequence[int] = (), batch_strides: Sequence[int] = ()
    ) -> KernelCall:
        """The inverse of `pack`, bit for bit, with the same parameters; arguments: packed, b."""
        return self._move_panels("any_matmul_unpack", strides, (batch_shape, batch_strides), self.dtype)

    def _move_panels(
        self, name: str, strides: Sequence[int], batch: tuple[Sequence[int], Sequence[int]], b_dtype: str
    ) -> KernelCall:
        shape, batch_strides = batch
        if len(shape) > MOST_BATCH_AXES or len(shape) != len(batch_strides) or math.prod(shape) != self.batch:
            accepted = f"at most {MOST_BATCH_AXES} axes of {self.batch} matrices, each with a stride"
            raise InvalidShapeError(
                explain("batch of weights", accepted=accepted, got=(tuple(shape), tuple(batch_strides)))
            )
        values = {
            "k": self.k, "pitch": self.pitch,
            "nbatch": len(shape), "batch_shape": shape, "batch_strides": [batch_strides],
            "dtype": DTYPE_CODES[self.dtype], "b_dtype": DTYPE_CODES[b_dtype],
        }  # fmt: skip
        return self._move(name, strides, values, self.batch * -(-self.n // (_PACK_PANELS * self.panel)))

    def matmul(
        self,
        problem: MatmulProblem,
        post_ops: PostOps = NO_POST_OPS,
        *,
        weight_strides: Sequence[int] | None = None,
        parts: int = 1,
        one_scale: bool = False,
        one_zero: bool = False,
    ) -> KernelCall:
        """A kernel for products with these weights; arguments: a, packed b, for s8 the scales, those of the post-ops.

        a is f32 for f32; f32, bf16 or f16 for bf16, rounded to bf16 and summed in f32; u8 or s8 for s8, summed in s32,
        exactly, and multiplied by scales of shape (n,), f32: the product of both operands' scales. `one_scale`,
        `one_zero`: of scales, or of zero points of the weights, there is one for all columns. `weight_strides`:
        one for each batch axis (unit: packed matrices), where not all share one matrix. `parts`: in how many k is
        split, each a task of its own; `k_parts` tells a good number. With several, dst is a dense array (parts,
        batch..., m, n) of sums to be added up, and there are no post-ops; not for s8.

        Tasks are blocks of rows and columns, and parts of k; they write disjoint parts of dst, which must not overlap
        a. A row's result does not depend on m nor on how tasks are divided, but for `parts`. Cost: up to 3 rows the
        time to read the packed weights.

        Raises
        ------
        InvalidShapeError, InvalidDataTypeError, InvalidArgumentError
            The arguments do not fit each other.
        UnsupportedError
            k above 32768 with s8.
        """
        _check_types(self, problem)
        is_int8 = self.dtype == "s8"
        post = post_ops.int8_fields() | {"scale_arg": 2} if is_int8 else post_ops.float_fields()
        if parts > 1 and (is_int8 or post_ops.has_any):
            raise InvalidArgumentError(explain("parts of k", accepted="1 for s8 weights and with post-ops", got=parts))
        part_words = even_part(self.words, parts, 16) if parts > 1 else max(self.words, 1)
        if parts > 1 and (parts - 1) * part_words >= self.words:
            raise InvalidArgumentError(explain("parts of k", accepted="16 words or more in each", got=parts))
        b = [0] * len(problem.batch_shape)
        if weight_strides is not None:
            b = [*problem.check_strides("weight_strides", weight_strides, 0)]
        folded = problem.folded(b, problem.c_strides, problem.residual_strides(post_ops))
        values = post | {
            "parts": parts, "part_words": part_words,
            "dst_part": math.prod(problem.batch_shape) * problem.m * problem.n,
            "a_dtype": DTYPE_CODES[problem.a_dtype], "a_col": problem.a_strides[-1],
            "a_zero": problem.zero_point + (128 if problem.a_dtype == "s8" else 0),
            "has_one_scale": one_scale, "has_one_zero": one_zero,
        }  # fmt: skip
        return _build(folded, self, values, post_ops.epilogue, problem.threads)


def _check_types(weights: PackedFormat, problem: MatmulProblem) -> None:
    """Check that the weights are those of the problem, and the type of its activations."""
    accepted, dtype, a_dtype = _A_DTYPES[weights.dtype], weights.dtype, problem.a_dtype
    problem.check_weights(weights.k, weights.n)
    if a_dtype not in accepted:
        what = f"activations of {dtype} weights"
        raise InvalidDataTypeError(explain(what, accepted=", ".join(accepted), got=a_dtype), dtype=a_dtype)
    if dtype == "s8" and problem.k > _MAX_S8_K:
        what = "terms of an s32 accumulator"
        raise UnsupportedError(explain(what, accepted=f"at most {_MAX_S8_K}", got=problem.k), k=problem.k)
    if dtype != "s8" and problem.zero_point:
        raise InvalidArgumentError(explain(f"zero point beside {dtype} weights", accepted="0", got=problem.zero_point))


def _build(p: Folded, weights: PackedFormat, values: dict[str, Any], epilogue: bytes, threads: int) -> KernelCall:
    """Blocks, parts of scratch and parameter block of a problem."""
    part_words, n, k, panel, dtype = values["part_words"], weights.n, weights.k, weights.panel, weights.dtype
    is_tiled = has_amx(weights.isa) and dtype != "f32"
    most, unit = (_MOST_AMX_ROWS, 2 * _AMX_ROWS) if is_tiled else (MOST_ROWS, TILE_ROWS)
    narrow, wide = largest(least(n, k), 1), largest(largest(n, k), 1)
    most = largest(most, least(_LEAST_WORK // (narrow * wide), _ROW_NUMBERS // wide))
    rows = row_block(p.m, most, unit)

    def find_cols(rows: int) -> int:
        least_cols = epilogue_cols(n, p.matrices * -(-p.m // rows), threads) if epilogue else 1
        return _col_block(n, k, rows, panel, dtype != "f32", least_cols)

    def tasks(rows: int) -> tuple[int, int]:
        cols = find_cols(rows)
        return p.matrices * -(-n // cols) * values["parts"], cols

    rows = shared_part(threads, p.m, rows, tasks, PANEL_ROWS, unit, rows)
    row_blocks = p.matrices * -(-p.m // rows)
    least_cols, others = worthwhile_cols(rows, k), row_blocks * values["parts"]
    cols = share_cols(threads, n, find_cols(rows), rows, others, panel, least_cols, converts=dtype != "f32")
    word_block = _word_block(rows, part_words, panel, is_tiled)
    partial_offset = aligned(rows * cols * 4) if values["tile_in_scratch"] else 0
    partial_rows = -(-rows // _AMX_ROWS) * _AMX_ROWS if is_tiled else rows
    partial_nbytes = partial_rows * TILE_PANELS * panel * choose(rows, _FEW_ROWS, 8, 4)  # twice where chains go on
    words_offset = partial_offset + choose(part_words, word_block, 0, partial_nbytes)
    row_offset = words_offset
    if dtype != "f32":
        tiles = tiles_nbytes(rows, part_words, 1) + (part_words + 1) * 4 if is_tiled else rows * part_words * 4
        row_offset += aligned(tiles + rows * 4)
    largest_offset = row_offset + (k * 4 if dtype == "bf16" else 0)
    ntiles = -(-rows // TILE_ROWS)
    shift_offset = largest_offset + aligned(pairs_nbytes(ntiles, pair_count(part_words, dtype, weights.isa)))
    shifts_nbytes = ntiles * shift_count(part_words, dtype, weights.isa) * 4
    fields = p.fields(weights.pitch) | values | {
        "largest_offset": largest_offset, "shift_offset": shift_offset,
        "n": n, "k": k, "row_block": rows, "col_block": cols, "word_block": word_block, "residual_row": p.rows[2],
        "partial_offset": partial_offset, "words_offset": words_offset, "row_offset": row_offset,
    }  # fmt: skip
    return pack(
        f"{dtype}_matmul_packed", fields, ntasks=row_blocks * -(-n // cols) * values["parts"],
        scratch_nbytes=shift_offset + shifts_nbytes, tail=epilogue, isa=weights.isa,
    )  # fmt: skip


def row_block(m: int, most: int = MOST_ROWS, unit: int = TILE_ROWS) -> int:
    """Rows of a task, about `most`: even parts, in whole units where there are several."""
    return least(even_part(m, largest(-(-m // most), 1), unit), largest(m, 1))


def streams(rows: int) -> int:
    """Panels that a tile reads at once where there are registers for it."""
    with Preference(rows):
        return TILE_PANELS if rows <= 3 else 2


def worthwhile_cols(rows: int, k: int) -> int:
    """Columns that make a task worth handing out."""
    return -(-_LEAST_WORK // (largest(rows, 4) * largest(k, 4)))


def epilogue_cols(n: int, others: int, threads: int) -> int:
    """Columns with which the rows of an epilogue are long, or 1 where the threads would have too few tasks then.

    `others` are the blocks that have the same columns.
    """
    wide = least(largest(n, 1), _WIDE)
    return choose(others * (n // wide), _SHARED_TASKS * (threads - 1), 1, wide)


def _col_block(n: int, k: int, rows: int, panel: int, converts: bool, least_cols: int) -> int:
    """Columns of a task: whole groups of panels, as few as still make a task worth handing out, and as many as asked.

    `converts` says that each task brings its rows into words.
    """
    cols = largest(largest(worthwhile_cols(rows, k), _WIDE if converts else 1), least_cols)
    return even_part(n, n // cols, panel * streams(rows))


def share_cols(
    threads: int, n: int, cols: int, rows: int, others: int, panel: int, least_cols: int, *, converts: bool = False
) -> int:
    """Columns of a task: `cols`, or other whole panels with which so many threads end sooner.

    `others` are the tasks that have the same columns, `least_cols` those that are worth handing out: half of them may
    do. Where a tile reads four panels at once, fewer come slower; converting A takes the time of some columns.
    """
    fixed = panel if converts else panel * (streams(rows) - 2) // 2
    unit = even_part(largest(least_cols // 2, 1), 1, 2 * panel if converts else panel)
    return shared_part(threads, n, cols, lambda _: (others, 1), fixed, unit, 2 * cols)


def k_parts(m: int, n: int, k: int, dtype: str = "f32", isa: str | None = None) -> int:
    """In how many parts `PackedFormat.matmul` best splits k where its few results make too few tasks for many threads.

    m: all rows that share the weights. The number of threads has no say, so that results do not depend on it.
    """
    if 0 in (m, n, k) or k < 2 * _SPLIT_K:
        return 1
    rows = row_block(m)
    blocks = -(-m // rows)
    weights = PackedFormat(k, n, dtype, isa=isa)
    cols = least(_col_block(n, k, rows, weights.panel, dtype != "f32", 1), weights.cols)
    work = largest(rows, 4) * cols * k
    parts = least(least(_SPLIT_TASKS // (blocks * -(-n // cols)), work // _SPLIT_WORK), k // _SPLIT_K)
    return 1 if parts <= 1 else int(parts)


def _word_block(rows: int, words: int, panel: int, is_tiled: bool) -> int:
    """Steps along k at a time: all, unless several tiles of rows read panels that L2 would not keep.

    Vectors of 16 lanes wait for panels from L2 where two or three tiles read them: these come to L1 in parts.
    """
    most = largest(l2_nbytes() * 3 // 4 // (streams(rows) * panel * 4), 64)
    block = even_part(words, -(-words // most), CHAIN)
    if panel == 2 * LANES["avx512"] and not is_tiled:
        near = even_part(words, -(-words // _NEAR_WORDS), 16)
        block = choose(rows, _FEW_ROWS, choose(words, _LONG_WORDS, block, near), block)
    return choose(rows, TILE_ROWS, largest(words, 1), block)


@cache
def l2_nbytes() -> int:
    """Size of the second cache of a core; where the system does not say, what most have at least."""
    try:
        size = Path("/sys/devices/system/cpu/cpu0/cache/index2/size").read_text().strip()
        return int(size.removesuffix("K")) * 1024
    except (OSError, ValueError):
        return 512 * 1024
