"""What a shape rule or check is asked about, and how an error about an op is worded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias

from graphpool.errors import GraphpoolError, InvalidOpError, InvalidShapeError, explain
from graphpool.graph.logical_tensor import describe_shape
from graphpool.typing import UNKNOWN_DIM

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphpool.graph.op import Op

    from .model import OpSchema

Shape: TypeAlias = tuple[int, ...] | None
"""Dimensions, of which some may be UNKNOWN_DIM; None when even the rank is unknown."""


def refuse(
    op: Op,
    what: str,
    *,
    error: type[GraphpoolError] = InvalidOpError,
    accepted: object = None,
    got: object = None,
    hint: str | None = None,
    **fields: Any,
) -> NoReturn:
    """Raise `error` about `op`, with ``op_id`` and ``op_kind`` among its fields."""
    message = explain(f"{op.label}: {what}", accepted=accepted, got=got, hint=hint)
    raise error(message, op_id=op.id, op_kind=op.kind, **fields)


class ShapeQuery:
    """One question to a shape rule: the op, the shapes of its inputs, the constant inputs whose content is known.

    `shapes` has one entry for each input that the op has; `values` is input index -> content.
    """

    __slots__ = ("op", "schema", "shapes", "values")

    def __init__(self, schema: OpSchema, op: Op, shapes: Sequence[Shape], values: Mapping[int, Any]) -> None:
        self.schema, self.op, self.shapes, self.values = schema, op, shapes, values

    @property
    def attrs(self) -> Mapping[str, Any]:
        """The op's complete attributes."""
        return self.op.attrs

    @property
    def noutputs(self) -> int:
        """Outputs that the op has."""
        return len(self.op.outputs)

    def shape(self, index: int) -> Shape:
        """Shape of an input; None also when the op does not have that input."""
        return self.shapes[index] if index < len(self.shapes) else None

    def sizes(self, index: int) -> tuple[int, ...] | None:
        """Content of a 1-D integer input, where it is known."""
        value = self.values.get(index)
        return None if value is None else tuple(int(item) for item in value.reshape(-1))

    def name(self, index: int) -> str:
        """How messages name an input: ``input "bias" (tensor 4)``."""
        return f'input "{self.schema.input_port(index).name}" (tensor {self.op.inputs[index].id})'

    def fail(
        self, what: str, *, port: int | None = None, error: type[GraphpoolError] = InvalidShapeError,
        accepted: object = None, got: object = None, **fields: Any,
    ) -> NoReturn:  # fmt: skip
        """Raise InvalidShapeError; `port` is the index of the input at fault, which the message then names."""
        if port is not None and port < len(self.op.inputs):
            what = f"{self.name(port)} {what}"
            fields |= {"port": self.schema.input_port(port).name, "tensor_id": self.op.inputs[port].id}
        refuse(self.op, what, error=error, accepted=accepted, got=got, **fields)

    def dim(self, port: int, axis: int, got: int, expected: int, why: str) -> int:
        """The dimension that two sources agree on; either may be unknown. InvalidShapeError if they differ."""
        if got == UNKNOWN_DIM:
            return expected
        if expected not in (UNKNOWN_DIM, got):
            found = f"{got} in shape {describe_shape(self.shape(port))}"
            what, accepted = f"has the wrong dimension {axis}", f"{expected} ({why})"
            self.fail(what, port=port, accepted=accepted, got=found, dim=axis, expected=expected)
        return got

    def rank(self, port: int, ndim: int, accepted: str, ok: bool) -> None:
        """Raise InvalidShapeError unless `ok`: input `port` of rank `ndim` does not fit."""
        if not ok:
            found = f"{ndim}-D {describe_shape(self.shape(port))}"
            self.fail("has the wrong rank", port=port, accepted=accepted, got=found, ndim=ndim)

    def match(self, port: int, expected: Shape, why: str) -> Shape:
        """The shape that input `port` and `expected` agree on, each filling the other; else InvalidShapeError."""
        got = self.shape(port)
        if got is None or expected is None or got == expected:
            return expected if got is None else got
        self.rank(port, len(got), f"{len(expected)}-D ({why})", len(got) == len(expected))
        pairs = enumerate(zip(got, expected, strict=True))
        return tuple(self.dim(port, axis, dim, want, why) for axis, (dim, want) in pairs)

    def axis(self, name: str, value: int, ndim: int) -> int:
        """Attribute `name` as a non-negative axis of a tensor of rank `ndim`; InvalidShapeError out of range."""
        if not -ndim <= value < ndim:
            accepted = f"{-ndim} .. {ndim - 1} for a {ndim}-D input"
            self.fail(f'attribute "{name}" is out of range', accepted=accepted, got=value, attribute=name, ndim=ndim)
        return value + ndim if value < 0 else value
