"""Elementwise ops as one program of the elementwise engine, alone or behind the accumulators of another kernel."""

from __future__ import annotations

from math import copysign, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ...._kernels.core.call import DTYPE_CODES
from ...._kernels.eltwise.eltwise import EltwiseBuilder
from ....graph.shapes import scale_group_axis
from ....typing import DataType
from ..support import register_of_type
from .values import Value

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....graph.op import Op
    from .lowering import Lowering

__all__ = ["Region", "fill", "region_name"]


class Region:
    """Elementwise ops over one index space: the shape of every result in it.

    `accumulator` is the tensor that the kernel in front hands over in its accumulators; `register` the type in which
    the program computes, f32, f64, s64 or u64; `order` the axes in the order in which the index space runs, outermost
    first: that in which most operands lie. `operands` are arguments 1, 2, ... of the program; argument 0 is where the
    first result goes.
    """

    def __init__(
        self,
        lowering: Lowering,
        shape: tuple[int, ...],
        accumulator: int | None = None,
        *,
        register: str = "f32",
        order: Sequence[int] | None = None,
    ) -> None:
        self.lowering = lowering
        self.shape = shape
        self.order = tuple(range(len(shape))) if order is None else tuple(order)
        self.builder = EltwiseBuilder([shape[axis] for axis in self.order], register=register)
        self.operands: list[Value] = []
        self._place: Value | None = None
        self._known: dict[int, Any] = {}
        self._narrowed: dict[int, Any] = {}
        if accumulator is not None:
            self._known[accumulator] = self.builder.acc()

    # ---- operands

    def get(self, tensor_id: int) -> Any:
        """The tensor in a register: computed here, or loaded with numpy broadcasting."""
        if tensor_id not in self._known:
            self._known[tensor_id] = self.load(self.lowering.value(tensor_id))
        return self._known[tensor_id]

    def operand(self, op: Op, port: int = 0) -> Any:
        """An input of an op in a register; an integer computed here is within the range of its type.

        Floats stay as exact as the register is, but for those that were cast to a narrower type.
        """
        tensor_id = op.inputs[port].id
        return self._narrowed[tensor_id] if tensor_id in self._narrowed else self.get(tensor_id)

    def put(self, tensor_id: int, register: Any, narrow_to: DataType | None = None) -> None:
        """Say that a register holds the tensor, or numbers that operands of a type narrow to it."""
        self._known[tensor_id] = register
        if narrow_to is not None and narrow_to.value != self.builder.register:
            self._narrowed[tensor_id] = self.unary("narrow", register, DTYPE_CODES[narrow_to.value])

    def load(self, value: Value) -> Any:
        """A value in memory, broadcast to the index space."""
        return self._load(value, value.broadcast(self.shape).strides)

    def load_along(self, value: Value, axis: int) -> Any:
        """A vector in memory, one element for each index of `axis`; of a vector of one, that element everywhere."""
        strides = [0] * len(self.shape)
        if value.shape and prod(value.shape) > 1:
            strides[axis] = value.strides[-1]
        return self._load(value, strides)

    def along(self, tensor_id: int, axis: int) -> Any:
        """A vector along `axis`; what was computed here has the shape of the index space, and is taken as it is."""
        if tensor_id in self._known:
            return self._narrowed.get(tensor_id, self._known[tensor_id])
        return self.load_along(self.lowering.value(tensor_id), axis)

    def literal(self, numbers: Sequence[float] | np.ndarray[Any, Any], axis: int) -> Any:
        """Numbers that are known now: one for all, one for each index of `axis`, or one for each (group, index)."""
        if len(numbers) == 1:
            return self.builder.const(float(numbers[0]))
        array = np.asarray(numbers, np.float32)
        size = self.shape[axis]
        if len(numbers) == size or not size:
            return self.load_along(self.lowering.literal(array), axis)
        other = scale_group_axis(self.shape, axis, len(numbers))
        rows = np.repeat(array.reshape(-1, size), self.shape[other] * size // len(numbers), axis=0)
        shape = [dim if k in (axis, other) else 1 for k, dim in enumerate(self.shape)]
        return self.load(self.lowering.literal(np.ascontiguousarray(rows if other < axis else rows.T).reshape(shape)))

    def _load(self, value: Value, strides: Sequence[int]) -> Any:
        self.operands.append(value)
        return self.builder.load(len(self.operands), value.dtype.value, [strides[axis] for axis in self.order])

    # ---- arithmetic

    def unary(self, name: str, a: Any, alpha: float = 0.0, beta: float = 0.0) -> Any:
        """f(a)."""
        return self.builder.unary(name, a, alpha, beta)

    def binary(self, name: str, a: Any, b: Any) -> Any:
        """f(a, b)."""
        return self.builder.binary(name, a, b)

    def store(self, tensor_id: int, place: Value | None = None) -> Value:
        """Write the tensor to `place`, or where it belongs; returns that, argument 0 of the program for the first."""
        if place is None:
            place = self.lowering.target(tensor_id, order=self.order, any_strides=True)
        self.write(place, self.get(tensor_id))
        return place

    def write(self, place: Value, register: Any) -> None:
        """Write a register; the first place written is argument 0 of the program."""
        strides = [place.strides[axis] for axis in self.order]
        if self._place is None:
            self._place = place
            self.builder.store(0, place.dtype.value, strides, register)
            return
        self.operands.append(place)
        self.builder.store(len(self.operands), place.dtype.value, strides, register)

    def emit(self, name: str | None = None, *, is_elementwise: bool = False) -> None:
        """Emit the program."""
        assert self._place is not None  # it writes something
        self.lowering.run_program(self.builder, [self._place, *self.operands], name, is_elementwise=is_elementwise)


def fill(lowering: Lowering, place: Value, number: float) -> None:
    """Write one number everywhere; a copy takes less than a program where runs of elements are short."""
    is_zero = number == 0 and copysign(1, number) > 0  # zero bytes in all types, of which the widest has 16
    if place.dtype is DataType.F32 or (is_zero and place.dtype.bits >= 8):
        literal = lowering.literal(np.zeros(16, np.uint8) if is_zero else np.array([number], np.float32))
        lowering.move(Value(place.dtype, place.shape, (0,) * len(place.shape), literal.buffer), place)
        return
    region = Region(lowering, place.shape, register=register_of_type(place.dtype))
    region.write(place, region.builder.const(number))
    region.emit("eltwise(fill)")


def region_name(ops: Sequence[Op]) -> str:
    """What reports call a step of these ops."""
    kinds = "+".join(op.kind for op in ops[:4])
    return f"eltwise({kinds}{f'+{len(ops) - 4} more' if len(ops) > 4 else ''})"
