"""Depthwise convolution of channels-last images of bytes, results back in bytes.

Kernel: ``s8_conv_depthwise``; its source says how it works.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphpool.errors import UnsupportedError, explain

from ..core.call import DTYPE_CODES, KernelCall, pack
from ..gemm.matmul import aligned
from ..gemm.post_ops import NO_POST_OPS, PostOps
from ..gemm.requant import unsigned_zero_point
from .depthwise import DepthwiseFormat

if TYPE_CHECKING:
    from .problem import ConvProblem

__all__ = ["MOST_TAPS", "Int8DepthwiseFormat"]

MOST_TAPS = 256
"""Products of 8-bit integers whose sum f32 holds exactly."""

_CHANNEL_BLOCK = 256
"""Channels of a task: rows of that many bytes and their weights stay in L1."""

_TAP_NBYTES = 16
"""sizeof(meeting_tap)"""


@dataclass(frozen=True)
class Int8DepthwiseFormat(DepthwiseFormat):
    """A `ConvFormat`: integers of at most 255, less their zero point, in float32 by (tap, channel)."""

    def convolution(self, problem: ConvProblem, post_ops: PostOps = NO_POST_OPS) -> KernelCall:
        """A kernel for ``dst = post_ops(convolution(src - zero_point, weights) * scales)``, every channel by itself.

        See `ConvFormat`; behind the packed weights comes one argument more, scales of shape (channels,) in f32. The
        source is u8 or s8; channels are contiguous on all sides; there are at most 256 taps, and weights have no zero
        points that the run decides. One task for each row of results and block of channels. Cost: for each tap and
        vector of a result a load, a conversion and a multiply-add.
        """
        zero = unsigned_zero_point(problem.src_dtype, problem.zero_point)
        post, channels, window = post_ops.int8_fields(), self.shape.out_channels, problem.window
        taps = math.prod(self.shape.kernel)
        sides = {
            "src_strides": problem.src_strides, "dst_strides": problem.dst_strides,
            "residual_strides": problem.residual_strides(post_ops),
        }  # fmt: skip
        residual = [problem.image_strides(name, side, channels) for name, side in sides.items()][-1]
        if taps > MOST_TAPS:
            raise UnsupportedError(explain("taps of an exact sum", accepted=f"at most {MOST_TAPS}", got=taps))
        block = min(max(channels, 1), _CHANNEL_BLOCK)
        taps_offset = aligned(window.dst[2] * block * 4) if post_ops.epilogue else 0
        fields = {name: post[name] for name in ("bias_arg", "dst_arg", "has_epilogue", "requant", "dynamic")} | {
            "window": window.fields(), "channels": channels, "channel_block": block, "residual_n": residual[0],
            "residual": residual[1:], "src_dtype": DTYPE_CODES[problem.src_dtype], "zero": zero,
            "taps_offset": taps_offset,
        }  # fmt: skip
        lines = problem.batch * window.dst[0] * window.dst[1] if window.dst[2] else 0
        return pack(
            "s8_conv_depthwise", fields, ntasks=lines * -(-channels // block),
            scratch_nbytes=taps_offset + taps * _TAP_NBYTES, tail=post_ops.epilogue, isa=self.isa,
        )  # fmt: skip
