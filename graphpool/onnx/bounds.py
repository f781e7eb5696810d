"""What a model asks for, found out before anything is done: nodes, nesting, attributes, sizes of results."""

from __future__ import annotations

from collections import Counter
from math import inf, prod
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import replace
from graphpool.limits import Limits
from graphpool.runtime._host_call import HostBudget

from .arrays import elem_type_of, numpy_type
from .proto import TensorProto, TypeProto, as_own
from .result_sizes import known_nbytes
from .result_types import told_types
from .shape_values import ShapeArray
from .types import array_type, element_type, numbered_type, tensor_type

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from graphpool.errors import LimitError

    from .build import Value
    from .node import Node
    from .proto import AttributeProto, GraphProto, ModelProto, NodeProto, TypeProto
    from .source import OnnxModel

_SMALL = 1024
"""Elements of a content that may decide shapes; weights never do, and handing them to ONNX would copy them."""

_SCALARS = 64
"""Elements up to which the results of `_ALIKE` need no look."""

_ALIKE = frozenset({
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Concat", "Cos", "Div", "Equal", "Erf", "Exp", "Flatten", "Floor",
    "Gather", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Log", "Max", "Min", "Mod", "Mul", "Neg",
    "Not", "Or", "Pow", "Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "Round", "Shape",
    "Sign", "Sin", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Transpose", "Unsqueeze", "Where", "Xor",
})  # fmt: skip
"""Ops whose results have no more elements than the product of their inputs'."""

_CONTENT_DECIDES = frozenset({
    "Compress", "ConcatFromSequence", "NonZero", "Optional", "OptionalGetElement", "OptionalHasElement", "SequenceAt",
    "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SequenceLength", "Slice",
    "SplitToSequence", "StringConcat", "StringSplit", "Unique",
})  # fmt: skip
"""Ops whose results have a size that ONNX does not infer, of a few times that of their inputs."""

_WITH_TEMPORARIES = frozenset({
    "AveragePool", "Col2Im", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "Einsum", "GRU", "GridSample",
    "ImageDecoder", "If", "LSTM", "Loop", "LpPool", "MaxPool", "MaxRoiPool", "MaxUnpool", "NonMaxSuppression",
    "QLinearConv", "RNN", "RegexFullMatch", "Resize", "RoiAlign", "Scan", "SequenceMap", "StringNormalizer",
    "TfIdfVectorizer", "Upsample",
})  # fmt: skip
"""Ops that may take more memory or time than their results tell; models compute them when they run."""


class InferenceError(Exception):
    """What ONNX says of a node whose inputs do not fit."""


class Bounds:
    """The limits of a model under an engine's limit in bytes, if any, and what of them is used up.

    `limits` has ``folded_nbytes`` as the engine's limit leaves it; `left_nbytes` may be computed ahead still, for a
    file whose constants take `file_nbytes`; `host` is what host functions may take.
    """

    def __init__(self, limits: Limits, memory_limit: int | None, file_nbytes: int) -> None:
        if memory_limit is not None:
            limits = replace(limits, folded_nbytes=max(1, min(limits.folded_nbytes, memory_limit // 4)))
        self.limits = limits
        self.left_nbytes = limits.folded_nbytes + file_nbytes
        self.host = HostBudget(limits)

    def asks_too_much(
        self, source: OnnxModel, node: Node, values: Mapping[str, Value], left_nbytes: int
    ) -> LimitError | None:
        """Why a node that reads these values, all known, is not computed ahead; None if it may be."""
        asked: float | None = None
        if node.op_type == "Constant":
            asked = _constant_nbytes(node)
        elif node.op_type in _ALIKE and _most_elements(values.values()) <= _SCALARS:
            return None
        elif node.op_type not in _WITH_TEMPORARIES:
            asked = known_nbytes(node, [values[name].content for name in node.input if name])
            asked = _result_nbytes(source, node, values) if asked is None else asked
        if asked is not None and asked <= left_nbytes:
            return None
        what = f"node {node.label!r} ({node.op_type}): computed ahead, with {left_nbytes} bytes left for that, it"
        return self.limits.error("folded_nbytes", inf if asked is None else asked, what, node.label)

    def spend(self, nbytes: int, what: str) -> None:
        """Count memory for something that the file names; raise LimitError where it is not left."""
        if nbytes > self.left_nbytes:
            raise self.limits.error("folded_nbytes", nbytes, what)
        self.left_nbytes -= nbytes


def deep_nbytes(content: Any) -> int:
    """Memory of a content: an array, also of strings, or a list of contents. Unit: bytes."""
    if isinstance(content, np.ndarray) and content.dtype.kind == "O":
        return 8 * content.size + sum(deep_nbytes(item) for item in content.reshape(-1).tolist())
    if isinstance(content, (list, tuple)):
        return 64 + sum(map(deep_nbytes, content))
    if isinstance(content, (str, bytes)):
        return 64 + len(content)
    return int(getattr(content, "nbytes", 64))


def _most_elements(values: Iterable[Value]) -> int:
    sizes = [
        value.content.size if isinstance(value.content, (np.ndarray, ShapeArray)) else _SCALARS + 1 for value in values
    ]
    return max(sizes, default=0)


def _constant_nbytes(node: Node) -> int:
    """Size of what a Constant holds beyond its part of the file."""
    sparse = node.attrs.get("sparse_value")
    return 0 if sparse is None else 8 * prod(sparse.dims)


def _result_nbytes(source: OnnxModel, node: Node, values: Mapping[str, Value]) -> int | None:
    """Size of the results of a node; None where nothing tells."""
    read = sum(deep_nbytes(value.content) for value in values.values())
    try:
        found = infer_types(source, node, values, {})
    except InferenceError:
        return 0  # what computes it says why
    text_nbytes = 128 + 4 * sum(map(_longest_text, values.values()))  # of one that is made of texts, or of a number
    sizes = [_type_nbytes(found.get(name), text_nbytes) for name in node.output if name]
    known = [size for size in sizes if size is not None]
    if len(known) == len(sizes):
        return sum(known)
    return 1024 + 64 * read if node.op_type in _CONTENT_DECIDES else None


def _longest_text(value: Value) -> int:
    """Letters of the longest text of an array; 0 where it holds none."""
    is_text = isinstance(value.content, np.ndarray) and value.content.dtype.kind == "O"
    return max(map(len, value.content.reshape(-1).tolist()), default=0) if is_text else 0


def _type_nbytes(type_: Any, text_nbytes: int) -> int | None:
    """Size of an array of an inferred type, of texts of so many bytes; None if it is not static, or no array."""
    if type_ is None or not type_.HasField("tensor_type") or not type_.tensor_type.HasField("shape"):
        return None
    tensor = type_.tensor_type
    if not all(dim.HasField("dim_value") for dim in tensor.shape.dim):
        return None
    itemsize = numpy_type(tensor.elem_type).itemsize if tensor.elem_type else 8
    itemsize = text_nbytes if tensor.elem_type == TensorProto.STRING else itemsize
    return int(itemsize * prod(dim.dim_value for dim in tensor.shape.dim))


def infer_types(
    source: OnnxModel,
    node: Node,
    values: Mapping[str, Value],
    sizes: dict[str, Any],
    number_of: Callable[[Any], int] | None = None,
) -> Mapping[str, TypeProto]:
    """Types and shapes of a node's outputs as ONNX infers them; empty where it has no means to.

    Sizes that may vary have names, by which `sizes` has them, or are the numbers that `number_of` takes them for.
    Raises `InferenceError` where the inputs do not fit.
    """
    types = {name: type_ for name, value in values.items() if (type_ := _type_of(value, sizes)) is not None}
    if not all(name in types for name in node.input if name):
        return {}
    told = told_types(node, values, types, sizes)
    if told is not None:
        return told
    if number_of is not None:
        types = {name: numbered_type(type_, sizes, number_of) for name, type_ in types.items()}
    import onnx
    from onnx import defs, helper, numpy_helper, shape_inference  # here, since few models need them

    known = {n: numpy_helper.from_array(np.asarray(v.content), n) for n, v in values.items() if _is_small(v)}
    opsets = source.opsets_for(node)
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    try:
        schema = defs.get_schema(node.op_type, opsets[node.domain], node.domain)
        found = shape_inference.infer_node_outputs(
            schema, node.proto, types, known, opset_imports=imports, ir_version=source.ir_version
        )
    except (defs.SchemaError, onnx.checker.ValidationError):
        return {}
    except shape_inference.InferenceError as error:
        raise InferenceError(str(error)) from error
    return {name: as_own(type_) for name, type_ in found.items()}


def _is_small(value: Value) -> bool:
    return value.is_known and value.is_plain and value.content.size <= _SMALL


def _type_of(value: Value, sizes: dict[str, Any]) -> TypeProto | None:
    """ONNX's type of a value, as far as it is known."""
    if value.is_plain:
        return tensor_type(element_type(value.dtype), value.shape, sizes)
    if isinstance(value.content, np.ndarray):
        return array_type(elem_type_of(value.content.dtype), value.content.shape)
    return value.type


# ---- the file


def check_model(model: ModelProto, limits: Limits) -> None:
    """Raise LimitError unless nodes, nesting, attributes and ranks of a model are within limits.

    Also where functions call one another in a circle. Cost: linear in the file, whatever functions would expand to.
    """
    for tensor in model.graph.initializer:
        _check_shape(tensor.dims, f"tensor {tensor.name!r}", limits)
    total, calls = _check_nodes(model.graph.node, limits)
    bodies = {(f.domain, f.name): _check_nodes(f.node, limits) for f in model.functions}
    if bodies:
        total = _count_expanded(total, calls, bodies, limits)
    limits.check("nodes", total, "the number of nodes")


_Calls = Counter[tuple[str, str]]


def _check_nodes(nodes: Iterable[NodeProto], limits: Limits) -> tuple[int, _Calls]:
    """How many nodes there are, those of nested graphs included, and how often each op is called."""
    calls: _Calls = Counter()
    waiting = [(1, nodes)]
    while waiting:
        depth, inner = waiting.pop()
        for node in inner:
            calls[node.domain, node.op_type] += 1
            for attribute in node.attribute[:]:
                _check_attribute(attribute, node.name or node.op_type, limits)
                for graph in graphs_of(attribute):
                    limits.check("depth", depth + 1, f"node {node.name!r}: nesting of graphs", node.name)
                    for tensor in graph.initializer:
                        _check_shape(tensor.dims, f"tensor {tensor.name!r}", limits)
                    waiting.append((depth + 1, graph.node))
    return calls.total(), calls


def graphs_of(attribute: AttributeProto) -> list[GraphProto]:
    """The graphs that an attribute holds."""
    graphs: list[GraphProto] = attribute.graphs[:] if attribute.graphs else []
    return [attribute.g, *graphs] if attribute.HasField("g") else graphs


def _check_attribute(attribute: AttributeProto, node: str, limits: Limits) -> None:
    ints, floats, strings, text = _lists_of(attribute)
    count = max(len(ints), len(floats), len(strings))
    nbytes = len(text) + sum(map(len, strings[:])) if strings else len(text)
    if count > limits.items or nbytes > limits.text_nbytes:  # texts for messages would take the longest
        check_list(node, attribute.name, count, nbytes, limits)
    if attribute.name == "pattern":
        limits.check("pattern_length", nbytes, f"node {node!r}: attribute {attribute.name!r}: its length", node)
    if attribute.HasField("t"):
        _check_shape(attribute.t.dims, f"node {node!r}: attribute {attribute.name!r}", limits)


_lists_of = attrgetter("ints", "floats", "strings", "s")


def check_list(node: str, name: str, count: int, text_nbytes: int, limits: Limits) -> None:
    """Raise LimitError for an attribute with too many elements or too much text.

    The words for what nodes of trees compare are read in place, as a byte each, so that only longer texts count.
    """
    limits.check("items", count, f"node {node!r}: attribute {name!r}: its length", node)
    if name == "nodes_modes":
        text_nbytes -= _MODE_NBYTES * count
    limits.check("text_nbytes", text_nbytes, f"node {node!r}: attribute {name!r}: its text", node)


_MODE_NBYTES = len("BRANCH_MEMBER")


def _check_shape(dims: Sequence[int], what: str, limits: Limits) -> None:
    """Raise unless a tensor of the file has no more dimensions than allowed."""
    limits.check("rank", len(dims), f"{what}: its rank")


def _count_expanded(
    total: int, calls: _Calls, bodies: Mapping[tuple[str, str], tuple[int, _Calls]], limits: Limits
) -> int:
    """Nodes after every call of a function of the model is replaced by its nodes."""
    sizes: dict[tuple[str, str], tuple[int, int]] = {}  # of a call: nodes, depth
    for root in bodies:
        path = [(root, iter(bodies[root][1]))]
        while path:
            name, callees = path[-1]
            callee = next((other for other in callees if other in bodies and other not in sizes), None)
            if callee is not None:
                limits.check("depth", len(path) + 1, f"function {callee[1]!r}: calls inside one another", callee[1])
                path.append((callee, iter(bodies[callee][1])))
                continue
            path.pop()
            own, inner = bodies[name]
            found = [(count, *sizes[other]) for other, count in inner.items() if other in sizes]
            nnodes = own + sum(count * size for count, size, _ in found)
            depth = 1 + max((depth for _, _, depth in found), default=0)
            limits.check("nodes", nnodes, f"function {name[1]!r}: nodes that it expands to", name[1])
            limits.check("depth", depth, f"function {name[1]!r}: calls inside one another", name[1])
            sizes[name] = nnodes, depth
    return total + sum(count * sizes[name][0] for name, count in calls.items() if name in sizes)
