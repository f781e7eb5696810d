"""Convolutions with weights in panels, which the constant tensor cache keeps, or which kernels pack as they run.

Weights are transformed where Winograd's algorithm gains enough for the memory that it takes, and lie by (tap, channel)
where the convolution is depthwise. Convolutions that read the same image alike may share packed weights
(`horizontal_fusion.py`).
"""

from __future__ import annotations

from math import prod
from operator import is_
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass, replace

from ...._kernels.conv.bf16 import Bf16ConvFormat
from ...._kernels.conv.depthwise import DepthwiseFormat
from ...._kernels.conv.packed import F32ConvFormat, is_staged
from ...._kernels.conv.problem import ConvFormat, ConvProblem, ConvShape
from ...._kernels.conv.winograd import TILES, choose_tile
from ...._kernels.gemm.packed import has_amx
from ...._sizes import Preference
from ....typing import DataType
from ..choices import allows_bf16, forced
from ..layout.images import pick
from ..layout.packed import ConvWeights, choose_format
from ..lower.epilogue import make_epilogue
from ..lower.post_ops import FusedPostOps, Tail, is_plain_bias
from ..lower.values import Value, strides_in
from ..support import FLOATS
from .choice import Choice, is_small
from .weights import PackedWeights, dequantize, find_folded, fold, pack_floats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...._kernels.core.call import KernelCall
    from ...._kernels.gemm.post_ops import PostOps
    from .conv_problem import ConvSite

__all__ = ["emit_joint", "find_packed", "find_unpacked", "find_weights", "settle_weights"]

_LEAST_PIXELS = 16
"""Pixels of a result for which packing the weights at each execution pays."""

_BF16_TILE, _LEAST_WINOGRAD_PIXELS = 4, 196
"""Tile and pixels of a result from which on Winograd's algorithm in f32 is faster than products of bf16 without AMX."""


def _find_formats(
    site: ConvSite, prefer: str, *, allows_bf16: bool = False, given: DataType | None = None
) -> list[ConvWeights]:
    """Formats of weights that kernels of a convolution take, by shapes of weights and result, the best one first.

    It alone unless users bring weights of a type in them.
    """
    attrs, shape, axes = site.op.attrs, site.shape, site.weight_axes
    spatial = pick(site.result, site.axes[2:])
    is_plain = shape.kernel == (3, 3) and shape.groups == 1 and {*attrs["strides"], *(shape.dilations or ())} == {1}
    tile, tiles = 0, TILES if prefer == "latency" and is_plain else ()
    if tiles:
        tile = choose_tile(site.result[0], shape.in_channels, shape.out_channels, spatial)
    if allows_bf16 and (has_amx() or tile < _BF16_TILE or prod(spatial) < _LEAST_WINOGRAD_PIXELS):
        tile = 0
    dtype = DataType.F32 if given is None else given
    found = [choose_format(shape, tile, allows_bf16=allows_bf16, dtype=dtype)]
    if given is not None:
        found.append(choose_format(shape, allows_bf16=allows_bf16, dtype=dtype))
        found += [choose_format(shape, tile, dtype=dtype) for tile in (0, *tiles)]
    return [ConvWeights(own, axes) for own in found]


@dataclass(frozen=True)
class _PlainFormat:
    """Weights as they lie, for kernels that pack them and perhaps multiply them by a scale."""

    shape: ConvShape
    strides: Sequence[int]
    has_scale: bool

    def convolution(self, problem: ConvProblem, post_ops: PostOps) -> KernelCall:
        """As `ConvFormat.convolution`; a scale is the argument behind the weights."""
        plain = F32ConvFormat(self.shape)
        return plain.unpacked_convolution(problem, self.strides, post_ops, scale=self.has_scale)


def find_packed(site: ConvSite) -> Choice | None:
    """The convolution with packed weights, kept by the constant tensor cache.

    None where they are no constants, where BLAS is forced, or where `ConvSite.suits_panels` does not hold.
    """
    layouts = _find_layouts(site)
    if not layouts:
        return None
    lowering, tensor_id = site.lowering, site.op.inputs[1].id
    given = None if site.group.compressed else lowering.find_given(tensor_id, layouts)
    if isinstance(given, ConvWeights):
        brought = lowering.any_value(tensor_id)
        panels = brought.as_bytes
        if given.is_depthwise:  # those of another type than kernels read are so few that they become a temporary
            panels = lowering.typed(brought.as_elements(given.reads, given.nbytes)).as_bytes
        own = PackedWeights(panels, given.format, site.bias)
        return Choice(lambda place: _emit(site, own, place), site.target())
    weights = layouts[0]
    packed = pack_floats(site, weights, weights.format, weights.axes.outer, weights.out_channels)
    is_filled = weights.is_depthwise or is_small(packed.panels)
    if (is_filled or not _has_few_pixels(weights, site.result)) and not _is_staged(weights.format):
        _find_source(site, weights.format)  # outside of what depends on whether the weights are kept
    place = site.target() if is_filled else None
    return Choice(lambda place: _emit(site, packed, place), place, packed.panels, is_filled)


def find_weights(site: ConvSite) -> ConvWeights | None:
    """The plain weights of a convolution that may be packed; None where `find_packed` packs none."""
    layouts = [] if site.lowering.is_given(site.op.inputs[1].id) else _find_layouts(site)
    return layouts[0] if layouts else None


def _find_layouts(site: ConvSite) -> list[ConvWeights]:
    """How the weights of a convolution may be packed, the best way first; empty where `find_packed` gives None.

    The best way alone where no user brings them packed, or asks for a layout.
    """
    lowering, op, front = site.lowering, site.op, site.group.compressed
    if site.group.dequantized or forced("Convolution") == "blas" or (front and lowering.prefer == "memory"):
        return []
    weights = lowering.any_value((front or op).inputs[0 if front else 1].id)
    is_known = lowering.is_constant(weights) or weights.layout is not None
    dtype = lowering.dtypes[op.inputs[1].id]
    if not is_known or dtype not in FLOATS or not _has_pixels(site, weights):
        return []
    types = {lowering.dtypes[op.inputs[0].id], dtype}
    is_bf16 = allows_bf16("bf16" if types == {DataType.BF16} else lowering.fpmath, types)
    given = dtype if front is None and lowering.is_given(op.inputs[1].id) else None
    return _find_formats(site, lowering.prefer, allows_bf16=is_bf16, given=given) if site.suits_panels else []


def find_unpacked(site: ConvSite) -> Choice | None:
    """The convolution with kernels that pack the weights as they run; None where the result has few pixels.

    Weights of depthwise convolutions are so few that they become a temporary.
    """
    lowering, op = site.lowering, site.op
    if site.group.dequantized or forced("Convolution") == "blas":
        return None
    settle_weights(site)
    weights = lowering.value(op.inputs[1].id)
    if weights.dtype not in FLOATS or not _has_pixels(site, weights):
        return None
    if not site.suits_panels:
        return None
    [found] = _find_formats(site, "memory")
    if _has_few_pixels(found, site.result):
        return None
    source = lowering.typed(weights)
    packed: PackedWeights[ConvFormat] | PackedWeights[_PlainFormat]
    if found.is_depthwise:
        packed = PackedWeights(lowering.temporary((found.nbytes,), DataType.U8), found.format, site.bias)
        lowering.pack(found, source, packed.panels)
    else:
        packed = _as_they_lie(site, source, found)
    return Choice(lambda place: _emit(site, packed, place), site.target())


def settle_weights(site: ConvSite) -> None:
    """Let weights that nobody packs be dequantised in each run."""
    front = site.group.compressed
    if front is not None and not site.lowering.has_value(front.outputs[0].id):
        site.lowering.finish(front.outputs[0].id, dequantize(site.lowering, front))


def _as_they_lie(site: ConvSite, source: Value, weights: ConvWeights) -> PackedWeights[_PlainFormat]:
    """Weights for kernels that pack them, times the scale of what is folded."""
    lowering, folded, own = site.lowering, find_folded(site), site.bias
    shift = lowering.temporary((weights.out_channels,)) if folded else own
    scale = fold(lowering, folded, None, own, 0, shift) if folded and shift is not None else None
    plain = _PlainFormat(weights.format.shape, weights.strides(source), scale is not None)
    return PackedWeights(source, plain, shift, len(folded), scale)


def _has_few_pixels(weights: ConvWeights, result: Sequence[int]) -> bool:
    with Preference(*result):
        return prod(result) // weights.out_channels < _LEAST_PIXELS


def _is_staged(weights_format: ConvFormat | _PlainFormat) -> bool:
    """Whether the kernel copies what it reads, however it lies."""
    shape = weights_format.shape
    is_depthwise = isinstance(weights_format, DepthwiseFormat)
    return not is_depthwise and is_staged(shape.in_channels, shape.kernel, shape.dilations, shape.groups)


def _has_pixels(site: ConvSite, weights: Value) -> bool:
    """Whether the result is an image whose pixels have their channels side by side, and nothing is empty."""
    return site.is_channels_last and 0 not in (*weights.shape, *site.result)


def _emit(
    site: ConvSite, weights: PackedWeights[ConvFormat] | PackedWeights[_PlainFormat], place: Value | None
) -> Value:
    """The convolution with its bias and the post-ops that remain, to `place`."""
    assert place is not None  # that of what stands in
    steps, key = site.lowering.steps, (place, weights.bias, weights.folded)
    found = next((tail for known, tail in site.tails if all(map(is_, known, key))), None)
    if found is None:
        nsteps = len(steps)
        found = _find_tail(site, weights, place)
        if len(steps) == nsteps:  # else these are steps of one guard
            site.tails.append((key, found))
    _emit_call(site, weights, *found)
    return place


def _find_tail(
    site: ConvSite, weights: PackedWeights[ConvFormat] | PackedWeights[_PlainFormat], place: Value
) -> tuple[Sequence[int], Tail]:
    """Strides by axes of the result, and what the kernel does to its accumulators."""
    strides, bias, axis = site.pixel_strides(place), weights.bias, site.axes[1]
    own_strides = strides if place.dtype is DataType.F32 else None
    fused = site.find_post_ops(place, weights, lambda image: site.pixel_strides(image) is not None)
    if fused is None:
        early, late = (bias, None) if is_plain_bias(bias) else (None, bias)
        epilogue = make_epilogue(site.lowering, site.group, late, axis, skipped=weights.folded, place=place)
        tail = epilogue.tail(needs_scratch=own_strides is None, bias=early)
    else:
        residual = None if fused.residual is None else pick(site.pixel_strides(fused.residual) or (), site.axes)
        tail = fused.tail(place, site.group.ops, residual)
    return own_strides or strides_in(place.shape, site.order), tail


def emit_joint(
    site: ConvSite, weights: PackedWeights[ConvFormat], clamp: tuple[float, float] | None, place: Value, name: str
) -> None:
    """The convolutions of joint weights, the site that of one of them, to a `place` of all their channels."""
    tail = FusedPostOps(weights.bias, clamp=clamp).tail(place, ())
    _emit_call(site, weights, place.strides, replace(tail, name=name))


def _emit_call(
    site: ConvSite,
    weights: PackedWeights[ConvFormat] | PackedWeights[_PlainFormat],
    dst_strides: Sequence[int],
    tail: Tail,
) -> None:
    """The kernel on its source, with what it does to its accumulators."""
    source = _find_source(site, weights.format)
    problem = site.problem(weights.format.shape, source, dst_strides)
    scale = [] if weights.scale is None else [weights.scale]
    call = weights.format.convolution(problem, tail.post_ops)
    site.lowering.emit(call, [source, weights.panels, *scale, *tail.args], tail.name)


def _find_source(site: ConvSite, weights_format: ConvFormat | _PlainFormat) -> Value:
    """The source in f32, or bf16 if that is multiplied, channels last unless the kernel copies what it reads anyway."""
    lowering, tensor_id, axes = site.lowering, site.op.inputs[0].id, site.axes
    source = lowering.value(tensor_id)
    dtype = source.dtype if isinstance(weights_format, Bf16ConvFormat) else DataType.F32
    if _is_staged(weights_format):
        return lowering.typed(source, dtype)
    return lowering.arranged(tensor_id, (0, *axes[2:], axes[1]), dtype)
