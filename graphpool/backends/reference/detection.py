"""Searches whose results a count tells, and regions of images.

Boxes are compared in float32: whether two overlap by more than a share is decided where onnxruntime decides it.
Source: the specification of ONNX's NonZero, NonMaxSuppression and RoiAlign.
"""

from __future__ import annotations

import numpy as np

from .axes import within
from .registry import Array, Attrs, reference


def _filled(found: Array, room: int, count: int) -> tuple[Array, Array]:
    """The numbers, with zeros behind them, and their count."""
    return np.pad(found.reshape(-1), (0, room - found.size)), np.array([count])


@reference("FindNonZero", "raw")
def _find_non_zero(attrs: Attrs, src: Array) -> tuple[Array, Array]:
    places = np.array(np.nonzero(src), np.int64)
    return _filled(places, src.ndim * src.size, places.shape[1])


@reference("SelectBoxes")
def _select_boxes(attrs: Attrs, boxes: Array, scores: Array) -> tuple[Array, Array]:
    most = min(attrs["max_boxes"], scores.shape[2])
    overlap, least = np.float32(attrs["iou_threshold"]), attrs.get("score_threshold")
    corners = _corners(boxes.astype(np.float32), attrs["center_point_box"])
    found = [
        (batch, kind, place)
        for batch, rows in enumerate(corners)
        for kind, row in enumerate(scores[batch])
        for place in _greedy(rows, row, most, overlap, least)
    ]
    return _filled(np.array(found, np.int64), scores.shape[0] * scores.shape[1] * most * 3, len(found))


def _corners(boxes: Array, is_centred: bool) -> Array:
    """Boxes (batch, boxes, 4) as their smallest coordinates, then their largest."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if is_centred:
        return np.concatenate([first - second / 2, first + second / 2], -1)
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _greedy(boxes: Array, scores: Array, most: int, overlap: np.float32, least: float | None) -> list[int]:
    """The best boxes of one class, best first, without those that overlap a better one by more than a share."""
    order = np.argsort(-scores, kind="stable")
    left = order if least is None else order[scores[order] > least]
    chosen: list[int] = []
    while left.size and len(chosen) < most:
        best, left = left[0], left[1:]
        chosen.append(int(best))
        left = left[~(_shares(boxes[best], boxes[left]) > overlap)]
    return chosen


def _shares(box: Array, others: Array) -> Array:
    """Intersection over union of a box and each of others; 0 where that is not defined."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    common = sides[:, 0] * sides[:, 1]
    own, areas = np.prod(box[2:] - box[:2]), np.prod(others[:, 2:] - others[:, :2], -1)
    total = own + areas - common
    is_defined = (sides > 0).all(-1) & (common > 0) & (own > 0) & (areas > 0) & (total > 0)
    return np.asarray(np.divide(common, total, out=np.zeros_like(common), where=is_defined))


@reference("RoiAlign")
def _roi_align(attrs: Attrs, src: Array, rois: Array, images: Array) -> Array:
    size = attrs["output_height"], attrs["output_width"]
    result = np.zeros((len(rois), src.shape[1], *size))
    shift = 0.5 if attrs["coordinate_transformation_mode"] == "half_pixel" else 0.0
    numbers = within(images, len(src))
    for region, number, target in zip(rois * attrs["spatial_scale"] - shift, numbers, result, strict=True):
        image = src[number]
        extents = region[[3, 2]] - region[[1, 0]]
        extents = extents if shift else np.maximum(extents, 1)
        axes = zip(region[[1, 0]], extents, size, image.shape[1:], strict=True)
        rows, columns = (_samples(*axis, attrs["sampling_ratio"]) for axis in axes)
        for place in np.ndindex(*size):
            target[(slice(None), *place)] = _bin(image, rows[place[0]], columns[place[1]], attrs["mode"])
    return result


_MOST = 2**24
"""Samples of a bin beyond which they are not looked at one by one."""


def _samples(start: float, extent: float, nbins: int, size: int, ratio: int) -> list[tuple[Array, float]]:
    """For each bin the places of the samples that count, and how many samples there are."""
    step = extent / nbins
    count = float(ratio or np.ceil(step))
    found = []
    for number in range(nbins):
        from_ = start + number * step
        if not (count > 0 and np.isfinite(from_) and np.isfinite(step)) or size == 0:
            found.append((np.zeros(0), max(count, 0.0) if np.isfinite(count) else 0.0))
            continue
        bounds = np.sort([(-1 - from_) / (step / count), (size - from_) / (step / count)]) if step else [0.0, count]
        first, last = max(np.floor(bounds[0]) - 1, 0), min(np.ceil(bounds[1]) + 1, count)
        places = from_ + (first + np.arange(int(min(max(last - first, 0), _MOST))) + 0.5) * step / count
        found.append((places[(places >= -1) & (places <= size)], count))
    return found


def _bin(image: Array, rows: tuple[Array, float], columns: tuple[Array, float], mode: str) -> Array:
    """The mean of the samples of a bin, or the largest of their weighted corners, for each channel."""
    (y, ny), (x, nx) = rows, columns
    if y.size * x.size == 0:
        return np.zeros(len(image))
    y_low, y_high, y_weights = _neighbours(y, image.shape[1])
    x_low, x_high, x_weights = _neighbours(x, image.shape[2])
    corners = np.stack([
        image[:, ys][:, :, xs] * np.outer(wy, wx)
        for ys, wy in ((y_low, 1 - y_weights), (y_high, y_weights))
        for xs, wx in ((x_low, 1 - x_weights), (x_high, x_weights))
    ])  # fmt: skip
    if mode == "avg":
        return np.asarray(corners.sum((0, 2, 3)) / (ny * nx))
    most = corners.max((0, 2, 3))
    return np.asarray(most if y.size * x.size == ny * nx else np.maximum(most, 0))


def _neighbours(places: Array, size: int) -> tuple[Array, Array, Array]:
    """The pixels on either side of places, and the weight of the second."""
    places = np.clip(places, 0, size - 1)
    low = places.astype(np.int64)
    return low, np.minimum(low + 1, size - 1), places - low
