"""Convolution of images in bf16 or float32 with constant weights in bf16: packed once, products of bf16 summed in f32.

    nbytes = bf16_conv_nbytes(64, 64, (3, 3))
    pack_bf16_conv_weights(64, 64, (3, 3), strides)(w, packed)  # once, from float32
    bf16_convolution(1, 64, 64, (56, 56), (3, 3), ..., src_dtype="f32", bias=True)(x, packed, bias, dst)

Kernels: ``bf16_conv_packed`` and ``pack_conv_bf16``; ``src/conv_bf16.c`` says how they work.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool.errors import InvalidDataTypeError, InvalidShapeError, explain

from .call import DTYPE_CODES, KernelCall
from .conv_blocks import CONV_BLOCKS_LAYOUT, ConvBlocks, reads_pixels_in_place, side_strides
from .conv_weights import ConvWeights
from .packed import TILE_ROWS, tail_fields
from .records import Record
from .window import Window, convolution_window

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

_LAYOUT = Record(
    [
        ("blocks", CONV_BLOCKS_LAYOUT),
        *[(name, "i8") for name in ("src_dtype", "residual_arg", "tile_in_scratch")],
        *[(name, "f4") for name in ("lo", "hi")],
    ]
)


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
    sizes = in_channels, out_channels, kernel
    return ConvWeights.make(*sizes, groups=groups, dilations=dilations, dtype="bf16", isa=isa).nbytes


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
    sizes = in_channels, out_channels, kernel
    weights = ConvWeights.make(*sizes, groups=groups, dilations=dilations, dtype="bf16", isa=isa)
    return weights.pack_call("pack_conv_bf16", weights.pack_fields(strides, "f32"), isa)


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
    sizes = in_channels, out_channels, kernel
    weights = ConvWeights.make(*sizes, groups=groups, dilations=dilations, dtype="bf16", isa=isa)
    window = convolution_window(
        src_spatial, kernel, strides=strides, pads_begin=pads_begin, pads_end=pads_end, dilations=dilations,
        src_strides=src_strides, dst_strides=dst_strides,
    )  # fmt: skip
    if batch < 0:
        raise InvalidShapeError(explain("batch", accepted=">= 0", got=batch))
    tail = tail_fields(
        bias=bias, residual=residual_strides is not None, clamp=clamp, epilogue=epilogue, in_scratch=dst_needs_scratch
    )
    ndim = len(src_spatial)
    dst = side_strides("dst_strides", window, dst_strides, ndim, out_channels)
    residual = side_strides("residual_strides", window, residual_strides or dst_strides, ndim, out_channels)
    rows, cols = _rectangle(window, weights)
    blocks = ConvBlocks(
        batch, window, weights, dst, residual, rows, cols, _col_block(batch, window, weights, rows, cols),
        is_direct=src_dtype == "bf16" and reads_pixels_in_place(window, weights),
        has_tile=bool(tail["tile_in_scratch"]),
    )  # fmt: skip
    shared = {
        "element_nbytes": 2 if src_dtype == "bf16" else 4,
        "bias_arg": tail["bias_arg"],
        "dst_arg": tail["dst_arg"],
    }
    own = {name: tail[name] for name in ("lo", "hi", "residual_arg", "tile_in_scratch")}
    own["src_dtype"] = DTYPE_CODES[src_dtype]
    return blocks.call("bf16_conv_packed", _LAYOUT, shared, own, epilogue=epilogue, isa=isa)


def _rectangle(window: Window, weights: ConvWeights) -> tuple[int, int]:
    """Rows and columns of a task: whole rows in even parts, or a part of one in whole tiles."""
    height, width = max(window.dst[1], 1), max(window.dst[2], 1)
    most = _PIXELS if weights.ic > _FEW_CHANNELS else _FEW_CHANNELS_PIXELS
    if width > most:
        parts = -(-width // most)
        return 1, -(-width // (parts * TILE_ROWS)) * TILE_ROWS
    rows = min(max(most // width, 1), height)
    while rows > 1 and window.pixels_read(rows, width) * weights.pixel_nbytes > _STAGED_NBYTES:
        rows -= 1
    return -(-height // -(-height // rows)), width


def _col_block(batch: int, window: Window, weights: ConvWeights, rows: int, cols: int) -> int:
    """Output channels of a task: in parts where there are few rectangles."""
    rectangles = batch * window.rectangles(rows, cols) * weights.groups
    parts = min(-(-_LEAST_TASKS // max(rectangles, 1)), weights.oc // weights.unit(rows * cols))
    return weights.col_block(rows * cols, parts)
