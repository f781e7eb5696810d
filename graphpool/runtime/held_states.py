"""Outputs of a model that are the inputs of its next run: how a form is compiled for the memory in which they stay."""

from __future__ import annotations

from collections import Counter
from itertools import chain
from math import prod
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass, field, replace
from graphpool._size_program import SizeTable
from graphpool._sizes import hint_of, key_of
from graphpool.errors import InvalidShapeError, StateError, explain
from graphpool.fork import cached_property
from graphpool.typing import dense_strides

from .model_step import is_plain
from .variable_form import SizeName

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from graphpool._size_program import SizeValues
    from graphpool.graph import Op
    from graphpool.graph.logical_tensor import LogicalTensor
    from graphpool.graph.partition import Partition
    from graphpool.typing import DataType

    from .model_form import ModelForm

__all__ = ["HeldState", "HeldStates", "StateLimits"]


@dataclass(frozen=True)
class HeldState:
    """An output that is an input of the next run.

    Attributes
    ----------
    input, output : str
    dtype : DataType
    dims : tuple of int, str or None
        Of the input, as the model describes it.
    capacity : tuple of int
        The largest shape: its strides are those of all others.
    growing : tuple of int
        Axes along which a run makes it longer; they begin at 0.
    """

    input: str
    output: str
    dtype: DataType
    dims: tuple[int | str | None, ...]
    capacity: tuple[int, ...]
    growing: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Memory for the largest shape. Unit: bytes."""
        return prod(self.capacity) * self.dtype.numpy.itemsize

    def full(self, shape: Sequence[int], axis: int) -> tuple[int, ...]:
        """A shape that is as large as it may be along an axis without a name."""
        is_open = axis in self.growing and self.dims[axis] is None
        return (*shape[:axis], self.capacity[axis], *shape[axis + 1 :]) if is_open else tuple(shape)

    def settled(self, axis: int, shape: Sequence[int], left: Sequence[int] | None) -> HeldState:
        """The state where a run makes another shape of this one: an axis without a name that stays does not grow."""
        is_open = axis in self.growing and self.dims[axis] is None
        grows = left is None or len(left) != len(shape) or not is_open or left[axis] != shape[axis]
        return self if grows else replace(self, growing=tuple([other for other in self.growing if other != axis]))

    def describe_axis(self, axis: int) -> str:
        """An axis for messages."""
        dim = self.dims[axis]
        return f"{dim} (dimension {axis})" if isinstance(dim, str) else f"dimension {axis}"

    @property
    def strides(self) -> list[int]:
        """Of views of its memory. Unit: bytes."""
        return [stride * self.dtype.numpy.itemsize for stride in dense_strides(self.capacity)]

    def check(self, shape: Sequence[int]) -> None:
        """Raise unless a result of this shape can stay and be the next run's input.

        Raises
        ------
        InvalidShapeError
            It is no shape of the input.
        StateError
            There is no room for it.
        """
        if len(shape) != len(self.dims):
            raise self._unfit(shape, None)
        for axis, (dim, size, room) in enumerate(zip(self.dims, shape, self.capacity, strict=True)):
            if isinstance(dim, int) and size != dim:
                raise self._unfit(shape, axis)
            if hint_of(size) > hint_of(room):  # see `StateLimits`
                raise StateError(
                    explain(
                        f"state {self.input!r} has no room left: {self.describe_axis(axis)}",
                        accepted=f"at most {hint_of(room)}",
                        got=hint_of(size),
                        hint="reset or truncate the session, or make one with a larger capacity",
                    ),
                    input_name=self.input,
                    dim=axis,
                )

    def _unfit(self, shape: Sequence[int], axis: int | None) -> InvalidShapeError:
        message = explain(
            f"output {self.output!r} cannot be input {self.input!r} of the next run",
            accepted=f"shape {list(self.dims)}",
            got=list(map(hint_of, shape)),
        )
        return InvalidShapeError(message, output=self.output, dim=axis)


@dataclass(frozen=True, eq=False)
class HeldStates:
    """The states of sessions of one capacity. Immutable.

    Attributes
    ----------
    states : tuple of HeldState
    key : tuple
        Equal for equal states. `pairs`: for those that differ in nothing but their capacity.
    inputs, outputs : frozenset of str
    dims, shapes : dict
        The capacities as if they were shapes of inputs, which may vary where those of the states may.
    """

    states: tuple[HeldState, ...]
    key: tuple[Any, ...] = field(init=False)
    pairs: tuple[Any, ...] = field(init=False)
    inputs: frozenset[str] = field(init=False)
    outputs: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "pairs", tuple((state.input, state.output) for state in self.states))
        put(self, "key", (self.pairs, *chain(*(state.capacity for state in self.states))))
        put(self, "inputs", frozenset(state.input for state in self.states))
        put(self, "outputs", frozenset(state.output for state in self.states))

    @property
    def nbytes(self) -> int:
        """Memory of all at their largest. Unit: bytes."""
        return sum(state.nbytes for state in self.states)

    @cached_property
    def dims(self) -> dict[Any, Any]:
        """Of `shapes`: equal names are one size, as with inputs."""
        named = (
            [d if d is None or isinstance(d, int) else SizeName("capacity", d) for d in s.dims] for s in self.states
        )
        return {SizeName("capacity", s.input): tuple(dims) for s, dims in zip(self.states, named, strict=True)}

    @cached_property
    def shapes(self) -> dict[Any, tuple[int, ...]]:
        """The capacities by names that no input has."""
        return {SizeName("capacity", state.input): state.capacity for state in self.states}

    def sized(self, shapes: Mapping[Any, Any]) -> HeldStates:
        """The states with capacities of these `shapes`, in which sizes may vary."""
        sized = [replace(state, capacity=shapes[SizeName("capacity", state.input)]) for state in self.states]
        return HeldStates(tuple(sized))

    def place(self, form: ModelForm, tensors: Mapping[int, LogicalTensor]) -> dict[int, LogicalTensor]:
        """The tensors of a form, those of states with the strides that they have where they stay.

        Raises
        ------
        InvalidShapeError, StateError
            A result cannot stay, or has no room.
        """
        placed = dict(tensors)
        for state, tensor in self._held(form, tensors):
            state.check(tensor.shape or ())
            placed[tensor.id] = tensor.replace(strides=dense_strides(state.capacity))
        return placed

    def limits(self, form: ModelForm, tensors: Mapping[int, LogicalTensor]) -> StateLimits:
        """What other sizes must keep to, of tensors that were placed."""
        return StateLimits([(state, tensor.shape or ()) for state, tensor in self._held(form, tensors)])

    def _held(self, form: ModelForm, tensors: Mapping[int, LogicalTensor]) -> Iterator[tuple[HeldState, LogicalTensor]]:
        """Each state and the tensors that lie in its memory."""
        given = {*form.inputs.values(), *form.constants}
        for state in self.states:
            for tensor_id in (form.inputs[state.input], *({form.outputs[state.output]} - given)):
                tensor = tensors.get(tensor_id)
                if tensor is not None and is_plain(tensor):
                    yield state, tensor

    def appends(self, form: ModelForm, partition: Partition) -> list[tuple[int, int]]:
        """Ids of inputs and outputs of a partition: states that it makes longer at their end, and nothing else.

        Or that it makes longer, and then puts rows into, as caches of batch entries of several lengths are.
        """
        if not hasattr(partition.backend, "compile_variable"):
            return []
        wanted = {(form.inputs[state.input], form.outputs[state.output]) for state in self.states}
        joins = {op.outputs[0].id: op.inputs[0].id for op in partition.ops if lengthens(op)}
        readers = Counter(tensor.id for op in form.graph.ops for tensor in op.inputs)
        found = []
        for op in partition.ops:
            first = joins.get(op.outputs[0].id) if op.outputs else None
            if op.kind == "ScatterElements" and op.attrs["reduction"] == "none":
                joined = op.inputs[0].id
                first = joins.get(joined)
                if first is None or readers[joined] > 1 or readers[first] > 1:
                    continue  # who else reads what the rows replace might come too late
            if first is not None and (first, op.outputs[0].id) in wanted:
                found.append((first, op.outputs[0].id))
        return found


_ROOMIER = 4
"""So many times the capacity holds what a run makes of a full state."""


class StateLimits:
    """The sizes that states have in a form, and those that there is room for.

    They are no decisions of the compilation: no other one would find more room.
    """

    def __init__(self, rows: Sequence[tuple[HeldState, Sequence[int]]]) -> None:
        self._rows = rows
        pairs = [(size, room) for state, shape in rows for size, room in zip(shape, state.capacity, strict=True)]
        sizes, rooms = zip(*{key_of(pair): pair for pair in pairs}.values(), strict=True) if pairs else ((), ())
        self._sizes, self._rooms = SizeTable(sizes), SizeTable(rooms)

    def check(self, values: SizeValues) -> None:
        """Raise `StateError` where there is no room for these."""
        if not self._sizes.of(values).is_within(self._rooms.of(values)):
            for state, shape in self._rows:
                replace(state, capacity=values.shape(state.capacity)).check(values.shape(shape))

    def roomier(self, shapes: Mapping[Any, Any]) -> dict[Any, Any]:
        """Shapes with larger capacities: what the sizes of states are does not depend on these."""
        names = [SizeName("capacity", state.input) for state, _ in self._rows]
        return {**shapes, **{name: tuple([_ROOMIER * size for size in shapes[name]]) for name in names}}

    def check_room(self, values: SizeValues, shapes: Mapping[Any, Any]) -> None:
        """Raise `StateError` where there is no room in the capacities of these shapes."""
        for state, shape in self._rows:
            replace(state, capacity=shapes[SizeName("capacity", state.input)]).check(values.shape(shape))


def lengthens(op: Op) -> bool:
    """Whether an op makes its first input longer at the end, by others."""
    first, *others = (tensor.id for tensor in op.inputs) if op.kind == "Concat" else (None, None)
    return first not in others
