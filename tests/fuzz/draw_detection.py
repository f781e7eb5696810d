"""Draws of searches that a count ends, of boxes, regions of images, and probabilities of pairs of classes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from .draw_eltwise import types_of
from .maker import Maker, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["DRAWS"]


def find_non_zero(m: Maker) -> int:
    x = m.source(types_of("FindNonZero", "T1"), low=1)
    if math.prod(m.shape_of(x)) * len(m.shape_of(x)) > 8 * m.elements:
        raise Refused("too many places")
    if m.chance(0.5):  # most tensors hold no zero
        x = m.fresh(m.dtypes[x], m.shape_of(x), low=-1, high=1, how="lattice")
    if not m.exact[x]:
        raise Refused("what rounding decides")
    return m.add("FindNonZero", [x], ["s64", "s64"])


def select_boxes(m: Maker) -> int:
    batches, classes, count = m.integer(1, 3), m.integer(1, 4), m.choose([0, 1, 2, 7, 15, 16, 17, 40])
    boxes = m.fresh("f32", (batches, count, 4), how=m.choose(["lattice", "uniform"]), low=0, high=2)
    scores = m.fresh("f32", (batches, classes, count), how=m.choose(["lattice", "uniform"]), low=-1, high=1)
    attrs: dict[str, Any] = {"max_boxes": m.choose([0, 1, 3, 50]), "center_point_box": m.chance(0.4)}
    attrs["iou_threshold"] = m.choose([0.0, 0.25, 0.5, 1.0])
    if m.chance(0.6):
        attrs["score_threshold"] = m.choose([-2.0, 0.0, 0.125, 2.0])
    return m.add("SelectBoxes", [boxes, scores], ["s64", "s64"], **attrs)


def roi_align(m: Maker) -> int:
    images, channels = m.integer(1, 3), m.choose([1, 3, 8, 15, 16, 17])
    sizes, regions = (m.integer(1, 12), m.integer(1, 12)), m.choose([0, 1, 2, 5])
    image = m.operand("f32", (images, channels, *sizes))
    attrs = {
        "coordinate_transformation_mode": m.choose(["half_pixel", "output_half_pixel"]),
        "mode": m.choose(["avg", "avg", "max"]), "output_height": m.integer(1, 4), "output_width": m.integer(1, 4),
        "sampling_ratio": m.choose([0, 1, 2, 3]), "spatial_scale": m.choose([1.0, 0.5, 0.3125]),
    }  # fmt: skip
    rois = m.fresh("f32", (regions, 4), how="lattice", low=-3, high=24, any_value=False)  # samples are counted by size
    return m.add("RoiAlign", [image, rois, m.fresh("s64", (regions,), low=-images, high=images - 1)], "f32", **attrs)


def couple_pairs(m: Maker) -> int:
    classes = m.integer(2, 7)
    shape = (m.integer(0, 9), classes * (classes - 1) // 2)
    return m.add("CouplePairs", [m.fresh("f32", shape, how="uniform", low=0.05, high=0.95, any_value=False)])


DRAWS: tuple[tuple[float, Callable[[Maker], int]], ...] = (
    (0.4, find_non_zero), (0.4, select_boxes), (0.4, roi_align), (0.2, couple_pairs),
)  # fmt: skip
