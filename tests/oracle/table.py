"""The table kind -> function, and how a function is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from . import (
    detection,
    elementwise,
    gradients,
    indexing,
    movement,
    normalisation,
    pairs,
    products,
    quantisation,
    recurrence,
    reductions,
    trees,
)
from . import windows as windows_
from .numbers import exact, round_to

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from .numbers import Array

__all__ = ["DISCONTINUOUS", "EXACT", "KINDS", "compute", "evaluate"]

FAMILIES = (elementwise, gradients, pairs, products, windows_, normalisation, reductions, movement, indexing,
            quantisation, recurrence, trees, detection)  # fmt: skip

KINDS: dict[str, Callable[..., Any]] = {
    kind: function for family in FAMILIES for kind, function in family.KINDS.items()
}

EXACT: frozenset[str] = frozenset().union(*(getattr(family, "EXACT", ()) for family in FAMILIES))
"""Kinds that round nothing but their result; of integers every kind is exact."""

DISCONTINUOUS: frozenset[str] = frozenset().union(*(getattr(family, "DISCONTINUOUS", ()) for family in FAMILIES))
"""Kinds that turn a rounding error into another result."""

LISTS_OF_REALS = ("scales", "alpha", "beta")


def _attribute(name: str, value: Any) -> Any:
    """A real attribute holds a float32."""
    if isinstance(value, float):
        return float(np.float32(value))
    if name in LISTS_OF_REALS and not isinstance(value, str):
        return tuple(float(np.float32(item)) for item in value)
    return value


def compute(
    kind: str, attrs: Mapping[str, Any], inputs: Sequence[Any], in_dtypes: Sequence[str], out_dtypes: Sequence[str]
) -> list[Array]:
    """Outputs of an op before they are rounded to `out_dtypes`.

    `attrs` is complete: every attribute that has a default is there. Functions are called with the attributes, among
    them ``in_dtypes`` and ``out_dtypes``, and the exact content of the inputs, and return one array or a tuple.
    """
    given = {name: _attribute(name, value) for name, value in attrs.items()}
    given |= {"in_dtypes": list(in_dtypes), "out_dtypes": list(out_dtypes)}
    contents = [exact(x, dtype) for x, dtype in zip(inputs, in_dtypes, strict=True)]
    with np.errstate(all="ignore"):
        results = KINDS[kind](given, *contents)
    return list(results)[: len(out_dtypes)] if isinstance(results, tuple) else [results]


def evaluate(
    kind: str, attrs: Mapping[str, Any], inputs: Sequence[Any], in_dtypes: Sequence[str], out_dtypes: Sequence[str]
) -> list[Array]:
    """Outputs of an op, rounded to `out_dtypes`; the rest is as for `compute`."""
    results = compute(kind, attrs, inputs, in_dtypes, out_dtypes)
    return [round_to(result, dtype) for result, dtype in zip(results, out_dtypes, strict=True)]
