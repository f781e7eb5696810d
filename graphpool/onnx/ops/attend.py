"""Attention, spelt as the patterns of scaled dot-product attention are: product, scale, cap, masks, SoftMax, product.

Fewer heads of keys than of queries: the queries' heads become (groups, heads in a group) and the keys broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from graphpool.typing import DataType

if TYPE_CHECKING:
    from graphpool.onnx.build import NodeView, Value

__all__ = ["Attended", "Rules", "attend", "join_heads", "split_heads"]


@dataclass(frozen=True)
class Rules:
    """Which keys a query sees, and how.

    Attributes
    ----------
    scale : float or None
        Of the scores; 1 / sqrt(depth) by default.
    cap : float, default=0
        Scores become cap * tanh(scores / cap); 0 for none.
    mask : Value, optional
        Added to the scores, or booleans that say what is kept; a mask that is too short hides the keys behind it.
    left, right : int, default=-1
        Keys seen in front of and behind a query's own place; -1 for all.
    past : int, default=0
        Keys in front of that of the first query.
    lengths : Value, optional
        Keys in use of each batch entry, s32; the queries then are the last ones of those.
    """

    scale: float | None = None
    cap: float = 0.0
    mask: Value | None = None
    left: int = -1
    right: int = -1
    past: int = 0
    lengths: Value | None = None


class Attended(NamedTuple):
    """The result, and what led to it."""

    result: Value
    scores: Value
    capped: Value
    masked: Value
    weights: Value


def attend(n: NodeView, query: Value, key: Value, value: Value, by: Rules) -> Attended:
    """Attention of queries (batch, heads, sequence, depth) to keys and values of (batch, heads, keys, depth)."""
    heads = _Heads(query.shape, key.shape)
    n.require(query.shape[1] % key.shape[1] == 0, "heads of queries that are no multiple of those of keys")
    scores = _scores(n, heads, query, key, by.scale)
    capped = _cap(n, scores, by.cap)
    masked = _mask(n, heads, capped, by)
    weights = n.emit_several("SoftMax", [query.dtype], masked, axis=-1, mode="inf_as_zero")[0]
    result = n.emit("MatMul", weights, n.reshape(value, heads.shared(value.shape)))
    return Attended(n.reshape(result, (*query.shape[:3], value.shape[3])), scores, capped, masked, weights)


def split_heads(n: NodeView, x: Value, heads: int) -> Value:
    """(batch, sequence, heads * depth) as (batch, heads, sequence, depth)."""
    batch, length, width = x.shape
    return n.emit("StaticTranspose", n.reshape(x, (batch, length, heads, width // heads)), order=(0, 2, 1, 3))


def join_heads(n: NodeView, x: Value) -> Value:
    """(batch, heads, sequence, depth) as (batch, sequence, heads * depth)."""
    batch, heads, length, depth = x.shape
    return n.reshape(n.emit("StaticTranspose", x, order=(0, 2, 1, 3)), (batch, length, heads * depth))


@dataclass(frozen=True)
class _Heads:
    """Shapes (batch, heads, sequence, depth) of the queries and the keys, and the shapes in which they multiply."""

    query: tuple[int, ...]
    key: tuple[int, ...]

    @property
    def is_grouped(self) -> bool:
        """Whether several heads of queries share one of keys."""
        return self.query[1] != self.key[1]

    def grouped(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of what has the queries' heads, or one head for all."""
        batch, heads, *rest = shape
        if not self.is_grouped:
            return shape
        return (batch, 1, 1, *rest) if heads == 1 else (batch, self.key[1], heads // self.key[1], *rest)

    def shared(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Shape of what has the keys' heads."""
        return (*shape[:2], 1, *shape[2:]) if self.is_grouped else shape


def _scores(n: NodeView, heads: _Heads, query: Value, key: Value, scale: float | None) -> Value:
    scale = 1 / sqrt(heads.query[3]) if scale is None else scale
    left, right = n.reshape(query, heads.grouped(query.shape)), n.reshape(key, heads.shared(key.shape))
    # sums of 16-bit types stay in f32, up to the weights
    product = n.emit_several("MatMul", [DataType.F32], left, right, transpose_b=True)[0]
    return n.emit("Multiply", product, n.literal(scale, product))


def _cap(n: NodeView, scores: Value, cap: float) -> Value:
    """cap * tanh(scores / cap)."""
    if cap <= 0:
        return scores
    number = n.literal(cap, scores)
    return n.emit("Multiply", n.emit("Tanh", n.emit("Divide", scores, number)), number)


def _mask(n: NodeView, heads: _Heads, scores: Value, by: Rules) -> Value:
    if by.mask is not None:
        scores = _apply_given_mask(n, heads, scores, by.mask)
    if by.left < 0 and by.right < 0 and by.lengths is None:
        return scores
    rows, columns = (_positions(n, scores, axis) for axis in (-2, -1))
    lengths = None if by.lengths is None else _spread_lengths(n, by.lengths, len(scores.shape))
    # behind the past keys, or the last ones of those in use
    place = _shift(n, rows, by.past) if lengths is None else n.emit("Add", rows, _shift(n, lengths, -heads.query[2]))
    if by.right >= 0:
        scores = _keep(n, _at_least(n, _shift(n, place, by.right), columns), scores)
    if by.left >= 0:
        scores = _keep(n, _at_least(n, _shift(n, columns, by.left), place), scores)
    if lengths is not None:
        scores = _keep(n, _at_least(n, _shift(n, lengths, -1), columns), scores)
    return scores


def _apply_given_mask(n: NodeView, heads: _Heads, scores: Value, mask: Value) -> Value:
    """Add a float mask, or keep what a boolean one says; a short mask hides the keys behind it."""
    missing = heads.key[2] - mask.shape[-1]
    n.require(missing >= 0, "a mask longer than the keys")
    is_boolean = mask.dtype is DataType.BOOLEAN
    if missing:
        if is_boolean:
            zeros, hidden = n.literal(np.zeros(mask.shape), scores), n.literal(-np.inf, scores)
            mask, is_boolean = n.emit_several("Select", [scores.dtype], mask, zeros, hidden)[0], False
        mask = n.emit("Concat", mask, n.literal(np.full((*mask.shape[:-1], missing), -np.inf), mask), axis=-1)
    mask = n.reshape(mask, heads.grouped((*[1] * (4 - len(mask.shape)), *mask.shape)))
    return _keep(n, mask, scores) if is_boolean else n.emit("Add", scores, mask)


def _positions(n: NodeView, scores: Value, axis: int) -> Value:
    return n.emit_several("GenIndex", [DataType.S32], scores, axis=axis)[0]


def _spread_lengths(n: NodeView, lengths: Value, ndim: int) -> Value:
    """Keys in use, one number a batch entry, broadcast against the scores."""
    return n.reshape(lengths, (lengths.shape[0], *[1] * (ndim - 1)))


def _shift(n: NodeView, positions: Value, by: int) -> Value:
    return n.emit("Add", positions, n.literal(by, positions)) if by else positions


def _at_least(n: NodeView, a: Value, b: Value) -> Value:
    return n.emit_several("GreaterEqual", [DataType.BOOLEAN], a, b)[0]


def _keep(n: NodeView, condition: Value, scores: Value) -> Value:
    """The scores where the condition holds, else minus infinity."""
    return n.emit_several("Select", [scores.dtype], condition, scores, n.literal(-np.inf, scores))[0]
