"""Convolution of images in bf16 or float32 with constant weights in bf16: packed once, products of bf16 summed in f32.

Kernels: ``bf16_conv_packed``, ``bf16_conv_pack`` and ``bf16_conv_unpack``; ``conv/bf16.c`` says how they work.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass
from graphpool._sizes import largest, least
from graphpool.errors import InvalidDataTypeError, explain

from ..core.call import DTYPE_CODES, KernelCall
from ..gemm.packed import TILE_ROWS
from ..gemm.post_ops import NO_POST_OPS, PostOps
from ..gemm.problem import choose, even_part
from .blocks import ConvBlocks, reads_pixels_in_place, shared_rectangle
from .problem import ConvProblem
from .weights import ConvWeights, PanelFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..image.window import Window

__all__ = ["Bf16ConvFormat"]

_PIXELS, _FEW_CHANNELS_PIXELS = 192, 1536
"""Pixels of a task: enough rows of results that those of the source which two tasks both copy matter little, more where
copies are dear beside short products."""

_FEW_CHANNELS = 16
"""Input channels of a group up to which products are short."""

_STAGED_NBYTES = 256 * 1024
"""Most bytes of source that a task copies, if it has more than one row: half of a small L2."""

_LEAST_TASKS = 16
"""Tasks into which columns are divided where there are few rectangles, so that threads can share a layer."""


@dataclass(frozen=True)
class Bf16ConvFormat(PanelFormat):
    """A `ConvFormat`: panels of bf16, packed from float32, rounded to nearest even."""

    packed_dtype = "bf16"

    def pack(self, strides: Sequence[int]) -> KernelCall:
        """See `ConvFormat`: one task for each panel; no scratch."""
        return self._move("bf16_conv_pack", strides)

    def unpack(self, strides: Sequence[int]) -> KernelCall:
        """See `ConvFormat`: to f32, of which packing has rounded those that were no bf16."""
        return self._move("bf16_conv_unpack", strides)

    def convolution(self, problem: ConvProblem, post_ops: PostOps = NO_POST_OPS) -> KernelCall:
        """See `ConvFormat`: of an image in bf16, or in f32, which is rounded to bf16.

        Channels of src lie by any strides, fastest side by side; channels of dst are contiguous and its pixels have one
        stride. Tasks are rectangles of pixels by blocks of output channels of a group. Cost: a multiply-add a tap,
        channel and result, at the rate of bf16, and a copy of the source for each kernel's height that two tasks share.
        """
        dtype = problem.src_dtype
        if dtype not in ("bf16", "f32"):
            raise InvalidDataTypeError(explain("dtype of an image", accepted="bf16, f32", got=dtype), dtype=dtype)
        weights, window, post = self._weights, problem.window, post_ops.float_fields()
        dst, residual = problem.result_pixels(post_ops)
        find_cols = partial(_col_block, problem.batch, window, weights)
        rectangle = _rectangle(window, weights)
        rows, cols = shared_rectangle(problem.batch, window, weights, rectangle, find_cols, problem.threads)
        blocks = ConvBlocks(
            problem.batch, window, weights, dst, residual, rows, cols,
            find_cols(rows, cols),
            is_direct=dtype == "bf16" and reads_pixels_in_place(window, weights), has_tile=post["tile_in_scratch"],
        )  # fmt: skip
        own = {name: post[name] for name in ("lo", "hi", "residual_arg", "tile_in_scratch")}
        return blocks.call(
            "bf16_conv_packed", post, own | {"src_dtype": DTYPE_CODES[dtype]},
            element_nbytes=2 if dtype == "bf16" else 4, epilogue=post_ops.epilogue, isa=self.isa,
        )  # fmt: skip


def _rectangle(window: Window, weights: ConvWeights) -> tuple[int, int]:
    """Rows and columns of a task: whole rows in even parts, or a part of one in whole tiles."""
    height, width = largest(window.dst[1], 1), largest(window.dst[2], 1)
    most = _PIXELS if weights.ic > _FEW_CHANNELS else _FEW_CHANNELS_PIXELS
    staged = window.rows_within(_STAGED_NBYTES // max(weights.pixel_nbytes, 1), width)
    rows = least(least(largest(most // width, 1), height), staged)
    rows = choose(width, most, even_part(height, -(-height // largest(rows, 1))), 1)
    return rows, choose(width, most, width, even_part(width, -(-width // most), TILE_ROWS))


def _col_block(batch: int, window: Window, weights: ConvWeights, rows: int, cols: int) -> int:
    """Output channels of a task: in parts where there are few rectangles."""
    rectangles = batch * window.rectangles(rows, cols) * weights.groups
    parts = least(-(-_LEAST_TASKS // largest(rectangles, 1)), weights.oc // weights.unit(rows * cols))
    return weights.col_block(rows * cols, parts)
