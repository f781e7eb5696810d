"""Attention, spelt as the patterns of scaled dot-product attention are: product, scale, cap, masks, SoftMax, product.

Fewer heads of keys than of queries: the queries' heads become (groups, heads in a group) and the keys broadcast.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from graphpool.typing import DataType

if TYPE_CHECKING:
    from graphpool.onnx.build import NodeView, Value

__all__ = ["CONVERTERS"]

_QUERY, _KEY, _VALUE, _MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS = range(7)


def _attention(n: NodeView) -> list[Value]:
    """ONNX specification of Attention, opsets 23 to 25."""
    query = _split_heads(n, n[_QUERY], "q_num_heads")
    key, value = (_split_heads(n, n[k], "kv_num_heads") for k in (_KEY, _VALUE))
    if n.has(_PAST_KEY):
        key = n.emit("Concat", n[_PAST_KEY], key, axis=2)
        value = n.emit("Concat", n[_PAST_VALUE], value, axis=2)
    heads = _Heads(query.shape, key.shape)
    scores = _scores(n, heads, query, key)
    capped = _cap(n, scores)
    masked = _mask(n, heads, capped)
    weights = n.emit_several("SoftMax", [query.dtype], masked, axis=-1, mode="inf_as_zero")[0]
    result = n.emit("MatMul", weights, n.reshape(value, heads.shared(value.shape)))
    result = n.reshape(result, (*query.shape[:3], value.shape[3]))
    mode = n.attr("qk_matmul_output_mode", 0)
    outputs = [_join_heads(n, result), key, value]
    if n.used_outputs == 4:
        shown = n.cast((scores, capped, masked, weights)[mode], query.dtype)
        outputs.append(n.reshape(shown, (*query.shape[:3], key.shape[2])))
    return outputs


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


def _split_heads(n: NodeView, x: Value, attribute: str) -> Value:
    """(batch, sequence, heads * depth) as (batch, heads, sequence, depth); that itself when it is 4-D."""
    if len(x.shape) == 4:
        return x
    batch, length, width = x.shape
    heads = n.attr(attribute)
    n.require(heads is not None and width % heads == 0, f"3-D inputs without {attribute}")
    return n.emit("StaticTranspose", n.reshape(x, (batch, length, heads, width // heads)), order=(0, 2, 1, 3))


def _join_heads(n: NodeView, result: Value) -> Value:
    """The result in the queries' rank."""
    if len(n[_QUERY].shape) == 4:
        return result
    batch, heads, length, depth = result.shape
    return n.reshape(n.emit("StaticTranspose", result, order=(0, 2, 1, 3)), (batch, length, heads * depth))


def _scores(n: NodeView, heads: _Heads, query: Value, key: Value) -> Value:
    n.require(heads.query[1] % heads.key[1] == 0, "heads of queries that are no multiple of those of keys")
    scale = n.attr("scale")
    scale = 1 / sqrt(heads.query[3]) if scale is None else scale
    left, right = n.reshape(query, heads.grouped(query.shape)), n.reshape(key, heads.shared(key.shape))
    # sums of 16-bit types stay in f32, up to the weights
    product = n.emit_several("MatMul", [DataType.F32], left, right, transpose_b=True)[0]
    return n.emit("Multiply", product, n.literal(scale, product))


def _cap(n: NodeView, scores: Value) -> Value:
    """cap * tanh(scores / cap)."""
    cap = n.attr("softcap", 0.0)
    if cap <= 0:
        return scores
    number = n.literal(cap, scores)
    return n.emit("Multiply", n.emit("Tanh", n.emit("Divide", scores, number)), number)


def _mask(n: NodeView, heads: _Heads, scores: Value) -> Value:
    if n.has(_MASK):
        scores = _apply_given_mask(n, heads, scores)
    left, right = n.attr("left_window_size", -1), n.attr("right_window_size", -1)
    if n.attr("is_causal", 0):
        right = 0
    if left < 0 and right < 0 and not n.has(_LENGTHS):
        return scores
    rows, columns = (_positions(n, scores, axis) for axis in (-2, -1))
    lengths = _lengths(n, len(scores.shape)) if n.has(_LENGTHS) else None
    place = _absolute(n, heads, rows, lengths)
    if right >= 0:
        scores = _keep(n, _at_least(n, _shift(n, place, right), columns), scores)
    if left >= 0:
        scores = _keep(n, _at_least(n, _shift(n, columns, left), place), scores)
    if lengths is not None:
        scores = _keep(n, _at_least(n, _shift(n, lengths, -1), columns), scores)
    return scores


def _apply_given_mask(n: NodeView, heads: _Heads, scores: Value) -> Value:
    """Add a float mask, or keep what a boolean one says; a short mask hides the keys behind it."""
    mask, missing = n[_MASK], heads.key[2] - n[_MASK].shape[-1]
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


def _lengths(n: NodeView, ndim: int) -> Value:
    """Keys in use, one number a batch entry, broadcast against the scores."""
    lengths = n.cast(n[_LENGTHS], DataType.S32)
    return n.reshape(lengths, (lengths.shape[0], *[1] * (ndim - 1)))


def _absolute(n: NodeView, heads: _Heads, rows: Value, lengths: Value | None) -> Value:
    """Place of each query among the keys: behind the past ones, or the last ones of those in use."""
    if lengths is not None:
        return n.emit("Add", rows, _shift(n, lengths, -heads.query[2]))
    return _shift(n, rows, n[_PAST_KEY].shape[2] if n.has(_PAST_KEY) else 0)


def _shift(n: NodeView, positions: Value, by: int) -> Value:
    return n.emit("Add", positions, n.literal(by, positions)) if by else positions


def _at_least(n: NodeView, a: Value, b: Value) -> Value:
    return n.emit_several("GreaterEqual", [DataType.BOOLEAN], a, b)[0]


def _keep(n: NodeView, condition: Value, scores: Value) -> Value:
    """The scores where the condition holds, else minus infinity."""
    return n.emit_several("Select", [scores.dtype], condition, scores, n.literal(-np.inf, scores))[0]


def _rotary(n: NodeView) -> Value:
    """ONNX specification of RotaryEmbedding, opset 23."""
    options = {name: n.attr(name, 0) for name in ("num_heads", "rotary_embedding_dim")}
    inputs = [n[k] for k in range(4) if n.has(k)]
    return n.emit("RotaryEmbedding", *inputs, interleaved=bool(n.attr("interleaved", 0)), **options)


CONVERTERS = {"Attention": _attention, "RotaryEmbedding": _rotary}
