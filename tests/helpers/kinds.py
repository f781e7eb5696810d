"""Elementwise kinds by what their schemas say, so that tests find a new one without being told."""

from __future__ import annotations

from graphpool.graph.schema import SCHEMAS, Attribute
from graphpool.graph.schemas import rules_basic as rules

_ELEMENTWISE = {
    rule: tuple(
        kind for kind, row in SCHEMAS.items() if "element-wise" in row.category.lower() and row.infer is rule
    )
    for rule in (rules.identity, rules.same_inputs, rules.binary)
}  # fmt: skip
UNARY, GRADIENTS, BINARY = _ELEMENTWISE.values()
"""Functions of one tensor, gradients of some of them, functions of two tensors that broadcast; in the table's order."""

NUMBERS = {"alpha": 0.5, "beta": 2.0, "min": 0.0, "max": 6.0}
"""Values of required attributes."""


def accepted(kind: str) -> list[str]:
    """Types of the first input."""
    row = SCHEMAS[kind]
    return sorted(str(dtype) for dtype in row.types[row.inputs[0].type])


def fixed_result(kind: str) -> str | None:
    """The type of a result that is not that of an input, as that of a comparison."""
    row = SCHEMAS[kind]
    variable = row.outputs[0].type
    alone = len(row.types[variable]) == 1 and variable not in {port.type for port in row.inputs}
    return str(next(iter(row.types[variable]))) if alone else None


def is_wide(kind: str) -> bool:
    """Whether the kind takes more than f32 and 16-bit floats."""
    return bool(set(accepted(kind)) - {"f32", "bf16", "f16"})


def values(attribute: Attribute) -> list[object]:
    """Some values of an attribute of an elementwise kind."""
    return list(attribute.choices) or {"bool": [False, True], "f32": [NUMBERS.get(attribute.name, 0.5)]}[attribute.kind]


def required(kind: str) -> dict[str, object]:
    """One value of each attribute that must be given."""
    return {name: values(item)[0] for name, item in SCHEMAS[kind].attributes.items() if item.required}
