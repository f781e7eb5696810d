"""Convolution and transposed convolution in one to three spatial axes: any layout, groups, dilations, epilogue.

Implementations, one kernel name each: ``f32_conv_blas_im2col`` and ``f32_conv_simd_im2col`` gather patches of a block
of pixels and multiply (BLAS, or our own loops); 1x1 windows read the source in place. ``f32_conv_depthwise`` works
directly, where every group has one channel on both sides, be it the only group.

Weights lie by (group, out channel in the group, in channel in the group, spatial...); results are numbered for the
epilogue by (n, spatial..., c) where dst's channel stride is no larger than every spatial one, else (n, c, spatial...).
A single channel of dst is taken for the latter, so that vectors run along its rows.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass, replace
from graphpool.errors import InvalidArgumentError, UnsupportedError, explain

from ..core._dispatch import blas_slot, isas
from ..core.call import KernelCall, pack
from ..gemm.matmul import BLAS_INT_MAX, needs_pack, panel_nbytes
from ..gemm.post_ops import NO_POST_OPS, PostOps
from ..gemm.problem import aligned
from ..image.window import MOST_LANES, Window, merged_stride, plan_rows, single_rows
from .problem import check_weight_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .problem import ConvProblem, ConvShape

__all__ = ["choose_convolution", "convolution", "takes_bias"]

_PATCH_NBYTES = 1 << 20
"""Bytes of the patches of a block, and of its tile: they stay in L2 or near it."""
_PIXEL_BLOCK = (32, 1024)
"""Least and most pixels of a block: BLAS packs the weights anew for each block."""

_LEAST_TASKS = 4
"""Tasks into which even one small image divides, so that threads can share it."""


@dataclass(frozen=True)
class _Convolution:
    """A checked problem; channels are those of one group, weights lie by (group, oc, ic, depth, height, width)."""

    window: Window
    batch: int
    groups: int
    ic: int
    oc: int
    weights: tuple[int, ...]
    transposed: bool
    exact_depth: int

    @classmethod
    def of(cls, problem: ConvProblem, weights: Sequence[int], exact_depth: int) -> _Convolution:
        """Check what `ConvProblem.make` has not."""
        shape = problem.shape
        check_weight_strides(weights, len(shape.kernel))
        if exact_depth < 0:
            raise InvalidArgumentError(explain("exact_depth", accepted=">= 0", got=exact_depth))
        window = single_rows(problem.window, shape.out_channels)
        filled = (*weights[:3], *(0,) * (3 - len(shape.kernel)), *weights[3:])
        ic, oc = shape.in_channels // shape.groups, shape.out_channels // shape.groups
        transposed = problem.is_transposed
        return cls(window, problem.batch, shape.groups, ic, oc, filled, transposed, exact_depth)

    @property
    def depth(self) -> int:
        """Terms of each sum: taps times input channels."""
        return math.prod(self.window.kernel) * self.ic

    @property
    def taps_outer(self) -> bool:
        """Whether patches and weights run over (taps, channels): the order in which the weights lie."""
        steps = [s for s, extent in zip(self.weights[3:], self.window.kernel, strict=True) if extent > 1]
        return not steps or self.weights[2] <= min(steps)

    @property
    def parts(self) -> int:
        """Terms to sum at a time; 0 when all at once are exact enough."""
        return self.exact_depth if self.exact_depth < self.depth else 0

    def is_depthwise(self) -> bool:
        """Whether every group has one channel on both sides, and its terms may be summed at once."""
        return self.ic == 1 and self.oc == 1 and not self.transposed and not self.parts

    def weights_row(self) -> int | None:
        """Stride of the rows of the weight matrix, or None where they must be copied."""
        taps = list(zip(self.window.kernel, self.weights[3:], strict=True))
        channel = (self.ic, self.weights[2])
        row = merged_stride([*taps, channel] if self.taps_outer else [channel, *taps])
        return None if row is None or needs_pack(self.depth, self.oc, row, self.weights[1]) else row

    def source_pixel(self) -> int | None:
        """Stride of pixels where the source itself is the patch matrix, or None."""
        w = self.window
        plain = max(w.kernel) == 1 and max(w.strides) == 1 and not any(w.pads_begin) and w.src == w.dst
        pixel = merged_stride(list(zip(w.src, w.src_strides[2:], strict=True))) if plain else None
        return None if pixel is None or needs_pack(w.pixels, self.ic, pixel, w.src_strides[1]) else pixel

    def result_pixel(self) -> int | None:
        """Stride of pixels where a product may write to dst itself, or None."""
        w = self.window
        pixel = merged_stride(list(zip(w.dst, w.dst_strides[2:], strict=True)))
        if pixel is None:
            return None
        pixel = max(pixel, self.oc) if w.pixels == 1 and w.channels_last else pixel
        row, inner, cols = (
            (pixel, w.dst_strides[1], self.oc) if w.channels_last else (w.dst_strides[1], pixel, w.pixels)
        )
        return pixel if inner == 1 and cols <= row <= BLAS_INT_MAX else None


def convolution(
    problem: ConvProblem,
    weights_strides: Sequence[int],
    post_ops: PostOps = NO_POST_OPS,
    *,
    impl: str = "auto",
    exact_depth: int = 0,
    isa: str | None = None,
) -> KernelCall:
    """A kernel for a convolution or transposed convolution of f32 images with weights as they lie.

    Arguments: src, weights, those of `post_ops`: an epilogue at most, and a bias where `takes_bias` holds (it belongs
    to the epilogue elsewhere). `weights_strides` are those of the module's order, any: XIO and OIX are not copied.
    `impl` is one of the module's or "auto": `choose_convolution`, or "simd": the better of our own. `exact_depth`: as
    of `graphpool._kernels.gemm.matmul.matmul`.

    Every result is written; one that no input reaches is 0 before the epilogue. A task is an image, a group and a block
    of pixels; depthwise, a row and a block of channels. Scratch is about 1 MiB of patches beside a tile. Cost: a
    transposed convolution gathers zeros for the taps that meet no input, so prod(strides) times the useful arithmetic;
    it copies the weights once for each run of tasks of a group. Source: patches as a matrix (im2col), Chellapilla, Puri
    and Simard 2006, in blocks that never hold a whole image.

    Raises
    ------
    InvalidShapeError, InvalidArgumentError, UnsupportedError
        The arguments do not fit each other.
    """
    replace(post_ops, bias=False).check_only_epilogue()
    given = _Convolution.of(problem, weights_strides, exact_depth)
    if post_ops.bias and (exact_depth or problem.is_transposed or not takes_bias(problem.shape)):
        raise InvalidArgumentError(explain("bias", accepted="what takes_bias allows, summed at once", got="others"))
    return _build(given, _choose(given, impl, isa), post_ops, isa)


def takes_bias(shape: ConvShape) -> bool:
    """Whether a bias may be one more term of the sums of a convolution that is not transposed: patches are gathered."""
    return max(shape.kernel) > 1 and not shape.in_channels == shape.out_channels == shape.groups


def choose_convolution(*, depthwise: bool = False, isa: str | None = None) -> str:
    """The faster implementation: depthwise where it can, else our own loops where they have fused multiply-add.

    Measured on one core of an AMD EPYC (family 25), microseconds, blas_im2col against simd_im2col with avx512 and avx2,
    channels last: 3x3, 64 -> 64 channels, 56x56: 3172/2623/2687; 3x3, 256 -> 256, 14x14: 2766/2326/2390; 1x1,
    1024 -> 256, 14x14: 1030/899/929. Depthwise 3x3, 96 channels, 56x56: 332 directly, 11600 as products.
    """
    if depthwise:
        return "depthwise"
    return "blas_im2col" if (isa or isas()[-1]) == "generic" else "simd_im2col"


def _choose(problem: _Convolution, impl: str, isa: str | None) -> str:
    """The implementation to use, checked against what the problem allows."""
    if impl not in ("auto", "blas_im2col", "simd_im2col", "depthwise", "simd"):
        accepted = "auto, blas_im2col, simd_im2col, depthwise, simd"
        raise InvalidArgumentError(explain("impl", accepted=accepted, got=repr(impl)))
    if impl == "depthwise" and not problem.is_depthwise():
        accepted = "one channel a group on both sides, and no exact depth below the number of taps"
        raise UnsupportedError(explain("depthwise implementation", accepted=accepted))
    if impl == "auto":
        return choose_convolution(depthwise=problem.is_depthwise(), isa=isa)
    if impl == "simd":
        return "depthwise" if problem.is_depthwise() else "simd_im2col"
    return impl


def _build(problem: _Convolution, impl: str, post_ops: PostOps, isa: str | None) -> KernelCall:
    if impl == "depthwise":
        rows, ntasks, nbytes = plan_rows(problem.window, problem.batch, problem.groups, post_ops)
        values: dict[str, Any] = {"rows": rows, "w_c": problem.weights[0], "w": problem.weights[3:]}
    else:
        values, nbytes = _plan(problem, impl, post_ops)
        blocks = -(-problem.window.pixels // values["pixel_block"]) if problem.oc else 0
        ntasks = problem.batch * problem.groups * blocks
    return pack(f"f32_conv_{impl}", values, ntasks=ntasks, scratch_nbytes=nbytes, tail=post_ops.epilogue, isa=isa)


def _pixel_block(p: _Convolution) -> int:
    """Pixels of a task: what fits the bounds, but few enough for `_LEAST_TASKS` tasks in all; whole vectors of them."""
    least, most = _PIXEL_BLOCK
    parts = -(-_LEAST_TASKS // max(p.batch * p.groups, 1))
    fit = min(_PATCH_NBYTES // (4 * max(p.depth, p.oc, 1)), -(-p.window.pixels // parts))
    return min(max(-(-fit // MOST_LANES) * MOST_LANES, least), most, max(p.window.pixels, 1))


def _plan(problem: _Convolution, impl: str, post_ops: PostOps) -> tuple[dict[str, Any], int]:
    """Fields of the parameter block and the size of the scratch, which holds tile, patches, weights, panel and sums."""
    p, terms = problem, problem.depth + post_ops.bias
    row, src_pixel, dst_pixel = None if post_ops.bias else p.weights_row(), p.source_pixel(), p.result_pixel()
    pixels = _pixel_block(p)
    in_scratch = dst_pixel is None or (bool(post_ops.epilogue) and post_ops.dst_needs_scratch)
    sizes = (
        pixels * p.oc * 4 if in_scratch else 0,
        pixels * terms * 4 if src_pixel is None else 0,
        terms * p.oc * 4 if row is None else 0,
        panel_nbytes(terms, p.oc if p.window.channels_last else pixels) if impl == "simd_im2col" else 0,
        pixels * p.oc * 8 if p.parts else 0,
    )
    offsets = [sum(map(aligned, sizes[:i])) for i in range(6)]
    w_group, w_oc, w_ic, *w = p.weights
    return {
        "window": p.window.fields(), "batch": p.batch, "groups": p.groups, "ic": p.ic, "oc": p.oc,
        "w_group": w_group, "w_oc": w_oc, "w_ic": w_ic, "w": w, "taps_outer": p.taps_outer, "w_row": row or 0,
        "pack_weights": row is None, "gather": src_pixel is None, "transposed": p.transposed,
        "has_bias": post_ops.bias, "dst_arg": 2 + post_ops.bias,
        "src_pixel": src_pixel or 0, "dst_pixel": dst_pixel or 0, "pixel_block": pixels,
        "tile_in_scratch": in_scratch, "has_epilogue": bool(post_ops.epilogue),
        "patch_offset": offsets[1], "weights_offset": offsets[2], "panel_offset": offsets[3],
        "exact_depth": p.parts, "sums_offset": offsets[4],
        "blas": blas_slot("f32") if impl == "blas_im2col" else 0,
    }, offsets[5]  # fmt: skip
