"""Graphs as JSON, in the format that oneDNN Graph writes with ``ONEDNN_GRAPH_DUMP`` and that benchdnn reads.

    {"version", "engine_kind", "fpmath_mode", "fpmath_mode_apply_to_int", "input_ports", "output_ports",
     "graph": [{"id", "name", "kind", "attrs": {name: {"type", "value"}}, "inputs": [tensor], "outputs": [tensor]}]}
    tensor: {"id", "dtype", "shape", "stride", "layout_type", "property_type"}

A shape of one INT64_MIN says that the rank is not known, a stride of one INT64_MIN that strides were not given. Four
keys are ours, written only where the format could not tell two tensors apart: ``ndims`` of a vector of unknown length,
``layout_id`` and ``nbytes`` of an opaque tensor, which must be the size that the layout has here, and ``value`` of a
constant whose one element is known. Keys that are not named here are ignored.

A file is data from elsewhere: every field is checked, and what is wrong ends in one of graphpool's errors.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass

from ...errors import InvalidGraphError, brief, explain
from ...typing import UNKNOWN_DIM, LayoutType
from .._counter import Counter
from ..logical_tensor import MAX_ID, LogicalTensor
from ..op import Op
from ..schema import get_schema
from .apply_knobs import apply_knobs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from ...limits import Limits
    from ..graph import Graph
    from .knobs import Knobs

VERSION = "3.12.0"
"""Version of the format that is written: the oneDNN release whose reader knows all of it."""

KIND_ALIASES = {"BiasAddBackprop": "BiasAddBackward"}
"""Spellings in dumps of oneDNN -> ours."""

_UNKNOWN = [UNKNOWN_DIM]
_TYPES = {"bool": "bool", "s64": "s64", "f32": "f32", "string": "str", "s64[]": "s64[]", "f32[]": "f32[]"}
_dumps = Counter()


# ---- reading


@dataclass(frozen=True)
class GraphFile:
    """What a file says; the ops, in its order, need not satisfy their schemas yet."""

    engine_kind: str
    fpmath: str
    apply_to_int: bool
    ops: list[Op]

    def build(self, make_graph: type[Graph], engine_kind: str | None = None, knobs: Knobs | None = None) -> Graph:
        """The graph under knobs, of another engine kind if one is given; see `Graph.from_json`."""
        fpmath, to_int = (knobs and knobs.fpmath) or (self.fpmath, self.apply_to_int)
        graph = make_graph(self.engine_kind if engine_kind is None else engine_kind, fpmath=fpmath, apply_to_int=to_int)
        for op in self.ops if knobs is None else apply_knobs(self.ops, knobs):
            graph.add_op(op)
        return graph


def read_graph(path: str | os.PathLike[str], limits: Limits) -> GraphFile:
    """What a file of a graph says.

    Raises LimitError where it asks for more than `limits` allow, InvalidGraphError where it is no JSON or not of the
    format (the message says where), OSError, and what a tensor raises that breaks a rule.
    """
    content = _load(path, limits)
    records = _list(content, "graph", "the file")
    limits.check("nodes", len(records), "the number of ops")
    return GraphFile(
        _text(content, "engine_kind", "the file", "cpu"),
        _text(content, "fpmath_mode", "the file", "strict"),
        _text(content, "fpmath_mode_apply_to_int", "the file", "false") == "true",
        [_read_op(record, f'"graph"[{number}]', limits) for number, record in enumerate(records)],
    )


def _load(path: str | os.PathLike[str], limits: Limits) -> Mapping[str, Any]:
    """The file's top object; no more is read than the limit allows."""
    with Path(path).open("rb") as file:
        raw = file.read(limits.file_nbytes + 1)
    limits.check("file_nbytes", len(raw), "the length of the file")
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        got = f"{type(error).__name__}: {error}"
        raise InvalidGraphError(explain("file of a graph is no JSON", got=got)) from error
    return _object(content, "the file")


def _read_op(record: object, where: str, limits: Limits) -> Op:
    fields = _object(record, where)
    kind = _text(fields, "kind", where)
    attrs = _object(fields.get("attrs", {}), f"{where}: attrs")
    inputs, outputs = (
        [_read_tensor(tensor, f"{where}: {side}[{k}]") for k, tensor in enumerate(_list(fields, side, where))]
        for side in ("inputs", "outputs")
    )
    name = _text(fields, "name", where) if "name" in fields else None
    op = Op(_integer(fields, "id", where), KIND_ALIASES.get(kind, kind), inputs, outputs, name=name)
    return op.with_attrs({name: _read_attribute(entry, f"{where}: {name}", limits) for name, entry in attrs.items()})


def _read_attribute(record: object, where: str, limits: Limits) -> Any:
    """The value; whether it is what the op wants is for the schema to say."""
    fields = _object(record, where)
    kind = _text(fields, "type", where)
    value = fields.get("value")
    if isinstance(value, list | str):
        limits.check("text_nbytes" if isinstance(value, str) else "items", len(value), f"{where}: its length", where)
    if kind not in _TYPES:
        raise _refuse(f"{where}: type", ", ".join(_TYPES), kind)
    if kind != "bool":
        return value
    if value not in (0, 1):
        raise _refuse(f"{where}: value", "0 or 1", value)
    return bool(value)


def _read_tensor(record: object, where: str) -> LogicalTensor:
    fields = _object(record, where)
    layout = _text(fields, "layout_type", where, "strided")
    shape: list[Any] | None = _list(fields, "shape", where)
    strides: list[Any] | None = _list(fields, "stride", where) if layout == "strided" else None
    if shape == _UNKNOWN and "ndims" not in fields:
        shape = None
    if strides == _UNKNOWN or shape is None:
        strides = None
    for key, numbers in (("shape", shape), ("stride", strides)):
        if any(type(number) is not int for number in numbers or ()):
            raise _refuse(f'{where}: "{key}"', "integers", numbers)
    tensor = LogicalTensor(
        _integer(fields, "id", where),
        _text(fields, "dtype", where),
        shape,
        strides=strides,
        layout=layout,
        layout_id=_integer(fields, "layout_id", where) if "layout_id" in fields else None,
        property=_text(fields, "property_type", where, "undef"),
        value=fields.get("value"),
    )
    if tensor.layout is LayoutType.OPAQUE and tensor.is_shape_known:
        nbytes = tensor.nbytes
        if "nbytes" in fields and _integer(fields, "nbytes", where) != nbytes:
            raise _refuse(f'{where}: "nbytes"', f"{nbytes}, the size of layout {tensor.layout_id}", fields["nbytes"])
    return tensor


def _refuse(what: str, accepted: str, got: object) -> InvalidGraphError:
    return InvalidGraphError(explain(what, accepted=accepted, got=brief(got)))


def _object(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _refuse(where, "an object", value)
    return value


def _list(fields: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = fields.get(key)
    if not isinstance(value, list):
        raise _refuse(f'{where}: "{key}"', "a list", value)
    return value


def _text(fields: Mapping[str, Any], key: str, where: str, default: str | None = None) -> str:
    value = fields.get(key, default)
    if not isinstance(value, str):
        raise _refuse(f'{where}: "{key}"', "a string", value)
    return value


def _integer(fields: Mapping[str, Any], key: str, where: str) -> int:
    value = fields.get(key)
    if type(value) is not int or not 0 <= value <= MAX_ID:
        raise _refuse(f'{where}: "{key}"', "an integer from 0 to 2**64 - 1", value)
    return value


# ---- writing


def write_graph(graph: Graph, path: str | os.PathLike[str]) -> None:
    """Write a graph to a file; see `Graph.to_json`."""
    ops = graph.ops
    written = {tensor.id for op in ops for tensor in op.outputs}
    read = {tensor.id for op in ops for tensor in op.inputs}
    content = {
        "version": VERSION,
        "engine_kind": graph.engine_kind,
        "fpmath_mode": graph.fpmath,
        "fpmath_mode_apply_to_int": "true" if graph.fpmath_apply_to_int else "false",
        "input_ports": _unique(t.id for op in ops for t in op.inputs if t.id not in written),
        "output_ports": _unique(t.id for op in ops for t in op.outputs if t.id not in read),
        "graph": [_write_op(op) for op in ops],
    }
    Path(path).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def dump_graph(graph: Graph, folder: str) -> None:
    """Write a graph to a new file ``graph-<process>-<number>.json`` in a folder, which is made if it is missing."""
    Path(folder).mkdir(parents=True, exist_ok=True)
    write_graph(graph, Path(folder) / f"graph-{os.getpid()}-{_dumps.next()}.json")


def _unique(ids: Iterable[int]) -> list[int]:
    return list(dict.fromkeys(ids))


def _write_op(op: Op) -> dict[str, Any]:
    return {
        "id": op.id,
        "name": op.name,
        "kind": op.kind,
        "attrs": {name: _write_attribute(op, name, value) for name, value in op.attrs.items()},
        "inputs": [_write_tensor(tensor) for tensor in op.inputs],
        "outputs": [_write_tensor(tensor) for tensor in op.outputs],
    }


def _write_attribute(op: Op, name: str, value: Any) -> dict[str, Any]:
    kind = get_schema(op.kind).attributes[name].kind
    spelling = next(spelling for spelling, ours in _TYPES.items() if ours == kind)
    return {"type": spelling, "value": int(value) if kind == "bool" else value}


def _write_tensor(tensor: LogicalTensor) -> dict[str, Any]:
    shape = _UNKNOWN if tensor.shape is None else list(tensor.shape)
    strides = _UNKNOWN if tensor.strides is None else list(tensor.strides)
    record: dict[str, Any] = {
        "id": tensor.id,
        "dtype": tensor.dtype.value,
        "shape": shape,
        "stride": strides,
        "layout_type": tensor.layout.value,
        "property_type": tensor.property.value,
    }
    if tensor.shape is not None and shape == _UNKNOWN:
        record["ndims"] = 1
    if tensor.value is not None:
        record["value"] = tensor.value
    if tensor.layout is LayoutType.OPAQUE:
        record["layout_id"] = tensor.layout_id
        if tensor.is_shape_known:
            record["nbytes"] = tensor.nbytes
    return record
