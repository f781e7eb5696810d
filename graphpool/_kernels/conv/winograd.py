"""3x3 convolution of channels-last images with stride 1 by Winograd's algorithm, tiles of 4x4 or 2x2.

Kernels: ``f32_conv_winograd_4x4``, ``f32_conv_pack_winograd_4x4`` and the same for ``2x2``. A quarter of the
multiplications of the direct way, at best, for weights that take four times the memory, or four ninths for 16 ninths;
the source says how it works.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass
from graphpool._sizes import Preference
from graphpool.errors import InvalidArgumentError, UnsupportedError, explain

from ..core.call import KernelCall, pack
from ..gemm.packed import PANEL_ROWS, PackedFormat, l2_nbytes
from ..gemm.post_ops import NO_POST_OPS, PostOps
from ..gemm.problem import aligned, even_part, shared_part
from .problem import ConvFormat, ConvProblem, check_weight_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["TILES", "WinogradFormat", "choose_tile"]

TILES = (2, 4)
"""Results of a tile along an axis."""

_TRANSFORM_COLS = 24
"""Output channels whose products take the time in which a task transforms its source: 23 to 34 on a Zen 5 core, of 96
to 448 channels and tiles of either size."""

_NS_PER_FLOP, _NS_PER_VALUE = 0.0085, 0.05
"""Measured on one core of an AMD EPYC (family 25): products; transforming a value, of 36 a tile, on either side."""

_NS_PER_BYTE = 0.12
"""Least gain that is worth another byte of weights. The smaller images are, the fewer results a weight serves: at 14x14
pixels tiles of 2 gain four times as much, and tiles of 4 nothing beyond, as reading weights takes what is saved; at 7x7
tiles of 2 gain two thirds of this."""

_LEAST_CHANNELS = 32


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
    with Preference(batch, *dst_spatial):
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


@dataclass(frozen=True)
class WinogradFormat(ConvFormat):
    """A `ConvFormat`: 36 transformed matrices of in_channels x out_channels in panels, 16 for tiles of 2.

    `tile`: results along an axis, 2 or 4. Another one, kernels but 3x3, groups and dilations are refused.
    """

    tile: int = 4

    def __post_init__(self) -> None:
        if self.tile not in TILES:
            raise InvalidArgumentError(explain("tile of Winograd", accepted="2, 4", got=self.tile))
        kernel, dilations = self.shape.kernel, self.shape.dilations or (1,)
        if kernel != (3, 3) or self.shape.groups != 1 or set(dilations) != {1}:
            raise UnsupportedError(
                explain("weights for Winograd", accepted="3x3, groups=1, dilations=1", got=self.shape)
            )

    @property
    def _matrices(self) -> PackedFormat:
        return PackedFormat(self.shape.in_channels, self.shape.out_channels, batch=_products(self.tile), isa=self.isa)

    @property
    def nbytes(self) -> int:
        """Of the packed weights. Unit: bytes."""
        return self._matrices.nbytes

    def pack(self, strides: Sequence[int]) -> KernelCall:
        """See `ConvFormat`: transforms; one task for each panel, no scratch.

        Cost: about 30 nanoseconds for each pair of channels; computed in f64 and rounded once.
        """
        matrices = self._matrices
        check_weight_strides(strides, 2)
        values = {
            "ic": self.shape.in_channels, "oc": self.shape.out_channels, "pitch": matrices.pitch // 4,
            "w_oc": strides[1], "w_ic": strides[2], "w": strides[3:],
        }  # fmt: skip
        tasks = -(-self.shape.out_channels // matrices.panel)
        return pack(f"f32_conv_pack_winograd_{self.tile}x{self.tile}", values, ntasks=tasks, isa=self.isa)

    def convolution(self, problem: ConvProblem, post_ops: PostOps = NO_POST_OPS) -> KernelCall:
        """See `ConvFormat`: stride 1, float32, channels are contiguous on all sides.

        Tasks are blocks of tiles of results by blocks of output channels.

        Notes
        -----
        Error: below 8e-7 of the sum of the terms' magnitudes with 256 normal channels, about twice that of the direct
        way, and spread over the 6x6 pixels that a tile reads, as NaN and infinities are; below 5e-7 with tiles of 2,
        over 4x4. Source: Lavin and Gray, "Fast algorithms for convolutional neural networks", 2016; points of Barabasz
        et al., 2020.
        """
        window, post = problem.window, post_ops.float_fields()
        if set(window.strides) != {1}:
            raise UnsupportedError(explain("strides of Winograd", accepted="1", got=window.strides))
        sides = [(n, y, x) for n, _, y, x in (problem.src_image(), *problem.result_images(post_ops))]
        values = post | dict(zip(("src", "dst", "residual"), sides, strict=True)) | {
            "batch": problem.batch, "ic": self.shape.in_channels, "oc": self.shape.out_channels, "in": window.src[1:],
            "out": window.dst[1:], "pad": window.pads_begin[1:], "pitch": self._matrices.pitch // 4,
        }  # fmt: skip
        tiles = _count_tiles(self.tile, problem.batch, window.dst[1:])
        return _build(self.tile, tiles, self._matrices, values, post_ops.epilogue, self.isa, problem.threads)


def _build(
    tile: int, tiles: int, matrices: PackedFormat, values: dict[str, object], epilogue: bytes, isa: str | None,
    threads: int,
) -> KernelCall:  # fmt: skip
    """Blocks, parts of scratch and parameter block of a problem."""
    products = _products(tile)
    ic, oc, step = matrices.k, matrices.n, 2 * matrices.panel
    block, cols = _share(tiles, _tile_block(tiles, products, ic, step), oc, matrices.panel, threads)
    acc_offset = aligned(products * block * ic * 4)
    zeros_offset = acc_offset + products * block * step * 4
    tile_offset = zeros_offset + aligned(ic * 4)
    fields = values | {
        "tile_block": block, "col_block": cols,
        "acc_offset": acc_offset, "zeros_offset": zeros_offset, "tile_offset": tile_offset,
    }  # fmt: skip
    return pack(
        f"f32_conv_winograd_{tile}x{tile}", fields, ntasks=-(-tiles // block) * -(-oc // cols),
        scratch_nbytes=tile_offset + tile * tile * step * 4, tail=epilogue, isa=isa,
    )  # fmt: skip


def _share(tiles: int, block: int, oc: int, panel: int, threads: int) -> tuple[int, int]:
    """Tiles and output channels of a task: `block` and all channels, or fewer where so many threads then end sooner."""

    def find_cols(block: int) -> int:
        cols = even_part(oc, 1, panel)
        return shared_part(threads, oc, cols, lambda _: (-(-tiles // block), 1), _TRANSFORM_COLS, panel, cols)

    def tasks(block: int) -> tuple[int, int]:
        cols = find_cols(block)
        return -(-oc // cols), cols + _TRANSFORM_COLS

    block = shared_part(threads, tiles, block, tasks, PANEL_ROWS, 1, block)
    return block, find_cols(block)


def _tile_block(tiles: int, products: int, ic: int, step: int) -> int:
    """Tiles of a task: even parts whose transformed sources fill half of L2 and whose accumulators a bit less."""
    tile_nbytes = products * 4
    most = max(min(l2_nbytes() // 2 // (tile_nbytes * max(ic, 1)), l2_nbytes() * 3 // 8 // (tile_nbytes * step)), 6)
    return even_part(tiles, -(-tiles // most))
