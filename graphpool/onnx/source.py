"""Reads and checks an ONNX model: its ports, its constants as arrays, its nodes.

Where a field is read for each node or tensor, it is as a slice: going over it otherwise ends in an exception inside
protobuf, which takes longer than the rest.
"""

from __future__ import annotations

import mmap
import os
import stat
import sys
from math import prod
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from google.protobuf.message import DecodeError

from graphpool._dataclasses import dataclass, field
from graphpool.errors import InvalidArgumentError, InvalidGraphError, brief, explain
from graphpool.limits import Limits
from graphpool.mapped_file import MappedFile, open_regular
from graphpool.runtime.constant_memory import memory_of, read_as, reading_of
from graphpool.runtime.file_arrays import open_references, refer_to_files
from graphpool.runtime.model_metadata import ModelMetadata
from graphpool.runtime.nibbles import Nibbles
from graphpool.typing import DataType

from ._wire import NIBBLES, WHOLE_BYTES, outline
from .arrays import numpy_type, to_array
from .boundary import Boundary
from .bounds import Bounds, check_list, check_model, graphs_of
from .files import ModelFiles
from .inline import CONTROL_FLOW
from .long_lists import LongList, without_lists
from .node import DATA_TYPES, Node, check_text
from .node_order import sort_nodes
from .proto import AttributeProto, ModelProto, TensorProto, TypeProto, as_onnx, as_own
from .types import describe_type, make_port, plain_type
from .validity import is_valid

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from graphpool.runtime.model_port import ModelPort

    from .proto import GraphProto, NodeProto, SparseTensorProto

_Lists: TypeAlias = "dict[int, dict[str, LongList]]"
"""Number of a node -> attribute -> its long list."""


@dataclass
class OnnxModel:
    """What the importer needs of a ModelProto.

    `inputs` that have an initialiser are constants and not listed, but for those that were asked for. `constants` are
    the initialisers, read-only; large ones of a file, and those in external files, are mapped, those of bytes are views
    of these, and they may lie at any address. `nodes` are in topological order, with the calls of model-local functions
    inlined. `opsets` is domain -> version. `metadata` is what the file says of itself. `is_rewritten` says whether
    `rewrite` has been over it.
    """

    name: str
    inputs: tuple[ModelPort, ...]
    outputs: tuple[ModelPort, ...]
    input_types: dict[str, Any]
    constants: dict[str, Any]
    nodes: list[Node]
    opsets: dict[str, int]
    ir_version: int
    bounds: Bounds
    metadata: ModelMetadata
    is_rewritten: bool = False

    def __getstate__(self) -> dict[str, Any]:
        """For pickles: constants of mapped files by their places, others as plain arrays, which stay out of band."""
        constants = {name: np.asarray(memory_of(value)) for name, value in self.constants.items()}
        readings = {name: reading_of(value) for name, value in self.constants.items()}
        input_types = {name: type_.SerializeToString() for name, type_ in self.input_types.items()}
        return self.__dict__ | {"constants": (refer_to_files(constants), readings), "input_types": input_types}

    def __setstate__(self, state: dict[str, Any]) -> None:
        references, readings = state["constants"]
        memory = open_references(references)
        constants = {name: read_as(memory[name], reading) for name, reading in readings.items()}
        input_types = {name: TypeProto.FromString(message) for name, message in state["input_types"].items()}
        self.__dict__.update(state, constants=constants, input_types=input_types)

    def opsets_for(self, node: Node) -> dict[str, int]:
        """The opsets, with that of the node's domain raised to where the op first appeared."""
        version = max(self.opsets.get(node.domain, 1), _INTRODUCED.get(node.op_type, 1))
        return self.opsets | {node.domain: version}


_INTRODUCED = {"Gelu": 20, "HardSwish": 14, "LayerNormalization": 17, "Mish": 18, "RMSNormalization": 23,
               "ScatterElements": 11}  # fmt: skip
"""Ops that the rewriter puts into models of older opsets."""


def read_model(
    source: str | os.PathLike[str] | bytes | ModelProto,
    mapping: str = "map",
    limits: Limits = Limits(),  # noqa: B008 - immutable
    memory_limit: int | None = None,
    files: ModelFiles | None = None,
    as_inputs: Sequence[str] = (),
) -> OnnxModel:
    """Read and check a model; `memory_limit` is the engine's, in bytes, `files` has those that are mapped already.

    `as_inputs` are initialisers that the file lists as inputs too, and that shall be inputs only.

    Raises InvalidArgumentError for what is no ONNX model, truncated or malformed, and for external data that is
    missing, which the message names; LimitError where it asks for more than `limits` allow, or a sparse tensor for more
    than `memory_limit`; FileNotFoundError.
    """
    with Boundary("read", "the model"):
        parsed = _parse(source, mapping, ModelFiles() if files is None else files)
    with Boundary("read", f"model {parsed.name!r}"):
        return _read(parsed, limits, memory_limit, as_inputs)


def copied_nbytes(source: Any, mapping: str) -> int:
    """What reading a source copies at least; large weights in bytes and mapped files stay where they are.

    Unit: bytes.
    """
    if isinstance(source, (bytes, bytearray, memoryview)):
        view = memoryview(source)
        return 0 if view.readonly and view.c_contiguous else view.nbytes
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        return path.stat().st_size if mapping == "copy" and path.is_file() else 0
    if "onnx" not in sys.modules or not isinstance(source, sys.modules["onnx"].ModelProto):
        return 0
    inside = [one for one in source.graph.initializer if one.data_location != TensorProto.EXTERNAL]  # ByteSize() copies
    return sum(prod(one.dims) * numpy_type(one.data_type).itemsize for one in inside if one.data_type in WHOLE_BYTES)


def _read(parsed: _Parsed, limits: Limits, memory_limit: int | None, as_inputs: Sequence[str]) -> OnnxModel:
    """The model, which refers to nothing inside the proto: one message that is held keeps all of them."""
    proto, folder, name = parsed.proto, parsed.folder, parsed.name
    check_model(proto, limits)
    lists = _named_lists(parsed, limits)
    _check_names(proto.graph)
    tensors, left, lists = _divide(proto.graph, lists)
    constants = _contents(tensors, parsed)
    bounds = Bounds(limits, memory_limit, _file_nbytes(parsed, constants, tensors))
    for sparse in proto.graph.sparse_initializer:
        with Boundary("read", f"tensor {sparse.values.name!r}"):
            constants[sparse.values.name] = _dense(sparse, bounds)
    _open_constants(proto.graph, constants, as_inputs)
    inputs = {info.name: plain_type(info.type) for info in proto.graph.input if info.name not in constants}
    outputs = tuple(make_port(info.name, info.type) for info in proto.graph.output)
    metadata = _metadata(proto)
    # what was parsed goes before the checker makes a copy
    parsed.proto = skeleton = _skeleton(proto, tensors, left, folder, bounds, lists)
    del proto, tensors, left
    lists = _check(skeleton, name, lists)
    names = {name: name for name in constants}
    if skeleton.functions:
        skeleton = _inlined(skeleton)
        nodes = [Node(node, names=names) for node in skeleton.graph.node]
    else:
        nodes = [Node(node, lists.get(number, {}), None, names) for number, node in enumerate(skeleton.graph.node[:])]
    _unpack_read(constants, nodes, [port.name for port in outputs])
    return OnnxModel(
        name,
        tuple(make_port(name, type_) for name, type_ in inputs.items()),
        outputs,
        inputs,
        constants,
        nodes,
        _opsets(skeleton),
        skeleton.ir_version,
        bounds,
        metadata,
    )


def _open_constants(graph: GraphProto, constants: dict[str, Any], names: Sequence[str]) -> None:
    """Take these names, which have to be inputs too, from the constants."""
    listed = [info.name for info in graph.input if info.name in constants]
    for name in names:
        if name not in listed:
            what = f"as_inputs: {name!r} is no initialiser that the file lists as an input"
            raise InvalidArgumentError(explain(what, accepted=brief(listed) if listed else "none here"))
    for name in names:
        constants.pop(name, None)


def _contents(tensors: Iterable[tuple[str, TensorProto]], parsed: _Parsed) -> dict[str, Any]:
    """What the tensors hold, by name."""
    found: dict[str, Any] = {}
    with Boundary("read") as where:
        for number, (name, tensor) in enumerate(tensors):
            where.item = f"tensor {name!r}"
            if number in parsed.places:
                place = _nibbles if tensor.data_type in NIBBLES else _raw
                found[name] = place(tensor, parsed.data, *parsed.places[number])
            else:
                found[name] = _constant(tensor, parsed.folder)
    return found


def _unpack_read(constants: dict[str, Any], nodes: Sequence[Node], outputs: Sequence[str]) -> None:
    """Unpack 4-bit elements, but for those that nodes dequantise and nothing else reads."""
    dequantised = {node.input[0] for node in nodes if node.op_type == "DequantizeLinear"}
    read = {name for node in nodes for name in (*node.input[node.op_type == "DequantizeLinear" :], *node.captured)}
    kept = dequantised - read - set(outputs)
    for name, value in constants.items():
        if isinstance(value, Nibbles) and name not in kept:
            constants[name] = np.asarray(value)


def _divide(graph: GraphProto, lists: _Lists) -> tuple[list[tuple[str, TensorProto]], list[NodeProto], _Lists]:
    """The initialisers, then what nodes Constant give, by name, the other nodes, and lists by the numbers of these."""
    tensors = [(tensor.name, tensor) for tensor in graph.initializer[:]]
    nodes: list[NodeProto] = []
    found: _Lists = {}
    for number, node in enumerate(graph.node[:]):
        if _is_tensor(node):
            tensors.append((node.output[0], node.attribute[0].t))
            continue
        if number in lists:
            found[len(nodes)] = lists[number]
        nodes.append(node)
    return tensors, nodes, found


def _is_tensor(node: NodeProto) -> bool:
    """Whether a node is an initialiser in other words."""
    if node.op_type != "Constant" or node.domain not in ("", "ai.onnx"):
        return False
    if (len(node.input), len(node.output), len(node.attribute)) != (0, 1, 1) or not node.output[0]:
        return False
    [item] = node.attribute
    if item.name != "value" or item.type != AttributeProto.TENSOR:
        return False
    return {entry.name for entry, _ in item.ListFields()} <= _OF_TENSOR  # the checker refuses others


_OF_TENSOR = frozenset({"name", "type", "t", "doc_string"})
"""Fields of an attribute that holds a tensor."""


def _named_lists(parsed: _Parsed, limits: Limits) -> _Lists:
    """The long lists that were left out of each node, by attribute. Raises LimitError for one that is too long."""
    found: _Lists = {}
    for number, places in parsed.lists.items():
        assert parsed.data is not None  # where they lie
        node = parsed.proto.graph.node[number]
        for place, (first, last, count, text_nbytes) in places.items():
            name = node.attribute[place].name
            check_list(node.name or node.op_type, name, count, text_nbytes, limits)
            found.setdefault(number, {})[name] = LongList(parsed.data, first, last, count, text_nbytes)
    return found


def _metadata(proto: ModelProto) -> ModelMetadata:
    graph = proto.graph
    return ModelMetadata(
        proto.producer_name,
        graph.name,
        proto.domain,
        proto.doc_string,
        graph.doc_string,
        proto.model_version,
        {entry.key: entry.value for entry in proto.metadata_props},
        {info.name: describe_type(info.type) for info in (*graph.input, *graph.output)},
        _overridable(proto),
    )


def _overridable(proto: ModelProto) -> tuple[ModelPort, ...]:
    """Initialisers that are inputs too, where the format does not ask that they are."""
    if proto.ir_version < _IR_OWN_INITIALISERS:
        return ()
    names = {tensor.name for tensor in proto.graph.initializer}
    names |= {tensor.values.name for tensor in proto.graph.sparse_initializer}
    return tuple([make_port(info.name, info.type) for info in proto.graph.input if info.name in names])


_IR_OWN_INITIALISERS = 4
"""The version of ONNX's format from which on initialisers need not be inputs."""


def _check_names(graph: GraphProto) -> None:
    """Raise for names that no text can hold."""
    check_text("the model", *(tensor.name for tensor in graph.initializer))
    check_text("the model", *(info.name for info in (*graph.input, *graph.output)))
    check_text("the model", *(tensor.values.name for tensor in graph.sparse_initializer))


def _opsets(model: ModelProto) -> dict[str, int]:
    """Domain -> version."""
    found: dict[str, int] = {}
    for entry in model.opset_import:
        domain = "" if entry.domain == "ai.onnx" else entry.domain
        if found.setdefault(domain, entry.version) != entry.version:
            got = f"versions {found[domain]} and {entry.version}"
            raise InvalidGraphError(explain(f"opset of domain {domain!r}", accepted="one version", got=got))
    return found


def _inlined(model: ModelProto) -> ModelProto:
    """The model with the calls of its functions replaced by what these do."""
    from onnx import inliner

    _align_functions(model)
    inlined: ModelProto = as_own(inliner.inline_local_functions(as_onnx(model)))
    return inlined


def _align_functions(model: ModelProto) -> None:
    """Give functions the opsets of the model where those define their ops alike: the inliner takes no others."""
    own = _opsets(model)
    for function in model.functions:
        for entry in function.opset_import:
            used = [node for node in _inner_nodes(function.node) if node.domain == entry.domain]
            version = own.get(entry.domain, entry.version)
            if all(_since(node, version) == _since(node, entry.version) for node in used):
                entry.version = version


def _since(node: NodeProto, version: int) -> int | None:
    """The version of an opset in which the op of a node was last changed; None for one that ONNX does not define."""
    from onnx import defs

    try:
        return int(defs.get_schema(node.op_type, version, node.domain).since_version)
    except defs.SchemaError:
        return None


def _inner_nodes(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """The nodes, and those of the graphs among their attributes."""
    for node in nodes:
        yield node
        for attribute in node.attribute[:]:
            for graph in graphs_of(attribute):
                yield from _inner_nodes(graph.node)


@dataclass
class _Parsed:
    """A model as it was read.

    `folder` is that of its external data, `name` what messages call it, `data` the file or the buffer, where weights
    and lists that `proto` lacks lie, `places` and `lists` where, as in `Outline`.
    """

    proto: ModelProto
    folder: _Folder | None
    name: str
    data: MappedFile | memoryview | None = None
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    lists: dict[int, dict[int, tuple[int, int, int, int]]] = field(default_factory=dict)


class _Folder:
    """Where external data lies: each file is mapped once, or what is asked for is read."""

    def __init__(self, path: Path, mapping: str, files: ModelFiles) -> None:
        self.path = path
        self._is_mapped = mapping == "map"
        self._files = files

    def read(self, path: Path, offset: int, nbytes: int) -> Any:
        """So many bytes of a file, as an array."""
        if not self._is_mapped:
            with os.fdopen(open_regular(path, os.O_NOFOLLOW), "rb") as file:
                return np.fromfile(file, np.uint8, nbytes, offset=offset)
        return np.frombuffer(self._files.map(path, os.O_NOFOLLOW), np.uint8, nbytes, offset)


def _parse(source: Any, mapping: str, files: ModelFiles) -> _Parsed:
    if "onnx" in sys.modules and isinstance(source, sys.modules["onnx"].ModelProto):  # who has one has imported it
        return _Parsed(source, None, source.graph.name or "model")
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _parse_bytes(source, "the given bytes", None, "model")
    try:
        path = Path(source)
    except TypeError:
        accepted = "a path, bytes or an onnx.ModelProto"
        raise InvalidArgumentError(explain("source", accepted=accepted, got=type(source).__name__)) from None
    what = f"file {str(path)!r}"
    folder = _Folder(path.resolve().parent, mapping, files)
    if not files.has(path):
        about = path.stat()
        if not stat.S_ISREG(about.st_mode) or not about.st_size:
            raise _malformed(what, "0 bytes" if stat.S_ISREG(about.st_mode) else "no regular file")
    if mapping == "copy":
        return _parse_bytes(path.read_bytes(), what, folder, path.stem)
    # the pages of a mapped file are the system's: large weights stay there and are not in memory twice
    pages = files.map(path)
    with memoryview(pages) as view:
        found = outline(view)
    pages.madvise(mmap.MADV_DONTNEED)  # a look at a header brings many pages of weights into memory
    return _Parsed(_decode(found.model, what), folder, path.stem, pages, found.places, found.lists)


def _parse_bytes(source: bytes | bytearray | memoryview, what: str, folder: _Folder | None, name: str) -> _Parsed:
    """A model in memory, whose large weights stay where they are, unless somebody may write there."""
    view = memoryview(source)
    data = view.cast("B") if view.readonly and view.c_contiguous else memoryview(bytes(view))
    found = outline(data)
    return _Parsed(_decode(found.model, what), folder, name, data, found.places, found.lists)


def _decode(data: bytes, what: str) -> ModelProto:
    proto = ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise _malformed(what, f"{len(data)} bytes: {error}", "is it complete, and an ONNX file?") from error
    if not proto.ir_version or not proto.HasField("graph"):
        raise _malformed(what, f"{len(data)} bytes without a graph", "is it an ONNX file?")
    return proto


def _raw(tensor: TensorProto, data: mmap.mmap | memoryview | bytes | None, offset: int, nbytes: int) -> Any:
    """The content of a tensor that lies in `data`, at whatever address; read-only."""
    raw_type, shape = _check_tensor(tensor)
    count = prod(shape)
    if data is None or count * raw_type.itemsize != nbytes:
        got = f"{nbytes} bytes for {count} elements of {raw_type}"
        raise _malformed(f"tensor {tensor.name!r}", got)
    if not nbytes:
        return np.empty(shape, raw_type)
    return np.ndarray(shape, raw_type, data, offset)


def _nibbles(tensor: TensorProto, data: mmap.mmap | memoryview | bytes | None, offset: int, nbytes: int) -> Any:
    """The content of a tensor of 4-bit elements that lies in `data`."""
    _, shape = _check_tensor(tensor)
    count = prod(shape)
    if data is None or -(-count // 2) != nbytes:
        raise _malformed(f"tensor {tensor.name!r}", f"{nbytes} bytes for {count} elements of 4 bits")
    return Nibbles(np.frombuffer(data, np.uint8, nbytes, offset), _NIBBLES[tensor.data_type], shape)


_NIBBLES: dict[int, DataType] = {TensorProto.UINT4: DataType.U4, TensorProto.INT4: DataType.S4}


def _check_tensor(tensor: TensorProto) -> tuple[Any, tuple[int, ...]]:
    """NumPy's type and the shape of a tensor."""
    shape, elem_type = tuple(tensor.dims[:]), tensor.data_type
    if min(shape, default=0) < 0 or prod([dim or 1 for dim in shape]) > _MOST_ELEMENTS:
        raise _malformed(f"tensor {tensor.name!r}", f"shape {list(shape)}")
    if elem_type not in DATA_TYPES:
        raise _malformed(f"tensor {tensor.name!r}", f"data type {elem_type}, which is none of ONNX")
    elements = _elements_of(tensor)
    if any(elements):
        given = [name for name, found in zip(_TYPED, elements, strict=True) if found]
        given += ["raw_data"] * tensor.HasField("raw_data")
        if len(given) > 1:
            raise _malformed(f"tensor {tensor.name!r}", f"both {given[0]} and {given[1]}")
    return numpy_type(elem_type), shape


_TYPED = ("double_data", "float_data", "int32_data", "int64_data", "string_data", "uint64_data")
_elements_of = attrgetter(*_TYPED)
_MOST_ELEMENTS = 2**56
"""Beyond which no size in bytes of any type has 63 bits."""


def _malformed(what: str, got: str, hint: str | None = None) -> InvalidArgumentError:
    return InvalidArgumentError(explain(f"{what} is no valid ONNX model", got=got, hint=hint))


def _check(skeleton: ModelProto, name: str, lists: _Lists) -> _Lists:
    """Raise for what is no valid model, having sorted its nodes; gives the long lists by their new numbers."""
    if is_valid(skeleton):
        return lists
    lists = {new: lists[old] for new, old in enumerate(sort_nodes(skeleton)) if old in lists}
    if is_valid(skeleton):
        return lists
    import onnx

    try:
        onnx.checker.check_model(as_onnx(skeleton))
    except (onnx.checker.ValidationError, UnicodeDecodeError) as error:
        # some versions of Python raise an empty message, others fail, where it was to have a name that is no UTF-8
        lines = [] if isinstance(error, UnicodeDecodeError) else str(error).strip().splitlines()
        raise _malformed(f"model {name!r}", lines[0] if lines else "a name that is no UTF-8") from error
    return lists


def _file_nbytes(parsed: _Parsed, constants: Mapping[str, Any], tensors: Iterable[tuple[str, TensorProto]]) -> int:
    """Size of the constants; of a file at most its own and that of files beside it, however often they are named."""
    own = sum(int(value.nbytes) for value in constants.values())
    if parsed.folder is None:
        return own
    entries = (entry for _, tensor in tensors for entry in tensor.external_data[:])
    places = {entry.value for entry in entries if entry.key == "location"}
    assert parsed.data is not None  # a file
    return min(own, len(parsed.data) + sum(int((parsed.folder.path / place).stat().st_size) for place in places))


def _dense(sparse: SparseTensorProto, bounds: Bounds) -> Any:
    """A sparse tensor as an array, read-only."""
    values, indices = (np.asarray(_constant(tensor, None)) for tensor in (sparse.values, sparse.indices))
    name, dims = sparse.values.name, tuple(sparse.dims)
    what = f"sparse tensor {name!r}"
    bounds.spend(prod(dims) * values.itemsize, f"{what}: as a dense one, it")
    places = indices.reshape(len(values), -1) if indices.ndim == 2 else indices.reshape(-1, 1)
    bases = dims if indices.ndim == 2 else (prod(dims),)
    if (
        min(dims, default=0) < 0
        or places.shape != (len(values), len(bases))
        or not np.all((places >= 0) & (places < bases))
    ):
        raise _malformed(what, f"indices of shape {indices.shape} for {len(values)} elements of {dims}")
    dense = np.zeros(dims, values.dtype)
    dense.reshape(bases)[tuple(places.T)] = values
    dense.setflags(write=False)
    return dense


def _skeleton(
    proto: ModelProto,
    tensors: Sequence[tuple[str, TensorProto]],
    nodes: list[NodeProto],
    folder: _Folder | None,
    bounds: Bounds,
    lists: _Lists,
) -> ModelProto:
    """The model with its tensors turned into inputs of the nodes: small enough to be copied, checked and inlined.

    Long lists that nodes still have are left out and added to `lists`, but beside functions, which change numbers.
    """
    skeleton = type(proto)()
    for entry, value in proto.ListFields():
        if entry.name == "graph":
            continue
        if entry.is_repeated:
            getattr(skeleton, entry.name).extend(value)
        else:
            setattr(skeleton, entry.name, value)
    graph = skeleton.graph
    graph.name = proto.graph.name
    for number, node in enumerate(() if proto.functions else nodes):
        nodes[number], found = without_lists(node)
        if found:
            lists[number] = found
    graph.node.extend(nodes)
    _move_contributed(skeleton)
    graph.sparse_initializer.extend(proto.graph.sparse_initializer)
    # the checker refuses a Constant that is called as an input
    names = {tensor.name for tensor in proto.graph.initializer}
    graph.input.extend([info for info in proto.graph.input if info.name not in names])
    # the checker wants types and shapes; nobody asks for those of constants, and those of outputs are inferred
    for info in graph.input:
        if info.type.HasField("tensor_type"):
            info.type.tensor_type.shape.SetInParent()
    for infos, name, elem_type in (
        *((graph.input, name, tensor.data_type) for name, tensor in tensors),
        *((graph.output, info.name, TensorProto.FLOAT) for info in proto.graph.output),
    ):
        tensor_type = infos.add(name=name).type.tensor_type
        tensor_type.elem_type = elem_type
        tensor_type.shape.SetInParent()
    for tensor in _inner_tensors(graph):
        if tensor.data_location == TensorProto.EXTERNAL:
            content = _constant(tensor, folder)
            bounds.spend(content.nbytes, f"tensor {tensor.name!r}: read from another file, it")
            _hold(tensor, np.asarray(content))
        else:
            bounds.left_nbytes += tensor.ByteSize()  # what branches hold is the file's, as are other constants
    own: ModelProto = as_own(skeleton)
    return own


def _hold(tensor: TensorProto, content: Any) -> None:
    """Let a tensor whose content lies in another file have it itself."""
    del tensor.external_data[:]
    tensor.data_location = TensorProto.DEFAULT
    tensor.raw_data = content.tobytes()


def _move_contributed(skeleton: ModelProto) -> None:
    """Put nodes that ONNX Runtime writes under ONNX's domain, which has no such ops in this opset, under its own."""
    opset = max([entry.version for entry in skeleton.opset_import if entry.domain in ("", "ai.onnx")], default=1)
    kinds = {node.op_type for node in skeleton.graph.node}
    contributed = {name for name, introduced in _CONTRIBUTED.items() if introduced is None or opset < introduced}
    if kinds.isdisjoint(contributed | CONTROL_FLOW):
        return
    moved = [node for node in _inner_nodes(skeleton.graph.node) if node.op_type in contributed and not node.domain]
    for node in moved:
        node.domain = "com.microsoft"
    if moved and not any(entry.domain == "com.microsoft" for entry in skeleton.opset_import):
        skeleton.opset_import.add(domain="com.microsoft", version=1)


_CONTRIBUTED = {"LayerNormalization": _INTRODUCED["LayerNormalization"], "SimplifiedLayerNormalization": None}
"""Op -> the opset in which ONNX took it over, if it did."""


def _inner_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Tensors in attributes and in the graphs of attributes."""
    for node in _inner_nodes(graph.node):
        for attribute in node.attribute[:]:
            tensors = attribute.tensors[:] if attribute.tensors else []
            yield from [attribute.t, *tensors] if attribute.HasField("t") else tensors
            for inner in graphs_of(attribute):
                yield from inner.initializer


def _constant(tensor: TensorProto, folder: _Folder | None) -> Any:
    """The content of a tensor, read-only."""
    _check_tensor(tensor)
    try:
        if tensor.data_location == TensorProto.EXTERNAL:
            array = _external(tensor, folder)
        elif tensor.HasField("raw_data") and tensor.data_type in WHOLE_BYTES and sys.byteorder == "little":
            data = tensor.raw_data
            array = _raw(tensor, data, 0, len(data))
        elif tensor.HasField("raw_data") and tensor.data_type in NIBBLES and prod(tensor.dims):
            data = tensor.raw_data
            return _nibbles(tensor, data, 0, len(data))
        else:
            array = to_array(tensor)
    except InvalidArgumentError:
        raise
    except (ValueError, TypeError, OSError) as error:
        raise _malformed(f"tensor {tensor.name!r}", str(error)) from error
    if not isinstance(array, Nibbles):
        array.setflags(write=False)
    return array


_BITS = {"INT4": 4, "UINT4": 4, "FLOAT4E2M1": 4, "INT2": 2, "UINT2": 2}
_PER_BYTE = {value: 8 // _BITS[name] for name, value in TensorProto.DataType.items() if name in _BITS}
"""Elements of types of less than a byte; those of two bits came with onnx 1.20."""


def _external(tensor: TensorProto, folder: _Folder | None) -> Any:
    """The content of a tensor in an external file."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    what = f"external data of tensor {tensor.name!r}: file {location!r}"
    if folder is None:
        raise InvalidArgumentError(
            explain(f"{what} cannot be found from bytes or a ModelProto", hint="load the model by its path"),
            tensor_name=tensor.name,
            location=location,
        )
    path = _find_beside(folder.path, location, what, tensor.name)
    raw_type = numpy_type(tensor.data_type)
    count, per_byte = prod(tensor.dims), _PER_BYTE.get(tensor.data_type, 1)
    offset, nbytes = int(entries.get("offset", 0)), -(-count * raw_type.itemsize // per_byte)
    file_nbytes = path.stat().st_size
    if offset < 0 or file_nbytes < offset + nbytes:
        raise _bad_external(
            f"{what} is too short", tensor.name, location,
            accepted=f"{offset + nbytes} bytes", got=f"{file_nbytes} bytes",
        )  # fmt: skip
    if not 0 <= nbytes <= int(entries.get("length", nbytes)):
        raise _bad_external(f"{what}: length", tensor.name, location, accepted=nbytes, got=entries["length"])
    if not nbytes:
        return np.empty(tuple(tensor.dims), raw_type)
    data = folder.read(path, offset, nbytes)
    if tensor.data_type in NIBBLES:
        return _nibbles(tensor, data, 0, nbytes)
    if per_byte > 1:
        return to_array(TensorProto(data_type=tensor.data_type, dims=tensor.dims, raw_data=data.tobytes()))
    return data.view(raw_type).reshape(tuple(tensor.dims))


def _bad_external(what: str, tensor_name: str, location: str, **facts: Any) -> InvalidArgumentError:
    return InvalidArgumentError(explain(what, **facts), tensor_name=tensor_name, location=location)


def _find_beside(folder: Path, location: str, what: str, tensor_name: str) -> Path:
    """A regular file in a folder or below; links that lead out of it are none."""
    path = (folder / location).resolve() if location and "\0" not in location else folder
    if not path.is_relative_to(folder) or Path(location).is_absolute():
        accepted = f"a relative path to a file in {str(folder)!r}"
        raise _bad_external(
            f"{what} lies outside the model's folder", tensor_name, location, accepted=accepted, got=str(path)
        )
    if not path.exists():
        raise _bad_external(f"{what} is missing", tensor_name, location, accepted=str(path), got="no file")
    if not path.is_file():
        accepted, got = "a regular file", "a folder, a device or a pipe"
        raise _bad_external(f"{what} is no file", tensor_name, location, accepted=accepted, got=got)
    return path
