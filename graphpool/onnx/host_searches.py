"""Host functions in plain NumPy for ops that find elements, so that contents decide the shapes of their results.

Source: the ONNX operator specification; where inputs may be left out, ONNX's evaluator fails.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .host_ops import getter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphpool.runtime.model_form import HostFunction

    from .node import Node


def _unique(node: Node, places: Any, known: Any, opsets: Any) -> HostFunction | None:
    get, attrs = getter(node, places, known), node.attrs
    axis, is_sorted = attrs.get("axis"), attrs.get("sorted", 1)

    def unique(inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        [data] = get(inputs)
        values, first, inverse, counts = np.unique(
            data, return_index=True, return_inverse=True, return_counts=True, axis=axis
        )
        inverse = inverse.reshape(-1)
        if not is_sorted:  # by first appearance
            order = np.argsort(first)
            values, first, counts = np.take(values, order, axis or 0), first[order], counts[order]
            inverse = np.argsort(order)[inverse]
        return [part for name, part in zip(node.output, (values, first, inverse, counts), strict=False) if name]

    return unique


def _suppress(node: Node, places: Any, known: Any, opsets: Any) -> HostFunction:
    get, is_centred = getter(node, places, known), bool(node.attrs.get("center_point_box", 0))

    def suppress(inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        boxes, scores, *limits = get(inputs)
        most, overlap, least = [None if v is None else v.item() for v in [*limits, None, None, None][:3]]
        found = [
            (batch, kind, place)
            for batch, rows in enumerate(_corners(boxes, is_centred))
            for kind, row in enumerate(scores[batch])
            for place in _greedy(rows, row, most or 0, overlap or 0.0, least)
        ]
        return [np.array(found, np.int64).reshape(-1, 3)]

    return suppress


def _corners(boxes: Any, is_centred: bool) -> Any:
    """Boxes (batch, boxes, 4) as their smallest coordinates, then their largest."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if is_centred:
        first, second = first - second / 2, first + second / 2
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _greedy(boxes: Any, scores: Any, most: int, overlap: float, least: float | None) -> list[int]:
    """The best boxes of one class, best first, without those that overlap a better one by more than a share."""
    order = np.argsort(-scores, kind="stable")
    left = order if least is None else order[scores[order] > least]
    chosen: list[int] = []
    while left.size and len(chosen) < most:
        best, left = left[0], left[1:]
        chosen.append(int(best))
        left = left[_shares(boxes[best], boxes[left]) <= overlap]
    return chosen


def _shares(box: Any, others: Any) -> Any:
    """Intersection over union of a box and each of others; 0 where that is not defined."""
    sides = np.minimum(box[2:], others[:, 2:]) - np.maximum(box[:2], others[:, :2])
    common = np.prod(np.maximum(sides, 0), -1)
    areas = np.prod(others[:, 2:] - others[:, :2], -1)
    total = np.prod(box[2:] - box[:2]) + areas - common
    return np.divide(common, total, out=np.zeros_like(common), where=(common > 0) & (total > 0))


SEARCHES: dict[str, Any] = {"NonMaxSuppression": _suppress, "Unique": _unique}
"""As `host_ops.MOVES`; nothing need be known of the outputs."""
