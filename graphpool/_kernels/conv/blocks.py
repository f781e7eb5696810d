"""Blocks of a convolution that multiplies runs of words, whatever the type: ``conv/gp_conv_blocks.h``.

A task is a rectangle of pixels by a block of output channels of a group; how large, each type says itself.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import NamedTuple
from graphpool._sizes import is_variable, largest

from ..core.call import KernelCall, pack
from ..gemm.packed import PANEL_ROWS, TILE_ROWS, has_amx, pairs_nbytes, tiles_nbytes
from ..gemm.problem import aligned, shared_part
from ..image.window import Window

if TYPE_CHECKING:
    from collections.abc import Callable

    from .weights import ConvWeights

__all__ = ["ConvBlocks", "reads_pixels_in_place", "shared_rectangle"]

GATHER_NBYTES = 32
"""``GP_GATHER_NBYTES``."""


def reads_pixels_in_place(window: Window, weights: ConvWeights) -> bool:
    """Whether pixels are whole words where they lie: one tap, all of it inside the image, contiguous channels."""
    return (
        max(window.kernel) == 1
        and weights.ic == weights.pixel
        and weights.ic % weights.depth == 0
        and window.src_strides[1] == 1
        and not any(window.pads_begin)
        and all((n - 1) * s < m for n, s, m in zip(window.dst, window.strides, window.src, strict=True))
    )


def shared_rectangle(
    batch: int, window: Window, weights: ConvWeights, rectangle: tuple[int, int], find_cols: Callable[[int, int], int],
    threads: int,
) -> tuple[int, int]:  # fmt: skip
    """Rows and columns of a task: those given, or fewer rows (of one row, columns) where threads then end sooner.

    `find_cols` tells the output channels of a task on a rectangle.
    """
    (_, height, width), (rows, cols) = window.dst, rectangle
    images = batch * window.dst[0] * weights.groups

    def tasks(rows: int, cols: int, lines: int) -> tuple[int, int]:
        col_block = find_cols(rows, cols)
        return images * lines * -(-weights.oc // col_block), col_block

    if not is_variable(height) and height == 1:
        cols = shared_part(threads, width, cols, lambda part: tasks(1, part, 1), PANEL_ROWS, TILE_ROWS, cols)
        return rows, cols
    lines, fixed = -(-width // cols), -(-PANEL_ROWS // largest(cols, 1))
    return shared_part(threads, height, rows, lambda part: tasks(part, cols, lines), fixed, 1, rows), cols


class ConvBlocks(NamedTuple):
    """How a convolution is divided.

    `dst` and `residual` are strides of images and of pixels (unit: elements), `rows` and `cols` those of a task's
    rectangle of results, `col_block` its output channels. `is_direct`: pixels are read where they lie
    (`reads_pixels_in_place`); `has_tile`: results pass through scratch; `is_shifted`: the words of pixels come to
    scratch less their shifts, or may.
    """

    batch: int
    window: Window
    weights: ConvWeights
    dst: tuple[int, int]
    residual: tuple[int, int]
    rows: int
    cols: int
    col_block: int
    is_direct: bool
    has_tile: bool
    is_shifted: bool = False

    def call(
        self, name: str, post: dict[str, Any], own: dict[str, Any], *, element_nbytes: int, epilogue: bytes,
        isa: str | None,
    ) -> KernelCall:  # fmt: skip
        """The kernel `name`, whose struct begins with ``blocks``.

        `post` holds the fields of the post-ops, `own` those of the kernel that struct gp_conv_blocks has not.
        """
        weights, window = self.weights, self.window
        offsets, scratch_nbytes = self._scratch(isa)
        blocks = {
            "window": window.fields(), "groups": weights.groups, "ic": weights.ic, "oc": weights.oc,
            "merged": weights.merged, "words": weights.words, "runs": weights.runs, "side": weights.side,
            "shifts": weights.shifts, "pitch": self._pitch, "element_nbytes": element_nbytes,
            "pixel_nbytes": weights.pixel_nbytes, "w_group": weights.group_nbytes, "block_rows": self.rows,
            "block_cols": self.cols, "col_block": self.col_block, "dst_n": self.dst[0], "dst_pixel": self.dst[1],
            "residual_n": self.residual[0], "residual_pixel": self.residual[1], "is_direct": self.is_direct,
            **offsets, **{name: post[name] for name in ("bias_arg", "dst_arg", "has_epilogue")},
        }  # fmt: skip
        parts = self.batch * window.rectangles(self.rows, self.cols) * weights.groups
        return pack(
            name, own | {"blocks": blocks}, ntasks=parts * -(-weights.oc // self.col_block),
            scratch_nbytes=scratch_nbytes, tail=epilogue, isa=isa,
        )  # fmt: skip

    @property
    def _pitch(self) -> int:
        """Of the words of a pixel in scratch: whole groups of a shift, unless read where they lie. Unit: bytes."""
        nbytes = self.weights.words * 4
        return aligned(nbytes) if self.weights.shifts and not self.is_direct else nbytes

    def _scratch(self, isa: str | None) -> tuple[dict[str, int], int]:
        """Where rows, runs and what follows them lie in scratch, and its size. Unit: bytes."""
        pixels, weights = self.rows * self.cols, self.weights
        ntiles, is_gathered = -(-pixels // TILE_ROWS), weights.merged > weights.side
        rows = aligned(pixels * self.col_block * 4) if self.has_tile else 0
        runs = rows + pixels * 8
        sums = runs + math.prod(weights.kernel) // weights.side * 8
        shifts = sums + pixels * 4
        largest = shifts + ntiles * weights.shifts * 4
        words = aligned(largest + pairs_nbytes(ntiles, weights.pairs))
        tiles = words
        if is_gathered or self.is_shifted:
            tiles += aligned(pixels * self._pitch + GATHER_NBYTES)
        room = tiles
        if has_amx(isa):
            room += aligned(tiles_nbytes(pixels, weights.runs * weights.words, weights.runs))
        offsets = {
            "rows_offset": rows, "runs_offset": runs, "sums_offset": sums, "shift_offset": shifts,
            "largest_offset": largest, "words_offset": words, "tiles_offset": tiles, "room_offset": room,
        }  # fmt: skip
        if self.is_direct:
            return offsets, room
        beyond = self._pitch - weights.merged * weights.pixel_nbytes  # what the last pixel reads
        if is_gathered:
            beyond = GATHER_NBYTES
        return offsets, room + self.window.pixels_read(self.rows, self.cols) * weights.pixel_nbytes + beyond
