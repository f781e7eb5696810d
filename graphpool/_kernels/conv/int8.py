"""Convolution of 8-bit images with constant 8-bit weights: packed once, then used on any number of images.

Kernels: ``s8_conv_packed``, ``s8_conv_pack`` and ``s8_conv_unpack``; ``conv/int8.c`` says how they work.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass
from graphpool._sizes import largest
from graphpool.errors import InvalidDataTypeError, UnsupportedError, explain

from ..core.call import DTYPE_CODES, KernelCall
from ..gemm.packed import LEAST_ZERO, row_block
from ..gemm.post_ops import NO_POST_OPS, PostOps
from ..gemm.problem import choose, even_part
from ..gemm.requant import unsigned_zero_point
from ..image.window import Window, merged_stride
from .blocks import ConvBlocks, reads_pixels_in_place, shared_rectangle
from .problem import ConvProblem
from .weights import PanelFormat

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Int8ConvFormat"]

_PIXELS = 256
"""Pixels of a task with a kernel of several taps: enough that the rows which two tasks both read matter little."""

_LEAST_WORK = 2**22
"""Multiply-adds of a task, about 20 microseconds, so that its copy of the source costs a few percent at most."""

_MAX_TERMS = 2**15
"""Terms up to which the sum of (a - zero) * b fits s32 whatever the operands."""


@dataclass(frozen=True)
class Int8ConvFormat(PanelFormat):
    """A `ConvFormat`: panels of s8, and the sums of their columns.

    `dtype` is that of the weights as they lie, s8 or u8, which becomes s8, less 128; or there is an
    `InvalidDataTypeError`.
    """

    packed_dtype = "s8"
    is_exact = True
    dtype: str = "s8"

    def __post_init__(self) -> None:
        if self.dtype not in ("u8", "s8"):
            raise InvalidDataTypeError(explain("type of weights", accepted="u8, s8", got=self.dtype), dtype=self.dtype)

    def pack(self, strides: Sequence[int]) -> KernelCall:
        """See `ConvFormat`: one task for each panel; scratch for a run."""
        return self._move("s8_conv_pack", strides, self.dtype)

    def unpack(self, strides: Sequence[int]) -> KernelCall:
        """See `ConvFormat`."""
        return self._move("s8_conv_unpack", strides, self.dtype)

    def convolution(self, problem: ConvProblem, post_ops: PostOps = NO_POST_OPS) -> KernelCall:
        """A kernel for ``dst = post_ops(convolution(src - zero_point, weights) * scales)``, summed exactly in s32.

        See `ConvFormat`; behind the packed weights comes one argument more, scales of shape (out_channels,) in f32. The
        source is u8 or s8 and lies by any strides; channels of dst are contiguous and its pixels have one stride. Tasks
        are rectangles of pixels by blocks of output channels of a group. More than 32768 terms of a sum are refused.
        """
        weights, window, batch = self._weights, problem.window, problem.batch
        zero = unsigned_zero_point(problem.src_dtype, problem.zero_point)
        if math.prod(weights.kernel) * weights.ic > _MAX_TERMS:
            what = "terms of an s32 accumulator"
            raise UnsupportedError(explain(what, accepted=f"at most {_MAX_TERMS}", got=weights.words * 4))
        post = post_ops.int8_fields()
        dst, residual = problem.result_pixels(post_ops)
        is_direct = problem.src_dtype == "u8" and reads_pixels_in_place(window, weights)
        if is_direct:
            batch, window, dst, residual = _as_one_row(batch, window, dst, residual)

        def find_cols(rows: int, cols: int) -> int:
            return weights.col_block(rows * cols, weights.worthwhile_parts(rows * cols, _LEAST_WORK))

        takes_zero = post_ops.dynamic is not None and post_ops.dynamic.zero_point
        rows, cols = shared_rectangle(batch, window, weights, _rectangle(window), find_cols, problem.threads)
        col_block = find_cols(rows, cols)
        blocks = ConvBlocks(
            batch, window, weights, dst, residual, rows, cols, col_block, is_direct, has_tile=post["has_epilogue"],
            is_shifted=weights.shifts > 0 and (zero >= LEAST_ZERO or takes_zero),
        )  # fmt: skip
        own = {"src_dtype": DTYPE_CODES[problem.src_dtype], "zero": zero}
        own |= {name: post[name] for name in ("requant", "dynamic")}
        return blocks.call("s8_conv_packed", post, own, element_nbytes=1, epilogue=post_ops.epilogue, isa=self.isa)


def _as_one_row(
    batch: int, window: Window, dst: tuple[int, int], residual: tuple[int, int]
) -> tuple[int, Window, tuple[int, int], tuple[int, int]]:
    """The pixels of all images as one row of one, where one stride walks them on every side."""
    src = merged_stride([(batch, window.src_strides[0]), *zip(window.dst, window.src_strides[2:], strict=True)])
    sides = [merged_stride([(batch, n), (window.pixels, pixel)]) for n, pixel in (dst, residual)]
    if src is None or None in sides or set(window.strides) != {1}:
        return batch, window, dst, residual
    count = (batch * window.pixels,)
    row = Window.make(
        count, count, (1,), strides=None, dilations=None, pads_begin=None,
        src_strides=(0, 1, src), dst_strides=(0, 1, sides[0] or 0),
    )  # fmt: skip
    return 1, row, (0, sides[0] or 0), (0, sides[1] or 0)


def _rectangle(window: Window) -> tuple[int, int]:
    """Rows and columns of results of a task: even parts of an image, whole rows unless those are long."""
    height, width = largest(window.dst[1], 1), largest(window.dst[2], 1)
    parts = largest(-(-height * width // _PIXELS), 1)
    rows = choose(width, _PIXELS, -(-height // parts), 1)
    cols = choose(width, _PIXELS, width, even_part(width, -(-width // _PIXELS)))
    if math.prod(window.kernel) == 1:
        cols = choose(height, 1, row_block(width), cols)
    return rows, cols
