"""Interpolation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from graphpool.onnx.build import NodeView, Value

__all__ = ["CONVERTERS"]


def _resize(n: NodeView) -> Value:
    """Resize by half pixels or aligned corners; what has other coordinates is refused."""
    spatial = len(n[0].shape) - 2
    n.require(spatial in (1, 2, 3), "not 3-D to 5-D")
    n.require(n.opset >= 11 and not n.attr("antialias", 0), "an old opset, or antialiasing")
    n.require(n.attr("keep_aspect_ratio_policy", "stretch") == "stretch", "a kept aspect ratio")
    scales, sizes = _given(n, 2), _given(n, 3)
    mode = n.attr("mode", "nearest")
    coordinates = n.attr("coordinate_transformation_mode", "half_pixel")
    if mode == "nearest":
        _check_nearest(n, coordinates, scales, sizes)
        coordinates = "half_pixel"
    whole = not scales or all(
        float(dim * scale).is_integer() for dim, scale in zip(n[0].shape[2:], scales, strict=True)
    )
    n.require(whole, "a scale that is not the ratio of the sizes, which ours takes")
    n.require(mode in ("nearest", "linear") and coordinates in ("half_pixel", "align_corners"), f"{mode} {coordinates}")
    target = {"sizes": [int(size) for size in sizes]} if sizes else {"scales": scales}
    return n.emit(
        "Interpolate", n[0], mode=mode, coordinate_transformation_mode=coordinates, data_format="NCX", **target
    )


def _given(n: NodeView, index: int) -> list[Any]:
    """Scales or sizes of the spatial dimensions; the others must stay as they are."""
    if not n.has(index) or not n[index].shape or n[index].shape[0] == 0:
        return []
    shape, values = n[0].shape, n.known(index).tolist()
    axes = [axis % len(shape) for axis in n.attr("axes") or range(len(shape))]
    unchanged = [1.0] * len(shape) if index == 2 else list(shape)
    full = list(unchanged)
    for axis, value in zip(axes, values, strict=True):
        full[axis] = value
    n.require(full[:2] == unchanged[:2], "batch or channels are resized")
    return full[2:]


def _check_nearest(n: NodeView, coordinates: str, scales: list[Any], sizes: list[Any]) -> None:
    """Half pixels without ties, which ours rounds up; flooring whole multiples picks the same elements."""
    rounding = n.attr("nearest_mode", "round_prefer_floor")
    if coordinates == "half_pixel" and rounding.startswith("round_prefer"):
        for k, dim in enumerate(n[0].shape[2:]):
            scale = scales[k] if scales else sizes[k] / dim
            points = (np.arange(int(dim * scale)) + 0.5) / scale - 0.5
            n.require(not np.any(np.abs(points % 1 - 0.5) < 1e-6), "a point lies between two elements")
        return
    whole = bool(scales) and all(scale >= 1 and scale == int(scale) for scale in scales)
    n.require(coordinates == "asymmetric" and rounding == "floor" and whole, f"{coordinates} {rounding}")


def _upsample(n: NodeView) -> Value:
    """Old form of Resize: floored coordinates without half pixels."""
    n.require(n.attr("mode", "nearest") == "nearest" and n.opset >= 7, "only nearest is the same as ours")
    scales = n.attr("scales") or n.known(1).tolist()
    n.require(all(scale >= 1 and scale == int(scale) for scale in scales), "scales are no whole multiples")
    n.require(list(scales[:2]) == [1, 1] and 3 <= len(scales) <= 5, "batch or channels are resized")
    return n.emit(
        "Interpolate", n[0], mode="nearest", coordinate_transformation_mode="half_pixel", data_format="NCX",
        scales=[float(scale) for scale in scales[2:]],
    )  # fmt: skip


CONVERTERS = {"Resize": _resize, "Upsample": _upsample}
