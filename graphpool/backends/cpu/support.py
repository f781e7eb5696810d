"""Which ops the CPU backend runs itself, and with which types; the others go to the reference backend."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...typing import DataType

if TYPE_CHECKING:
    from ...graph.op import Op

__all__ = ["ANCHORS", "ELTWISE", "STANDALONE", "is_elementwise", "is_integer", "supports"]

ANCHORS = frozenset({
    "MatMul", "Convolution", "ConvTranspose", "AvgPool", "MaxPool", "Interpolate", "LayerNorm", "GroupNorm", "RMSNorm",
    "SoftMax", "LogSoftmax", "ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum",
})  # fmt: skip
"""Kinds whose kernels run an elementwise program on their results."""

ELTWISE = frozenset({
    "Abs", "Exp", "HardSwish", "Log", "Mish", "Reciprocal", "ReLU", "Round", "Sigmoid", "Sqrt", "Square", "Tanh",
    "Clamp", "Elu", "LeakyReLU", "GELU", "HardSigmoid", "SoftPlus", "Pow", "Add", "Subtract", "Multiply", "Divide",
    "Maximum", "Minimum", "SquaredDifference", "GreaterEqual", "Select", "BiasAdd", "PReLU", "TypeCast", "Quantize",
    "Dequantize", "DynamicQuantize", "DynamicDequantize", "BatchNormInference",
})  # fmt: skip
"""Kinds that become instructions of an elementwise program."""

STANDALONE = frozenset({
    "Concat", "StaticTranspose", "StaticReshape", "Reorder", "GenIndex", "Dropout", "BatchNormForwardTraining",
})  # fmt: skip
"""Kinds that are kernel calls of their own, or no call at all."""

_FLOATS = frozenset({DataType.F32, DataType.BF16, DataType.F16})
_QUANTIZED = frozenset({DataType.U8, DataType.S8})
_F8 = frozenset({DataType.F8_E4M3, DataType.F8_E5M2})
_COMPRESSED = _QUANTIZED | {DataType.U4, DataType.S4}
_INDEX = frozenset({DataType.S32, DataType.S64, DataType.S8, DataType.U8, DataType.U4, DataType.S4})
_FREE = {"Quantize": _QUANTIZED | _F8, "DynamicQuantize": _QUANTIZED | _INDEX, "Dequantize": _QUANTIZED | _F8,
         "DynamicDequantize": _COMPRESSED | _INDEX, "GreaterEqual": frozenset({DataType.BOOLEAN}),
         "Select": frozenset({DataType.BOOLEAN}), "GenIndex": frozenset({DataType.S32}),
         "Dropout": frozenset({DataType.S64, DataType.U8})}  # fmt: skip
"""Types beside the floats that ports of a kind may have."""

_S32 = frozenset({DataType.S32})
_INTEGER = {"Add": _S32, "Subtract": _S32, "GreaterEqual": _S32 | {DataType.BOOLEAN}}
"""Kinds with an integer form, and its types."""


def supports(op: Op) -> bool:
    """Whether the backend runs this op."""
    if op.kind not in ANCHORS and op.kind not in ELTWISE and op.kind not in STANDALONE:
        return False
    if is_integer(op):
        return True
    accepted = _FREE.get(op.kind)
    for tensor in (*op.inputs, *op.outputs):
        if tensor.dtype not in _FLOATS and (accepted is None or tensor.dtype not in accepted):
            return False
    check = _CONDITIONS.get(op.kind)
    return check is None or check(op)


def is_elementwise(op: Op) -> bool:
    """Whether the op becomes instructions of an elementwise program: groups of scales do not fit its index space."""
    return op.kind in ELTWISE and op.attrs.get("qtype") != "per_group"


def is_integer(op: Op) -> bool:
    """Whether the op is elementwise arithmetic on integers alone, which is computed exactly."""
    return op.kind in _INTEGER and all(t.dtype in _INTEGER[op.kind] for t in (*op.inputs, *op.outputs))


def _has_axes_attribute(op: Op) -> bool:
    return len(op.inputs) == 1


def _is_not_grouped(op: Op) -> bool:
    return bool(op.attrs["qtype"] != "per_group")


_CONDITIONS = {
    **dict.fromkeys([kind for kind in ANCHORS if kind.startswith("Reduce")], _has_axes_attribute),
    "Interpolate": _has_axes_attribute,
}
