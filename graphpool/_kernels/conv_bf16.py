"""Convolution of images in bf16 or float32 with constant weights in bf16: packed once, products of bf16 summed in f32.

    nbytes = bf16_conv_nbytes(64, 64, (3, 3))
    pack_bf16_conv_weights(64, 64, (3, 3), strides)(w, packed)  # once, from float32
    bf16_convolution(1, 64, 64, (56, 56), (3, 3), ..., src_dtype="f32", bias=True)(x, packed, bias, dst)

Kernels: ``bf16_conv_packed`` and ``pack_conv_bf16``; ``src/conv_bf16.c`` says how they work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, UnsupportedError, explain

from .call import DTYPE_CODES, KernelCall, pack
from .matmul import aligned
from .packed import TILE_ROWS, lanes_of, streams, tail_fields
from .records import Record
from .window import WINDOW_LAYOUT, Window, convolution_window, merged_stride

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["bf16_conv_nbytes", "bf16_convolution", "pack_bf16_conv_weights"]

_PIXELS, _FEW_CHANNELS_PIXELS = 192, 1536
"""Pixels of a task: enough rows of results that those of the source which two tasks both copy matter little, more where
copies are dear beside short products."""

_FEW_CHANNELS = 16
"""Input channels of a group up to which products are short."""

_STAGED_NBYTES = 256 * 1024
"""Most bytes of source that a task copies, if it has more than one row: half of a small L2."""

_LEAST_TASKS = 16
"""Tasks into which columns are divided where there are few rectangles, so that threads can share a layer."""

_PACK_LAYOUT = Record(
    [
        *[(name, "i8") for name in ("groups", "ic", "oc")],
        ("kernel", "i8", 3),
        *[(name, "i8") for name in ("pixel", "merged", "words", "runs", "w_group", "w_oc", "w_ic")],
        ("w", "i8", 3),
    ]
)
_LAYOUT = Record(
    [
        ("window", WINDOW_LAYOUT),
        *[(name, "i8") for name in ("groups", "ic", "oc", "pixel", "merged", "words", "runs")],
        *[(name, "i8") for name in ("block_rows", "block_cols", "col_block")],
        *[(name, "i8") for name in ("dst_n", "dst_pixel", "residual_n", "residual_pixel", "src_dtype", "is_direct")],
        *[(name, "i8") for name in ("bias_arg", "residual_arg", "dst_arg", "tile_in_scratch", "has_epilogue")],
        *[(name, "i8") for name in ("rows_offset", "runs_offset", "room_offset")],
        *[(name, "f4") for name in ("lo", "hi")],
    ]
)


@dataclass(frozen=True)
class _Weights:
    """Sizes of the weights of one group: channels, elements of a pixel, taps of a run, its words, runs, panel width."""

    groups: int
    ic: int
    oc: int
    pixel: int
    merged: int
    words: int
    runs: int
    panel: int

    @classmethod
    def of(
        cls, channels: tuple[int, int], kernel: Sequence[int], groups: int, is_dense: bool, isa: str | None
    ) -> _Weights:
        lanes = lanes_of(isa)
        if not 1 <= len(kernel) <= 3 or min(kernel) < 1:
            raise InvalidShapeError(explain("kernel", accepted="one to three sizes of at least 1", got=tuple(kernel)))
        if groups < 1 or min(channels) < groups or any(count % groups for count in channels):
            raise InvalidArgumentError(explain("groups", accepted=f"a divisor of the channels {channels}", got=groups))
        ic, oc = (count // groups for count in channels)
        pixel, merged = ic + ic % 2, kernel[-1] if is_dense else 1
        return cls(groups, ic, oc, pixel, merged, merged * pixel // 2, math.prod(kernel) // merged, 2 * lanes)

    @property
    def nbytes(self) -> int:
        """Of all groups. Unit: bytes."""
        lanes = self.panel // 2
        return self.groups * self.runs * self.words * -(-self.oc // lanes) * lanes * 4

    def fields(self) -> dict[str, int]:
        """What both parameter blocks hold."""
        names = ("groups", "ic", "oc", "pixel", "merged", "words", "runs")
        return {name: getattr(self, name) for name in names}


def bf16_conv_nbytes(
    in_channels: int,
    out_channels: int,
    kernel: Sequence[int],
    *,
    groups: int = 1,
    dilations: Sequence[int] | None = None,
    isa: str | None = None,
) -> int:
    """Bytes of packed weights, with the parameters of `pack_bf16_conv_weights`."""
    is_dense = dilations is None or dilations[-1] == 1
    return _Weights.of((in_channels, out_channels), kernel, groups, is_dense, isa).nbytes


def pack_bf16_conv_weights(
    in_channels: int,
    out_channels: int,
    kernel: Sequence[int],
    strides: Sequence[int],
    *,
    groups: int = 1,
    dilations: Sequence[int] | None = None,
    isa: str | None = None,
) -> KernelCall:
    """A kernel that brings float32 weights of a convolution into panels of bf16, rounded to nearest even.

    Arguments of the kernel: weights, packed (`bf16_conv_nbytes` says how many bytes).

    Parameters
    ----------
    in_channels, out_channels : int
        Multiples of `groups`, at least as many.
    kernel : sequence of int
        One to three axes.
    strides : sequence of int
        (group, out channel in the group, in channel in the group, spatial...), any. Unit: elements.
    groups : int, default=1
    dilations : sequence of int, optional
        Ones by default.
    isa : str, optional
        Instruction set of the kernels that will read them; the best one by default.

    Returns
    -------
    KernelCall
        One task for each panel; no scratch.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError, UnsupportedError
        Arguments that do not fit each other; an unknown instruction set.

    Notes
    -----
    Cost: one read and one write of the weights, about a nanosecond each.
    """
    is_dense = dilations is None or dilations[-1] == 1
    sizes = _Weights.of((in_channels, out_channels), kernel, groups, is_dense, isa)
    if len(strides) != len(kernel) + 3:
        raise InvalidShapeError(explain("strides of weights", accepted="(group, oc, ic, spatial...)", got=strides))
    fill = 3 - len(kernel)
    values = sizes.fields() | {
        "kernel": [*[1] * fill, *kernel], "w_group": strides[0], "w_oc": strides[1], "w_ic": strides[2],
        "w": [*[0] * fill, *strides[3:]],
    }  # fmt: skip
    return pack("pack_conv_bf16", _PACK_LAYOUT, values, ntasks=groups * -(-sizes.oc // sizes.panel), isa=isa)


def bf16_convolution(
    batch: int,
    in_channels: int,
    out_channels: int,
    src_spatial: Sequence[int],
    kernel: Sequence[int],
    *,
    src_strides: Sequence[int],
    dst_strides: Sequence[int],
    src_dtype: str = "bf16",
    strides: Sequence[int] | None = None,
    pads_begin: Sequence[int] | None = None,
    pads_end: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    groups: int = 1,
    bias: bool = False,
    residual_strides: Sequence[int] | None = None,
    clamp: tuple[float, float] | None = None,
    epilogue: bytes = b"",
    dst_needs_scratch: bool = True,
    isa: str | None = None,
) -> KernelCall:
    """A kernel for ``dst = clamp(convolution(bf16(src), weights) + bias + residual)``.

    Arguments of the kernel: src, packed weights, bias and residual if they are asked for, dst, then arguments 1, 2, ...
    of the epilogue (its argument 0 is dst). Bias, residual and, without an epilogue, dst are f32.

    Parameters
    ----------
    batch, in_channels, out_channels, src_spatial, kernel, strides, pads_begin, pads_end, dilations, groups
        As in `graphpool._kernels.conv.convolution`.
    src_strides : sequence of int
        (n, c, spatial...), any; fastest where channels are contiguous. Unit: elements.
    dst_strides : sequence of int
        Likewise; channels are contiguous and pixels have one stride.
    src_dtype : {"bf16", "f32"}
        f32 is rounded to bf16.
    bias, residual_strides, clamp, epilogue, dst_needs_scratch, isa
        As in `graphpool._kernels.conv_packed.packed_convolution`.

    Returns
    -------
    KernelCall
        Tasks are rectangles of pixels by blocks of output channels of a group.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError, InvalidDataTypeError, UnsupportedError
        The arguments do not fit each other; strides that the kernel does not take.

    Notes
    -----
    Threads: the KernelCall is immutable; tasks write disjoint parts of dst. dst must not overlap src.
    Cost: a multiply-add a tap, channel and result, at the rate of bf16, and a copy of the source for each kernel's
    height that two tasks share.
    """
    if src_dtype not in ("bf16", "f32"):
        raise InvalidDataTypeError(explain("dtype of an image", accepted="bf16, f32", got=src_dtype), dtype=src_dtype)
    is_dense = dilations is None or dilations[-1] == 1
    sizes = _Weights.of((in_channels, out_channels), kernel, groups, is_dense, isa)
    window = convolution_window(
        src_spatial, kernel, strides=strides, pads_begin=pads_begin, pads_end=pads_end, dilations=dilations,
        src_strides=src_strides, dst_strides=dst_strides,
    )  # fmt: skip
    if batch < 0:
        raise InvalidShapeError(explain("batch", accepted=">= 0", got=batch))
    tail = tail_fields(
        bias=bias, residual=residual_strides is not None, clamp=clamp, epilogue=epilogue, in_scratch=dst_needs_scratch
    )
    dst_n, dst_pixel = _image("dst_strides", window, dst_strides)
    residual_n, residual_pixel = _image("residual_strides", window, residual_strides or dst_strides)
    values = tail | sizes.fields() | {
        "window": window.record(), "dst_n": dst_n, "dst_pixel": dst_pixel,
        "residual_n": residual_n, "residual_pixel": residual_pixel, "src_dtype": DTYPE_CODES[src_dtype],
        "is_direct": src_dtype == "bf16" and _is_pointwise(window) and sizes.ic == sizes.pixel,
    }  # fmt: skip
    return _build(batch, window, sizes, values, epilogue, isa)


def _image(name: str, window: Window, strides: Sequence[int]) -> tuple[int, int]:
    """Strides of images and of pixels, of an image whose channels are contiguous and whose pixels one stride walks."""
    fill = len(window.dst) + 2 - len(strides)
    if fill < 0 or len(strides) < 3:
        raise InvalidShapeError(explain(name, accepted="(n, c, spatial...)", got=tuple(strides)))
    pixel = merged_stride(list(zip(window.dst, (*[0] * fill, *strides[2:]), strict=True)))
    if pixel is None or strides[1] != 1:
        accepted = "contiguous channels, and pixels that one stride walks"
        raise UnsupportedError(explain(name, accepted=accepted, got=tuple(strides)))
    return strides[0], pixel


def _is_pointwise(window: Window) -> bool:
    """Whether pixels are words where they lie, all inside the image."""
    return max(window.kernel) == 1 and not any(window.pads_begin) and window.src_strides[1] == 1 and all(
        (size - 1) * stride < extent
        for size, stride, extent in zip(window.dst, window.strides, window.src, strict=True)
    )  # fmt: skip


def _build(
    batch: int, window: Window, sizes: _Weights, values: dict[str, object], epilogue: bytes, isa: str | None
) -> KernelCall:
    """Blocks, parts of scratch and parameter block of a problem."""
    rows, cols = _rectangle(window, sizes)
    count = batch * window.dst[0] * -(-window.dst[1] // rows) * -(-window.dst[2] // cols)
    unit = sizes.panel * streams(rows * cols)
    parts = max(min(-(-_LEAST_TASKS // max(count * sizes.groups, 1)), sizes.oc // unit), 1)
    col_block = -(-sizes.oc // (parts * unit)) * unit
    rows_offset = aligned(rows * cols * col_block * 4) if values["tile_in_scratch"] else 0
    runs_offset = rows_offset + rows * cols * 8
    room_offset = aligned(runs_offset + sizes.runs * 8)
    room_nbytes = 0 if values["is_direct"] else _staged_nbytes(window, sizes, rows, cols)
    fields = values | {
        "block_rows": rows, "block_cols": cols, "col_block": col_block,
        "rows_offset": rows_offset, "runs_offset": runs_offset, "room_offset": room_offset,
    }  # fmt: skip
    return pack(
        "bf16_conv_packed", _LAYOUT, fields, ntasks=count * sizes.groups * -(-sizes.oc // col_block),
        scratch_nbytes=room_offset + room_nbytes, tail=epilogue, isa=isa,
    )  # fmt: skip


def _rectangle(window: Window, sizes: _Weights) -> tuple[int, int]:
    """Rows and columns of a task: whole rows in even parts, or a part of one in whole tiles."""
    height, width = max(window.dst[1], 1), max(window.dst[2], 1)
    most = _PIXELS if sizes.ic > _FEW_CHANNELS else _FEW_CHANNELS_PIXELS
    if width > most:
        parts = -(-width // most)
        return 1, -(-width // (parts * TILE_ROWS)) * TILE_ROWS
    rows = min(max(most // width, 1), height)
    while rows > 1 and _staged_nbytes(window, sizes, rows, width) > _STAGED_NBYTES:
        rows -= 1
    return -(-height // -(-height // rows)), width


def _staged_nbytes(window: Window, sizes: _Weights, rows: int, cols: int) -> int:
    """The source that a rectangle reads. Unit: bytes."""
    return window.kernel[0] * window.pixels_read(rows, cols) * sizes.pixel * 2
