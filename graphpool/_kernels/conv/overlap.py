"""Transposed convolutions to few channels, second half: products of pixels and taps, summed up where windows overlap.

The first half is one matrix product, (channels and taps) x (source channels) by (source channels) x (pixels), in which
vectors run along the pixels. Source: the gradient of patches as a matrix (col2im), Chellapilla, Puri and Simard, 2006.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphpool._dataclasses import replace

from ..core.call import KernelCall, pack
from ..gemm.post_ops import NO_POST_OPS, PostOps
from ..gemm.problem import aligned
from ..image.window import plan_rows, single_rows

if TYPE_CHECKING:
    from .problem import ConvProblem

__all__ = ["overlap"]

_COLUMN_NBYTES = 32
"""Of what is known of a column of taps."""


def overlap(problem: ConvProblem, post_ops: PostOps = NO_POST_OPS, *, isa: str | None = None) -> KernelCall:
    """The sums of a transposed convolution of one group.

    Arguments: the products, f32, dense by (n, channel of the result, taps..., pixels of the source...), and those of
    `post_ops`, which is an epilogue at most. Source strides of the problem are not read; results may lie anyhow. Every
    result is written; one that no tap reaches is 0 before the epilogue. Scratch: a row of results, beside a tile. Cost:
    reads each product once. Tasks: a row of results of a block of channels each.
    """
    post_ops.check_only_epilogue()
    window = single_rows(problem.window, problem.shape.out_channels)
    depth, height, width = window.src
    plane, taps = depth * height * width, prod(window.kernel)
    src = taps * plane * problem.shape.out_channels, taps * plane, height * width, width, 1
    window = replace(window, src_strides=src)
    rows, ntasks, tile_nbytes = plan_rows(window, problem.batch, problem.shape.out_channels, post_ops)
    line = -(-window.dst[2] // window.strides[2])
    taps_offset = tile_nbytes + aligned(4 * line * window.strides[2])
    return pack(
        "f32_conv_overlap", {"rows": rows, "taps_offset": taps_offset, "line": line}, ntasks=ntasks,
        scratch_nbytes=taps_offset + _COLUMN_NBYTES * window.kernel[2], tail=post_ops.epilogue, isa=isa,
    )  # fmt: skip
