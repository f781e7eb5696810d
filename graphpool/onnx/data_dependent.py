"""Nodes whose shapes follow from what a run computes: they become a model of their own, compiled for any extents."""

from __future__ import annotations

from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass, replace
from graphpool._sizes import is_variable
from graphpool.runtime.data_dependent import DataDependentInput, DataDependentPart, as_extent
from graphpool.runtime.model import Model
from graphpool.runtime.model_port import ModelPort
from graphpool.typing import DataType

from .build import DataDependent, GraphBuilder, NotConvertible, Value
from .node import TYPE_OF_FIRST, names_read
from .shape_values import ShapeArray, shape_array
from .types import data_type, make_port, make_type

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from onnx import TypeProto

    from .inline import Scope
    from .node import Node
    from .source import OnnxModel


@dataclass(frozen=True)
class SizeItems:
    """A small integer array of which some elements are extents: inputs by name, of shape (extent, 0).

    A tuple is an extent, times an int, less another extent or an int: for what may be negative, or counts by steps.
    """

    items: Any
    dtype: Any

    def array(self, shapes: Mapping[str, Any]) -> Any:
        """The array for these shapes of the inputs."""

        def size(item: Any) -> Any:
            if isinstance(item, tuple):
                extent, step, less = item
                return size(extent) * step - size(less)
            return shapes[item][0] if isinstance(item, str) else item

        found = list(map(size, self.items.reshape(-1)))
        return shape_array(_objects(found, self.items.shape), self.dtype)


def _types_of(node: Node, inputs: Sequence[Value | None]) -> list[TypeProto | None]:
    """The types of a node's results without their shapes, where its kind says them: graphs may not state them."""
    types: list[DataType | None] = [None] * len(node.output)
    if node.op_type == "If":
        sides = zip(*[node.attrs[side].elem_types for side in ("then_branch", "else_branch")], strict=True)
        types = [data_type(max(pair)) for pair in sides]
    elif node.op_type in TYPE_OF_FIRST and node.domain == "" and inputs[0] is not None:
        first = inputs[0]
        if first.is_plain:
            types[0] = first.dtype
        elif first.type is not None:
            types[0] = data_type(first.type.tensor_type.elem_type)
    return [None if dtype is None else make_type(dtype, None) for dtype in types]


class DataDependentBuilder:
    """Collects the nodes, with a name for each value that they read or write: the model's own at the top of it.

    Threads: one at a time.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self._names: dict[int, str] = {}
        self._values: dict[str, Value] = {}
        self._sizes: dict[int, Value] = {}

    def sizes(self, value: Value) -> Value:
        """A few integers of the run, as sizes."""
        return self._sizes.setdefault(id(value), Value(data_dependent=DataDependent((value,), are_sizes=True)))

    def name_of(self, value: Value, name: str, scope: Scope) -> str:
        """The name of a value that a scope knows by another one."""
        if id(value) not in self._names:
            wanted = name
            while wanted in self._values or (scope.path and wanted == name):
                wanted = f"{name}, {len(self._values)}"  # which graphs that capture it have no name of their own for
            self._names[id(value)] = wanted
            self._values[wanted] = value
        return self._names[id(value)]

    def add(
        self, node: Node, inputs: Sequence[Value | None], captured: Mapping[str, Value], scope: Scope
    ) -> list[Value]:
        """Take a node; its outputs."""
        read = [
            "" if value is None else self.name_of(value, name, scope)
            for name, value in zip(node.input, inputs, strict=True)
        ]
        renamed = {name: self.name_of(value, name, scope) for name, value in captured.items()}
        results = [
            Value(type_, data_dependent=DataDependent()) if name else Value()
            for name, type_ in zip(node.output, _types_of(node, inputs), strict=True)
        ]
        written = [
            self.name_of(value, name, scope) if name else "" for name, value in zip(node.output, results, strict=True)
        ]
        is_same = (*read, *renamed.values(), *written) == (*node.input, *renamed, *node.output)
        self.nodes.append(node if is_same else node.changed(inputs=read, outputs=written, captured=renamed))
        return results

    def finish(
        self,
        source: OnnxModel,
        outputs: Sequence[str],
        builder: GraphBuilder,
        make_specialiser: Callable[..., Any],
    ) -> tuple[DataDependentPart, list[Value]]:
        """The function that runs the nodes, and the values that it reads, in order."""
        made = {name for node in self.nodes for name in node.output if name}
        inputs = OuterValues(builder)
        for name in sorted(names_read(self.nodes, outputs) - made - {""}):
            inputs.add(name, self._values[name])
        part = replace(
            source, name=f"{source.name}, data-dependent part", inputs=tuple(inputs.ports),
            outputs=tuple([ModelPort(name, None, None) for name in outputs]), input_types=inputs.types,
            constants={}, nodes=self.nodes, is_rewritten=True,
        )  # fmt: skip

        def make(**options: Any) -> Model:
            specialiser = make_specialiser(part, inputs.constants, inputs.sizes)
            return Model(part.inputs, part.outputs, specialiser, name=part.name, **options)

        reads = Reads()
        places = [reads.place(value) for value in inputs.read]
        return DataDependentPart(inputs.described, places, tuple(outputs), make), reads.values


class Reads:
    """Values that a function reads, each once."""

    def __init__(self) -> None:
        self.values: list[Value] = []

    def place(self, value: Value) -> int:
        """The number of a value."""
        for number, known in enumerate(self.values):
            if known is value:
                return number
        self.values.append(value)
        return len(self.values) - 1


class OuterValues:
    """What nodes of a model of their own read of what is outside: its inputs, or contents that are known."""

    def __init__(self, builder: GraphBuilder) -> None:
        self._builder = builder
        self.ports: list[ModelPort] = []
        self.types: dict[str, Any] = {}
        self.described: list[DataDependentInput] = []
        self.read: list[Value] = []
        self.constants: dict[str, Any] = {}
        self.sizes: dict[str, SizeItems] = {}
        self._extents: set[str] = set()

    def add(self, name: str, value: Value) -> None:
        """Take a value under a name."""
        if value.items is not None:
            raise NotConvertible("a sequence from outside")
        if isinstance(value.content, ShapeArray):
            flat = [self._extent(item) if is_variable(item) else int(item) for item in value.content.items.reshape(-1)]
            self.sizes[name] = SizeItems(_objects(flat, value.content.shape), value.content.dtype)
        elif value.is_known:
            self.constants[name] = value.content
        elif value.data_dependent is not None:
            self._add_data_dependent(name, value, value.data_dependent)
        elif value.is_plain:
            dims = tuple([size_name(dim) if is_variable(dim) else int(dim) for dim in value.shape])
            self._take(DataDependentInput(name), ModelPort(name, value.dtype, dims), [value])
        else:
            self._take(DataDependentInput(name), ModelPort(name, None, None), [value], value.type)

    def _add_data_dependent(self, name: str, value: Value, found: DataDependent) -> None:
        if found.are_sizes:
            self._add_sizes(name, *found.parts)
        elif found.parts:
            assert found.dtype is not None
            port = ModelPort(name, found.dtype, found.dims)
            self._take(DataDependentInput(name, len(found.parts), found.cut, found.bound), port, found.parts)
        else:
            assert value.type is not None  # of one without parts
            self._take(DataDependentInput(name), make_port(name, value.type), [value], value.type)

    def _add_sizes(self, name: str, value: Value) -> None:
        """Each element is an extent, or one that is taken from 0."""
        items = []
        for number in range(prod(value.shape)):
            positive, negative = f"{name}[{number}]", f"-{name}[{number}]"
            for sign, port in ((1, positive), (-1, negative)):
                described = DataDependentInput(port, 1, partial(_as_extent, number, sign), _unbounded)
                self._take(described, ModelPort(port, DataType.BOOLEAN, (None, 0)), [value])
            items.append((positive, 1, negative))
        self.sizes[name] = SizeItems(_objects(items, value.shape), value.dtype.numpy)

    def _take(self, described: DataDependentInput, port: ModelPort, values: Sequence[Value], type_: Any = None) -> None:
        self.described.append(described)
        self.ports.append(port)
        self.read.extend(values)
        self.types[port.name] = make_type(port.dtype, None) if type_ is None and port.dtype is not None else type_

    def _extent(self, size: Any) -> str:
        """The name of the input that stands for a size."""
        name = f"{size_name(size)} of extents"
        if name not in self._extents:
            self._extents.add(name)
            empty = self._builder.literal([[False]], DataType.BOOLEAN)
            none = self._builder.emit("Slice", empty, starts=[0], ends=[0], axes=[1])[0]
            tensor = self._builder.emit("Expand", none, shape=(size, 0))[0]
            self._take(DataDependentInput(name), ModelPort(name, DataType.BOOLEAN, (size_name(size), 0)), [tensor])
        return name


def _as_extent(number: int, sign: int, array: Any) -> Any:
    """An array without elements whose extent is an element, or minus it."""
    return as_extent(sign * array.item(number))


def _unbounded(*_: Any) -> None:
    """That no bound is known of a shape."""


def size_name(size: Any) -> str:
    """The name of a dimension that is this size."""
    return f"size {size.number}"


def _objects(items: Sequence[Any], shape: tuple[int, ...]) -> Any:
    array = np.empty(len(items), object)
    for number, item in enumerate(items):
        array[number] = item
    return array.reshape(shape)
