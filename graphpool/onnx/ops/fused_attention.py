"""Attention with its projections, biases and caches, as ONNX Runtime fuses it.

Masks of padding add a number to the scores, not infinity: a query whose keys are all masked sees them all.
Source: the operators of domain com.microsoft, as ONNX Runtime documents them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool._sizes import is_variable
from graphpool.typing import DataType

from . import movement
from .attend import Rules, attend, join_heads, split_heads
from .quantization import dequantize, scaling

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphpool.onnx.build import NodeView, Value

_OPSET = 23


def refuse_inputs(n: NodeView, names: Mapping[int, str]) -> None:
    """Refuse a node that has one of these inputs."""
    for index, name in names.items():
        n.require(not n.has(index), f"input {name} (number {index}) is given")


def refuse_attributes(n: NodeView, defaults: Mapping[str, object]) -> None:
    """Refuse a node whose attributes differ from these."""
    for name, value in defaults.items():
        n.require(n.attr(name, value) == value, f"attribute {name} is {n.attr(name)!r}")


def _optional(n: NodeView, *indices: int) -> list[Value | None]:
    """Inputs that may be left out."""
    return [n[index] if n.has(index) else None for index in indices]


def score_scale(n: NodeView) -> float | None:
    """The factor of the scores; 0 stands for the default too."""
    return n.attr("scale") or None


def split_last(n: NodeView, x: Value, sizes: Sequence[int]) -> list[Value]:
    """Parts of the last axis."""
    n.require(x.shape[-1] == sum(sizes), f"{x.shape[-1]} columns in place of {sum(sizes)}")
    return n.emit_several("Split", [x.dtype] * len(sizes), x, axis=len(x.shape) - 1, split=list(sizes))


# ---- masks


def _mask(n: NodeView, mask: Value | None, bias: Value | None, keys: int) -> Value | None:
    """What is added to the scores, f32: for keys that the mask hides, and the given bias."""
    added = None if mask is None else _padding(n, mask, keys)
    if bias is None:
        return added
    bias = n.cast(bias, DataType.F32)
    return bias if added is None else n.emit("Add", bias, added)


def _padding(n: NodeView, mask: Value, keys: int) -> Value:
    """The filter value where a key is hidden, else 0, in a shape that broadcasts with the scores."""
    batch, shape = n[0].shape[0], mask.shape
    if shape in ((batch,), (2 * batch,)):
        visible = _between(n, mask, batch, keys)
    else:
        n.require(len(shape) in (2, 3) and shape[0] == batch and shape[-1] == keys, f"a mask of shape {shape}")
        mask = n.reshape(mask, (batch, 1, shape[1] if len(shape) == 3 else 1, keys))
        [visible] = n.emit_several("Greater", [DataType.BOOLEAN], mask, n.literal(0, mask))
    pair = [n.builder.full(number, visible.shape) for number in (0, n.attr("mask_filter_value", -10000.0))]
    return n.emit_several("Select", [DataType.F32], visible, *pair)[0]


def _between(n: NodeView, ends: Value, batch: int, keys: int) -> Value:
    """Whether a key lies in front of the end of its batch entry, and not in front of the start that may follow."""
    columns = n.cast(n.builder.numbers(0, keys, 3), ends.dtype)
    sides = [ends] if ends.shape == (batch,) else n.emit_several("Split", [ends.dtype] * 2, ends, axis=0)
    end, *start = (n.reshape(side, (batch, 1, 1, 1)) for side in sides)
    [visible] = n.emit_several("Less", [DataType.BOOLEAN], columns, end)
    if not start:
        return visible
    [begun] = n.emit_several("GreaterEqual", [DataType.BOOLEAN], columns, start[0])
    return n.emit("And", visible, begun)


# ---- projections inside


def _attention(n: NodeView) -> list[Value]:
    refuse_inputs(n, {6: "past_sequence_length"})
    projected = n.emit("MatMul", n[0], n[1], *([n[2]] if n.has(2) else []))
    return _self_attention(n, projected, *_optional(n, 3, 4, 5))


def _quantised_attention(n: NodeView) -> list[Value]:
    """The projections multiply dequantised tensors."""
    x, weights = (
        dequantize(n, n[k], scaling(n.as_op([n[k + 3], *_optional(n, k + 6)], _OPSET), 0, 1)) for k in range(2)
    )
    projected = n.emit("MatMul", x, weights, n.cast(n[2], DataType.F32))
    return _self_attention(n, projected, *_optional(n, 5, 8))


def _self_attention(
    n: NodeView, projected: Value, mask: Value | None, past: Value | None, bias: Value | None = None
) -> list[Value]:
    """The result and, where it is read, the keys and values of now and of the past on top of each other."""
    refuse_attributes(n, {"do_rotary": 0, "past_present_share_buffer": 0})
    heads, width = n.attr("num_heads"), projected.shape[2]
    sizes = list(n.attr("qkv_hidden_sizes") or [width // 3] * 3)
    query, key, value = (split_heads(n, part, heads) for part in split_last(n, projected, sizes))
    before = 0
    if past is not None:
        before = past.shape[3]
        halves = n.emit_several("Split", [past.dtype] * 2, past, axis=0)
        old_key, old_value = (n.reshape(half, past.shape[1:]) for half in halves)
        key, value = n.join([old_key, key], 2), n.join([old_value, value], 2)
    rules = Rules(
        scale=score_scale(n), mask=_mask(n, mask, bias, key.shape[2]), right=0 if n.attr("unidirectional", 0) else -1,
        past=before,
    )  # fmt: skip
    result = join_heads(n, attend(n, query, key, value, rules).result)
    if not n.gives(1):
        return [result]
    return [result, n.join([n.reshape(part, (1, *part.shape)) for part in (key, value)], 0)]


# ---- projections outside


def _multi_head(n: NodeView) -> list[Value]:
    refuse_inputs(n, {8: "past_sequence_length", 9: "cache_indirection"})
    n.require(not n.gives(3), "output qk is read")
    query, key, value = _with_bias(n, _unpacked(n), 3)
    query, key, value = (
        x if len(x.shape) == 4 else split_heads(n, x, n.attr("num_heads")) for x in (query, key, value)
    )
    if n.has(6):
        key, value = n.join([n[6], key], 2), n.join([n[7], value], 2)
    mask, bias = _optional(n, 4, 5)
    is_causal = bool(n.attr("unidirectional", 0))
    lengths = query.shape[2], key.shape[2] - (n[6].shape[2] if n.has(6) else 0)
    n.require(not is_causal or lengths[0] == lengths[1], "attribute unidirectional with as many queries as keys")
    n.require(mask is None or mask.shape != (2 * query.shape[0],), "a key_padding_mask of starts and ends")
    rules = Rules(
        scale=score_scale(n), mask=_mask(n, mask, bias, key.shape[2]), right=0 if is_causal else -1,
        past=n[6].shape[2] if n.has(6) else 0,
    )  # fmt: skip
    return [join_heads(n, attend(n, query, key, value, rules).result), key, value]


def _unpacked(n: NodeView) -> list[Value]:
    """Query, key and value: (batch, sequence, columns), or keys and values in heads, as a cache holds them."""
    if len(n[0].shape) == 5:
        return _layers(n, n[0])
    if len(n[1].shape) == 5:
        return [n[0], *_layers(n, n[1])]
    return [n[0], n[1], n[2]]


def _layers(n: NodeView, packed: Value) -> list[Value]:
    """(batch, sequence, heads, parts, depth) as parts of (batch, sequence, heads * depth)."""
    batch, length, heads, count, depth = packed.shape
    parts = n.emit_several("Split", [packed.dtype] * count, packed, axis=3)
    return [n.reshape(part, (batch, length, heads * depth)) for part in parts]


def _with_bias(n: NodeView, parts: list[Value], index: int) -> list[Value]:
    """Each part with its part of the bias, an input; keys and values from a cache have got theirs."""
    if not n.has(index):
        return parts
    widths = [part.shape[2] if len(part.shape) == 3 else part.shape[1] * part.shape[3] for part in parts]
    pairs = zip(parts, split_last(n, n[index], widths), strict=True)
    return [n.emit("Add", part, bias) if len(part.shape) == 3 else part for part, bias in pairs]


def _decoder_masked(n: NodeView) -> list[Value]:
    """One new token, whose key and value are put into a buffer with room, or behind a cache that grows."""
    refuse_inputs(n, {9: "cache_indirection"})
    n.require(not n.gives(3), "output qk is read")
    parts = [n[0], n[1], n[2]] if n.has(1) else split_last(n, n[0], [n[0].shape[2] // 3] * 3)
    query, key, value = (
        x if len(x.shape) == 4 else split_heads(n, x, n.attr("num_heads")) for x in _with_bias(n, parts, 10)
    )
    n.require(query.shape[2] == 1, "more than one new token")
    mask, bias = _optional(n, 3, 4)
    lengths, total = None, key.shape[2]
    if n.attr("past_present_share_buffer", 0):
        starts = n.emit("Expand", n.reshape(n[7], (1,)), shape=(query.shape[0],))
        places, scatter = n.cast(starts, DataType.S64), movement.CONVERTERS["TensorScatter"]
        key, value = (scatter(n.as_op([n[k], x, places], _TENSOR_SCATTER)) for k, x in ((5, key), (6, value)))
        known = [x.shape[-1] for x in (mask, bias) if x is not None]
        total = known[0] if known else key.shape[2]
        if not known:
            starts = n.cast(starts, DataType.S32)
            lengths = n.emit("Add", starts, n.literal(1, starts))
    elif n.has(5):
        key, value = n.join([n[5], key], 2), n.join([n[6], value], 2)
        total = key.shape[2]
    rules = Rules(scale=score_scale(n), mask=_mask(n, mask, bias, total), lengths=lengths)
    found = attend(n, query, _rows(n, key, 0, total), _rows(n, value, 0, total), rules)
    return [join_heads(n, found.result), key, value]


def _rotary(n: NodeView) -> Value:
    """Positions are given for each token, or for the first one of all."""
    refuse_attributes(n, {"scale": 1.0, "is_packed_batching": 0})
    x, positions, cos, sin = (n[k] for k in range(4))
    batch, length = x.shape[0], x.shape[-2]
    if positions.shape == (1,) and (batch, length) != (1, 1):
        steps = n.literal(np.arange(length), positions)
        positions = n.emit("Expand", n.emit("Add", steps, positions), shape=(batch, length))
    depth = n.attr("rotary_embedding_dim", 0)
    heads = n.attr("num_heads", 0) if depth else x.shape[2] // (2 * cos.shape[1]) if len(x.shape) == 3 else 0
    return n.emit(
        "RotaryEmbedding", x, cos, sin, n.reshape(positions, (batch, length)), num_heads=heads,
        rotary_embedding_dim=depth, interleaved=bool(n.attr("interleaved", 0)),
    )  # fmt: skip


# ---- GroupQueryAttention: causal, with rotated positions and caches of keys and values

# A cache is as long as its past and the new tokens, or a buffer that has room for more. The rows of a batch entry may
# end at a length of their own.


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

    There are `new` ones, and `total` in the longest batch entry with them; the past cache has `room` rows. `lengths`
    are those of the batch entries with the new tokens, s32, where they may differ and decide what is seen.
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
    [total] = n.ints("total_sequence_length", 6) or [0]
    room = n[3].shape[2] if n.has(3) else 0
    n.require(new <= total and (total == new or room >= total - new), "past_key is shorter than the past")
    is_even = n[5].is_known and all(length == total - 1 for length in n.ints("seqlens_k", 5) or ())
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
    shape = n[0].shape[0], course.new
    if course.starts is None:
        row = n.builder.numbers(course.before, course.new)
        if row.is_known and not is_variable(shape[0]):
            return n.literal(np.broadcast_to(row.content, shape), row)
        return n.emit("Expand", row, shape=shape)
    firsts = n.reshape(_firsts(n, course.starts, course.new), (shape[0], 1))
    return n.emit("Add", n.emit("Expand", firsts, shape=shape), n.builder.numbers(0, course.new))


def _firsts(n: NodeView, lengths: Value, new: int) -> Value:
    """The position of the first new token of each batch entry."""
    return n.emit("Subtract", lengths, n.builder.numbers(new, 1))


def _rotated(n: NodeView, x: Value, places: Value) -> Value:
    depth = 2 * n[7].shape[1]
    partial = {"rotary_embedding_dim": depth, "num_heads": x.shape[1]} if depth != x.shape[3] else {}
    interleaved = bool(n.attr("rotary_interleaved", 0))
    return n.emit("RotaryEmbedding", x, n[7], n[8], places, interleaved=interleaved, **partial)


def _appended(n: NodeView, index: int, new: Value, course: _Course) -> Value:
    """The cache with the new rows put in; zeros lie behind the ends of short batch entries in a cache that grows."""
    if course.starts is None:
        has_past = course.before or (n.has(index) and course.room == 0)  # without rows too: a session appends to it
        parts = [_rows(n, n[index], 0, course.before)] if has_past else []
        parts.append(new)
        if course.room > course.total:
            parts.append(_rows(n, n[index], course.total, course.room))
        return n.join(parts, 2)
    past = n[index]
    if course.room < course.total:
        batch, heads, _, depth = past.shape
        zeros = n.builder.full(0, (batch, heads, course.total - course.room, depth))
        past = n.join([past, n.cast(zeros, past.dtype)], 2)
    starts = _firsts(n, course.starts, course.new)
    scattered = n.as_op([past, new, n.cast(starts, DataType.S64)], _TENSOR_SCATTER)
    found: Value = movement.CONVERTERS["TensorScatter"](scattered)
    return found


def _rows(n: NodeView, cache: Value, start: int, end: int) -> Value:
    """A part of a cache."""
    if (start, end) == (0, cache.shape[2]):
        return cache
    return n.emit("Slice", cache, starts=[start], ends=[end], axes=[2], steps=[1])


CONTRIBUTED = {
    "Attention": _attention, "QAttention": _quantised_attention, "MultiHeadAttention": _multi_head,
    "DecoderMaskedMultiHeadAttention": _decoder_masked, "RotaryEmbedding": _rotary, "GroupQueryAttention": _group_query,
}  # fmt: skip
"""Converters of domain com.microsoft."""
