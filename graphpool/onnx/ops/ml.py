"""Scaling, linear models and categories that are numbers: domain ai.onnx.ml. What concerns texts is left to the host.

Source: the specification of the operators and, where it says nothing, what ONNX Runtime computes. What the
specification has as f32 is computed in f32, but for Scaler, of f64.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.onnx.build import Value
from graphpool.onnx.encoders import has_table
from graphpool.typing import DataType

from .scores import labels_of, transform

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphpool.onnx.build import NodeView

__all__ = ["CONVERTERS"]

_FLOATS = (DataType.F32, DataType.F64)


def _row(n: NodeView, name: str, like: Value) -> Value:
    """A list of real numbers, one for each column or one for all."""
    numbers = np.array(n.attr(name) or (), np.float32)
    n.require(len(like.shape) in (1, 2) and numbers.size in (1, like.shape[-1]), f"the length of {name}")
    return n.literal(numbers, like)


def _scaler(n: NodeView) -> Value:
    x = n[0] if n[0].dtype is DataType.F64 else n.cast(n[0], DataType.F32)
    shifted = n.emit("Subtract", x, _row(n, "offset", x))
    return n.cast(n.emit("Multiply", shifted, _row(n, "scale", x)), DataType.F32)


def _normalizer(n: NodeView) -> Value:
    """Rows divided by their largest element or by a norm; where that is 0 they stay."""
    x, norm = n.cast(n[0], DataType.F32), n.attr("norm", "MAX")
    n.require(len(x.shape) in (1, 2) and x.shape[-1] > 0, "an input that is no matrix")
    n.require(norm in ("MAX", "L1", "L2"), "another norm")
    size = n.emit("ReduceMax" if norm == "MAX" else f"Reduce{norm}", x, axes=[-1], keep_dims=True)
    is_zero = n.emit_several("Equal", [DataType.BOOLEAN], size, n.literal(0.0, size))[0]
    return n.emit("Divide", x, _select(n, is_zero, n.literal(1.0, size), size))


def _select(n: NodeView, condition: Value, a: Value, b: Value) -> Value:
    return n.emit_several("Select", [a.dtype], condition, a, b)[0]


def _linear(n: NodeView, count: int) -> Value:
    """So many products with rows of coefficients, and their intercepts."""
    x = n.cast(n[0], DataType.F32)
    coefficients = np.array(n.attr("coefficients") or (), np.float32)
    n.require(len(x.shape) == 2 and coefficients.size == count * x.shape[1], "the number of coefficients")
    intercepts = np.array(n.attr("intercepts") or (0.0,), np.float32)
    n.require(intercepts.size in (1, count), "the number of intercepts")
    weights = np.ascontiguousarray(coefficients.reshape(count, x.shape[1]).T)
    bias = np.broadcast_to(intercepts, (count,))
    return n.emit("MatMul", x, n.literal(weights, x), n.literal(bias, x))


def _linear_regressor(n: NodeView) -> Value:
    scores = _linear(n, n.attr("targets", 1))
    return transform(n, scores, n.attr("post_transform", "NONE"))


def _linear_classifier(n: NodeView) -> list[Value]:
    labels, post = n.attr("classlabels_ints"), n.attr("post_transform", "NONE")
    n.require(bool(labels) and len(labels) > 1, "labels that are texts, or a single one")
    intercepts = n.attr("intercepts") or ()
    count = len(intercepts) or len(n.attr("coefficients") or ()) // max(n[0].shape[-1], 1)
    n.require(count == len(labels), "another number of scores than of labels")
    scores = _linear(n, count)
    return [labels_of(n, scores, labels), transform(n, scores, post)]


def _svm_regressor(n: NodeView) -> Value:
    """Weighted sums of a kernel between rows and support vectors; without vectors, a linear model."""
    x, weights = n.cast(n[0], DataType.F32), np.array(n.attr("coefficients") or (), np.float32)
    n.require(len(x.shape) == 2 and bool(n.attr("rho")), "an input that is no matrix, or no rho")
    count = n.attr("n_supports", 0)
    n.require(weights.size == (count or x.shape[1]), "the number of coefficients")
    likeness = _likeness(n, x, count) if count else x
    rho = n.literal(np.array(n.attr("rho")[:1], np.float32), x)
    scores = n.emit("MatMul", likeness, n.literal(weights.reshape(-1, 1), x), rho)
    if n.attr("one_class", 0):
        is_inside = n.emit_several("Greater", [DataType.BOOLEAN], scores, n.literal(0.0, scores))[0]
        doubled = n.emit("Multiply", n.cast(is_inside, DataType.F32), n.literal(2.0, scores))
        return n.emit("Subtract", doubled, n.literal(1.0, scores))
    return transform(n, scores, n.attr("post_transform", "NONE"))


def _svm_classifier(n: NodeView) -> list[Value]:
    """A score for each pair of classes, votes by their signs, and probabilities where pairs have them.

    Source: libsvm, as ONNX Runtime computes it.
    """
    labels, per_class = n.attr("classlabels_ints") or (), n.attr("vectors_per_class") or ()
    count, post = len(labels), n.attr("post_transform", "NONE")
    n.require(count > 1, "labels that are texts, or a single one")
    n.require(len(per_class) == count and min(per_class) >= 0 and sum(per_class) > 0, "no support vectors")
    first, second = np.triu_indices(count, 1)
    weights = np.array(n.attr("coefficients") or (), np.float32)
    n.require(weights.size == (count - 1) * sum(per_class), "the number of coefficients")
    n.require(count > 2 or bool((weights < 0).any()), "two classes without a negative coefficient")
    rho = np.array(n.attr("rho") or (), np.float32)
    n.require(rho.size >= len(first), "the number of rho")
    x = n.cast(n[0], DataType.F32)
    n.require(len(x.shape) == 2, "an input that is no matrix")
    likeness = _likeness(n, x, sum(per_class))
    owner = np.repeat(np.arange(count), per_class)
    table = weights.reshape(count - 1, -1).T
    of_pairs = np.where(owner[:, None] == first, table[:, second - 1], 0)
    of_pairs = np.where(owner[:, None] == second, table[:, first], of_pairs)
    scores = n.emit("MatMul", likeness, n.literal(of_pairs, x), n.literal(rho[: len(first)], x))

    is_first = n.cast(n.emit_several("Greater", [DataType.BOOLEAN], scores, n.literal(0.0, x))[0], DataType.F32)
    votes = (first[:, None] == np.arange(count)).astype(np.float32) - (second[:, None] == np.arange(count))
    lost = np.bincount(second, minlength=count)
    label = labels_of(n, n.emit("MatMul", is_first, n.literal(votes, x), n.literal(lost, x)), labels)
    if n.attr("prob_a"):
        return [label, transform(n, _probabilities(n, scores), post)]
    both = n.join([n.emit("Neg", scores), scores], 1) if count == 2 else scores
    return [label, transform(n, both, post)]


def _probabilities(n: NodeView, scores: Value) -> Value:
    """Of classes, by what a sigmoid makes of the scores of their pairs."""
    steep, shift = (np.array(n.attr(name) or (), np.float32) for name in ("prob_a", "prob_b"))
    count = scores.shape[1]
    n.require(steep.size == count and shift.size == count, "the numbers of prob_a and prob_b")
    scaled = n.emit("Add", n.emit("Multiply", scores, n.literal(-steep, scores)), n.literal(-shift, scores))
    shares = n.emit("Clamp", n.emit("Sigmoid", scaled), min=1e-7, max=1 - 1e-7)
    return n.emit("CouplePairs", shares)


def _likeness(n: NodeView, x: Value, count: int) -> Value:
    """The kernel of a support vector machine, between each row and each vector.

    That of squared distances takes them from products, of rows moved to where the vectors are on average: so the
    squares that cancel out are small.
    """
    vectors = np.array(n.attr("support_vectors") or (), np.float32)
    n.require(vectors.size == count * x.shape[1], "the number of support vectors")
    vectors = vectors.reshape(count, x.shape[1])
    gamma, shift, degree = n.attr("kernel_params") or (0.0, 0.0, 0.0)
    kind = n.attr("kernel_type", "LINEAR")
    if kind == "RBF":
        centre = vectors.mean(0, dtype=np.float64).astype(np.float32)
        moved = vectors.astype(np.float64) - centre
        rows = n.emit("Subtract", x, n.literal(centre, x))
        weights, bias = 2 * gamma * moved.T, -gamma * np.square(moved).sum(1)
        products = n.emit("MatMul", rows, n.literal(weights, x), n.literal(bias, x))
        squares = n.emit("ReduceSum", n.emit("Square", rows), axes=[-1], keep_dims=True)
        exponent = n.emit("Subtract", products, n.emit("Multiply", squares, n.literal(np.float32(gamma), x)))
        return n.emit("Exp", n.emit("Minimum", exponent, n.literal(0.0, x)) if gamma >= 0 else exponent)
    n.require(kind in ("LINEAR", "POLY", "SIGMOID"), f"kernel {kind}")
    if kind == "LINEAR":
        return n.emit("MatMul", x, n.literal(np.ascontiguousarray(vectors.T), x))
    scaled = np.ascontiguousarray(gamma * vectors.T.astype(np.float64))
    moved_by = n.emit("MatMul", x, n.literal(scaled, x), n.literal(np.full(count, shift), x))
    return n.emit("Tanh", moved_by) if kind == "SIGMOID" else n.emit("Pow", moved_by, beta=float(degree))


def _binarizer(n: NodeView) -> Value:
    x = n[0]
    is_above = n.emit_several("Greater", [DataType.BOOLEAN], x, n.literal(np.float32(n.attr("threshold", 0.0)), x))[0]
    return n.cast(is_above, x.dtype)


def _imputer(n: NodeView) -> Value:
    """Other numbers, one for each column or for all, in place of one number, or of NaN."""
    x = n[0]
    kind = "float" if x.dtype in _FLOATS else "int64"
    given = n.attr(f"imputed_value_{kind}s") or ()
    n.require(len(x.shape) == 2 and len(given) in (1, x.shape[1]), "the number of values")
    replaced = n.attr(f"replaced_value_{kind}", 0)
    values = n.literal(np.array(given, np.float32 if kind == "float" else np.int64), x)
    if np.isnan(replaced):
        is_number = n.emit_several("Equal", [DataType.BOOLEAN], x, x)[0]
        return n.emit_several("Select", [x.dtype], is_number, x, values)[0]
    is_replaced = n.emit_several("Equal", [DataType.BOOLEAN], x, n.literal(replaced, x))[0]
    return _select(n, is_replaced, n.emit("Expand", values, shape=x.shape), x)


def _feature_extractor(n: NodeView) -> Value:
    """Elements along the last axis; of a vector, as one row."""
    x, places = n[0], n[1]
    n.require(len(x.shape) > 0 and x.shape[-1] > 0, "nothing to pick from")
    count = prod(places.shape)
    x = x if len(x.shape) > 1 else n.reshape(x, (1, *x.shape))
    return n.emit("Gather", x, n.reshape(places, (count,)), axis=-1)


def _one_hot_encoder(n: NodeView) -> Value:
    """Which of the categories each element is; none of them where it is another."""
    x, categories = n[0], n.attr("cats_int64s") or ()
    n.require(x.dtype in (DataType.S64, DataType.S32) and len(categories) > 0, "categories that are texts")
    n.require(n.attr("zeros", 1) != 0, "an error for other categories")
    n.require(len(set(categories)) == len(categories), "a category that comes twice")
    return n.cast(_is_each(n, n.cast(x, DataType.S64), categories), DataType.F32)


def _is_each(n: NodeView, x: Value, keys: Sequence[Any]) -> Value:
    """Whether each element is each of the keys, along a new last axis."""
    return n.emit_several("Equal", [DataType.BOOLEAN], n.reshape(x, (*x.shape, 1)), n.literal(np.array(keys), x))[0]


def _label_encoder(n: NodeView) -> Value:
    """The value beside the key that each element is, else the default; see `encoders.with_table`.

    Where the keys are whole numbers in a row, the place of one is its distance from the first; else the only key that
    an element may be is found by a tree, or by halves.
    """
    n.require(has_table(n.node), "keys or values that are texts, or another number of them")
    x, keys, values = n[0], n[1], n[2]
    n.require(x.dtype is keys.dtype, f"elements of {x.dtype}, and keys of {keys.dtype}")
    count = values.shape[0] - 2
    if x.dtype in (DataType.S32, DataType.S64) and keys.shape[0] == 1:
        return n.emit("Gather", values, _distance(n, x, int(keys.content[0]), count), axis=0)
    place = _leaf(n, x, count) if n.has(3) else _by_halves(n, x, keys, count)
    [is_key] = n.emit_several("Equal", [DataType.BOOLEAN], n.emit("Gather", keys, place, axis=0), x)
    place = _select(n, is_key, place, n.literal(count + 1, place))
    if x.dtype.numpy.kind == "f":
        [is_number] = n.emit_several("Equal", [DataType.BOOLEAN], x, x)
        place = _select(n, is_number, place, n.literal(count, place))
    return n.emit("Gather", values, place, axis=0)


def _leaf(n: NodeView, x: Value, count: int) -> Value:
    """The number of the leaf to which a tree, inputs 3 and 4, leads each element."""
    rows = n.reshape(n.cast(x, n[3].dtype), (prod(x.shape), 1))
    root, targets = np.zeros(1, np.int32), np.zeros(count, np.int32)
    rest = [
        Value(content=part) for part in (root, np.arange(count, dtype=np.float32), targets, np.zeros(1, np.float32))
    ]
    found = n.emit_several("TreeEnsemble", [DataType.F32], rows, n[3], n[4], *rest, aggregate="sum")[0]
    return n.reshape(n.cast(found, DataType.S32), x.shape)


def _by_halves(n: NodeView, x: Value, keys: Value, left: int) -> Value:
    """The place of the greatest key up to each element, of `left` keys."""
    place = n.emit("Expand", n.builder.literal(0, DataType.S32), shape=x.shape)
    while left > 1:
        half = left // 2
        upper = n.emit("Add", place, n.literal(half, place))
        [is_below] = n.emit_several("LessEqual", [DataType.BOOLEAN], n.emit("Gather", keys, upper, axis=0), x)
        place, left = _select(n, is_below, upper, place), left - half
    return place


def _distance(n: NodeView, x: Value, first: int, count: int) -> Value:
    """How far elements are behind the first of so many whole numbers in a row; that many and one for other elements."""
    other, place = n.literal(count + 1, x), n.emit("Subtract", x, n.literal(first, x))
    for kind, bound in (("GreaterEqual", first), ("LessEqual", first + count - 1)):
        [is_within] = n.emit_several(kind, [DataType.BOOLEAN], x, n.literal(bound, x))
        place = _select(n, is_within, place, other)
    return place


def _feature_vectorizer(n: NodeView) -> Value:
    """Columns of several inputs side by side, as f32."""
    widths = n.attr("inputdimensions") or ()
    parts = [n.cast(n[k], DataType.F32) for k in range(len(n.inputs))]
    fits = [len(part.shape) == 2 and part.shape[1] == width for part, width in zip(parts, widths, strict=False)]
    n.require(len(parts) == len(widths) and all(fits), "inputs of another width than asked for")
    return n.join(parts, 1)


CONVERTERS = {
    "ArrayFeatureExtractor": _feature_extractor,
    "Binarizer": _binarizer,
    "FeatureVectorizer": _feature_vectorizer,
    "Imputer": _imputer,
    "LabelEncoder": _label_encoder,
    "LinearClassifier": _linear_classifier,
    "LinearRegressor": _linear_regressor,
    "Normalizer": _normalizer,
    "OneHotEncoder": _one_hot_encoder,
    "SVMClassifier": _svm_classifier,
    "SVMRegressor": _svm_regressor,
    "Scaler": _scaler,
}
"""Converters of domain ai.onnx.ml."""
