"""Ensembles of decision trees: scores by one op, then labels and probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from graphpool.onnx.build import Value
from graphpool.typing import DataType

from .scores import labels_of, transform

if TYPE_CHECKING:
    from graphpool.onnx.build import NodeView
    from graphpool.onnx.trees import Trees

__all__ = ["CONVERTERS"]

_AGGREGATES = ("AVERAGE", "SUM", "MIN", "MAX")
_TRANSFORMS = ("NONE", "SOFTMAX", "LOGISTIC", "SOFTMAX_ZERO", "PROBIT")
"""By their numbers in opset 5."""


def _score(n: NodeView, trees: Trees, aggregate: str, nbase: int) -> Value:
    """Scores of rows, of shape (rows, targets), in f32, or in f64 where weights need it; of `nbase` base values."""
    x = n[0] if n[0].dtype is DataType.F64 else n.cast(n[0], DataType.F32)
    n.require(len(x.shape) == 2 and x.shape[1] > 0, "an input that is no matrix")
    n.require(trees.nfeatures <= x.shape[1], f"trees that compare {trees.nfeatures} features")
    n.require(trees.base.size in (0, nbase), "base values of another number than the targets")
    constants = [Value(content=array, is_static=True) for array in trees.constants(str(x.dtype.numpy))]
    dtype = constants[3].dtype
    return n.emit_several("TreeEnsemble", [dtype], x, *constants, aggregate=aggregate.lower())[0]


def _trees(n: NodeView) -> Trees:
    assert n.node.trees is not None  # every node of such a kind has them
    return n.node.trees


def _regress(n: NodeView) -> Value:
    trees, aggregate = _trees(n), n.attr("aggregate_function", "SUM")
    n.require(aggregate in _AGGREGATES, f"aggregate_function {aggregate}")
    scores = _score(n, trees, aggregate, trees.ntargets)
    return n.cast(transform(n, scores, n.attr("post_transform", "NONE")), DataType.F32)


def _ensemble(n: NodeView) -> Value:
    """The op of opset 5, whose results have the type of the features."""
    aggregate, post = n.attr("aggregate_function", 1), n.attr("post_transform", 0)
    n.require(aggregate in range(len(_AGGREGATES)) and post in range(len(_TRANSFORMS)), "such numbers")
    scores = _score(n, _trees(n), _AGGREGATES[aggregate], 0)
    return n.cast(transform(n, scores, _TRANSFORMS[post]), n[0].dtype)


def _classify(n: NodeView) -> list[Value]:
    """Labels and scores; of two classes of which one alone has weights, both follow from its score.

    Source: what ONNX Runtime computes, where the specification of the operator says nothing.
    """
    trees, labels, post = _trees(n), n.attr("classlabels_int64s"), n.attr("post_transform", "NONE")
    n.require(bool(labels) and len(labels) > 1, "labels that are texts, or a single one")
    if len(labels) > 2 or len(trees.weighed) > 1:
        scores = _score(n, trees, "SUM", len(labels))
        return [labels_of(n, scores, labels), n.cast(transform(n, scores, post), DataType.F32)]
    n.require(post in _TRANSFORMS[:-1], f"post_transform {post}")
    is_last = trees.weighed == {1}
    n.require(not is_last or not trees.base.size, "base values of two classes of which the second alone has weights")
    scores = _score(n, trees, "SUM", 1)
    score = n.emit("Slice", scores, starts=[int(is_last)], ends=[1 + is_last], axes=[1])
    are_shares = bool((trees.weights >= 0).all())
    is_second = n.emit_several("Greater", [DataType.BOOLEAN], score, n.literal(0.5 if are_shares else 0.0, score))[0]
    table = n.builder.literal(np.array(labels), DataType.S64)
    label = n.emit("Gather", table, n.reshape(n.cast(is_second, DataType.S64), score.shape[:1]), axis=0)
    if is_last:
        return [label, n.cast(transform(n, scores, post), DataType.F32)]
    is_rest = are_shares and post != "LOGISTIC"
    other = n.emit("Subtract", n.literal(1.0, score), score) if is_rest else n.emit("Neg", score)
    both = n.join([other, score], 1)
    return [label, n.cast(transform(n, both, "LOGISTIC") if post == "LOGISTIC" else both, DataType.F32)]


CONVERTERS = {
    "TreeEnsemble": _ensemble,
    "TreeEnsembleClassifier": _classify,
    "TreeEnsembleRegressor": _regress,
}
"""Converters of domain ai.onnx.ml."""
