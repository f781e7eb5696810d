"""Whether a model is valid for certain, told without the package onnx, whose checker is asked about all others.

What is asked is what that checker asks: that names are given once and before they are read, and that nodes have as
many inputs and outputs, and such attributes, as their operators define. What is rare is called unsure.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import NamedTuple

from .arrays import ELEMENT_FIELDS, numpy_type
from .op_table import NEWEST, OPS
from .proto import AttributeProto, TensorProto

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    _OpOf: TypeAlias = Callable[[str, str], "_Op | None"]

__all__ = ["is_valid", "knows_op"]

_NEWEST_IR = 14

_OWN_DOMAIN = "ai.onnx."
"""What domains of ONNX's own begin with, of which all operators have to be known."""

_SIGNS = {
    "f": AttributeProto.FLOAT, "i": AttributeProto.INT, "s": AttributeProto.STRING, "t": AttributeProto.TENSOR,
    "g": AttributeProto.GRAPH, "x": AttributeProto.SPARSE_TENSOR, "y": AttributeProto.TYPE_PROTO,
    "F": AttributeProto.FLOATS, "I": AttributeProto.INTS, "S": AttributeProto.STRINGS, "T": AttributeProto.TENSORS,
    "G": AttributeProto.GRAPHS, "X": AttributeProto.SPARSE_TENSORS, "Y": AttributeProto.TYPE_PROTOS,
}  # fmt: skip

_FIELDS: dict[int, frozenset[str]] = {
    kind: frozenset({field, "name", "type", "doc_string"})
    for kind, field in (
        (AttributeProto.FLOAT, "f"), (AttributeProto.INT, "i"), (AttributeProto.STRING, "s"),
        (AttributeProto.TENSOR, "t"), (AttributeProto.GRAPH, "g"), (AttributeProto.FLOATS, "floats"),
        (AttributeProto.INTS, "ints"), (AttributeProto.STRINGS, "strings"),
    )
}  # fmt: skip
"""Type of an attribute -> the fields that it may have; of others this module is unsure."""


class _Op(NamedTuple):
    """What a version of an operator takes: numbers of inputs and outputs, types of attributes, those that it needs.

    The first `named` inputs have names.
    """

    inputs: range
    named: int
    outputs: range
    attributes: Mapping[str, int]
    required: frozenset[str]


class _UnsureError(Exception):
    """Something that is not looked at here, or that is wrong."""


def knows_op(name: str) -> bool:
    """Whether ONNX's default domain has an operator of this name, in whatever version."""
    return ("ai.onnx", name) in _lines()


def is_valid(model: Any) -> bool:
    """Whether a model without initialisers is valid for certain. Cost: some microseconds a node."""
    try:
        _check_model(model)
    except (_UnsureError, RecursionError):
        return False
    return True


def _require(condition: object) -> None:
    if not condition:
        raise _UnsureError


def _check_model(model: Any) -> None:
    imports = {(entry.domain, entry.version) for entry in model.opset_import}
    versions = dict(imports)
    _require(3 <= model.ir_version <= _NEWEST_IR and versions and len(versions) == len(imports))
    _require(all(0 < version < 2**31 for version in versions.values()) and not {"", "ai.onnx"} <= versions.keys())
    if "ai.onnx" in versions:
        versions[""] = versions.pop("ai.onnx")
    _require(not model.functions and not model.training_info)
    _require(len({entry.key for entry in model.metadata_props}) == len(model.metadata_props))
    graph = model.graph
    for info in (*graph.input, *graph.output):
        _require(info.type.HasField("tensor_type"))
        tensor = info.type.tensor_type
        _require(tensor.elem_type and tensor.HasField("shape"))
    # not kept: blocks that stay among those of a load would keep whole arenas of Python's allocator
    _check_graph(graph, cache(partial(_op_in, versions)), frozenset(), model.ir_version > 3)


def _check_graph(graph: Any, op_of: _OpOf, outer: frozenset[str], may_own: bool) -> None:
    """`may_own`: whether initialisers need not be inputs, as they had to be once."""
    names = [*(info.name for info in graph.input), *(tensor.name for tensor in graph.initializer)]
    known = set(names)
    _require(graph.name and all(names) and len(known) == len(names) and known.isdisjoint(outer))
    _require(all(info.name for info in graph.output) and not graph.sparse_initializer)
    _require(may_own or not graph.initializer)
    for tensor in graph.initializer:
        _check_tensor(tensor)
    known |= outer
    for node in graph.node[:]:
        inputs, outputs, domain, op_type = node.input[:], node.output[:], node.domain, node.op_type
        if not op_type or not (inputs or outputs):
            raise _UnsureError
        if not known.issuperset(inputs) and not all(name in known for name in inputs if name):
            raise _UnsureError
        op = op_of(domain, op_type)
        if op is not None:
            are_counted = len(inputs) in op.inputs and len(outputs) in op.outputs
            if not (are_counted and all(inputs[: op.named]) and all(outputs[: op.outputs.start])):
                raise _UnsureError
        _check_attributes(node, op, op_of, known, may_own)
        given = [name for name in outputs if name]
        if not known.isdisjoint(given) or len(set(given)) != len(given):
            raise _UnsureError
        known.update(given)
    _require(all(info.name in known and info.name not in outer for info in graph.output))


def _check_attributes(node: Any, op: _Op | None, op_of: _OpOf, known: set[str], may_own: bool) -> None:
    seen: set[str] = set()
    for item in node.attribute[:]:
        name, kind = item.name, item.type
        if not name or name in seen or (op is not None and op.attributes.get(name) != kind):
            raise _UnsureError
        if kind not in _FIELDS or not {entry.name for entry, _ in item.ListFields()} <= _FIELDS[kind]:
            raise _UnsureError
        seen.add(name)
        if kind == AttributeProto.TENSOR:
            _check_tensor(item.t)
        elif kind == AttributeProto.GRAPH:
            _check_graph(item.g, op_of, frozenset(known), may_own)
    _require(op is None or op.required <= seen)


def _check_tensor(tensor: Any) -> None:
    """Only of contents that lie in the message as bytes, or as the elements of the most frequent types."""
    count, elem_type = 1, tensor.data_type
    for dim in tensor.dims[:]:
        _require(dim >= 0)
        count *= dim
    field = ELEMENT_FIELDS.get(elem_type)
    fields = {entry.name for entry, _ in tensor.ListFields()} - _OF_TENSOR
    if fields == {"raw_data"}:
        _require(elem_type in _RAW and len(tensor.raw_data) == count * numpy_type(elem_type).itemsize)
    elif fields or count or not elem_type:
        _require(fields == {field} and len(getattr(tensor, field or "")) == count)


_OF_TENSOR = frozenset({"dims", "data_type", "name", "doc_string"})
_RAW = frozenset({
    TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.INT64, TensorProto.INT32, TensorProto.INT16,
    TensorProto.INT8, TensorProto.UINT64, TensorProto.UINT32, TensorProto.UINT16, TensorProto.UINT8, TensorProto.BOOL,
})  # fmt: skip


# ---- the table


@cache
def _lines() -> dict[tuple[str, str], str]:
    """What the table has of each operator, by domain and name."""
    found = (line.split(" ", 2) for line in OPS.strip().split("\n"))
    return {(domain, name): text for domain, name, text in found}


def _op_in(versions: Mapping[str, int], domain: str, name: str) -> _Op | None:
    """What an operator takes in opsets; None in domains of others. Raises where these or the table do not tell."""
    _require(domain in versions)
    version = versions[domain]
    if domain not in NEWEST:
        _require(not domain.startswith(_OWN_DOMAIN))
        return None
    _require(0 < version <= NEWEST[domain])
    text = _lines().get((domain or "ai.onnx", name))
    _require(text is not None)
    assert text is not None  # required above
    known = [entry.split(":") for entry in text.split(" ")]
    entry = next((parts for parts in reversed(known) if int(parts[0]) <= version), None)
    _require(entry is not None and entry[1] != "-")
    assert entry is not None  # required above
    _, inputs, outputs, listed = entry
    attributes = [item.split("=") for item in listed.split(",") if item]
    required = frozenset(key for key, sign in attributes if sign.endswith("!"))
    counts = _counts(inputs.replace("?", ""))
    named = 0 if "?" in inputs else counts.start
    return _Op(counts, named, _counts(outputs), {key: _SIGNS[sign[0]] for key, sign in attributes}, required)


def _counts(text: str) -> range:
    least, most = text.split("-")
    return range(int(least), int(most or 2**31 - 2) + 1)
