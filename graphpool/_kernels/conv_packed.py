"""Convolution of channels-last images with constant weights: packed once, then used on any number of images.

    layout = packed_conv_layout(64, 64, (3, 3))            # how many bytes, and the id of the opaque layout
    pack_conv_weights(64, 64, (3, 3), strides)(w, packed)  # once
    packed_convolution(1, 64, 64, (56, 56), (3, 3), ..., bias=True, clamp=(0, inf))(x, packed, bias, dst)

Kernels: ``f32_conv_packed``, ``f32_conv_plain``, whose tasks pack weights that nobody keeps, ``pack_conv_weights`` and
``unpack_conv_weights``; their sources, and ``include/gp_packed.h`` for the panels, say how they work. Channels last was
chosen over blocks of channels: rows of pixels feed the tile of the packed products as they are, channel counts need no
filling up, and every layout is a set of strides, so that borders are plain copies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from graphpool.errors import InvalidArgumentError, InvalidShapeError, UnsupportedError, explain

from .call import KernelCall, pack
from .conv_weights import CONV_PACK_LAYOUT, ConvWeights
from .matmul import aligned
from .packed import MOST_ROWS, TILE_PANELS, TILE_ROWS, PackedLayout, l2_nbytes, row_block, streams, tail_fields
from .records import Record
from .window import WINDOW_LAYOUT, Window, convolution_window, image_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "has_lines",
    "is_staged",
    "pack_conv_weights",
    "packed_conv_layout",
    "packed_convolution",
    "unpack_conv_weights",
]

_KIND = 2
"""The kind of opaque layout: weights of a convolution."""

_FEW_CHANNELS = 16
"""Input channels up to which a task stages its source, so that the taps of a row of the kernel are one product."""

_STAGED_PIXELS = 384
"""Pixels of a task that stages its source: enough rows that those which two tasks both read matter little."""

_LEAST_WORK = 2**18
"""Multiply-adds of a task, about 5 microseconds: lanes that share a layer end within one task of each other."""

_PLAIN_PIXELS = 768
"""Pixels of a task that packs its weights: beside so many, packing costs a few percent."""

_LAYOUT = Record(
    [
        *[(name, "i8") for name in ("groups", "ic", "oc")],
        ("kernel", "i8", 3),
        *[(name, "i8") for name in ("merged", "w_group", "w_oc", "w_ic")],
        ("w", "i8", 3),
        *[(name, "i8") for name in ("group_pitch", "tap_pitch")],
    ]
)
_LAYOUT = Record(
    [
        ("window", WINDOW_LAYOUT),
        *[(name, "i8") for name in ("groups", "ic", "oc", "runs", "run_pixels", "line_pixels", "words", "taps")],
        *[(name, "i8") for name in ("taps_wide", "w_group", "w_tap", "dst_pixel", "dst_line", "dst_run")],
        *[(name, "i8") for name in ("residual_pixel", "residual_line", "residual_run")],
        *[(name, "i8") for name in ("scale_arg", "bias_arg", "residual_arg", "dst_arg")],
        *[(name, "i8") for name in ("pixel_block", "col_block", "tap_block", "most_panels")],
        *[(name, "i8") for name in ("stage", "tile_in_scratch", "has_epilogue", "is_plain")],
        *[(name, "i8") for name in ("partial_offset", "table_offset", "room_offset", "panels_offset")],
        ("plain", CONV_PACK_LAYOUT),
        *[(name, "f4") for name in ("lo", "hi")],
    ]
)


def is_staged(in_channels: int, kernel: Sequence[int], groups: int = 1) -> bool:
    """Whether tasks stage their source, which may then lie by any strides; else its channels must be contiguous."""
    return in_channels <= _FEW_CHANNELS * groups and len(kernel) < 3 and max(kernel, default=1) > 1


def packed_conv_layout(
    in_channels: int,
    out_channels: int,
    kernel: Sequence[int],
    *,
    groups: int = 1,
    dilations: Sequence[int] | None = None,
    isa: str | None = None,
) -> PackedLayout:
    """The layout of the weights of a convolution: for each group and product of a pixel, a matrix in panels.

    Parameters
    ----------
    in_channels, out_channels : int
        Multiples of `groups`.
    kernel : sequence of int
        One to three axes.
    groups : int, default=1
    dilations : sequence of int, optional
        Ones by default.
    isa : str, optional
        Instruction set; the best one by default.

    Returns
    -------
    PackedLayout
        ``pitch`` is that of a matrix of (taps that are one product, input channels) x output channels.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError, UnsupportedError
        A negative size; channels that `groups` does not divide; an unknown instruction set.
    """
    weights = _weights(in_channels, out_channels, kernel, groups, dilations, isa)
    layout_id = _KIND << 24 | (weights.merged > 1) << 16 | weights.panel
    pitch = weights.words * weights.cols * 4
    return PackedLayout(layout_id, weights.nbytes, pitch, weights.panel, weights.words)


def _weights(
    in_channels: int,
    out_channels: int,
    kernel: Sequence[int],
    groups: int,
    dilations: Sequence[int] | None,
    isa: str | None,
) -> ConvWeights:
    """Only tasks that stage their source merge taps."""
    merges = is_staged(in_channels, kernel, groups)
    sizes = in_channels, out_channels, kernel
    return ConvWeights.make(*sizes, groups=groups, dilations=dilations, dtype="f32", merges=merges, isa=isa)


def pack_conv_weights(
    in_channels: int,
    out_channels: int,
    kernel: Sequence[int],
    strides: Sequence[int],
    *,
    groups: int = 1,
    dilations: Sequence[int] | None = None,
    isa: str | None = None,
) -> KernelCall:
    """A kernel that brings the weights of a convolution into panels.

    Arguments of the kernel: weights, packed (`packed_conv_layout` says how many bytes).

    Parameters
    ----------
    in_channels, out_channels, kernel, groups, dilations, isa
        As in `packed_conv_layout`.
    strides : sequence of int
        (group, out channel in the group, in channel in the group, spatial...), any. Unit: elements.

    Returns
    -------
    KernelCall
        One task for each panel; no scratch.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError, UnsupportedError
        As in `packed_conv_layout`; strides that do not fit the kernel.

    Notes
    -----
    Cost: one read and one write of the weights, a quarter of a nanosecond each where columns or rows are contiguous.
    """
    weights = _weights(in_channels, out_channels, kernel, groups, dilations, isa)
    return weights.pack_call("pack_conv_weights", weights.pack_fields(strides, "f32"), isa)


def unpack_conv_weights(
    in_channels: int,
    out_channels: int,
    kernel: Sequence[int],
    strides: Sequence[int],
    *,
    groups: int = 1,
    dilations: Sequence[int] | None = None,
    isa: str | None = None,
) -> KernelCall:
    """The inverse of `pack_conv_weights`, bit for bit, with the same parameters; arguments: packed, weights."""
    weights = _weights(in_channels, out_channels, kernel, groups, dilations, isa)
    return weights.pack_call("unpack_conv_weights", weights.pack_fields(strides, "f32"), isa)


@dataclass(frozen=True)
class _Runs:
    """Results as runs of lines of pixels: of each, how many elements it steps over on a side. Unit: elements.

    Attributes
    ----------
    count, pixels, line : int
        Runs, pixels of a run, pixels of a line.
    dst, residual : tuple of int
        From one run, line and pixel to the next.
    """

    count: int
    pixels: int
    line: int
    dst: tuple[int, ...]
    residual: tuple[int, ...]

    @classmethod
    def find(cls, batch: int, window: Window, sides: Sequence[tuple[int, ...]], *, stage: bool) -> _Runs:
        """The fewest runs, of the longest lines; `sides` are the strides of dst and perhaps of the residual.

        A staged source belongs to one image, and to one row where rows are wide.
        """
        axes = list(zip((batch, *window.dst), zip(*sides, strict=True), strict=True))
        whole = 0 if not stage else 3 if window.dst[2] > _STAGED_PIXELS else 1
        outer, inner = _merge(axes[:whole]), _merge(axes[whole:])
        if not whole and len(inner) > 2:
            outer, inner = inner[:1], inner[1:]
        if len(outer) > 1 or len(inner) > 2:
            accepted = "contiguous channels, and pixels in runs of lines that one stride walks each"
            raise UnsupportedError(explain("dst_strides", accepted=accepted, got=window.dst_strides))
        none = 1, (0,) * len(sides)
        (lines, line_steps), (line, steps) = inner if len(inner) > 1 else (none, inner[0] if inner else none)
        count, run_steps = outer[0] if outer else none
        found = list(zip(run_steps, line_steps, steps, strict=True))
        return cls(count, lines * line, line, found[0], found[-1])


def _merge(axes: Sequence[tuple[int, tuple[int, ...]]]) -> list[tuple[int, tuple[int, ...]]]:
    """The fewest axes of (extent, strides on every side) that walk the same elements in the same order."""
    merged: list[tuple[int, tuple[int, ...]]] = []
    for extent, strides in reversed(axes):
        if extent == 1:
            continue
        if merged and all(a == merged[0][0] * b for a, b in zip(strides, merged[0][1], strict=True)):
            merged[0] = extent * merged[0][0], merged[0][1]
        else:
            merged.insert(0, (extent, strides))
    return merged


def has_lines(batch: int, spatial: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether `packed_convolution` can write results by these strides, (n, c, spatial...)."""
    axes = list(zip((batch, *spatial), ((stride,) for stride in (strides[0], *strides[2:])), strict=True))
    return strides[1] == 1 and len(_merge(axes)) < 4


def packed_convolution(
    batch: int,
    in_channels: int,
    out_channels: int,
    src_spatial: Sequence[int],
    kernel: Sequence[int],
    *,
    src_strides: Sequence[int],
    dst_strides: Sequence[int],
    strides: Sequence[int] | None = None,
    pads_begin: Sequence[int] | None = None,
    pads_end: Sequence[int] | None = None,
    dilations: Sequence[int] | None = None,
    groups: int = 1,
    weights_strides: Sequence[int] | None = None,
    scale: bool = False,
    bias: bool = False,
    residual_strides: Sequence[int] | None = None,
    clamp: tuple[float, float] | None = None,
    epilogue: bytes = b"",
    dst_needs_scratch: bool = True,
    isa: str | None = None,
) -> KernelCall:
    """A kernel for ``dst = clamp(convolution(src, weights) + bias + residual)`` on f32 images.

    Arguments of the kernel: src, packed weights, scale, bias and residual if they are asked for, dst, then arguments 1,
    2, ... of the epilogue (its argument 0 is dst). Bias, residual and clamp are done on registers and cost next to
    nothing; an epilogue then reads what they made.

    Parameters
    ----------
    batch, in_channels, out_channels, src_spatial, kernel, strides, pads_begin, pads_end, dilations, groups
        As in `graphpool._kernels.conv.convolution`.
    src_strides, dst_strides : sequence of int
        (n, c, spatial...). Channels of dst are contiguous, and `has_lines` holds of it; channels of src are contiguous
        too, unless `is_staged`. Unit: elements.
    weights_strides : sequence of int, optional
        The weights are not packed but lie by these strides, as `pack_conv_weights` takes them: every task packs its
        columns in its scratch. Unit: elements.
    scale : bool, default=False
        The weights, which are not packed, are multiplied by a scale of shape (out_channels,), f32.
    bias : bool, default=False
        There is a bias of shape (out_channels,), f32.
    residual_strides : sequence of int, optional
        There is a residual, f32, of dst's shape, which may be dst itself; strides as in `dst_strides`.
    clamp : (float, float), optional
        Least and greatest result; ``(0, inf)`` is ReLU. NaN stays.
    epilogue : bytes
        A program from ``EltwiseBuilder.epilogue()`` over the iteration space (n, spatial..., c), that reads the
        results as its accumulator.
    dst_needs_scratch : bool, default=True
        As in `graphpool._kernels.packed.packed_matmul`.
    isa : str, optional
        Instruction set; the best one by default. It must be one with the layout of the packed weights.

    Returns
    -------
    KernelCall
        Tasks are blocks of pixels by blocks of output channels of a group.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError
        The arguments do not fit each other.
    UnsupportedError
        Strides that the kernel does not take; an unknown instruction set.

    Notes
    -----
    Threads: the KernelCall is immutable; tasks write disjoint parts of dst. dst must not overlap src.
    Cost: 2 * taps * channels a result, less what lies in the padding of whole tiles.
    Source: implicit products through a table of rows, Dukhan, "The indirect convolution algorithm", 2019.
    """
    weights = _weights(in_channels, out_channels, kernel, groups, dilations, isa)
    window = convolution_window(
        src_spatial, kernel, strides=strides, pads_begin=pads_begin, pads_end=pads_end, dilations=dilations,
        src_strides=src_strides, dst_strides=dst_strides,
    )  # fmt: skip
    if batch < 0:
        raise InvalidShapeError(explain("batch", accepted=">= 0", got=batch))
    if scale and weights_strides is None:
        raise InvalidArgumentError(explain("scale", accepted="with weights_strides"))
    tail = {"scale_arg": 2 * scale} | tail_fields(
        first_arg=2 + scale, bias=bias, residual=residual_strides is not None, clamp=clamp, epilogue=epilogue,
        in_scratch=dst_needs_scratch,
    )  # fmt: skip
    stage = is_staged(in_channels, kernel, groups)
    if not stage and (window.src_strides[1] != 1 and weights.ic > 1):
        raise UnsupportedError(explain("src_strides", accepted="contiguous channels", got=tuple(src_strides)))
    given = {"dst_strides": dst_strides, "residual_strides": residual_strides}
    sides = [
        image_strides(name, side, len(src_spatial), out_channels) for name, side in given.items() if side is not None
    ]
    runs = _Runs.find(batch, window, sides, stage=stage)
    if epilogue and runs.line < runs.pixels:
        tail["tile_in_scratch"] = True  # an epilogue reads rows of one stride
    plain = None if weights_strides is None else weights.pack_fields(weights_strides, "f32")
    return _build(window, weights, runs, tail | {"stage": stage}, plain, epilogue, isa)


def _build(
    window: Window, weights: ConvWeights, runs: _Runs, values: dict[str, float], plain: dict[str, Any] | None,
    epilogue: bytes, isa: str | None,
) -> KernelCall:  # fmt: skip
    """Blocks, parts of scratch and parameter block of a problem."""
    ic, oc, groups, taps, stage = weights.ic, weights.oc, weights.groups, weights.runs, bool(values["stage"])
    pixels = _pixel_block(window, runs, MOST_ROWS if plain is None else _PLAIN_PIXELS, stage=stage)
    most_panels = TILE_PANELS if plain is None else _panels_at_once(pixels, weights)
    cols = most_panels * weights.panel
    if plain is None:
        cols = weights.col_block(pixels, weights.worthwhile_parts(pixels, _LEAST_WORK))
    tap_block = taps if plain else _tap_block(pixels, weights)
    partial_offset = aligned(pixels * cols * 4) if values["tile_in_scratch"] else 0
    table_offset = partial_offset + (pixels * TILE_PANELS * weights.panel * 4 if tap_block < taps else 0)
    room_offset = table_offset + aligned(taps * pixels * 8)
    panels_offset = room_offset + aligned(_pixels_staged(window, pixels) * ic * 4 if stage else ic * 4)
    fields = values | {
        "is_plain": plain is not None, "plain": CONV_PACK_LAYOUT.pack(plain or {}), "most_panels": most_panels,
        "groups": groups, "ic": ic, "oc": oc, "window": window.record(), "runs": runs.count,
        "run_pixels": runs.pixels, "line_pixels": runs.line, "words": weights.words, "taps": taps,
        "taps_wide": window.kernel[2] // weights.merged, "w_tap": weights.words * weights.cols * 4,
        "w_group": 4 * plain["w_group"] if plain else weights.group_nbytes, "dst_run": runs.dst[0],
        "dst_line": runs.dst[1], "dst_pixel": runs.dst[2], "residual_run": runs.residual[0],
        "residual_line": runs.residual[1], "residual_pixel": runs.residual[2], "pixel_block": pixels,
        "col_block": cols, "tap_block": tap_block, "partial_offset": partial_offset, "table_offset": table_offset,
        "room_offset": room_offset, "panels_offset": panels_offset,
    }  # fmt: skip
    blocks = -(-runs.pixels // pixels) * -(-oc // cols) if ic or oc else 0
    return pack(
        "f32_conv_plain" if plain else "f32_conv_packed", _LAYOUT, fields, ntasks=runs.count * groups * blocks,
        scratch_nbytes=panels_offset + (taps * weights.words * cols * 4 if plain else 0), tail=epilogue, isa=isa,
    )  # fmt: skip


def _panels_at_once(pixels: int, weights: ConvWeights) -> int:
    """Panels that a task packs and reads at once: those that L2 keeps beside the source."""
    most = l2_nbytes() * 3 // 4 // (weights.panel * max(weights.runs * weights.words, 1) * 4)
    return next((count for count in (4, 2) if count <= min(most, streams(pixels))), 1)


def _pixel_block(window: Window, runs: _Runs, most: int, *, stage: bool) -> int:
    """Pixels of a task: even parts of a run in whole tiles, or whole lines; with a staged source rows, or a part."""
    if not stage:
        lines = most // max(runs.line, 1) if runs.line < runs.pixels else 0
        return lines * runs.line if lines else row_block(min(runs.line, runs.pixels), most)
    width = max(window.dst[2], 1)
    if width > _STAGED_PIXELS:
        return -(-width // -(-width // _STAGED_PIXELS))
    parts = max(-(-window.dst[1] * width // _STAGED_PIXELS), 1)
    return max(-(-window.dst[1] // parts), 1) * width


def _tap_block(pixels: int, weights: ConvWeights) -> int:
    """Taps at a time: all, unless several tiles of pixels read panels that L2 would not keep."""
    if pixels <= TILE_ROWS:
        return weights.runs
    most = max(l2_nbytes() * 3 // 4 // (weights.unit(pixels) * 4 * max(weights.words, 1)), 1)
    parts = -(-weights.runs // most)
    return -(-weights.runs // parts)


def _pixels_staged(window: Window, pixels: int) -> int:
    """Pixels of the source that a task reads."""
    cols = min(pixels, max(window.dst[2], 1))
    return window.pixels_read(pixels // cols, cols)
