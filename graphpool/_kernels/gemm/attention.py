"""Scaled dot-product attention (``gemm/attention.c``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._sizes import largest, least
from graphpool.errors import InvalidArgumentError, InvalidShapeError, explain

from ..core.call import KernelCall, pack
from ..core.spaces import check_strides
from .requant import number_args

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["attention"]

_LANES = 64
_TILE = 64
_MAX_ROWS = 2
"""Up to this many queries go one by one; from three on, lanes of vectors pay though most stay empty."""


def attention(
    q_shape: Sequence[int],
    k_shape: Sequence[int],
    value_depth: int,
    *,
    scale: float | None = 1.0,
    is_divisor: bool = False,
    soft_cap: float | None = 0.0,
    causal: str = "none",
    additive_strides: Sequence[int] | None = None,
    boolean_strides: Sequence[int] | None = None,
    boolean_fill: float = -np.inf,
    inf_as_zero: bool = False,
    q_strides: Sequence[int] | None = None,
    k_strides: Sequence[int] | None = None,
    v_strides: Sequence[int] | None = None,
    dst_strides: Sequence[int] | None = None,
    epilogue: bytes = b"",
    isa: str | None = None,
) -> KernelCall:
    """softmax(scale * q k^T, capped and masked) v of f32, without the matrix of scores.

    Arguments: q of shape (batch, heads, queries, depth); k (batch, kv_heads, keys, depth), of which neighbouring heads
    share one; v (batch, kv_heads, keys, value_depth); [scale]; [soft_cap]; [additive mask]; [boolean mask]; dst (batch,
    heads, queries, value_depth), written by tasks of up to 64 queries of one head, or those of the epilogue, for which
    `dst_strides` are those of its linear index. Strides are dense by default, those of a mask over (batch, heads,
    queries, keys); without them there is no mask. Unit: elements.

    Scores are multiplied by `scale`, or divided if `is_divisor`; become soft_cap * tanh(score / soft_cap) unless it is
    0 (None for either: an f32 scalar among the arguments); the f32 mask is added; they become `boolean_fill` where the
    other mask is false. `causal` is "none", "top_left" (query i sees the keys up to i) or "bottom_right" (up to i +
    keys - queries). A query whose scores are all -inf gives NaN, or zeros if `inf_as_zero`.

    Keys that a causal mask hides from a whole block are not read, so NaN among them stays unseen. Scratch does not
    depend on the number of keys. Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.

    Raises
    ------
    InvalidArgumentError, InvalidShapeError
        Unknown kind of causal mask; shapes and strides that do not fit together.
    """
    if causal not in ("none", "top_left", "bottom_right"):
        raise InvalidArgumentError(explain("causal mask", accepted="none, top_left, bottom_right", got=causal))
    _check_shapes(q_shape, k_shape, value_depth)
    batch, heads, queries, depth = q_shape
    kv_heads, keys = k_shape[1], k_shape[2]
    offset = keys - queries if causal == "bottom_right" else 0
    values: dict[str, Any] = {
        "q": check_strides("q", q_shape, q_strides),
        "k": check_strides("k", k_shape, k_strides),
        "v": check_strides("v", [*k_shape[:3], value_depth], v_strides),
        "dst": check_strides("dst", [*q_shape[:3], value_depth], dst_strides),
        "additive": check_strides("additive mask", [*q_shape[:3], keys], additive_strides or (0, 0, 0, 0)),
        "boolean": check_strides("boolean mask", [*q_shape[:3], keys], boolean_strides or (0, 0, 0, 0)),
    }
    group = heads // max(kv_heads, 1)
    is_causal = causal != "none"
    if queries == 1 and group > 1:
        heads, queries, group = _swap_heads(values, heads, group)
        keys, is_causal = max(0, min(keys, offset + 1)) if is_causal else keys, False
    by_row = queries <= _MAX_ROWS and values["k"][3] == 1 and values["v"][3] == 1
    block = least(_LANES, largest(queries, 1))
    present = {
        "scale_arg": scale is None, "cap_arg": soft_cap is None, "additive_arg": additive_strides is not None,
        "boolean_arg": boolean_strides is not None,
    }  # fmt: skip
    numbers, dst_arg = number_args(3, present, absent=-1)
    values |= {
        "batch": batch, "heads": heads, "heads_per_kv": group, "queries": queries, "keys": keys, "depth": depth,
        "value_depth": value_depth, "by_row": by_row, "block": block, "is_causal": is_causal, "causal_offset": offset,
        "is_divisor": is_divisor, "has_cap": soft_cap is None or soft_cap != 0, "inf_as_zero": inf_as_zero,
        "has_program": bool(epilogue), "scale": scale or 0, "cap": soft_cap or 0, "fill": boolean_fill,
        **numbers, "dst_arg": dst_arg,
    }  # fmt: skip
    ntasks = batch * heads * -(-queries // block) if value_depth else 0
    floats = depth + value_depth if by_row else _LANES * (depth + _TILE + value_depth) + value_depth
    return pack("f32_attention", values, ntasks=ntasks, scratch_nbytes=4 * floats, tail=epilogue, isa=isa)


def _check_shapes(q_shape: Sequence[int], k_shape: Sequence[int], value_depth: int) -> None:
    if len(q_shape) != 4 or len(k_shape) != 4 or q_shape[0] != k_shape[0] or q_shape[3] != k_shape[3]:
        raise InvalidShapeError(
            explain("shapes of q and k", accepted="4 axes, of equal batch and depth", got=(q_shape, k_shape))
        )
    if (
        any(size < 0 for size in (value_depth, *q_shape, *k_shape))
        or q_shape[1] % max(k_shape[1], 1)
        or (q_shape[1] and not k_shape[1])
    ):
        accepted = "sizes of at least 0, heads a multiple of kv_heads"
        raise InvalidShapeError(explain("attention", accepted=accepted, got=(q_shape, k_shape, value_depth)))


def _swap_heads(values: dict[str, Any], heads: int, group: int) -> tuple[int, int, int]:
    """Heads, queries and heads_per_kv that make heads which share keys the queries of one: keys are read once."""
    for name in ("q", "dst", "additive", "boolean"):
        batch, head, _, element = values[name]
        values[name] = (batch, head * group, head, element)
    return heads // group, group, 1
