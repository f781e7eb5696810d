"""Scaled dot-product attention (``gemm/attention.c``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.errors import InvalidArgumentError, InvalidShapeError, explain

from ..core.call import KernelCall, pack
from ..core.spaces import check_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["attention"]

_LANES = 64
_TILE = 64
_MAX_ROWS = 2
"""Up to this many queries go one by one; from three on, lanes of vectors pay though most stay empty."""

_ARGUMENTS = ("scale_arg", "cap_arg", "additive_arg", "boolean_arg", "dst_arg")


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

    Parameters
    ----------
    q_shape : sequence of int
        (batch, heads, queries, depth).
    k_shape : sequence of int
        (batch, kv_heads, keys, depth); kv_heads divides heads, and neighbouring heads share one.
    value_depth : int
        v has the shape (batch, kv_heads, keys, value_depth), dst (batch, heads, queries, value_depth).
    scale : float or None, default=1.0
        Factor of the scores; None: an f32 scalar among the arguments.
    is_divisor : bool, default=False
        Divide by `scale` instead.
    soft_cap : float or None, default=0.0
        Scores become soft_cap * tanh(score / soft_cap) after scaling; 0 leaves them, None: an f32 scalar argument.
    causal : {"none", "top_left", "bottom_right"}
        Query i sees the keys up to i, or up to i + keys - queries.
    additive_strides, boolean_strides : sequence of int, optional
        Strides of a mask over (batch, heads, queries, keys), 0 where it is broadcast; None: there is none. The f32 mask
        is added to the capped scores; then scores become `boolean_fill` where the boolean one is false.
    boolean_fill : float, default=-inf
    inf_as_zero : bool, default=False
        A query whose scores are all -inf gives zeros instead of NaN.
    q_strides, k_strides, v_strides, dst_strides : sequence of int, optional
        Dense by default. Unit: elements. With an epilogue, dst_strides are those of its linear index.
    epilogue : bytes, optional
        Block of an elementwise program, run on the results instead of a plain write.
    isa : str, optional
        Instruction set; the best one by default.

    Returns
    -------
    KernelCall
        Arguments: q, k, v, [scale], [soft_cap], [additive mask], [boolean mask], dst, [the epilogue's]. Tasks: up to 64
        queries of one head.

    Raises
    ------
    InvalidArgumentError
        Unknown kind of causal mask.
    InvalidShapeError
        Shapes and strides do not fit together.

    Notes
    -----
    Keys that a causal mask hides from a whole block are not read, so NaN among them stays unseen. Scratch: two blocks
    of 64 queries and a tile of 64 x 64 scores, whatever the number of keys. Cost: 2 * queries * keys * (depth +
    value_depth) operations for each head.
    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
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
    block = min(_LANES, max(queries, 1))
    values |= {
        "batch": batch, "heads": heads, "heads_per_kv": group, "queries": queries, "keys": keys, "depth": depth,
        "value_depth": value_depth, "by_row": by_row, "block": block, "is_causal": is_causal, "causal_offset": offset,
        "is_divisor": is_divisor, "has_cap": soft_cap is None or soft_cap != 0, "inf_as_zero": inf_as_zero,
        "has_program": bool(epilogue), "scale": scale or 0, "cap": soft_cap or 0, "fill": boolean_fill,
        **_number(scale is None, soft_cap is None, additive_strides is not None, boolean_strides is not None),
    }  # fmt: skip
    ntasks = batch * heads * -(-queries // block) if value_depth else 0
    floats = depth + value_depth if by_row else _LANES * (depth + _TILE + value_depth) + value_depth
    return pack("f32_attention", values, ntasks=ntasks, scratch_nbytes=4 * floats, tail=epilogue, isa=isa)


def _check_shapes(q_shape: Sequence[int], k_shape: Sequence[int], value_depth: int) -> None:
    if len(q_shape) != 4 or len(k_shape) != 4 or q_shape[0] != k_shape[0] or q_shape[3] != k_shape[3]:
        raise InvalidShapeError(
            explain("shapes of q and k", accepted="4 axes, of equal batch and depth", got=(q_shape, k_shape))
        )
    if min(value_depth, *q_shape, *k_shape) < 0 or q_shape[1] % max(k_shape[1], 1) or (q_shape[1] and not k_shape[1]):
        accepted = "sizes of at least 0, heads a multiple of kv_heads"
        raise InvalidShapeError(explain("attention", accepted=accepted, got=(q_shape, k_shape, value_depth)))


def _swap_heads(values: dict[str, Any], heads: int, group: int) -> tuple[int, int, int]:
    """Make the heads that share keys the queries of one head, so that these keys are read once.

    Returns
    -------
    heads, queries, heads_per_kv : int
    """
    for name in ("q", "dst", "additive", "boolean"):
        batch, head, _, element = values[name]
        values[name] = (batch, head * group, head, element)
    return heads // group, group, 1


def _number(*present: bool) -> dict[str, int]:
    """Argument numbers of the optional arguments, behind q, k, v and in this order, and of dst."""
    numbers, last = {}, 2
    for name, exists in zip(_ARGUMENTS, present, strict=False):
        last += exists
        numbers[name] = last if exists else -1
    return {**numbers, "dst_arg": last + 1}
