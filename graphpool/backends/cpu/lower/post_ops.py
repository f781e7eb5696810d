"""Post-ops that kernels do on accumulators in registers; where there are others, an epilogue does all of them.

Of floats a bias, a residual and a clamp, in this order. Of quantised products what a model in the QDQ form of ONNX has
behind one: a bias, an activation, a quantisation that is undone again, a residual of 8 bits, and the quantisation of
the result (`_kernels.gemm.requant.Requant`, whose order this is).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass, replace

from ...._kernels.gemm.post_ops import PostOps
from ...._kernels.gemm.requant import NO_LIMITS, Dynamic, Requant, Residual, Rounding
from ....graph.shapes import are_equal, channel_axis
from ....typing import DataType
from ..match.integers import byte_range
from .region import region_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ....graph.op import Op
    from .lowering import Lowering
    from .values import Value

__all__ = ["FusedPostOps", "Tail", "find_post_ops", "is_plain_bias"]


@dataclass(frozen=True)
class Tail:
    """What a kernel does to its accumulators.

    `args` follow the kernel's own arguments, the place of the result among them; `name` is for reports.
    """

    post_ops: PostOps
    args: list[Value]
    name: str | None


@dataclass(frozen=True)
class FusedPostOps:
    """Post-ops of a kernel.

    A bias before and one behind the inner rounding, one number for each column; a residual that lies as the result
    does; a clamp of floats; what is done to quantised products.
    """

    bias: Value | None = None
    late_bias: Value | None = None
    residual: Value | None = None
    clamp: tuple[float, float] | None = None
    requant: Requant | None = None

    @property
    def operands(self) -> list[Value]:
        """Arguments of the kernel, in its order."""
        return [value for value in (self.bias, self.late_bias, self.residual) if value is not None]

    def tail(
        self,
        place: Value,
        ops: Sequence[Op],
        residual_strides: Sequence[int] | None = None,
        dynamic: Dynamic | None = None,
    ) -> Tail:
        """What a kernel does to its accumulators, if these are all ops; arguments as those of `post_ops`."""
        name = region_name(ops) if ops else None
        return Tail(self.post_ops(residual_strides, dynamic), [*self.operands, place], name)

    def post_ops(self, residual_strides: Sequence[int] | None = None, dynamic: Dynamic | None = None) -> PostOps:
        """What the kernel is asked; the strides, those of a residual, count only where there is one."""
        return PostOps(
            dynamic=dynamic,
            bias=self.bias is not None,
            residual_strides=None if self.residual is None else residual_strides,
            clamp=self.clamp,
            requant=self.requant,
        )


def find_post_ops(
    lowering: Lowering,
    ops: Sequence[Op],
    first: int,
    place: Value,
    bias: Value | None,
    axis: int,
    *,
    is_residual: Callable[[Value], bool] | None = None,
    is_quantized: bool = False,
) -> FusedPostOps | None:
    """The ops behind a kernel that it can fuse, or None where they are others, or the result has another type.

    `ops` are in topological order; tensor `first` is the kernel's accumulators, those of bytes if `is_quantized`; a
    bias is added first. The result goes to `place`, its columns along `axis`. `is_residual` says whether the kernel can
    read an addend of the result's shape as it lies; by default it must lie as `place` does, without gaps.
    """
    if place.dtype is not DataType.F32 and not (is_quantized and byte_range(place.dtype)):
        return None
    if bias is not None and (not is_plain_bias(bias) or bias.shape[-1] != place.shape[axis]):
        return None
    reader = _QuantizedReader if is_quantized else _Reader
    return reader(lowering, place, axis, first, bias, is_residual).read(ops)


def is_plain_bias(bias: Value | None) -> bool:
    """Whether kernels can read a bias, one number for each column, as it lies."""
    return bias is None or (bool(bias.shape) and _is_vector(bias, len(bias.shape) - 1, bias.shape))


def _is_vector(value: Value, axis: int, shape: Sequence[int]) -> bool:
    """Whether the value, broadcast to the shape, is one f32 number for each index of the axis, lying side by side."""
    skipped = len(shape) - len(value.shape)
    wanted = [shape[k] if k == axis else 1 for k in range(skipped, len(shape))]
    if skipped > axis or value.dtype is not DataType.F32 or list(value.shape) != wanted:
        return False
    return shape[axis] == 1 or value.strides[axis - skipped] == 1


class _Reader:
    """Reads ops one after the other: the tensor that the kernel has reached, and what it does until there."""

    def __init__(
        self,
        lowering: Lowering,
        place: Value,
        axis: int,
        value: int,
        bias: Value | None,
        is_residual: Callable[[Value], bool] | None,
    ) -> None:
        self.lowering = lowering
        self.place = place
        self.axis = axis
        self.value = value
        self.found = FusedPostOps(bias)
        self.clamp = NO_LIMITS
        self.is_residual = is_residual or (lambda value: value.lies_in(place.order))

    def read(self, ops: Sequence[Op]) -> FusedPostOps | None:
        """What the ops are, if they are post-ops of a kernel."""
        return self._finish() if all(map(self._take, ops)) else None

    def _finish(self) -> FusedPostOps | None:
        return replace(self.found, clamp=None if self.clamp == NO_LIMITS else self.clamp)

    def _take(self, op: Op) -> bool:
        if [tensor.id for tensor in op.inputs].count(self.value) != 1 or not self._does(op):
            return False
        self.value = op.outputs[0].id
        return True

    def _does(self, op: Op) -> bool:
        """Whether the op is something that the kernel can do next."""
        if op.outputs[0].dtype not in (DataType.F32, DataType.F16):
            return False
        if op.kind in ("ReLU", "Clamp"):
            return self._add_clamp(*((0.0, math.inf) if op.kind == "ReLU" else (op.attrs["min"], op.attrs["max"])))
        return op.kind in ("Add", "BiasAdd") and self.clamp == NO_LIMITS and self._add(op)

    def _add_clamp(self, low: float, high: float) -> bool:
        is_first, self.clamp = self.clamp == NO_LIMITS, (low, high)
        return is_first and low <= high

    def _add(self, op: Op) -> bool:
        ids = [tensor.id for tensor in op.inputs]
        other = ids[1 - ids.index(self.value)]
        if not self.lowering.has_value(other):
            return False  # it is computed from the product, on the tile
        value = self.lowering.value(other)
        if op.kind == "BiasAdd":
            is_along = channel_axis(len(self.place.shape), op.attrs["data_format"]) == self.axis
            return is_along and is_plain_bias(value) and self._add_vector(value)
        is_vector = _is_vector(value, self.axis, self.place.shape) and self._add_vector(value)
        return is_vector or (value.dtype is DataType.F32 and self._add_tensor(value))

    def _add_vector(self, value: Value) -> bool:
        """A number for each column, first of all."""
        is_first = self.found.bias is None and self.found.residual is None
        if is_first:
            self.found = replace(self.found, bias=value)
        return is_first

    def _add_tensor(self, value: Value) -> bool:
        is_alike = self.found.residual is None and are_equal(value.shape, self.place.shape)
        if not is_alike or not self.is_residual(value):
            return False
        self.found = replace(self.found, residual=value)
        return True


class _QuantizedReader(_Reader):
    """Reads what may follow a product of bytes: besides, roundings, a second bias, and a residual of bytes."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.requant = Requant()
        self.rounding: Rounding | None = None
        self.is_back = False
        self.sides: dict[int, Op] = {}

    def _finish(self) -> FusedPostOps | None:
        requant = replace(self.requant, outer=self.rounding, is_real=self.is_back)
        if self.rounding is None:
            requant = replace(requant, clamp=self.clamp)
        return replace(self.found, requant=requant) if requant.dtype == self.place.dtype.value else None

    def _take(self, op: Op) -> bool:
        if op.kind == "Dequantize" and op.inputs[0].id != self.value:
            self.sides[op.outputs[0].id] = op
            return True
        return super()._take(op)

    def _does(self, op: Op) -> bool:
        if self.rounding is not None and not self.is_back:
            return op.kind == "Dequantize" and self._go_back(op)
        if self.rounding is not None and not self._make_inner():
            return False
        if op.kind == "Quantize":
            self.rounding = _rounding(op, self.clamp)
            return self.rounding is not None
        return super()._does(op)

    def _go_back(self, op: Op) -> bool:
        """The Dequantize behind a rounding."""
        back, there = _rounding(op, NO_LIMITS), self.rounding
        if there is None or back is None:
            return False
        self.is_back = (back.dtype, back.scale, back.zero_point) == (there.dtype, there.scale, there.zero_point)
        return self.is_back

    def _make_inner(self) -> bool:
        """A rounding behind which more follows is the inner one, which comes first."""
        is_early = self.requant.inner is None and self.found.late_bias is None and self.found.residual is None
        self.requant = replace(self.requant, inner=self.rounding)
        self.rounding, self.clamp, self.is_back = None, NO_LIMITS, False
        return is_early

    def _add_clamp(self, low: float, high: float) -> bool:
        self.clamp = max(low, self.clamp[0]), min(high, self.clamp[1])
        return self.clamp[0] <= self.clamp[1]

    def _add(self, op: Op) -> bool:
        found = next((self.sides[tensor.id] for tensor in op.inputs if tensor.id in self.sides), None)
        if op.kind == "BiasAdd" or found is None:
            return super()._add(op)
        back = _rounding(found, NO_LIMITS)
        if back is None or not self.lowering.has_value(found.inputs[0].id):
            return False
        residual = Residual(back.dtype, back.scale, back.zero_point)
        return self._add_tensor(self.lowering.value(found.inputs[0].id), residual)

    def _add_vector(self, value: Value) -> bool:
        """A number for each column, first of all or between the inner rounding and the residual."""
        found = self.found
        if found.residual is not None or found.late_bias is not None:
            return False
        if found.bias is None and self.requant.inner is None:
            self.found = replace(found, bias=value)
        else:
            self.found, self.requant = replace(found, late_bias=value), replace(self.requant, late_bias=True)
        return True

    def _add_tensor(self, value: Value, residual: Residual | None = None) -> bool:
        self.requant = replace(self.requant, residual=residual or Residual("f32"))
        return super()._add_tensor(value)


def _rounding(op: Op, clamp: tuple[float, float]) -> Rounding | None:
    """What a Quantize does, or what a Dequantize undoes, if it is that of a whole tensor and within 8 bits."""
    dtype = (op.outputs if op.kind == "Quantize" else op.inputs)[0].dtype
    limits, (scale, *others) = byte_range(dtype), op.attrs["scales"]
    zero_point = int((op.attrs.get("zps") or [0])[0])
    if limits is None or others or not limits[0] <= zero_point <= limits[1] or not 1e-30 < scale < 1e30:
        return None
    return Rounding(dtype.value, float(scale), zero_point, bool(op.attrs.get("rounds_first")), clamp)
