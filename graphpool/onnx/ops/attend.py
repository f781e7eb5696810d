"""Attention, spelt as the patterns of scaled dot-product attention are: product, scale, cap, masks, SoftMax, product.

Fewer heads of keys than of queries: the queries' heads become (groups, heads in a group) and the keys broadcast.
"""

from __future__ import annotations

from functools import reduce
from math import sqrt
from typing import TYPE_CHECKING

import numpy as np

from graphpool._dataclasses import NamedTuple, dataclass
from graphpool._sizes import is_variable
from graphpool.typing import DataType

if TYPE_CHECKING:
    from graphpool.onnx.build import NodeView, Value


@dataclass(frozen=True)
class Rules:
    """Which keys a query sees, and how.

    The scores are scaled by `scale`, 1 / sqrt(depth) by default, and become cap * tanh(scores / cap) unless `cap` is 0.
    `mask` is added to them, or booleans that say what is kept; a mask that is too short hides the keys behind it. A
    query sees `left` and `right` keys in front of and behind its own place, -1 for all; `past` keys are in front of
    that of the first query. `lengths`, s32, are the keys in use of each batch entry, whose last ones the queries then
    are.
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
    n.check(width % heads == 0, "columns of an input", f"a multiple of {heads} heads", width)
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
    """The scores and, as one addend, all that hides keys: that is what the kernel of attention reads."""
    addends = [] if by.mask is None else [_given(n, heads, by.mask)]
    hidden = _hidden(n, heads, by) if by.lengths is None else _hidden_by_lengths(n, heads, by, by.lengths)
    addends += [] if hidden is None else [hidden]
    if not addends:
        return scores
    total = reduce(lambda a, b: n.emit("Add", a, b), addends)
    return n.emit("Add", scores, n.reshape(total, heads.grouped(total.shape)))


def _given(n: NodeView, heads: _Heads, mask: Value) -> Value:
    """A given mask as an addend of four dimensions; a short one hides the keys behind it."""
    missing = heads.key[2] - mask.shape[-1]
    n.require(missing >= 0, "a mask longer than the keys")
    added = _unless(n, mask) if mask.dtype is DataType.BOOLEAN else n.cast(mask, DataType.F32)
    if missing:
        added = n.join([added, n.builder.full(-np.inf, (*mask.shape[:-1], missing))], -1)
    return n.reshape(added, (*[1] * (4 - len(mask.shape)), *added.shape))


def _unless(n: NodeView, condition: Value) -> Value:
    """Minus infinity where the condition does not hold, else 0."""
    zeros = n.builder.full(0, condition.shape)
    hidden = n.builder.literal(-np.inf, DataType.F32)
    return n.emit_several("Select", [DataType.F32], condition, zeros, hidden)[0]


def _hidden(n: NodeView, heads: _Heads, by: Rules) -> Value | None:
    """What hides keys that lie too far from a query; None where that is no key."""
    if any(map(is_variable, (heads.query[2], heads.key[2], by.past))):
        return _hidden_by_places(n, heads, by)
    n.allow_table(32 * (1 + heads.query[2]) * (1 + heads.key[2]))
    places, keys = np.arange(heads.query[2])[:, None] + by.past, np.arange(heads.key[2])
    is_hidden = (by.right >= 0) & (keys > places + by.right) | (by.left >= 0) & (keys < places - by.left)
    if not is_hidden.any():
        return None
    return n.builder.literal(np.where(is_hidden, -np.inf, 0)[None, None], DataType.F32)


def _hidden_by_places(n: NodeView, heads: _Heads, by: Rules) -> Value | None:
    """Likewise of numbers of queries and keys that vary, computed during the run."""
    count, height = heads.query[2], heads.key[2]
    visible = []
    if by.right >= 0 and by.past + by.right < height - 1:  # else the first query sees the last key
        places = n.builder.numbers(by.past + by.right, count, 2, 1)
        visible.append(_compared(n, "GreaterEqual", places, n.builder.numbers(0, height, 3)))
    if by.left >= 0:
        places = n.builder.numbers(by.past, count, 2, 1)
        visible.append(_compared(n, "LessEqual", places, n.builder.numbers(by.left, height, 3)))
    return _unless(n, reduce(lambda a, b: n.emit("And", a, b), visible)) if visible else None


def _hidden_by_lengths(n: NodeView, heads: _Heads, by: Rules, lengths: Value) -> Value:
    """Likewise for queries that are the last ones of as many keys as each batch entry has."""
    count, height = heads.query[2], heads.key[2]
    lengths = n.reshape(lengths, (lengths.shape[0], 1, 1, 1))
    visible = _compared(n, "Greater", lengths, n.builder.numbers(0, height, 3))
    # of query and key as many places further back, so that nothing is negative
    places = n.emit("Add", lengths, n.builder.numbers(0, count, 2, 1))
    if by.right >= 0:
        last = n.emit("Add", places, n.literal(by.right, places)) if by.right else places
        visible = n.emit("And", _compared(n, "GreaterEqual", last, n.builder.numbers(count, height, 3)), visible)
    if by.left >= 0:
        near = _compared(n, "LessEqual", places, n.builder.numbers(count + by.left, height, 3))
        visible = n.emit("And", near, visible)
    return _unless(n, visible)


def _compared(n: NodeView, kind: str, a: Value, b: Value) -> Value:
    return n.emit_several(kind, [DataType.BOOLEAN], a, b)[0]


# ---- as ONNX defines it


_QUERY, _KEY, _VALUE, _MASK, _PAST_KEY, _PAST_VALUE, _LENGTHS = range(7)


def _attention(n: NodeView) -> list[Value]:
    """ONNX specification of Attention, opsets 23 to 25."""
    query = _heads_of(n, _QUERY, "q_num_heads")
    key, value = (_heads_of(n, k, "kv_num_heads") for k in (_KEY, _VALUE))
    if n.has(_PAST_KEY):
        key = n.emit("Concat", n[_PAST_KEY], key, axis=2)
        value = n.emit("Concat", n[_PAST_VALUE], value, axis=2)
    found = attend(n, query, key, value, _rules(n))
    outputs = [join_heads(n, found.result) if len(n[_QUERY].shape) == 3 else found.result, key, value]
    if n.used_outputs == 4:
        shown = n.cast(found[1 + n.attr("qk_matmul_output_mode", 0)], query.dtype)
        outputs.append(n.reshape(shown, (*query.shape[:3], key.shape[2])))
    return outputs


def _heads_of(n: NodeView, index: int, attribute: str) -> Value:
    """An input of (batch, heads, sequence, depth), or of as many heads side by side as an attribute says."""
    x, heads = n[index], n.attr(attribute)
    if len(x.shape) == 4:
        return x
    n.require(heads is not None, f"3-D inputs without {attribute}")
    return split_heads(n, x, heads)


def _rules(n: NodeView) -> Rules:
    return Rules(
        scale=n.attr("scale"),
        cap=n.attr("softcap", 0.0),
        mask=n[_MASK] if n.has(_MASK) else None,
        left=n.attr("left_window_size", -1),
        right=0 if n.attr("is_causal", 0) else n.attr("right_window_size", -1),
        past=n[_PAST_KEY].shape[2] if n.has(_PAST_KEY) else 0,
        lengths=n.cast(n[_LENGTHS], DataType.S32) if n.has(_LENGTHS) else None,
    )


CONVERTERS = {"Attention": _attention}
