"""Nodes as the importer sees them: each message is read once, because every look into one makes objects anew."""

from __future__ import annotations

import re
from collections import Counter
from copy import copy
from itertools import chain
from typing import TYPE_CHECKING, Any, NoReturn

from graphpool.errors import InvalidArgumentError, InvalidGraphError, InvalidOpError, brief, explain
from graphpool.fork import cached_property

from .arrays import make_message, to_array
from .boundary import Boundary
from .encoders import ENCODER_LISTS
from .long_lists import LongList, with_lists, without_lists
from .proto import AttributeProto, NodeProto, TensorProto, as_own
from .trees import TREE_LISTS, TREE_OPS, Trees, read_trees

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from .proto import GraphProto


_SINGLE = {
    AttributeProto.FLOAT: "f", AttributeProto.INT: "i", AttributeProto.STRING: "s", AttributeProto.TENSOR: "t",
    AttributeProto.SPARSE_TENSOR: "sparse_tensor", AttributeProto.TYPE_PROTO: "tp",
}  # fmt: skip
_REPEATED = {
    AttributeProto.FLOATS: "floats", AttributeProto.INTS: "ints", AttributeProto.STRINGS: "strings",
    AttributeProto.TENSORS: "tensors", AttributeProto.SPARSE_TENSORS: "sparse_tensors",
    AttributeProto.TYPE_PROTOS: "type_protos",
}  # fmt: skip
"""Type of an attribute -> the field that holds its value."""

_NO_LISTS: Mapping[str, LongList] = {}

_LABELS = rb"[A-Za-z]*(?:\.\.\.[A-Za-z]*)?"
_EQUATION = re.compile(rb"%b(?:,%b)*(?:->%b)?" % (_LABELS, _LABELS, _LABELS))
"""Of Einsum, without spaces."""


class Node:
    """A node of a model, read from `proto`. Immutable; pickles as its message.

    `attrs` has strings as bytes, lists as list, long ones of numbers as `array` or, of a
    LabelEncoder, as `LongList`, graphs as `Subgraph`; `captured` are
    the outer values that these graphs read; `trees` the decision trees among the attributes, or None: their lists are
    not among `attrs`. `lists` are the long lists that `proto` comes without, by attribute; left out, they are taken
    from it, and protobuf's objects for them are not kept, but for those of a LabelEncoder, which become constants
    soon. `trees` are what was read of the same lists before. `names` has each name once, for all nodes of a model.
    """

    __slots__ = ("_lists", "_short", "attrs", "captured", "domain", "input", "name", "op_type", "output", "trees")

    def __init__(
        self,
        proto: NodeProto,
        lists: Mapping[str, LongList] | None = None,
        trees: Trees | None = None,
        names: dict[str, str] | None = None,
    ) -> None:
        proto = as_own(proto)
        one = ({} if names is None else names).setdefault
        op_type, name = proto.op_type, proto.name
        inputs, outputs = proto.input[:], proto.output[:]  # slices, as in source.py
        self.op_type: str = one(op_type, op_type)
        self.domain: str = proto.domain
        self.name: str = one(name, name)
        self.input: tuple[str, ...] = tuple(map(one, inputs, inputs))
        self.output: tuple[str, ...] = tuple(map(one, outputs, outputs))
        texts = self.op_type, self.domain, self.name, *self.input, *self.output
        if bytes in map(type, texts):
            check_text(f"node {self.label!r} ({self.op_type!r})", *texts)
        short, lists = without_lists(proto) if lists is None else (proto, lists)
        with Boundary("read", self):
            is_ml = self.domain == "ai.onnx.ml"
            has_trees = is_ml and self.op_type in TREE_OPS
            later = TREE_LISTS if has_trees else ENCODER_LISTS if is_ml and self.op_type == "LabelEncoder" else ()
            self.attrs: dict[str, Any] = {}
            for item in short.attribute[:]:
                self.attrs[item.name] = long = lists.get(item.name) or _value_of(item)
                if isinstance(long, LongList) and not item.name.startswith(later):
                    self.attrs[item.name] = long.values(item.type)
            self.captured = _captured_by(self.attrs.values())
            _check_attributes(self)
            self.trees = trees
            if has_trees:
                self.trees = trees or read_trees(self.label, self.op_type, self.attrs)
                self.attrs = {name: value for name, value in self.attrs.items() if not name.startswith(TREE_LISTS)}
            if later is not ENCODER_LISTS:
                lists = {name: found.kept() for name, found in lists.items()}
            self._short, self._lists = short, lists or _NO_LISTS
            self.attrs |= {name: lists[name] for name, long in self.attrs.items() if isinstance(long, LongList)}

    @property
    def proto(self) -> NodeProto:
        """The message; put together anew each time where it has long lists."""
        return with_lists(self._short, self._lists)

    @property
    def label(self) -> str:
        """What messages call the node."""
        return self.name or next((name for name in self.output if name), self.op_type)

    @property
    def work(self) -> tuple[Any, ...] | None:
        """Equal for nodes that compute the same of equal inputs; None where long lists or outer values are read."""
        if self._lists or self.captured:
            return None
        attributes = tuple(item.SerializeToString() for item in self._short.attribute)
        return self.domain, self.op_type, attributes, tuple(map(bool, self.input)), tuple(map(bool, self.output))

    def kept(self) -> Node:
        """The node without references into the message that it was read from."""
        return Node(self._short, {name: found.kept() for name, found in self._lists.items()}, self.trees)

    def changed(
        self,
        *,
        op_type: str | None = None,
        inputs: Sequence[str] | None = None,
        outputs: Sequence[str] | None = None,
        captured: Mapping[str, str] | None = None,
        without: Collection[str] = (),
        added: AttributeProto | None = None,
    ) -> Node:
        """The node with another kind, other names or other attributes; `captured` are new names of outer values."""
        proto = NodeProto()
        proto.CopyFrom(self._short)
        proto.op_type = op_type or self.op_type
        if inputs is not None:
            proto.input[:] = inputs
        if outputs is not None:
            proto.output[:] = outputs
        for graph in _graphs_of(proto) if captured else ():
            _rename_captured(graph, captured or {})
        if without:
            kept = [item for item in self._short.attribute if item.name not in without]
            del proto.attribute[:]
            proto.attribute.extend(kept)
        if added is not None:
            proto.attribute.append(added)
        lists = {name: found for name, found in self._lists.items() if name not in without}
        return Node(proto, lists, self.trees if proto.op_type == self.op_type else None)

    def __reduce__(self) -> tuple[Any, ...]:
        return _read_node, (self._short.SerializeToString(), self._lists)


def _read_node(message: bytes, lists: Mapping[str, LongList]) -> Node:
    """A node of a pickle."""
    return Node(NodeProto.FromString(message), lists)


class Subgraph:
    """A graph among the attributes of a node; `captured` are the outer values that it reads.

    `has_objects` says whether an input or output is a sequence or another object, `elem_types` what type of elements
    is stated for each output or follows from its nodes, 0 where neither is.
    """

    def __init__(self, proto: GraphProto) -> None:
        self._proto = proto
        self.nodes = [Node(node) for node in proto.node]
        self.inputs = tuple(info.name for info in proto.input)
        self.outputs = tuple(info.name for info in proto.output)
        stated = [info.type.tensor_type.elem_type for info in proto.output]
        known = {} if all(stated) else _elem_types_of(self.nodes)
        self.elem_types = tuple([one or known.get(name, 0) for one, name in zip(stated, self.outputs, strict=True)])
        kinds = {info.type.WhichOneof("value") for info in (*proto.input, *proto.output)}
        self.has_objects = bool(kinds - {"tensor_type", None})
        own = {*self.inputs, *(tensor.name for tensor in proto.initializer)}
        own.update(name for node in self.nodes for name in node.output)
        reads = (*(name for node in self.nodes for name in (*node.input, *node.captured)), *self.outputs)
        self.captured = tuple(dict.fromkeys(name for name in reads if name and name not in own))

    def without(self, inputs: Collection[int], outputs: Collection[int]) -> Subgraph:
        """The graph without these of its inputs and outputs."""
        kept = copy(self)
        kept.inputs = tuple([name for number, name in enumerate(self.inputs) if number not in inputs])
        kept.outputs = tuple([name for number, name in enumerate(self.outputs) if number not in outputs])
        kept.elem_types = tuple([kind for number, kind in enumerate(self.elem_types) if number not in outputs])
        return kept

    @cached_property
    def constants(self) -> dict[str, Any]:
        """Its initialisers."""
        return {tensor.name: to_array(tensor) for tensor in self._proto.initializer}


def _elem_types_of(nodes: Sequence[Node]) -> dict[str, int]:
    """The types of elements of what a graph makes, where casts or branches say them."""
    known: dict[str, int] = {}
    for node in nodes:
        if node.op_type == "Cast":
            found = [node.attrs.get("to", 0)]
        elif node.op_type == "If":
            sides = [node.attrs[side].elem_types for side in ("then_branch", "else_branch")]
            found = [max(pair) for pair in zip(*sides, strict=False)]
        elif node.op_type in TYPE_OF_FIRST:
            given = node.input if node.op_type in _OF_ONE_TYPE else node.input[:1]
            found = [max((known.get(name, 0) for name in given), default=0)]
        else:
            continue
        known.update(zip(node.output, found, strict=False))
    return known


TYPE_OF_FIRST = frozenset({
    "Abs", "Add", "Concat", "Conv", "Div", "Exp", "Expand", "Flatten", "Gather", "GatherElements", "GatherND", "Gemm",
    "Identity", "Log", "MatMul", "Max", "Min", "Mul", "Neg", "Pad", "Pow", "ReduceMax", "ReduceMean", "ReduceMin",
    "ReduceProd", "ReduceSum", "Relu", "Reshape", "ScatterElements", "ScatterND", "Sigmoid", "Slice", "Softmax", "Sqrt",
    "Squeeze", "Sub", "Tanh", "Tile", "Transpose", "Unsqueeze",
})  # fmt: skip
"""Ops whose result has the type of their first input."""

_OF_ONE_TYPE = frozenset({"Add", "Concat", "Div", "Gemm", "MatMul", "Max", "Min", "Mul", "Sub"})
"""Those of them whose inputs all have it."""

_DOMAINS = ("", "ai.onnx", "com.microsoft")
DATA_TYPES = frozenset(TensorProto.DataType.values()) - {TensorProto.UNDEFINED}
"""Element types that ONNX defines."""

_DIRECTIONS = (b"forward", b"reverse", b"bidirectional")
_POSITIVE = range(1, 2**31)
_COUNTS = {
    "Attention": ("num_heads", "q_num_heads", "kv_num_heads"), "DecoderMaskedMultiHeadAttention": ("num_heads",),
    "GroupNorm": ("groups",), "GroupNormalization": ("num_groups",),
    "GroupQueryAttention": ("num_heads", "kv_num_heads"), "LRN": ("size",),
    "MultiHeadAttention": ("num_heads",), "QAttention": ("num_heads",),
}  # fmt: skip
"""Op -> attributes by which something is divided."""

_ACCEPTED: dict[tuple[str, str], Collection[Any]] = {
    **{(kind, "direction"): _DIRECTIONS for kind in ("RNN", "GRU", "LSTM", "DynamicQuantizeLSTM")},
    **{(kind, "block_size"): range(2**31) for kind in ("QuantizeLinear", "DequantizeLinear")},
    **{(kind, "to"): DATA_TYPES for kind in ("Cast", "BitCast")},
    **{(kind, "dtype"): DATA_TYPES
       for kind in ("Bernoulli", "EyeLike", "Multinomial", "RandomNormal", "RandomUniform")},
    **{(kind, "output_datatype"): DATA_TYPES
       for kind in ("BlackmanWindow", "HammingWindow", "HannWindow", "MelWeightMatrix")},
    **{(kind, name): _POSITIVE for kind, names in _COUNTS.items() for name in names},
    ("Attention", "qk_matmul_output_mode"): range(4),
    ("LpNormalization", "p"): (1, 2),
    ("Resize", "coordinate_transformation_mode"): (
        b"half_pixel", b"half_pixel_symmetric", b"pytorch_half_pixel", b"align_corners", b"asymmetric",
        b"tf_crop_and_resize", b"tf_half_pixel_for_nn"),
    ("Resize", "mode"): (b"nearest", b"linear", b"cubic"),
    ("Resize", "nearest_mode"): (b"round_prefer_floor", b"round_prefer_ceil", b"floor", b"ceil"),
}  # fmt: skip
"""Op and attribute -> values that ONNX defines, where its shape inference lets others pass."""


def _check_attributes(node: Node) -> None:
    """Raise for values that ONNX does not define.

    With some of them its shape inference, compiled code, leaves its arrays or never ends.
    """
    attrs = node.attrs
    for name, value in attrs.items() if node.domain in _DOMAINS else ():
        accepted = _ACCEPTED.get((node.op_type, name))
        if accepted is not None and value not in accepted:
            told = {id(DATA_TYPES): "a type that ONNX defines", id(_POSITIVE): "1 or more"}.get(id(accepted), accepted)
            _refuse_attribute(node, name, told)
    if node.op_type == "Scan":
        _check_scan(node)
    if not -(2**31) <= attrs.get("axis", 0) < 2**31:
        _refuse_attribute(node, "axis", "an axis of a tensor")
    if node.op_type == "GatherND" and attrs.get("batch_dims", 0) < 0:
        _refuse_attribute(node, "batch_dims", "a number of axes")
    if node.op_type == "Split" and attrs.get("num_outputs", len(node.output)) != len(node.output):
        _refuse_attribute(node, "num_outputs", len(node.output))
    if node.op_type == "Einsum" and not _EQUATION.fullmatch(attrs.get("equation", b"").replace(b" ", b"")):
        _refuse_attribute(node, "equation", "terms of letters and at most one ellipsis, between commas and one arrow")


def _check_scan(node: Node) -> None:
    """Raise for lists of another length than there are scanned inputs or outputs."""
    count = node.attrs.get("num_scan_inputs", 0)
    if not 0 <= count <= len(node.input):
        _refuse_attribute(node, "num_scan_inputs", f"0 to {len(node.input)}")
    nstates = len(node.input) - count
    for name, length in (
        ("scan_input_axes", count), ("scan_input_directions", count), ("directions", count),
        ("scan_output_axes", len(node.output) - nstates), ("scan_output_directions", len(node.output) - nstates),
    ):  # fmt: skip
        if len(node.attrs.get(name) or [None] * length) != length:
            _refuse_attribute(node, name, f"{length} numbers")


def _refuse_attribute(node: Node, name: str, accepted: object) -> NoReturn:
    what = f"node {node.label!r} ({node.op_type}): attribute {name!r}"
    message = explain(what, accepted=accepted, got=node.attrs[name])
    raise InvalidOpError(message, node=node.label, op_type=node.op_type)


def check_text(owner: str, *names: Any) -> None:
    """Raise for a name that is no UTF-8: protobuf hands it on as bytes."""
    for name in names:
        if type(name) is bytes:
            raise InvalidGraphError(explain(f"a name of {owner} is no UTF-8", got=brief(name)))


def _value_of(item: AttributeProto) -> Any:
    """The value of an attribute."""
    kind = item.type
    if kind in _SINGLE:
        return getattr(item, _SINGLE[kind])
    if kind in _REPEATED:
        return getattr(item, _REPEATED[kind])[:]
    if kind == AttributeProto.GRAPH:
        return Subgraph(item.g)
    if kind == AttributeProto.GRAPHS:
        return [Subgraph(graph) for graph in item.graphs]
    raise InvalidArgumentError(explain(f"attribute {item.name!r}", accepted="a type that ONNX defines", got=kind))


def _graphs_of(node: NodeProto) -> list[GraphProto]:
    """The graphs among the attributes of a message."""
    return [graph for item in node.attribute for graph in (*([item.g] if item.HasField("g") else ()), *item.graphs)]


def _rename_captured(graph: GraphProto, names: Mapping[str, str]) -> None:
    """Give what a graph, and those inside it, read of what is outside other names."""
    own = {part.name for part in (*graph.input, *graph.initializer)}
    own.update(name for node in graph.node for name in node.output)
    names = {old: new for old, new in names.items() if old not in own}
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        for inner in _graphs_of(node):
            _rename_captured(inner, names)
    for result in graph.output:
        result.name = names.get(result.name, result.name)


def _captured_by(values: Iterable[Any]) -> tuple[str, ...]:
    """What the graphs among attributes read of what is outside."""
    graphs = [value for value in values if type(value) is Subgraph]
    graphs += [
        graph for value in values if type(value) is list and value and type(value[0]) is Subgraph for graph in value
    ]
    return tuple(dict.fromkeys(name for graph in graphs for name in graph.captured)) if graphs else ()


def make_node(kind: str, inputs: Sequence[str], outputs: Sequence[str], name: str, **attrs: Any) -> Node:
    """A node that the model did not have."""
    return Node(make_message(kind, inputs, outputs, name, **attrs))


def names_read(nodes: Iterable[Node], outputs: Iterable[str]) -> set[str]:
    """Names that nodes read, those that their graphs capture, and the outputs."""
    names = set(outputs)
    for node in nodes:
        names.update(node.input, node.captured)
    return names


def needed(nodes: Sequence[Node], outputs: Iterable[str]) -> list[Node]:
    """The nodes, in topological order, that these outputs follow from."""
    found, kept = set(outputs), []
    for node in reversed(nodes):
        if not found.isdisjoint(node.output):
            found.update(node.input, node.captured)
            kept.append(node)
    return kept[::-1]


def count_reads(nodes: Iterable[Node], outputs: Iterable[str]) -> Counter[str]:
    """How often nodes read each name, their graphs and the outputs included; ``x * x`` reads x twice."""
    return Counter(chain(outputs, chain.from_iterable((*node.input, *node.captured) for node in nodes)))
