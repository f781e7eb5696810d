"""What ONNX Runtime fuses with products and convolutions, its activations and distances: again the ops that they were.

And ops that ONNX took over from it, under their old domain.

The graph's patterns fuse them in their own way. Source: the operators of domain com.microsoft, as ONNX Runtime
documents them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import direct, matmul, movement, sample, window
from .elementwise import swish

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphpool.onnx.build import NodeView, Value

_OPSET = 13
"""Of the ops of ONNX that are meant; all of those since broadcast as NumPy does."""


# ---- activations by name

_ACTIVATIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "Relu": ("ReLU", ()), "Sigmoid": ("Sigmoid", ()), "Tanh": ("Tanh", ()), "Softplus": ("SoftPlus", ()),
    "LeakyRelu": ("LeakyReLU", ("alpha",)), "Elu": ("Elu", ("alpha",)), "Clip": ("Clamp", ("min", "max")),
    "HardSigmoid": ("HardSigmoid", ("alpha", "beta")),
}  # fmt: skip
"""Our kind, and what it calls the parameters."""


def _activate(n: NodeView, x: Value, parameters: Sequence[float | None]) -> Value:
    """The activation that the node names, if it does."""
    name = n.attr("activation", "")
    if not name:
        return x
    n.require(name in _ACTIVATIONS, f"activation {name!r}")
    kind, names = _ACTIVATIONS[name]
    given = [number for number in parameters if number is not None]
    n.require(len(given) >= len(names), f"activation {name!r} without its parameters")
    return n.emit(kind, x, **dict(zip(names, given, strict=False)))


def _gemm(n: NodeView) -> Value:
    parameters = [n.attr(f"activation_{name}") for name in ("alpha", "beta", "gamma")]
    return _activate(n, matmul.CONVERTERS["Gemm"](n.as_op(n.inputs, _OPSET)), parameters)


def _conv(n: NodeView) -> Value:
    """A tensor that is added comes before the activation."""
    result = window.CONVERTERS["Conv"](n.as_op(n.inputs[:3], _OPSET))
    if n.has(3):
        result = n.emit("Add", result, n[3])
    return _activate(n, result, n.attr("activation_params") or ())


def _causal_conv(n: NodeView) -> list[Value]:
    """A depthwise convolution over what came before and the input; its state is the last elements of both."""
    x, weights, activation = n[0], n[1], n.attr("activation", "none")
    is_plain = n.attr("ndim", 1) == n.attr("dilation", 1) == 1
    n.require(is_plain and not n.attr("channels_last", 0) and not n.attr("state_window", 0), "such axes or states")
    n.require(activation in ("none", "silu", "swish"), f"activation {activation!r}")
    n.require(len(x.shape) == len(weights.shape) == 3, "an input of another rank than 3")
    past = weights.shape[2] - 1
    if n.has(3):
        x = n.join([n[3], x], axis=2)
    else:
        x = n.emit("Pad", x, pads_begin=[0, 0, past], pads_end=[0, 0, 0], mode="constant", value=0.0)
    bias = [n[2]] if n.has(2) else []
    result = n.emit("Convolution", x, weights, *bias, **window.window(n, 1), dilations=[1], groups=x.shape[1],
                    weights_format="OIX")  # fmt: skip
    if activation != "none":
        result = swish(n.as_op([result], _OPSET), 1.0)
    length = n[0].shape[2]
    return [result, n.emit("Slice", x, starts=[length], ends=[length + past], axes=[2])]


# ---- products


def _matmul(n: NodeView) -> Value:
    a, b = (_batch_first(n, n[k], bool(n.attr(f"transBatch{side}", 0))) for k, side in enumerate("AB"))
    # a vector has nothing to transpose
    flags = {
        f"transpose_{s.lower()}": bool(n.attr(f"trans{s}", 0)) and len(x.shape) > 1 for s, x in (("A", a), ("B", b))
    }
    product, alpha = n.emit("MatMul", a, b, **flags), n.attr("alpha", 1.0)
    return product if alpha == 1 else n.emit("Multiply", product, n.literal(alpha, product))


def _batch_first(n: NodeView, x: Value, moves: bool) -> Value:
    """X with its first axis behind the batch axes, where it is a row of matrices."""
    last = len(x.shape) - 1
    if not moves or last < 2:
        return x
    return n.emit("StaticTranspose", x, order=(*range(1, last), 0, last))


def _distances(n: NodeView) -> Value:
    """Between the rows of two matrices, by a product of both: |a|^2 + |b|^2 - 2 ab, and 0 where rounding gives less."""
    a, b, metric = n[0], n[1], n.attr("metric", "sqeuclidean")
    n.require(len(a.shape) == len(b.shape) == 2, "an input that is no matrix")
    n.require(metric in ("euclidean", "sqeuclidean"), f"metric {metric!r}")
    of_a, of_b = (n.emit("ReduceSum", n.emit("Square", x), axes=[1], keep_dims=x is a) for x in (a, b))
    twice = n.emit("Multiply", n.emit("MatMul", a, b, transpose_b=True), n.literal(-2.0, a))
    squares = n.emit("Maximum", n.emit("Add", n.emit("Add", twice, of_a), of_b), n.literal(0.0, a))
    return n.emit("Sqrt", squares) if metric == "euclidean" else squares


def _as_in_onnx(converter: Callable[[NodeView], Any]) -> Callable[[NodeView], Any]:
    return lambda n: converter(n.as_op(n.inputs, _OPSET))


CONTRIBUTED: dict[str, Callable[[NodeView], Any]] = {
    "Gelu": lambda n: n.emit("GELU", n[0], mode="gelu_erf"),
    "BiasGelu": lambda n: n.emit("GELU", n.emit("Add", n[0], n[1]), mode="gelu_erf"),
    "FastGelu": lambda n: n.emit("GELU", n.emit("Add", n[0], n[1]) if n.has(1) else n[0], mode="gelu_tanh"),
    "QuickGelu": lambda n: swish(n, n.attr("alpha", 1.702)),
    "FusedGemm": _gemm, "FusedConv": _conv, "FusedMatMul": _matmul, "TransposeMatMul": _matmul,
    "CDist": _distances, "CausalConvWithState": _causal_conv,
    "ExpandDims": _as_in_onnx(movement.CONVERTERS["Unsqueeze"]),
    **{op: _as_in_onnx(movement.CONVERTERS[op]) for op in ("Pad", "Range")},
    **{op: _as_in_onnx(direct.CONVERTERS[op]) for op in ("GatherND", "Trilu")},
    "GridSample": _as_in_onnx(sample.CONVERTERS["GridSample"]),
}  # fmt: skip
"""Converters of domain com.microsoft."""
