"""Which ops the CPU backend runs itself, and with which types; the others go to the reference backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...typing import DataType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...graph.op import Op

__all__ = [
    "ANCHORS",
    "ELTWISE",
    "INTEGERS",
    "STANDALONE",
    "common_register",
    "is_anchor",
    "is_elementwise",
    "register_of",
    "register_of_type",
    "registers_go_together",
    "supports",
]

ANCHORS = frozenset({
    "MatMul", "Convolution", "ConvTranspose", "AvgPool", "MaxPool", "Interpolate", "LayerNorm", "GroupNorm", "RMSNorm",
    "SoftMax", "LogSoftmax", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
})  # fmt: skip
"""Kinds whose kernels run an elementwise program on their results."""

_NUMERIC = frozenset({
    "Abs", "Exp", "Log", "Reciprocal", "Round", "Sigmoid", "Sqrt", "Square", "Tanh", "Clamp", "Add", "Subtract",
    "Multiply", "Divide", "Maximum", "Minimum", "GreaterEqual", "Select", "TypeCast", "Acos", "Acosh", "Asin", "Asinh",
    "Atan", "Atanh", "BitwiseNot", "Ceil", "Cos", "Cosh", "Erf", "Floor", "IsInf", "IsNaN", "Neg", "Not", "Sign", "Sin",
    "Sinh", "Tan", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Equal", "Greater", "Less", "LessEqual",
    "Mod", "Or", "Power", "Xor",
})  # fmt: skip
"""Elementwise kinds in every type that their schema accepts."""

ELTWISE = _NUMERIC | {
    "HardSwish",
    "Mish",
    "ReLU",
    "Elu",
    "LeakyReLU",
    "GELU",
    "HardSigmoid",
    "SoftPlus",
    "Pow",
    "SquaredDifference",
    "BiasAdd",
    "PReLU",
    "Quantize",
    "Dequantize",
    "DynamicQuantize",
    "DynamicDequantize",
    "BatchNormInference",
}
"""Kinds that become instructions of an elementwise program."""

_MOVING = frozenset({
    "Concat", "StaticTranspose", "StaticReshape", "Reorder", "Slice", "Split", "Expand", "Tile", "Pad", "Trilu",
    "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "OneHot", "RotaryEmbedding", "ArgMax",
    "ArgMin", "CumProd", "CumSum", "TopK", "DynamicQuantizeLinear",
})  # fmt: skip
"""Kinds that are kernel calls of their own, or no call at all, in every type that their schema accepts."""

STANDALONE = _MOVING | {"GenIndex", "Dropout", "BatchNormForwardTraining"}
"""Kinds that are kernel calls of their own, or no call at all."""

_WIDE_REDUCTIONS = frozenset({"ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum"})
"""Reductions that take integers and f64 too."""

_FLOATS = frozenset({DataType.F32, DataType.BF16, DataType.F16})
_QUANTIZED = frozenset({DataType.U8, DataType.S8})
_F8 = frozenset({DataType.F8_E4M3, DataType.F8_E5M2})
_ALL_FLOATS = _FLOATS | _F8
_COMPRESSED = _QUANTIZED | {DataType.U4, DataType.S4}
_INDEX = frozenset({DataType.S32, DataType.S64, DataType.S8, DataType.U8, DataType.U4, DataType.S4})
_FREE = {"Quantize": _QUANTIZED | _F8, "DynamicQuantize": _QUANTIZED | _INDEX, "Dequantize": _QUANTIZED | _F8,
         "DynamicDequantize": _COMPRESSED | _INDEX, "GenIndex": frozenset({DataType.S32}),
         "Dropout": frozenset({DataType.S64, DataType.U8})}  # fmt: skip
"""Types beside the floats that ports of a kind may have."""

INTEGERS = frozenset(dtype for dtype in DataType if dtype.value[0] in "su")
_WHOLE = frozenset(dtype for dtype in INTEGERS if dtype.bits >= 8)

_MOST_STEPS = 1 << 31
"""What no step of a window, and no number of positions, reaches."""

_BETWEEN = frozenset({"TypeCast", "Quantize", "Dequantize", "DynamicQuantize", "DynamicDequantize"})
"""Kinds from integers to floats or back, whose integers fit f32 as exactly as their result asks."""


def supports(op: Op) -> bool:
    """Whether the backend runs this op."""
    if op.kind in _NUMERIC or op.kind in _MOVING:
        return bool(op.attrs.get("depth", 0) < _MOST_STEPS)
    if op.kind in _WIDE_REDUCTIONS and not is_anchor(op):
        return _has_axes_attribute(op)
    if op.kind not in ANCHORS and op.kind not in ELTWISE and op.kind not in STANDALONE:
        return False
    accepted = _FREE.get(op.kind)
    for tensor in (*op.inputs, *op.outputs):
        if tensor.dtype not in _FLOATS and (accepted is None or tensor.dtype not in accepted):
            return False
    check = _CONDITIONS.get(op.kind)
    return check is None or check(op)


def is_anchor(op: Op) -> bool:
    """Whether the op's kernel runs an elementwise program on its results: reductions of integers and f64 do not."""
    return op.kind in ANCHORS and not (op.kind in _WIDE_REDUCTIONS and op.inputs[0].dtype not in _FLOATS)


def is_elementwise(op: Op) -> bool:
    """Whether the op becomes instructions of an elementwise program: groups of scales do not fit its index space."""
    return op.kind in ELTWISE and op.attrs.get("qtype") != "per_group"


def register_of(op: Op) -> str | None:
    """The type in which an elementwise op is computed, or None where any will do: it sees truth values only.

    Integers are computed exactly, and so are integers with floats, in f64: 53 bits of them, which is also what powers
    of signed and unsigned 64-bit integers together have.
    """
    types = {tensor.dtype for tensor in (*op.inputs, *op.outputs)} - {DataType.BOOLEAN}
    has_signs = DataType.U64 in types and any(dtype is not DataType.U64 for dtype in types)
    if DataType.F64 in types or (op.kind == "Power" and has_signs):
        return "f64"
    floats = types & _ALL_FLOATS
    if floats and floats != types and op.kind not in _BETWEEN:
        return "f64"
    if floats:
        return "f32"
    return ("u64" if DataType.U64 in types else "s64") if types else None


def common_register(ops: Iterable[Op]) -> str:
    """The type in which elementwise ops that go together are computed."""
    return next(filter(None, map(register_of, ops)), "s64")


def register_of_type(dtype: DataType, largest: int = 0) -> str:
    """The type in which elements are computed with, beside integers up to `largest`, exactly."""
    if dtype in _ALL_FLOATS:
        return "f32" if largest <= 2**24 else "f64"
    return dtype.value if dtype in (DataType.F64, DataType.U64) else "s64"


def register_between(a: DataType, b: DataType) -> str:
    """The type in which elements of one type are converted to another."""
    types = {a, b}
    if DataType.F64 in types:
        return "f64"
    if types <= _WHOLE:
        return "u64" if DataType.U64 in types else "s64"
    return "f32"


def registers_go_together(op: Op, register: str) -> bool:
    """Whether an elementwise op can be computed in a program with registers of this type."""
    return register_of(op) in (register, None)


def _has_axes_attribute(op: Op) -> bool:
    return len(op.inputs) == 1


def _has_small_windows(op: Op) -> bool:
    """Whether the geometry fits the kernels' 64 bits in every sum and product; the reference has no such limit."""
    return all(max(op.attrs.get(name, ()), default=0) < _MOST_STEPS for name in _GEOMETRY)


_GEOMETRY = ("kernel", "strides", "dilations", "pads_begin", "pads_end", "output_padding")

_CONDITIONS = {
    **dict.fromkeys(("Convolution", "ConvTranspose", "AvgPool", "MaxPool"), _has_small_windows),
    **dict.fromkeys([kind for kind in ANCHORS if kind.startswith("Reduce")], _has_axes_attribute),
    "Interpolate": _has_axes_attribute,
}
