"""Ops whose results have as many elements as are found, and regions of images.

What is found begins a buffer that has room for the most that there can be, and a count tells how much of it counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphpool.onnx.build import DataDependent, Value
from graphpool.typing import DataType

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphpool.onnx.build import NodeView


def _late(found: Sequence[Value], ncolumns: int, *, is_turned: bool) -> Value:
    """What is found: as many rows as the count, the second value, says; or, turned, columns."""

    def shape(nrows: int) -> tuple[int, int]:
        return (ncolumns, nrows) if is_turned else (nrows, ncolumns)

    def cut(numbers: Any, count: Any) -> Any:
        nrows = int(count[0])
        return numbers[: nrows * ncolumns].reshape(shape(nrows))

    def bound(room: tuple[int, ...], _: tuple[int, ...]) -> tuple[int, int]:
        return shape(room[0] // ncolumns)

    dims = (ncolumns, None) if is_turned else (None, ncolumns)
    return Value(data_dependent=DataDependent(tuple(found), DataType.S64, dims, cut, bound))


def _non_zero(n: NodeView) -> Value:
    ndim = len(n[0].shape)
    n.require(ndim > 0, "a scalar")
    return _late(n.emit_several("FindNonZero", [DataType.S64, DataType.S64], n[0]), ndim, is_turned=True)


def _number(n: NodeView, index: int, default: Any) -> Any:
    """The number that an input is; the default where it is left out."""
    if not n.has(index):
        return default
    content = n.known(index)
    n.require(content.size == 1, f"input {index} is no single number")
    return content.reshape(()).item()


def _suppress(n: NodeView) -> Value:
    least, most = _number(n, 4, None), _number(n, 3, 0.0)
    n.check(0 <= most <= 1, "iou_threshold", "0 to 1", most)
    attrs = {} if least is None else {"score_threshold": least}
    found = n.emit_several(
        "SelectBoxes", [DataType.S64, DataType.S64], n[0], n[1], max_boxes=max(_number(n, 2, 0), 0),
        iou_threshold=most, center_point_box=bool(n.attr("center_point_box", 0)), **attrs,
    )  # fmt: skip
    return _late(found, 3, is_turned=False)


def _roi_align(n: NodeView) -> Value:
    mode = n.attr("coordinate_transformation_mode", "half_pixel") if n.opset >= 16 else "output_half_pixel"
    names = ("mode", "output_height", "output_width", "sampling_ratio", "spatial_scale")
    given = {name: value for name in names if (value := n.attr(name)) is not None}
    return n.emit("RoiAlign", n[0], n[1], n.cast(n[2], DataType.S64), coordinate_transformation_mode=mode, **given)


CONVERTERS: dict[str, Callable[[NodeView], Any]] = {
    "NonZero": _non_zero, "NonMaxSuppression": _suppress, "RoiAlign": _roi_align,
}  # fmt: skip
