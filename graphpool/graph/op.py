"""An operation of a graph."""

from __future__ import annotations

from operator import is_
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import InvalidArgumentError, InvalidOpError, brief, explain
from .logical_tensor import LogicalTensor, check_id
from .schema import get_schema

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from graphpool._size_program import SizeValues


class Op:
    """One operation: a kind of the schema, its attributes, its input and output tensors.

    Parameters
    ----------
    id : int
        Identifies the op within its graph; from 0 to 2**64 - 1.
    kind : str
        A kind of the schema, for instance ``"MatMul"``; `graphpool.graph.schema.SCHEMAS` lists them.
    inputs, outputs : iterable of LogicalTensor
        In the order of the schema's ports; trailing optional ports are left out.
    name : str, optional
        For messages and reports; ``"<kind>_<id>"`` by default.
    **attrs : object
        Attributes of the kind. They are checked, and the missing ones completed, by `Graph.add_op`.

    Attributes
    ----------
    is_inferred : bool
        Whether the shapes of its outputs are known, and what follows from those of its inputs.

    Raises
    ------
    InvalidArgumentError, InvalidOpError
        The id is no int, kind or name is no string, or a port is no LogicalTensor.

    Notes
    -----
    Ownership: holds no memory. Threads: immutable, safe.
    Source: oneDNN Graph's programming model, section Operations.
    """

    __slots__ = ("_is_checked", "attrs", "id", "inputs", "is_inferred", "kind", "name", "outputs")

    def __init__(
        self,
        id: int,
        kind: str,
        inputs: Iterable[LogicalTensor] = (),
        outputs: Iterable[LogicalTensor] = (),
        name: str | None = None,
        **attrs: Any,
    ) -> None:
        self.id = id = check_id(id, "op id")
        if not isinstance(kind, str) or not isinstance(name, str | None):
            got = f"{brief(kind)}, {brief(name)}"
            raise InvalidOpError(explain(f"op {id}: kind and name", accepted="strings", got=got), op_id=id)
        self.kind = kind
        self.name = f"{kind}_{id}" if name is None else name
        self.inputs = _check_ports(self.name, "inputs", inputs)
        self.outputs = _check_ports(self.name, "outputs", outputs)
        self.attrs: Mapping[str, Any] = MappingProxyType(attrs)
        self.is_inferred = self._is_checked = False

    def with_attrs(self, attrs: dict[str, Any]) -> Op:
        """The same op with exactly these attributes.

        Parameters
        ----------
        attrs : dict
            Name -> value; not checked.

        Returns
        -------
        op : Op
        """
        return self._with(MappingProxyType(attrs), self.inputs, self.outputs)

    def with_ports(self, inputs: tuple[LogicalTensor, ...], outputs: tuple[LogicalTensor, ...]) -> Op:
        """The same op on other tensors.

        Parameters
        ----------
        inputs, outputs : tuple of LogicalTensor
            Not checked.

        Returns
        -------
        op : Op
        """
        return self._with(self.attrs, inputs, outputs)

    def with_sizes(self, values: SizeValues) -> Op:
        """The same op with its sizes as they are for some values; itself where none varies.

        Parameters
        ----------
        values : SizeValues
            Values that the checks of a compilation allow.

        Returns
        -------
        op : Op
        """
        inputs, outputs = ([tensor.with_sizes(values) for tensor in side] for side in (self.inputs, self.outputs))
        attrs = {name: _sized(value, values) for name, value in self.attrs.items()}
        own = *self.inputs, *self.outputs, *self.attrs.values()
        is_same = all(map(is_, (*inputs, *outputs, *attrs.values()), own))
        return self if is_same else self._with(MappingProxyType(attrs), tuple(inputs), tuple(outputs))

    @classmethod
    def inferred(
        cls,
        id: int,
        kind: str,
        inputs: Sequence[LogicalTensor],
        outputs: Sequence[LogicalTensor],
        name: str | None,
        attrs: Mapping[str, Any],
    ) -> Op:
        """An op of tensors and an id that were checked before, as `checked`, with the shapes of its outputs inferred.

        Parameters
        ----------
        id, kind, inputs, outputs, name, attrs
            As of the constructor; the outputs have no shapes yet.

        Returns
        -------
        op : Op

        Raises
        ------
        InvalidOpError, InvalidDataTypeError, InvalidShapeError
            It does not satisfy its schema.
        """
        op = object.__new__(cls)
        op.id, op.kind, op.name = id, kind, f"{kind}_{id}" if name is None else name
        op.inputs, op.outputs, op.attrs = tuple(inputs), tuple(outputs), attrs
        op.is_inferred = op._is_checked = False
        schema = get_schema(kind)
        op.attrs = MappingProxyType(schema.complete(op.label, attrs))
        schema.validate(op)
        shapes = schema.infer_shapes(op, [tensor.shape for tensor in inputs])
        op._is_checked = True  # schemas look at no shape of an output
        op.outputs = tuple([t.with_shape(shape) for t, shape in zip(op.outputs, shapes, strict=True)])
        op.is_inferred = all(tensor.is_shape_known for tensor in op.outputs)
        return op

    def checked(self) -> Op:
        """The op with complete attributes, which satisfies its schema; itself where that was found out before.

        Returns
        -------
        Op

        Raises
        ------
        InvalidOpError, InvalidDataTypeError, InvalidShapeError
            It does not.
        """
        if self._is_checked:
            return self
        schema = get_schema(self.kind)
        op = self.with_attrs(schema.complete(self.label, self.attrs))
        schema.validate(op)
        op._is_checked = True
        return op

    def _with(
        self, attrs: Mapping[str, Any], inputs: tuple[LogicalTensor, ...], outputs: tuple[LogicalTensor, ...]
    ) -> Op:
        other = object.__new__(Op)
        other.id, other.kind, other.name = self.id, self.kind, self.name
        other.is_inferred = other._is_checked = False
        other.attrs, other.inputs, other.outputs = attrs, inputs, outputs
        return other

    @property
    def label(self) -> str:
        """How messages call the op: kind, id and, where it tells more, the name."""
        default = f"{self.kind}_{self.id}"
        return f"op {self.id} ({self.kind})" if self.name == default else f"op {self.id} ({self.kind} {self.name!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return Op, (self.id, self.kind, self.inputs, self.outputs, self.name), dict(self.attrs)

    def __setstate__(self, attrs: dict[str, Any]) -> None:
        self.attrs = MappingProxyType(attrs)

    def __repr__(self) -> str:
        attrs = "".join(f", {key}={value!r}" for key, value in self.attrs.items())
        ins, outs = [t.id for t in self.inputs], [t.id for t in self.outputs]
        return f"Op({self.id}, {self.kind!r}, {ins} -> {outs}{attrs})"


def _sized(value: Any, values: SizeValues) -> Any:
    """An attribute with plain numbers for its sizes; itself where it has none."""
    if not isinstance(value, tuple):
        return values.of(value)
    found = tuple([_sized(item, values) for item in value])
    return value if all(map(is_, found, value)) else found


def _check_ports(name: str, side: str, tensors: Iterable[LogicalTensor]) -> tuple[LogicalTensor, ...]:
    try:
        ports = tuple(tensors)
    except TypeError as error:
        message = explain(f"{name}: {side}", accepted="LogicalTensors", got=brief(tensors))
        raise InvalidArgumentError(message, op_name=name) from error
    for number, tensor in enumerate(ports):
        if type(tensor) is not LogicalTensor:
            message = explain(f"{name}: {side}[{number}]", accepted="a LogicalTensor", got=brief(tensor))
            raise InvalidArgumentError(message, op_name=name, port=number)
    return ports


def first_free_id(ops: Iterable[Op]) -> int:
    """The least id above those of all tensors of the ops; 1 where there are none. Cost: linear in the ops."""
    return 1 + max((tensor.id for op in ops for tensor in (*op.inputs, *op.outputs)), default=0)
