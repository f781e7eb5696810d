"""Scaled dot-product attention and its gradient (``gemm/attention.c``, ``gemm/attention_backward.c``)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass, field
from graphpool._sizes import largest, least
from graphpool.errors import InvalidDataTypeError, InvalidShapeError, explain

from ..core.call import DTYPE_CODES, KernelCall, pack
from ..core.spaces import check_strides
from .problem import choose
from .requant import number_args

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["ROUNDED_DTYPES", "AttentionProblem", "Rounding", "attention", "attention_backward"]

_LANES = 64
_TILE = 64
_RESULTS = 4
_STRIP = 512
"""Keys of which a task holds scores until they are rounded: 128 KiB of them."""

_FEW = 8
"""Up to this many queries go by rows: of more, lanes of vectors pay."""


@dataclass(frozen=True)
class AttentionProblem:
    """softmax(scale * q k^T, capped and masked), then Dropout, times v: the geometry, checked, and what scores become.

    Arguments: q of shape (batch, heads, queries, depth); k (batch, kv_heads, keys, depth), of which neighbouring heads
    share one; v (batch, kv_heads, keys, value_depth); [scale]; [soft_cap]; [fill]; [ahead]; [behind]; [factor];
    [additive mask]; [boolean mask]; [seed; offset; probability]. Strides are dense by default, those of a factor and
    of masks over (batch, heads, queries, keys); without them there is none. Unit: elements.

    Attributes
    ----------
    scale : float, optional
        Scores are multiplied by it and by the factor, or divided if `is_divisor`. None, here and below: a number among
        the arguments.
    soft_cap : float, optional
        They become soft_cap * tanh(score / soft_cap) unless it is 0. The additive mask is added then.
    fill : float, optional
        They become `fill` where the boolean mask is false, or true if `mask_hides`, and where the causal mask hides a
        key; with `fills_first` this happens in front of the scale.
    causal_offset : int, optional
        Query i sees the keys up to i + causal_offset, plus the s32 number `ahead`, minus the s32 number `behind`, where
        these are among the arguments; None for no causal mask.
    dropout : bool
        Dropout as the op computes it, over the matrix of all scores: seed and offset are s64, the probability f32.
    dtypes : mapping of str to str
        Types of q, k, v, factor, additive, scale, cap, fill that are no f32.
    quantized : mapping of str to (float, float)
        Scale and zero point of those of q, k, v whose elements x stand for (x - zero point) * scale.

    Raises
    ------
    InvalidShapeError
        Shapes and strides that do not fit together.
    """

    q_shape: Sequence[int]
    k_shape: Sequence[int]
    value_depth: int
    scale: float | None = 1.0
    is_divisor: bool = False
    soft_cap: float | None = 0.0
    fill: float | None = -np.inf
    fills_first: bool = False
    mask_hides: bool = False
    causal_offset: int | None = None
    ahead: bool = False
    behind: bool = False
    factor_strides: Sequence[int] | None = None
    additive_strides: Sequence[int] | None = None
    boolean_strides: Sequence[int] | None = None
    dropout: bool = False
    q_strides: Sequence[int] | None = None
    k_strides: Sequence[int] | None = None
    v_strides: Sequence[int] | None = None
    dtypes: Mapping[str, str] = field(default_factory=dict)
    quantized: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        q, k = self.q_shape, self.k_shape
        if len(q) != 4 or len(k) != 4 or q[0] != k[0] or q[3] != k[3]:
            accepted = "4 axes, of equal batch and depth"
            raise InvalidShapeError(explain("shapes of q and k", accepted=accepted, got=(q, k)))
        if any(n < 0 for n in (self.value_depth, *q, *k)) or q[1] % max(k[1], 1) or (q[1] and not k[1]):
            accepted = "sizes of at least 0, heads a multiple of kv_heads"
            raise InvalidShapeError(explain("attention", accepted=accepted, got=(q, k, self.value_depth)))

    @property
    def group(self) -> int:
        """Neighbouring heads that share keys and values."""
        return self.q_shape[1] // max(self.k_shape[1], 1)

    @property
    def result_shape(self) -> tuple[int, ...]:
        """(batch, heads, queries, value_depth)."""
        return (*self.q_shape[:3], self.value_depth)

    @property
    def scores_shape(self) -> tuple[int, ...]:
        """(batch, heads, queries, keys)."""
        return (*self.q_shape[:3], self.k_shape[2])

    def is_f32(self, *names: str) -> bool:
        """Whether all of these are read in place."""
        return all(self.dtypes.get(name, "f32") == "f32" for name in names)

    def fields(self) -> tuple[dict[str, Any], int]:
        """The struct gp_attention, and the number of the argument behind its own."""
        present = {
            "scale": self.scale is None, "cap": self.soft_cap is None, "fill": self.fill is None, "ahead": self.ahead,
            "behind": self.behind, "factor": self.factor_strides is not None,
            "additive": self.additive_strides is not None, "boolean": self.boolean_strides is not None,
            "dropout": self.dropout,
        }  # fmt: skip
        numbers, end = number_args(3, present, absent=-1)
        batch, heads, queries, depth = self.q_shape
        v_shape, none = [*self.k_shape[:3], self.value_depth], (0, 0, 0, 0)
        sides = {
            "q": (0, self.q_shape, self.q_strides), "k": (1, self.k_shape, self.k_strides),
            "v": (2, v_shape, self.v_strides),
            "factor": (numbers["factor"], self.scores_shape, self.factor_strides or none),
            "additive": (numbers["additive"], self.scores_shape, self.additive_strides or none),
            "boolean": (numbers["boolean"], self.scores_shape, self.boolean_strides or none),
        }  # fmt: skip
        scalars = {"scale": self.scale, "cap": self.soft_cap, "fill": self.fill}
        values = {
            "batch": batch, "heads": heads, "heads_per_kv": self.group, "queries": queries, "keys": self.k_shape[2],
            "depth": depth, "value_depth": self.value_depth, "is_divisor": self.is_divisor,
            "has_cap": self.soft_cap is None or self.soft_cap != 0, "is_causal": self.causal_offset is not None,
            "fills_first": self.fills_first, "mask_hides": self.mask_hides, "causal_offset": self.causal_offset or 0,
            "ahead_arg": numbers["ahead"], "behind_arg": numbers["behind"], "dropout_arg": numbers["dropout"],
            **{name: self._side(name, *side) for name, side in sides.items()},
            **{name: _scalar(numbers[name], number, self.dtypes.get(name, "f32")) for name, number in scalars.items()},
        }  # fmt: skip
        return values, end + 2 * self.dropout

    def _side(self, name: str, arg: int, shape: Sequence[int], strides: Sequence[int] | None) -> dict[str, Any]:
        scale, zero_point = self.quantized.get(name, (0.0, 0.0))
        side = _side(name, arg, shape, strides, self.dtypes.get(name, "f32"))
        return side | {"scale": scale, "zero_point": zero_point}


@dataclass(frozen=True)
class Rounding:
    """How probabilities are rounded: x / scale + zero_point as a number of `dtype`, of one byte, and back.

    `rounds_first` rounds in front of the zero point. The way back has `scale_back` in place of `scale`.
    """

    dtype: str
    scale: float
    scale_back: float
    zero_point: int = 0
    rounds_first: bool = False

    def __post_init__(self) -> None:
        if self.dtype not in ROUNDED_DTYPES:
            raise InvalidDataTypeError(explain("rounding", accepted=sorted(ROUNDED_DTYPES), got=self.dtype))


ROUNDED_DTYPES = frozenset({"u8", "s8", "f8_e4m3", "f8_e5m2"})
"""Types that probabilities may be rounded to."""


def attention(
    problem: AttentionProblem,
    *,
    rounding: Rounding | None = None,
    inf_as_zero: bool = False,
    stats_strides: Sequence[int] | None = None,
    kept_strides: Sequence[int] | None = None,
    dst_strides: Sequence[int] | None = None,
    epilogue: bytes = b"",
    isa: str | None = None,
) -> KernelCall:
    """The result of attention, without the matrix of scores.

    Arguments: those of the problem; [stats of shape (batch, heads, queries, 1), f32]; [kept (batch, heads, queries,
    keys), u8]; dst (batch, heads, queries, value_depth), f32, written by tasks of up to 64 queries of one head, or
    those of the epilogue, for which `dst_strides` are those of its linear index. `stats_strides` ask for the logarithm
    of the sum of the exponentials of each query's scores, `kept_strides` for the mask of Dropout.

    A query whose scores are all -inf gives NaN, or zeros, and -inf among the stats, if `inf_as_zero`. Keys that a
    causal mask hides from a whole block by -inf are not read, so NaN among them stays unseen. Scratch does not depend
    on the numbers of queries and keys. With a `rounding`, which does not go with Dropout, it has the scores of 512 keys
    at most, and those of others are computed twice.
    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018.
    """
    scores, end = problem.fields()
    present = {"stats": stats_strides is not None, "kept": kept_strides is not None}
    own, dst_arg = number_args(end, present, absent=-1)
    none = (0, 0, 0, 0)
    sides = {
        "dst": _side("dst", dst_arg, problem.result_shape, dst_strides, "f32"),
        "stats": _side("stats", own["stats"], (*problem.q_shape[:3], 1), stats_strides or none, "f32"),
        "kept": _side("kept", own["kept"], problem.scores_shape, kept_strides or none, "u8"),
    }
    if problem.q_shape[2] == 1 and problem.group > 1 and problem.causal_offset is None:
        _take_heads_as_queries(
            scores, [*sides.values(), *(scores[name] for name in ("q", "factor", "additive", "boolean"))]
        )
    queries, depth, value_depth = (scores[name] for name in ("queries", "depth", "value_depth"))
    has_rows = scores["k"]["stride"][3] == 1 and scores["v"]["stride"][3] == 1
    by_row = choose(queries, _FEW, 1, 0) if has_rows else 0
    block, lanes = least(_LANES, largest(queries, 1)), _LANES - by_row * (_LANES - _FEW)
    strip = _TILE if rounding is None else _TILE * least(_STRIP // _TILE, largest(-(-scores["keys"] // _TILE), 1))
    values = {
        "scores": scores, "by_row": by_row, "block": block, "inf_as_zero": inf_as_zero, "has_program": bool(epilogue),
        "strip": strip, **sides, **_rounding_fields(rounding),
    }  # fmt: skip
    floats = lanes * (depth + strip) + (by_row * _FEW + (1 - by_row) * (lanes + _RESULTS)) * value_depth
    floats += _TILE * depth * (not problem.is_f32("q", "k")) + _TILE * value_depth * (not problem.is_f32("v"))
    floats += _TILE * lanes * (not problem.is_f32("factor", "additive"))
    ntasks = scores["batch"] * scores["heads"] * -(-queries // block) if value_depth else 0
    return pack("f32_attention", values, ntasks=ntasks, scratch_nbytes=4 * floats, tail=epilogue, isa=isa)


def _rounding_fields(rounding: Rounding | None) -> dict[str, Any]:
    """The fields of the kernel's struct that say how probabilities are rounded."""
    found = rounding or Rounding("u8", 1.0, 1.0)
    return {
        "rounds": rounding is not None, "rounded_dtype": DTYPE_CODES[found.dtype], "rounds_first": found.rounds_first,
        "rounded_scale": found.scale, "zero_point": found.zero_point, "scale_back": found.scale_back,
    }  # fmt: skip


def _take_heads_as_queries(scores: dict[str, Any], sides: Sequence[dict[str, Any]]) -> None:
    """Make of one query heads that share keys the queries of one head, in place: keys are read once."""
    group = scores["heads_per_kv"]
    scores |= {"heads": scores["heads"] // group, "queries": group, "heads_per_kv": 1}
    for side in sides:
        batch, head, _, element = side["stride"]
        side["stride"] = batch, head * group, head, element


def attention_backward(
    problem: AttentionProblem,
    *,
    d_scale: float | None = 1.0,
    is_d_divisor: bool = False,
    group: int = 1,
    has_d_scores: bool = False,
    strides: Mapping[str, Sequence[int]] | None = None,
    dtypes: Mapping[str, str] | None = None,
    isa: str | None = None,
) -> KernelCall:
    """The gradients of attention, without a matrix of scores: tiles of it are computed again from the statistics.

    With P = exp(scores - stats) and dS = P * (Dropout(dO v^T) - sum of O * dO over the depth): d_q = dS k and d_k =
    dS^T q, both times `d_scale` or divided by it if `is_d_divisor`, d_v = Dropout(P)^T dO. The d_k and d_v of `group`
    neighbouring heads, which must divide those that share keys, are added up.

    Arguments: those of the problem; stats (batch, heads, queries, 1), f32; result O (batch, heads, queries,
    value_depth); d_result dO, alike; [d_scale, where it is None]; d_q; d_k (batch, heads / group, keys, depth); d_v
    (batch, heads / group, keys, value_depth); [d_scores dS (batch, heads, queries, keys)]. `strides` and `dtypes` are
    by these names, dense and f32 by default. Tasks are blocks of 64 queries, then blocks of 64 keys; no two write one
    element, and each sums in one order. Source: Dao et al., "FlashAttention", 2022; Dao, "FlashAttention-2", 2023.

    Raises
    ------
    InvalidShapeError
        A group that does not divide the heads that share keys; strides that do not fit.
    """
    if group < 1 or problem.group % group:
        raise InvalidShapeError(explain("group", accepted=f"a divisor of {problem.group}", got=group))
    strides, dtypes = strides or {}, dtypes or {}
    batch, heads, queries, depth = problem.q_shape
    keys, value_depth = problem.k_shape[2], problem.value_depth
    owned = (batch, heads // group, keys)
    scores, end = problem.fields()
    shapes = {
        "stats": (*problem.q_shape[:3], 1), "result": problem.result_shape, "d_result": problem.result_shape,
        "d_q": problem.q_shape, "d_k": (*owned, depth), "d_v": (*owned, value_depth), "d_scores": problem.scores_shape,
    }  # fmt: skip
    present = dict.fromkeys(shapes, True) | {"d_scores": has_d_scores}
    order = ("stats", "result", "d_result", "d_scale", "d_q", "d_k", "d_v", "d_scores")
    numbers, _ = number_args(end, {name: present.get(name, d_scale is None) for name in order}, absent=-1)
    values = {
        "scores": scores, "is_d_divisor": is_d_divisor, "group": group,
        "d_scale": _scalar(numbers["d_scale"], d_scale, dtypes.get("d_scale", "f32")),
        **{name: _side(name, numbers[name], shape, strides.get(name), dtypes.get(name, "f32"))
           for name, shape in shapes.items()},
    }  # fmt: skip
    ntasks = batch * heads * -(-queries // _LANES) + batch * (heads // group) * -(-keys // _LANES)
    widest = max(depth, value_depth)
    floats = 6 * _LANES * widest + 3 * _TILE * _LANES + widest
    return pack("f32_attention_backward", values, ntasks=ntasks, scratch_nbytes=4 * floats, isa=isa)


def _side(name: str, arg: int, shape: Sequence[int], strides: Sequence[int] | None, dtype: str) -> dict[str, Any]:
    return {"arg": arg, "dtype": DTYPE_CODES[dtype], "stride": check_strides(name, shape, strides)}


def _scalar(arg: int, value: float | None, dtype: str) -> dict[str, Any]:
    return {"arg": arg, "dtype": DTYPE_CODES[dtype], "value": value or 0}
