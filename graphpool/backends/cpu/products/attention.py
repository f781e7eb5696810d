"""Scaled dot-product attention as one kernel, without a matrix of scores.

Source of the kernel's method: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from ...._kernels.gemm.attention import attention
from ..lower.epilogue import emit_anchor, make_epilogue
from ..match.attention import BATCH_AXES, Attention

if TYPE_CHECKING:
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import AnchorGroup

__all__ = ["lower_attention"]


def lower_attention(lowering: Lowering, group: AnchorGroup) -> None:
    """The kernel, with the post-ops of the group behind it."""
    found = group.attention
    assert found is not None
    q, k, v = _operands(lowering, found)
    heads, kv_heads = q.shape[:-2], k.shape[BATCH_AXES:-2]
    numbers = [lowering.typed(lowering.value(t)) for t in (found.scale, found.cap) if t is not None]
    masks = [] if found.mask is None else [lowering.typed(lowering.value(found.mask))]
    masks = [mask.broadcast((*heads, q.shape[-2], k.shape[-2])) for mask in masks]
    batch = heads[:BATCH_AXES]
    k, v = (x.broadcast((*batch, *x.shape[len(batch) :])) for x in (k, v))
    q, k, v, *masks = (_foldable(lowering, x) for x in (q, k, v, *masks))
    epilogue = make_epilogue(lowering, group)
    call = attention(
        (prod(batch), prod(heads[BATCH_AXES:]), *q.shape[-2:]),
        (prod(batch), prod(kv_heads), *k.shape[-2:]),
        v.shape[-1],
        scale=1.0 if found.scale is None else None,
        is_divisor=found.is_divisor,
        soft_cap=0.0 if found.cap is None else None,
        additive_strides=_fold(masks[0]) if masks else None,
        inf_as_zero=found.softmax.attrs["mode"] == "inf_as_zero",
        q_strides=_fold(q),
        k_strides=_fold(k),
        v_strides=_fold(v),
        epilogue=epilogue.block,
    )
    emit_anchor(lowering, group, call, [q, k, v, *numbers, *masks], epilogue)


def _operands(lowering: Lowering, found: Attention) -> list[Value]:
    """Queries, keys and values in f32, each (..., positions, depth); of keys and values each head once."""
    sides = [
        (found.scores.inputs[0], None, found.scores.attrs["transpose_a"]),
        (found.scores.inputs[1], found.keys, not found.scores.attrs["transpose_b"]),
        (found.product.inputs[1], found.values, found.product.attrs["transpose_b"]),
    ]
    values = [
        (lowering.typed(lowering.value(tensor.id)), is_turned)
        if shared is None
        else (lowering.typed(lowering.value(shared.source)).squeezed(2), is_turned != shared.is_turned)
        for tensor, shared, is_turned in sides
    ]
    order = list(range(len(values[0][0].shape)))
    turned = [*order[:-2], order[-1], order[-2]]
    return [value.transposed(turned) if is_turned else value for value, is_turned in values]


def _foldable(lowering: Lowering, value: Value) -> Value:
    """The value, or a dense copy, such that one stride runs over all head axes."""
    axes = [(d, s) for d, s in zip(value.shape[BATCH_AXES:-2], value.strides[BATCH_AXES:-2], strict=True) if d != 1]
    is_even = all(outer == dim * inner for (_, outer), (dim, inner) in pairwise(axes))
    return value if is_even else lowering.dense(value)


def _fold(value: Value) -> tuple[int, int, int, int]:
    """Strides over (batch, heads, rows, columns)."""
    groups = [value.strides[:BATCH_AXES], value.strides[BATCH_AXES:-2]]
    dims = [value.shape[:BATCH_AXES], value.shape[BATCH_AXES:-2]]
    folded = [
        next((s for d, s in zip(reversed(size), reversed(strides), strict=True) if d != 1), 0)
        for size, strides in zip(dims, groups, strict=True)
    ]
    return folded[0], folded[1], value.strides[-2], value.strides[-1]
