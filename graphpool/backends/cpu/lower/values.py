"""Where tensors lie: memory, and views of it as kernels see them."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphpool._dataclasses import NamedTuple, dataclass

from ...._kernels.core.spaces import agree
from ...._sizes import hint_of, is_variable, key_of
from ....typing import DataType, dense_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..layout.packed import WeightLayout

__all__ = ["Buffer", "Value", "strides_in"]


@dataclass(slots=True, eq=False)
class Buffer:
    """Memory that values lie in. Unit: bytes.

    `base` is a base pointer of the program: `ARENA` for temporaries, whose `offset` from it the memory plan decides,
    `LITERALS`, or an external tensor. A buffer `within` another is a part of it that other steps write than the rest:
    base, size and offset are the whole's; but for an external tensor with which another one begins, and which nobody
    writes, that are its own.
    """

    base: int
    nbytes: int
    offset: int = 0
    within: Buffer | None = None

    @property
    def whole(self) -> Buffer:
        """The buffer that is no part of another."""
        return self if self.within is None else self.within.whole


def strides_in(shape: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    """Strides of a tensor without gaps whose axes lie in this order, outermost first. Unit: elements."""
    strides, step = [1] * len(shape), 1
    for axis in reversed(order):
        strides[axis] = step
        step *= max(shape[axis], 1)
    return tuple(strides)


class Value(NamedTuple):
    """A tensor as kernels see it: strides, and the offset of the first element. Unit: elements.

    `layout` says how the elements lie where no strides can.
    """

    dtype: DataType
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    buffer: Buffer
    offset: int = 0
    layout: WeightLayout | None = None

    @property
    def as_bytes(self) -> Value:
        """All that the buffer holds."""
        return Value(DataType.U8, (self.buffer.nbytes,), (1,), self.buffer)

    def as_elements(self, dtype: DataType, nbytes: int) -> Value:
        """So many bytes of the buffer, from its beginning, as elements of a type."""
        return Value(dtype, (nbytes // dtype.numpy.itemsize,), (1,), self.buffer)

    @property
    def is_dense(self) -> bool:
        """Whether the elements lie row-major without gaps."""
        return self.lies_in(range(len(self.shape)))

    @property
    def is_plain_block(self) -> bool:
        """Whether it is dense and not packed, so that it can be seen under another shape."""
        return self.is_dense and self.layout is None

    @property
    def is_whole(self) -> bool:
        """Whether the elements are all that the buffer holds."""
        return self.buffer.nbytes == self.dtype.nbytes(prod(self.shape))

    @property
    def order(self) -> tuple[int, ...]:
        """The axes in the order in which they lie, outermost first."""
        return tuple(sorted(range(len(self.shape)), key=lambda axis: -self.strides[axis]))

    def lies_in(self, order: Sequence[int]) -> bool:
        """Whether the elements lie without gaps, axes in this order."""
        step = 1
        for axis in reversed(order):
            dim, stride = self.shape[axis], self.strides[axis]
            if is_variable(dim) and key_of(stride) == key_of(step):  # whether it is 1 is not asked then
                step *= dim
            elif dim > 1:
                if not agree((stride,), (step,)):
                    return False
                step *= dim
        return True

    def row_strides(self, order: Sequence[int]) -> tuple[int, ...] | None:
        """Strides for kernels that walk the axes in this order, the last without gaps, others perhaps with.

        Axes of one element get strides that fit in. None where the elements lie otherwise.
        """
        strides, step = list(self.strides), 1
        for axis in reversed(order):
            dim, stride = self.shape[axis], self.strides[axis]
            if dim > 1 and (stride < step or (axis == order[-1] and stride != 1)):
                return None
            strides[axis] = stride if dim > 1 else step
            step = strides[axis] * max(dim, 1)
        return tuple(strides)

    def cut(self, axis: int, start: int, count: int, step: int = 1) -> Value:
        """Every `step`-th of the elements from `start` on along an axis, `count` of them, in place."""
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + start * strides[axis]
        shape[axis], strides[axis] = count, strides[axis] * step
        return Value(self.dtype, tuple(shape), tuple(strides), self.buffer, offset, self.layout)

    def is_at(self, other: Value) -> bool:
        """Whether both are the same elements of the same memory."""
        own, others = ((v.dtype, v.shape, v.strides, v.offset, v.buffer.whole) for v in (self, other))
        return own == others

    def reshaped(self, shape: Sequence[int]) -> Value:
        """The same elements under another dense shape; the value must be dense."""
        return Value(self.dtype, tuple(shape), dense_strides(shape), self.buffer, self.offset)

    def with_ones(self, shape: Sequence[int]) -> Value | None:
        """The same memory under a shape that differs in axes of one element; None where it differs otherwise."""
        axes = [(dim, stride) for dim, stride in zip(self.shape, self.strides, strict=True) if dim != 1]
        dims = [dim for dim in shape if dim != 1]
        if len(dims) != len(axes) or any(dim != own for dim, (own, _) in zip(dims, axes, strict=True)):
            return None
        strides = iter([stride for _, stride in axes])
        return self._replace(shape=tuple(shape), strides=tuple([0 if dim == 1 else next(strides) for dim in shape]))

    def broadcast(self, shape: Sequence[int]) -> Value:
        """The same memory seen with another shape, to which its own broadcasts as in numpy."""
        dims = tuple(shape)
        own = [0 if dim == 1 else stride for dim, stride in zip(self.shape, self.strides, strict=True)]
        return Value(self.dtype, dims, tuple([0] * (len(dims) - len(own)) + own), self.buffer, self.offset)

    def transposed(self, order: Sequence[int]) -> Value:
        """The same memory with its axes in another order."""
        shape, strides = ([axes[k] for k in order] for axes in (self.shape, self.strides))
        return Value(self.dtype, tuple(shape), tuple(strides), self.buffer, self.offset)

    def with_hints(self) -> Value:
        """The same memory with the sizes that there are now as plain numbers."""
        shape, strides = tuple(map(hint_of, self.shape)), tuple(map(hint_of, self.strides))
        return Value(self.dtype, shape, strides, self.buffer, hint_of(self.offset), self.layout)

    def squeezed(self, axis: int) -> Value:
        """The same memory without an axis of size 1."""
        shape, strides = ((*axes[:axis], *axes[axis + 1 :]) for axes in (self.shape, self.strides))
        return Value(self.dtype, shape, strides, self.buffer, self.offset)

    def unsqueezed(self, axis: int) -> Value:
        """The same memory with a new axis of size 1."""
        shape, strides = ((*axes[:axis], one, *axes[axis:]) for axes, one in ((self.shape, 1), (self.strides, 0)))
        return Value(self.dtype, shape, strides, self.buffer, self.offset)
