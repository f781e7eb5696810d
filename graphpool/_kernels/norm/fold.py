"""A BatchNorm of known numbers as a scale and a shift, or folded into the weights in front of it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphpool.errors import InvalidShapeError, explain

from ..core.call import KernelCall, pack

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["fold_batch_norm"]

_BLOCK = 16
"""Channels of a task (``GP_FOLD_BLOCK``)."""


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

    Both are rounded once. Arguments of the kernel, all f32: gamma, beta, mean and variance of `channels` numbers each;
    weights and bias of what is in front of the BatchNorm, if they are asked for; the weights times the scale, or the
    scale itself; the shift, to which the bias times the scale is added.

    Parameters
    ----------
    channels : int
    epsilon : float
    weights : sequence of int, optional
        Shape of weights without gaps, which the scale goes into.
    axis : int, default=0
        Of the weights: along which their output channels lie.
    bias : bool, default=False
        There is a bias of shape (channels,).
    isa : str, optional
        Instruction set; the best one by default.

    Returns
    -------
    KernelCall
        Tasks are blocks of channels.

    Raises
    ------
    InvalidShapeError
        A negative size, or weights that do not have so many channels along the axis.

    Notes
    -----
    Threads: the KernelCall is immutable; tasks write disjoint parts of the results. Cost: one read and one write of the
    weights.
    """
    shape = (channels,) if weights is None else tuple(weights)
    if min(shape, default=0) < 0 or not 0 <= axis < len(shape) or shape[axis] != channels:
        raise InvalidShapeError(explain("weights", accepted=f"{channels} channels along axis {axis}", got=shape))
    values = {
        "channels": channels, "before": prod(shape[:axis]), "after": prod(shape[axis + 1 :]),
        "has_weights": weights is not None, "has_bias": bias, "epsilon": epsilon,
    }  # fmt: skip
    return pack("f32_batch_norm_fold", values, ntasks=-(-channels // _BLOCK), isa=isa)
