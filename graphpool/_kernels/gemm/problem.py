"""What every matrix product kernel is asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphpool.errors import InvalidShapeError, explain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .post_ops import PostOps

__all__ = ["MOST_BATCH_AXES", "MatmulProblem", "merge_batch"]

MOST_BATCH_AXES = 10


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

    def __post_init__(self) -> None:
        ndim, sizes = len(self.batch_shape), (*self.batch_shape, self.m, self.n, self.k)
        if ndim > MOST_BATCH_AXES:
            raise InvalidShapeError(explain("batch_shape", accepted=f"at most {MOST_BATCH_AXES} axes", got=ndim))
        if min(sizes) < 0:
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

    def residual_strides(self, post_ops: PostOps) -> Sequence[int]:
        """Those of the residual, as `c_strides`; zeros where there is none."""
        given = post_ops.residual_strides
        return [0] * (len(self.batch_shape) + 1) if given is None else self.check_strides("residual_strides", given, 1)


def merge_batch(
    batch: Sequence[tuple[int, ...]], m: int, rows: tuple[int, ...]
) -> tuple[tuple[tuple[int, ...], ...], int, tuple[int, ...]]:
    """Batch axes (size, stride of a, of b, of others...) that are left, rows, and row strides of a and of the others.

    Rows of consecutive matrices that share b become rows of one; axes of size one vanish.
    """
    left = [axis for axis in batch if axis[0] != 1]
    while left and left[-1][2] == 0:
        size, a, _, *others = left[-1]
        if m != 1 and (a, *others) != tuple([m * row for row in rows]):
            break
        rows = (a, *others) if m == 1 else rows
        m *= size
        left.pop()
    return tuple(left), m, rows
