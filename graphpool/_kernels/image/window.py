"""What convolution, pooling and resampling share: geometry in three spatial axes, tiles of result rows.

`image/gp_window.h` is the C side.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass, replace
from graphpool._sizes import as_size, largest, least
from graphpool.errors import InvalidShapeError, UnsupportedError, explain

from ..gemm.problem import aligned

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..gemm.post_ops import PostOps

__all__ = [
    "MOST_LANES",
    "Window",
    "channel_block",
    "convolution_window",
    "fill_geometry",
    "image_strides",
    "is_sparse",
    "merged_stride",
    "plan_rows",
    "single_rows",
]

MOST_LANES = 16
"""Elements of the widest vector, which may be read at any element of a table or a line."""

_TILE_ELEMENTS = {True: 16384, False: 1024}
"""Results of a row task, by whether channels are innermost: a tile of 64 KiB stays in L2, and its channels give enough
tasks to split. Planes are walked row by row, so those of few channels, whose rows stay in L1 until the next task."""

_MOST_GAPS, _FEW_PIXELS = 16, 1 << 16
"""Pixels that windows may span for each that they read, and beyond that in any case: copies of them stay small."""


@dataclass(frozen=True)
class Window:
    """A checked geometry with exactly three spatial axes; strides are (n, c, depth, height, width) in elements.

    `dst_strides` also tell in which order results are numbered for an epilogue, whose argument 0 is dst: (n,
    spatial..., c) if no spatial stride is smaller than the channel stride, else (n, c, spatial...).
    """

    src: tuple[int, ...]
    dst: tuple[int, ...]
    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    pads_begin: tuple[int, ...]
    src_strides: tuple[int, ...]
    dst_strides: tuple[int, ...]

    @classmethod
    def make(
        cls,
        src: Sequence[int],
        dst: Sequence[int],
        kernel: Sequence[int],
        *,
        strides: Sequence[int] | None,
        dilations: Sequence[int] | None,
        pads_begin: Sequence[int] | None,
        src_strides: Sequence[int],
        dst_strides: Sequence[int],
    ) -> Window:
        """Check one to three spatial axes (else UnsupportedError) and fill them up; None: ones, or zero pads."""
        ndim = len(src)
        if not 1 <= ndim <= 3:
            raise UnsupportedError(explain("number of spatial axes", accepted="1, 2, 3", got=ndim))
        extra = 3 - ndim

        def fill(name: str, values: Sequence[int] | None, default: int, least: int) -> tuple[int, ...]:
            given = (default,) * ndim if values is None else tuple(map(as_size, values))
            if len(given) != ndim or any(value < least for value in given):
                raise InvalidShapeError(explain(name, accepted=f"{ndim} values >= {least}", got=given))
            return (default,) * extra + given

        for name, given in (("src_strides", src_strides), ("dst_strides", dst_strides)):
            if len(given) != ndim + 2:
                raise InvalidShapeError(explain(name, accepted=f"{ndim + 2} strides", got=tuple(given)))
        return cls(
            fill("source extent", src, 1, 0),
            fill("result extent", dst, 1, 0),
            fill("kernel", kernel, 1, 1),
            fill("strides", strides, 1, 1),
            fill("dilations", dilations, 1, 1),
            fill("pads_begin", pads_begin, 0, 0),
            (*src_strides[:2], *(0,) * extra, *src_strides[2:]),
            (*dst_strides[:2], *(0,) * extra, *dst_strides[2:]),
        )

    @property
    def pixels(self) -> int:
        """Results of one channel of one image."""
        return self.dst[0] * self.dst[1] * self.dst[2]

    @property
    def channels_last(self) -> bool:
        """Whether channels are the innermost axis of dst: the order in which results are numbered."""
        steps = [stride for extent, stride in zip(self.dst, self.dst_strides[2:], strict=True) if extent > 1]
        return not steps or self.dst_strides[1] <= min(steps)

    def rectangles(self, rows: int, cols: int) -> int:
        """Rectangles of so many results that an image is divided into."""
        return self.dst[0] * -(-self.dst[1] // rows) * -(-self.dst[2] // cols)

    def pixels_read(self, rows: int, cols: int) -> int:
        """Pixels of the source, padding included, that a rectangle of results of one plane reads."""
        height = (rows - 1) * self.strides[1] + (self.kernel[1] - 1) * self.dilations[1] + 1
        width = (cols - 1) * self.strides[2] + (self.kernel[2] - 1) * self.dilations[2] + 1
        return self.kernel[0] * height * width

    def rows_within(self, pixels: int, cols: int) -> int:
        """The most rows of a rectangle so wide that reads so many pixels at most; 0 or less if one is too many."""
        lines = pixels // (self.pixels_read(1, cols) // ((self.kernel[1] - 1) * self.dilations[1] + 1))
        return (lines - (self.kernel[1] - 1) * self.dilations[1] - 1) // self.strides[1] + 1

    def fields(self) -> dict[str, Any]:
        """The fields of a struct gp_window."""
        src, dst = self.src_strides, self.dst_strides
        return {
            "in": self.src, "out": self.dst, "kernel": self.kernel, "stride": self.strides,
            "dilation": self.dilations, "pad": self.pads_begin,
            "src_n": src[0], "src_c": src[1], "src": src[2:], "dst_n": dst[0], "dst_c": dst[1], "dst": dst[2:],
            "channels_last": self.channels_last,
        }  # fmt: skip


def fill_geometry(ndim: int, *given: Sequence[int] | None) -> list[Sequence[int]]:
    """Begin and end padding, strides and dilations with their defaults, of the right length and not negative."""
    filled: list[Sequence[int]] = []
    for name, values, default in zip(
        ("pads_begin", "pads_end", "strides", "dilations"), given, (0, 0, 1, 1), strict=True
    ):
        filled.append([default] * ndim if values is None else values)
        if len(filled[-1]) != ndim or any(n < default for n in filled[-1]):
            raise InvalidShapeError(explain(name, accepted=f"{ndim} values >= {default}", got=tuple(filled[-1])))
    return filled


def convolution_window(
    src_spatial: Sequence[int],
    kernel: Sequence[int],
    *,
    strides: Sequence[int] | None,
    pads_begin: Sequence[int] | None,
    pads_end: Sequence[int] | None,
    dilations: Sequence[int] | None,
    src_strides: Sequence[int],
    dst_strides: Sequence[int],
    transposed: bool = False,
    output_padding: Sequence[int] | None = None,
) -> Window:
    """The window of a convolution or a transposed one, with the extent of its results."""
    ndim = len(src_spatial)
    begin, end, steps, gaps = fill_geometry(ndim, pads_begin, pads_end, strides, dilations)
    extra = [0] * ndim if output_padding is None else output_padding
    if len(extra) != ndim or any(n < 0 for n in extra):
        raise InvalidShapeError(explain("output_padding", accepted=f"{ndim} values >= 0", got=tuple(extra)))
    axes = list(zip(src_spatial, kernel, steps, begin, end, gaps, extra, strict=False))
    if transposed:
        dst = [s * (n - 1) + d * (k - 1) + 1 - b - e + x for n, k, s, b, e, d, x in axes]
    else:
        dst = [(n + b + e - d * (k - 1) - 1) // s + 1 for n, k, s, b, e, d, _ in axes]
    return Window.make(
        src_spatial, dst, kernel, strides=steps, dilations=gaps, pads_begin=begin,
        src_strides=src_strides, dst_strides=dst_strides,
    )  # fmt: skip


def is_sparse(
    src: Sequence[int], dst: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> bool:
    """Whether windows span so much more than they read that no kernel should copy all of it, padding included."""
    span = prod((m - 1) * s + (k - 1) * d + 1 for m, k, s, d in zip(dst, kernel, strides, dilations, strict=True))
    return span > _MOST_GAPS * (prod(src) + prod(dst) * prod(kernel)) + _FEW_PIXELS


def image_strides(name: str, strides: Sequence[int], ndim: int, channels: int) -> tuple[int, int, int, int]:
    """Strides of images and of three spatial axes, from those of (n, c, spatial...).

    UnsupportedError: channels with gaps.
    """
    if len(strides) != ndim + 2:
        raise InvalidShapeError(explain(name, accepted=f"{ndim + 2} strides", got=tuple(strides)))
    if strides[1] != 1 and channels > 1:
        raise UnsupportedError(explain(name, accepted="contiguous channels", got=tuple(strides)))
    depth, height, width = (*[0] * (3 - ndim), *strides[2:])
    return strides[0], depth, height, width


def merged_stride(axes: Sequence[tuple[int, int]]) -> int | None:
    """The one stride that walks axes of (extent, stride), outermost first, in row-major order, or None."""
    wide = [(extent, stride) for extent, stride in axes if extent != 1]
    for (_, outer), (extent, inner) in pairwise(wide):
        if outer != extent * inner:
            return None
    return wide[-1][1] if wide else 1


def channel_block(window: Window, channels: int) -> int:
    """Channels of a row task."""
    rows = _TILE_ELEMENTS[window.channels_last] // max(window.dst[2], 1)
    return least(least(largest(rows // 16 * 16, 16), 256), largest(channels, 1))


def single_rows(window: Window, channels: int) -> Window:
    """The window; of results of a single channel as one whose rows are numbered along pixels, as vectors run then."""
    if channels != 1:
        return window
    n, _, *steps = window.dst_strides
    span = 1 + sum(max(dim - 1, 0) * step for dim, step in zip(window.dst, steps, strict=True))
    return replace(window, dst_strides=(n, span, *steps))


def plan_rows(window: Window, batch: int, channels: int, post_ops: PostOps) -> tuple[dict[str, Any], int, int]:
    """Divide results into rows of one image: (fields of gp_row_plan, number of tasks, scratch bytes of the tile)."""
    if batch < 0 or channels < 0:
        raise InvalidShapeError(explain("batch and channels", accepted=">= 0", got=(batch, channels)))
    width, inner = window.dst[2], window.dst_strides[1 if window.channels_last else 4]
    extent, block = channels if window.channels_last else width, channel_block(window, channels)
    has_epilogue = bool(post_ops.epilogue)
    in_scratch = (has_epilogue and post_ops.dst_needs_scratch) or (inner != 1 and extent > 1)
    tile_nbytes = aligned(block * width * 4) if in_scratch else 0
    rows = {
        "window": window.fields(), "channels": channels, "channel_block": block,
        "tile_in_scratch": in_scratch, "has_epilogue": has_epilogue, "room_offset": tile_nbytes,
    }  # fmt: skip
    return rows, batch * -(-channels // block) * window.dst[0] * window.dst[1], tile_nbytes
