"""Computes nodes ahead of time, where everything that they read is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.errors import InvalidArgumentError, UnsupportedError, explain

from .build import Value
from .control import CONTROL_FLOW
from .host import make_host_function
from .source import captured_names, label_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from onnx import NodeProto

    from graphpool.runtime.model_form import HostFunction

    from .source import OnnxModel

__all__ = ["KEPT", "compute", "find_host_function", "fold_constants"]

_RANDOM = frozenset({"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
                     "RandomUniformLike", "Dropout"})  # fmt: skip
KEPT = _RANDOM | {"DequantizeLinear", "MatMulNBits"}
"""Ops that are not computed ahead: random ones, and those that would blow a quantised weight up."""


def find_host_function(
    source: OnnxModel,
    node: NodeProto,
    inputs: Sequence[Value | None],
    captured: Mapping[str, Value],
    given: Sequence[Value] = (),
    results: Sequence[Value] = (),
) -> HostFunction:
    """`make_host_function`, with an error that names the node.

    Raises
    ------
    UnsupportedError
        Nothing runs the op.
    """
    try:
        return make_host_function(source, node, inputs, captured, given, results)
    except Exception as error:
        label = label_of(node)
        what = f"node {label!r}: nothing runs {node.op_type} of domain {node.domain or 'ai.onnx'!r}"
        raise UnsupportedError(
            explain(what, got=str(error).strip().splitlines()[0]), node=label, op_type=node.op_type
        ) from error


def compute(
    source: OnnxModel, node: NodeProto, inputs: Sequence[Value | None], captured: Mapping[str, Value]
) -> list[Any]:
    """The contents of a node's outputs, None for those without a name.

    Raises
    ------
    InvalidArgumentError
        The node fails on its inputs.
    UnsupportedError
        Nothing runs the op.
    """
    function = find_host_function(source, node, inputs, captured)
    names = [name for name in node.output if name]
    try:
        contents = iter(function([], [None] * len(names)))
    except Exception as error:
        label = label_of(node)
        what = f"node {label!r} ({node.op_type}) cannot be computed"
        raise InvalidArgumentError(explain(what, got=f"{type(error).__name__}: {error}"), node=label) from error
    return [_frozen(next(contents)) if name else None for name in node.output]


def _frozen(content: Any) -> Any:
    if isinstance(content, (np.ndarray, np.generic)):
        content = np.require(content, requirements=["C", "A"])
        content.flags.writeable = False
    return content


def fold_constants(
    source: OnnxModel, nodes: Sequence[NodeProto], constants: Mapping[str, Any]
) -> tuple[list[NodeProto], dict[str, Any]]:
    """The nodes that depend on the model's inputs, and the constants with what the others compute."""
    left: list[NodeProto] = []
    values = {name: Value(content=content) for name, content in constants.items()}
    for node in nodes:
        read = [name for name in (*node.input, *captured_names(node)) if name]
        if node.op_type in KEPT or node.op_type in CONTROL_FLOW or not all(name in values for name in read):
            left.append(node)
            continue
        captured = {name: values[name] for name in captured_names(node)}
        contents = compute(source, node, [values[name] if name else None for name in node.input], captured)
        found = zip(node.output, contents, strict=True)
        values |= {name: Value(content=content) for name, content in found if name}
    return left, {name: value.content for name, value in values.items()}
