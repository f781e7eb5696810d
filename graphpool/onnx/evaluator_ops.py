"""Ops for ONNX's reference evaluator, which gets them wrong: Loop and Scan.

Its own loops run a Loop without a condition no times, join what its iterations give along an existing axis instead of
a new one, and leave out directions and axes of a Scan. Source: the specification of the operators.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import helper
from onnx.reference.op_run import OpRun

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
