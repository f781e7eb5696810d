"""A BatchNorm of known numbers as a scale and a shift, or folded into the weights in front of it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphpool.errors import InvalidShapeError, explain

from ..core.call import KernelCall, pack
from ..core.records import number

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["fold_batch_norm"]

_BLOCK = number("GP_FOLD_BLOCK")


def fold_batch_norm(
    channels: int,
    epsilon: float,
    *,
    weights: Sequence[int] | None = None,
    axis: int = 0,
    bias: bool = False,
    isa: str | None = None,
) -> KernelCall:
    """A kernel for ``scale = gamma / sqrt(variance + epsilon)`` and ``shift = beta - mean * scale``, in f64.

    Both are rounded once. Arguments: gamma, beta, mean, variance, [weights], [bias], scale, shift. `weights` is the
    shape of weights without gaps whose output channels lie along `axis`: the scale goes into them, and scaled weights
    are written in its place. The bias times the scale is added to the shift. Tasks: blocks of channels.
    """
    shape = (channels,) if weights is None else tuple(weights)
    if min(shape, default=0) < 0 or not 0 <= axis < len(shape) or shape[axis] != channels:
        raise InvalidShapeError(explain("weights", accepted=f"{channels} channels along axis {axis}", got=shape))
    values = {
        "channels": channels, "before": prod(shape[:axis]), "after": prod(shape[axis + 1 :]),
        "has_weights": weights is not None, "has_bias": bias, "epsilon": epsilon,
    }  # fmt: skip
    return pack("f32_batch_norm_fold", values, ntasks=-(-channels // _BLOCK), isa=isa)
