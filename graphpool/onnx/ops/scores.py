"""What models of domain ai.onnx.ml make of scores: labels and probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from graphpool.typing import DataType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphpool.onnx.build import NodeView, Value

__all__ = ["labels_of", "transform"]


def labels_of(n: NodeView, scores: Value, labels: Sequence[int]) -> Value:
    """The label of the largest score of each row, the first of equals."""
    place = n.emit_several("ArgMax", [DataType.S64], scores, axis=1, keep_dims=False)[0]
    if list(labels) == list(range(len(labels))):
        return place
    return n.emit("Gather", n.builder.literal(np.array(labels), DataType.S64), place, axis=0)


def transform(n: NodeView, scores: Value, post: str) -> Value:
    """Scores as a post_transform says; a single one stays, as ONNX Runtime has it and converters rely on."""
    n.require(post != "PROBIT", "post_transform PROBIT")
    if post == "NONE" or scores.shape[1] == 1:
        return scores
    if post == "LOGISTIC":
        return n.emit("Sigmoid", scores)
    if post == "SOFTMAX":
        return n.emit("SoftMax", scores, axis=-1)
    n.require(post == "SOFTMAX_ZERO", f"post_transform {post}")
    return _softmax_zero(n, scores)


def _softmax_zero(n: NodeView, scores: Value) -> Value:
    """SoftMax in which scores of 0 stay 0."""
    peak = n.emit("ReduceMax", scores, axes=[1], keep_dims=True)
    powers = n.emit("Exp", n.emit("Subtract", scores, peak))
    least = n.literal(np.float32(1e-7), scores)
    is_some = n.emit_several("Greater", [DataType.BOOLEAN], n.emit("Abs", scores), least)[0]
    rest = n.emit("Multiply", scores, n.emit("Exp", n.emit("Neg", peak)))
    powers = n.emit_several("Select", [scores.dtype], is_some, powers, rest)[0]
    return n.emit("Divide", powers, n.emit("ReduceSum", powers, axes=[1], keep_dims=True))
