"""What kernels over windows take: an image, and the epilogue of its results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._kernels.gemm.post_ops import PostOps
from ..layout.images import axes_of, pick
from .values import strides_in

if TYPE_CHECKING:
    from ..match.groups import AnchorGroup
    from .epilogue import Epilogue
    from .lowering import Lowering
    from .values import Value

__all__ = ["find_image"]


def find_image(lowering: Lowering, group: AnchorGroup, source: Value, epilogue: Epilogue) -> dict[str, Any]:
    """The geometry that all kernels over windows take, and the epilogue."""
    op = group.anchor
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
