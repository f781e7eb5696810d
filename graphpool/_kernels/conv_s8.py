"""Convolution of 8-bit images with constant 8-bit weights: packed once, then used on any number of images.

    layout = conv_s8_layout(64, 64, (3, 3))                      # how many bytes
    pack_conv_s8(64, 64, (3, 3), strides)(w, packed)             # once
    s8_convolution(1, 64, 64, (56, 56), (3, 3), ..., requant=Requant(outer=...))(x, packed, scales, bias, dst)

Kernels: ``s8_conv_packed`` and ``pack_conv_s8``; ``src/conv_s8.c`` says how they work.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, UnsupportedError, explain

from .call import DTYPE_CODES, KernelCall
from .conv_blocks import CONV_BLOCKS_LAYOUT, ConvBlocks, reads_pixels_in_place, side_strides
from .conv_weights import ConvWeights
from .packed import row_block
from .records import Record
from .requant import DYNAMIC_LAYOUT, REQUANT_LAYOUT, Dynamic, Requant, unsigned_zero_point
from .window import Window, convolution_window, merged_stride

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["conv_s8_layout", "pack_conv_s8", "s8_convolution"]

_PIXELS = 256
"""Pixels of a task with a kernel of several taps: enough that the rows which two tasks both read matter little."""

_LEAST_WORK = 2**22
"""Multiply-adds of a task, about 20 microseconds, so that its copy of the source costs a few percent at most."""

_MAX_TERMS = 2**15
"""Terms up to which the sum of (a - zero) * b fits s32 whatever the operands."""

_LAYOUT = Record(
    [
        ("blocks", CONV_BLOCKS_LAYOUT),
        *[(name, "i8") for name in ("src_dtype", "zero")],
        ("requant", REQUANT_LAYOUT),
        ("dynamic", DYNAMIC_LAYOUT),
    ]
)


def conv_s8_layout(
    in_channels: int,
    out_channels: int,
    kernel: Sequence[int],
    *,
    groups: int = 1,
    dilations: Sequence[int] | None = None,
    isa: str | None = None,
) -> ConvWeights:
    """The layout of the weights of a convolution; parameters as in `graphpool._kernels.conv_packed`.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError, UnsupportedError
        A size out of range; channels that `groups` does not divide; an unknown instruction set.
    """
    return ConvWeights.make(in_channels, out_channels, kernel, groups=groups, dilations=dilations, dtype="s8", isa=isa)


def pack_conv_s8(
    in_channels: int,
    out_channels: int,
    kernel: Sequence[int],
    strides: Sequence[int],
    *,
    groups: int = 1,
    dilations: Sequence[int] | None = None,
    dtype: str = "s8",
    isa: str | None = None,
) -> KernelCall:
    """A kernel that brings the weights of a convolution into panels.

    Arguments of the kernel: weights, packed (`conv_s8_layout` says how many bytes).

    Parameters
    ----------
    in_channels, out_channels, kernel, groups, dilations, isa
        As in `conv_s8_layout`.
    strides : sequence of int
        (group, out channel in the group, in channel in the group, spatial...), any. Unit: elements.
    dtype : {"s8", "u8"}
        Of the weights; u8 becomes s8, less 128.

    Returns
    -------
    KernelCall
        One task for each panel; scratch for a run.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError, InvalidDataTypeError, UnsupportedError
        As in `conv_s8_layout`; strides that do not fit the kernel; another type.

    Notes
    -----
    Cost: one read and one write of the weights, about a nanosecond each.
    """
    layout = conv_s8_layout(in_channels, out_channels, kernel, groups=groups, dilations=dilations, isa=isa)
    if dtype not in ("u8", "s8"):
        raise InvalidDataTypeError(explain("type of weights", accepted="u8, s8", got=dtype), dtype=dtype)
    fields = layout.pack_fields(strides, dtype)
    return layout.pack_call("pack_conv_s8", fields, isa, scratch_nbytes=layout.words * 4)


def s8_convolution(
    batch: int,
    in_channels: int,
    out_channels: int,
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
    groups: int = 1,
    bias: bool = False,
    requant: Requant | None = None,
    residual_strides: Sequence[int] | None = None,
    epilogue: bytes = b"",
    dynamic: Dynamic | None = None,
    isa: str | None = None,
) -> KernelCall:
    """A kernel for ``dst = requant(convolution(src - zero_point, weights) * scales + bias)``, summed exactly in s32.

    Arguments of the kernel: src, packed weights, scales of shape (out_channels,) in f32, what is `dynamic`, then the
    bias and the operands of `requant` that are asked for, dst, then arguments 1, 2, ... of the epilogue (its argument 0
    is dst).

    Parameters
    ----------
    batch, in_channels, out_channels, src_spatial, kernel, strides, pads_begin, pads_end, dilations, groups
        As in `graphpool._kernels.conv.convolution`. What lies in the padding is the zero point.
    src_strides, dst_strides : sequence of int
        (n, c, spatial...). Those of src are any; channels of dst are contiguous and its pixels have one stride.
        Unit: elements.
    src_dtype : {"u8", "s8"}
    zero_point : int
        Of src, within its type.
    bias : bool, default=False
        There is a bias of shape (out_channels,), f32.
    requant : Requant, optional
        What is done behind the bias, and the type of dst; by default dst is f32.
    residual_strides : sequence of int, optional
        Of the residual of `requant`, as `dst_strides`.
    epilogue : bytes
        Instead of `requant`: a program from ``EltwiseBuilder.epilogue()`` over the iteration space (n, spatial..., c),
        that reads the results as its accumulator.
    dynamic : Dynamic, optional
        Numbers of src that the run decides, its zero point instead of `zero_point`; zero points of the weights.
    isa : str, optional
        Instruction set; the best one by default. It must be one with the layout of the packed weights.

    Returns
    -------
    KernelCall
        Tasks are rectangles of pixels by blocks of output channels of a group.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError, InvalidDataTypeError
        The arguments do not fit each other.
    UnsupportedError
        Strides that the kernel does not take; more than 32768 terms of a sum; an unknown instruction set.

    Notes
    -----
    Threads: the KernelCall is immutable; tasks write disjoint parts of dst. dst must not overlap src.
    Cost: 2 * taps * channels operations a result, and a copy of what a task reads unless the kernel is 1x1.
    """
    layout = conv_s8_layout(in_channels, out_channels, kernel, groups=groups, dilations=dilations, isa=isa)
    zero = unsigned_zero_point(src_dtype, zero_point)
    if batch < 0:
        raise InvalidShapeError(explain("batch", accepted=">= 0", got=batch))
    if math.prod(kernel) * layout.ic > _MAX_TERMS:
        raise UnsupportedError(explain("terms of an 8-bit sum", accepted=f"at most {_MAX_TERMS}", got=layout.words * 4))
    if requant is not None and epilogue:
        raise InvalidArgumentError(explain("requant", accepted="no epilogue beside it", got="both"))
    window = convolution_window(
        src_spatial, kernel, strides=strides, pads_begin=pads_begin, pads_end=pads_end, dilations=dilations,
        src_strides=src_strides, dst_strides=dst_strides,
    )  # fmt: skip
    dst = side_strides("dst_strides", window, dst_strides, len(src_spatial), out_channels)
    residual = dst
    if residual_strides is not None:
        residual = side_strides("residual_strides", window, residual_strides, len(src_spatial), out_channels)
    is_direct = src_dtype == "u8" and reads_pixels_in_place(window, layout)
    if is_direct:
        batch, window, dst, residual = _as_one_row(batch, window, dst, residual)
    rows, cols = _rectangle(window)
    col_block = layout.col_block(rows * cols, layout.worthwhile_parts(rows * cols, _LEAST_WORK))
    blocks = ConvBlocks(
        batch, window, layout, dst, residual, rows, cols, col_block, is_direct, has_tile=bool(epilogue)
    )  # fmt: skip
    quantised, first_arg = (dynamic or Dynamic()).record(3)
    record, dst_arg = (requant or Requant()).record(first_arg + bias)
    shared = {"element_nbytes": 1, "bias_arg": first_arg if bias else 0, "dst_arg": dst_arg}
    own = {"src_dtype": DTYPE_CODES[src_dtype], "zero": zero, "requant": record, "dynamic": quantised}
    return blocks.call("s8_conv_packed", _LAYOUT, shared, own, epilogue=epilogue, isa=isa)


def _as_one_row(
    batch: int, window: Window, dst: tuple[int, int], residual: tuple[int, int]
) -> tuple[int, Window, tuple[int, int], tuple[int, int]]:
    """The pixels of all images as one row of one, where one stride walks them on every side."""
    src = merged_stride([(batch, window.src_strides[0]), *zip(window.dst, window.src_strides[2:], strict=True)])
    sides = [merged_stride([(batch, n), (window.pixels, pixel)]) for n, pixel in (dst, residual)]
    if src is None or None in sides or set(window.strides) != {1}:
        return batch, window, dst, residual
    count = (batch * window.pixels,)
    row = Window.make(
        count, count, (1,), strides=None, dilations=None, pads_begin=None,
        src_strides=(0, 1, src), dst_strides=(0, 1, sides[0] or 0),
    )  # fmt: skip
    return 1, row, (0, sides[0] or 0), (0, sides[1] or 0)


def _rectangle(window: Window) -> tuple[int, int]:
    """Rows and columns of results of a task: even parts of an image, whole rows unless those are long."""
    height, width = max(window.dst[1], 1), max(window.dst[2], 1)
    if math.prod(window.kernel) == 1 and height == 1:
        return 1, row_block(width)
    if width > _PIXELS:
        return 1, -(-width // -(-width // _PIXELS))
    parts = max(-(-height * width // _PIXELS), 1)
    return -(-height // parts), width
