"""Convolution of channels-last images in float32 with constant weights: packed once, or by every task.

Kernels: ``f32_conv_packed``, ``f32_conv_plain``, whose tasks pack weights that nobody keeps, ``f32_conv_pack`` and
``f32_conv_unpack``; their sources, and ``gemm/gp_packed.h`` for the panels, say how they work. Channels last was
chosen over blocks of channels: rows of pixels feed the tile of the packed products as they are, channel counts need no
filling up, and every layout is a set of strides, so that borders are plain copies.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from graphpool._dataclasses import dataclass
from graphpool._sizes import Preference, is_variable, key_of, largest, least
from graphpool.errors import UnsupportedError, explain

from ..core.call import KernelCall, pack
from ..gemm.packed import (
    CHAIN,
    MOST_ROWS,
    PANEL_ROWS,
    TILE_PANELS,
    TILE_ROWS,
    epilogue_cols,
    l2_nbytes,
    row_block,
    share_cols,
    streams,
)
from ..gemm.post_ops import NO_POST_OPS, PostOps
from ..gemm.problem import aligned, choose, even_part, shared_part
from ..image.window import Window
from .problem import ConvProblem
from .weights import ConvWeights, PanelFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["F32ConvFormat", "has_lines", "is_staged"]

_Axis: TypeAlias = "tuple[int, tuple[int, ...]]"
"""Its extent, and its strides on every side."""

_Axes: TypeAlias = "Sequence[_Axis]"

_FEW_CHANNELS = 16
"""Input channels up to which a task stages its source, so that the taps of a row of the kernel are one product.

Where these read no pixels side by side nothing is won, and a dilated window reads far more rows than a task has.
"""

_STAGED_PIXELS = 384
"""Pixels of a task that stages its source: enough rows that those which two tasks both read matter little."""

_LEAST_WORK = 2**18
"""Multiply-adds of a task, about 5 microseconds: threads that share a layer end within one task of each other."""

_PLAIN_PIXELS = 768
"""Pixels of a task that packs its weights: beside so many, packing costs a few percent."""


def is_staged(in_channels: int, kernel: Sequence[int], dilations: Sequence[int] | None, groups: int = 1) -> bool:
    """Whether tasks stage their source, which may then lie by any strides; else its channels must be contiguous."""
    has_rows = len(kernel) > 0 and kernel[-1] > 1 and (dilations is None or dilations[-1] == 1)
    return in_channels <= _FEW_CHANNELS * groups and has_rows


@dataclass(frozen=True)
class F32ConvFormat(PanelFormat):
    """A `ConvFormat`: for each group and product of a pixel a matrix of (merged taps, channels) x channels."""

    packed_dtype = "f32"
    is_exact = True

    @property
    def is_staged(self) -> bool:
        """Whether tasks stage their source, so that the taps of a row of the kernel are one product."""
        return is_staged(self.shape.in_channels, self.shape.kernel, self.shape.dilations, self.shape.groups)

    @property
    def _weights(self) -> ConvWeights:
        return ConvWeights.make(self.shape, "f32", self.isa, merges=self.is_staged)

    def pack(self, strides: Sequence[int]) -> KernelCall:
        """See `ConvFormat`: one task for each panel; no scratch."""
        return self._move("f32_conv_pack", strides)

    def unpack(self, strides: Sequence[int]) -> KernelCall:
        """See `ConvFormat`."""
        return self._move("f32_conv_unpack", strides)

    def convolution(self, problem: ConvProblem, post_ops: PostOps = NO_POST_OPS) -> KernelCall:
        """See `ConvFormat`: channels of dst are contiguous, and `has_lines` holds; those of src unless `is_staged`.

        Tasks are blocks of pixels by blocks of output channels of a group.

        Notes
        -----
        Cost: 2 * taps * channels a result, less what lies in the padding of whole tiles.
        Source: implicit products through a table of rows, Dukhan, "The indirect convolution algorithm", 2019.
        """
        return self._convolution(problem, post_ops, post_ops.float_fields(), None)

    def unpacked_convolution(
        self,
        problem: ConvProblem,
        weights_strides: Sequence[int],
        post_ops: PostOps,
        *,
        scale: bool = False,
    ) -> KernelCall:
        """`convolution` with weights as `pack` takes them: every task packs its columns in its scratch.

        With `scale` an argument behind the weights holds numbers of shape (out_channels,), f32, by which these are
        multiplied.
        """
        plain = self._weights.pack_fields(weights_strides, "f32")
        return self._convolution(problem, post_ops, post_ops.float_fields(2 + scale) | {"scale_arg": 2 * scale}, plain)

    def _convolution(
        self, problem: ConvProblem, post_ops: PostOps, post: dict[str, Any], plain: dict[str, Any] | None
    ) -> KernelCall:
        weights, window, stage = self._weights, problem.window, self.is_staged
        if not stage and (window.src_strides[1] != 1 and weights.ic > 1):
            raise UnsupportedError(explain("src_strides", accepted="contiguous channels", got=problem.src_strides))
        runs = _Runs.find(problem.batch, window, problem.result_images(post_ops), stage=stage)
        if post_ops.epilogue and runs.line < runs.pixels:
            post["tile_in_scratch"] = True  # an epilogue reads rows of one stride
        post |= {"stage": stage}
        return _build(window, weights, runs, post, plain, post_ops.epilogue, self.isa, problem.threads)


@dataclass(frozen=True)
class _Runs:
    """Results as `count` runs of `pixels`, in lines of `line`.

    `dst` and `residual`: from one run, line and pixel to the next. Unit: elements.
    """

    count: int
    pixels: int
    line: int
    dst: tuple[int, ...]
    residual: tuple[int, ...]

    @classmethod
    def find(cls, batch: int, window: Window, sides: Sequence[tuple[int, ...]], *, stage: bool) -> _Runs:
        """The fewest runs, of the longest lines; `sides` are the strides of dst and of the residual.

        A staged source belongs to one plane of an image, and to one row where rows are wide.
        """
        axes = list(zip((batch, *window.dst), zip(*sides, strict=True), strict=True))
        found = [cls._split(axes, whole, window) for whole in _whole_axes(axes, stage=stage)]
        return found[0] if len(found) == 1 else found[0].up_to(_STAGED_PIXELS, window.dst[2], found[1])

    @classmethod
    def _split(cls, axes: _Axes, whole: int, window: Window) -> _Runs:
        """Runs that take so many of the axes for themselves, as far as they do."""
        outer, inner = _fold(axes, whole)
        if len(outer) > 1 or len(inner) > 2:
            accepted = "contiguous channels, and pixels in runs of lines that one stride walks each"
            raise UnsupportedError(explain("dst_strides", accepted=accepted, got=window.dst_strides))
        none = 1, (0,) * len(axes[0][1])
        (lines, line_steps), (line, steps) = inner if len(inner) > 1 else (none, inner[0] if inner else none)
        count, run_steps = outer[0] if outer else none
        found = list(zip(run_steps, line_steps, steps, strict=True))
        return cls(count, lines * line, line, *found)

    def up_to(self, most: int, width: int, wider: _Runs) -> _Runs:
        """These for widths up to the most, others for wider ones."""
        pick = partial(choose, width, most)
        return _Runs(
            pick(self.count, wider.count), pick(self.pixels, wider.pixels), pick(self.line, wider.line),
            tuple(map(pick, self.dst, wider.dst)), tuple(map(pick, self.residual, wider.residual)),
        )  # fmt: skip


def _whole_axes(axes: _Axes, *, stage: bool) -> tuple[int, ...]:
    """How many axes each run takes for itself: where the width varies, for narrow results and for wide ones."""
    if not stage:
        return (0,)
    width = axes[-1][0]
    if is_variable(width) and len(_merge(axes[:3])) < 2:
        return (2, 3)
    return (3 if width > _STAGED_PIXELS else 2,)


def _fold(axes: _Axes, whole: int) -> tuple[_Axes, _Axes]:
    """The axes of runs that take so many for themselves, and those within a run."""
    outer, inner = _merge(axes[:whole]), _merge(axes[whole:])
    return (inner[:1], inner[1:]) if not whole and len(inner) > 2 else (outer, inner)


def _merge(axes: _Axes) -> list[_Axis]:
    """The fewest axes that walk the same elements in the same order."""
    merged: list[_Axis] = []
    for extent, strides in reversed(axes):
        if extent == 1:
            continue
        if merged and all(a == merged[0][0] * b for a, b in zip(strides, merged[0][1], strict=True)):
            merged[0] = extent * merged[0][0], merged[0][1]
        else:
            merged.insert(0, (extent, strides))
    return merged


def has_lines(batch: int, spatial: Sequence[int], strides: Sequence[int], *, stage: bool) -> bool:
    """Whether `F32ConvFormat.convolution` can write results by these strides, (n, c, spatial...).

    `stage`: whether its tasks stage their source.
    """
    fill = 3 - len(spatial)
    shape, steps = (batch, *[1] * fill, *spatial), (strides[0], *[0] * fill, *strides[2:])
    axes = [(extent, (step,)) for extent, step in zip(shape, steps, strict=True)]
    folded = [_fold(axes, whole) for whole in _whole_axes(axes, stage=stage)]
    return strides[1] == 1 and all(len(outer) < 2 and len(inner) < 3 for outer, inner in folded)


def _build(
    window: Window, weights: ConvWeights, runs: _Runs, values: dict[str, float], plain: dict[str, Any] | None,
    epilogue: bytes, isa: str | None, threads: int,
) -> KernelCall:  # fmt: skip
    """Blocks, parts of scratch and parameter block of a problem."""
    ic, oc, groups, taps, stage = weights.ic, weights.oc, weights.groups, weights.runs, bool(values["stage"])
    pixels = _pixel_block(window, runs, MOST_ROWS if plain is None else _PLAIN_PIXELS, stage=stage)
    most_panels = TILE_PANELS if plain is None else _panels_at_once(pixels, weights)
    cols = most_panels * weights.panel
    if plain is None:
        pixels, cols = _share(window, weights, runs, pixels, threads, stage=stage, has_epilogue=bool(epilogue))
    tap_block = taps if plain else _tap_block(pixels, weights)
    partial_offset = aligned(pixels * cols * 4) if values["tile_in_scratch"] else 0
    table_offset = partial_offset + (pixels * TILE_PANELS * weights.panel * 4 if tap_block < taps else 0)
    room_offset = table_offset + aligned(taps * pixels * 8)
    panels_offset = room_offset + aligned(_pixels_staged(window, pixels) * ic * 4 if stage else ic * 4)
    fields = values | {
        "is_plain": plain is not None, "plain": plain or {}, "most_panels": most_panels,
        "groups": groups, "ic": ic, "oc": oc, "window": window.fields(), "runs": runs.count,
        "run_pixels": runs.pixels, "line_pixels": runs.line, "words": weights.words, "taps": taps,
        "taps_wide": window.kernel[2] // weights.merged, "w_tap": weights.words * weights.oc * 4,
        "w_group": 4 * plain["w_group"] if plain else weights.group_nbytes, "dst_run": runs.dst[0],
        "dst_line": runs.dst[1], "dst_pixel": runs.dst[2], "residual_run": runs.residual[0],
        "residual_line": runs.residual[1], "residual_pixel": runs.residual[2], "pixel_block": pixels,
        "col_block": cols, "tap_block": tap_block, "partial_offset": partial_offset, "table_offset": table_offset,
        "room_offset": room_offset, "panels_offset": panels_offset,
    }  # fmt: skip
    blocks = -(-runs.pixels // pixels) * -(-oc // cols) if ic or oc else 0
    return pack(
        "f32_conv_plain" if plain else "f32_conv_packed", fields, ntasks=runs.count * groups * blocks,
        scratch_nbytes=panels_offset + (taps * weights.words * cols * 4 if plain else 0), tail=epilogue, isa=isa,
    )  # fmt: skip


def _panels_at_once(pixels: int, weights: ConvWeights) -> int:
    """Panels that a task packs and reads at once: those that L2 keeps beside the source."""
    most = l2_nbytes() * 3 // 4 // (weights.panel * max(weights.runs * weights.words, 1) * 4)
    return next((count for count in (4, 2) if count <= min(most, streams(pixels))), 1)


def _pixel_block(window: Window, runs: _Runs, most: int, *, stage: bool) -> int:
    """Pixels of a task: even parts of a run in whole tiles, or whole lines; with a staged source rows, or a part."""
    if not stage:
        with Preference(runs.line, runs.pixels):
            is_in_lines = runs.line < runs.pixels and runs.line <= most
        if is_in_lines:
            return most // largest(runs.line, 1) * runs.line
        return row_block(least(runs.line, runs.pixels), most)
    width = largest(window.dst[2], 1)
    parts = largest(-(-window.dst[1] * width // _STAGED_PIXELS), 1)
    rows = largest(-(-window.dst[1] // parts), 1) * width
    return choose(width, _STAGED_PIXELS, rows, even_part(width, -(-width // _STAGED_PIXELS)))


def _share(
    window: Window, weights: ConvWeights, runs: _Runs, pixels: int, threads: int, *, stage: bool, has_epilogue: bool
) -> tuple[int, int]:
    """Pixels and columns of a task: as many pixels as given, or fewer where so many threads then end sooner."""

    def find_cols(pixels: int) -> int:
        cols = weights.worthwhile_cols(pixels, _LEAST_WORK)
        if has_epilogue:
            blocks = runs.count * weights.groups * -(-runs.pixels // largest(pixels, 1))
            cols = largest(cols, epilogue_cols(weights.oc, blocks, threads))
        return weights.col_block(pixels, weights.oc // cols)

    def tasks(pixels: int) -> tuple[int, int]:
        cols = find_cols(pixels)
        return runs.count * weights.groups * -(-weights.oc // cols), cols

    if is_variable(runs.pixels) and (stage or key_of(runs.line) != key_of(runs.pixels)):
        return pixels, find_cols(pixels)  # of whole lines
    line = largest(window.dst[2], 1) if stage else runs.line
    unit = line if not is_variable(runs.pixels) and line < runs.pixels else TILE_ROWS
    fixed = PANEL_ROWS + (line if stage else 0)  # two tasks both stage a row or so
    pixels = shared_part(threads, runs.pixels, pixels, tasks, fixed, unit, pixels)
    blocks = runs.count * weights.groups * -(-runs.pixels // pixels)
    least_cols = weights.worthwhile_cols(pixels, _LEAST_WORK)
    return pixels, share_cols(threads, weights.oc, find_cols(pixels), pixels, blocks, weights.panel, least_cols)


def _tap_block(pixels: int, weights: ConvWeights) -> int:
    """Taps at a time: all, unless several tiles of pixels read panels that L2 would not keep."""
    with Preference(pixels):
        is_one_tile = pixels <= TILE_ROWS
    if is_one_tile:
        return weights.runs
    most = max(l2_nbytes() * 3 // 4 // (weights.unit(pixels) * 4 * max(weights.words, 1)), 1)
    return even_part(weights.runs, -(-weights.runs // most), -(-CHAIN // largest(weights.words, 1)))  # whole chains


def _pixels_staged(window: Window, pixels: int) -> int:
    """Pixels of the source that a task reads."""
    cols = least(pixels, largest(window.dst[2], 1))
    return window.pixels_read(pixels // cols, cols)
