"""3x3 convolution of channels-last images with stride 1 by Winograd's minimal filtering, tiles of 4x4 or 2x2.

Kernels: ``f32_conv_winograd_4x4``, ``pack_winograd_weights_4x4`` and the same for ``2x2``. A quarter of the
multiplications of the direct way, at best, for weights that take four times the memory, or four ninths for 16 ninths;
the source says how it works.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError, explain

from .call import KernelCall, pack
from .matmul import aligned
from .packed import PackedLayout, l2_nbytes, packed_layout, tail_fields
from .records import Record
from .window import convolution_window, image_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["choose_tile", "pack_winograd_weights", "winograd_convolution", "winograd_layout"]

TILES = (2, 4)
"""Results of a tile along an axis."""

_KIND = 3
"""The kind of opaque layout: transformed weights of a convolution."""

_COLS = 64
"""Output channels of a task: enough that transforming its source again, where another lane had it, costs 9 %."""

_NS_PER_FLOP, _NS_PER_VALUE = 0.0085, 0.05
"""Measured on one core of an AMD EPYC (family 25): products; transforming a value, of 36 a tile, on either side."""

_NS_PER_BYTE = 0.12
"""Least gain that is worth another byte of weights. The smaller images are, the fewer results a weight serves: at 14x14
pixels tiles of 2 gain four times as much, and tiles of 4 nothing beyond, as reading weights takes what is saved; at 7x7
tiles of 2 gain two thirds of this."""

_LEAST_CHANNELS = 32

_WEIGHTS_LAYOUT = Record([*[(name, "i8") for name in ("ic", "oc", "pitch", "w_oc", "w_ic")], ("w", "i8", 2)])
_LAYOUT = Record(
    [
        *[(name, "i8") for name in ("batch", "ic", "oc")],
        *[(name, "i8", 2) for name in ("in", "out", "pad")],
        *[(name, "i8", 3) for name in ("src", "dst", "residual")],
        *[(name, "i8") for name in ("pitch", "bias_arg", "residual_arg", "dst_arg", "tile_block", "col_block")],
        *[(name, "i8") for name in ("tile_in_scratch", "has_epilogue", "sums_offset", "zeros_offset", "tile_offset")],
        *[(name, "f4") for name in ("lo", "hi")],
    ]
)


def choose_tile(batch: int, in_channels: int, out_channels: int, dst_spatial: Sequence[int]) -> int:
    """The tile for a 3x3 convolution with stride 1 that gains enough time for the memory of its weights; 0: none."""
    if min(in_channels, out_channels) < _LEAST_CHANNELS or len(dst_spatial) != 2:
        return 0
    weights = 4 * in_channels * out_channels
    direct = 2 * 9 * in_channels * out_channels * batch * math.prod(dst_spatial) * _NS_PER_FLOP
    cost = {0: direct + 9 * weights * _NS_PER_BYTE}
    for tile in TILES:
        time = _tile_ns(tile, batch, in_channels, out_channels, dst_spatial)
        cost[tile] = time + _products(tile) * weights * _NS_PER_BYTE
    return min(cost, key=cost.__getitem__)


def _products(tile: int) -> int:
    """Numbers that stand for a kernel, and for a tile of the source."""
    return (tile + 2) ** 2


def _count_tiles(tile: int, batch: int, dst_spatial: Sequence[int]) -> int:
    return batch * math.prod(-(-extent // tile) for extent in dst_spatial)


def _tile_ns(tile: int, batch: int, in_channels: int, out_channels: int, dst_spatial: Sequence[int]) -> float:
    """Time with tiles of this size. Unit: nanoseconds."""
    values = _products(tile) * _count_tiles(tile, batch, dst_spatial)
    return values * (2 * in_channels * out_channels * _NS_PER_FLOP + (in_channels + out_channels) * _NS_PER_VALUE)


def winograd_layout(in_channels: int, out_channels: int, isa: str | None = None, *, tile: int = 4) -> PackedLayout:
    """The layout of transformed weights: matrices of in_channels x out_channels in panels, 36 or 16 for tiles of 2.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError, UnsupportedError
        A negative size; another tile than 2 or 4; an unknown instruction set.
    """
    if tile not in TILES:
        raise InvalidArgumentError(explain("tile of minimal filtering", accepted="2, 4", got=tile))
    one = packed_layout(in_channels, out_channels, isa=isa, batch=_products(tile))
    layout_id = _KIND << 24 | tile << 16 | one.panel
    return PackedLayout(layout_id, one.nbytes, one.pitch, one.panel, one.words)


def pack_winograd_weights(
    in_channels: int, out_channels: int, strides: Sequence[int], *, tile: int = 4, isa: str | None = None
) -> KernelCall:
    """A kernel that transforms weights and brings them into panels.

    Arguments of the kernel: weights, packed (`winograd_layout` says how many bytes).

    Parameters
    ----------
    in_channels, out_channels : int
    strides : sequence of int
        (out channel, in channel, height, width), any. Unit: elements.
    tile : {2, 4}, default=4
        Results of a tile along an axis.
    isa : str, optional
        Instruction set; the best one by default.

    Returns
    -------
    KernelCall
        One task for each panel; no scratch.

    Raises
    ------
    InvalidShapeError, UnsupportedError
        As in `winograd_layout`; other than four strides.

    Notes
    -----
    Cost: about 30 nanoseconds for each pair of channels; computed in f64 and rounded once.
    """
    layout = winograd_layout(in_channels, out_channels, isa, tile=tile)
    if len(strides) != 4:
        raise InvalidShapeError(explain("strides of weights", accepted="(oc, ic, height, width)", got=tuple(strides)))
    values = {
        "ic": in_channels, "oc": out_channels, "pitch": layout.pitch // 4,
        "w_oc": strides[0], "w_ic": strides[1], "w": strides[2:],
    }  # fmt: skip
    tasks = -(-out_channels // layout.panel)
    return pack(f"pack_winograd_weights_{tile}x{tile}", _WEIGHTS_LAYOUT, values, ntasks=tasks, isa=isa)


def winograd_convolution(
    batch: int,
    in_channels: int,
    out_channels: int,
    src_spatial: Sequence[int],
    *,
    tile: int = 4,
    src_strides: Sequence[int],
    dst_strides: Sequence[int],
    pads_begin: Sequence[int] | None = None,
    pads_end: Sequence[int] | None = None,
    bias: bool = False,
    residual_strides: Sequence[int] | None = None,
    clamp: tuple[float, float] | None = None,
    epilogue: bytes = b"",
    dst_needs_scratch: bool = True,
    isa: str | None = None,
) -> KernelCall:
    """A kernel for ``dst = clamp(convolution(src, weights) + bias + residual)``, kernel 3x3, stride 1, f32.

    Arguments of the kernel: src, packed weights, bias and residual if they are asked for, dst, then arguments 1, 2, ...
    of the epilogue (its argument 0 is dst).

    Parameters
    ----------
    batch, in_channels, out_channels : int
    src_spatial, pads_begin, pads_end : sequence of int
        Two axes each.
    tile : {2, 4}, default=4
        As the weights were packed.
    src_strides, dst_strides : sequence of int
        (n, c, height, width); channels are contiguous. Unit: elements.
    bias, residual_strides, clamp, epilogue, dst_needs_scratch
        As in `graphpool._kernels.conv_packed.packed_convolution`.
    isa : str, optional
        Instruction set; the best one by default. It must be one with the layout of the packed weights.

    Returns
    -------
    KernelCall
        Tasks are blocks of tiles of results by blocks of output channels.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError
        The arguments do not fit each other.
    UnsupportedError
        Channels that are not contiguous; other than two spatial axes; an unknown instruction set.

    Notes
    -----
    Threads: the KernelCall is immutable; tasks write disjoint parts of dst. dst must not overlap src.
    Error: below 8e-7 of the sum of the terms' magnitudes with 256 normal channels, about twice that of the direct way,
    and spread over the 6x6 pixels that a tile reads, as NaN and infinities are; below 5e-7 with tiles of 2, over 4x4.
    Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016; points of Barabasz et al., 2020.
    """
    if len(src_spatial) != 2:
        raise UnsupportedError(explain("number of spatial axes", accepted="2", got=len(src_spatial)))
    layout = winograd_layout(in_channels, out_channels, isa, tile=tile)
    window = convolution_window(
        src_spatial, (3, 3), strides=None, pads_begin=pads_begin, pads_end=pads_end, dilations=None,
        src_strides=src_strides, dst_strides=dst_strides,
    )  # fmt: skip
    tail = tail_fields(
        bias=bias, residual=residual_strides is not None, clamp=clamp, epilogue=epilogue, in_scratch=dst_needs_scratch
    )
    if batch < 0:
        raise InvalidShapeError(explain("batch", accepted=">= 0", got=batch))
    given = {"src": src_strides, "dst": dst_strides, "residual": residual_strides or dst_strides}
    channels = {"src": in_channels, "dst": out_channels, "residual": out_channels}
    sides = {name: image_strides(f"{name}_strides", given[name], 2, channels[name]) for name in given}
    values = tail | {
        "batch": batch, "ic": in_channels, "oc": out_channels, "in": window.src[1:], "out": window.dst[1:],
        "pad": window.pads_begin[1:], "pitch": layout.pitch // 4,
        **{name: (image, height, width) for name, (image, _, height, width) in sides.items()},
    }  # fmt: skip
    return _build(tile, _count_tiles(tile, batch, window.dst[1:]), layout, values, epilogue, isa)


def _build(
    tile: int, tiles: int, layout: PackedLayout, values: dict[str, object], epilogue: bytes, isa: str | None
) -> KernelCall:
    """Blocks, parts of scratch and parameter block of a problem."""
    products = _products(tile)
    ic, oc, step = layout.words, int(str(values["oc"])), 2 * layout.panel
    block, cols = _tile_block(tiles, products, ic, step), max(_COLS // step, 1) * step
    sums_offset = aligned(products * block * ic * 4)
    zeros_offset = sums_offset + products * block * step * 4
    tile_offset = zeros_offset + aligned(ic * 4)
    fields = values | {
        "tile_block": block, "col_block": cols,
        "sums_offset": sums_offset, "zeros_offset": zeros_offset, "tile_offset": tile_offset,
    }  # fmt: skip
    return pack(
        f"f32_conv_winograd_{tile}x{tile}", _LAYOUT, fields, ntasks=-(-tiles // block) * -(-oc // cols),
        scratch_nbytes=tile_offset + tile * tile * step * 4, tail=epilogue, isa=isa,
    )  # fmt: skip


def _tile_block(tiles: int, products: int, ic: int, step: int) -> int:
    """Tiles of a task: even parts whose transformed sources fill half of L2 and whose sums a bit less."""
    tile_nbytes = products * 4
    most = max(min(l2_nbytes() // 2 // (tile_nbytes * max(ic, 1)), l2_nbytes() * 3 // 8 // (tile_nbytes * step)), 6)
    return max(-(-tiles // max(-(-tiles // most), 1)), 1)
