"""Depthwise convolution of channels-last images, and that of groups of few channels.

Kernels: ``f32_conv_depthwise_packed``, ``f32_conv_groups_packed`` where a group has several channels, and
``s8_conv_depthwise`` of bytes; ``conv/depthwise.c`` says how they work.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidArgumentError, UnsupportedError, explain

from ..core._dispatch import describe
from ..core.call import DTYPE_CODES, KernelCall, pack
from ..gemm.post_ops import NO_POST_OPS, PostOps
from ..gemm.problem import aligned, shared_part
from ..gemm.requant import unsigned_zero_point
from ..move.move import copy
from .problem import ConvFormat, ConvProblem, check_weight_strides

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .problem import ConvShape

__all__ = ["MOST_TAPS", "DepthwiseFormat", "Int8DepthwiseFormat", "is_narrow"]

MOST_TAPS = 256
"""Products of 8-bit integers whose sum f32 holds exactly."""

_WIDTHS = (1, 2, 4, 8)
"""Channels of a group for which vectors along all channels are worth while: those of vectors of eight at most."""

_MOST_RESULTS = 16
"""Channels that come of one, at most: more are as many as a product has in a vector."""

_ITEM_NBYTES = {"f32": 4, "bf16": 2, "f16": 2, "s8": 1, "u8": 1}

_CHANNEL_BLOCK, _CHANNEL_UNIT = 512, 64
"""Channels of a task: rows of results are tasks enough, but those of few pixels and many channels divide further.

The least number takes about the time to begin a row.
"""


def is_narrow(shape: ConvShape) -> bool:
    """Whether groups have so few channels as `DepthwiseFormat` takes: one that few come of, or powers of two."""
    source, results = _widths(shape)
    return source <= results and (results in _WIDTHS if source > 1 else results <= _MOST_RESULTS) and source in _WIDTHS


def _widths(shape: ConvShape) -> tuple[int, int]:
    """Channels of a group: of the source, of results."""
    return max(shape.in_channels // shape.groups, 1), max(shape.out_channels // shape.groups, 1)


@dataclass(frozen=True)
class DepthwiseFormat(ConvFormat):
    """A `ConvFormat`: elements by (tap, input channel in the group, channel).

    Those of another type than f32 become float32 before kernels read them. `InvalidArgumentError` unless `is_narrow`
    holds.
    """

    dtype: str = "f32"
    is_exact = True

    def __post_init__(self) -> None:
        if not is_narrow(self.shape):
            accepted = f"1 and up to {_MOST_RESULTS} that come of it, or two of {_WIDTHS}, the smaller one first"
            what = "channels of a group of a depthwise convolution, of both sides"
            raise InvalidArgumentError(explain(what, accepted=accepted, got=_widths(self.shape)))

    @property
    def widths(self) -> tuple[int, int]:
        """Channels of a group: of the source, of results."""
        return _widths(self.shape)

    @property
    def nbytes(self) -> int:
        """Of the packed weights. Unit: bytes."""
        return self._item_nbytes * self.shape.out_channels * self.widths[0] * math.prod(self.shape.kernel)

    @property
    def _item_nbytes(self) -> int:
        return _ITEM_NBYTES[self.dtype]

    def pack(self, strides: Sequence[int]) -> KernelCall:
        """See `ConvFormat`."""
        extents, strides = self._axes(strides)
        return copy(extents, strides, self._packed_strides(), self._item_nbytes, isa=self.isa)

    def unpack(self, strides: Sequence[int]) -> KernelCall:
        """See `ConvFormat`."""
        extents, strides = self._axes(strides)
        return copy(extents, self._packed_strides(), strides, self._item_nbytes, isa=self.isa)

    def _axes(self, strides: Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
        """Extents and strides of (group, channel, input channel, spatial...)."""
        check_weight_strides(strides, len(self.shape.kernel))
        source, results = self.widths
        return (self.shape.out_channels // results, results, source, *self.shape.kernel), list(strides)

    def _packed_strides(self) -> tuple[int, ...]:
        kernel, channels = self.shape.kernel, self.shape.out_channels
        source, results = self.widths
        taps = (channels * source * math.prod(kernel[axis + 1 :]) for axis in range(len(kernel)))
        return results, 1, channels, *taps

    def convolution(self, problem: ConvProblem, post_ops: PostOps = NO_POST_OPS) -> KernelCall:
        """See `ConvFormat`: of a float32 image; channels are contiguous on all sides.

        One task for each row of results and block of channels. Cost: a multiply-add of a vector for each tap and
        channel of a group; with strides of 1 or 2 and no dilation about half as many loads.
        """
        name = "f32_conv_depthwise_packed" if self.widths[1] == 1 else "f32_conv_groups_packed"
        fields, ntasks, scratch_nbytes = self._plan(problem, post_ops, post_ops.float_fields())
        return pack(
            name, fields, ntasks=ntasks, scratch_nbytes=scratch_nbytes, tail=post_ops.epilogue, isa=self.isa
        )  # fmt: skip

    def _plan(self, problem: ConvProblem, post_ops: PostOps, post: dict[str, Any]) -> tuple[dict[str, Any], int, int]:
        """Fields of ``gp_depthwise_packed``, with those of the post-ops; the number of tasks; bytes of scratch."""
        channels, window, taps = self.shape.out_channels, problem.window, math.prod(self.shape.kernel)
        problem.src_image()
        _, residual = problem.result_images(post_ops)
        source, results = self.widths
        lines = problem.batch * window.dst[0] * window.dst[1] if window.dst[2] else 0
        block, unit = min(max(channels, 1), _CHANNEL_BLOCK // results * results), _CHANNEL_UNIT * results
        block = shared_part(problem.threads, channels, block, lambda _: (lines, 1), _CHANNEL_UNIT, unit, block)
        runs_offset = aligned(window.dst[2] * block * 4) if post["tile_in_scratch"] else 0
        first_offset = aligned(runs_offset + taps * describe("tap_run")[1])
        fields = {field: post[field] for field in post if field not in ("requant", "dynamic")} | {
            "window": window.fields(), "channels": channels, "channel_block": block, "src_width": source,
            "width": results, "residual_n": residual[0], "residual": residual[1:], "runs_offset": runs_offset,
            "first_offset": first_offset,
        }  # fmt: skip
        return fields, lines * -(-channels // block), first_offset


@dataclass(frozen=True)
class Int8DepthwiseFormat(DepthwiseFormat):
    """A `ConvFormat`: integers by (tap, channel), which kernels read in float32, less their zero point, of at most 255.

    `InvalidArgumentError` unless every group has one channel on both sides.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.widths != (1, 1):
            what = "channels of a group of a depthwise convolution of bytes"
            raise InvalidArgumentError(explain(what, accepted=(1, 1), got=self.widths))

    def convolution(self, problem: ConvProblem, post_ops: PostOps = NO_POST_OPS) -> KernelCall:
        """A kernel for ``dst = post_ops(convolution(src - zero_point, weights) * scales)``, every channel by itself.

        See `DepthwiseFormat.convolution`, whose tasks and cost it has, with a conversion beside each load; behind the
        packed weights comes one argument more, scales of shape (channels,) in f32. The source is u8 or s8; there are at
        most 256 taps, and weights have no zero points that the run decides.
        """
        zero, taps = unsigned_zero_point(problem.src_dtype, problem.zero_point), math.prod(self.shape.kernel)
        if taps > MOST_TAPS:
            raise UnsupportedError(explain("taps of an exact sum", accepted=f"at most {MOST_TAPS}", got=taps))
        post = post_ops.int8_fields()
        fields, ntasks, scratch_nbytes = self._plan(problem, post_ops, post)
        values = {
            "depthwise": fields, "src_dtype": DTYPE_CODES[problem.src_dtype], "zero": zero,
            "requant": post["requant"], "dynamic": post["dynamic"],
        }  # fmt: skip
        return pack(
            "s8_conv_depthwise", values, ntasks=ntasks,
            scratch_nbytes=scratch_nbytes + aligned(fields["channel_block"] * 4), tail=post_ops.epilogue, isa=self.isa,
        )  # fmt: skip
