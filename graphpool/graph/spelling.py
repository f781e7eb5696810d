"""Functions that a graph spells out in several ops, found and replaced by the one op that each of them is.

A `Spelling` is data: an op, and an expression whose names are tensors. ``x / y``, powers and ``sqrt`` are products of
powers; capitalised calls are ops, whose numbers stand behind their inputs (`_NUMBERS`). Expression and graph are
compared as products of powers and sums, each as a multiset with one number: factors and terms match in any order and
grouping, which is how frameworks differ. Brackets hold what is a tensor of its own there, because it is read more than
once: ``[x - m] - Log(Sum(Exp(x - m)))``. Numbers are constants whose `LogicalTensor.value` is known.

Nobody else reads a result of the ops between, nor does one leave the graph. So what takes their place has their wires,
and closes no cycle.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeAlias

from graphpool._dataclasses import dataclass, field

from ..errors import GraphpoolError
from ..typing import UNKNOWN_DIM, DataType
from .expression import Call, Name, Product, Sum, calls_of, parse
from .op import Op
from .schema import get_schema

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from .expression import Pattern
    from .view import GraphView

_Shape: TypeAlias = "tuple[int, ...] | None"
_Parts: TypeAlias = list[tuple[int, float]]
_Captured: TypeAlias = dict[str, Any]

_MOST_STEPS = 32
"""Ops that are taken apart for one sum or product: no expression has so many, and a chain may have any number."""

_TOLERANCE = 1e-4
"""By how much the numbers of a graph may differ from those of an expression, relative to them."""

_TOLERANCES = {DataType.F16: 2**-11, DataType.BF16: 2**-8}
"""The same where the numbers were perhaps rounded to these types: half a unit in the last place."""


@dataclass(frozen=True)
class Spelling:
    """One spelling of the op `kind`: an `expression`, a sum or a product of tensors, which are its `inputs` by name.

    `numbers` is attribute -> name in the expression of a number to be read off the graph; `attributes` are the others.
    `tree` is what the expression says, `calls` are the kinds of its calls.
    """

    kind: str
    expression: str
    inputs: tuple[str, ...] = ("x",)
    numbers: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    tree: Product | Sum = field(init=False)
    calls: set[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", parse(self.expression, list(self.numbers.values())))
        object.__setattr__(self, "calls", calls_of(self.tree))


@dataclass(frozen=True)
class Respelt:
    """An op, and the ops of a view, by number, whose place it takes: itself, or what spells it out.

    It has id, name and output of the last of them.
    """

    op: Op
    numbers: tuple[int, ...]


def possible_spellings(spellings: Sequence[Spelling], ops: Sequence[Op]) -> list[Spelling]:
    """Spellings whose calls are all among the ops. Cost: linear in the ops."""
    kinds = {op.kind for op in ops}
    return [spelling for spelling in spellings if spelling.calls <= kinds]


def respell(
    view: GraphView,
    spellings: Sequence[Spelling],
    shapes: Mapping[int, _Shape],
    fits: Callable[[Op], bool],
    outputs: Collection[int] = (),
) -> list[Respelt]:
    """The ops of a view, in topological order, with one in place of each function that some of them spell out.

    The first spelling that fits an op counts; what is part of a function is not looked at again. `shapes` are those
    that are known; `fits` says which ops may take part and take the place of others; `outputs` are ids of tensors that
    leave, besides those that nobody reads. Cost: linear in the ops; some ten microseconds for each that may be the last
    of a function.
    """
    matcher = _Matcher(view, shapes, fits, outputs)
    found = [
        matcher.find(number, spellings) or Respelt(view.ops[number], (number,))
        for number in range(len(view.ops) - 1, -1, -1)  # functions before those that are parts of them
        if number not in matcher.taken
    ]
    return found[::-1]


class _Matcher:
    """Looks for spellings at ops, the last first."""

    def __init__(
        self,
        view: GraphView,
        shapes: Mapping[int, _Shape],
        fits: Callable[[Op], bool],
        outputs: Collection[int],
    ) -> None:
        self.taken: set[int] = set()
        self._view = view
        self._shapes = shapes
        self._fits = fits
        self._outputs = outputs
        self._tensors = {tensor.id: tensor for op in view.ops for tensor in op.inputs}
        self._tolerance = _TOLERANCE
        self._apart: dict[tuple[int, type], tuple[float, _Parts] | None] = {}

    def find(self, number: int, spellings: Sequence[Spelling]) -> Respelt | None:
        """What op `number` is the last op of, by the first spelling that fits."""
        last = self._view.ops[number]
        root = _ROOTS.get(last.kind)
        found = None if root is None else self._parts(last.outputs[0].id, root)
        if root is None or found is None:
            return None
        self._tolerance = _TOLERANCES.get(last.outputs[0].dtype, _TOLERANCE)
        for spelling in spellings:
            tree = spelling.tree
            if isinstance(tree, root) and len(tree.parts) == len(found[1]):
                for captured in self._match(tree, last.outputs[0].id, {}):
                    members = self._between({captured[name] for name in spelling.inputs}, number)
                    made = self._make(spelling, captured, last) if members else None
                    if made is not None:
                        self.taken |= members
                        return Respelt(made, tuple(sorted(members)))
        return None

    def _between(self, sources: set[int], last: int) -> set[int]:
        """The ops from these tensors to the last op; none if one may not take part, or others read of one."""
        members: set[int] = set()
        waiting = [last]
        while waiting:
            number = waiting.pop()
            op = self._view.ops[number]
            if number in self.taken or not self._fits(op):
                return set()
            if number != last and any(self._leaves(tensor.id) for tensor in op.outputs):
                return set()
            members.add(number)
            makers = (self._view.producer.get(tensor.id) for tensor in op.inputs if tensor.id not in sources)
            waiting += [maker for maker in makers if maker is not None and maker not in members]
        return members if all(self._view.is_read_within(n, members) for n in members - {last}) else set()

    def _leaves(self, tensor_id: int) -> bool:
        return tensor_id in self._outputs or not self._view.users(tensor_id)

    def _make(self, spelling: Spelling, captured: _Captured, last: Op) -> Op | None:
        """The op in place of others; None where it would not be the same tensor, or does not fit."""
        attrs = {**spelling.attributes, **{key: captured[name] for key, name in spelling.numbers.items()}}
        sources = [self._tensors[captured[name]] for name in spelling.inputs]
        try:
            op = Op(last.id, spelling.kind, sources, last.outputs, last.name, **attrs).checked()
            [shape] = get_schema(op.kind).infer_shapes(op, [self._shape(tensor.id) for tensor in sources])
        except GraphpoolError:
            return None
        return op if self._fits(op) and _may_be_equal(shape, self._shape(last.outputs[0].id)) else None

    def _shape(self, tensor_id: int) -> _Shape:
        return self._shapes.get(tensor_id)

    # ---- matching

    def _match(self, pattern: Pattern, tensor_id: int, captured: _Captured, sign: float = 1.0) -> Iterator[_Captured]:
        """Every way in which the pattern fits what a tensor holds, given what was captured; a sign is a product's."""
        if isinstance(pattern, Name):
            if captured.get(pattern.name, tensor_id) == tensor_id:
                yield captured | {pattern.name: tensor_id}
        elif isinstance(pattern, Call):
            yield from self._match_call(pattern, tensor_id, captured)
        else:
            found = self._parts(tensor_id, type(pattern))
            bound = None if found is None else self._bind_number(pattern, found[0] * sign, captured)
            if found is not None and bound is not None and len(found[1]) == len(pattern.parts):
                yield from self._match_parts(type(pattern), pattern.parts, found[1], bound)

    def _match_parts(
        self, whole: type, wanted: Sequence[tuple[Pattern, float]], parts: _Parts, captured: _Captured
    ) -> Iterator[_Captured]:
        if not wanted:
            yield captured
            return
        (pattern, power), rest = wanted[0], wanted[1:]
        for k, (tensor_id, own) in enumerate(parts):
            is_negated = whole is Sum and own == -power and isinstance(pattern, Product)
            if own == power or is_negated:
                for found in self._match(pattern, tensor_id, captured, -1.0 if is_negated else 1.0):
                    yield from self._match_parts(whole, rest, parts[:k] + parts[k + 1 :], found)

    def _match_call(self, pattern: Call, tensor_id: int, captured: _Captured) -> Iterator[_Captured]:
        op = self._maker(tensor_id)
        if op is None or op.kind != pattern.kind:
            return
        numbers = _NUMBERS.get(op.kind, _no_numbers)(op, self._shape(op.inputs[0].id))
        if numbers is None or len(pattern.arguments) != len(op.inputs) + len(numbers):
            return
        ways = [captured]
        for wanted, tensor in zip(pattern.arguments, op.inputs, strict=False):
            ways = [
                found for way in ways if not isinstance(wanted, float) for found in self._match(wanted, tensor.id, way)
            ]
        for wanted, number in zip(pattern.arguments[len(op.inputs) :], numbers, strict=True):
            if isinstance(wanted, Name):
                ways = [way | {wanted.name: number} for way in ways if way.get(wanted.name, number) == number]
            elif not isinstance(wanted, float) or not self._is_close(number, wanted):
                return
        yield from ways

    def _bind_number(self, pattern: Product | Sum, number: float, captured: _Captured) -> _Captured | None:
        """What was captured with the pattern's number variable, or None where the numbers differ."""
        if pattern.variable is None:
            return captured if self._is_close(number, pattern.number) else None
        value = number / pattern.number if isinstance(pattern, Product) else number - pattern.number
        known = captured.get(pattern.variable, value)
        return captured | {pattern.variable: value} if self._is_close(known, value) else None

    def _is_close(self, a: float, b: float) -> bool:
        return math.isclose(a, b, rel_tol=self._tolerance, abs_tol=1e-12)

    # ---- products and sums of the graph

    def _maker(self, tensor_id: int) -> Op | None:
        number = self._view.producer.get(tensor_id)
        return None if number is None else self._view.ops[number]

    def _scalar(self, tensor_id: int) -> float | None:
        """The number that a tensor holds, if it is known."""
        tensor = self._tensors.get(tensor_id)
        return None if tensor is None or tensor_id in self._view.producer else tensor.value

    def _inner(self, tensor_id: int, is_top: bool) -> Op | None:
        """The op behind a tensor, where it may be taken apart: it is read once."""
        return self._maker(tensor_id) if is_top or len(self._view.consumers[tensor_id]) == 1 else None

    def _parts(self, tensor_id: int, whole: type) -> tuple[float, _Parts] | None:
        """A number and powers whose product, or signed terms whose sum, a tensor is; None where there are too many."""
        key = tensor_id, whole  # every spelling asks
        if key not in self._apart:
            self._apart[key] = self._take_apart(tensor_id, whole)
        return self._apart[key]

    def _take_apart(self, tensor_id: int, whole: type) -> tuple[float, _Parts] | None:
        is_product, inverses = whole is Product, _INVERSES[whole]
        number, parts = float(is_product), Counter[int]()
        waiting = [(tensor_id, 1, True)]
        for _ in range(_MOST_STEPS):
            if not waiting:
                return number, [(item, power) for item, power in parts.items() if power]
            item, power, is_top = waiting.pop()  # the power is 1 or -1
            scalar, op = self._scalar(item), self._inner(item, is_top)
            kind = None if op is None else op.kind
            if scalar is not None and (scalar or not is_product):
                number = number * scalar**power if is_product else number + power * scalar
            elif op is not None and kind in inverses:
                operands = [tensor.id for tensor in op.inputs]
                waiting += [(operand, power, False) for operand in operands[:-1]]
                waiting.append((operands[-1], power * inverses[kind], False))
                number = -number if is_product and kind == "Neg" else number
            else:
                base, exponent = self._power(op) if op is not None and is_product else (item, 1.0)
                parts[base] += power * exponent  # type: ignore[assignment]
        return None

    def _power(self, op: Op) -> tuple[int, float]:
        """Base and exponent of an op's result."""
        exponent = _EXPONENTS.get(op.kind) if op.kind != "Pow" else op.attrs["beta"]
        if op.kind == "Power":
            exponent = self._scalar(op.inputs[1].id)
        return (op.outputs[0].id, 1.0) if exponent is None else (op.inputs[0].id, exponent)


_ROOTS = {"Multiply": Product, "Divide": Product, "Add": Sum, "Subtract": Sum}
"""Kinds of the last op of an expression."""

_INVERSES: Mapping[type, Mapping[str | None, int]] = {
    Product: {"Multiply": 1, "Divide": -1, "Reciprocal": -1, "Neg": 1}, Sum: {"Add": 1, "Subtract": -1, "Neg": -1},
}  # fmt: skip
"""Kinds that are taken apart -> the power or sign of the last operand."""

_EXPONENTS = {"Sqrt": 0.5, "Square": 2.0}


def _no_numbers(op: Op, shape: _Shape) -> list[float] | None:
    return []


def _attributes(*names: str) -> Callable[[Op, _Shape], list[float] | None]:
    """Attributes of an op as numbers of a call."""
    return lambda op, shape: [op.attrs[name] for name in names]


def _reduced(op: Op, shape: _Shape) -> list[int] | None:
    """The axes of a reduction that keeps them, counted from the last; None where they are not known."""
    axes = op.attrs["axes"] or ()
    if len(op.inputs) > 1 or not op.attrs["keep_dims"] or (shape is None and any(axis >= 0 for axis in axes)):
        return None
    return sorted(axis - len(shape or ()) if axis >= 0 else axis for axis in axes)


def _one_axis(op: Op, shape: _Shape) -> list[float] | None:
    axes = _reduced(op, shape)
    return [axes[0]] if axes is not None and len(axes) == 1 else None


def _last_axes(op: Op, shape: _Shape) -> list[float] | None:
    """The first of the last axes."""
    axes = _reduced(op, shape)
    return [axes[0]] if axes and axes == list(range(axes[0], 0)) else None


_NUMBERS: Mapping[str, Callable[[Op, _Shape], list[float] | None]] = {
    "Clamp": _attributes("min", "max"), "HardSigmoid": _attributes("alpha", "beta"), "SoftPlus": _attributes("beta"),
    "ReduceMean": _last_axes, "ReduceMax": _one_axis, "ReduceSum": _one_axis,
}  # fmt: skip
"""Kind -> the numbers of a call: its attributes, or the axis; None for an op that no expression can say."""


def _may_be_equal(a: _Shape, b: _Shape) -> bool:
    """Whether two shapes are equal as far as they are known."""
    if a is None or b is None:
        return True
    return len(a) == len(b) and all(m == n or UNKNOWN_DIM in (m, n) for m, n in zip(a, b, strict=True))
