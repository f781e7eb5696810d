"""Host functions: what runs the nodes of which too little is known when a model is specialised, and computes constants.

NumPy runs the ops of host_ops.py and host_texts.py; where a node has an expression in our ops once its inputs are
known, the reference backend runs those; ONNX's evaluator runs the rest.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.backends.reference.backend import run_ops
from graphpool.errors import GraphpoolError
from graphpool.fork import reset_in_child
from graphpool.runtime.host_room import need_of_results

from ._words import TextFunction
from .arrays import numpy_type
from .build import GraphBuilder, NotConvertible, Value, require
from .encoders import has_table
from .host_ops import ALL, MOVES, RANDOM, SEARCHES
from .host_texts import BY_DOMAIN as TEXTS
from .host_texts import TEXT_MOVES
from .node import make_node
from .ops import convert, has_converter
from .proto import TensorProto, ValueInfoProto, as_onnx
from .types import make_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from graphpool.runtime.host_room import HostNeed, ValueBound
    from graphpool.runtime.model_form import HostFunction

    from .bounds import Bounds
    from .node import Node
    from .source import OnnxModel


def make_host_function(
    source: OnnxModel,
    node: Node,
    inputs: Sequence[Value | None],
    captured: Mapping[str, Value],
    given: Sequence[Value],
    results: Sequence[Value] = (),
) -> HostFunction:
    """What computes a node.

    `captured` are outer values that the node's graphs read. `given` are those of the inputs and captured values that
    calls pass, in order; the function holds the content of the others. `results` are the outputs, with what was
    inferred of them; none for a node that is computed once, ahead of time.
    """
    names = dict(zip(node.input, inputs, strict=True)) | dict(captured)
    numbers = {id(value): number for number, value in enumerate(given)}
    present = {name: value for name, value in names.items() if name and value is not None}
    places = {name: numbers.get(id(value)) for name, value in present.items()}
    known = {name: present[name].plain_content for name, number in places.items() if number is None}
    passed = {name: number for name, number in places.items() if number is not None}
    numbered = [passed.get(name) for name in node.input]
    is_onnx = node.domain in ("", "ai.onnx")
    function: HostFunction | None = None
    make = _maker_of_objects(node, present.values())
    made = None if make is None else make(node, numbered, known, source.bounds)
    if made is not None:
        function = _typed(made, node, results)
    elif is_onnx:
        is_inferred = all(value.is_plain for value in results)
        make = (ALL if is_inferred else SEARCHES).get(node.op_type)
        function = None if make is None else make(node, numbered, known, source.opsets)
    if function is not None:
        return function
    make_evaluator = partial(_Evaluator, source, node, names, known, passed, results)
    if has_table(node):  # which ONNX does not know: where our ops refuse numbers, nothing runs it
        are_numbers = all(value is None or value.is_plain for value in inputs)
        require(not results or not are_numbers, "elements of another type than the keys")
        return _Expression(source.bounds, source.opsets, node, known, passed, make_evaluator)
    if not is_onnx or not has_converter(node):
        return make_evaluator()
    if not results:  # the evaluator takes 12 MB and longer than most nodes that are computed ahead
        return _Expression(source.bounds, source.opsets, node, known, passed, make_evaluator)
    evaluator = make_evaluator()  # now, for a node that nothing runs is to be told now
    return _Expression(source.bounds, source.opsets, node, known, passed, lambda: evaluator)


def make_inner_function(
    node: Node, opsets: Mapping[str, int], bounds: Bounds, other: HostFunction
) -> HostFunction | None:
    """What runs a node of a graph that the evaluator runs; None where nothing does but the evaluator itself.

    `other` runs the node where it has no expression in our ops.
    """
    if not has_converter(node):
        return None
    places = [number if name else None for number, name in enumerate(node.input)]
    make = MOVES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    function: HostFunction | None = None if make is None else make(node, places, {}, opsets)
    passed = {name: number for number, name in enumerate(node.input) if name}
    return function or _Expression(bounds, opsets, node, {}, passed, lambda: other)


def needs_host(node: Node, inputs: Sequence[Value | None], results: Sequence[Value]) -> str:
    """Why no kernel could run a node that a function of the host runs well; empty for others."""
    if node.op_type in RANDOM and node.domain in ("", "ai.onnx"):
        return "random numbers are drawn on the host"
    read = [value for value in inputs if value is not None]
    if _maker_of_objects(node, read) is None:
        return ""
    if any(map(_has_objects, (*read, *results))):
        return "texts and maps are objects of Python"
    return "another category is an error" if node.op_type == "OneHotEncoder" and not node.attrs.get("zeros", 1) else ""


def _maker_of_objects(node: Node, values: Iterable[Value]) -> Any:
    make = TEXTS.get(node.domain, {}).get(node.op_type)
    if make is None and node.domain in ("", "ai.onnx") and any(map(_has_objects, values)):
        make = TEXT_MOVES.get(node.op_type)
    return make


def _has_objects(value: Value) -> bool:
    """Whether it is an array of texts, or no array."""
    if isinstance(value.content, np.ndarray):
        return value.content.dtype.kind in "OU"
    if value.is_known or value.is_plain or value.type is None:
        return False
    return not value.type.HasField("tensor_type") or value.type.tensor_type.elem_type == TensorProto.STRING


class _Expression:
    """Runs a node as our ops on the reference backend, or as another function does where there is no such expression.

    Inputs whose shapes or contents were not known before are so at each call.
    """

    def __init__(
        self,
        bounds: Bounds,
        opsets: Mapping[str, int],
        node: Node,
        known: Mapping[str, Any],
        passed: Mapping[str, int],
        make_other: Callable[[], HostFunction],
    ) -> None:
        self._node, self._bounds = node, bounds
        self._opset = opsets.get(node.domain, 1)
        self._nused = max(number for number, name in enumerate(node.output, 1) if name)
        self._known = known
        self._passed = passed
        self._make_other = make_other

    def bound(self, inputs: Sequence[ValueBound | None], outputs: Sequence[ValueBound | None]) -> HostNeed | None:
        """As `HostFunction.bound`."""
        return _evaluator_need(self._node, inputs, outputs)

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """The node's named outputs."""
        contents = {**self._known, **{name: inputs[number] for name, number in self._passed.items()}}
        values = [Value(content=contents[name]) if name else None for name in self._node.input]
        builder = GraphBuilder({}, "memory", "strict", "cpu", self._bounds)
        try:
            results = convert(self._node, values, self._opset, self._nused, builder)
        except (NotConvertible, GraphpoolError):
            return self._make_other()(inputs, outputs)
        named = [value for name, value in zip(self._node.output[: self._nused], results, strict=False) if name]
        parts = [part for value in named for part in (value.data_dependent.parts if value.data_dependent else (value,))]
        made: dict[int, tuple[int, ...] | None] = {part.tensor.id: None for part in parts if part.tensor is not None}
        found = run_ops(builder.ops, list(builder.constants), made, list(builder.constants.values()))
        arrays = dict(zip(made, found, strict=True))
        return [_content_of(value, arrays) for value in named]


def _content_of(value: Value, arrays: Mapping[int, Any]) -> Any:
    """What a value has where these are those of tensors."""
    if value.data_dependent is not None and value.data_dependent.cut is not None:
        return value.data_dependent.cut(*[_content_of(part, arrays) for part in value.data_dependent.parts])
    return value.plain_content if value.tensor is None else arrays[value.tensor.id]


_TAKEN = {"AffineGrid": 7, "BitCast": 0, "Cast": 0, "DeformConv": 2, "Det": 2, "MaxUnpool": 1, "RegexFullMatch": 0}
"""Op -> how many times the memory of inputs and results ONNX's evaluator takes at most beside results, as measured."""

_EVALUATOR_NBYTES = 2**14
"""For what it makes of numbers."""


def _evaluator_need(
    node: Node, inputs: Sequence[ValueBound | None], outputs: Sequence[ValueBound | None]
) -> HostNeed | None:
    """What ONNX's evaluator takes for a node, where that is known."""
    results = need_of_results(outputs)
    makes_texts = node.op_type == "Cast" and node.attrs["to"] == TensorProto.STRING
    if results is None or None in inputs or node.op_type not in _TAKEN or makes_texts:
        return None
    nbytes = results.nbytes + sum(value.nbytes for value in inputs if value is not None)
    most = results.nbytes + _TAKEN[node.op_type] * nbytes + _EVALUATOR_NBYTES
    return results._replace(nbytes=most, is_measured=True)


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
        from onnx import ValueInfoProto, helper  # here, since it takes 12 MB and few models need it

        from .evaluator import CountingEvaluator

        infos = [as_onnx(_describe(name, value)) for name, value in names.items() if name and value is not None]
        outputs = [name for name in node.output if name]
        nodes, opsets = _renewed(node, source.opsets_for(node))
        graph = helper.make_graph(
            [as_onnx(own.proto) for own in nodes], "node", infos, [ValueInfoProto(name=n) for n in outputs]
        )
        imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
        self._evaluator = CountingEvaluator(helper.make_model(graph, opset_imports=imports))
        self._node, self._bounds, self._label = node, source.bounds, node.label
        self._elem_types = [_elem_type(value) for name, value in zip(node.output, results, strict=False) if name]
        self._known = dict(known)
        self._passed = list(passed.items())
        self.makes_texts = TensorProto.STRING in self._elem_types
        self._reset_in_child()
        reset_in_child(self)

    def _reset_in_child(self) -> None:
        self._lock = threading.Lock()

    def bound(self, inputs: Sequence[ValueBound | None], outputs: Sequence[ValueBound | None]) -> HostNeed | None:
        """As `HostFunction.bound`."""
        return _evaluator_need(self._node, inputs, outputs)

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """The node's named outputs."""
        feeds = self._known | {name: inputs[number] for name, number in self._passed}
        with self._lock, np.errstate(all="ignore"):
            results: Any = self._evaluator.evaluate(feeds, self._bounds, self._label)
        elem_types = self._elem_types or [TensorProto.UNDEFINED] * len(results)
        return [_of_type(result, elem_type) for result, elem_type in zip(results, elem_types, strict=True)]


def _typed(function: HostFunction, node: Node, results: Sequence[Value]) -> HostFunction:
    """The function, with arrays of the types that were inferred."""
    elem_types = [_elem_type(value) for name, value in zip(node.output, results, strict=False) if name]
    dtypes = [numpy_type(elem_type) if elem_type else None for elem_type in elem_types]
    is_fit = dtypes == [np.dtype(np.object_)]  # what gives texts gives objects
    if not any(dtypes) or is_fit or (isinstance(function, TextFunction) and dtypes == [function.dtype]):
        return function
    return _Typed(function, dtypes)


class _Typed:
    """A function, with arrays of given types, None for those that stay as they are."""

    def __init__(self, function: HostFunction, dtypes: Sequence[np.dtype[Any] | None]) -> None:
        self._function, self._dtypes = function, dtypes

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """The results."""
        return [
            result if dtype is None or result.dtype == dtype else result.astype(dtype)
            for result, dtype in zip(self._function(inputs, outputs), self._dtypes, strict=True)
        ]

    def __getattr__(self, name: str) -> Any:
        """What else the function tells."""
        if name == "_function":  # while it is unpickled
            raise AttributeError(name)
        return getattr(self._function, name)


def _elem_type(value: Value) -> int:
    """The element type that was inferred of a tensor, if one was."""
    return TensorProto.UNDEFINED if value.type is None else int(value.type.tensor_type.elem_type)


def _of_type(result: Any, elem_type: int) -> Any:
    """A result as its type says, text as objects: the evaluator takes NumPy's types as they come."""
    if isinstance(result, list):
        return [_of_type(item, TensorProto.UNDEFINED) for item in result]
    if not isinstance(result, (np.ndarray, np.generic)):
        return result
    if result.dtype.kind == "U":
        return np.asarray(result, np.object_)
    wanted = result.dtype if elem_type == TensorProto.UNDEFINED else numpy_type(elem_type)
    return np.asarray(result, wanted)


def _renewed(node: Node, opsets: dict[str, int]) -> tuple[list[Node], dict[str, int]]:
    """The node in a newer opset, and that opset, where the evaluator takes an old op for the new one."""
    version, renew = _RENEWED.get(node.op_type, (0, None))
    if renew is None or opsets.get("", version) >= version or node.domain not in ("", "ai.onnx"):
        return [node], opsets
    return renew(node), opsets | {"": version}


def _old_regions(node: Node) -> list[Node]:
    attrs = node.attrs | {"coordinate_transformation_mode": "output_half_pixel"}
    return [make_node(node.op_type, node.input, node.output, node.name, **attrs)]


def _old_sampling(node: Node) -> list[Node]:
    mode = {b"nearest": "nearest", b"bicubic": "cubic"}.get(node.attrs.get("mode", b""), "linear")
    return [make_node(node.op_type, node.input, node.output, node.name, **(node.attrs | {"mode": mode}))]


def _old_softmax(node: Node) -> list[Node]:
    """All dimensions from the axis on are one."""
    [x], [y] = node.input, node.output
    return [
        make_node("Shape", [x], [f"{x}/shape"], ""),
        make_node("Flatten", [x], [f"{x}/rows"], "", axis=node.attrs.get("axis", 1)),
        make_node(node.op_type, [f"{x}/rows"], [f"{x}/result"], node.name, axis=1),
        make_node("Reshape", [f"{x}/result", f"{x}/shape"], [y], ""),
    ]


_RENEWED: dict[str, tuple[int, Callable[[Node], list[Node]]]] = {
    "RoiAlign": (16, _old_regions), "GridSample": (20, _old_sampling), "Softmax": (13, _old_softmax),
    "LogSoftmax": (13, _old_softmax), "Hardmax": (13, _old_softmax),
}  # fmt: skip
"""Op -> opset that gave it what the evaluator expects, and how an older node is spelt there."""


def _describe(name: str, value: Value) -> Any:
    if value.is_plain:
        return ValueInfoProto(name=name, type=make_type(value.dtype, value.shape))
    return ValueInfoProto(name=name, type=value.type)
