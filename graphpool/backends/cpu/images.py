"""Images as kernels over windows see them: axes in the order (n, channel, spatial...), whatever the format."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ..._kernels.gemm.post_ops import PostOps
from ..._kernels.image.window import is_sparse
from ...graph.shapes import channel_axis, per_axis, spatial_axes
from .lowering import strides_in

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...graph.op import Op
    from .epilogue import Epilogue
    from .groups import Group
    from .lowering import Lowering, Value

__all__ = ["as_result", "axes_of", "find_image", "pick", "spans_too_much"]


def axes_of(op: Op, ndim: int) -> tuple[int, ...]:
    """The axes of an image of the op: (n, channel, spatial...)."""
    return _axes(ndim, op.attrs["data_format"])


@lru_cache
def _axes(ndim: int, data_format: str) -> tuple[int, ...]:
    return (0, channel_axis(ndim, data_format), *spatial_axes(ndim, data_format))


def as_result(lowering: Lowering, group: Group) -> Value:
    """The source of a window in f32, channels innermost where the result's are: its vectors run along them."""
    op = group.anchor
    assert op is not None
    order = lowering.order_of(group.result)
    if order[-1] == channel_axis(len(order), op.attrs["data_format"]):
        return lowering.arranged(op.inputs[0].id, order)
    return lowering.typed(lowering.value(op.inputs[0].id))


def find_image(lowering: Lowering, group: Group, source: Value, epilogue: Epilogue) -> dict[str, Any]:
    """The geometry that all kernels over windows take, and the epilogue."""
    op = group.anchor
    assert op is not None
    result = lowering.shapes[op.outputs[0].id]
    axes = axes_of(op, len(source.shape))
    return {
        "batch": source.shape[0],
        "channels": source.shape[axes[1]],
        "src_spatial": pick(source.shape, axes[2:]),
        "dst_spatial": pick(result, axes[2:]),
        "src_strides": pick(source.strides, axes),
        "dst_strides": pick(epilogue.row_strides or strides_in(result, epilogue.order), axes),
        "post_ops": PostOps(epilogue=epilogue.block, dst_needs_scratch=epilogue.row_strides is None),
    }


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
