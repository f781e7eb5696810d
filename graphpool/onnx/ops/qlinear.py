"""Ops between tensors of 8 bits that ONNX Runtime contributes: each is the float op between dequantised tensors.

The graph's patterns find kernels of bytes in that as they do in models in QDQ form.
Source: the operators of domain com.microsoft, as ONNX Runtime documents them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import direct, elementwise, norm, quantization, reduction, window
from .quantization import dequantize, integer_bias, quantize, scaling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphpool.onnx.build import NodeView, Value

_OPSET = 13
"""Of the float ops, whose axes and reduced dimensions are attributes still where they are here."""


def _floats(n: NodeView, places: Sequence[int]) -> list[Value]:
    """The inputs at these places in f32; scale and zero point are behind each."""
    return [dequantize(n, n[k], scaling(n, k + 1, 1)) for k in places]


def _back(n: NodeView, result: Value, first: int) -> Value:
    """The result in the type of the first input, by the scale at a place and the zero point behind it."""
    point = first + 1
    return quantize(n, result, scaling(n, first, 1), n[point].dtype if n.has(point) else n[0].dtype)


def _unary(convert: Callable[[NodeView], Value]) -> Callable[[NodeView], Value]:
    return lambda n: _back(n, convert(n.as_op(_floats(n, [0]), _OPSET)), 3)


def _binary(convert: Callable[[NodeView], Value]) -> Callable[[NodeView], Value]:
    return lambda n: _back(n, convert(n.as_op(_floats(n, [0, 3]), _OPSET)), 6)


def _pool(convert: Callable[[NodeView], Value]) -> Callable[[NodeView], Value]:
    """Pooling of channels first or last."""

    def between(n: NodeView) -> Value:
        [x] = _floats(n, [0])
        pool = _channels_last(convert) if n.attr("channels_last", 0) else convert
        return _back(n, pool(n.as_op([x], _OPSET)), 3)

    return between


def _channels_last(convert: Callable[[NodeView], Value]) -> Callable[[NodeView], Value]:
    """The same of channels last."""

    def between(n: NodeView) -> Value:
        axes = range(len(n[0].shape))
        moved = n.emit("StaticTranspose", n[0], order=(0, axes[-1], *axes[1:-1]))
        return n.emit("StaticTranspose", convert(n.as_op([moved], _OPSET)), order=(0, *axes[2:], 1))

    return between


def _softmax(n: NodeView) -> Value:
    """The attribute `opset` says which Softmax it was."""
    return _back(n, norm.CONVERTERS["Softmax"](n.as_op(_floats(n, [0]), n.attr("opset"))), 3)


def _concat(n: NodeView) -> Value:
    """Scale and zero point of the result come first, then each tensor with its own."""
    parts = _floats(n, range(2, len(n.inputs), 3))
    return quantize(n, n.join(parts, n.attr("axis")), scaling(n, 0, 1), n[1].dtype)


def _where(n: NodeView) -> Value:
    chosen = elementwise.CONVERTERS["Where"](n.as_op([n[0], *_floats(n, [1, 4])], _OPSET))
    return quantize(n, chosen, scaling(n, 7, 1), n[8].dtype)


def _gemm(n: NodeView) -> Value:
    """Alpha (A B + C), C in integers of both scales; in floats where no scale of the result is given."""
    transposed = {"transpose_a": bool(n.attr("transA", 0)), "transpose_b": bool(n.attr("transB", 0))}
    a = dequantize(n, n[0], scaling(n, 1, 1))
    b = dequantize(n, n[3], scaling(n, 4, 0 if transposed["transpose_b"] else 1))
    columns = b.shape[0 if transposed["transpose_b"] else 1]
    addend = integer_bias(n, n[6], (n[1], n[4])) if n.has(6) else None
    if addend is not None and addend.shape in ((columns,), (1, columns)):
        total = n.emit("MatMul", a, b, n.reshape(addend, (columns,)), **transposed)
    else:
        total = n.emit("MatMul", a, b, **transposed)
        total = total if addend is None else n.emit("Add", total, addend)
    alpha = n.attr("alpha", 1.0)
    if alpha != 1:
        total = n.emit("Multiply", total, n.literal(alpha, total))
    return _back(n, total, 7) if n.has(7) else total


CONTRIBUTED = {
    "QLinearSigmoid": _unary(direct.CONVERTERS["Sigmoid"]),
    "QLinearLeakyRelu": _unary(direct.CONVERTERS["LeakyRelu"]),
    "QLinearReduceMean": _unary(reduction.CONVERTERS["ReduceMean"]),
    "QLinearAveragePool": _pool(window.CONVERTERS["AveragePool"]),
    "QLinearGlobalAveragePool": _pool(window.CONVERTERS["GlobalAveragePool"]),
    "QLinearAdd": _binary(direct.CONVERTERS["Add"]), "QLinearMul": _binary(direct.CONVERTERS["Mul"]),
    **{kind: quantization.CONVERTERS[kind] for kind in ("QuantizeLinear", "DequantizeLinear", "QLinearConv")},
    "NhwcMaxPool": _channels_last(window.maxima),
    "QLinearSoftmax": _softmax, "QLinearConcat": _concat, "QLinearWhere": _where, "QGemm": _gemm,
}  # fmt: skip
"""Converters of domain com.microsoft."""
