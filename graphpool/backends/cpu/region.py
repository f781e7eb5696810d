"""Elementwise ops as one program of the elementwise engine, alone or behind the accumulators of another kernel."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._kernels.eltwise import EltwiseBuilder
from ...graph.shapes import channel_axis, scale_group_axis
from ...typing import DataType
from .support import is_integer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...graph.op import Op
    from .lowering import Lowering, Value

__all__ = ["Region", "fold_batch_norm", "lower_region", "region_name"]


class Region:
    """Elementwise ops over one index space.

    Parameters
    ----------
    lowering : Lowering
    shape : tuple of int
        The index space: the shape of every result in it.
    accumulator : int, optional
        Id of the tensor that the kernel in front hands over in its accumulators.
    integer : bool, default=False
        Compute on integers, exactly.
    order : sequence of int, optional
        The axes in the order in which the index space runs, outermost first: that in which most operands lie.

    Attributes
    ----------
    operands : list of Value
        Arguments 1, 2, ... of the program; argument 0 is where the result goes.
    """

    def __init__(
        self,
        lowering: Lowering,
        shape: tuple[int, ...],
        accumulator: int | None = None,
        *,
        integer: bool = False,
        order: Sequence[int] | None = None,
    ) -> None:
        self.lowering = lowering
        self.shape = shape
        self.order = tuple(range(len(shape))) if order is None else tuple(order)
        self.builder = EltwiseBuilder([shape[axis] for axis in self.order], integer=integer)
        self.operands: list[Value] = []
        self._known: dict[int, Any] = {}
        if accumulator is not None:
            self._known[accumulator] = self.builder.acc()

    # ---- operands

    def get(self, tensor_id: int) -> Any:
        """The tensor in a register: computed here, or loaded with numpy broadcasting."""
        if tensor_id not in self._known:
            self._known[tensor_id] = self.load(self.lowering.value(tensor_id))
        return self._known[tensor_id]

    def put(self, tensor_id: int, register: Any) -> None:
        """Say that a register holds the tensor."""
        self._known[tensor_id] = register

    def load(self, value: Value) -> Any:
        """A value in memory, broadcast to the index space."""
        skipped = len(self.shape) - len(value.shape)
        strides = [0] * skipped + [0 if dim == 1 else s for dim, s in zip(value.shape, value.strides, strict=True)]
        return self._load(value, strides)

    def load_along(self, value: Value, axis: int) -> Any:
        """A vector in memory, one element for each index of `axis`; of a vector of one, that element everywhere."""
        strides = [0] * len(self.shape)
        if value.shape and prod(value.shape) > 1:
            strides[axis] = value.strides[-1]
        return self._load(value, strides)

    def literal(self, numbers: Sequence[float], axis: int) -> Any:
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

    def apply(self, op: Op) -> None:
        """Compute an op that `support.is_elementwise` accepts."""
        self.put(op.outputs[0].id, _RULES[op.kind](self, op))

    def store(self, tensor_id: int, place: Value | None = None) -> Value:
        """Write the tensor to `place`, or where it belongs; returns that, which is argument 0 of the program."""
        if place is None:
            place = self.lowering.target(tensor_id, order=self.order, any_strides=True)
        self.builder.store(0, place.dtype.value, [place.strides[axis] for axis in self.order], self.get(tensor_id))
        return place


def lower_region(lowering: Lowering, ops: Sequence[Op]) -> None:
    """Emit elementwise ops as one kernel call."""
    result = ops[-1].outputs[0].id
    order = lowering.order_of(result)
    region = Region(lowering, lowering.shapes[result], integer=is_integer(ops[0]), order=order)
    for op in ops:
        region.apply(op)
    place = region.store(result)
    lowering.emit(region.builder.build(), [place, *region.operands], region_name(ops), is_elementwise=True)
    lowering.finish(result, place)


def region_name(ops: Sequence[Op]) -> str:
    """What reports call a step of these ops."""
    kinds = "+".join(op.kind for op in ops[:4])
    return f"eltwise({kinds}{f'+{len(ops) - 4} more' if len(ops) > 4 else ''})"


# ---- rules: how each kind becomes instructions

_PLAIN_UNARY = {
    "Abs": "abs", "Exp": "exp", "HardSwish": "hard_swish", "Log": "log", "Mish": "mish", "Reciprocal": "reciprocal",
    "ReLU": "relu", "Round": "round", "Sigmoid": "sigmoid", "Sqrt": "sqrt", "Square": "square", "Tanh": "tanh",
}  # fmt: skip
_UNARY_ATTRS = {
    "Clamp": ("clamp", "min", "max"), "Elu": ("elu", "alpha", None), "LeakyReLU": ("leaky_relu", "alpha", None),
    "HardSigmoid": ("hard_sigmoid", "alpha", "beta"), "SoftPlus": ("softplus", None, "beta"),
    "Pow": ("pow", None, "beta"),
}  # fmt: skip
_BINARY = {
    "Add": "add", "Subtract": "sub", "Multiply": "mul", "Divide": "div", "Maximum": "max", "Minimum": "min",
    "SquaredDifference": "squared_difference", "GreaterEqual": "ge",
}  # fmt: skip


def _plain_unary(region: Region, op: Op) -> Any:
    return region.unary(_PLAIN_UNARY[op.kind], region.get(op.inputs[0].id))


def _unary_with_attrs(region: Region, op: Op) -> Any:
    name, *names = _UNARY_ATTRS[op.kind]
    alpha, beta = (0.0 if attr is None else op.attrs[attr] for attr in names)
    return region.unary(name, region.get(op.inputs[0].id), alpha, beta)


def _gelu(region: Region, op: Op) -> Any:
    return region.unary(op.attrs["mode"], region.get(op.inputs[0].id))


def _binary(region: Region, op: Op) -> Any:
    return region.binary(_BINARY[op.kind], region.get(op.inputs[0].id), region.get(op.inputs[1].id))


def _select(region: Region, op: Op) -> Any:
    condition, a, b = (region.get(tensor.id) for tensor in op.inputs)
    return region.builder.ternary("select", condition, a, b)


def _bias_add(region: Region, op: Op) -> Any:
    bias = region.lowering.value(op.inputs[1].id)
    return region.binary(
        "add",
        region.get(op.inputs[0].id),
        region.load_along(bias, channel_axis(len(region.shape), op.attrs["data_format"])),
    )


def _prelu(region: Region, op: Op) -> Any:
    slope = region.lowering.value(op.inputs[1].id)
    along_channels = len(slope.shape) == 1 and op.attrs["per_channel_broadcast"]
    axis = channel_axis(len(region.shape), op.attrs["data_format"])
    loaded = region.load_along(slope, axis) if along_channels else region.load(slope)
    return region.binary("prelu", region.get(op.inputs[0].id), loaded)


F8_LIMITS = {DataType.F8_E4M3: 448.0, DataType.F8_E5M2: 57344.0}
"""Largest finite values. Source: OCP 8-bit floating point specification (OFP8) revision 1.0."""


def _identity(region: Region, op: Op) -> Any:
    return region.get(op.inputs[0].id)


def _quantize(region: Region, op: Op) -> Any:
    """round(x / scale + zp), saturated: what the store of the type does, but further ops of the region see it too."""
    axis = op.attrs["axis"] % len(region.shape) if region.shape else 0
    scale, zero_points = region.literal(op.attrs["scales"], axis), op.attrs.get("zps") or []
    zero_point = region.literal(zero_points, axis) if any(zero_points) else None
    return _round_to(region, op.outputs[0].dtype, region.get(op.inputs[0].id), scale, zero_point)


def _dynamic_quantize(region: Region, op: Op) -> Any:
    scale, zero_point = _dynamic_scales(region, op)
    return _round_to(region, op.outputs[0].dtype, region.get(op.inputs[0].id), scale, zero_point)


def _round_to(region: Region, dtype: DataType, x: Any, scale: Any, zero_point: Any) -> Any:
    """x / scale + zp within the range of the type; the store rounds to f8."""
    scaled = region.binary("div", x, scale)
    if zero_point is not None:
        scaled = region.binary("add", scaled, zero_point)
    if dtype not in F8_LIMITS:
        scaled = region.unary("round", scaled)
    return region.unary("clamp", scaled, *_limits(dtype))


def _limits(dtype: DataType) -> tuple[float, float]:
    if dtype in F8_LIMITS:
        return -F8_LIMITS[dtype], F8_LIMITS[dtype]
    return (0.0, 255.0) if dtype is DataType.U8 else (-128.0, 127.0)


def _dequantize(region: Region, op: Op) -> Any:
    axis = op.attrs["axis"] % len(region.shape) if region.shape else 0
    x, zero_points = region.get(op.inputs[0].id), op.attrs.get("zps") or []
    if any(zero_points):
        x = region.binary("sub", x, region.literal(zero_points, axis))
    return region.binary("mul", x, region.literal(op.attrs["scales"], axis))


def _dynamic_dequantize(region: Region, op: Op) -> Any:
    scale, zero_point = _dynamic_scales(region, op)
    x = region.get(op.inputs[0].id)
    if zero_point is not None:
        x = region.binary("sub", x, zero_point)
    return region.binary("mul", x, scale)


def _dynamic_scales(region: Region, op: Op) -> tuple[Any, Any]:
    """Scales and zero points that arrive as tensors."""
    axis = op.attrs["axis"] % len(region.shape) if region.shape else 0
    loaded = [region.load_along(region.lowering.value(tensor.id), axis) for tensor in op.inputs[1:]]
    return loaded[0], loaded[1] if len(loaded) > 1 else None


def _batch_norm(region: Region, op: Op) -> Any:
    """x * scale + shift, with scale and shift computed once a channel by a step of their own."""
    gamma, beta, mean, variance = (region.lowering.value(tensor.id) for tensor in op.inputs[1:])
    scale, shift = fold_batch_norm(region.lowering, gamma, beta, mean, variance, op.attrs["epsilon"])
    axis = channel_axis(len(region.shape), op.attrs["data_format"])
    x = region.get(op.inputs[0].id)
    return region.builder.ternary("fma", x, region.load_along(scale, axis), region.load_along(shift, axis))


def fold_batch_norm(
    lowering: Lowering, gamma: Value, beta: Value, mean: Value, variance: Value, epsilon: float
) -> tuple[Value, Value]:
    """scale = gamma / sqrt(variance + epsilon), shift = beta - mean * scale."""
    scale, shift = lowering.temporary(gamma.shape), lowering.temporary(gamma.shape)
    region = Region(lowering, gamma.shape)
    spread = region.unary("sqrt", region.binary("add", region.load(variance), region.builder.const(epsilon)))
    factor = region.binary("div", region.load(gamma), spread)
    offset = region.binary("sub", region.load(beta), region.binary("mul", region.load(mean), factor))
    region.builder.store(0, "f32", scale.strides, factor)
    region.operands.append(shift)
    region.builder.store(len(region.operands), "f32", shift.strides, offset)
    lowering.emit(region.builder.build(), [scale, *region.operands], "eltwise(fold BatchNorm)")
    return scale, shift


_RULES: dict[str, Callable[[Region, Op], Any]] = {
    **dict.fromkeys(_PLAIN_UNARY, _plain_unary),
    **dict.fromkeys(_UNARY_ATTRS, _unary_with_attrs),
    **dict.fromkeys(_BINARY, _binary),
    "GELU": _gelu,
    "Select": _select,
    "BiasAdd": _bias_add,
    "PReLU": _prelu,
    "TypeCast": _identity,
    "Quantize": _quantize,
    "Dequantize": _dequantize,
    "DynamicQuantize": _dynamic_quantize,
    "DynamicDequantize": _dynamic_dequantize,
    "BatchNormInference": _batch_norm,
}
