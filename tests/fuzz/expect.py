"""What a case's tensors hold by the oracle, and how far a result may be from it.

The tolerance is measured, not guessed: the graph is evaluated again with each float tensor moved at random by some
rounding errors of its type, and inside each op by some of f32. How far a result moves is how far rounding may move it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.graph.schema import get_schema
from tests.oracle import EXACT, compute
from tests.oracle.numbers import FLOATS, FORMAT, LARGEST, exact, round_to

from .freedoms import free_elements

if TYPE_CHECKING:
    from .cases import Case, Node

__all__ = ["QUANTISING", "Expected", "complete_attrs", "expected_of", "float_error"]

QUANTISING = frozenset({"Quantize", "DynamicQuantize", "DynamicQuantizeLinear"})
"""Kinds whose integers may differ by one where the quotient lies between two."""

TRIALS, ERRORS, MARGIN = 3, 4.0, 12.0
"""Evaluations with moved values, by how many rounding errors, and the factor on what comes of it."""

LEAST = {"f64": 2.0**-1022, "f32": 2.0**-126}
"""Numbers below these lose digits within an op, so far that they may become 0; other types are computed in f32."""

SUM_ERRORS = 16.0
"""Rounding errors that a sum of some hundred terms makes in its own type."""


class Expected:
    """Values and tolerances by tensor id.

    Attributes
    ----------
    values : dict of int to ndarray
        Every tensor, rounded to its type.
    exact : dict of int to bool
        Whether no rounding is behind the tensor.
    free : dict of int to ndarray
        Elements that are left open; see `free_elements`. Of a case without special values there are none.
    """

    def __init__(self, case: Case) -> None:
        self.case, self.dtypes = case, case.dtypes()
        self.values: dict[int, Any] = dict(case.inputs())
        self.exact = dict.fromkeys(self.values, True)
        for node in case.nodes:
            self.values.update(zip(ids_of(node), evaluate_node(node, self.values, self.dtypes), strict=True))
            self.exact.update(dict.fromkeys(ids_of(node), self.is_exact(node)))
        self._moved: list[dict[int, Any]] = []
        is_special = bool(case.options.get("special"))
        self.free = free_elements(case, self.values, self.dtypes) if is_special else {}

    def is_exact(self, node: Node) -> bool:
        """Whether an op rounds nothing, and nothing behind it does."""
        types = {self.dtypes[i] for i in (*node.inputs, *ids_of(node))}
        is_exact = node.kind in EXACT or (not types & set(FLOATS) and node.kind not in QUANTISING)
        return is_exact and all(self.exact[i] for i in node.inputs)

    def tolerance(self, tensor_id: int) -> Any:
        """How far each element may be off."""
        dtype, value = self.dtypes[tensor_id], exact(self.values[tensor_id], self.dtypes[tensor_id])
        if self.exact[tensor_id] or value.dtype == bool:
            return 0.0
        value = value.astype(np.float64)
        spread = np.zeros(value.shape)
        for moved in self.moved():
            with np.errstate(all="ignore"):
                other = exact_or_moved(moved[tensor_id])
                is_same = (other == value) | (np.isnan(other) & np.isnan(value))
                distance = np.where(is_same, 0.0, np.abs(other - value))
            spread = np.maximum(spread, np.where(np.isnan(distance), np.inf, distance))
        finite = spread[np.isfinite(spread)]
        common = np.quantile(finite, 0.9, method="lower") if finite.size else 0.0
        own = 1.0 if dtype not in FLOATS else float_error(value, dtype, SUM_ERRORS if dtype in ("f32", "f64") else 3.0)
        return MARGIN * spread + 2 * common + np.maximum(own, LEAST.get(dtype, LEAST["f32"]))

    def moved(self) -> list[dict[int, Any]]:
        """The graph's tensors in the evaluations with moved values."""
        while len(self._moved) < TRIALS:
            self._moved.append(self._move(np.random.default_rng([self.case.seed, len(self._moved), 77])))
        return self._moved

    def _move(self, rng: np.random.Generator) -> dict[int, Any]:
        values: dict[int, Any] = {i: self.values[i] for i in self.case.sources}
        for node in self.case.nodes:
            if self.exact[ids_of(node)[0]] if node.outputs else True:
                values.update({i: self.values[i] for i in ids_of(node)})
                continue
            wide = "f64" in {self.dtypes[i] for i in (*node.inputs, *ids_of(node))}
            inputs = [nudge(values[i], "f64" if wide else "f32", rng) for i in node.inputs]
            results = compute(node.kind, complete_attrs(node), inputs, [self.dtypes[i] for i in node.inputs],
                              [dtype for _, dtype in node.outputs])  # fmt: skip
            for (tensor_id, dtype), result in zip(node.outputs, results, strict=True):
                values[tensor_id] = nudge(result, dtype, rng) if dtype in FLOATS else round_to(result, dtype)
        return values


def exact_or_moved(x: Any) -> np.ndarray:
    """Any content as float64."""
    return np.asarray(x).astype(np.float64)


def nudge(x: Any, dtype: str, rng: np.random.Generator) -> Any:
    """Floats moved by some rounding errors of a type; integers as they are."""
    x = np.asarray(x)
    if x.dtype == object or x.dtype.kind in "iub" or "int" in x.dtype.name:
        return x
    x = x.astype(np.float64)
    error = ERRORS * 2.0 ** -FORMAT[dtype][0]
    with np.errstate(all="ignore"):
        moved = np.asarray(x * (1 + error * rng.uniform(-1, 1, x.shape)))
        return np.where(np.abs(moved) > LARGEST[dtype], np.copysign(np.inf, moved), moved)


def float_error(value: np.ndarray, dtype: str, count: float) -> np.ndarray:
    """`count` rounding errors of a float type at each value."""
    digits, least = FORMAT[dtype]
    with np.errstate(all="ignore"):
        size = np.minimum(np.abs(np.nan_to_num(value, posinf=0, neginf=0)), LARGEST[dtype])
    return count * np.maximum(size * 2.0**-digits, 2.0 ** (least - digits))


def ids_of(node: Node) -> list[int]:
    """Tensor ids of the outputs."""
    return [tensor_id for tensor_id, _ in node.outputs]


def complete_attrs(node: Node) -> dict[str, Any]:
    """The attributes with defaults, as the schema has them."""
    return dict(get_schema(node.kind).complete(node.kind, node.attrs))


def evaluate_node(node: Node, values: dict[int, Any], dtypes: dict[int, str]) -> list[Any]:
    """Outputs of an op by the oracle."""
    inputs, types = [values[i] for i in node.inputs], [dtypes[i] for i in node.inputs]
    results = compute(node.kind, complete_attrs(node), inputs, types, [dtype for _, dtype in node.outputs])
    return [round_to(result, dtype) for result, (_, dtype) in zip(results, node.outputs, strict=True)]


def expected_of(case: Case) -> Expected:
    """What the oracle expects of a case."""
    return Expected(case)
