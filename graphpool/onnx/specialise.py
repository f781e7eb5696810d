"""Specialises a model to input shapes: folds what is known, converts what we have, leaves the rest to the host."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import defs, helper, numpy_helper, shape_inference

from graphpool.errors import GraphpoolError, InvalidArgumentError, InvalidShapeError, UnsupportedError, explain
from graphpool.runtime.model_form import ModelForm

from .build import GraphBuilder, NodeView, NotConvertible, Value
from .host import make_host_function
from .ops import CONVERTERS
from .rewrite import rewrite
from .source import captured_names
from .types import data_type, make_type, static_shape

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import NodeProto

    from graphpool.graph import LogicalTensor
    from graphpool.runtime.model_form import HostFunction

    from .source import OnnxModel

__all__ = ["Specialiser"]

_RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
                     "RandomUniformLike", "Dropout"})  # fmt: skip
_SMALL = 1024
_KEPT = _RANDOM | {"DequantizeLinear"}
"""Ops that are not computed ahead: random ones, and those that would blow a quantised weight up."""

# Inputs whose content an op needs to know when it is compiled: first such port of each op, and the last (None: all).
_DECIDING_PORTS = {
    **dict.fromkeys(("Reshape", "Expand", "Slice", "Tile", "Resize", "Upsample", "Pad", "TopK", "Split", "Squeeze",
                     "Unsqueeze", "CumSum", "CenterCropPad", "AffineGrid", "ReduceSum", "ReduceMean", "ReduceMax",
                     "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp",
                     "ReduceSumSquare"), (1, None)),
    "ConstantOfShape": (0, None), "Range": (0, None), "OneHot": (1, 2), "Col2Im": (1, 3),
}  # fmt: skip


def find_deciding_inputs(source: OnnxModel, nodes: Sequence[NodeProto]) -> frozenset[str]:
    """Inputs from whose content shapes follow. What `Shape` and `Size` read decides nothing by its content."""
    wanted: set[str] = set()
    for node in reversed(nodes):
        first, last = _DECIDING_PORTS.get(node.op_type, (len(node.input), None))
        wanted.update(node.input[first:last])
        if node.op_type not in ("Shape", "Size") and any(name in wanted for name in node.output):
            wanted.update(node.input)
    return frozenset(port.name for port in source.inputs if port.name in wanted)


class Specialiser:
    """Turns an `OnnxModel` into a `ModelForm` for given input shapes.

    Parameters
    ----------
    source : OnnxModel
    fallback : bool
        Whether the host may run what has no expression in our ops.

    Attributes
    ----------
    deciding : frozenset of str
        Inputs whose content the forms depend on.

    Notes
    -----
    Threads: one at a time; `Model` sees to that. Cost: about 50 microseconds a node.
    """

    def __init__(self, source: OnnxModel, fallback: bool) -> None:
        self.source = source
        self._fallback = fallback
        self._nodes = rewrite(source)
        self.deciding = find_deciding_inputs(source, self._nodes)
        self._used = {port.name for port in source.outputs}
        self._used.update(name for node in self._nodes for name in (*node.input, *captured_names(node)))
        self._folded: dict[int, list[Value]] = {}
        self._static_ids: dict[int, int] = {}
        self._constants = {name: Value(content=value, is_static=True) for name, value in source.constants.items()}

    def __call__(self, shapes: Mapping[str, Any], contents: Mapping[str, Any]) -> ModelForm:
        """The form for these input shapes and these contents of the deciding inputs."""
        return _Walk(self, shapes, contents).form()


class _Walk:
    """One pass over the nodes."""

    def __init__(self, owner: Specialiser, shapes: Mapping[str, Any], contents: Mapping[str, Any]) -> None:
        self._owner = owner
        self._source = owner.source
        self._builder = GraphBuilder(owner._static_ids)
        self._host: dict[int, HostFunction] = {}
        self._inputs: dict[str, LogicalTensor] = {}
        self._values: dict[str, Value] = {
            name: Value(content=value.content, is_static=True) for name, value in owner._constants.items()
        }
        for port in self._source.inputs:
            self._add_input(port.name, port.dtype, shapes[port.name], contents.get(port.name))

    def _add_input(self, name: str, dtype: Any, shape: Any, content: Any) -> None:
        if content is not None:
            self._values[name] = Value(content=content.copy())
            return
        tensor = self._inputs[name] = self._builder.new_tensor(dtype, shape)
        plain = dtype is not None and shape is not None
        type_ = make_type(dtype, shape) if plain else self._source.input_types[name]
        self._values[name] = Value(type_, tensor)

    def form(self) -> ModelForm:
        for number, node in enumerate(self._owner._nodes):
            self._convert(number, node)
        outputs = {port.name: self._output_tensor(port.name) for port in self._source.outputs}
        written = {t.id for op in self._builder.ops for t in op.outputs}
        graph = self._builder.finish([t for t in {t.id: t for t in outputs.values()}.values() if t.id in written])
        return ModelForm(
            graph,
            self._builder.constants,
            {name: tensor.id for name, tensor in self._inputs.items()},
            {name: tensor.id for name, tensor in outputs.items()},
            self._host,
        )

    def _output_tensor(self, name: str) -> LogicalTensor:
        value = self._values[name]
        if value.tensor is None and not value.is_plain:
            value.tensor = self._builder.new_tensor(None, None)
            self._builder.constants[value.tensor.id] = value.content
        return self._builder.tensor(value)

    # ---- one node

    def _convert(self, number: int, node: NodeProto) -> None:
        inputs = [self._values[name] if name else None for name in node.input]
        captured = {name: self._values[name] for name in captured_names(node) if name in self._values}
        read = [value for value in (*inputs, *captured.values()) if value is not None]
        if number in self._owner._folded:
            results = self._owner._folded[number]
        elif all(value.is_known for value in read) and node.op_type not in _KEPT:
            results = self._fold(number, node, inputs, captured, all(value.is_static for value in read))
        elif node.op_type in ("Shape", "Size") and inputs[0] is not None and inputs[0].is_plain:
            results = [Value(content=_measure(node, inputs[0].shape))]
        else:
            results = self._express(node, inputs) or self._leave_to_host(node, inputs, captured)
        self._values.update((name, value) for name, value in zip(node.output, results, strict=False) if name)

    def _fold(
        self, number: int, node: NodeProto, inputs: list[Value | None], captured: Mapping[str, Value], is_static: bool
    ) -> list[Value]:
        """Compute a node now; once and for all when its inputs never change."""
        function = self._host_function(node, inputs, captured, [], [])
        try:
            contents = function([], [None] * len(_named(node.output)))
        except Exception as error:
            what = f"node {_label(node)!r} ({node.op_type}) cannot be computed"
            raise InvalidArgumentError(
                explain(what, got=f"{type(error).__name__}: {error}"), node=_label(node)
            ) from error
        results = iter([Value(content=_frozen(content), is_static=is_static) for content in contents])
        found = [next(results) if name else Value() for name in node.output]
        if is_static:
            self._owner._folded[number] = found
        return found

    def _express(self, node: NodeProto, inputs: list[Value | None]) -> list[Value] | None:
        """The outputs of the node in our ops; None when it has no expression in them."""
        converter = CONVERTERS.get(node.op_type) if node.domain in ("", "ai.onnx") else None
        if converter is None or not all(value is None or value.is_plain for value in inputs):
            return None
        mark = len(self._builder.ops)
        used = max((k + 1 for k, name in enumerate(node.output) if name in self._owner._used), default=0)
        try:
            results = converter(NodeView(node, inputs, self._opset(node.domain), used, self._builder))
        except (NotConvertible, GraphpoolError):
            del self._builder.ops[mark:]
            return None
        return list(results) if isinstance(results, list) else [results]

    def _opset(self, domain: str) -> int:
        return self._source.opsets.get(domain, 1)

    def _leave_to_host(self, node: NodeProto, inputs: list[Value | None], captured: Mapping[str, Value]) -> list[Value]:
        label = _label(node)
        if not self._owner._fallback:
            raise UnsupportedError(
                explain(f"node {label!r} ({node.op_type}) is not supported", hint="load with fallback=True"),
                node=label,
                op_type=node.op_type,
            )
        results = self._infer(node, inputs, captured, label)
        read = [value for value in (*inputs, *captured.values()) if value is not None]
        sources = list({id(value): value for value in read if not value.is_known}.values())
        function = self._host_function(node, inputs, captured, sources, results)
        for value in read:
            if value.is_known and value.is_plain:
                self._builder.tensor(value)  # counts among the constants of the form
        op_id = self._builder.add_wildcard(
            [self._builder.tensor(value) for value in sources],
            [value.tensor for value in results if value.tensor is not None],
            label,
        )
        self._host[op_id] = function
        return results

    def _host_function(
        self,
        node: NodeProto,
        inputs: list[Value | None],
        captured: Mapping[str, Value],
        sources: list[Value],
        results: list[Value],
    ) -> HostFunction:
        try:
            return make_host_function(self._source, node, inputs, captured, sources, results)
        except Exception as error:
            what = f"node {_label(node)!r}: nothing runs {node.op_type} of domain {node.domain or 'ai.onnx'!r}"
            raise UnsupportedError(
                explain(what, got=str(error).strip().splitlines()[0]), node=_label(node), op_type=node.op_type
            ) from error

    def _infer(
        self, node: NodeProto, inputs: list[Value | None], captured: Mapping[str, Value], label: str
    ) -> list[Value]:
        """Outputs with types and shapes as ONNX infers them; those that it cannot infer are Python objects."""
        named = dict(zip(node.input, inputs, strict=True)) | dict(captured)
        types = {name: type_ for name, value in named.items() if value and (type_ := _type_of(value)) is not None}
        known = {n: numpy_helper.from_array(v.content, n) for n, v in named.items() if v and _is_small(v)}
        found: Mapping[str, Any] = {}
        if all(name in types for name in node.input if name):
            try:
                opsets = self._source.opsets_for(node)
                schema = defs.get_schema(node.op_type, opsets[node.domain], node.domain)
                imports = [helper.make_opsetid(d, v) for d, v in opsets.items()]
                found = shape_inference.infer_node_outputs(
                    schema, node, types, known, opset_imports=imports, ir_version=self._source.ir_version
                )
            except shape_inference.InferenceError as error:
                raise InvalidShapeError(
                    explain(f"node {label!r} ({node.op_type})", got=str(error).strip().splitlines()[-1]), node=label
                ) from error
            except defs.SchemaError:
                found = {}
        return [self._host_output(found.get(name)) if name else Value() for name in node.output]

    def _host_output(self, type_: Any) -> Value:
        shape = None if type_ is None else static_shape(type_)
        dtype = None if shape is None else data_type(type_.tensor_type.elem_type)
        return Value(type_, self._builder.new_tensor(dtype, shape))


def _is_small(value: Value) -> bool:
    """Whether the content may decide shapes; weights never do, and handing them to ONNX would copy them."""
    return value.is_known and value.is_plain and value.content.size <= _SMALL


def _label(node: NodeProto) -> str:
    """What messages call the node."""
    return node.name or _named(node.output)[0]


def _named(names: Sequence[str]) -> list[str]:
    return [name for name in names if name]


def _measure(node: NodeProto, shape: tuple[int, ...]) -> Any:
    """What `Shape` or `Size` gives."""
    if node.op_type == "Size":
        return np.array(int(np.prod(shape, dtype=np.int64)))
    attrs = {item.name: item.i for item in node.attribute}
    return np.array(shape[attrs.get("start", 0) : attrs.get("end")], np.int64)


def _frozen(content: Any) -> Any:
    if isinstance(content, (np.ndarray, np.generic)):
        content = np.require(content, requirements=["C", "A"])
        content.flags.writeable = False
    return content


def _type_of(value: Value) -> onnx.TypeProto | None:
    """ONNX's type of a value, as far as it is known."""
    if value.is_plain:
        return make_type(value.dtype, value.shape)
    if isinstance(value.content, np.ndarray):
        return helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(value.content.dtype), value.content.shape)
    return value.type
