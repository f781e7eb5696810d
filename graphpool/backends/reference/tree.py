"""Ensembles of decision trees."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .registry import reference

if TYPE_CHECKING:
    from .registry import Array, Attrs

_FUNCTIONS = {"sum": np.add, "average": np.add, "min": np.fmin, "max": np.fmax}


@reference("TreeEnsemble")
def _tree_ensemble(
    attrs: Attrs,
    src: Array,
    thresholds: Array,
    nodes: Array,
    roots: Array,
    weights: Array,
    targets: Array,
    base: Array,
) -> Array:
    """All rows go down a tree together, a step at a time, until all have come to leaves."""
    function, is_sum = _FUNCTIONS[attrs["aggregate"]], attrs["aggregate"] in ("sum", "average")
    found = np.full((len(src), len(base)), 0.0 if is_sum else np.nan)
    numbers, child = np.arange(len(nodes)), nodes[:, 1]
    is_leaf = (child <= numbers) | (child >= len(nodes) - 1)
    features = np.clip(nodes[:, 0], 0, max(src.shape[1] - 1, 0))
    begins = np.clip(nodes[:, 0], 0, len(weights))
    ends = begins + np.clip(nodes[:, 2], 0, len(weights) - begins)
    targets = np.clip(targets, 0, max(len(base) - 1, 0))
    rows = np.arange(len(src))
    for root in np.clip(roots, 0, max(len(nodes) - 1, 0)):
        at = np.full(len(src), root)
        while not is_leaf[at].all():
            x = src[rows, features[at]]
            is_second = (x > thresholds[at]) | (np.isnan(x) & (nodes[at, 2] != 0))
            at = np.where(is_leaf[at], at, child[at] + is_second)
        for row in rows:
            entries = slice(begins[at[row]], ends[at[row]])
            function.at(found[row], targets[entries], weights[entries])
    if attrs["aggregate"] == "average":
        found /= max(len(roots), 1)
    return np.where(np.isnan(found) & (not is_sum), 0.0, found) + base
