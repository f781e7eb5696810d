"""Ops for ONNX's reference evaluator, which lacks them or gets them wrong: Loop, Scan, and domain ai.onnx.ml.

Its own loops run a Loop without a condition no times, join what its iterations give along an existing axis instead of
a new one, and leave out directions and axes of a Scan. Source: the specification of the operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper
from onnx.reference.op_run import OpRun
from onnx.reference.ops.aionnxml.op_svm_classifier import SVMClassifier as _SVMClassifier

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class _Repeated(OpRun):
    """An op whose graph is evaluated many times, and sees what is around it."""

    op_domain = ""
    body: Any
    _run_body: Any

    def need_context(self) -> bool:
        """Whether values of the graph outside are handed in."""
        return True

    def _evaluate(self, outer: Mapping[str, Any] | None, given: Sequence[Any], options: dict[str, Any]) -> list[Any]:
        """The outputs of the graph for its inputs, which hide outer values of their names."""
        feeds = {**(outer or {}), **dict(zip(self.body.input_names, given, strict=True))}
        outputs: list[Any] = self._run_body(feeds, **options)
        return outputs

    def _stack(self, rows: Sequence[Any], output: int, axis: int = 0) -> Any:
        """What the iterations gave for an output of the graph, along a new axis; without any, by the declared type."""
        if rows:
            return np.stack(rows, axis)
        type_ = self.body.output_types[output].tensor_type
        shape = [dim.dim_value for dim in type_.shape.dim]  # an unknown extent counts as 0
        shape.insert(axis % (len(shape) + 1), 0)
        return np.empty(shape, helper.tensor_dtype_to_np_dtype(type_.elem_type))


class Loop(_Repeated):
    """The body, until the trip count is reached or its first output is false."""

    def _run(
        self, trips: Any, condition: Any, *states: Any, context: Any = None, body: Any = None, **options: Any
    ) -> tuple[Any, ...]:
        most = None if trips is None else int(np.asarray(trips).reshape(()))
        going = condition is None or bool(np.asarray(condition).reshape(()))
        count, rows, number = len(states), list[list[Any]](), 0
        while going and (most is None or number < most):
            check, *results = self._evaluate(context, [np.array(number), np.array(True), *states], options)
            going, states = bool(np.asarray(check).reshape(())), tuple(results[:count])
            rows.append(results[count:])
            number += 1
        scanned = range(count, len(self.body.output_names) - 1)
        return *states, *(self._stack([row[k - count] for row in rows], 1 + k) for k in scanned)


class Scan(_Repeated):
    """The body for each slice of the scanned inputs, as from opset 9 on."""

    def __init__(self, onnx_node: Any, run_params: Any) -> None:
        super().__init__(onnx_node, run_params)
        if run_params["opsets"].get("", 9) < 9:
            raise NotImplementedError("Scan with a batch, before opset 9")

    def _run(
        self,
        *given: Any,
        context: Any = None,
        body: Any = None,
        num_scan_inputs: int = 0,
        scan_input_axes: Sequence[int] | None = None,
        scan_input_directions: Sequence[int] | None = None,
        scan_output_axes: Sequence[int] | None = None,
        scan_output_directions: Sequence[int] | None = None,
        **options: Any,
    ) -> tuple[Any, ...]:
        count = len(given) - num_scan_inputs
        states, axes = list(given[:count]), scan_input_axes or [0] * num_scan_inputs
        sources = [np.moveaxis(source, axis, 0) for source, axis in zip(given[count:], axes, strict=True)]
        turned = scan_input_directions or [0] * num_scan_inputs
        sources = [source[::-1] if back else source for source, back in zip(sources, turned, strict=True)]
        rows = []
        for slices in zip(*sources, strict=True):
            results = self._evaluate(context, [*states, *slices], options)
            states = results[:count]
            rows.append(results[count:])
        scanned = range(len(self.body.output_names) - count)
        backwards, axes = scan_output_directions or [0] * len(scanned), scan_output_axes or [0] * len(scanned)
        columns = [[row[k] for row in rows][:: -1 if backwards[k] else 1] for k in scanned]
        return *states, *(self._stack(columns[k], count + k, axes[k]) for k in scanned)


# ---- domain ai.onnx.ml


_DOMAIN = "ai.onnx.ml"


class ZipMap(OpRun):
    """A map from labels to scores for each row."""

    op_domain = _DOMAIN

    def _run(
        self, x: Any, classlabels_int64s: Sequence[int] | None = None, classlabels_strings: Sequence[str] | None = None
    ) -> tuple[Any, ...]:
        keys = classlabels_int64s or classlabels_strings or ()
        rows = x.reshape(-1, x.shape[-1])  # a vector is one row
        return ([dict(zip(keys, row, strict=True)) for row in rows.tolist()],)


class DictVectorizer(OpRun):
    """The values of a map in the order of a vocabulary, one row; 0 or no text where the map has none."""

    op_domain = _DOMAIN

    def _run(
        self,
        x: Mapping[Any, Any],
        int64_vocabulary: Sequence[int] | None = None,
        string_vocabulary: Sequence[str] | None = None,
    ) -> tuple[Any, ...]:
        keys = int64_vocabulary or string_vocabulary or ()
        missing = "" if any(isinstance(value, str) for value in x.values()) else 0
        return (np.array([[x.get(key, missing) for key in keys]]),)


class CastMap(OpRun):
    """The values of a map in the order of its keys, one row; a sparse one has a place for each key up to a bound."""

    op_domain = _DOMAIN

    def _run(
        self, x: Mapping[int, Any], cast_to: str = "TO_FLOAT", map_form: str = "DENSE", max_map: int = 1
    ) -> tuple[Any, ...]:
        dtype, empty = {"TO_FLOAT": (np.float32, 0), "TO_INT64": (np.int64, 0), "TO_STRING": (np.object_, "")}[cast_to]
        cast = {key: _as_text(x[key]) if dtype is np.object_ else dtype(float(x[key])) for key in sorted(x)}
        row = list(cast.values()) if map_form == "DENSE" else [cast.get(key, empty) for key in range(max_map)]
        return (np.array([row], dtype),)


def _as_text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:f}"


class CategoryMapper(OpRun):
    """Texts as numbers, or numbers as texts, by two lists side by side."""

    op_domain = _DOMAIN

    def _run(
        self,
        x: Any,
        cats_int64s: Sequence[int] | None = None,
        cats_strings: Sequence[str] | None = None,
        default_int64: int = -1,
        default_string: str = "_Unused",
    ) -> tuple[Any, ...]:
        numbers, texts = cats_int64s or (), cats_strings or ()
        table: dict[Any, Any] = dict(zip(texts, numbers, strict=True))
        missing: Any = default_int64
        dtype: type[np.generic] = np.int64
        if x.dtype.kind == "i":
            table, missing, dtype = dict(zip(numbers, texts, strict=True)), default_string, np.object_
        found = [table.get(item, missing) for item in x.reshape(-1).tolist()]
        return (np.array(found, dtype).reshape(x.shape),)


class SVMClassifier(_SVMClassifier):
    """The evaluator's, but for the probabilities of more than two classes.

    Source: Wu, Lin and Weng, *Probability Estimates for Multi-class Classification by Pairwise Coupling* (2004), the
    second method.
    """

    def _probabilities(self, scores: Any, class_count_: int) -> Any:
        given: Any = self._svm.atts
        wins = np.zeros((class_count_, class_count_))
        upper = np.triu_indices(class_count_, 1)
        shares = 1 / (1 + np.exp(scores * given.prob_a + given.prob_b))
        wins[upper] = np.clip(shares, 1e-7, 1 - 1e-7)
        wins.T[upper] = 1 - wins[upper]
        weights = -wins.T * wins
        np.fill_diagonal(weights, (wins**2).sum(0))
        return _coupled(weights).astype(scores.dtype)


def _coupled(weights: Any) -> Any:
    """The shares p of sum 1 that make p' weights p least, by a fixed point over one share after another."""
    count = len(weights)
    shares = np.full(count, 1 / count)
    for _ in range(max(100, count)):
        slopes = weights @ shares
        least = shares @ slopes
        if np.abs(slopes - least).max() < 0.005 / count:
            break
        for k in range(count):
            step = (least - slopes[k]) / weights[k, k]
            shares[k] += step
            least = (least + step * (step * weights[k, k] + 2 * slopes[k])) / (1 + step) ** 2
            slopes = (slopes + step * weights[k]) / (1 + step)
            shares /= 1 + step
    return shares


ML_OPS: list[type[OpRun]] = [ZipMap, DictVectorizer, CastMap, CategoryMapper, SVMClassifier]
"""For the evaluator."""
