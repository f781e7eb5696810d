"""Rewrites a model once, whatever its input shapes will be, and specialises it to input shapes.

Nodes that nobody needs go, constants are computed, products of integers become those of the floats that they stand for
(integers.py), numbers of 2 bits get 4, experts become branches, and Scatter gets its new name. Other rules are the
graph's and the backend's.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import replace
from graphpool.errors import InvalidShapeError
from graphpool.runtime.constant_part import check_files, drop_pages
from graphpool.runtime.model_port import ModelPort
from graphpool.runtime.stored_forms import ModelHead
from graphpool.typing import DataType

from .arrays import make_attribute
from .boundary import Boundary
from .build import InvalidNode, Value, static_id
from .encoders import with_table
from .experts import EXPERT_OPS, with_branches
from .fold import fold_constants, is_kept
from .integers import restore_floats
from .node import Node, make_node, names_read, needed
from .ops.direct import DECIDING_PORTS
from .table_places import with_index_ranges
from .two_bits import with_four_bits
from .walk import Walk

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from graphpool.runtime.model_form import ModelForm
    from graphpool.runtime.packed_weight import PackedWeight

    from .data_dependent import SizeItems
    from .inline import Path
    from .node import Subgraph
    from .source import OnnxModel

# Inputs whose content an op needs to know when it is compiled: from one port to before another (None: to the last).
_DECIDING_PORTS = {
    **DECIDING_PORTS,
    **dict.fromkeys((
        "Reshape", "Expand", "Slice", "Resize", "Upsample", "Pad", "Split", "Squeeze", "Unsqueeze", "CenterCropPad",
        "AffineGrid", "Dropout", "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1",
        "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare",
    ), (1, None)),
    "ConstantOfShape": (0, None), "Range": (0, None), "Col2Im": (1, 3), "GroupQueryAttention": (6, 7),
    "DFT": (1, None), "STFT": (1, None), "MaxUnpool": (2, 3), "NonMaxSuppression": (2, 5),
    "SequenceAt": (1, 2), "SequenceErase": (1, 2), "SequenceInsert": (2, 3), "SplitToSequence": (1, 2),
}  # fmt: skip

_COMPUTED_LATE = frozenset({
    "Attention", "BatchNormalization", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "Einsum", "GRU", "Gemm",
    "GroupNormalization", "InstanceNormalization", "LSTM", "LayerNormalization", "LogSoftmax", "MatMul",
    "MatMulInteger", "QLinearConv", "QLinearMatMul", "RMSNormalization", "RNN", "Softmax",
})  # fmt: skip
"""Ops behind which a number is no longer a size that somebody chose: what they give decides shapes during the run."""

_CONTROL_PORTS = {"If": (0, 1), "Loop": (0, 2)}
"""Conditions, and trip counts of loops that carry sequences: others run however often they are told to."""


_MOST_DECIDING = 16
"""Elements of an input from whose content shapes follow."""

_MOST_ROOTS = 64
"""Numbers on which the course of control flow may depend; beyond them it stays open."""


def find_deciding_inputs(source: OnnxModel, nodes: Sequence[Node]) -> frozenset[str]:
    """Inputs from whose content shapes follow, so that each content makes a form of its own.

    What `Shape` and `Size` read decides nothing by its content, and behind networks shapes follow when they have run.
    """
    wanted: set[str] = set()
    for node in reversed(nodes):
        first, last = _DECIDING_PORTS.get(node.op_type, (len(node.input), None))
        wanted.update(node.input[first:last])
        is_late = node.op_type in _COMPUTED_LATE or is_kept(node)
        is_late = is_late and node.op_type != "DequantizeLinear"
        if not is_late and node.op_type not in ("Shape", "Size") and any(name in wanted for name in node.output):
            wanted.update(node.input)
    wanted |= _control_inputs(source, nodes)
    return frozenset(port.name for port in source.inputs if port.name in wanted and _is_small(port))


def _is_small(port: ModelPort) -> bool:
    """Whether an input may decide: others are data, and what follows from them is data-dependent."""
    dims = [dim for dim in port.shape or () if isinstance(dim, int)]
    return port.dtype is not None and port.is_static and prod(dims) <= _MOST_DECIDING


def _control_inputs(source: OnnxModel, nodes: Sequence[Node]) -> set[str]:
    """Single numbers that alone decide the course of control flow, and for branches no real ones.

    What larger inputs decide stays open: their contents would make each run a form of its own.
    """
    if not any(node.op_type in _CONTROL_PORTS for node in nodes):
        return set()
    numbers = {port.name: port for port in source.inputs if port.shape in ((), (1,)) and port.dtype is not None}
    roots: dict[str, frozenset[str] | None] = {port.name: None for port in source.inputs}
    roots |= {name: frozenset([name]) for name in numbers}
    found: set[str] = set()
    for node in nodes:
        is_run = node.op_type == "Loop" and not node.attrs["body"].has_objects
        for name in () if is_run else node.input[slice(*_CONTROL_PORTS.get(node.op_type, (0, 0)))]:
            own = roots.get(name, frozenset()) or frozenset()
            if node.op_type == "Loop" or not any(numbers[root].dtype in _REALS for root in own):
                found |= own
        known = node.op_type in ("Shape", "Size")
        read = [] if known else [roots.get(name, frozenset()) for name in (*node.input, *node.captured)]
        joined = None if None in read else frozenset().union(*(names for names in read if names))
        if joined is not None and len(joined) > _MOST_ROOTS:  # else sets would grow with the square of the nodes
            joined = None
        roots.update(dict.fromkeys(node.output, joined))
    return found


_REALS = (DataType.F32, DataType.F64, DataType.F16, DataType.BF16)


class Specialiser:
    """Turns an `OnnxModel` into a `ModelForm` for given input shapes.

    `host` says what the host may run: "any" node without an expression in our ops, those of "objects" that no kernel
    could run (`host.needs_host`), or "none"; `prefer`, `fpmath` and `engine_kind` are those of the graphs. Of the model
    after rewriting, `source` is all but its constants, `nodes` its nodes, `deciding` the inputs whose content the forms
    depend on, `constants` name -> content. `folded` is what nodes compute from contents that last as long as the
    specialiser: results of nodes that are computed once, by place of the node and numbers of what it reads;
    `static_ids`: see `GraphBuilder`. `sizes` are arrays of which inputs tell extents, by name.

    What all forms share are contents; `Value` and tensors belong to one form. Threads: one at a time; `Model` sees to
    that. Cost: about 50 microseconds a node.
    """

    takes_sizes = True
    """Whether shapes may hold sizes that vary."""

    def __init__(self, source: OnnxModel, host: str, prefer: str, fpmath: str, engine_kind: str = "cpu") -> None:
        self.sizes: dict[str, SizeItems] = {}
        self._outer: Specialiser | None = None
        self.host = host
        self.prefer = prefer
        self.fpmath, self.engine_kind = fpmath, engine_kind
        with Boundary("rewritten", f"model {source.name!r}"):
            self.nodes, constants = (source.nodes, source.constants) if source.is_rewritten else rewrite(source)
            inputs = source.inputs if source.is_rewritten else with_index_ranges(source.inputs, self.nodes, constants)
            # what was folded into others need not stay in memory
            self.source = replace(source, inputs=inputs, nodes=self.nodes, constants={}, is_rewritten=True)
            self.deciding = find_deciding_inputs(source, self.nodes)
        self.constants = constants
        self.folded: dict[Hashable, list[Any]] = {}
        self.static_ids: dict[Hashable, int] = {}
        self._graphs: dict[Path, tuple[list[Node], dict[str, Any]]] = {}

    @property
    def head(self) -> ModelHead:
        """What of the model does not depend on shapes."""
        source, deciding = self.source, tuple(sorted(self.deciding))
        return ModelHead(source.name, source.inputs, source.outputs, deciding, source.metadata)

    @property
    def is_inner(self) -> bool:
        """Whether the model is a part of another one, such as a branch, which may never run."""
        return self._outer is not None

    def data_dependent(
        self, source: OnnxModel, constants: Mapping[str, Any], sizes: Mapping[str, SizeItems]
    ) -> Specialiser:
        """One for the nodes of this model that a `DataDependentBuilder` collects, or of graphs inside one."""
        found = Specialiser(source, self.host, self.prefer, self.fpmath, self.engine_kind)
        found.constants, found.sizes, found.deciding = dict(constants), dict(sizes), frozenset()
        found._outer = self
        return found

    def rewritten(self, graph: Subgraph, path: Path) -> tuple[list[Node], dict[str, Any]]:
        """The nodes and constants of a graph inside the node at a place, rewritten as those of the model are."""
        found = self._graphs.get(path)
        if found is None:
            ports = tuple([ModelPort(name, None, None) for name in graph.outputs])
            inside = replace(self.source, nodes=graph.nodes, constants=graph.constants, outputs=ports)
            found = self._graphs[path] = rewrite(inside)
        return found

    def written_out(self, graph: Subgraph, place: Path) -> tuple[list[Node], dict[str, Any]]:
        """The nodes and constants of a graph that is walked where the node stands: nothing is computed ahead."""
        key = (*place, "written out")
        found = self._graphs.get(key)
        if found is None:
            constants = dict(graph.constants)
            found = self._graphs[key] = _replaced(self.source, graph.nodes, constants), constants
        return found

    def __reduce__(self) -> tuple[Any, ...]:
        check_files(self.constants.values())
        constants = {name: Value(content=content).plain_content for name, content in self.constants.items()}
        source = replace(self.source, constants=constants)
        return Specialiser, (source, self.host, self.prefer, self.fpmath, self.engine_kind)

    def _drop_pages(self) -> None:
        """Take weights that lie in mapped files out of memory: the system reads again what is used."""
        for content in self.constants.values():
            drop_pages(content)

    def lasting(self) -> list[Any]:
        """The contents that stay in memory while no form has them."""
        inside = [content for _, constants in self._graphs.values() for content in constants.values()]
        folded = [content for contents in self.folded.values() for content in contents]
        return [*self.constants.values(), *folded, *inside]

    def fold_key(self, path: Path, contents: Sequence[Any]) -> Hashable:
        """The key of `folded` for a node that reads these contents, all static."""
        return path, tuple([static_id(self.static_ids, content) for content in contents])

    def forget(self, content: Any, packed: PackedWeight) -> None:
        """Keep a packed weight instead of a content; tensor ids stay."""
        if self._outer is not None:
            self._outer.forget(content, packed)
        self.constants = {name: packed if own is content else own for name, own in self.constants.items()}
        for contents in self.folded.values():
            contents[:] = [packed if own is content else own for own in contents]
        old, new = id(content), id(packed)
        for key, number in list(self.static_ids.items()):  # an address that is free may be another content's tomorrow
            if key in (old, ("bytes", old)):
                del self.static_ids[key]
                self.static_ids[new if key == old else ("bytes", new)] = number

    def __call__(self, shapes: Mapping[str, Any], contents: Mapping[str, Any]) -> ModelForm:
        """The form for these input shapes and these contents of the deciding inputs.

        Raises `StateError` if a mapped file was changed in place, as far as that can be seen before it is read.
        """
        check_files(self.constants.values())
        folded, left_nbytes = dict(self.folded), self.source.bounds.left_nbytes
        with Boundary("specialised", f"model {self.source.name!r}"):
            try:
                form = Walk(self, shapes, contents).form()
            except InvalidNode as error:
                raise InvalidShapeError(str(error), **error.fields) from error
            except MemoryError:  # what was computed until then would take memory beside the next trial
                self.folded, self.source.bounds.left_nbytes = folded, left_nbytes
                raise
        if self._outer is None:
            self._drop_pages()
        return form


# ---- rewriting, once a model


def rewrite(source: OnnxModel) -> tuple[list[Node], dict[str, Any]]:
    """The nodes that are needed, in topological order, and the constants that they read or that are outputs."""
    outputs = [port.name for port in source.outputs]
    constants = dict(source.constants)
    nodes = needed(_replaced(source, source.nodes, constants), outputs)
    nodes, constants = fold_constants(source, nodes, constants)
    nodes = needed(restore_floats(source, nodes, constants), outputs)
    read = names_read(nodes, outputs)
    return nodes, {name: content for name, content in constants.items() if name in read}


def _replaced(source: OnnxModel, nodes: Sequence[Node], constants: dict[str, Any]) -> list[Node]:
    """The nodes, and what stands for some of them; `constants` is extended."""
    renamed = [n.changed(op_type="ScatterElements") if n.op_type == "Scatter" else n for n in nodes]
    return [own for node in renamed for own in _rewritten(source, node, constants)]


def _rewritten(source: OnnxModel, node: Node, constants: dict[str, Any]) -> list[Node]:
    """What stands for a node: itself, or nodes of which kernels run more; `constants` is extended."""
    if node.op_type == "Compress" and node.domain in ("", "ai.onnx"):
        return _without_compress(node, constants)
    if node.op_type in _LABELS and node.domain == "ai.onnx.ml" and node.attrs.get("classlabels_strings"):
        return _without_texts(node, constants)
    if node.op_type == "LabelEncoder" and node.domain == "ai.onnx.ml" and len(node.input) == 1:
        return [with_table(node, constants)]
    if node.op_type in EXPERT_OPS and node.domain == "com.microsoft":
        return with_branches(node, constants, source.bounds.limits)
    if node.op_type == "MatMulNBits" and node.attrs.get("bits") == 2:
        return [with_four_bits(node, constants)]
    return [node]


_LABELS = {
    "LinearClassifier": "classlabels_ints", "SVMClassifier": "classlabels_ints",
    "TreeEnsembleClassifier": "classlabels_int64s",
}  # fmt: skip
"""Classifier -> its attribute of labels that are integers."""


def _without_texts(node: Node, constants: dict[str, Any]) -> list[Node]:
    """A classifier whose labels are numbered, and a Gather from the texts."""
    texts = [text.decode() for text in node.attrs["classlabels_strings"]]
    label, *scores = node.output
    number, table = f"{label}/number", f"{label}/texts"
    constants[table] = np.array(texts, np.object_)
    labels = make_attribute(_LABELS[node.op_type], range(len(texts)))
    numbered = node.changed(outputs=[number, *scores], without=("classlabels_strings", labels.name), added=labels)
    if not label:
        return [numbered]
    return [numbered, make_node("Gather", [table, number], [label], f"{node.label}/labels")]


def _without_compress(node: Node, constants: dict[str, Any]) -> list[Node]:
    """The places where the condition of a Compress holds, and a Gather."""
    (data, condition), [result] = node.input, node.output
    flat, found, places = (f"{result}/{part}" for part in ("flat", "found", "places"))
    all_of = f"{result}/all"
    constants[all_of] = np.array([-1])
    nodes = [
        make_node("NonZero", [condition], [found], f"{node.label}/NonZero"),
        make_node("Reshape", [found, all_of], [places], f"{node.label}/Reshape"),
    ]
    axis = node.attrs.get("axis")
    if axis is None:
        nodes.append(make_node("Reshape", [data, all_of], [flat], f"{node.label}/Flatten"))
    source = data if axis is not None else flat
    return [*nodes, make_node("Gather", [source, places], [result], node.name, axis=axis or 0)]
