"""Pooling, Interpolate and RoiAlign: kernels over windows of an image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._kernels.image.pool import pooling
from ...._kernels.image.regions import regions
from ...._kernels.image.resample import resample
from ...._sizes import is_variable
from ....graph.shapes import channel_axis, per_axis, resolve_pads
from ....typing import DataType
from ..layout.images import axes_of, pick
from ..lower.epilogue import emit_anchor, find_image, make_epilogue
from ..lower.integers import integers_of
from ..support import has_small_windows, is_plain_resampling, rule
from .reduce import emit_reduction

if TYPE_CHECKING:
    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import AnchorGroup


@rule("AvgPool", "MaxPool", is_anchor=True, where=has_small_windows)
def lower_pool(lowering: Lowering, group: AnchorGroup) -> None:
    """Maximum or mean of each window, post-ops behind it; one window that is all of the image is a reduction."""
    op = group.anchor
    if not group.dequantized and _is_whole(lowering, op):
        axes = axes_of(op, len(lowering.shapes[op.inputs[0].id]))[2:]
        emit_reduction(lowering, group, "max" if op.kind == "MaxPool" else "mean", axes)
        return
    source, own = _pooled(lowering, group)
    epilogue = make_epilogue(lowering, group, gaps=True)
    image = find_image(lowering, group, source, epilogue)
    kernel = tuple(op.attrs["kernel"])
    begin, end = resolve_pads(op.attrs, image["src_spatial"], kernel)
    call = pooling(
        "max" if op.kind == "MaxPool" else "avg",
        **image,
        kernel=kernel,
        strides=op.attrs["strides"],
        pads_begin=begin,
        pads_end=end,
        dilations=per_axis(op.attrs, "dilations", len(kernel)),
        exclude_pad=op.attrs.get("exclude_pad", True),
        **own,
    )
    emit_anchor(lowering, group, call, [source], epilogue)


def _is_whole(lowering: Lowering, op: Op) -> bool:
    """Whether there is one window, which meets each pixel of the image once and no padding; not if sizes vary."""
    shape = lowering.shapes[op.inputs[0].id]
    spatial, kernel = pick(shape, axes_of(op, len(shape))[2:]), tuple(op.attrs["kernel"])
    if any(map(is_variable, shape)) or tuple(spatial) != kernel or 0 in shape:
        return False
    pads = (pad for side in resolve_pads(op.attrs, spatial, kernel) for pad in side)
    return not any(pads) and {*per_axis(op.attrs, "dilations", len(kernel))} == {1}


@rule("Interpolate", is_anchor=True, where=is_plain_resampling)
def lower_interpolate(lowering: Lowering, group: AnchorGroup) -> None:
    """Resampling, post-ops behind it."""
    op = group.anchor
    source = _as_result(lowering, group)
    epilogue = make_epilogue(lowering, group, gaps=True)
    call = resample(
        op.attrs["mode"],
        **find_image(lowering, group, source, epilogue),
        coordinate_transformation_mode=op.attrs["coordinate_transformation_mode"],
    )
    emit_anchor(lowering, group, call, [source], epilogue)


def _pooled(lowering: Lowering, group: AnchorGroup) -> tuple[Value, dict[str, Any]]:
    """What a pool reads, and what its kernel must know of it: f32, of quantised operands x - zp; or bytes.

    Bytes are read where channels lie side by side, as that kernel wants them.
    """
    if not group.dequantized:
        return _as_result(lowering, group), {}
    op = group.dequantized[0]
    source = lowering.value(op.inputs[0].id)
    axis = channel_axis(len(source.shape), group.anchor.attrs["data_format"])
    is_last = lowering.order_of(group.result)[-1] == axis and source.strides[axis] == 1
    if not is_last:
        return integers_of(lowering, op), {}
    return source, {"src_dtype": source.dtype.value, "zero_point": int((op.attrs.get("zps") or [0])[0])}


def _as_result(lowering: Lowering, group: AnchorGroup) -> Value:
    """The source of a window in f32, channels innermost where the result's are: its vectors run along them."""
    op = group.anchor
    order = lowering.order_of(group.result)
    if order[-1] == channel_axis(len(order), op.attrs["data_format"]):
        return lowering.arranged(op.inputs[0].id, order)
    return lowering.typed(lowering.value(op.inputs[0].id))


@rule("RoiAlign")
def lower_roi_align(lowering: Lowering, op: Op) -> None:
    """One kernel."""
    source, regions_, images = (lowering.value(tensor.id) for tensor in op.inputs)
    sources = [lowering.dense(source, DataType.F32), lowering.dense(regions_, DataType.F32)]
    place = lowering.target(op.outputs[0].id)
    attrs = op.attrs
    call = regions(
        source.shape, regions_.shape[0], (attrs["output_height"], attrs["output_width"]),
        ratio=attrs["sampling_ratio"], scale=attrs["spatial_scale"],
        is_half=attrs["coordinate_transformation_mode"] == "half_pixel", is_max=attrs["mode"] == "max",
    )  # fmt: skip
    lowering.emit(call, [*sources, lowering.dense(images, images.dtype), place])
    lowering.finish(op.outputs[0].id, place)
