"""Convolution of 8-bit images with constant 8-bit weights: packed once, then used on any number of images.

    layout = conv_s8_layout(64, 64, (3, 3))                      # how many bytes
    pack_conv_s8(64, 64, (3, 3), strides)(w, packed)             # once
    s8_convolution(1, 64, 64, (56, 56), (3, 3), ..., requant=Requant(outer=...))(x, packed, scales, bias, dst)

Kernels: ``s8_conv_packed`` and ``pack_conv_s8``; ``src/conv_s8.c`` says how they work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, UnsupportedError, explain

from .call import DTYPE_CODES, KernelCall, pack
from .matmul import aligned
from .packed import lanes_of, row_block, streams
from .records import Record
from .requant import DYNAMIC_LAYOUT, REQUANT_LAYOUT, Dynamic, Requant
from .window import WINDOW_LAYOUT, Window, convolution_window, merged_stride

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ConvS8Layout", "conv_s8_layout", "pack_conv_s8", "s8_convolution"]

_PIXELS = 256
"""Pixels of a task with a kernel of several taps: enough that the rows which two tasks both read matter little."""

_LEAST_WORK = 2**22
"""Multiply-adds of a task, about 20 microseconds, so that its copy of the source costs a few percent at most."""

_MAX_TERMS = 2**15
"""Terms up to which the sum of (a - zero) * b fits s32 whatever the operands."""

_PACK_LAYOUT = Record(
    [
        *[(name, "i8") for name in ("groups", "ic", "oc")],
        ("kernel", "i8", 3),
        *[(name, "i8") for name in ("merged", "words", "runs", "w_group", "w_oc", "w_ic")],
        ("w", "i8", 3),
        *[(name, "i8") for name in ("group_nbytes", "flip")],
    ]
)
_LAYOUT = Record(
    [
        ("window", WINDOW_LAYOUT),
        *[(name, "i8") for name in ("groups", "ic", "oc", "words", "runs", "merged", "w_group")],
        *[(name, "i8") for name in ("images", "block_rows", "block_cols", "col_block")],
        *[(name, "i8") for name in ("dst_n", "dst_pixel", "residual_n", "residual_pixel", "src_dtype", "zero")],
        *[(name, "i8") for name in ("bias_arg", "dst_arg", "direct", "has_epilogue")],
        *[(name, "i8") for name in ("rows_offset", "runs_offset", "room_offset")],
        ("requant", REQUANT_LAYOUT),
        ("dynamic", DYNAMIC_LAYOUT),
    ]
)


@dataclass(frozen=True, slots=True)
class ConvS8Layout:
    """Where the weights of a convolution lie in panels.

    Attributes
    ----------
    ic, oc, groups : int
        Channels of one group, and groups.
    kernel : tuple of int
        Three axes.
    merged : int
        Taps along width that are one run.
    words, runs : int
        Words of 4 weights in a run, and runs of a pixel.
    panel : int
        Columns of a panel.
    group_nbytes : int
        From one group to the next, a multiple of 64. Unit: bytes.
    """

    ic: int
    oc: int
    groups: int
    kernel: tuple[int, ...]
    merged: int
    words: int
    runs: int
    panel: int
    group_nbytes: int

    @property
    def nbytes(self) -> int:
        """Of all groups. Unit: bytes."""
        return self.groups * self.group_nbytes


def conv_s8_layout(
    in_channels: int,
    out_channels: int,
    kernel: Sequence[int],
    *,
    groups: int = 1,
    dilations: Sequence[int] | None = None,
    isa: str | None = None,
) -> ConvS8Layout:
    """The layout of the weights of a convolution; parameters as in `graphpool._kernels.conv_packed`.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError, UnsupportedError
        A size out of range; channels that `groups` does not divide; an unknown instruction set.
    """
    if min(in_channels, out_channels) < 0 or not 1 <= len(kernel) <= 3 or min(kernel) < 1:
        what = "channels and kernel"
        got = (in_channels, out_channels, tuple(kernel))
        raise InvalidShapeError(explain(what, accepted="channels >= 0, one to three sizes of at least 1", got=got))
    if groups < 1 or in_channels % groups or out_channels % groups:
        accepted = f"a divisor of {in_channels} and {out_channels} channels"
        raise InvalidArgumentError(explain("groups", accepted=accepted, got=groups))
    lanes = lanes_of(isa)
    ic, oc = in_channels // groups, out_channels // groups
    merged = kernel[-1] if dilations is None or dilations[-1] == 1 else 1
    words, runs = -(-merged * ic // 4), math.prod(kernel) // merged
    cols = -(-oc // lanes) * lanes
    filled = (*(1,) * (3 - len(kernel)), *kernel)
    return ConvS8Layout(ic, oc, groups, filled, merged, words, runs, 2 * lanes, aligned((runs * words + 1) * cols * 4))


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
    if len(strides) != len(kernel) + 3:
        raise InvalidShapeError(explain("strides of weights", accepted="(group, oc, ic, spatial...)", got=strides))
    _check_bytes("weights", dtype)
    values = {
        "groups": groups, "ic": layout.ic, "oc": layout.oc, "kernel": layout.kernel, "merged": layout.merged,
        "words": layout.words, "runs": layout.runs, "w_group": strides[0], "w_oc": strides[1], "w_ic": strides[2],
        "w": [*[0] * (3 - len(kernel)), *strides[3:]], "group_nbytes": layout.group_nbytes, "flip": dtype == "u8",
    }  # fmt: skip
    ntasks = groups * -(-layout.oc // layout.panel)
    return pack("pack_conv_s8", _PACK_LAYOUT, values, ntasks=ntasks, scratch_nbytes=layout.words * 4, isa=isa)


def _check_bytes(what: str, dtype: str) -> None:
    if dtype not in ("u8", "s8"):
        raise InvalidDataTypeError(explain(f"type of {what}", accepted="u8, s8", got=dtype), dtype=dtype)


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
        Numbers of src that the run decides; its zero point instead of `zero_point`.
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
    _check_bytes("src", src_dtype)
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
    is_direct = _is_direct(window, layout, src_dtype, pads_begin, pads_end)
    dst = _image_strides("dst_strides", window, window.dst_strides)
    residual = dst if residual_strides is None else _residual_strides(window, residual_strides, len(src_spatial))
    quantised, first_arg = (dynamic or Dynamic()).record(3)
    record, dst_arg = (requant or Requant()).record(first_arg + bias)
    zero = zero_point + (128 if src_dtype == "s8" else 0)
    if not 0 <= zero <= 255:
        raise InvalidArgumentError(explain("zero_point", accepted=f"one of {src_dtype}", got=zero_point))
    values = {
        "groups": groups, "bias_arg": first_arg if bias else 0, "dst_arg": dst_arg, "requant": record, "zero": zero,
        "src_dtype": DTYPE_CODES[src_dtype], "direct": is_direct, "has_epilogue": bool(epilogue),
        "dynamic": quantised,
    }  # fmt: skip
    if is_direct:
        batch, window, dst, residual = _as_one_row(batch, window, dst, residual)
    return _build(batch, window, layout, dst, residual, values, epilogue, isa)


def _is_direct(
    window: Window,
    layout: ConvS8Layout,
    src_dtype: str,
    pads_begin: Sequence[int] | None,
    pads_end: Sequence[int] | None,
) -> bool:
    """Whether pixels can be read where they lie: one tap, no padding, whole words of unsigned bytes side by side."""
    is_point = math.prod(window.kernel) == 1 and not any(pads_begin or ()) and not any(pads_end or ())
    return is_point and src_dtype == "u8" and layout.ic % 4 == 0 and window.src_strides[1] == 1


def _image_strides(name: str, window: Window, strides: Sequence[int]) -> tuple[int, int]:
    """Strides of images and of pixels of a side whose channels are contiguous."""
    pixel = merged_stride(list(zip(window.dst, strides[2:], strict=True)))
    if pixel is None or (strides[1] != 1 and name == "dst_strides"):
        accepted = "contiguous channels, and pixels that one stride walks"
        raise UnsupportedError(explain(name, accepted=accepted, got=tuple(strides)))
    return strides[0], pixel


def _residual_strides(window: Window, strides: Sequence[int], ndim: int) -> tuple[int, int]:
    if len(strides) != ndim + 2:
        raise InvalidShapeError(explain("residual_strides", accepted=f"{ndim + 2} strides", got=tuple(strides)))
    return _image_strides("residual_strides", window, (*strides[:2], *(0,) * (3 - ndim), *strides[2:]))


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


def _build(
    batch: int,
    window: Window,
    layout: ConvS8Layout,
    dst: tuple[int, int],
    residual: tuple[int, int],
    values: dict[str, Any],
    epilogue: bytes,
    isa: str | None,
) -> KernelCall:
    """Blocks, parts of scratch and parameter block of a problem."""
    rows, width = _rectangle(window)
    depth = layout.runs * layout.words * 4
    cols = _col_block(rows * width, depth, layout)
    rows_offset = aligned(rows * width * cols * 4) if epilogue else 0
    runs_offset = rows_offset + aligned(rows * width * 8)
    room_offset = runs_offset + aligned(layout.runs * 8)
    fields = values | {
        "window": window.record(), "ic": layout.ic, "oc": layout.oc, "words": layout.words, "runs": layout.runs,
        "merged": layout.merged, "w_group": layout.group_nbytes, "images": batch, "block_rows": rows,
        "block_cols": width, "col_block": cols, "dst_n": dst[0], "dst_pixel": dst[1], "residual_n": residual[0],
        "residual_pixel": residual[1], "rows_offset": rows_offset, "runs_offset": runs_offset,
        "room_offset": room_offset,
    }  # fmt: skip
    blocks = batch * window.dst[0] * -(-window.dst[1] // rows) * -(-window.dst[2] // width)
    return pack(
        "s8_conv_packed", _LAYOUT, fields, ntasks=blocks * layout.groups * -(-layout.oc // cols),
        scratch_nbytes=room_offset + (0 if values["direct"] else _staged_nbytes(window, rows, width, layout)),
        tail=epilogue, isa=isa,
    )  # fmt: skip


def _rectangle(window: Window) -> tuple[int, int]:
    """Rows and columns of results of a task: even parts of an image, whole rows unless those are long."""
    height, width = max(window.dst[1], 1), max(window.dst[2], 1)
    if math.prod(window.kernel) == 1 and height == 1:
        return 1, row_block(width)
    if width > _PIXELS:
        return 1, -(-width // -(-width // _PIXELS))
    parts = max(-(-height * width // _PIXELS), 1)
    return -(-height // parts), width


def _col_block(pixels: int, depth: int, layout: ConvS8Layout) -> int:
    """Output channels of a task: whole groups of panels, as few as still make a task worth its copy."""
    unit = layout.panel * streams(pixels)
    parts = max(layout.oc // max(-(-_LEAST_WORK // max(pixels * depth, 1)), 1), 1)
    return max(-(-layout.oc // (parts * unit)) * unit, unit)


def _staged_nbytes(window: Window, rows: int, width: int, layout: ConvS8Layout) -> int:
    """The part of the source that a task reads, and what its last word reads beyond. Unit: bytes."""
    return window.kernel[0] * window.pixels_read(rows, width) * layout.ic + 4
