"""Searches whose results a count tells, boxes and regions of images, place by place."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .numbers import Array

Attrs = dict[str, Any]


def padded(numbers: list[int], room: int, count: int) -> tuple[Array, Array]:
    return np.array(numbers + [0] * (room - len(numbers)), dtype=object), np.array([count], dtype=object)


def find_non_zero(attrs: Attrs, x: Array) -> tuple[Array, Array]:
    found = [place for place in np.ndindex(*x.shape) if x[place] != 0]
    return padded([place[k] for k in range(x.ndim) for place in found], x.ndim * x.size, len(found))


def corners_of(box: Array, is_centred: bool) -> tuple[Any, ...]:
    a, b, c, d = (np.float32(item) for item in box)
    half = np.float32(2)
    if is_centred:
        return a - c / half, b - d / half, a + c / half, b + d / half
    return min(b, d), min(a, c), max(b, d), max(a, c)


def share(a: tuple[Any, ...], b: tuple[Any, ...]) -> Any:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (a, b)]
    if not (width > 0 and height > 0 and min(areas) > 0):
        return 0.0
    return (width * height) / (areas[0] + areas[1] - width * height)


def select_boxes(attrs: Attrs, boxes: Array, scores: Array) -> tuple[Array, Array]:
    most, least, overlap = attrs["max_boxes"], attrs.get("score_threshold"), np.float32(attrs["iou_threshold"])
    found: list[tuple[int, int, int]] = []
    for batch, kind in itertools.product(*map(range, scores.shape[:2])):
        row = scores[batch, kind]
        rows = [corners_of(box, attrs["center_point_box"]) for box in boxes[batch]]
        chosen: list[int] = []
        for place in sorted(range(len(row)), key=lambda n: (math.isnan(row[n]), -row[n], n)):
            is_good = (least is None or row[place] > least) and len(chosen) < most
            if is_good and not any(share(rows[other], rows[place]) > overlap for other in chosen):
                chosen.append(place)
        found += [(batch, kind, place) for place in chosen]
    room = scores.shape[0] * scores.shape[1] * min(most, scores.shape[2]) * 3
    return padded([number for row in found for number in row], room, len(found))


def corners(image: Array, y: float, x: float) -> list[Array]:
    """The weighted corners around a place; zeros more than a pixel outside."""
    _, height, width = image.shape
    if not (-1 <= y <= height and -1 <= x <= width):
        return [np.zeros(len(image))]
    y, x = min(max(y, 0.0), height - 1.0), min(max(x, 0.0), width - 1.0)
    return [
        image[:, ys, xs].astype(float) * wy * wx
        for ys, wy in ((int(y), 1 - y % 1), (min(int(y) + 1, height - 1), y % 1))
        for xs, wx in ((int(x), 1 - x % 1), (min(int(x) + 1, width - 1), x % 1))
    ]


def roi_align(attrs: Attrs, src: Array, rois: Array, images: Array) -> Array:
    size = attrs["output_height"], attrs["output_width"]
    result = np.zeros((len(rois), src.shape[1], *size))
    is_half = attrs["coordinate_transformation_mode"] == "half_pixel"
    for number, region in enumerate(rois):
        index = int(images[number])
        image = src[index]
        x0, y0, x1, y1 = (float(item) * attrs["spatial_scale"] - 0.5 * is_half for item in region)
        height, width = (extent if is_half else max(extent, 1.0) for extent in (y1 - y0, x1 - x0))
        steps = height / size[0], width / size[1]
        counts = [attrs["sampling_ratio"] or max(math.ceil(step), 0) for step in steps]
        for i, j in np.ndindex(*size):
            samples = [
                corners(image, y0 + (i + (k + 0.5) / counts[0]) * steps[0], x0 + (j + (m + 0.5) / counts[1]) * steps[1])
                for k, m in np.ndindex(*counts)
            ]
            if samples and attrs["mode"] == "avg":
                result[number, :, i, j] = sum(sum(sample) for sample in samples) / len(samples)
            elif samples:
                result[number, :, i, j] = np.max([corner for sample in samples for corner in sample], 0)
    return result


KINDS = {"FindNonZero": find_non_zero, "SelectBoxes": select_boxes, "RoiAlign": roi_align}
DISCONTINUOUS = frozenset({"SelectBoxes"})
EXACT = DISCONTINUOUS | {"FindNonZero"}
