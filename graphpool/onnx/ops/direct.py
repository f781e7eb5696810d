"""Ops that are one of our kinds: their converters follow from the schemas.

A kind of the extension table is ONNX's op of that name, so it needs no entry here; `_NAMES` lists oneDNN's kinds that
are ops too. An op with a form of its own (Slice, Pad) has a converter in another module, which comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphpool.graph.schema import EXTENSIONS, get_schema
from graphpool.onnx.validity import knows_op

if TYPE_CHECKING:
    from collections.abc import Callable

    from graphpool.graph.schema import Attribute
    from graphpool.onnx.build import NodeView, Value

_NAMES = {
    "Abs": "Abs", "Add": "Add", "Div": "Divide", "Elu": "Elu", "Exp": "Exp", "GreaterOrEqual": "GreaterEqual",
    "HardSigmoid": "HardSigmoid", "HardSwish": "HardSwish", "LeakyRelu": "LeakyReLU", "LessOrEqual": "LessEqual",
    "Log": "Log", "Mish": "Mish", "Mul": "Multiply", "Reciprocal": "Reciprocal", "Relu": "ReLU", "Round": "Round",
    "Sigmoid": "Sigmoid", "Softplus": "SoftPlus", "Sqrt": "Sqrt", "Sub": "Subtract", "Tanh": "Tanh",
}  # fmt: skip

KINDS: dict[str, str] = {**{row.kind: row.kind for row in EXTENSIONS if knows_op(row.kind)}, **_NAMES}
"""Op -> kind."""

_DEFAULTS = {"Elu": {"alpha": 1.0}, "LeakyReLU": {"alpha": 0.01}, "HardSigmoid": {"alpha": 0.2, "beta": 0.5}}
"""What ONNX takes for attributes that oneDNN requires."""

_RENAMED = {"keep_dims": "keepdims"}
"""Our name of an attribute -> ONNX's."""


def _convert(kind: str) -> Callable[[NodeView], Any]:
    """A converter: inputs in order, but for those that are attributes of ours, which must be known."""
    schema = get_schema(kind)
    attributes = schema.attributes.values()
    content = {item.onnx_input for item in attributes}
    ports = [k for k in range(len(schema.inputs) + len(content)) if k not in content][: len(schema.inputs)]
    last_required = ports[min(schema.input_counts) - 1]
    fixed = {name: next(iter(types)) for name, types in schema.types.items() if len(types) == 1}

    def convert(n: NodeView) -> Value | list[Value]:
        inputs = [n[k] for k in ports if k <= last_required or n.has(k)]
        if "auto_broadcast" in schema.attributes:
            inputs = _broadcast(n, *inputs)
        types = {port.type: value.dtype for port, value in zip(schema.inputs, inputs, strict=False)} | fixed
        dtypes = [types.get(port.type, inputs[0].dtype) for port in schema.outputs]
        given = {item.name: value for item in attributes if (value := _attribute(n, item)) is not None}
        results = n.emit_several(kind, dtypes, *inputs, **_DEFAULTS.get(kind, {}) | given)
        return results if len(results) > 1 else results[0]

    return convert


def _attribute(n: NodeView, item: Attribute) -> Any:
    """The value of an attribute of ours; None where the node leaves it out."""
    name = _RENAMED.get(item.name, item.name)
    if item.onnx_input is None:
        value = n.attr(name)
        return bool(value) if item.kind == "bool" and value is not None else value
    numbers = n.ints(name, item.onnx_input)
    if numbers is None or item.kind == "s64[]":
        return numbers
    n.require(len(numbers) == 1, f"{name} is no single number")
    return numbers[0]


def _broadcast(n: NodeView, a: Value, b: Value) -> list[Value]:
    """Both inputs; before opset 7 the second one is shaped as its attributes say, to broadcast as NumPy does."""
    if n.opset >= 7 or not n.attr("broadcast", 0):
        n.require(n.opset >= 7 or a.shape == b.shape, "other shapes without broadcast")
        return [a, b]
    axis = n.attr("axis", len(a.shape) - len(b.shape)) % max(len(a.shape), 1)
    return [a, n.reshape(b, (*b.shape, *[1] * (len(a.shape) - axis - len(b.shape))))]


CONVERTERS: dict[str, Callable[[NodeView], Any]] = {op: _convert(kind) for op, kind in KINDS.items()}

DECIDING_PORTS: dict[str, tuple[int, int]] = {
    op: (item.onnx_input, item.onnx_input + 1)
    for op, kind in KINDS.items()
    for item in get_schema(kind).attributes.values()
    if item.onnx_input is not None
}
"""Op -> inputs whose content must be known: from one to before another."""
