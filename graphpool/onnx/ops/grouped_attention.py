"""GroupQueryAttention of ONNX Runtime: causal, with rotated positions and caches of keys and values.

A cache is as long as its past and the new tokens, or a buffer that has room for more. The rows of a batch entry may end
at a length of their own. Source: the operators of domain com.microsoft, as ONNX Runtime documents them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from graphpool.typing import DataType

from . import movement
from .attend import Rules, attend, join_heads, split_heads
from .fused_attention import refuse_attributes, refuse_inputs, score_scale, split_last

if TYPE_CHECKING:
    from graphpool.onnx.build import NodeView, Value

_REFUSED = {9: "position_ids", 11: "head_sink", 12: "k_scale", 13: "v_scale", 14: "q_norm_weight", 15: "k_norm_weight"}
_PLAIN = {
    "k_quant_type": "NONE",
    "v_quant_type": "NONE",
    "sliding_window_cache": 0,
    "qk_output": 0,
}
_TENSOR_SCATTER = 24
"""Opset."""


@dataclass(frozen=True)
class _Course:
    """Where the new tokens come to lie.

    Attributes
    ----------
    new, total : int
        New tokens, and the longest batch entry with them.
    room : int
        Rows of the past cache.
    lengths : Value or None
        Of the batch entries with the new tokens, where they may differ and decide what is seen; s32.
    """

    new: int
    total: int
    room: int
    lengths: Value | None

    @property
    def before(self) -> int:
        """Tokens of the past, of the longest batch entry."""
        return self.total - self.new

    @property
    def starts(self) -> Value | None:
        """The lengths where the new tokens of the batch entries begin at different places: a prompt is at 0 in all."""
        return self.lengths if self.before else None


def _group_query(n: NodeView) -> list[Value]:
    refuse_inputs(n, _REFUSED)
    refuse_attributes(n, _PLAIN)
    n.require(n.attr("smooth_softmax", -1) != 1, "attribute smooth_softmax is 1")
    n.require(not n.gives(3), "output output_qk is read")
    window, is_causal = n.attr("local_window_size", -1), bool(n.attr("causal", 1))
    n.require(is_causal or window < 0, "attribute local_window_size without causal")
    course = _course(n, is_causal)
    query, key, value = _parts(n)
    if n.attr("do_rotary", 0):
        places = _places(n, course)
        query, key = (_rotated(n, x, places) for x in (query, key))
    keys, values = (_appended(n, k, x, course) for k, x in ((3, key), (4, value)))
    rules = Rules(
        scale=score_scale(n), cap=n.attr("softcap", 0.0), mask=n.cast(n[10], DataType.F32) if n.has(10) else None,
        left=window - 1 if window > 0 else -1, right=0 if is_causal else -1, past=course.before,
        lengths=course.lengths,
    )  # fmt: skip
    found = attend(n, query, _rows(n, keys, 0, course.total), _rows(n, values, 0, course.total), rules)
    return [join_heads(n, found.result), keys, values]


def _course(n: NodeView, is_causal: bool) -> _Course:
    batch, new = n[0].shape[:2]
    total = int(n.known(6).reshape(()))
    room = n[3].shape[2] if n.has(3) else 0
    n.require(new <= total and (total == new or room >= total - new), "past_key is shorter than the past")
    is_even = n[5].is_known and np.all(n[5].content == total - 1)
    # what lies behind the end of a prompt is hidden from the tokens in front of it already where these look back only
    if is_even or (total == new and is_causal):
        return _Course(new, total, room, None)
    numbers = n.reshape(n.cast(n[5], DataType.S32), (batch,))
    return _Course(new, total, room, n.emit("Add", numbers, n.literal(1, numbers)))


def _parts(n: NodeView) -> list[Value]:
    """Query, key and value in heads; the query may hold all three."""
    heads, shared = n.attr("num_heads"), n.attr("kv_num_heads")
    if n.has(1):
        parts = [n[0], n[1], n[2]]
    else:
        depth = n[0].shape[2] // (heads + 2 * shared)
        parts = split_last(n, n[0], [heads * depth, shared * depth, shared * depth])
    return [split_heads(n, x, count) for x, count in zip(parts, (heads, shared, shared), strict=True)]


def _places(n: NodeView, course: _Course) -> Value:
    """Position of each new token, (batch, tokens)."""
    steps, shape = np.arange(course.new), (n[0].shape[0], course.new)
    if course.starts is None:
        return n.builder.literal(np.broadcast_to(steps + course.before, shape), DataType.S32)
    lengths = n.reshape(course.starts, (shape[0], 1))
    return n.emit("Add", n.emit("Expand", lengths, shape=shape), n.literal(steps - course.new, lengths))


def _rotated(n: NodeView, x: Value, places: Value) -> Value:
    depth = 2 * n[7].shape[1]
    partial = {"rotary_embedding_dim": depth, "num_heads": x.shape[1]} if depth != x.shape[3] else {}
    interleaved = bool(n.attr("rotary_interleaved", 0))
    return n.emit("RotaryEmbedding", x, n[7], n[8], places, interleaved=interleaved, **partial)


def _appended(n: NodeView, index: int, new: Value, course: _Course) -> Value:
    """The cache with the new rows put in; zeros lie behind the ends of short batch entries in a cache that grows."""
    if course.starts is None:
        parts = [_rows(n, n[index], 0, course.before)] if course.before else []
        parts.append(new)
        if course.room > course.total:
            parts.append(_rows(n, n[index], course.total, course.room))
        return n.join(parts, 2)
    past = n[index]
    if course.room < course.total:
        batch, heads, _, depth = past.shape
        past = n.join([past, n.literal(np.zeros((batch, heads, course.total - course.room, depth)), past)], 2)
    starts = n.emit("Add", course.starts, n.literal(-course.new, course.starts))
    scattered = n.as_op([past, new, n.cast(starts, DataType.S64)], _TENSOR_SCATTER)
    found: Value = movement.CONVERTERS["TensorScatter"](scattered)
    return found


def _rows(n: NodeView, cache: Value, start: int, end: int) -> Value:
    """A part of a cache."""
    if (start, end) == (0, cache.shape[2]):
        return cache
    return n.emit("Slice", cache, starts=[start], ends=[end], axes=[2], steps=[1])


CONTRIBUTED = {"GroupQueryAttention": _group_query}
"""Converters of domain com.microsoft."""
