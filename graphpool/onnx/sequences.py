"""Sequences whose length is known: values side by side while a form is made, so that no op needs to hold them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool._sizes import is_variable, least
from graphpool.errors import explain
from graphpool.runtime.host_room import HostNeed, ValueBound
from graphpool.typing import DataType

from .build import InvalidNode, NotConvertible, Value, require
from .node import make_node
from .proto import TypeProto
from .shape_values import shape_array, sizes_in
from .types import make_type

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    from .node import Node

Convert: TypeAlias = "Callable[[Node, Sequence[Value | None]], list[Value]]"
"""Takes a node and its inputs, and gives its outputs."""


def items_of(value: Value | None) -> Collection[Value] | None:
    """The values of a sequence of known length; None for other values."""
    if value is not None and isinstance(value.content, list):
        return tuple([Value(content=item) for item in value.content])
    return None if value is None else value.items


@dataclass(frozen=True)
class _Given:
    """A node with its inputs; `convert` gives the outputs of another node, from opset `opset`, in its place."""

    node: Node
    inputs: Sequence[Value | None]
    opset: int
    convert: Convert

    def has(self, index: int) -> bool:
        """Whether an input is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        """An input that must be given."""
        value = self.inputs[index] if self.has(index) else None
        if value is None:
            raise NotConvertible(f"input {index} is left out")
        return value

    def items(self) -> Collection[Value]:
        """Those of the first input."""
        found = items_of(self.inputs[0])
        if found is None:
            raise NotConvertible("a sequence whose length is not known")
        return found

    def position(self, index: int, length: int, most: int) -> int:
        """What an input says, at most `most`, which it is by default; negative ones count from the end."""
        number = most
        if self.has(index):
            value = self.value(index)
            require(value.is_known, "a position that is not known")
            number = int(np.asarray(value.content).reshape(()))
        require(-length <= number <= most, "a position outside the sequence")
        return number + length if number < 0 else number

    def one(self, kind: str, values: Sequence[Value], axes: Sequence[int] | None = None, **attrs: Any) -> Value:
        """The output of a node of one output; axes are an input from opset 13 on."""
        names = [f"{self.node.label}/{number}" for number in range(len(values))]
        if axes is not None and self.opset >= 13:
            names, values = [*names, f"{self.node.label}/axes"], [*values, Value(content=np.array(axes))]
        elif axes is not None:
            attrs["axes"] = axes
        output = next(name for name in self.node.output if name)
        return self.convert(make_node(kind, names, [output], self.node.label, **attrs), values)[0]


def follow_sequences(node: Node, inputs: Sequence[Value | None], opset: int, convert: Convert) -> list[Value] | None:
    """The output of a node that makes or takes a sequence of known length, or an optional that is there."""
    rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    if rule is None or (node.op_type in _ANY and (not inputs or items_of(inputs[0]) is None)):
        return None
    try:
        found = rule(_Given(node, inputs, opset, convert))
    except NotConvertible:
        return None
    return None if found is None else [found]


_ANY = ("Identity",)
"""Ops of other values, too."""


def _whole(given: _Given) -> Value | None:
    """An optional is what it holds."""
    if not given.has(0):
        return None
    value = given.value(0)
    return value if value.is_plain or value.is_known or value.items is not None else None


def _is_there(given: _Given) -> Value | None:
    return None if _whole(given) is None else Value(content=np.array(True))


def _made(given: _Given) -> Value:
    return Value(items=tuple([given.value(number) for number in range(len(given.inputs))]))


def _inserted(given: _Given) -> Value:
    items = tuple(given.items())
    place = given.position(2, len(items), len(items))
    return Value(items=(*items[:place], given.value(1), *items[place:]))


def _erased(given: _Given) -> Value:
    items = tuple(given.items())
    place = given.position(1, len(items), len(items) - 1)
    return Value(items=(*items[:place], *items[place + 1 :]))


def _at(given: _Given) -> Value:
    items = given.items()
    count = _count(items)
    place = given.position(1, count, count - 1)
    return items.part(place) if isinstance(items, _Parts) else tuple(items)[place]


def _length(given: _Given) -> Value:
    return Value(content=shape_array(_count(given.items())))


def _count(items: Collection[Value]) -> int:
    """How many there are, which may be a size that varies."""
    return items.count if isinstance(items, _Parts) else len(items)


def _joined(given: _Given) -> Value:
    items, axis = tuple(given.items()), given.node.attrs["axis"]
    require(bool(items), "nothing to join")
    if given.node.attrs.get("new_axis", 0):
        items = tuple([given.one("Unsqueeze", [item], [axis]) for item in items])
    return given.one("Concat", items, axis=axis)


def _parts(given: _Given) -> Value:
    """Parts of given sizes, or of one size, of which the last may be smaller, or single elements.

    Where the size is a single 1, the axis goes if ``keepdims`` says so: PyTorch writes unbind so, and ONNX Runtime does
    it, while ONNX has the attribute ignored beside sizes.
    """
    value, attrs = given.value(0), given.node.attrs
    require(value.is_plain, "the parts of what is no array")
    axis = attrs.get("axis", 0) % len(value.shape)
    length = value.shape[axis]
    split = given.value(1) if given.has(1) else Value(content=np.array(1))
    require(split.is_known, "sizes that are not known")
    sizes = sizes_in(split.content)
    if not split.content.shape:
        require(sizes[0] > 0, "no size of parts")
        require(length > 0, "no parts")
        parts = _Parts(given, value, axis, sizes[0], sizes[0] == 1 and not attrs.get("keepdims", 1))
        return Value(items=parts if is_variable(parts.count) else tuple(parts))
    label, op = given.node.label, given.node.op_type
    if any(size < 0 for size in sizes) or sum(sizes) != length:
        message = f"node {label!r} ({op}): sizes of parts"
        raise InvalidNode(explain(message, accepted=f"at least 0, {length} in all", got=sizes), node=label)
    require(0 < len(sizes) <= _MOST_PARTS, "too many parts")
    return Value(items=tuple(_split(given, value, sizes, axis)))


class _Parts:
    """Parts of one size along an axis, of which the last may be smaller; `count` of them, which may vary.

    Who asks for one, or for how many there are, leaves that open; all of them together are as many as there are now.
    """

    def __init__(self, given: _Given, whole: Value, axis: int, step: int, is_unbound: bool) -> None:
        self._given, self._whole, self._axis, self._step, self._is_unbound = given, whole, axis, step, is_unbound
        self._length = whole.shape[axis]
        self.count = -(-self._length // step)

    def part(self, place: int) -> Value:
        """One of them."""
        start, axes = place * self._step, np.array([self._axis])
        bounds = shape_array([start]), shape_array([least(start + self._step, self._length)]), axes
        return self._bare(self._given.one("Slice", [self._whole, *[Value(content=bound) for bound in bounds]]))

    def _bare(self, part: Value) -> Value:
        return self._given.one("Squeeze", [part], [self._axis]) if self._is_unbound else part

    def __len__(self) -> int:
        return int(self.count)

    def __iter__(self) -> Iterator[Value]:
        count = len(self)
        require(count <= _MOST_PARTS, "too many parts")
        sizes = [*[self._step] * (count - 1), self._length - self._step * (count - 1)]
        return iter([self._bare(part) for part in _split(self._given, self._whole, sizes, self._axis)])

    def __contains__(self, value: object) -> bool:
        return False  # each is made when it is asked for


def _split(given: _Given, value: Value, sizes: list[Any], axis: int) -> list[Value]:
    """The parts, in two steps where one Split has no room for them."""
    groups = [sizes[first : first + _MOST_AT_ONCE] for first in range(0, len(sizes), _MOST_AT_ONCE)]
    if len(groups) > 1:
        wholes = _split(given, value, [sum(group) for group in groups], axis)
        return [part for whole, group in zip(wholes, groups, strict=True) for part in _split(given, whole, group, axis)]
    names = [f"{given.node.label}/{number}" for number in range(len(sizes))]
    if given.opset >= 13:
        values = [value, Value(content=shape_array(sizes))]
        return given.convert(make_node("Split", ["x", "sizes"], names, given.node.label, axis=axis), values)
    return given.convert(make_node("Split", ["x"], names, given.node.label, axis=axis, split=sizes), [value])


_MOST_AT_ONCE = 64
"""Parts that one op gives."""

_MOST_PARTS = 4096

_RULES: dict[str, Callable[[_Given], Value | None]] = {
    "Identity": _whole, "Optional": _whole, "OptionalGetElement": _whole, "OptionalHasElement": _is_there,
    "SequenceEmpty": _made, "SequenceConstruct": _made, "SequenceInsert": _inserted, "SequenceErase": _erased,
    "SequenceAt": _at, "SequenceLength": _length, "ConcatFromSequence": _joined, "SplitToSequence": _parts,
}  # fmt: skip


def make_sequence_type(items: Sequence[Value]) -> Any:
    """ONNX's type of a sequence of these values."""
    plain = next((item for item in items if item.is_plain), None)
    found = TypeProto()
    found.sequence_type.elem_type.CopyFrom(make_type(DataType.F32 if plain is None else plain.dtype, None))
    return found


def sequence_node(items: Sequence[Value], name: str) -> Node:
    """The node that makes a sequence."""
    if not items:
        return make_node("SequenceEmpty", [], [name], name)
    return make_node("SequenceConstruct", [f"{name}/{number}" for number in range(len(items))], [name], name)


class AsList:
    """A host function that gives a list of copies of its inputs at these places."""

    gives_fresh = True

    def __init__(self, places: Sequence[int]) -> None:
        self._places = places

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> list[Any]:
        """The list."""
        return [[np.array(inputs[place]) for place in self._places]]

    def bound(self, inputs: Sequence[ValueBound | None], outputs: Any) -> HostNeed | None:
        """As `HostFunction.bound`."""
        items = [value for place in self._places if (value := inputs[place]) is not None]
        found = ValueBound.of_items(items)
        return HostNeed([found], found.nbytes) if len(items) == len(self._places) else None
