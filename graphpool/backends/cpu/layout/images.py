"""Images as kernels over windows see them: axes in the order (n, channel, spatial...), whatever the format."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ...._kernels.image.window import is_sparse
from ....graph.shapes import channel_axis, per_axis, spatial_axes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....graph.op import Op

__all__ = ["axes_of", "pick", "spans_too_much"]


def axes_of(op: Op, ndim: int) -> tuple[int, ...]:
    """The axes of an image of the op: (n, channel, spatial...)."""
    return _axes(ndim, op.attrs["data_format"])


@lru_cache
def _axes(ndim: int, data_format: str) -> tuple[int, ...]:
    return (0, channel_axis(ndim, data_format), *spatial_axes(ndim, data_format))


def pick(values: Sequence[int], axes: Sequence[int]) -> list[int]:
    """The values of these axes."""
    return [values[axis] for axis in axes]


def spans_too_much(op: Op, src: Sequence[int], dst: Sequence[int], kernel: Sequence[int]) -> bool:
    """Whether no kernel should copy what the windows of a convolution of images of these shapes span."""
    axes = axes_of(op, len(src))[2:]
    strides, dilations = (per_axis(op.attrs, name, len(kernel)) for name in ("strides", "dilations"))
    if op.kind == "ConvTranspose":  # reads src as the convolution that it is the gradient of writes it
        src, dst = dst, src
    return is_sparse(pick(src, axes), pick(dst, axes), kernel, strides, dilations)
