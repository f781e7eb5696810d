"""What every kernel for matrix products is asked, and what it is told of weights, blocks and batches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import NamedTuple, dataclass
from graphpool._sizes import is_variable, largest, least
from graphpool.errors import InvalidShapeError, explain

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .post_ops import PostOps

__all__ = ["MOST_BATCH_AXES", "Folded", "MatmulProblem", "aligned", "choose", "even_part", "shared_part"]

MOST_BATCH_AXES = 10

_MOST_ROUNDS = 8
"""Tasks of a thread up to which counts are tried when work is shared: of more, one too many costs under a tenth."""


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to whole cache lines of 64 bytes."""
    return (nbytes + 63) // 64 * 64


def even_part(extent: int, parts: int, unit: int = 1) -> int:
    """The size of so many even parts of an extent: whole units, one at least."""
    return largest(-(-extent // (largest(parts, 1) * unit)), 1) * unit


def choose(x: int, most: int, small: int, large: int) -> int:
    """`small` where x is at most `most`, else `large`; of sizes that vary a term, no decision."""
    if not is_variable(x) and not is_variable(most):
        return small if x <= most else large
    return large + largest(least(most + 1 - x, 1), 0) * (small - large)


def shared_part(
    threads: int, extent: int, part: int, tasks: Callable[[int], tuple[int, int]], fixed: int, unit: int, most: int
) -> int:
    """What a task takes of an extent: `part`, or other whole units, `most` at most, with which threads end sooner.

    `tasks` says of a part of some size how many tasks work on it, and how wide each is: a task takes the time of its
    part and of `fixed` more, times its width. Where sizes vary, which part is best would be a decision that a
    compilation rests on: then there are as many tasks as fill the rounds of all threads, of two units or more.
    """
    if threads == 1:
        return part
    count, width = tasks(part)
    if any(map(is_variable, (extent, part, count, width, fixed, unit))):
        count = largest(count, 1)
        rounds = -(-(-(-extent // largest(part, 1)) * count) // threads)
        return least(part, largest(even_part(extent, rounds * threads // count, unit), 2 * unit))

    def time(size: int) -> int:
        count, width = tasks(size)
        return -(-(-(-extent // size) * count) // threads) * (size + fixed) * width

    best = part
    for rounds in range(1, _MOST_ROUNDS + 1):
        other = even_part(extent, rounds * threads // max(count, 1), unit)
        if other <= most and 10 * time(other) < 9 * time(best):
            best = other
    return best


@dataclass(frozen=True)
class MatmulProblem:
    """Products ``dst[..., i, j] = sum(a[..., i, :] * b[..., :, j])`` whose sizes fit each other.

    Attributes
    ----------
    batch_shape : sequence of int
        At most 10 axes, outermost first, after broadcasting.
    m, n, k : int
        Zero is allowed; k = 0 gives sums of zero.
    a_strides : sequence of int
        One stride for each batch axis (0 broadcasts), then row and column stride, any; a transposed matrix is one whose
        strides are swapped. Unit: elements.
    c_strides : sequence of int
        One stride of dst for each batch axis, then its row stride; its columns are contiguous. Unit: elements. Ignored
        where an epilogue stores the results, except with ``dst_needs_scratch=False``.
    a_dtype : str, default="f32"
        Of a: what the kernel takes.
    zero_point : int, default=0
        Of a with 8 bits.
    threads : int, default=1
        That will share the product: tasks are made smaller where these then end sooner. Results do not depend on it.

    Raises
    ------
    InvalidShapeError
        The arguments do not fit each other.
    """

    batch_shape: Sequence[int]
    m: int
    n: int
    k: int
    a_strides: Sequence[int]
    c_strides: Sequence[int]
    a_dtype: str = "f32"
    zero_point: int = 0
    threads: int = 1

    def __post_init__(self) -> None:
        ndim, sizes = len(self.batch_shape), (*self.batch_shape, self.m, self.n, self.k)
        if ndim > MOST_BATCH_AXES:
            raise InvalidShapeError(explain("batch_shape", accepted=f"at most {MOST_BATCH_AXES} axes", got=ndim))
        if any(size < 0 for size in sizes):
            raise InvalidShapeError(explain("a size is negative", accepted=">= 0", got=sizes))
        self.check_strides("a_strides", self.a_strides, 2)
        self.check_strides("c_strides", self.c_strides, 1)
        if self.m > 1 and self.c_strides[-1] < self.n:
            accepted = f"row stride >= {self.n}"
            raise InvalidShapeError(explain("rows of dst overlap", accepted=accepted, got=self.c_strides[-1]))

    def check_strides(self, name: str, strides: Sequence[int], own: int) -> Sequence[int]:
        """The strides, if there is one for each batch axis and `own` more; else `InvalidShapeError`."""
        count = len(self.batch_shape) + own
        if len(strides) != count:
            raise InvalidShapeError(explain(name, accepted=f"{count} strides", got=tuple(strides)))
        return strides

    def check_weights(self, k: int, n: int) -> None:
        """Raise `InvalidShapeError` unless weights of k x n are those of the problem."""
        if (self.k, self.n) != (k, n):
            raise InvalidShapeError(explain("k and n of a product", accepted=f"{k}, {n}", got=(self.k, self.n)))

    def residual_strides(self, post_ops: PostOps) -> Sequence[int]:
        """Those of the residual, as `c_strides`; zeros where there is none."""
        given = post_ops.residual_strides
        return [0] * (len(self.batch_shape) + 1) if given is None else self.check_strides("residual_strides", given, 1)

    def folded(self, b: Sequence[int], *others: Sequence[int]) -> Folded:
        """The same products with fewer axes: rows of consecutive matrices that share b become rows of one.

        `b` are the batch strides of b, `others` those of dst and of what lies like it, as `c_strides`.
        """
        ndim, sides = len(self.batch_shape), (self.a_strides[:-1], *others)
        m, (a_rows, *rows) = self.m, [side[-1] for side in sides]
        axes = zip(self.batch_shape, self.a_strides[:ndim], b[:ndim], *(side[:-1] for side in others), strict=True)
        batch = [axis for axis in axes if axis[0] != 1]
        while batch and batch[-1][2] == 0:
            size, a, _, *steps = batch[-1]
            if m != 1 and [a, *steps] != [m * row for row in (a_rows, *rows)]:
                break
            a_rows, rows = (a, steps) if m == 1 else (a_rows, rows)
            m *= size
            batch.pop()
        return Folded(tuple(batch), m, (a_rows, *rows))


class Folded(NamedTuple):
    """Axes of a batch (size, strides of a, b, dst...), outermost first, rows, and row strides of a, dst..."""

    batch: tuple[tuple[int, ...], ...]
    m: int
    rows: tuple[int, ...]

    @property
    def matrices(self) -> int:
        """How many there are in the batch."""
        return math.prod(axis[0] for axis in self.batch)

    def fields(self, b_unit: int = 1) -> dict[str, Any]:
        """What the structs of the kernels have in common; `b_unit`: of the strides of b."""
        shape, a, b, *others = zip(*self.batch, strict=True) if self.batch else ((),) * (len(self.rows) + 2)
        strides = [a, [stride * b_unit for stride in b], *others]
        return {
            "m": self.m, "nbatch": len(shape), "batch_shape": shape, "batch_strides": strides,
            "a_row": self.rows[0], "dst_row": self.rows[1],
        }  # fmt: skip
