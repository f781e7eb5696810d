"""Post-ops of quantised products that their kernels do on registers, down to the 8 bits of the result.

What a model in the QDQ form of ONNX has behind a product: a bias, an activation, a quantisation that is undone again, a
residual of 8 bits, and the quantisation of the result (`_kernels.requant.Requant`, whose order this is).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ...._kernels.gemm.post_ops import PostOps
from ...._kernels.gemm.requant import NO_LIMITS, Dynamic, Requant, Residual, Rounding
from ....graph.shapes import channel_axis
from ....typing import DataType
from ..match.integers import byte_range
from .fused_post_ops import is_vector

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....graph.op import Op
    from .lowering import Lowering
    from .values import Value

__all__ = ["Requantized", "find_requantized"]


@dataclass(frozen=True)
class Requantized:
    """Post-ops of a kernel.

    Attributes
    ----------
    bias, late_bias : Value or None
        One number for each column; before and behind the inner rounding.
    residual : Value or None
    requant : Requant
    """

    bias: Value | None = None
    late_bias: Value | None = None
    residual: Value | None = None
    requant: Requant = field(default_factory=Requant)

    @property
    def operands(self) -> list[Value]:
        """Arguments of the kernel, in its order."""
        return [value for value in (self.bias, self.late_bias, self.residual) if value is not None]

    def post_ops(self, dynamic: Dynamic | None, residual_strides: Sequence[int] | None) -> PostOps:
        """What the kernel is asked; `residual_strides` where there is a residual."""
        return PostOps(
            dynamic=dynamic, bias=self.bias is not None, residual_strides=residual_strides, requant=self.requant
        )


def find_requantized(
    lowering: Lowering, ops: Sequence[Op], first: int, place: Value, bias: Value | None, axis: int
) -> Requantized | None:
    """The ops behind a kernel as its post-ops, or None where they are others; parameters as in `find_post_ops`."""
    if place.dtype is not DataType.F32 and byte_range(place.dtype) is None:
        return None
    if bias is not None and not is_vector(bias, len(bias.shape) - 1, (*[1] * (len(bias.shape) - 1), place.shape[axis])):
        return None
    return _Reader(lowering, place, axis, first, Requantized(bias)).read(ops)


class _Reader:
    """Reads ops one after the other: the tensor that the kernel has reached, and what it does until there."""

    def __init__(self, lowering: Lowering, place: Value, axis: int, value: int, found: Requantized) -> None:
        self.lowering = lowering
        self.place = place
        self.axis = axis
        self.value = value
        self.found = found
        self.rounding: Rounding | None = None
        self.is_back = False
        self.clamp = NO_LIMITS
        self.sides: dict[int, Op] = {}

    def read(self, ops: Sequence[Op]) -> Requantized | None:
        """What the ops are, if they are post-ops of a kernel."""
        for op in ops:
            if not self._take(op):
                return None
        requant = replace(self.found.requant, outer=self.rounding, is_real=self.is_back)
        if self.rounding is None:
            requant = replace(requant, clamp=self.clamp)
        return replace(self.found, requant=requant) if requant.dtype == self.place.dtype.value else None

    def _take(self, op: Op) -> bool:
        if op.kind == "Dequantize" and op.inputs[0].id != self.value:
            self.sides[op.outputs[0].id] = op
            return True
        if [tensor.id for tensor in op.inputs].count(self.value) != 1 or not self._does(op):
            return False
        self.value = op.outputs[0].id
        return True

    def _does(self, op: Op) -> bool:
        """Whether the op is something that the kernel can do next."""
        if self.rounding is not None and not self.is_back:
            return op.kind == "Dequantize" and self._go_back(op)
        if self.rounding is not None and not self._make_inner():
            return False
        if op.kind == "Quantize":
            self.rounding = _rounding(op, self.clamp)
            return self.rounding is not None
        if op.outputs[0].dtype is not DataType.F32:
            return False
        if op.kind in ("ReLU", "Clamp"):
            low, high = (0.0, math.inf) if op.kind == "ReLU" else (op.attrs["min"], op.attrs["max"])
            self.clamp = max(low, self.clamp[0]), min(high, self.clamp[1])
            return self.clamp[0] <= self.clamp[1]
        return op.kind in ("Add", "BiasAdd") and self.clamp == NO_LIMITS and self._add(op)

    def _go_back(self, op: Op) -> bool:
        """The Dequantize behind a rounding."""
        back, there = _rounding(op, NO_LIMITS), self.rounding
        if there is None or back is None:
            return False
        self.is_back = (back.dtype, back.scale, back.zero_point) == (there.dtype, there.scale, there.zero_point)
        return self.is_back

    def _make_inner(self) -> bool:
        """A rounding behind which more follows is the inner one, which comes first."""
        inner, self.rounding, self.clamp, self.is_back = self.rounding, None, NO_LIMITS, False
        is_early = self.found.requant.inner is None and self.found.late_bias is None and self.found.residual is None
        self.found = replace(self.found, requant=replace(self.found.requant, inner=inner))
        return is_early

    def _add(self, op: Op) -> bool:
        ids = [tensor.id for tensor in op.inputs]
        other = ids[1 - ids.index(self.value)]
        if op.kind == "BiasAdd":
            is_along = channel_axis(len(self.place.shape), op.attrs["data_format"]) == self.axis
            return is_along and self._add_vector(self.lowering.value(other), 0)
        if other in self.sides:
            return self._add_bytes(self.sides[other])
        if not self.lowering.has_value(other):
            return False
        value = self.lowering.value(other)
        return self._add_vector(value, None) or (
            value.dtype is DataType.F32 and self._add_tensor(value, Residual("f32"))
        )

    def _add_vector(self, value: Value, axis: int | None) -> bool:
        """A number for each column, first of all or between the inner rounding and the residual."""
        is_wanted = is_vector(value, self.axis, self.place.shape) if axis is None else is_vector(value, 0, value.shape)
        found = self.found
        if not is_wanted or found.residual is not None or found.late_bias is not None:
            return False
        is_first = found.bias is None and found.requant.inner is None
        if is_first:
            self.found = replace(found, bias=value)
        else:
            self.found = replace(found, late_bias=value, requant=replace(found.requant, late_bias=True))
        return True

    def _add_bytes(self, op: Op) -> bool:
        """A residual of 8 bits."""
        back = _rounding(op, NO_LIMITS)
        if back is None or not self.lowering.has_value(op.inputs[0].id):
            return False
        value = self.lowering.value(op.inputs[0].id)
        return self._add_tensor(value, Residual(back.dtype, back.scale, back.zero_point))

    def _add_tensor(self, value: Value, residual: Residual) -> bool:
        is_alike = value.shape == self.place.shape and value.lies_in(self.place.order)
        if self.found.residual is not None or not is_alike:
            return False
        self.found = replace(self.found, residual=value, requant=replace(self.found.requant, residual=residual))
        return True


def _rounding(op: Op, clamp: tuple[float, float]) -> Rounding | None:
    """What a Quantize does, or what a Dequantize undoes, if it is that of a whole tensor and within 8 bits."""
    dtype = (op.outputs if op.kind == "Quantize" else op.inputs)[0].dtype
    limits, (scale, *others) = byte_range(dtype), op.attrs["scales"]
    zero_point = int((op.attrs.get("zps") or [0])[0])
    if limits is None or others or not limits[0] <= zero_point <= limits[1] or not 1e-30 < scale < 1e30:
        return None
    return Rounding(dtype.value, float(scale), zero_point, bool(op.attrs.get("rounds_first")), clamp)
