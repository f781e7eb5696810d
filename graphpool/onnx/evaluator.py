"""ONNX's reference evaluator, within the steps and the time that the host may take.

The nodes of graphs among attributes run as our own ops where they have an expression in them, as all others do.
"""

from __future__ import annotations

import threading
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator
from onnx.reference.op_run import OpRun

from .evaluator_ops import Loop, Scan
from .expressions import compile_pattern
from .host import make_inner_function
from .node import Node

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onnx import NodeProto

    from graphpool.runtime.model_form import HostFunction

    from .bounds import Bounds

_running = threading.local()
"""Bounds and name of the node that the thread evaluates."""


def _spend(steps: int) -> None:
    _running.bounds.host.spend(steps, _running.label)


class RegexFullMatch(OpRun):
    """Without backtracking, as the specification wants it: RE2's syntax, in time linear in the text."""

    op_domain = ""

    def _run(self, x: Any, pattern: str | None = None) -> tuple[Any, ...]:
        match = compile_pattern(pattern or "", _running.bounds.limits)
        texts = x.reshape(-1).tolist()
        _spend(sum(map(len, texts)) * match.nstates)
        return (np.array([match(text) for text in texts], np.bool_).reshape(x.shape),)


class CountingEvaluator(ReferenceEvaluator):
    """Counts every node that it evaluates, those of its nodes' graphs anew in each iteration.

    The evaluator passes options on for graphs of attributes, which are of this class too.
    """

    def __init__(self, model: Any, **options: Any) -> None:
        super().__init__(model, **{**options, "new_ops": [Loop, RegexFullMatch, Scan]})

    def _init(self) -> None:
        super()._init()
        if not isinstance(self.proto_, ModelProto):  # which holds the node that was tried as our ops before
            for inner in self.rt_nodes_:
                if not inner.has_linked_attribute:
                    inner.run = _OwnFirst(inner.onnx_node, self.opsets, inner.run)

    def evaluate(self, feeds: dict[str, Any], bounds: Bounds, label: str) -> Any:
        """The outputs for inputs by name; LimitError, which names the node, where the host's share is used up."""
        _running.bounds, _running.label = bounds, label
        return self.run(None, feeds)

    def run(self, output_names: Any, feed_inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """As the evaluator calls it for graphs of attributes."""
        _spend(1 + len(self.rt_nodes_))
        for inner in self.rt_nodes_:
            work = _WORK.get(inner.onnx_node.op_type)
            if work is not None:
                _spend(work(inner, feed_inputs))
        return super().run(output_names, feed_inputs, *args, **kwargs)


class _OwnFirst:
    """Runs a node as `host.make_inner_function` does, or as the evaluator where that has nothing for it."""

    def __init__(self, proto: NodeProto, opsets: Mapping[str, int], theirs: Callable[..., Any]) -> None:
        self._proto, self._opsets, self._theirs = proto, opsets, theirs
        self._function: HostFunction | None = None
        self._is_known = False

    def __call__(self, *inputs: Any, **options: Any) -> Sequence[Any]:
        """The node's outputs."""
        if not self._is_known:  # not before: bounds are those of who asks
            self._function = make_inner_function(Node(self._proto), self._opsets, _running.bounds, self._run_theirs)
            self._is_known = True
        if self._function is None:
            results: Sequence[Any] = self._theirs(*inputs, **options)
            return results
        named = iter(self._function(list(inputs), [None] * len(self._proto.output)))
        results = [next(named) if name else None for name in self._proto.output]
        return [np.asarray(result) if isinstance(result, np.generic) else result for result in results]

    def _run_theirs(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        results = self._theirs(*inputs)
        return [result for name, result in zip(self._proto.output, results, strict=False) if name]


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
