"""The state of one lowering: where values live, which temporaries there are, which steps were emitted."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ...._kernels.eltwise.eltwise import EltwiseBuilder
from ...._kernels.move.move import copy
from ....errors import UnsupportedError, explain
from ....runtime._program import ARENA, FIRST_EXTERNAL, LITERALS
from ....typing import DataType, LayoutType, PropertyType, dense_strides
from ..layout.opaque import panels_of, strides_of
from ..support import register_between
from .values import Buffer, Value, strides_in

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    import numpy as np

    from ...._kernels.core.call import KernelCall
    from ....graph.logical_tensor import LogicalTensor

__all__ = ["Lowering", "PackedConstant", "Step"]

T = TypeVar("T")


class Step(NamedTuple):
    """A kernel call on values.

    Attributes
    ----------
    call : KernelCall
    args : tuple of Value
        In the order of the kernel's arguments.
    name : str
        For reports.
    is_elementwise : bool
        Whether the step writes its first argument alone, and may write it over one that it reads in the same order.
    op_id : int
        Id of the first op of the group that the step belongs to.
    guard : (int, bool) or None
        The base pointer that decides whether a run takes the step, and whether it wants it there; None for always.
    scratch : Buffer or None
        What the kernel uses while it runs, for all threads; given when the number of threads is known.
    """

    call: KernelCall
    args: tuple[Value, ...]
    name: str
    is_elementwise: bool
    op_id: int
    guard: tuple[int, bool] | None = None
    scratch: Buffer | None = None


@dataclass(frozen=True, slots=True)
class PackedConstant:
    """Constant inputs packed as kernels want them, and the steps that pack them once.

    Attributes
    ----------
    sources : tuple of int
        Base pointers of the inputs.
    result : Value
        Its bytes; the base pointer is NULL in runs for which it is not kept.
    steps : tuple of Step
    restore : tuple of Step
        The inverse: steps that write the one source from it; none where that is impossible.
    """

    sources: tuple[int, ...]
    result: Value
    steps: tuple[Step, ...]
    restore: tuple[Step, ...] = ()


class Lowering:
    """Values, temporaries and steps of one partition while it is lowered.

    Parameters
    ----------
    inputs, outputs : sequence of LogicalTensor
        The external tensors in the program's order, layouts settled.
    shapes : mapping of int to tuple of int
        Shape of every tensor of the partition.
    dtypes : mapping of int to DataType
        Likewise.
    channels_last : collection of int, default=()
        Ids of tensors whose temporaries lie with their second axis innermost.
    prefer : {"memory", "latency"}, default="memory"
        Of the graph.
    fpmath : str, default="strict"
        Of the graph.

    Attributes
    ----------
    kinds : dict of int to str
        Op id -> kind, after all rewrites.
    horizontal_fusions : tuple of tuple of int
        Ids of convolutions that one call could compute.
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
    ) -> None:
        self.prefer = prefer
        self.fpmath = fpmath
        self.shapes = shapes
        self.dtypes = dtypes
        self.steps: list[Step] = []
        self.literals = bytearray()
        self.op_id = -1
        self.kinds: dict[int, str] = {}
        self.horizontal_fusions: tuple[tuple[int, ...], ...] = ()
        self._channels_last = channels_last
        self._arranged: dict[tuple[Any, ...], Value] = {}
        self.packed: list[PackedConstant] = []
        self._guard: tuple[int, bool] | None = None
        self._first_packed = FIRST_EXTERNAL + len(inputs) + len(outputs)
        self._constants = {n for n, t in enumerate(inputs, FIRST_EXTERNAL) if t.property is PropertyType.CONSTANT}
        self._values: dict[int, Value] = {}
        self._targets: dict[int, Value] = {}
        self._homes: dict[int, Value] = {}
        for number, tensor in enumerate(inputs, FIRST_EXTERNAL):
            self._values[tensor.id] = _external(tensor, number)
        for number, tensor in enumerate(outputs, FIRST_EXTERNAL + len(inputs)):
            self._targets[tensor.id] = _external(tensor, number)

    # ---- values

    def value(self, tensor_id: int) -> Value:
        """Where the tensor lies.

        Raises
        ------
        UnsupportedError
            It lies in panels, which no strides describe.
        """
        value = self._values[tensor_id]
        if value.panels is not None:
            raise UnsupportedError(
                explain(
                    f"tensor {tensor_id} lies in panels, which only the product that they were made for reads",
                    hint="put a Reorder op in front",
                ),
                tensor_id=tensor_id,
            )
        return value

    def any_value(self, tensor_id: int) -> Value:
        """Where the tensor lies, be it in panels."""
        return self._values[tensor_id]

    def has_value(self, tensor_id: int) -> bool:
        """Whether the tensor was given or computed already."""
        return tensor_id in self._values

    def is_output(self, tensor_id: int) -> bool:
        """Whether the tensor leaves the partition."""
        return tensor_id in self._targets

    def order_of(self, tensor_id: int) -> tuple[int, ...]:
        """The axes of the tensor in the order in which its temporaries lie, outermost first."""
        ndim = len(self.shapes[tensor_id])
        return (0, *range(2, ndim), 1) if tensor_id in self._channels_last else tuple(range(ndim))

    def temporary(
        self, shape: Sequence[int], dtype: DataType = DataType.F32, order: Sequence[int] | None = None
    ) -> Value:
        """A new temporary without gaps, row-major or with its axes in another order."""
        dims = tuple(shape)
        strides = dense_strides(dims) if order is None else strides_in(dims, order)
        return Value(dtype, dims, strides, Buffer(ARENA, dtype.nbytes(prod(dims))))

    def literal(self, array: np.ndarray[Any, Any]) -> Value:
        """Numbers that are known now, as a value."""
        offset = len(self.literals)
        self.literals += array.tobytes() + bytes(-array.nbytes % 64)
        buffer = Buffer(LITERALS, array.nbytes, offset)
        return Value(DataType.parse(array.dtype), array.shape, dense_strides(array.shape), buffer)

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
        if place is not None and place.panels is None and place.dtype is wanted:
            fits = place.lies_in(axes) or (any_strides and axes == row_major)
            if (gaps or any_strides) and not fits:
                fits = place.row_strides(axes) is not None
            return place if fits else self.temporary(self.shapes[tensor_id], wanted, axes)
        return self.temporary(self.shapes[tensor_id], wanted, axes)

    def settle(self, tensor_id: int, home: Value) -> None:
        """Say where a tensor that stays inside should lie, if the kernel that computes it can write there."""
        self._homes[tensor_id] = home

    def home(self, tensor_id: int) -> Value | None:
        """Where `settle` wants the tensor."""
        return self._homes.get(tensor_id)

    def place(self, tensor_id: int) -> Value | None:
        """Where an output belongs, be it in panels; None for tensors that stay inside."""
        return self._targets.get(tensor_id)

    def finish(self, tensor_id: int, result: Value) -> None:
        """Say that `result` holds the tensor; it is converted or copied to where the tensor belongs if need be."""
        place = self._targets.get(tensor_id)
        if place is None and result.dtype is self.dtypes[tensor_id]:
            self._values[tensor_id] = result
            return
        place = place or self.temporary(result.shape, self.dtypes[tensor_id], result.order)
        if place is not result:
            if place.panels is not None:
                raise UnsupportedError(
                    explain(f"tensor {tensor_id} cannot be written in panels", hint="put a Reorder op behind it"),
                    tensor_id=tensor_id,
                )
            self.move(result, place)
        self._values[tensor_id] = place

    # ---- constants

    def is_constant(self, value: Value) -> bool:
        """Whether the value is a constant input, or a view of one."""
        return value.buffer.base in self._constants

    def packed_constant(
        self,
        sources: Sequence[Value],
        nbytes: int,
        fill: Callable[[Value], None],
        restore: Callable[[Value], None] | None = None,
    ) -> Value:
        """Constant inputs packed, which the constant tensor cache may keep.

        Parameters
        ----------
        sources : sequence of Value
            For which `is_constant` holds.
        nbytes : int
            Of the packed constant. Unit: bytes.
        fill : callable
            Takes the packed constant as bytes, and emits the steps that write it from the sources alone.
        restore : callable, optional
            Takes the packed constant, and emits the steps that write every bit of the one source again.

        Returns
        -------
        result : Value
            To be read under ``when_kept(result, True)`` only; other steps must compute the same without it, under
            ``when_kept(result, False)``. `read_packed` takes care of both.
        """
        base = self._first_packed + len(self.packed)
        result = Value(DataType.U8, (nbytes,), (1,), Buffer(base, nbytes))
        bases = tuple(dict.fromkeys(source.buffer.base for source in sources))
        inverse = () if restore is None else self._steps_of(restore, result)
        self.packed.append(PackedConstant(bases, result, self._steps_of(fill, result), inverse))
        return result

    def _steps_of(self, emit: Callable[[Value], None], packed: Value) -> tuple[Step, ...]:
        """The steps that a call emits, which do not become steps of the partition."""
        outer, self.steps = self.steps, []
        guard, self._guard = self._guard, None
        emit(packed)
        steps = tuple(self.steps)
        self.steps, self._guard = outer, guard
        return steps

    @contextmanager
    def when_kept(self, packed: Value, is_kept: bool) -> Iterator[None]:
        """Let the steps emitted inside run only when a packed constant is kept, or only when it is not."""
        guard, self._guard = self._guard, (packed.buffer.base, is_kept)
        yield
        self._guard = guard

    def read_packed(self, packed: Value, emit: Callable[[], T]) -> T:
        """Let a call emit steps that read a packed constant: as it is kept, else in a temporary that each run fills.

        For those that take no more memory than other ways to the result do.
        """
        begin = len(self.steps)
        with self.when_kept(packed, True):
            result = emit()
        kept = self.steps[begin:]
        made, guard = Buffer(ARENA, packed.buffer.nbytes), (packed.buffer.base, False)
        [own] = (one for one in self.packed if one.result is packed)
        for step in (*own.steps, *kept):
            args = [arg._replace(buffer=made) if arg.buffer is packed.buffer else arg for arg in step.args]
            self.steps.append(step._replace(args=tuple(args), guard=guard))
        return result

    # ---- steps

    def emit(
        self, call: KernelCall, args: Sequence[Value], name: str | None = None, *, is_elementwise: bool = False
    ) -> None:
        """Append a kernel call on these values, in the kernel's order; calls without work are left out."""
        if call.ntasks > 0:
            label = f"{call.kernel.name}:{call.kernel.isa}" + ("" if name is None else f" {name}")
            self.steps.append(Step(call, tuple(args), label, is_elementwise, self.op_id, self._guard))

    def move(self, source: Value, place: Value) -> None:
        """Copy or convert one value into another of the same shape."""
        if source.dtype is place.dtype and source.dtype.bits >= 8:
            call = copy(source.shape, source.strides, place.strides, source.dtype.bits // 8)
            self.emit(call, [source, place])
            return
        order = place.order
        source, place = source.transposed(order), place.transposed(order)
        builder = EltwiseBuilder(source.shape, register=register_between(source.dtype, place.dtype))
        loaded = builder.load(1, source.dtype.value, source.strides)
        builder.store(0, place.dtype.value, place.strides, loaded)
        self.emit(builder.build(), [place, source], is_elementwise=True)

    def dense(self, value: Value, dtype: DataType = DataType.F32, order: Sequence[int] | None = None) -> Value:
        """The value as elements of a type without gaps, row-major or in another order: itself, or a converted copy."""
        axes = tuple(range(len(value.shape))) if order is None else tuple(order)
        if value.dtype is dtype and value.lies_in(axes):
            return value
        place = self.temporary(value.shape, dtype, axes)
        self.move(value, place)
        return place

    def arranged(self, tensor_id: int, order: Sequence[int], dtype: DataType = DataType.F32) -> Value:
        """The tensor as elements of a type, axes in this order, perhaps with gaps between rows.

        Itself, or a copy that all who ask for it in the same run share.
        """
        key, value = (tensor_id, tuple(order), dtype, self._guard), self.value(tensor_id)
        if value.dtype is dtype and value.row_strides(order) is not None:
            return value
        always = *key[:3], None
        if key not in self._arranged and always not in self._arranged:
            self._arranged[key] = self.dense(value, dtype, order)
        return self._arranged.get(key) or self._arranged[always]

    def typed(self, value: Value, dtype: DataType = DataType.F32) -> Value:
        """The value as elements of a type, axes in the order in which they lie: itself, or a converted copy."""
        return value if value.dtype is dtype else self.dense(value, dtype, value.order)


def _external(tensor: LogicalTensor, number: int) -> Value:
    """An external tensor as a value."""
    shape = tensor.shape or ()
    panels = panels_of(tensor)
    if panels is not None:
        return Value(tensor.dtype, shape, dense_strides(shape), Buffer(number, tensor.nbytes), 0, panels)
    strides = tensor.strides if tensor.layout is LayoutType.STRIDED else strides_of(tensor)
    return Value(tensor.dtype, shape, strides or dense_strides(shape), Buffer(number, tensor.nbytes))
