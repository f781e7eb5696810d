"""Decision trees: one row and one tree at a time."""

from __future__ import annotations

from functools import reduce
from math import isnan
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from .numbers import Array

Attrs = dict[str, Any]


def nearest(index: Any, count: int) -> int:
    return min(max(int(index), 0), count - 1)


def leaf_of(row: Array, root: int, thresholds: Array, nodes: Array) -> int:
    at = root
    while at < nodes[at, 1] < len(nodes) - 1:
        feature, child, second_if_nan = nodes[at]
        x = row[nearest(feature, len(row))]
        is_second = second_if_nan != 0 if isnan(x) else x > thresholds[at]
        at = int(child) + bool(is_second)
    return at


def tree_ensemble(
    attrs: Attrs, x: Array, thresholds: Array, nodes: Array, roots: Array, weights: Array, targets: Array, base: Array
) -> Array:
    y = np.empty((len(x), len(base)))
    for k, row in enumerate(x):
        found: list[list[float]] = [[] for _ in base]
        for root in roots:
            leaf = leaf_of(row, nearest(root, len(nodes)), thresholds, nodes)
            begin = nearest(nodes[leaf, 0], len(weights) + 1)
            for entry in range(begin, min(begin + max(int(nodes[leaf, 2]), 0), len(weights))):
                found[nearest(targets[entry], len(base))].append(float(weights[entry]))
        for target, numbers in enumerate(found):
            y[k, target] = base[target] + aggregate(attrs["aggregate"], numbers, len(roots))
    return y


def aggregate(how: str, numbers: list[float], ntrees: int) -> float:
    if how in ("min", "max"):
        known = [number for number in numbers if not isnan(number)]
        return (min if how == "min" else max)(known, default=0.0)
    return reduce(add, numbers, 0.0) / (max(ntrees, 1) if how == "average" else 1)


KINDS = {"TreeEnsemble": tree_ensemble}
DISCONTINUOUS = frozenset(KINDS)
