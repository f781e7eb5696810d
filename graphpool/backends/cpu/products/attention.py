"""Scaled dot-product attention and its gradient as one kernel each, without a matrix of scores.

Sources of the kernels' methods: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al.,
"FlashAttention", 2022; Dao, "FlashAttention-2", 2023.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

from ...._kernels.gemm.attention import AttentionProblem, Rounding, attention, attention_backward
from ....typing import DataType
from ..lower.epilogue import Epilogue, emit_anchor, make_epilogue
from ..match.attention import BATCH_AXES, Scores, SharedHeads, zero_point_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ....graph.logical_tensor import LogicalTensor
    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import AnchorGroup, GradientGroup

__all__ = ["as_positions", "lower_attention", "lower_gradient"]

NO_OPS: Mapping[str, Op] = {}


def lower_attention(lowering: Lowering, group: AnchorGroup) -> None:
    """The kernel, with the post-ops of the group behind it."""
    found = group.attention
    assert found is not None
    values = found.product.inputs[1], found.product.attrs["transpose_b"]
    problem, args = _make_problem(
        lowering, found.scores, values, found.dropout, (found.keys, found.values), found.quantized
    )
    stats, kept = _own(lowering, found.softmax.outputs[1:]), []
    if found.dropout is not None:
        kept = _own(lowering, found.dropout.outputs[1:])
    epilogue = _find_place(lowering, group)
    call = attention(
        problem,
        rounding=None if found.rounding is None else _as_rounding(*found.rounding),
        inf_as_zero=found.softmax.attrs["mode"] == "inf_as_zero",
        stats_strides=_fold(stats[0]) if stats else None,
        kept_strides=_fold(kept[0]) if kept else None,
        dst_strides=None if epilogue.block else _fold(epilogue.place),
        epilogue=epilogue.block,
    )
    emit_anchor(lowering, group, call, [*args, *stats, *kept], epilogue)
    for tensor, value in zip(found.side_outputs, (*stats, *kept), strict=True):
        lowering.finish(tensor.id, value)


def _as_rounding(quantize: Op, dequantize: Op) -> Rounding:
    """What the two do to probabilities."""
    return Rounding(
        quantize.outputs[0].dtype.value,
        float(quantize.attrs["scales"][0]),
        float(dequantize.attrs["scales"][0]),
        zero_point_of(quantize),
        bool(quantize.attrs.get("rounds_first")),
    )


def lower_gradient(lowering: Lowering, group: GradientGroup) -> None:
    """The kernel of all gradients."""
    found = group.gradient
    values = found.values.inputs[1], not found.values.attrs["transpose_b"]
    problem, args = _make_problem(lowering, found.scores, values, found.dropout)
    stats = _foldable(lowering, lowering.typed(lowering.value(found.stats)))
    read = [stats, *(_foldable(lowering, lowering.value(tensor)) for tensor in (found.result, found.d_result))]
    scale = [] if found.d_scale is None else [lowering.value(found.d_scale)]
    results = _own(lowering, group.outputs)
    by_id = dict(zip((tensor.id for tensor in group.outputs), results, strict=True))
    wanted = {"d_q": found.d_q, "d_k": found.d_k, "d_v": found.d_v}
    if found.d_scores is not None:
        wanted["d_scores"] = found.d_scores
    sides = dict(zip(("stats", "result", "d_result"), read, strict=True)) | {n: by_id[i] for n, i in wanted.items()}
    call = attention_backward(
        problem,
        d_scale=None if scale else 1.0,
        is_d_divisor=found.is_d_divisor,
        group=problem.group if found.is_grouped else 1,
        has_d_scores=found.d_scores is not None,
        strides={name: _fold(value) for name, value in sides.items()},
        dtypes={name: value.dtype.value for name, value in (*sides.items(), *(("d_scale", x) for x in scale))},
    )
    lowering.emit(call, [*args, *read, *scale, *(sides[name] for name in wanted)])
    for tensor_id, value in by_id.items():
        lowering.finish(tensor_id, value)


def _make_problem(
    lowering: Lowering,
    scores: Scores,
    values: tuple[LogicalTensor, bool],
    dropout: Op | None,
    shared: tuple[SharedHeads | None, SharedHeads | None] = (None, None),
    quantized: Mapping[str, Op] = NO_OPS,
) -> tuple[AttentionProblem, list[Value]]:
    """The problem that kernels are asked, and its arguments."""
    product = scores.product
    sides = [
        (product.inputs[0], product.attrs["transpose_a"]), (product.inputs[1], not product.attrs["transpose_b"]), values
    ]  # fmt: skip
    for number, name in enumerate("qkv"):
        if name in quantized:
            sides[number] = quantized[name].inputs[0], sides[number][1]
    pairs = zip(sides, (None, *shared), strict=True)
    q, k, v = (as_positions(lowering, tensor, is_turned, heads) for (tensor, is_turned), heads in pairs)
    heads = q.shape[:-2]
    batch = heads[:BATCH_AXES]
    kv_heads = k.shape[BATCH_AXES:-2]
    k, v = (x.broadcast((*batch, *x.shape[len(batch) :])) for x in (k, v))
    numbers = {"scale": scores.scale, "cap": scores.cap, "fill": scores.fill}
    given = {name: lowering.value(tensor) for name, tensor in numbers.items() if tensor is not None}
    offsets = [lowering.value(tensor) for tensor in (scores.ahead, scores.behind) if tensor is not None]
    masks = {
        name: _foldable(lowering, lowering.value(tensor).broadcast((*heads, q.shape[-2], k.shape[-2])))
        for name, tensor in (("factor", scores.factor), ("additive", scores.mask), ("boolean", scores.shown))
        if tensor is not None
    }
    q, k, v = (_foldable(lowering, x) for x in (q, k, v))
    typed = {"q": q, "k": k, "v": v, **given, **{name: mask for name, mask in masks.items() if name != "boolean"}}
    draws = [] if dropout is None else [lowering.value(tensor.id) for tensor in dropout.inputs[1:]]
    problem = AttentionProblem(
        (prod(batch), prod(heads[BATCH_AXES:]), *q.shape[-2:]),
        (prod(batch), prod(kv_heads), *k.shape[-2:]),
        v.shape[-1],
        scale=None if "scale" in given else 1.0,
        is_divisor=scores.is_divisor,
        soft_cap=None if "cap" in given else 0.0,
        fill=None if "fill" in given else 0.0,
        fills_first=scores.fills_first,
        mask_hides=scores.is_inverted,
        causal_offset=0 if scores.is_causal else None,
        ahead=scores.ahead is not None,
        behind=scores.behind is not None,
        **{f"{name}_strides": _fold(mask) for name, mask in masks.items()},
        dropout=dropout is not None,
        q_strides=_fold(q),
        k_strides=_fold(k),
        v_strides=_fold(v),
        dtypes={name: value.dtype.value for name, value in typed.items()},
        quantized={name: (float(op.attrs["scales"][0]), zero_point_of(op)) for name, op in quantized.items()},
    )
    return problem, [q, k, v, *given.values(), *offsets, *masks.values(), *draws]


def as_positions(lowering: Lowering, tensor: LogicalTensor, is_turned: bool, shared: SharedHeads | None) -> Value:
    """An operand as (..., positions, depth); of keys and values each head once."""
    value = lowering.value(tensor.id) if shared is None else lowering.value(shared.source).squeezed(2)
    is_turned = is_turned != (shared is not None and shared.is_turned)
    order = list(range(len(value.shape)))
    return value.transposed([*order[:-2], order[-1], order[-2]]) if is_turned else value


def _own(lowering: Lowering, tensors: Sequence[LogicalTensor]) -> list[Value]:
    """Where the kernel writes these results."""
    places = [lowering.target(tensor.id, any_strides=True) for tensor in tensors]
    return [place if _is_foldable(place) else lowering.temporary(place.shape, place.dtype) for place in places]


def _find_place(lowering: Lowering, group: AnchorGroup) -> Epilogue:
    """The epilogue; a result without post-ops is written, or converted, to where it belongs."""
    if group.ops:
        return make_epilogue(lowering, group)
    place = lowering.target(group.result, any_strides=True)
    if place.dtype is not DataType.F32:
        return make_epilogue(lowering, group, place=place)
    order = tuple(range(len(place.shape)))
    return Epilogue(b"", place if _is_foldable(place) else lowering.temporary(place.shape), [], None, order)


def _is_foldable(value: Value) -> bool:
    """Whether one stride runs over all head axes."""
    axes = [(d, s) for d, s in zip(value.shape[BATCH_AXES:-2], value.strides[BATCH_AXES:-2], strict=True) if d != 1]
    return all(outer == dim * inner for (_, outer), (dim, inner) in pairwise(axes))


def _foldable(lowering: Lowering, value: Value) -> Value:
    """The value, or a dense copy, such that one stride runs over all head axes."""
    return value if _is_foldable(value) else lowering.dense(value, value.dtype)


def _fold(value: Value) -> tuple[int, int, int, int]:
    """Strides over (batch, heads, rows, columns)."""
    groups = [value.strides[:BATCH_AXES], value.strides[BATCH_AXES:-2]]
    dims = [value.shape[:BATCH_AXES], value.shape[BATCH_AXES:-2]]
    folded = [
        next((s for d, s in zip(reversed(size), reversed(strides), strict=True) if d != 1), 0)
        for size, strides in zip(dims, groups, strict=True)
    ]
    return folded[0], folded[1], value.strides[-2], value.strides[-1]
