"""What the CPU backend fuses into one partition. Adding a pattern is one entry here and one test."""

from __future__ import annotations

from ...graph.pattern import OpNode, Pattern, PostOps, optional
from .support import ELTWISE, supports

__all__ = ["PATTERNS"]

POST_OPS = PostOps(ELTWISE - {"GreaterEqual", "Quantize", "DynamicQuantize"}, supports)
"""Elementwise ops behind an anchor. What ends in another type than a float comes last, if at all."""

LAST = optional(OpNode({"Quantize", "DynamicQuantize", "GreaterEqual"}, supports, ports=[0]))
"""An op that may end a chain."""

DEQUANTIZE = OpNode({"Dequantize", "DynamicDequantize"}, supports)
CAST = OpNode({"TypeCast", *DEQUANTIZE.kinds}, supports, inputs={0: DEQUANTIZE})
"""What may come before an operand of a product: dequantisation, with or without a cast behind it."""


def _chain(name: str, priority: float, kinds: str | set[str], *, quantized: bool = False) -> Pattern:
    """An anchor, the dequantisation of its operands if it has any, and post-ops behind it."""
    inputs = {0: CAST, 1: CAST} if quantized else {}
    return Pattern(name, priority, name, OpNode(kinds, supports, inputs=inputs), (POST_OPS, LAST))


REDUCTIONS = {"ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"}

PATTERNS = (
    _chain("convtranspose_post_ops", 10.4, "ConvTranspose", quantized=True),
    _chain("pooling_post_ops", 9.9, {"AvgPool", "MaxPool"}),
    _chain("convolution_post_ops", 9.8, "Convolution", quantized=True),
    _chain("matmul_post_ops", 8.8, "MatMul", quantized=True),
    _chain("reduction_post_ops", 8.4, REDUCTIONS),
    _chain("interpolate_post_ops", 8.4, "Interpolate"),
    _chain("norm_post_ops", 8.4, {"LayerNorm", "GroupNorm", "RMSNorm"}),
    _chain("softmax_post_ops", 8.2, {"SoftMax", "LogSoftmax"}),
    _chain("eltwise_post_ops", 8.1, set(ELTWISE)),
)
