"""Where the tensors of a partition lie while it is lowered: given, asked for, or computed by what was emitted."""

from __future__ import annotations

import copy
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import replace

from ...._sizes import hint_of, is_variable, key_of
from ....errors import UnsupportedError, explain
from ....runtime._program import ARENA, FIRST_EXTERNAL
from ....typing import DataType, LayoutType, PropertyType, dense_strides
from ..layout.opaque import layout_id_of, strides_of, weight_layout_of
from .steps import Emitter, RowLoop, Step
from .values import Buffer, Value

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from ....graph.logical_tensor import LogicalTensor
    from ..layout.packed import WeightLayout
    from ..layout.slices import Slices

__all__ = ["Lowering"]


class Lowering(Emitter):
    """An emitter that knows where the tensors of a partition lie, and where its results belong.

    Parameters
    ----------
    inputs, outputs : sequence of LogicalTensor
        The external tensors in the program's order, layouts settled, but for ``any`` of inputs: their layouts are
        chosen, and the steps are of no use.
    shapes, dtypes : mapping of int to tuple of int, mapping of int to DataType
        Of every tensor of the partition.
    channels_last : collection of int, default=()
        Ids of tensors whose temporaries lie with their second axis innermost.
    prefer, fpmath : str
        Of the graph.
    appends : mapping of int to int, optional
        Ids of outputs by those of inputs that lie at their beginning, in the same memory.
    threads : int, default=1
        That share each step.
    slices : sequence of Slices
        What is lowered for some rows at a time: the shapes of what lies between their groups are those of a slice.
    """

    def __init__(
        self,
        inputs: Sequence[LogicalTensor],
        outputs: Sequence[LogicalTensor],
        shapes: Mapping[int, tuple[int, ...]],
        dtypes: Mapping[int, DataType],
        channels_last: Collection[int] = (),
        prefer: str = "memory",
        fpmath: str = "strict",
        appends: Mapping[int, int] | None = None,
        threads: int = 1,
        slices: Sequence[Slices] = (),
    ) -> None:
        first_output = FIRST_EXTERNAL + len(inputs)
        super().__init__(first_output + len(outputs))
        self.prefer = prefer
        self.fpmath = fpmath
        self.threads = threads
        self._inner = {i: run.count for run in slices for i in run.made - run.kept}
        self.shapes = {**shapes, **{i: (count, *shapes[i][1:]) for i, count in self._inner.items()}}
        self.dtypes = dtypes
        self.loops: list[RowLoop] = []
        self._run_of = {tensor_id: number for number, run in enumerate(slices) for tensor_id in run.made}
        self.kinds: dict[int, str] = {}  # by op id, after all rewrites
        self.horizontal_fusions: tuple[tuple[int, ...], ...] = ()  # ids of convolutions that one call could compute
        self.free = frozenset(tensor.id for tensor in inputs if tensor.layout is LayoutType.ANY)
        self.chosen: dict[int, WeightLayout] = {}  # for tensors that are free
        self._channels_last = channels_last
        self._arranged: dict[tuple[Any, ...], Value] = {}
        self._constants = {n for n, t in enumerate(inputs, FIRST_EXTERNAL) if t.property is PropertyType.CONSTANT}
        self._values = {tensor.id: _external(tensor, number) for number, tensor in enumerate(inputs, FIRST_EXTERNAL)}
        self._targets = {tensor.id: _external(tensor, number) for number, tensor in enumerate(outputs, first_output)}
        for source, result in (appends or {}).items():
            value = self._values[source]
            self._values[source] = value._replace(buffer=replace(value.buffer, within=self._targets[result].buffer))
        self._homes: dict[int, Value] = {}
        self._of_slices: dict[int, Value] = {}  # what nobody else reads

    def with_hints(self) -> Lowering:
        """The same steps for the sizes that there are now, as plain numbers: what costs are estimated by."""
        if not any(is_variable(size) for shape in self.shapes.values() for size in shape):
            return self
        found = copy.copy(self)
        found.steps = [
            Step(step.call.with_hints(), tuple([value.with_hints() for value in step.args]), *step[2:])
            for step in self.steps
        ]
        found.shapes = {tensor_id: tuple(map(hint_of, shape)) for tensor_id, shape in self.shapes.items()}
        found.loops = [loop.with_hints() for loop in self.loops]
        return found

    def held_tensors(self) -> dict[Buffer, int]:
        """The tensor that each buffer holds first: of the whole of it, or else of a part."""
        found: dict[Buffer, int] = {}
        values = {**self._of_slices, **self._values}
        for tensor_id, value in sorted(values.items(), key=lambda item: item[1].buffer.within is not None):
            found.setdefault(value.buffer.whole, tensor_id)
        return found

    def value(self, tensor_id: int) -> Value:
        """Where the tensor lies. Raises UnsupportedError where it is packed, which no strides describe."""
        value = self._values[tensor_id]
        if value.layout is not None:
            raise UnsupportedError(
                explain(
                    f"tensor {tensor_id} lies in {value.layout.name}, which only what they were made for reads",
                    hint="put a Reorder op in front",
                ),
                tensor_id=tensor_id,
            )
        return value

    def any_value(self, tensor_id: int) -> Value:
        """Where the tensor lies, be it packed."""
        return self._values[tensor_id]

    def find_given(self, tensor_id: int, layouts: Sequence[WeightLayout]) -> WeightLayout | None:
        """Which of the layouts that kernels could read constant weights have; None where they are plain.

        Those whose layout is to be chosen get the first one. Raises UnsupportedError where they have another one.
        """
        given = self._values[tensor_id].layout
        if tensor_id in self.free:
            self.chosen[tensor_id] = layouts[0]
            return layouts[0] if layout_id_of(layouts[0]) is not None else None
        if given is None:
            return None
        wanted = layout_id_of(given)
        found = next((layout for layout in layouts if layout_id_of(layout) == wanted), None)
        if found is None:
            raise UnsupportedError(
                explain(
                    f"tensor {tensor_id}: packed weights",
                    accepted=", ".join(layout.name for layout in layouts),
                    got=given.name,
                    hint="put a Reorder op in front",
                ),
                tensor_id=tensor_id,
            )
        return found

    def is_given(self, tensor_id: int) -> bool:
        """Whether the user brings a tensor packed, or lets its layout be chosen."""
        return tensor_id in self.free or self._values[tensor_id].layout is not None

    def has_value(self, tensor_id: int) -> bool:
        """Whether the tensor was given or computed already."""
        return tensor_id in self._values

    def order_of(self, tensor_id: int) -> tuple[int, ...]:
        """The axes of the tensor in the order in which its temporaries lie, outermost first."""
        ndim = len(self.shapes[tensor_id])
        return (0, *range(2, ndim), 1) if tensor_id in self._channels_last else tuple(range(ndim))

    def target(
        self,
        tensor_id: int,
        *,
        dtype: DataType | None = None,
        order: Sequence[int] | None = None,
        gaps: bool = False,
        any_strides: bool = False,
    ) -> Value:
        """Where a kernel that writes this type may put the tensor.

        That is the place where the tensor belongs if it suits the kernel, else a temporary; `finish` moves the result.
        The kernel writes axes in this order (row-major by default), without gaps unless it can leave them between rows
        (`gaps`); with `any_strides` it can do otherwise, and does where the order is row-major.
        """
        wanted = dtype or self.dtypes[tensor_id]
        place = self._targets.get(tensor_id) or self._homes.get(tensor_id)
        row_major = tuple(range(len(self.shapes[tensor_id])))
        axes = row_major if order is None else tuple(order)
        if place is not None and place.layout is None and place.dtype is wanted:
            fits = place.lies_in(axes) or (any_strides and axes == row_major)
            if (gaps or any_strides) and not fits:
                fits = place.row_strides(axes) is not None
            return place if fits else self.temporary(self.shapes[tensor_id], wanted, axes)
        return self.temporary(self.shapes[tensor_id], wanted, axes)

    def settle(self, tensor_id: int, home: Value) -> None:
        """Say where a tensor that stays inside should lie, if the kernel that computes it can write there."""
        self._homes[tensor_id] = home

    def settle_under(self, tensor_id: int, output_id: int) -> None:
        """Let a tensor that stays inside lie where an output does, which is it but for some elements."""
        self.settle(tensor_id, self._targets[output_id])

    def settle_before_reshape(self, tensor_id: int, result_id: int) -> None:
        """Let a tensor that is computed lie where its reshape should, if that place is known and without gaps."""
        place = self._targets.get(result_id) or self._homes.get(result_id)
        is_free = not any(tensor_id in taken for taken in (self._values, self._targets, self._homes))
        if is_free and place is not None and place.is_plain_block:
            self.settle(tensor_id, place.reshaped(self.shapes[tensor_id]))

    def home(self, tensor_id: int) -> Value | None:
        """Where `settle` wants the tensor."""
        return self._homes.get(tensor_id)

    def place(self, tensor_id: int) -> Value | None:
        """Where an output belongs, be it packed; None for tensors that stay inside."""
        return self._targets.get(tensor_id)

    def finish(self, tensor_id: int, result: Value) -> None:
        """Say that `result` holds the tensor; it is converted or copied to where the tensor belongs if need be."""
        place = self._targets.get(tensor_id)
        if place is None and result.dtype is self.dtypes[tensor_id]:
            self._values[tensor_id] = result
            return
        place = place or self.temporary(result.shape, self.dtypes[tensor_id], result.order)
        if place is not result:
            if place.layout is not None:
                raise UnsupportedError(
                    explain(f"tensor {tensor_id} cannot be written packed", hint="put a Reorder op behind it"),
                    tensor_id=tensor_id,
                )
            self.move(result, place)
        self._values[tensor_id] = place

    def may_lie_within(self, tensor_id: int, other_id: int) -> bool:
        """Whether there is as much of the other tensor at a time: the same slices make both, or none does."""
        is_part = other_id in self._inner and tensor_id not in self._inner
        return not is_part and self._run_of.get(tensor_id) == self._run_of.get(other_id)

    @contextmanager
    def sliced(self, run: Slices) -> Iterator[None]:
        """Let what is emitted inside see the first slice of what others made or read, and run once for each slice."""
        outer = self.shapes, self._values, self._targets, self._homes, self._arranged
        wholes = {i: self._whole(i) for i in run.kept}
        buffers = {value.buffer.whole for value in wholes.values()}
        paces: dict[Buffer, int] = {}

        def first(value: Value) -> Value:
            """The first slice, as memory that moves on from trip to trip."""
            part = value.cut(0, 0, run.count)
            part = part._replace(buffer=replace(value.buffer, within=value.buffer))
            paces[part.buffer] = value.dtype.nbytes(run.count * value.strides[0])
            return part

        seen = {*run.read, *run.kept}
        self.shapes = {**self.shapes, **{i: (run.count, *self.shapes[i][1:]) for i in seen}}
        self._values = {**self._values, **{i: first(self._values[i]) for i in run.read}}
        self._targets = {i: first(value) for i, value in wholes.items()}
        homes = {i: home for i, home in self._homes.items() if i in run.made}
        homes = {
            i: first(home) if home.buffer.base != ARENA or home.buffer.whole in buffers else home
            for i, home in homes.items()
        }  # others that have all rows lie in what the slices do not write: a joined tensor that its output copies
        self._homes = {i: home for i, home in homes.items() if key_of(home.shape[:1]) == (run.count,)}
        self._arranged = {}
        begin = len(self.steps)
        yield
        values = self._values
        self.shapes, self._values, self._targets, self._homes, self._arranged = outer
        self._values |= wholes
        self._of_slices |= {i: values[i] for i in run.made - run.kept if i in values}
        if len(self.steps) > begin:
            self.loops.append(RowLoop(begin, len(self.steps), run.trips, paces))

    def _whole(self, tensor_id: int) -> Value:
        """Where a tensor goes that slices make and others read."""
        place = self._targets.get(tensor_id) or self._homes.get(tensor_id)
        return place or self.temporary(self.shapes[tensor_id], self.dtypes[tensor_id], self.order_of(tensor_id))

    def is_constant(self, value: Value) -> bool:
        """Whether the value is a constant input, or a view of one."""
        return value.buffer.base in self._constants

    def arranged(self, tensor_id: int, order: Sequence[int], dtype: DataType = DataType.F32) -> Value:
        """The tensor as elements of a type, axes in this order, perhaps with gaps between rows.

        Itself, or a copy that all who ask for it in the same run share.
        """
        key, value = (tensor_id, tuple(order), dtype, self.guard), self.value(tensor_id)
        if value.dtype is dtype and value.row_strides(order) is not None:
            return value
        always = *key[:3], None
        if key not in self._arranged and always not in self._arranged:
            self._arranged[key] = self.dense(value, dtype, order)
        return self._arranged.get(key) or self._arranged[always]


def _external(tensor: LogicalTensor, number: int) -> Value:
    """An external tensor as a value."""
    shape = tensor.shape or ()
    layout = weight_layout_of(tensor)
    if layout is not None:
        return Value(tensor.dtype, shape, dense_strides(shape), Buffer(number, layout.nbytes), 0, layout)
    if tensor.layout is LayoutType.ANY:
        return Value(tensor.dtype, shape, dense_strides(shape), Buffer(number, tensor.dtype.nbytes(tensor.size)))
    strides = tensor.strides if tensor.layout is LayoutType.STRIDED else strides_of(tensor)
    return Value(tensor.dtype, shape, strides or dense_strides(shape), Buffer(number, tensor.nbytes))
