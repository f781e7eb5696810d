"""Pooling, resampling and convolution of images: (n, channel, spatial...) axes, up to three of them spatial."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass
from graphpool.errors import UnsupportedError, explain

from .products import TILE_THREADS, are_few, index_type, tile_depth, tile_header, tiles
from .program import add_program
from .source import KernelSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..eltwise.eltwise import Program
    from .source import CudaCall

__all__ = ["Windows", "conv_parts", "convolution", "pooling", "resampling"]

_AXES = "dhw"
_POOL_THREADS = 256

_FEW_CHANNELS = 4
"""Channels of the result in a group that make no tile worth while: each thread computes a result by itself."""

_MOST_PARTS = 16
_PART_STAGES = 8
"""Stages of a part of a sum: with fewer of them, adding the parts costs what they save."""


@dataclass(frozen=True)
class Windows:
    """Windows over an image, one number for each spatial axis; those of `src` are strides of (n, channel, spatial...).

    `dst_strides` are those of the result's index in its program's space, which is its shape, row-major. Unit: elements.
    """

    src: Sequence[int]
    dst: Sequence[int]
    kernel: Sequence[int]
    strides: Sequence[int]
    dilations: Sequence[int]
    pads_begin: Sequence[int]
    src_strides: Sequence[int]
    dst_strides: Sequence[int]

    def add_to(self, source: KernelSource) -> None:
        """Add all of it to the parameters."""
        if len(self.src) > len(_AXES):
            accepted = f"up to {len(_AXES)} spatial axes"
            raise UnsupportedError(explain("image on a GPU", accepted=accepted, got=len(self.src)))
        for name, given, otherwise in (
            ("src", self.src, 1), ("dst", self.dst, 1), ("kernel", self.kernel, 1), ("step", self.strides, 1),
            ("gap", self.dilations, 1), ("pad", self.pads_begin, 0), ("along", self.src_strides[2:], 0),
        ):  # fmt: skip
            source.numbers(**spread(name, given, otherwise))


def spread(name: str, given: Sequence[int], otherwise: int) -> dict[str, int]:
    """Numbers by spatial axis, innermost last; axes that the image lacks are in front."""
    values = [*[otherwise] * (len(_AXES) - len(given)), *given]
    return {f"{name}_{axis}": value for axis, value in zip(_AXES, values, strict=True)}


def pooling(
    mode: str,
    batch: int,
    channels: int,
    windows: Windows,
    dtype: str,
    program: Program,
    *,
    pads_end: Sequence[int],
    exclude_pad: bool = True,
) -> CudaCall:
    """Maximum or mean of each window. Arguments: src, those of the program. Else as `_kernels.image.pool.pooling`."""
    source = KernelSource("pool")
    source.numbers(counts_padding=not exclude_pad, **spread("end", pads_end, 0))
    source.define(GP_IS_MAX=str(int(mode == "max")))
    return _by_pixel(source, (batch, channels), windows, dtype, program)


def resampling(
    is_linear: bool, aligns_corners: bool, batch: int, channels: int, windows: Windows, dtype: str, program: Program
) -> CudaCall:
    """Nearest or linear resampling, else as `_kernels.image.resample`. Arguments: src, those of the program."""
    source = KernelSource("resample")
    source.numbers(aligns_corners=aligns_corners)
    source.define(GP_IS_LINEAR=str(int(is_linear)))
    return _by_pixel(source, (batch, channels), windows, dtype, program)


def _by_pixel(
    source: KernelSource, planes: tuple[int, int], windows: Windows, dtype: str, program: Program
) -> CudaCall:
    """A kernel with a thread for each result."""
    size = prod(planes) * prod(windows.dst)
    source.numbers(size=size)
    windows.add_to(source)
    source.load("src", dtype)
    source.view("plane_src", planes, windows.src_strides[:2])
    source.view("dst", (*planes, *windows.dst), windows.dst_strides)
    return source.build(1 + add_program(source, program), -(-size // _POOL_THREADS), _POOL_THREADS)


def convolution(
    batch: int,
    groups: int,
    channels: tuple[int, int],
    windows: Windows,
    dtypes: tuple[str, str],
    weight_strides: Sequence[int],
    program: Program,
    *,
    transposed: bool = False,
    parts: int = 1,
) -> CudaCall:
    """A convolution, or a transposed one. Arguments: src, weights, those of the program.

    `channels` are those of src and of the result; `weight_strides` those of (group, outer, inner, spatial...): channels
    of the result in a group, channels of src in a group. Sums are f32. A block a tile of channels and pixels, or a
    thread a result where a group has few channels. With several `parts`, see `conv_parts`, that axis leads in the
    program's space, and what the program gets are sums of parts of the terms.
    """
    inner, outer = channels[0] // groups, channels[1] // groups
    pixels = prod(windows.dst)
    if outer <= _FEW_CHANNELS:
        source, blocks = KernelSource("conv_direct"), -(-batch * groups * outer * pixels // TILE_THREADS)
    else:
        is_deep = _stages(inner, windows, dtypes) > 0
        source = KernelSource("conv_deep" if is_deep else "conv", tile_header(*dtypes))
        blocks = tiles(source, batch * groups * parts, outer, pixels)
        source.numbers(parts=parts)
    source.numbers(
        batch=batch, groups=groups, inner=inner, outer=outer,
        along_n=windows.src_strides[0], along_c=windows.src_strides[1],
        dst_n=windows.dst_strides[0], dst_c=windows.dst_strides[1], dst_pixel=windows.dst_strides[-1],
        weight_group=weight_strides[0], weight_outer=weight_strides[1], weight_inner=weight_strides[2],
        **spread("weight", weight_strides[3:], 0),
    )  # fmt: skip
    windows.add_to(source)
    source.load("src", dtypes[0])
    source.load("weights", dtypes[1])
    source.define(GP_IS_TRANSPOSED=str(int(transposed)), GP_INDEX=_index_type(inner, outer, windows, weight_strides))
    source.include("gp_window.cuh")
    return source.build(2 + add_program(source, program), blocks, TILE_THREADS)


def _stages(inner: int, windows: Windows, dtypes: tuple[str, str]) -> int:
    """Stages of the sums of a convolution of many channels; 0 where it is none: too many are missing in them."""
    depth = tile_depth(*dtypes)
    blocks = -(-inner // depth)
    is_deep = blocks * depth * 4 <= inner * 5 and prod(windows.src) > 0
    return blocks * prod(windows.kernel) if is_deep else 0


def conv_parts(batch: int, groups: int, channels: tuple[int, int], windows: Windows, dtypes: tuple[str, str]) -> int:
    """In how many parts the sums of a convolution are computed, so that a few tiles are work for a whole device."""
    outer = channels[1] // groups
    stages = 0 if outer <= _FEW_CHANNELS else _stages(channels[0] // groups, windows, dtypes)
    parts = 1
    while (
        2 * parts <= _MOST_PARTS
        and stages >= 2 * parts * _PART_STAGES
        and are_few(batch * groups * parts, outer, prod(windows.dst))
    ):
        parts *= 2
    return parts


def _index_type(inner: int, outer: int, windows: Windows, weight_strides: Sequence[int]) -> str:
    """What holds offsets in one image and in the weights of one group, and how far a window reaches along an axis."""
    along = windows.src, windows.dst, windows.kernel, windows.strides, windows.dilations, windows.pads_begin
    reaches = [
        ((src + dst * step + kernel * gap + pad, 1),) for src, dst, kernel, step, gap, pad in zip(*along, strict=True)
    ]
    source = zip((inner, *windows.src), windows.src_strides[1:], strict=True)
    weights = zip((outer, inner, *windows.kernel), weight_strides[1:], strict=True)
    sizes = ((prod(windows.dst), 1),), ((inner * prod(windows.kernel), 1),)
    return index_type(tuple(source), tuple(weights), *sizes, *reaches)
