"""A row of the op table and what it can do: complete attributes, validate an op, infer shapes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NoReturn

from graphpool._dataclasses import dataclass, field
from graphpool.errors import InvalidDataTypeError, InvalidOpError, InvalidShapeError, explain
from graphpool.graph.logical_tensor import describe_shape
from graphpool.typing import MAX_NDIM, UNKNOWN_DIM, DataType

from .query import Shape, ShapeQuery, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphpool.graph.logical_tensor import LogicalTensor
    from graphpool.graph.op import Op

    from .attributes import Attribute, AttributeValue


def closest(name: str, names: Sequence[str]) -> str | None:
    """A hint that names the likeliest spellings, or None."""
    by_lower = {candidate.lower(): candidate for candidate in names}
    import difflib  # for messages alone

    found = difflib.get_close_matches(name.lower(), by_lower, n=3, cutoff=0.6)
    return "did you mean " + " or ".join(f'"{by_lower[match]}"' for match in found) + "?" if found else None


@dataclass(frozen=True, slots=True)
class Port:
    """A numbered input or output: its name, and the type variable that its data type binds."""

    name: str
    type: str


@dataclass(frozen=True, eq=False)
class OpSchema:
    """What one kind of op accepts, and the shapes that it gives.

    Attributes
    ----------
    kind : str
        oneDNN's spelling.
    category, doc : str
    inputs, outputs : tuple of Port
        Optional ports are the last ones; a variadic kind repeats its last port.
    input_counts, output_counts : frozenset of int or range
        Permitted numbers of ports.
    types : mapping of str to frozenset of DataType
        Type variable -> what it may be; ports that share a variable must agree. An empty set accepts everything, and
        does not bind.
    attributes : mapping of str to Attribute
    infer : callable
        The shape rule, ``(ShapeQuery) -> list of Shape``; its docstring says it in words.
    checks : tuple of callable
        Further rules, ``(Op) -> None``, which raise; their docstrings say them in words.
    commutative : tuple of (int, int)
        Pairs of inputs that may be swapped.
    differences : str
        How graphpool differs from oneDNN here; empty where it does not.

    Notes
    -----
    Immutable; usable from any thread. Two schemas are equal only if they are the same object.
    Source: the table was read off oneDNN 3.14's schema registry and documentation.
    """

    kind: str
    category: str
    doc: str
    inputs: tuple[Port, ...]
    input_counts: frozenset[int] | range
    outputs: tuple[Port, ...]
    output_counts: frozenset[int] | range
    types: Mapping[str, frozenset[DataType]]
    attributes: Mapping[str, Attribute]
    infer: Callable[[ShapeQuery], Sequence[Shape]]
    checks: tuple[Callable[[Op], None], ...] = ()
    commutative: tuple[tuple[int, int], ...] = ()
    differences: str = ""
    _defaults: dict[str, AttributeValue] = field(init=False, repr=False)
    _required: tuple[str, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        attributes = self.attributes.values()
        defaults = {item.name: item.default for item in attributes if item.default is not None}
        object.__setattr__(self, "_defaults", defaults)
        object.__setattr__(self, "_required", tuple(item.name for item in attributes if item.required))

    def input_port(self, index: int) -> Port:
        """The port of an input; a variadic kind repeats its last one."""
        return self.inputs[min(index, len(self.inputs) - 1)]

    def output_port(self, index: int) -> Port:
        """The port of an output; a variadic kind repeats its last one."""
        return self.outputs[min(index, len(self.outputs) - 1)]

    def complete(self, op_label: str, attrs: Mapping[str, Any]) -> dict[str, AttributeValue]:
        """An op's attributes, vetted, in the stored form of `Attribute`, with the defaults filled in.

        Optional ones without a default are left out. Raises InvalidOpError for an unknown attribute (the message names
        the closest ones), a wrong kind or value, or a missing one.
        """
        done = self._defaults.copy()
        for name, value in attrs.items():
            attribute = self.attributes.get(name)
            if attribute is None:
                self._refuse_attribute(op_label, name)
            done[name] = attribute.convert(value, op_label, self.kind)
        for name in self._required:
            if name not in done:
                accepted = self.attributes[name].accepted
                what = explain(f'{op_label}: attribute "{name}" is required', accepted=accepted, got="nothing")
                raise InvalidOpError(what, op_kind=self.kind, attribute=name)
        return done

    def _refuse_attribute(self, op_label: str, name: str) -> NoReturn:
        names = tuple(self.attributes)
        what = f'{op_label}: {self.kind} has no attribute "{name}"'
        accepted = ", ".join(names) or "no attributes"
        raise InvalidOpError(
            explain(what, accepted=accepted, hint=closest(name, names)), op_kind=self.kind, attribute=name
        )

    def validate(self, op: Op) -> None:
        """Vet an op whose attributes are complete: input count and types, output count and types, further checks.

        Types bind from left to right. Raises InvalidOpError, InvalidDataTypeError or InvalidShapeError.
        """
        bound: dict[str, DataType] = {}
        self._check_ports(op, "input", self.inputs, self.input_counts, op.inputs, bound)
        self._check_ports(op, "output", self.outputs, self.output_counts, op.outputs, bound)
        for check in self.checks:
            check(op)

    def _check_ports(
        self, op: Op, side: str, ports: tuple[Port, ...], counts: frozenset[int] | range,
        tensors: Sequence[LogicalTensor], bound: dict[str, DataType],
    ) -> None:  # fmt: skip
        count = len(tensors)
        if count not in counts:
            self._refuse_count(op, side, ports, counts, count)
        if count > len(ports):
            ports = ports + ports[-1:] * (count - len(ports))
        for port, tensor in zip(ports, tensors, strict=False):
            variable, dtype = port.type, tensor.dtype
            want = bound.get(variable)
            if want is dtype:
                continue
            accepted = self.types[variable]
            if want is None and dtype in accepted:
                bound[variable] = dtype
            elif accepted:
                self._refuse_type(op, side, port, tensor, want)

    def _refuse_count(
        self, op: Op, side: str, ports: tuple[Port, ...], counts: frozenset[int] | range, got: int
    ) -> NoReturn:
        what = f"wrong number of {side}s"
        names = ", ".join(port.name for port in ports) or "none"
        accepted = format_counts(counts)
        refuse(op, what, accepted=f"{accepted} ({names})", got=got, side=side, expected=accepted)

    def _refuse_type(self, op: Op, side: str, port: Port, tensor: LogicalTensor, want: DataType | None) -> NoReturn:
        what = f'{side} "{port.name}" (tensor {tensor.id}) has a data type that does not fit'
        if want is None:
            accepted, hint = ", ".join(sorted(self.types[port.type])), None
        else:
            accepted = f"{want}, as every port of type {port.type}"
            hint = f"insert a TypeCast or make the ports of type {port.type} agree"
        refuse(op, what, error=InvalidDataTypeError, accepted=accepted, got=str(tensor.dtype), hint=hint,
               port=port.name, tensor_id=tensor.id, dtype=tensor.dtype)  # fmt: skip

    def infer_shapes(
        self, op: Op, input_shapes: Sequence[Shape], values: Mapping[int, Any] | None = None
    ) -> list[Shape]:
        """Shapes of the outputs of a validated op for given shapes of its inputs, as far as they can be known.

        `values` is the content of those inputs that hold axes, sizes or a shape and are known. Where the inputs do not
        determine an output, the shape that the op gives for it is used: that it contradicts them is for the caller to
        see. Raises InvalidShapeError where shapes do not fit; the message names op, tensor, dimension, expected and
        got.
        """
        query = ShapeQuery(self, op, input_shapes, values or {})
        for index, shape in enumerate(input_shapes):
            if shape is not None:
                _check_shape(query, index, shape)
        try:
            inferred = self.infer(query)
        except InvalidShapeError as error:
            if "op_id" in error.fields:
                raise
            raise InvalidShapeError(
                f"{op.label}: {error}", **(error.fields | {"op_id": op.id, "op_kind": op.kind})
            ) from None
        shapes = [_fill(shape, tensor.shape) for shape, tensor in zip(inferred, op.outputs, strict=True)]
        for index, shape in enumerate(shapes):
            if shape is not None:
                self._check_result(op, index, shape)
        return shapes

    def _check_result(self, op: Op, index: int, shape: tuple[int, ...]) -> None:
        if len(shape) > MAX_NDIM:
            what, accepted = "has too many dimensions", f"at most {MAX_NDIM}"
        elif math.prod([dim for dim in shape if dim > 0]) >= 2**63:
            what, accepted = "is too large", "fewer than 2**63 elements"
        else:
            return
        port, tensor_id = self.output_port(index).name, op.outputs[index].id
        refuse(op, f'output "{port}" (tensor {tensor_id}) {what}', error=InvalidShapeError, accepted=accepted,
               got=describe_shape(shape), port=port, tensor_id=tensor_id)  # fmt: skip


def _check_shape(query: ShapeQuery, index: int, shape: tuple[int, ...]) -> None:
    if len(shape) > MAX_NDIM:
        query.fail("has too many dimensions", port=index, accepted=f"at most {MAX_NDIM}", got=len(shape))
    for axis, dim in enumerate(shape):
        if dim < 0 and dim != UNKNOWN_DIM:
            query.fail(f"has a negative dimension {axis}", port=index, dim=axis,
                       accepted="0 or more, or UNKNOWN_DIM", got=dim)  # fmt: skip


def _fill(shape: Shape, given: Shape) -> Shape:
    """`shape`, with what it does not know taken from `given` where that does not contradict it."""
    if shape is None or given is None or UNKNOWN_DIM not in shape or len(shape) != len(given):
        return given if shape is None else shape
    return tuple(b if a == UNKNOWN_DIM else a for a, b in zip(shape, given, strict=True))


def format_counts(counts: frozenset[int] | range) -> str:
    """Permitted numbers of ports in words: ``2 or 3``, ``1 to 64``."""
    if isinstance(counts, range):
        return f"{counts.start} to {counts.stop - 1}" if counts.stop < 2**31 else f"{counts.start} or more"
    return " or ".join(str(count) for count in sorted(counts))
