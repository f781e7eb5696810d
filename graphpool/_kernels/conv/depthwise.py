"""Depthwise convolution of channels-last images, with constant weights that lie by (tap, channel).

Kernel: ``f32_conv_depthwise_packed``. Each channel has a kernel of its own, and vectors run along channels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, InvalidShapeError, explain

from ..core.call import KernelCall, pack
from ..gemm.matmul import aligned
from ..gemm.post_ops import NO_POST_OPS, PostOps
from ..move.move import copy
from .problem import ConvFormat, ConvProblem

if TYPE_CHECKING:
    from collections.abc import Sequence


__all__ = ["DepthwiseFormat"]

_CHANNEL_BLOCK = 512
"""Channels of a task: rows of results are tasks enough, but those of few pixels and many channels divide further."""

_RUN_NBYTES = 32


@dataclass(frozen=True)
class DepthwiseFormat(ConvFormat):
    """A `ConvFormat`: float32 by (tap, channel).

    Attributes
    ----------
    shape : ConvShape
        One channel a group on both sides.

    Raises
    ------
    InvalidArgumentError
        More channels a group.
    """

    is_exact = True

    def __post_init__(self) -> None:
        got = self.shape.in_channels, self.shape.out_channels, self.shape.groups
        if got != (got[0], got[0], max(got[0], 1)):
            what = "channels of both sides and groups of a depthwise convolution"
            raise InvalidArgumentError(explain(what, accepted="one number", got=got))

    @property
    def nbytes(self) -> int:
        """Of the packed weights. Unit: bytes."""
        return 4 * self.shape.out_channels * math.prod(self.shape.kernel)

    def pack(self, strides: Sequence[int]) -> KernelCall:
        """See `ConvFormat`."""
        extents, strides = self._axes(strides)
        return copy(extents, strides, self._packed_strides(), 4, isa=self.isa)

    def unpack(self, strides: Sequence[int]) -> KernelCall:
        """See `ConvFormat`."""
        extents, strides = self._axes(strides)
        return copy(extents, self._packed_strides(), strides, 4, isa=self.isa)

    def _axes(self, strides: Sequence[int]) -> tuple[tuple[int, ...], list[int]]:
        """Extents and strides of (channel, spatial...)."""
        kernel = self.shape.kernel
        if len(strides) != 3 + len(kernel):
            accepted = "(group, oc, ic, spatial...)"
            raise InvalidShapeError(explain("strides of weights", accepted=accepted, got=tuple(strides)))
        return (self.shape.out_channels, *kernel), [strides[0], *strides[3:]]

    def _packed_strides(self) -> tuple[int, ...]:
        kernel, channels = self.shape.kernel, self.shape.out_channels
        return 1, *(channels * math.prod(kernel[axis + 1 :]) for axis in range(len(kernel)))

    def convolution(self, problem: ConvProblem, post_ops: PostOps = NO_POST_OPS) -> KernelCall:
        """See `ConvFormat`: of a float32 image; channels are contiguous on all sides.

        One task for each row of results and block of channels. Cost: a multiply-add of a vector for each tap; with
        strides of 1 or 2 and no dilation about half as many loads.
        """
        post, channels, window = post_ops.float_fields(), self.shape.out_channels, problem.window
        given = {"src_strides": problem.src_strides, "dst_strides": problem.dst_strides}
        for name, strides in given.items():
            problem.image_strides(name, strides, channels)
        residual = [0] * 4
        if post_ops.residual_strides is not None:
            residual = list(problem.image_strides("residual_strides", post_ops.residual_strides, channels))
        block = min(max(channels, 1), _CHANNEL_BLOCK)
        runs_offset = aligned(window.dst[2] * block * 4) if post["tile_in_scratch"] else 0
        values = post | {
            "window": window.fields(), "channels": channels, "channel_block": block,
            "residual_n": residual[0], "residual": residual[1:], "runs_offset": runs_offset,
        }  # fmt: skip
        lines = problem.batch * window.dst[0] * window.dst[1] if window.dst[2] else 0
        return pack(
            "f32_conv_depthwise_packed", values, ntasks=lines * -(-channels // block),
            scratch_nbytes=runs_offset + math.prod(self.shape.kernel) * _RUN_NBYTES, tail=post_ops.epilogue,
            isa=self.isa,
        )  # fmt: skip
