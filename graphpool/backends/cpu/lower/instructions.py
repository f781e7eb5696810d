"""How each elementwise kind becomes instructions of a region's program."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._kernels.eltwise.eltwise import BYTE_LIMITS
from ...._kernels.norm.fold import fold_batch_norm
from ....graph.shapes import channel_axis
from ....typing import DataType
from ..support import INSTRUCTIONS, INTEGERS, instruction
from . import gradients  # noqa: F401  (imported for its instructions)

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....graph.op import Op
    from .lowering import Lowering
    from .region import Region
    from .values import Value

__all__ = ["apply", "emit_norm"]


def _unary(name: str, alpha: str = "", beta: str = "") -> Callable[[Region, Op], Any]:
    """An instruction of one operand, whose numbers are attributes."""
    return lambda region, op: region.unary(
        name, region.operand(op), *(op.attrs[attr] if attr else 0.0 for attr in (alpha, beta))
    )


def _binary(name: str) -> Callable[[Region, Op], Any]:
    return lambda region, op: region.binary(name, region.operand(op), region.operand(op, 1))


INSTRUCTIONS.update(
    {kind: _unary(name) for kind, name in {
        "Abs": "abs", "Exp": "exp", "HardSwish": "hard_swish", "Log": "log", "Mish": "mish", "Reciprocal": "reciprocal",
        "ReLU": "relu", "Round": "round", "Sigmoid": "sigmoid", "Sqrt": "sqrt", "Square": "square", "Tanh": "tanh",
        "Acos": "acos", "Acosh": "acosh", "Asin": "asin", "Asinh": "asinh", "Atan": "atan", "Atanh": "atanh",
        "BitwiseNot": "bit_not", "Ceil": "ceil", "Cos": "cos", "Cosh": "cosh", "Erf": "erf", "Floor": "floor",
        "IsNaN": "is_nan", "Neg": "neg", "Not": "not", "Sign": "sign", "Sin": "sin", "Sinh": "sinh", "Tan": "tan",
    }.items()}
    | {kind: _binary(name) for kind, name in {
        "Add": "add", "Subtract": "sub", "Multiply": "mul", "Divide": "div", "Maximum": "max", "Minimum": "min",
        "SquaredDifference": "squared_difference", "GreaterEqual": "ge", "And": "and", "BitwiseAnd": "bit_and",
        "BitwiseOr": "bit_or", "BitwiseXor": "bit_xor", "Equal": "eq", "Greater": "gt", "Less": "lt", "LessEqual": "le",
        "Or": "or", "Xor": "xor",
    }.items()}
    | {
        "Clamp": _unary("clamp", "min", "max"), "Elu": _unary("elu", "alpha"),
        "LeakyReLU": _unary("leaky_relu", "alpha"), "HardSigmoid": _unary("hard_sigmoid", "alpha", "beta"),
        "SoftPlus": _unary("softplus", beta="beta"),
        "IsInf": _unary("is_inf", "detect_positive", "detect_negative"),
    }
)  # fmt: skip


@instruction("GELU")
def _gelu(region: Region, op: Op) -> Any:
    return region.unary(op.attrs["mode"], region.operand(op))


@instruction("BitShift")
def _bit_shift(region: Region, op: Op) -> Any:
    name = "shift_left" if op.attrs["direction"] == "LEFT" else "shift_right"
    return region.binary(name, region.operand(op), region.operand(op, 1))


@instruction("Mod")
def _mod(region: Region, op: Op) -> Any:
    return region.binary("fmod" if op.attrs["fmod"] else "mod", region.operand(op), region.operand(op, 1))


@instruction("Pow")
def _pow(region: Region, op: Op) -> Any:
    """Powers of small whole numbers are products, some ten times as fast."""
    x, beta = region.operand(op), op.attrs["beta"]
    if beta not in (2, 3, 4):
        return region.unary("pow", x, 0.0, beta)
    square = region.unary("square", x)
    return square if beta == 2 else region.binary("mul", square, x) if beta == 3 else region.unary("square", square)


@instruction("Power")
def _power(region: Region, op: Op) -> Any:
    result = region.binary("pow", region.operand(op), region.operand(op, 1))
    is_cut_off = op.outputs[0].dtype in INTEGERS and region.builder.register == "f64"
    return region.unary("trunc", result) if is_cut_off else result


@instruction("Select")
def _select(region: Region, op: Op) -> Any:
    condition, a, b = (region.operand(op, port) for port in range(3))
    return region.builder.ternary("select", condition, a, b)


@instruction("BiasAdd")
def _bias_add(region: Region, op: Op) -> Any:
    bias = region.lowering.value(op.inputs[1].id)
    return region.binary(
        "add",
        region.operand(op),
        region.load_along(bias, channel_axis(len(region.shape), op.attrs["data_format"])),
    )


@instruction("PReLU")
def _prelu(region: Region, op: Op) -> Any:
    slope = op.inputs[1].id
    along_channels = len(region.lowering.shapes[slope]) == 1 and op.attrs["per_channel_broadcast"]
    axis = channel_axis(len(region.shape), op.attrs["data_format"])
    return region.binary(
        "prelu", region.operand(op), region.along(slope, axis) if along_channels else region.operand(op, 1)
    )


F8_LIMITS = {DataType.F8_E4M3: 448.0, DataType.F8_E5M2: 57344.0}
"""Largest finite values. Source: OCP 8-bit floating point specification (OFP8) revision 1.0."""


@instruction("TypeCast")
def _type_cast(region: Region, op: Op) -> Any:
    """As the schema says, but for what the store of the type does."""
    dtype, x = op.outputs[0].dtype, region.operand(op)
    if dtype is DataType.BOOLEAN:
        return region.binary("ne", x, region.builder.const(0.0))
    if dtype in INTEGERS and region.builder.register in ("f32", "f64"):
        return region.unary("trunc", x)
    if dtype in F8_LIMITS and op.attrs.get("saturate", True):
        return region.unary("clamp", x, *_limits(dtype))
    return x


@instruction("Quantize")
def _quantize(region: Region, op: Op) -> Any:
    """round(x / scale + zp) or round(x / scale) + zp, saturated: what stores do, but the rest of the region sees it."""
    axis = op.attrs["axis"] % len(region.shape) if region.shape else 0
    zero_points, dtype = op.attrs.get("zps") or [], op.outputs[0].dtype
    if _is_of_tensor(region, op) and dtype not in F8_LIMITS and (op.attrs.get("rounds_first") or not any(zero_points)):
        numbers = op.attrs["scales"][0], *(zero_points or [0])
        return region.unary("clamp", region.unary("quantize", region.operand(op), *numbers), *_limits(dtype))
    scale = region.literal(op.attrs["scales"], axis)
    zero_point = region.literal(zero_points, axis) if any(zero_points) else None
    x = region.operand(op)
    if zero_point is None or not op.attrs.get("rounds_first"):
        return _round_to(region, dtype, x, scale, zero_point)
    return region.unary("clamp", region.builder.ternary("quantize_by", x, scale, zero_point), *_limits(dtype))


def _is_of_tensor(region: Region, op: Op) -> bool:
    """Whether one scale and at most one zero point stand for all elements, and instructions take both."""
    return region.builder.register == "f32" and len(op.attrs["scales"]) == 1 and len(op.attrs.get("zps") or []) <= 1


@instruction("DynamicQuantize")
def _dynamic_quantize(region: Region, op: Op) -> Any:
    scale, zero_point = _dynamic_scales(region, op)
    return _round_to(region, op.outputs[0].dtype, region.operand(op), scale, zero_point)


def _round_to(region: Region, dtype: DataType, x: Any, scale: Any, zero_point: Any) -> Any:
    """x / scale + zp within the range of the type; the store rounds to f8."""
    const = region.builder.const
    if zero_point is not None or dtype in F8_LIMITS:
        x, scale = region.binary("div", x, scale), const(1.0)
    if zero_point is not None:
        x = region.binary("add", x, zero_point)
    if dtype not in F8_LIMITS:
        x = region.builder.ternary("quantize_by", x, scale, const(0.0))
    return region.unary("clamp", x, *_limits(dtype))


def _limits(dtype: DataType) -> tuple[float, float]:
    if dtype in F8_LIMITS:
        return -F8_LIMITS[dtype], F8_LIMITS[dtype]
    return BYTE_LIMITS[dtype.value]


@instruction("Dequantize")
def _dequantize(region: Region, op: Op) -> Any:
    axis = op.attrs["axis"] % len(region.shape) if region.shape else 0
    x, zero_points = region.operand(op), op.attrs.get("zps") or []
    if _is_of_tensor(region, op):
        return region.unary("dequantize", x, op.attrs["scales"][0], *(zero_points or [0]))
    scale = region.literal(op.attrs["scales"], axis)
    if any(zero_points):
        return region.builder.ternary("dequantize_by", x, scale, region.literal(zero_points, axis))
    return region.binary("mul", x, scale)


@instruction("DynamicDequantize")
def _dynamic_dequantize(region: Region, op: Op) -> Any:
    scale, zero_point = _dynamic_scales(region, op)
    x = region.operand(op)
    if zero_point is not None:
        x = region.binary("sub", x, zero_point)
    return region.binary("mul", x, scale)


def _dynamic_scales(region: Region, op: Op) -> tuple[Any, Any]:
    """Scales and zero points that arrive as tensors."""
    axis = op.attrs["axis"] % len(region.shape) if region.shape else 0
    loaded = [region.along(tensor.id, axis) for tensor in op.inputs[1:]]
    return loaded[0], loaded[1] if len(loaded) > 1 else None


@instruction("BatchNormInference")
def _batch_norm(region: Region, op: Op) -> Any:
    """x * scale + shift, with scale and shift computed once a channel by a step of their own."""
    scale, shift = (region.lowering.temporary(region.lowering.value(op.inputs[1].id).shape) for _ in range(2))
    emit_norm(region.lowering, op, scale, shift)
    axis = channel_axis(len(region.shape), op.attrs["data_format"])
    x = region.operand(op)
    return region.builder.ternary("fma", x, region.load_along(scale, axis), region.load_along(shift, axis))


def emit_norm(
    lowering: Lowering,
    norm: Op,
    scaled: Value,
    shift: Value,
    *,
    weights: Value | None = None,
    axis: int = 0,
    own: Value | None = None,
) -> None:
    """The scale of a BatchNorm, times weights without gaps if they are given, and its shift, with a bias in front."""
    [count] = shift.shape
    numbers = [lowering.dense(lowering.value(tensor.id)) for tensor in norm.inputs[1:]]
    bias = [] if own is None else [lowering.dense(own.broadcast((count,)))]
    shape = None if weights is None else weights.shape
    call = fold_batch_norm(count, norm.attrs["epsilon"], weights=shape, axis=axis, bias=own is not None)
    lowering.emit(call, [*numbers, *([] if weights is None else [weights]), *bias, scaled, shift])


OVERFLOWING = frozenset({
    "Abs", "Add", "BitShift", "BitwiseNot", "Divide", "Multiply", "Neg", "Power", "Subtract",
})  # fmt: skip
"""Kinds whose results may leave the range of their type, which a wide register does not have."""


def apply(region: Region, op: Op) -> None:
    """Compute an op that `support.is_elementwise` accepts in a region."""
    result, register = op.outputs[0], INSTRUCTIONS[op.kind](region, op)
    may_be_wide = op.kind == "TypeCast" or (region.builder.register != "f32" and op.kind in OVERFLOWING)
    region.put(result.id, register, narrow_to=result.dtype if may_be_wide else None)
