"""Nodes in place of one: bodies of ONNX's functions, and graphs of control flow with what they see."""

from __future__ import annotations

from collections import ChainMap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import onnx.inliner
from onnx import defs, helper

from .build import Value
from .node import Node, names_read

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, MutableMapping, Sequence

    from onnx import TypeProto

    from .node import Subgraph

Path: TypeAlias = tuple[Any, ...]
"""Place of a node in the model: number of the node, then of the iteration or branch, then of the node in it, ..."""


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


def enter_graph(graph: Subgraph, outer: Scope, given: Sequence[Value], path: Path) -> Scope:
    """A scope for a graph of an attribute, which sees its inputs, its initialisers and everything outside."""
    own = {name: Value(content=content) for name, content in graph.constants.items()}
    own |= dict(zip(graph.inputs, given, strict=False))
    used = names_read(graph.nodes, graph.outputs)
    return Scope(graph.nodes, ChainMap(own, outer.values), graph.outputs, used, path)


def function_nodes(node: Node, types: Sequence[TypeProto | None], opsets: Mapping[str, int]) -> list[Node] | None:
    """The nodes of which ONNX's definition of an op consists, for inputs of these types; None for a primitive op.

    Their inputs and outputs have the node's names. Cost: about 50 microseconds, and as many for each node.
    """
    function = _definition(node, types, opsets)
    if function is None:
        return None
    call = onnx.NodeProto()
    call.CopyFrom(node.proto)
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


def _definition(node: Node, types: Sequence[TypeProto | None], opsets: Mapping[str, int]) -> onnx.FunctionProto | None:
    """ONNX's definition of an op as a function, in the newest version that the opset has."""
    wanted = opsets.get(node.domain, 1)
    try:
        schema: Any = defs.get_schema(node.op_type, wanted, node.domain)
    except defs.SchemaError:
        return None
    if schema.has_function:
        versions, given = schema.function_opset_versions, None
    elif schema.has_context_dependent_function:
        versions = schema.context_dependent_function_opset_versions
        given = [b"" if type_ is None else type_.SerializeToString() for type_ in types]
    else:
        return None
    version = max((v for v in versions if v <= opsets.get("", wanted)), default=None)
    if version is None:
        return None
    if given is None:
        text = schema.get_function_with_opset_version(version)
    else:
        text = schema.get_context_dependent_function_with_opset_version(version, node.proto.SerializeToString(), given)
    function = onnx.FunctionProto()
    function.ParseFromString(text)
    return function
