"""Attention as ONNX defines them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.typing import DataType

from .attend import Rules, attend, join_heads, split_heads

if TYPE_CHECKING:
    from graphpool.onnx.build import NodeView, Value

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
    n.require(heads is not None and x.shape[2] % heads == 0, f"3-D inputs without {attribute}")
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
