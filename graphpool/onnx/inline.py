"""Nodes in place of one: bodies of ONNX's functions, and graphs of control flow with what they see."""

from __future__ import annotations

from collections import ChainMap
from math import prod
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool._sizes import Preference, is_variable
from graphpool.graph.shapes import are_equal
from graphpool.typing import DataType

from .build import InvalidNode, NotConvertible, Value, require
from .node import Node, make_node, names_read, needed
from .proto import TensorProto, as_onnx
from .sequences import items_of
from .shape_values import ShapeArray

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, MutableMapping, Sequence

    from .build import GraphBuilder
    from .node import Node, Subgraph
    from .proto import FunctionProto, TypeProto
    from .walk import Walk

CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})

SPELT_OUT = frozenset({"Unique"})
"""Nodes that others stand for, which ONNX does not define."""

NO_BOUND = 2**62
"""Of nodes, where limits alone bound them."""

Path: TypeAlias = tuple[Any, ...]
"""Place of a node in the model: number of the node, then of the iteration or branch, then of the node in it, ..."""

Way: TypeAlias = "Callable[[Walk, Node, Sequence[Value | None], Path], list[Value]]"
"""How control flow becomes part of a form; raises `NotConvertible`."""


@dataclass
class Scope:
    """Nodes that are walked together, and the values that they see, which the walk extends.

    `outputs` is what is wanted of it, `used` are the names that nodes read or `outputs` holds; `path` is that of the
    node that the scope stands for, empty for the model's own nodes.
    """

    nodes: Sequence[Node]
    values: MutableMapping[str, Value]
    outputs: tuple[str, ...]
    used: Collection[str]
    path: Path


def enter_nodes(nodes: Sequence[Node], values: Mapping[str, Value], outputs: Sequence[str], path: Path) -> Scope:
    """A scope that sees `values` alone."""
    return Scope(nodes, dict(values), tuple(outputs), names_read(nodes, outputs), path)


def enter_graph(walk: Walk, graph: Subgraph, given: Sequence[Value], path: Path, place: Path | None = None) -> Scope:
    """A scope for a graph of an attribute, which sees its inputs, its initialisers and everything outside.

    `place` is that of the graph, where `path` is that of one of several times that it is written out.
    """
    nodes, constants = walk.owner.written_out(graph, path if place is None else place)
    own = {name: Value(content=content) for name, content in constants.items()}
    own |= dict(zip(graph.inputs, given, strict=False))
    used = names_read(nodes, graph.outputs)
    return Scope(nodes, ChainMap(own, walk.scope.values), graph.outputs, used, path)


def function_nodes(node: Node, types: Sequence[TypeProto | None], opsets: Mapping[str, int]) -> list[Node] | None:
    """The nodes of which ONNX's definition of an op consists, for inputs of these types; None for a primitive op.

    Their inputs and outputs have the node's names. Cost: about 50 microseconds, and as many for each node.
    """
    function = _definition(node, types, opsets)
    if function is None:
        return None
    import onnx.inliner
    from onnx import helper

    call = onnx.NodeProto()
    call.CopyFrom(as_onnx(node.proto))
    function.domain = call.domain = _DOMAIN
    del function.opset_import[:]
    function.opset_import.extend(helper.make_opsetid(domain, version) for domain, version in opsets.items())
    inputs = [onnx.ValueInfoProto(name=name) for name in dict.fromkeys(node.input) if name]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output if name]
    imports = [*function.opset_import, helper.make_opsetid(_DOMAIN, 1)]
    graph = helper.make_graph([call], "call", inputs, outputs)
    model = helper.make_model(graph, functions=[function], opset_imports=imports)
    return [Node(inner) for inner in onnx.inliner.inline_local_functions(model).graph.node]


_DOMAIN = "graphpool.inlined"


_WITH_DEFINITIONS = ("", "ai.onnx", "ai.onnx.preview")

_TAKEN_OVER = {("com.microsoft", "LinearAttention"): 27}
"""Ops of ONNX Runtime that ONNX took over as they are, in this version."""


def _definition(node: Node, types: Sequence[TypeProto | None], opsets: Mapping[str, int]) -> FunctionProto | None:
    """ONNX's definition of an op as a function, in the newest version that the opset has."""
    taken = _TAKEN_OVER.get((node.domain, node.op_type))
    if taken is None and node.domain not in _WITH_DEFINITIONS:
        return None
    import onnx
    from onnx import defs

    wanted = taken or opsets.get(node.domain, 1)
    try:
        schema: Any = defs.get_schema(node.op_type, wanted, "" if taken else node.domain)
    except defs.SchemaError:
        return None
    if taken and any(value for name, value in node.attrs.items() if name not in schema.attributes):
        return None  # what ONNX did not take over
    if schema.has_function:
        versions, given = schema.function_opset_versions, None
    elif schema.has_context_dependent_function:
        versions = schema.context_dependent_function_opset_versions
        given = [b"" if type_ is None else type_.SerializeToString() for type_ in types]
    else:
        return None
    version = max((v for v in versions if v <= (taken or opsets.get("", wanted))), default=None)
    if version is None:
        return None
    if given is None:
        text = schema.get_function_with_opset_version(version)
    else:
        text = schema.get_context_dependent_function_with_opset_version(version, node.proto.SerializeToString(), given)
    function = onnx.FunctionProto()
    function.ParseFromString(text)
    return function


# ---- control flow whose course is known: the branch taken, the iterations one after another

# An unrolled loop is compiled like any other part of the model, so that its iterations fuse.


def take_branch(walk: Walk, node: Node, inputs: Sequence[Value | None], path: Path) -> list[Value]:
    """The branch that the condition takes; where a run tells, both of them if these are a few numbers."""
    [condition] = inputs
    branches = [node.attrs["else_branch"], node.attrs["then_branch"]]

    def results(number: int) -> list[Value]:
        return walk.run(enter_graph(walk, branches[number], [], (*path, number)))

    condition = present(condition)
    if condition.is_known:
        return results(int(bool(np.asarray(condition.content).reshape(()))))
    nodes = [inner for branch in branches for inner in branch.nodes]
    kinds = {inner.op_type for inner in nodes if not inner.domain}
    is_cheap = len(nodes) <= _FEW_NODES and not any(inner.domain for inner in nodes) and kinds <= _CHEAP | _REDUCTIONS
    require(is_cheap, "the condition is not known")
    if kinds & _REDUCTIONS:
        read = [walk.value(name) for name in {name for branch in branches for name in branch.captured}]
        require(all(value.is_plain for value in read), "branches that read what is no tensor of known shape")
        count = sum(prod(value.shape) for value in read)
        with Preference(count):
            require(count <= _FEW_READ, "branches that read many numbers")
    require(condition.is_plain and prod(condition.shape) == 1, "a condition that is no number")
    number = _reshaped(walk.builder, condition, ())
    try:
        pairs = list(zip(node.output, results(1), results(0), strict=True))
    except InvalidNode as error:  # of a branch that may never be taken
        raise NotConvertible(str(error)) from error
    return [_select(walk, name, number, one, other) for name, one, other in pairs]


def _select(walk: Walk, name: str, condition: Value, one: Value, other: Value) -> Value:
    """One of two values of few elements."""
    require(one.is_plain and other.is_plain and one.dtype is other.dtype, "branches of other types")
    shapes = one.shape, other.shape
    require(max(map(prod, shapes)) <= _FEW_NUMBERS, "branches of many numbers")
    if not are_equal(*shapes):
        shape = max(shapes, key=len)
        require(prod(shapes[0]) == prod(shapes[1]) == 1 and _is_lost(walk.scope, name, len(shape)), "branches differ")
        one, other = (_reshaped(walk.builder, value, shape) for value in (one, other))
    return walk.builder.emit("Select", condition, one, other, dtypes=[one.dtype])[0]


def _is_lost(scope: Scope, name: str, rank: int) -> bool:
    """Whether nothing comes of the rank of a number, `rank` at most: what reads it broadcasts it."""
    names = {name}
    for node in scope.nodes:
        if not names.intersection((*node.input, *node.captured)):
            continue
        if node.op_type not in _CHEAP or node.domain or not names.isdisjoint(node.captured):
            return False
        others = [scope.values.get(other) for other in node.input if other not in names]
        if not any(value is not None and value.is_plain and len(value.shape) >= rank for value in others):
            names.update(node.output)
    return names.isdisjoint(scope.outputs)


_FEW_NODES, _FEW_NUMBERS = 8, 64
"""Of two branches together, and of a result: computing both takes less than finding out which one is taken."""

_CHEAP = frozenset({
    "Abs", "Add", "And", "Cast", "Constant", "Equal", "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual",
    "Max", "Min", "Mul", "Neg", "Not", "Or", "Sub", "Where", "Xor",
})  # fmt: skip
"""Ops by element, with operands that broadcast, which are right whatever is in them."""

_REDUCTIONS = frozenset({"ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"})
_FEW_READ = 4096
"""Elements that both branches may read if they reduce; a branch of its own costs as much as some thousands."""


def unroll_loop(
    walk: Walk, node: Node, inputs: Sequence[Value | None], path: Path, most: int = NO_BOUND
) -> list[Value]:
    """Loop: the body, until the trip count is reached or its first output is false; `most` nodes."""
    trips, condition, *carried = inputs
    require(all(v is None or v.is_known for v in (trips, condition)), "trip count and condition are not known")
    require(trips is not None or condition is not None, "the loop has no end")
    count = np.inf if trips is None else number_of(trips)
    going = condition is None or bool(np.asarray(condition.content).reshape(()))
    body, number, scanned = node.attrs["body"], 0, []
    states = [present(value) for value in carried]
    end = walk.end_of_unrolling(most)
    if going and count < np.inf and goes_on(body):
        require(walk.nnodes + count * (1 + len(body.nodes)) <= end, "a long loop")
    while going and number < count:
        walk.count(1, node)  # a body without nodes is not for nothing
        require(walk.nnodes + len(body.nodes) <= end, "a long loop")
        given = [Value(content=np.array(number)), Value(content=np.array(True)), *states]
        check, *results = walk.unroll(enter_graph(walk, body, given, (*path, number), path), end)
        require(check.is_known, "an iteration decides whether another one follows")
        going = bool(np.asarray(check.content).reshape(()))
        states, number = results[: len(states)], number + 1
        scanned.append(results[len(states) :])
    if not scanned:
        return states + walk.empty_outputs(node, inputs, len(states))
    return states + [_stack(walk.builder, list(values), 0) for values in zip(*scanned, strict=True)]


def number_of(trips: Value) -> Any:
    """A trip count that is known, which may be a size that varies: whether it is too many decides, not how many."""
    if isinstance(trips.content, ShapeArray):
        return trips.content.items.reshape(())[()]
    return int(np.asarray(trips.content).reshape(()))


def goes_on(body: Subgraph) -> bool:
    """Whether the body of a loop hands its condition on, so that the trip count alone decides."""
    return hands_on(body, 1, 0)


def hands_on(body: Subgraph, number: int, result: int) -> bool:
    """Whether an output of the body of a loop is one of its inputs."""
    name = body.outputs[result]
    copied = [node.input[0] for node in body.nodes if node.op_type == "Identity" and node.output[0] == name]
    return body.inputs[number] in (name, *copied)


def scan(walk: Walk, node: Node, inputs: Sequence[Value | None], path: Path, one: Way) -> list[Value]:
    """Scan: the body for each slice of the scanned inputs, as `one` does; before opset 9 for each entry of a batch."""
    if walk.opset(node.domain) >= 9:
        return one(walk, node, inputs, path)
    require(inputs[0] is None, "sequences of several lengths")
    values = [present(value) for value in inputs[1:]]
    require(all(value.is_plain for value in values), "something scanned is no array of known shape")
    require(all(prod(value.shape[:2]) for value in values[-node.attrs["num_scan_inputs"] :]), "a scan of no entries")
    require(values[0].shape[0] <= walk.end_of_unrolling() - walk.nnodes, "a long scan")
    rows = [
        one(walk, node, [_take(walk.builder, value, number, 0) for value in values], (*path, number))
        for number in range(values[0].shape[0])
    ]
    return [_stack(walk.builder, list(column), 0) for column in zip(*rows, strict=True)]


def unroll_scan(
    walk: Walk, node: Node, inputs: Sequence[Value | None], path: Path, most: int = NO_BOUND
) -> list[Value]:
    """Scan as from opset 9 on; `most` nodes."""
    attrs, values = node.attrs, [present(value) for value in inputs]
    body, count = attrs["body"], attrs["num_scan_inputs"]
    states, sources = values[: len(values) - count], values[len(values) - count :]
    require(all(source.is_plain for source in sources), "something scanned is no array of known shape")
    given = zip(sources, attrs.get("scan_input_axes") or [0] * count, strict=True)
    axes = [axis % len(source.shape) for source, axis in given]
    backwards = attrs.get("scan_input_directions") or attrs.get("directions") or [0] * count
    length = sources[0].shape[axes[0]]
    require(most == NO_BOUND or not is_variable(length), "a length that may vary")
    end = walk.end_of_unrolling(most)
    require(walk.nnodes + length * (1 + len(body.nodes)) <= end, "a long scan")
    scanned = []
    for number in range(length):
        walk.count(1, node)
        slices = [
            _take(walk.builder, source, length - 1 - number if back else number, axis)
            for source, axis, back in zip(sources, axes, backwards, strict=True)
        ]
        results = walk.unroll(enter_graph(walk, body, [*states, *slices], (*path, number), path), end)
        states = results[: len(states)]
        scanned.append(results[len(states) :])
    if not scanned:
        return states + walk.empty_outputs(node, inputs, len(states))
    return states + _scanned_outputs(walk.builder, attrs, list(zip(*scanned, strict=True)))


def unroll_map(walk: Walk, node: Node, inputs: Sequence[Value | None], path: Path) -> list[Value]:
    """SequenceMap of sequences of known length: the body for the items at each place, and what is no sequence."""
    body, values = node.attrs["body"], [present(value) for value in inputs]
    items = [None if found is None else tuple(found) for found in map(items_of, values)]
    require(items[0] is not None, "a sequence whose length is not known")
    lengths = {len(found) for found in items if found is not None}
    require(len(lengths) == 1, "sequences of other lengths")
    [length] = lengths
    end = walk.end_of_unrolling()
    require(walk.nnodes + length * (1 + len(body.nodes)) <= end, "a long map")
    rows = []
    for number in range(length):
        walk.count(1, node)
        given = [value if found is None else found[number] for value, found in zip(values, items, strict=True)]
        rows.append(walk.unroll(enter_graph(walk, body, given, (*path, number), path), end))
    return [Value(items=tuple([row[k] for row in rows])) for k in range(len(body.outputs))]


def _scanned_outputs(builder: GraphBuilder, attrs: dict[str, Any], columns: list[tuple[Value, ...]]) -> list[Value]:
    axes = attrs.get("scan_output_axes") or [0] * len(columns)
    backwards = attrs.get("scan_output_directions") or [0] * len(columns)
    return [
        _stack(builder, list(column[::-1] if back else column), axis)
        for column, axis, back in zip(columns, axes, backwards, strict=True)
    ]


def present(value: Value | None) -> Value:
    """The value, which must be given."""
    if value is None:
        raise NotConvertible("a state is left out")
    return value


def _take(builder: GraphBuilder, value: Value, index: int, axis: int) -> Value:
    """One slice of a value along an axis, without that axis."""
    if value.is_known:
        return Value(content=np.take(value.content, index, axis), from_inputs=value.from_inputs)
    [piece] = builder.emit("Slice", value, starts=[index], ends=[index + 1], axes=[axis])
    return _reshaped(builder, piece, [dim for k, dim in enumerate(value.shape) if k != axis])


def _stack(builder: GraphBuilder, values: list[Value], axis: int) -> Value:
    """Values joined along a new axis."""
    if all(value.is_known for value in values):
        content = np.stack([np.asarray(value.content) for value in values], axis)
        return Value(content=content, from_inputs=any(value.from_inputs for value in values))
    require(all(value.is_plain for value in values), "a scanned output is no array of known shape")
    axis %= len(values[0].shape) + 1
    shape = (*values[0].shape[:axis], 1, *values[0].shape[axis:])
    return builder.join([_reshaped(builder, value, shape) for value in values], axis)


def _reshaped(builder: GraphBuilder, value: Value, shape: Sequence[int]) -> Value:
    return builder.emit("StaticReshape", value, shape=shape, special_zero=False)[0]


# ---- what differs, by a sort and a search


def find_unique(walk: Walk, node: Node, inputs: Sequence[Value | None], path: Path) -> list[Value]:
    """Unique of all elements: they are sorted, and found where another one than before begins.

    NaNs are alike. Equal elements keep their order, so that each begins with the first of its kind.
    """
    data = present(inputs[0])
    require(data.is_plain and not data.is_known and data.dtype in _SORTED, "what is sorted by the host")
    require(node.attrs.get("axis") is None or len(data.shape) == 1, "slices along an axis")
    nodes: list[Node] = []
    constants = {"all": [-1], "none": [0], "one": [1], "last": [-1], "end": [2**62], "yes": np.array([True])}
    known = {f"{node.label}/{name}": Value(content=np.array(value)) for name, value in constants.items()}

    def add(kind: str, *names: str, outputs: int = 1, **attrs: Any) -> Any:
        given = [f"{node.label}/{len(nodes)}.{number}" for number in range(outputs)]
        nodes.append(make_node(kind, names, given, f"{node.label}/{kind}", **attrs))
        return given if outputs > 1 else given[0]

    none, one, last, end, everything, yes = (
        f"{node.label}/{name}" for name in ("none", "one", "last", "end", "all", "yes")
    )
    flat = add("Reshape", node.input[0], everything)
    count = add("Shape", flat)
    row, order = add("TopK", flat, count, outputs=2, axis=0, largest=0, sorted=1)
    before, behind = add("Slice", row, none, last), add("Slice", row, one, end)
    differs = add("Not", add("Equal", before, behind))
    if data.dtype is DataType.F32:
        differs = add("And", differs, add("Not", add("And", add("IsNaN", before), add("IsNaN", behind))))
    begins = add("Slice", add("Concat", yes, differs, axis=0), none, count)
    starts = add("Reshape", add("NonZero", begins), everything)
    firsts = add("Gather", order, starts)
    place = add("Sub", add("CumSum", add("Cast", begins, to=TensorProto.INT64), none), one)
    inverse = add("ScatterElements", order, order, place, axis=0)
    counts = add("Sub", add("Concat", add("Slice", starts, one, end), count, axis=0), starts)
    values = add("Gather", row, starts)
    if not node.attrs.get("sorted", 1):  # by first appearance
        firsts, turned = add("TopK", firsts, add("Shape", firsts), outputs=2, axis=0, largest=0, sorted=1)
        values, counts = add("Gather", values, turned), add("Gather", counts, turned)
        _, back = add("TopK", turned, add("Shape", turned), outputs=2, axis=0, largest=0, sorted=1)
        inverse = add("Gather", back, inverse)
    made = (values, firsts, inverse, counts)
    wanted = [name for name, own in zip(made, node.output, strict=False) if own]
    return _placed(node, walk.run(enter_nodes(needed(nodes, wanted), known | {node.input[0]: data}, wanted, path)))


def _placed(node: Node, results: Sequence[Value]) -> list[Value]:
    """The results of the outputs that have names, and something for the others."""
    found = iter(results)
    return [next(found) if name else Value() for name in node.output]


_SORTED = frozenset({DataType.F32, DataType.S64, DataType.S32})
"""Types of which kernels sort elements."""
