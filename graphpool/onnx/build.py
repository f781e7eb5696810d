"""The graph under construction, and what a converter of ops/ sees of a node."""

from __future__ import annotations

from math import isfinite, prod
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from graphpool._dataclasses import dataclass, replace
from graphpool._sizes import is_variable
from graphpool.backends.reference import OutputSpec, evaluate
from graphpool.cache.identity import quick_fingerprint
from graphpool.errors import InvalidShapeError, explain
from graphpool.graph import Graph, LogicalTensor, Op
from graphpool.graph.logical_tensor import shapeless_tensor
from graphpool.graph.schema import get_schema
from graphpool.graph.shapes import are_equal, broadcast_shapes
from graphpool.runtime.constant_memory import is_one_number
from graphpool.runtime.nibbles import Nibbles
from graphpool.runtime.packed_weight import PackedWeight
from graphpool.typing import DataType, PropertyType

from .shape_values import ShapeArray, shape_array, sizes_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Sequence

    from onnx import TypeProto

    from .bounds import Bounds
    from .node import Node


_MOST_JOINED = 64
"""Inputs of one Concat."""

_MOST_POSITIONS = 1 << 16
"""What sizes that are data may be to vary."""


class NotConvertible(Exception):  # noqa: N818 - a signal inside the package, not an error
    """A node has, with these inputs, no expression in our ops; the text says why."""


class InvalidNode(InvalidShapeError):  # noqa: N818 - named as what it says, like NotConvertible
    """A node that nothing runs with these inputs, which no other way changes."""


def require(condition: bool, reason: str) -> None:
    """Raise `NotConvertible` unless the condition holds."""
    if not condition:
        raise NotConvertible(reason)


@dataclass(frozen=True, slots=True)
class DataDependent:
    """How a value whose shape follows from what a run computes is found when it has come so far.

    By default a node gives it that runs then. Else `cut` takes the arrays of `parts`, which lie in memory, and returns
    one of type `dtype` and of dimensions `dims`, of which None is any; `bound` takes the shapes of the parts and
    returns the largest one that it may have. `are_sizes` says that it is the only part itself, a few integers that
    nodes read as sizes.
    """

    parts: tuple[Value, ...] = ()
    dtype: DataType | None = None
    dims: tuple[int | None, ...] = ()
    cut: Callable[..., Any] | None = None
    bound: Callable[..., tuple[int, ...] | None] | None = None
    are_sizes: bool = False


_LARGE_LITERAL = 2**12
"""Constants beyond this are known by a digest, not by a copy. Unit: bytes."""

_PACKED = PackedWeight, Nibbles
"""What looks like an array, but has its elements in another form."""


@dataclass(eq=False, slots=True)
class Value:
    """What is known of a tensor of the model, in one form.

    `type` is ONNX's, when inferred; `tensor` the one in our graph, which constants get when an op first reads them;
    `content` is known now or None, and NumPy unpacks what is packed where its elements are read. `is_static` says
    whether the content lasts as long as the specialiser, so that forms may share it, `from_inputs` whether it follows
    from that of the model's inputs, not from their shapes alone. `data_dependent` is there where its shape follows
    from what a run computes, `items` for a sequence of known length, `span` the least and the greatest of whole numbers
    that follow from sizes.
    """

    type: TypeProto | None = None
    tensor: LogicalTensor | None = None
    content: Any = None
    is_static: bool = False
    from_inputs: bool = False
    data_dependent: DataDependent | None = None
    items: Collection[Value] | None = None
    span: tuple[Any, Any] | None = None

    @property
    def is_known(self) -> bool:
        """Whether the content is known now."""
        return self.content is not None

    @property
    def is_plain(self) -> bool:
        """Whether it is an array of a type that we have, and of known shape."""
        if self.tensor is not None:
            return self.tensor.dtype is not DataType.UNDEF
        return isinstance(self.content, (np.ndarray, *_PACKED, ShapeArray)) and self.content.dtype.kind not in "OUSc"

    @property
    def plain_content(self) -> Any:
        """The content as a NumPy array: unpacked if it is kept packed, sizes as they are now."""
        return np.asarray(self.content) if isinstance(self.content, (*_PACKED, ShapeArray)) else self.content

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape; only of a plain value."""
        shape = self.content.shape if self.tensor is None else self.tensor.shape
        assert shape is not None  # plain values have one
        return tuple(shape)

    @property
    def dtype(self) -> DataType:
        """Type; only of a plain value."""
        return DataType.parse(self.content.dtype) if self.tensor is None else self.tensor.dtype


class GraphBuilder:
    """Ops and constants of one form. Threads: one at a time.

    `static_ids`, which are extended, are identity of the content -> tensor id, of constants that all forms share.
    """

    FIRST_ID = 2**32
    """Static constants lie below, so that they have the same id in every form."""

    def __init__(
        self, static_ids: dict[Hashable, int], prefer: str, fpmath: str, engine_kind: str, bounds: Bounds
    ) -> None:
        self.bounds = bounds
        self.ops: list[Op] = []
        self.constants: dict[int, Any] = {}
        self._static_ids = static_ids
        self._prefer = prefer
        self._fpmath, self._engine_kind = fpmath, engine_kind
        self._next_id = self.FIRST_ID
        self.node: Node | None = None  # that is being converted: ops are called so
        self._literals: dict[Any, Value] = {}

    def new_tensor(self, dtype: DataType | None, shape: tuple[int, ...] | None) -> LogicalTensor:
        """A tensor with a new id; without type or shape it stands for a Python object, as an array of texts."""
        self._next_id += 1
        if dtype is None or shape is None:
            return LogicalTensor(self._next_id, DataType.UNDEF, shape)
        return LogicalTensor(self._next_id, _buffered(dtype), shape)

    def tensor(self, value: Value) -> LogicalTensor:
        """The tensor of a value; a known one becomes a constant of the graph, sizes that may vary are computed."""
        if isinstance(value.content, ShapeArray):
            return self.tensor(self._computed(value.content))
        if value.tensor is None:
            array, strides = value.content, None
            if not isinstance(array, _PACKED):
                if is_one_number(array):
                    strides = (0,) * array.ndim
                else:
                    array = np.asarray(array, order="C")  # mapped weights lie at any address
            dtype = DataType.parse(array.dtype)
            if value.is_static:
                number = static_id(self._static_ids, value.content)
            else:
                number = self._next_id = self._next_id + 1
            value.tensor = LogicalTensor(
                number, dtype, array.shape, strides=strides, property=PropertyType.CONSTANT, value=_number_of(array)
            )
            self.constants[number] = array
        return value.tensor

    def dense_tensor(self, value: Value) -> LogicalTensor:
        """As `tensor`, for who takes arrays whose elements follow one another."""
        return self.tensor(Value(content=value.content.copy()) if is_one_number(value.content) else value)

    def positions(self, count: int) -> Value:
        """0, 1, ... as a vector of s32, so many, which may vary."""
        [column] = self.emit("Expand", self.literal([0], DataType.F32), shape=(count,))
        return self.emit("GenIndex", column, dtypes=[DataType.S32], axis=0)[0]

    def numbers(self, first: int, count: int, before: int = 0, behind: int = 0) -> Value:
        """As `positions`, from a number of 0 or more on, which may vary too; a constant where nothing does.

        Along an axis with so many axes of one element before it and behind it.
        """
        shape = (*[1] * before, count, *[1] * behind)
        if not is_variable(first) and not is_variable(count):
            return self.literal(np.arange(first, first + count).reshape(shape), DataType.S32)
        row = self.positions(first + count)
        if is_variable(first) or first:
            [row] = self.emit("Slice", row, starts=[first], ends=[first + count], axes=[0])
        return self.emit("StaticReshape", row, shape=shape, special_zero=False)[0] if before or behind else row

    def full(self, number: float, shape: tuple[int, ...]) -> Value:
        """A number in each place of a shape, f32: a constant where no size varies."""
        if not any(map(is_variable, shape)):
            return self.literal(np.full(shape, number), DataType.F32)
        return self.emit("Expand", self.literal(number, DataType.F32), shape=shape)[0]

    def _computed(self, sizes: ShapeArray) -> Value:
        """Sizes as data: each is a position in a row that goes so far; large ones have their values for good."""
        parts, dtype = [], DataType.parse(sizes.dtype)
        for size in sizes.items.reshape(-1).tolist():
            if is_variable(size) and 0 <= size < _MOST_POSITIONS:
                row = self.positions(size + 1)
                last = self.emit("Slice", row, starts=[size], ends=[size + 1], axes=[0])
                parts += last if dtype is DataType.S32 else self.emit("TypeCast", *last, dtypes=[dtype])
            else:
                parts.append(self.literal([int(size)], dtype))
        return self.emit("StaticReshape", self.join(parts, 0), shape=sizes.shape, special_zero=False)[0]

    def reinterpreted(self, value: Value, dtype: DataType, shape: tuple[int, ...]) -> Value:
        """The bytes of a known array as elements of another type, without a copy."""
        array = np.require(value.plain_content, requirements=["C"]).reshape(-1)
        if dtype.bits >= 8:
            array = array.view(dtype.numpy).reshape(shape)
        if value.is_static:
            number = self._static_ids.setdefault(("bytes", id(value.content)), len(self._static_ids))
        else:
            number = self._next_id = self._next_id + 1
        self.constants[number] = array
        return Value(tensor=LogicalTensor(number, dtype, shape, property="constant"), is_static=value.is_static)

    def literal(self, number: Any, dtype: DataType) -> Value:
        """A constant made here: a number, or an array, in a data type."""
        array = np.asarray(number, dtype.numpy)
        content = array.tobytes() if array.nbytes <= _LARGE_LITERAL else quick_fingerprint(array)
        key = dtype, array.shape, content
        if key not in self._literals:
            self._literals[key] = Value(content=array)
        return self._literals[key]

    def emit(
        self, kind: str, *inputs: Value, dtypes: Sequence[DataType] | None = None, name: str = "", **attrs: Any
    ) -> list[Value]:
        """Add an op with its output shapes inferred, by default with one output of the first input's type.

        Raises InvalidArgumentError if it does not satisfy its schema; the name, by default that of the node that is
        being converted, is for messages.
        """
        sources = [self.tensor(value) for value in inputs]
        wanted = dtypes or [sources[0].dtype]
        targets = [shapeless_tensor(number, _buffered(t)) for number, t in enumerate(wanted, self._next_id + 1)]
        self._next_id += len(targets)
        name = name or (self.node.label if self.node is not None else "")
        op = Op.inferred(len(self.ops), kind, sources, targets, name or None, attrs)
        self.ops.append(op)
        return [Value(tensor=target) for target in op.outputs]

    def join(self, values: Sequence[Value], axis: int) -> Value:
        """The values one behind the other along an axis: Concat, in stages where there are many."""
        parts = list(values)
        while len(parts) > 1:
            groups = [parts[k : k + _MOST_JOINED] for k in range(0, len(parts), _MOST_JOINED)]
            parts = [self.emit("Concat", *group, axis=axis)[0] if len(group) > 1 else group[0] for group in groups]
        return parts[0]

    def add_wildcard(self, inputs: Sequence[LogicalTensor], outputs: Sequence[LogicalTensor], name: str) -> int:
        """Add an op that the host runs; returns its id."""
        self.ops.append(Op(len(self.ops), "Wildcard", inputs, outputs, name))
        return len(self.ops) - 1

    def finish(self, outputs: Sequence[LogicalTensor]) -> Graph:
        """The finalised graph; `outputs` stay visible even where all their readers are fused with their producers.

        Ops of which at most the shape was asked are left out, but for what the host runs.
        """
        graph, kept = Graph(self._engine_kind, prefer=self._prefer, fpmath=self._fpmath), list[Op]()
        read = {tensor.id for tensor in outputs}
        for op in reversed(self.ops):
            if op.kind == "Wildcard" or any(tensor.id in read for tensor in op.outputs):
                read.update([tensor.id for tensor in op.inputs])
                kept.append(op)
        for op in reversed(kept):
            graph.add_op(op)
        accepted = get_schema("End").types["T"]
        for number, tensor in enumerate(outputs, len(self.ops)):
            graph.add_op(Op(number, "End" if tensor.dtype in accepted else "Wildcard", [tensor]))
        graph.finalize()
        return graph


def static_id(numbers: dict[Hashable, int], content: Any) -> int:
    """The number of a content among those that all forms share, a new one if it has none; `numbers` is extended."""
    return numbers.setdefault(id(content), len(numbers))


def _number_of(array: Any) -> float | None:
    """The number that a constant of one element is, which tells what a graph spells out; None for other contents."""
    if isinstance(array, _PACKED) or array.size != 1:
        return None
    number = float(array.reshape(()))
    return number if isfinite(number) and number == array.item() else None  # large integers are no floats


def _buffered(dtype: DataType) -> DataType:
    """The type; none for 4-bit values: one element a byte in NumPy, half of one in a buffer, they stay NumPy's."""
    return DataType.UNDEF if dtype.bits < 8 else dtype


@dataclass
class NodeView:
    """A node as its converter sees it.

    Inputs are plain, None where optional ones are left out; `opset` is the version of the node's domain; `used_outputs`
    are those up to the last one that somebody reads.
    """

    node: Node
    inputs: list[Value | None]
    opset: int
    used_outputs: int
    builder: GraphBuilder

    def as_op(self, inputs: Sequence[Value | None], opset: int) -> NodeView:
        """The node as that of ONNX's ops which has the same attributes, with other inputs."""
        return replace(self, inputs=list(inputs), opset=opset)

    def attr(self, name: str, default: Any = None) -> Any:
        """An attribute's value; strings as str."""
        value = self.node.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else value

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def gives(self, index: int) -> bool:
        """Whether an output has a name and may be read."""
        return index < self.used_outputs and bool(self.node.output[index])

    def __getitem__(self, index: int) -> Value:
        """An input that must be given."""
        value = self.inputs[index] if index < len(self.inputs) else None
        if value is None:
            self.refuse(f"input {index} is left out")
        return value

    def known(self, index: int) -> np.ndarray[Any, Any]:
        """The content of an input that must be known."""
        if not self[index].is_known:
            self.refuse(f"the content of input {index} is not known")
        return np.asarray(self[index].content)

    def ints(self, name: str, index: int) -> list[int] | None:
        """Integers that older opsets give as attribute `name` and newer ones as input `index`; None when absent."""
        if self.has(index):
            content = self[index].content
            return sizes_in(content if isinstance(content, ShapeArray) else self.known(index))
        given = self.attr(name)
        return None if given is None else list(given)

    def refuse(self, reason: str) -> NoReturn:
        """Say that the node has no expression in our ops."""
        raise NotConvertible(reason)

    def require(self, condition: bool, reason: str) -> None:
        """Refuse unless the condition holds."""
        if not condition:
            self.refuse(reason)

    def check(self, condition: bool, what: str, accepted: object, got: object) -> None:
        """Raise InvalidNode unless the condition holds, which ONNX asks for."""
        if not condition:
            label, op = self.node.label, self.node.op_type
            raise InvalidNode(explain(f"node {label!r} ({op}): {what}", accepted=accepted, got=got), node=label)

    def axis(self, default: int, rank: int, *, may_end: bool = False) -> int:
        """Attribute ``axis`` of a tensor of this rank, counted from the front; one behind the last if it `may_end`."""
        axis: int = self.attr("axis", default)
        self.require(-rank <= axis < rank + may_end, "an axis that there is not")
        return axis + rank if axis < 0 else axis

    def allow_table(self, nbytes: int) -> None:
        """Raise LimitError unless a table that stands for the node may have so many bytes, those of its making too."""
        node = self.node.label
        limits = self.builder.bounds.limits
        limits.check("folded_nbytes", nbytes, f"node {node!r}: a table of {nbytes} bytes for it", node)

    def emit(self, kind: str, *inputs: Value, **attrs: Any) -> Value:
        """Add an op of one output of the first input's type."""
        return self.builder.emit(kind, *inputs, name=self.node.name or self.node.output[0], **attrs)[0]

    def emit_several(self, kind: str, dtypes: Sequence[DataType], *inputs: Value, **attrs: Any) -> list[Value]:
        """Add an op with outputs of these types."""
        return self.builder.emit(kind, *inputs, dtypes=dtypes, name=self.node.name or self.node.output[0], **attrs)

    def literal(self, number: Any, like: Value) -> Value:
        """A constant of the type of another value."""
        return self.builder.literal(number, like.dtype)

    def reshape(self, value: Value, shape: Sequence[int]) -> Value:
        """The value in another shape; itself when it has that shape."""
        if are_equal(value.shape, tuple(shape)):
            return value
        return self.emit("StaticReshape", value, shape=tuple(shape), special_zero=False)

    def broadcast(self, a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
        """The shape to which both broadcast."""
        shape = broadcast_shapes(a, b)
        self.check(not isinstance(shape, int), "shapes", "those that broadcast", f"{tuple(a)} and {tuple(b)}")
        assert not isinstance(shape, int)  # checked
        return shape

    def count(self, number: int, dtype: DataType = DataType.S64) -> Value:
        """A whole number that may vary as data: a vector of one."""
        return self.cast(Value(content=shape_array([number])), dtype)

    def multiples(self, count: int, *factors: int, behind: int = 0) -> Value:
        """So many multiples of the product of factors, from 0 on, as s64; all of these may vary.

        Along an axis with so many axes of one element behind it.
        """
        if not any(map(is_variable, (count, *factors))):
            row = np.arange(count).reshape(-1, *[1] * behind)
            return self.builder.literal(row * prod(factors), DataType.S64)
        numbers = self.cast(self.builder.numbers(0, count, behind=behind), DataType.S64)
        for factor in factors:  # one by one: the product may be too large to vary
            numbers = self.emit("Multiply", numbers, self.count(factor))
        return numbers

    def vector(self, value: Value) -> Value:
        """A known scalar as a vector of one; itself otherwise."""
        return value if value.shape else self.builder.literal(np.asarray(value.content).reshape(1), value.dtype)

    def join(self, values: Sequence[Value], axis: int) -> Value:
        """The values one behind the other along an axis."""
        return self.builder.join(values, axis)

    def cast(self, value: Value, dtype: DataType, **attrs: Any) -> Value:
        """The value in another type; itself when it has that type."""
        if value.dtype is dtype:
            return value
        if value.is_known and not isinstance(value.content, ShapeArray):
            self.require(dtype.bits >= 8, "a type of less than 8 bits")
            [content] = evaluate("TypeCast", [value.plain_content], attrs, [OutputSpec(dtype)])
            return self.builder.literal(content, dtype)
        return self.emit_several("TypeCast", [dtype], value, **attrs)[0]
