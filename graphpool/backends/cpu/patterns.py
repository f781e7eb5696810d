"""What the CPU backend fuses into one op, or runs as one partition. Adding either is one entry here and one test.

    priority   family                                              shape
    22.3       stages of residual networks                         convolutions around which a shortcut leads
    22 .. 22.2 attention, its backward pass, gated MLPs            a cluster between products
    10 .. 11   convolution behind 1x1 convolution, ConvTranspose   anchor, operands' dequantisation, post-ops
    9.8        convolution, pooling                                likewise, then moves and a quantisation
    8.8        matrix product                                      likewise, and elementwise ops in front of it
    8.1 .. 8.5 norms, SoftMax, reductions, resampling, moves       anchor, post-ops, quantisation
    8          elementwise regions

Only ops that the backend supports are offered to its patterns, so none of them asks. A partition is a permission: the
lowering runs any list of supported ops as a sequence of kernel calls, and fuses what it can within it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...graph.pattern import ANY_PORT, Cluster, OpNode, Pattern, PostOps, Residual, TailElement, Upstream, optional
from ...graph.spelling import Spelling
from .emit.rules import ELTWISE, REDUCTIONS
from .match.swaps import BYTE_MOVES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ...graph.op import Op

__all__ = ["PATTERNS", "SPELLINGS"]

# ---- parts

QUANTIZE = {"Quantize", "DynamicQuantize"}
DEQUANTIZE = {"Dequantize", "DynamicDequantize"}
MOVES = {"StaticReshape", "StaticTranspose", "Reorder"}

DQ = OpNode(DEQUANTIZE)
OPERAND = OpNode({"TypeCast", *DEQUANTIZE}, inputs={0: DQ})
"""What may come before an operand: dequantisation, with or without a cast behind it."""

_FROZEN = OpNode({"StaticReshape"})
for _ in range(4):
    _FROZEN = OpNode({*MOVES, *QUANTIZE, *DEQUANTIZE, "TypeCast"}, inputs={0: _FROZEN})
WEIGHTS = _FROZEN
"""What may come before weights: besides, moves and a quantisation of their own."""

MOVED_OPERAND = OpNode({*MOVES, "TypeCast", *DEQUANTIZE}, inputs={0: OPERAND})
"""An operand of attention: besides, a reshape that groups heads."""

POST_OPS = PostOps(frozenset(ELTWISE - QUANTIZE - DEQUANTIZE - {"GreaterEqual"}), sides=OPERAND)
"""Elementwise ops behind an anchor, with the dequantisation of their further operands."""

LAST = optional(OpNode({*QUANTIZE, "GreaterEqual"}, ports=[0]))
"""An op that may end a chain: its result has another type than a float."""

MOVE = optional(OpNode(MOVES))
CAST = optional(OpNode("TypeCast"))
DROPOUT = optional(OpNode("Dropout"))
TAIL: tuple[TailElement, ...] = (POST_OPS, MOVE, MOVE, MOVE, POST_OPS, LAST)
"""Post-ops, moves of the result, casts, quantisation."""

BINARY = {"Add", "Subtract", "Multiply", "Divide", "Maximum", "Minimum"}
PRE_OPS = Upstream(frozenset({*BINARY, *QUANTIZE, *DEQUANTIZE, "TypeCast"}))
"""Elementwise ops and quantisation between inputs of the graph and a product."""

INSIDE = frozenset((ELTWISE - {"BatchNormInference"}) | MOVES | {"GenIndex", "Dropout", "SoftMax", "ReduceSum", "End"})
"""What may lie between the products of attention, forward and backward."""


def _is_depthwise(op: Op) -> bool:
    """Whether every group of a convolution has one input channel."""
    weights = op.inputs[1].shape
    if weights is None:
        return False
    return op.attrs["groups"] > 1 and weights[1 if op.attrs["weights_format"] == "OIX" else -2] == 1


def _is_pointwise(op: Op) -> bool:
    """Whether a convolution has kernels of one element."""
    weights = op.inputs[1].shape
    if weights is None:
        return False
    return all(size == 1 for size in (weights[2:] if op.attrs["weights_format"] == "OIX" else weights[:-2]))


PRODUCT = OpNode("MatMul", inputs={0: (PRE_OPS, MOVED_OPERAND), 1: (PRE_OPS, MOVED_OPERAND)})
CONVOLUTION = {0: OPERAND, 1: WEIGHTS}


def _chain(
    name: str, priority: float, kinds: str | Iterable[str], *, inputs: dict[int, OpNode] | None = None
) -> Pattern:
    """An anchor, what its operands absorb, and a tail."""
    return Pattern(name, priority, name, OpNode(kinds, inputs=inputs or {ANY_PORT: OPERAND}), TAIL)


# ---- the tables

_VARIANCES = ("ReduceMean((x - ReduceMean(x, axis)) ** 2, axis)",
              "ReduceMean(SquaredDifference(x, ReduceMean(x, axis)), axis)")  # fmt: skip
_NORMS = [f"(x - ReduceMean(x, axis)) / sqrt({variance} + epsilon)" for variance in _VARIANCES]
_SCALES = [f"[gamma / sqrt({variance} + epsilon)]" for variance in _VARIANCES]
_RMS = "x / sqrt(ReduceMean(x ** 2, axis) + epsilon)"
_NUMBERS = {"begin_norm_axis": "axis", "epsilon": "epsilon"}
_PLAIN = {"keep_stats": False, "use_affine": False}

SPELLINGS = (
    # Hendrycks and Gimpel, 2016
    Spelling("GELU", "x * 0.5 * (1 + Erf(x / sqrt(2)))", attributes={"mode": "gelu_erf"}),
    Spelling("GELU", "x * 0.5 * (1 + Tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))", attributes={"mode": "gelu_tanh"}),
    Spelling("GELU", "x * 0.5 * (1 + Tanh(sqrt(2 / pi) * x * (1 + 0.044715 * x ** 2)))",
             attributes={"mode": "gelu_tanh"}),
    # Howard et al., 2019
    Spelling("HardSwish", "x * Clamp(x + 3, 0, 6) / 6"),
    Spelling("HardSwish", "x * HardSigmoid(x, 1 / 6, 0.5)"),
    # Misra, 2019
    Spelling("Mish", "x * Tanh(SoftPlus(x, 1))"),
    # Ba, Kiros and Hinton, 2016
    *(Spelling("LayerNorm", f"{norm} * gamma + beta", ("x", "gamma", "beta"), _NUMBERS, {"keep_stats": False})
      for norm in _NORMS),
    *(Spelling("LayerNorm", f"x * {scale} + beta - ReduceMean(x, axis) * {scale}", ("x", "gamma", "beta"), _NUMBERS,
               {"keep_stats": False}) for scale in _SCALES),
    *(Spelling("LayerNorm", norm, numbers=_NUMBERS, attributes=_PLAIN) for norm in
      (*_NORMS, *(f"x * {scale} - ReduceMean(x, axis) * {scale}".replace("gamma", "1") for scale in _SCALES))),
    # Zhang and Sennrich, 2019
    Spelling("RMSNorm", f"{_RMS} * gamma", ("x", "gamma"), _NUMBERS),
    Spelling("RMSNorm", _RMS, numbers=_NUMBERS),
    Spelling("SoftMax", "Exp(x - ReduceMax(x, axis)) / ReduceSum(Exp(x - ReduceMax(x, axis)), axis)",
             numbers={"axis": "axis"}),
    *(Spelling("LogSoftmax", f"{shifted} - Log(ReduceSum(Exp(x - ReduceMax(x, axis)), axis))", numbers={"axis": "axis"})
      for shifted in ("x - ReduceMax(x, axis)", "[x - ReduceMax(x, axis)]")),
)  # fmt: skip
"""Functions that are one op, and their spellings; larger ones come before their parts. SiLU has none: x * Sigmoid(x) is
how our ops spell it."""

PATTERNS: tuple[Pattern | Spelling, ...] = (
    *SPELLINGS,
    Pattern("residual_blocks", 22.3, "residual_blocks", OpNode("Add"), (POST_OPS, LAST),
            residual=Residual(frozenset(ELTWISE), OpNode("Convolution", inputs=CONVOLUTION), frozenset({"Add"}),
                              length=(2, 3), start=OPERAND)),
    Pattern("attention_backward", 22.2, "attention_backward", OpNode("Exp"),
            (optional(OpNode("ReduceSum")), MOVE, MOVE),
            cluster=Cluster(INSIDE, PRODUCT, feeding=(2, 2), fed=(3, 3))),
    Pattern("attention", 22.1, "attention", OpNode("SoftMax"), (MOVE, MOVE, MOVE, POST_OPS, LAST),
            cluster=Cluster(INSIDE, PRODUCT, feeding=(1, 1), fed=(1, 1))),
    Pattern("gated_mlp", 22.0, "gated_mlp", OpNode(BINARY), (POST_OPS, LAST),
            cluster=Cluster(ELTWISE, PRODUCT, feeding=(2, 2), fed=(1, 1), shared_port=0)),
    Pattern("binary_matmul_binary", 19.5, "binary_matmul_binary",
            OpNode("MatMul", inputs={0: (PRE_OPS, OPERAND), 1: (PRE_OPS, WEIGHTS)}), (*TAIL, DROPOUT)),
    Pattern("convolution_depthwise", 10.5, "convolution_depthwise",
            OpNode("Convolution", _is_pointwise, inputs=CONVOLUTION),
            (POST_OPS, OpNode("Convolution", _is_depthwise, ports=[0], inputs={1: WEIGHTS}), POST_OPS, LAST)),
    _chain("convtranspose_post_ops", 10.4, "ConvTranspose", inputs=CONVOLUTION),
    _chain("pooling_post_ops", 9.9, {"AvgPool", "MaxPool"}),
    _chain("convolution_post_ops", 9.8, "Convolution", inputs=CONVOLUTION),
    Pattern("batch_norm_training", 8.8, "batch_norm_training", OpNode("BatchNormForwardTraining"),
            (optional(OpNode("ReLU")),)),
    Pattern("batch_norm_backward", 8.8, "batch_norm_backward",
            OpNode("BatchNormTrainingBackward", inputs={0: OpNode("ReLUBackward"), 1: OpNode("ReLUBackward")})),
    _chain("reduction_post_ops", 8.4, REDUCTIONS),
    _chain("interpolate_post_ops", 8.4, "Interpolate"),
    _chain("norm_post_ops", 8.4, {"LayerNorm", "GroupNorm", "RMSNorm"}),
    Pattern("softmax_post_ops", 8.2, "softmax_post_ops",
            OpNode({"SoftMax", "LogSoftmax"}, inputs={ANY_PORT: OPERAND}), (*TAIL, DROPOUT)),
    Pattern("concat", 8.2, "concat", OpNode("Concat", inputs={ANY_PORT: OPERAND}), (CAST, LAST)),
    Pattern("shuffle", 8.2, "shuffle", OpNode("StaticReshape"),
            (OpNode("StaticTranspose"), OpNode("StaticReshape"))),
    Pattern("move_post_ops", 8.1, "move_post_ops", OpNode(BYTE_MOVES - MOVES, inputs={0: OPERAND}), (LAST,)),
    Pattern("reorder_post_ops", 8.1, "reorder_post_ops", OpNode(MOVES, inputs={0: OPERAND}),
            (MOVE, MOVE, POST_OPS, LAST)),
    Pattern("eltwise_post_ops", 8.0, "eltwise_post_ops", OpNode(ELTWISE, inputs={ANY_PORT: OPERAND}),
            (POST_OPS, MOVE, LAST, DROPOUT)),
)  # fmt: skip
