"""ONNX's reference evaluator, within the steps and the time that the host may take."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from .expressions import compile_pattern

if TYPE_CHECKING:
    from onnx import ModelProto

    from graphpool.runtime.host_budget import HostBudget

    from .node import Node

__all__ = ["make_evaluator"]


def make_evaluator(model: ModelProto, node: Node, budget: HostBudget) -> ReferenceEvaluator:
    """An evaluator of one node that counts every node that it evaluates, in iterations of loops too.

    Parameters
    ----------
    model : ModelProto
        Of the node alone.
    node : Node
    budget : HostBudget
    """

    class RegexFullMatch(OpRun):
        """Without backtracking, as the specification wants it: RE2's syntax, in time linear in the text."""

        op_domain = ""

        def _run(self, x: Any, pattern: str | None = None) -> tuple[Any, ...]:
            match = compile_pattern(pattern or "", budget.limits)
            budget.spend(sum(map(len, x.reshape(-1).tolist())) * match.nstates, node.label)
            found = [match(text) for text in x.reshape(-1).tolist()]
            return (np.array(found, np.bool_).reshape(x.shape),)

    class Counting(ReferenceEvaluator):
        """Graphs of attributes are evaluated by this class too."""

        def run(self, output_names: Any, feed_inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
            budget.spend(1 + len(self.rt_nodes_), node.label)
            for inner in self.rt_nodes_:
                work = _WORK.get(inner.onnx_node.op_type)
                if work is not None:
                    budget.spend(work(inner, feed_inputs), node.label)
            return super().run(output_names, feed_inputs, *args, **kwargs)

    return Counting(model, new_ops=[RegexFullMatch])


def _samples(op: Any, feeds: dict[str, Any]) -> int:
    """Samples that RoiAlign takes: a number for each bin, or as many as the region has elements."""
    data, rois = (feeds.get(name) for name in op.input[:2])
    if data is None or rois is None or not rois.size:
        return 0
    bins = op.output_height * op.output_width
    ratio = op.sampling_ratio
    if ratio > 0:
        each = bins * ratio * ratio
    else:
        sizes = np.abs(np.asarray(rois, np.float64).reshape(-1, 4) * op.spatial_scale) + 1
        each = bins + 4 * float(sizes.max()) ** 2
    return int(min(len(rois) * data.shape[1] * each, 2.0**62))


def _windows(op: Any, feeds: dict[str, Any]) -> int:
    """Elements of a window, which the evaluator gathers one by one."""
    return prod(getattr(op, "kernel_shape", None) or ())


_WORK = {"RoiAlign": _samples, "LpPool": _windows, "MaxPool": _windows, "AveragePool": _windows, "Conv": _windows}
"""Inner steps of ops whose work is not that of their inputs and outputs."""
