"""Depthwise convolution of channels-last images, with constant weights that lie by (tap, channel).

Kernel: ``f32_conv_depthwise_packed``. Each channel has a kernel of its own, and vectors run along channels.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from graphpool.errors import InvalidShapeError, UnsupportedError, explain

from .call import KernelCall, pack
from .matmul import aligned
from .move import copy
from .packed import tail_fields
from .records import Record
from .window import WINDOW_LAYOUT, convolution_window

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["depthwise_convolution", "pack_depthwise_weights", "unpack_depthwise_weights"]

_CHANNEL_BLOCK = 512
"""Channels of a task: rows of results are tasks enough, but those of few pixels and many channels divide further."""

_RUN_NBYTES = 32

_LAYOUT = Record(
    [
        ("window", WINDOW_LAYOUT),
        *[(name, "i8") for name in ("channels", "channel_block", "residual_n")],
        ("residual", "i8", 3),
        *[(name, "i8") for name in ("bias_arg", "residual_arg", "dst_arg", "tile_in_scratch", "has_epilogue")],
        ("runs_offset", "i8"),
        *[(name, "f4") for name in ("lo", "hi")],
    ]
)


def pack_depthwise_weights(
    channels: int, kernel: Sequence[int], strides: Sequence[int], *, isa: str | None = None
) -> KernelCall:
    """A kernel that brings the weights of a depthwise convolution into the order (tap, channel); arguments: src, dst.

    Parameters
    ----------
    channels : int
    kernel : sequence of int
        One to three axes.
    strides : sequence of int
        (channel, spatial...), any. Unit: elements.
    isa : str, optional
        Instruction set; the best one by default.

    Raises
    ------
    InvalidShapeError
        The strides do not fit the kernel.
    """
    return copy((channels, *kernel), strides, _packed_strides(channels, kernel, strides), 4, isa=isa)


def unpack_depthwise_weights(
    channels: int, kernel: Sequence[int], strides: Sequence[int], *, isa: str | None = None
) -> KernelCall:
    """The inverse of `pack_depthwise_weights`, bit for bit, with the same parameters."""
    return copy((channels, *kernel), _packed_strides(channels, kernel, strides), strides, 4, isa=isa)


def _packed_strides(channels: int, kernel: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides by (tap, channel) for the axes that `strides` are of."""
    if len(strides) != 1 + len(kernel):
        raise InvalidShapeError(explain("strides of weights", accepted="(channel, spatial...)", got=tuple(strides)))
    return 1, *(channels * math.prod(kernel[axis + 1 :]) for axis in range(len(kernel)))


def depthwise_convolution(
    batch: int,
    channels: int,
    src_spatial: Sequence[int],
    kernel: Sequence[int],
    *,
    src_strides: Sequence[int],
    dst_strides: Sequence[int],
    strides: Sequence[int] | None = None,
    pads_begin: Sequence[int] | None = None,
    pads_end: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    bias: bool = False,
    residual_strides: Sequence[int] | None = None,
    clamp: tuple[float, float] | None = None,
    epilogue: bytes = b"",
    dst_needs_scratch: bool = True,
    isa: str | None = None,
) -> KernelCall:
    """A kernel for ``dst = clamp(convolution(src, weights) + bias + residual)``, every channel by itself.

    Arguments of the kernel: src, weights as `pack_depthwise_weights` leaves them, bias and residual if they are asked
    for, dst, then arguments 1, 2, ... of the epilogue (its argument 0 is dst).

    Parameters
    ----------
    batch, channels : int
    src_spatial, kernel, strides, pads_begin, pads_end, dilations
        As in `graphpool._kernels.conv.convolution`.
    src_strides, dst_strides : sequence of int
        (n, c, spatial...); channels are contiguous. Unit: elements.
    bias, residual_strides, clamp, epilogue, dst_needs_scratch
        As in `graphpool._kernels.conv_packed.packed_convolution`.
    isa : str, optional
        Instruction set; the best one by default.

    Returns
    -------
    KernelCall
        One task for each row of results and block of channels.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError
        The arguments do not fit each other.
    UnsupportedError
        Channels that are not contiguous.

    Notes
    -----
    Threads: the KernelCall is immutable; tasks write disjoint parts of dst. dst must not overlap src.
    Cost: a multiply-add of a vector for each tap; with strides of 1 or 2 and no dilation about half as many loads.
    """
    ndim = len(src_spatial)
    window = convolution_window(
        src_spatial, kernel, strides=strides, pads_begin=pads_begin, pads_end=pads_end, dilations=dilations,
        src_strides=src_strides, dst_strides=dst_strides,
    )  # fmt: skip
    tail = tail_fields(
        bias=bias, residual=residual_strides is not None, clamp=clamp, epilogue=epilogue, in_scratch=dst_needs_scratch
    )
    if min(batch, channels) < 0:
        raise InvalidShapeError(explain("batch and channels", accepted=">= 0", got=(batch, channels)))
    residual = (0,) * (ndim + 2) if residual_strides is None else tuple(residual_strides)
    if len(residual) != ndim + 2:
        raise InvalidShapeError(explain("residual_strides", accepted=f"{ndim + 2} strides", got=residual))
    sides = (src_strides, dst_strides) if residual_strides is None else (src_strides, dst_strides, residual)
    if channels > 1 and any(side[1] != 1 for side in sides):
        raise UnsupportedError(explain("strides", accepted="contiguous channels", got=sides))
    block = min(max(channels, 1), _CHANNEL_BLOCK)
    runs_offset = aligned(window.dst[2] * block * 4) if tail["tile_in_scratch"] else 0
    values = tail | {
        "window": window.record(), "channels": channels, "channel_block": block,
        "residual_n": residual[0], "residual": [*[0] * (3 - ndim), *residual[2:]], "runs_offset": runs_offset,
    }  # fmt: skip
    lines = batch * window.dst[0] * window.dst[1] if window.dst[2] else 0
    return pack(
        "f32_conv_depthwise_packed", _LAYOUT, values, ntasks=lines * -(-channels // block),
        scratch_nbytes=runs_offset + math.prod(kernel) * _RUN_NBYTES, tail=epilogue, isa=isa,
    )  # fmt: skip
