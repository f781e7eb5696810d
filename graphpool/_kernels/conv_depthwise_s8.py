"""Depthwise convolution of channels-last images of bytes, results back in bytes.

Kernel: ``s8_conv_depthwise``; its source says how it works.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError, explain

from .call import DTYPE_CODES, KernelCall, pack
from .matmul import aligned
from .records import Record
from .requant import DYNAMIC_LAYOUT, REQUANT_LAYOUT, Dynamic, Requant, unsigned_zero_point
from .window import WINDOW_LAYOUT, convolution_window, image_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["MOST_TAPS", "s8_depthwise_convolution"]

MOST_TAPS = 256
"""Products of 8-bit integers whose sum f32 holds exactly."""

_CHANNEL_BLOCK = 256
"""Channels of a task: rows of that many bytes and their weights stay in L1."""

_TAP_NBYTES = 16
"""sizeof(meeting_tap)"""

_LAYOUT = Record(
    [
        ("window", WINDOW_LAYOUT),
        *[(name, "i8") for name in ("channels", "channel_block", "residual_n")],
        ("residual", "i8", 3),
        *[(name, "i8") for name in ("src_dtype", "zero", "bias_arg", "dst_arg", "has_epilogue", "taps_offset")],
        ("requant", REQUANT_LAYOUT),
        ("dynamic", DYNAMIC_LAYOUT),
    ]
)


def s8_depthwise_convolution(
    batch: int,
    channels: int,
    src_spatial: Sequence[int],
    kernel: Sequence[int],
    *,
    src_strides: Sequence[int],
    dst_strides: Sequence[int],
    src_dtype: str = "u8",
    zero_point: int = 0,
    strides: Sequence[int] | None = None,
    pads_begin: Sequence[int] | None = None,
    pads_end: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    bias: bool = False,
    requant: Requant | None = None,
    residual_strides: Sequence[int] | None = None,
    epilogue: bytes = b"",
    dynamic: Dynamic | None = None,
    isa: str | None = None,
) -> KernelCall:
    """A kernel for ``dst = requant(convolution(src - zero_point, weights) * scales + bias)``, every channel by itself.

    Arguments of the kernel: src, weights as f32 that hold integers of at most 255, by (tap, channel), scales of shape
    (channels,) in f32, what is `dynamic`, then the bias and the operands of `requant` that are asked for, dst, then
    arguments 1, 2, ... of the epilogue (its argument 0 is dst).

    Parameters
    ----------
    batch, channels : int
    src_spatial, kernel, strides, pads_begin, pads_end, dilations
        As in `graphpool._kernels.conv.convolution`; at most 256 taps. What lies in the padding is the zero point.
    src_strides, dst_strides : sequence of int
        (n, c, spatial...); channels are contiguous. Unit: elements.
    src_dtype, zero_point, bias, requant, residual_strides, epilogue, dynamic, isa
        As in `graphpool._kernels.conv_s8.s8_convolution`, but weights have no zero points here.

    Returns
    -------
    KernelCall
        One task for each row of results and block of channels.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError, InvalidDataTypeError
        The arguments do not fit each other.
    UnsupportedError
        Channels that are not contiguous; more taps.

    Notes
    -----
    Threads: the KernelCall is immutable; tasks write disjoint parts of dst. dst must not overlap src.
    Cost: for each tap and vector of a result a load, a conversion and a multiply-add.
    """
    window = convolution_window(
        src_spatial, kernel, strides=strides, pads_begin=pads_begin, pads_end=pads_end, dilations=dilations,
        src_strides=src_strides, dst_strides=dst_strides,
    )  # fmt: skip
    zero = unsigned_zero_point(src_dtype, zero_point)
    if min(batch, channels) < 0:
        raise InvalidShapeError(explain("batch and channels", accepted=">= 0", got=(batch, channels)))
    if requant is not None and epilogue:
        raise InvalidArgumentError(explain("requant", accepted="no epilogue beside it", got="both"))
    sides = {
        "src_strides": src_strides, "dst_strides": dst_strides,
        "residual_strides": dst_strides if residual_strides is None else residual_strides,
    }  # fmt: skip
    residual = [image_strides(name, side, len(src_spatial), channels) for name, side in sides.items()][-1]
    taps = math.prod(kernel)
    if taps > MOST_TAPS:
        raise UnsupportedError(explain("taps of an exact sum", accepted=f"at most {MOST_TAPS}", got=taps))
    quantised, first_arg = (dynamic or Dynamic()).record(3)
    record, dst_arg = (requant or Requant()).record(first_arg + bias)
    block = min(max(channels, 1), _CHANNEL_BLOCK)
    taps_offset = aligned(window.dst[2] * block * 4) if epilogue else 0
    fields = {
        "window": window.record(), "channels": channels, "channel_block": block, "residual_n": residual[0],
        "residual": residual[1:], "src_dtype": DTYPE_CODES[src_dtype], "zero": zero,
        "bias_arg": first_arg if bias else 0, "dst_arg": dst_arg, "has_epilogue": bool(epilogue),
        "taps_offset": taps_offset, "requant": record, "dynamic": quantised,
    }  # fmt: skip
    lines = batch * window.dst[0] * window.dst[1] if window.dst[2] else 0
    return pack(
        "s8_conv_depthwise", _LAYOUT, fields, ntasks=lines * -(-channels // block),
        scratch_nbytes=taps_offset + taps * _TAP_NBYTES, tail=epilogue, isa=isa,
    )  # fmt: skip
