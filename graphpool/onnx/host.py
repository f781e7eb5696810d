"""Host functions: what runs the ops that have no expression in our ops."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from onnx import ValueInfoProto, helper

from graphpool.fork import reset_in_child

from .host_ops import NUMPY_FUNCTIONS
from .types import make_type

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphpool.runtime.model_form import HostFunction

    from .build import Value
    from .node import Node
    from .source import OnnxModel

__all__ = ["make_host_function"]


def make_host_function(
    source: OnnxModel,
    node: Node,
    inputs: Sequence[Value | None],
    captured: Mapping[str, Value],
    given: Sequence[Value],
    results: Sequence[Value] = (),
) -> HostFunction:
    """What computes a node.

    Parameters
    ----------
    source : OnnxModel
    node : Node
    inputs : sequence of Value or None
    captured : mapping of str to Value
        Outer values that the node's graphs read.
    given : sequence of Value
        Those of the inputs and captured values that calls pass, in order; the function holds the content of the others.
    results : sequence of Value
        The outputs, with what was inferred of them.
    """
    names = dict(zip(node.input, inputs, strict=True)) | dict(captured)
    numbers = {id(value): number for number, value in enumerate(given)}
    present = {name: value for name, value in names.items() if name and value is not None}
    places = {name: numbers.get(id(value)) for name, value in present.items()}
    known = {name: present[name].plain_content for name, number in places.items() if number is None}
    passed = {name: number for name, number in places.items() if number is not None}
    # without results the node is computed once, ahead of time; NumPy's functions rely on inferred outputs
    is_inferred = bool(results) and all(value.is_plain for value in results)
    make = NUMPY_FUNCTIONS.get(node.op_type) if is_inferred and node.domain in ("", "ai.onnx") else None
    function = None if make is None else make(node, [passed.get(n) for n in node.input], known, source.opsets)
    return function or _Evaluator(source, node, names, known, passed, results)


class _Evaluator:
    """Runs a node on ONNX's reference evaluator, one call at a time (its ops promise nothing about threads)."""

    def __init__(
        self,
        source: OnnxModel,
        node: Node,
        names: Mapping[str, Value | None],
        known: Mapping[str, Any],
        passed: Mapping[str, int],
        results: Sequence[Value],
    ) -> None:
        from .evaluator import CountingEvaluator  # here, since it takes 12 MB and few models need it

        infos = [_describe(name, value) for name, value in names.items() if name and value is not None]
        outputs = [name for name in node.output if name]
        graph = helper.make_graph([node.proto], "node", infos, [ValueInfoProto(name=n) for n in outputs])
        imports = [helper.make_opsetid(domain, version) for domain, version in source.opsets_for(node).items()]
        self._evaluator = CountingEvaluator(helper.make_model(graph, opset_imports=imports))
        self._budget, self._label = source.bounds.host, node.label
        self._known = dict(known)
        self._passed = list(passed.items())
        self._reset_in_child()
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        self._lock = threading.Lock()

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """The node's named outputs."""
        feeds = self._known | {name: inputs[number] for name, number in self._passed}
        with self._lock, np.errstate(all="ignore"):
            results: Any = self._evaluator.evaluate(feeds, self._budget, self._label)
        return list(results)


def _describe(name: str, value: Value) -> Any:
    if value.is_plain:
        return helper.make_value_info(name, make_type(value.dtype, value.shape))
    return ValueInfoProto(name=name, type=value.type)
