"""Pooling, Interpolate and RoiAlign: kernels over windows of an image."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...._kernels.image.pool import pooling
from ...._kernels.image.regions import regions
from ...._kernels.image.resample import resample
from ....graph.shapes import channel_axis, per_axis, resolve_pads
from ....typing import DataType
from ..lower.epilogue import emit_anchor, find_image, make_epilogue
from ..lower.integers import integers_of
from ..support import has_small_windows, is_plain_resampling, rule

if TYPE_CHECKING:
    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import AnchorGroup


@rule("AvgPool", "MaxPool", is_anchor=True, where=has_small_windows)
def lower_pool(lowering: Lowering, group: AnchorGroup) -> None:
    """Maximum or mean of each window, post-ops behind it."""
    op = group.anchor
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
