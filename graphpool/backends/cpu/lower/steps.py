"""Kernel calls on values: what a lowering emits, one after another, and what of them runs once for constants."""

from __future__ import annotations

from contextlib import contextmanager
from math import prod
from operator import index
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from graphpool._dataclasses import NamedTuple, dataclass

from ...._kernels.eltwise.eltwise import EltwiseBuilder
from ...._kernels.move.index import gather, scatter
from ...._kernels.move.move import copy, gen_index
from ...._sizes import hint_of
from ....errors import UnsupportedError, explain
from ....runtime._program import ARENA, LITERALS
from ....typing import DataType, dense_strides
from ..support import register_between
from .values import Buffer, Value, strides_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from ...._kernels.core.call import KernelCall
    from ..layout.packed import WeightLayout

    Restore = Callable[["Emitter", Value], None]

__all__ = ["Emitter", "PackedConstant", "RowLoop", "Step"]

T = TypeVar("T")


class Step(NamedTuple):
    """A kernel call on values, in the order of the kernel's arguments; the name is for reports.

    Attributes
    ----------
    in_place : tuple of int
        Number of the argument that the step writes, then of those that it may write it over if their elements lie
        alike: it reads none of them again when it has written there. Empty where there is none.
    op_id : int
        Id of the first op of the group that the step belongs to.
    guard : (int, bool) or None
        The base pointer that decides whether a run takes the step, and whether it wants it there; None for always.
    scratch : Buffer or None
        What the kernel uses while it runs, for all threads; given when the number of threads is known.
    rewrites : bool
        Whether it writes into its last argument, which holds what another group has written.
    """

    call: KernelCall
    args: tuple[Value, ...]
    name: str
    in_place: tuple[int, ...]
    op_id: int
    guard: tuple[int, bool] | None = None
    scratch: Buffer | None = None
    rewrites: bool = False


@dataclass(frozen=True, slots=True)
class RowLoop:
    """Consecutive steps, from number `begin` up to `end`, that run once for each slice of the rows: so many `trips`.

    Values in a buffer of `paces`, or within one, move on by so many bytes from trip to trip; all others stay.
    """

    begin: int
    end: int
    trips: int
    paces: Mapping[Buffer, int]

    def moves(self, buffer: Buffer) -> bool:
        """Whether what lies in a buffer is another slice in each trip, though perhaps at the same place."""
        return buffer in self.paces or (buffer.within is not None and self.moves(buffer.within))

    def pace(self, buffer: Buffer) -> int:
        """How far what lies in a buffer moves on. Unit: bytes."""
        if buffer in self.paces:
            return self.paces[buffer]
        return 0 if buffer.within is None else self.pace(buffer.within)

    def with_hints(self) -> RowLoop:
        """The loop for the sizes that there are now."""
        paces = {buffer: hint_of(nbytes) for buffer, nbytes in self.paces.items()}
        return RowLoop(self.begin, self.end, hint_of(self.trips), paces)


@dataclass(frozen=True, slots=True)
class PackedConstant:
    """Constant inputs, by base pointer, packed as kernels want them, and the steps that pack them once.

    The base pointer of the `result`, which is bytes, is NULL in runs for which it is not kept. `restore` is the
    inverse: it emits the steps that write the one source from the result; None where that is impossible.
    """

    sources: tuple[int, ...]
    result: Value
    steps: tuple[Step, ...]
    restore: Restore | None = None


class Emitter:
    """Steps of one partition, the temporaries and literals that they use, and constants packed from `first_packed` on.

    `op_id` is what steps that are emitted belong to; `guard` is that of theirs.
    """

    def __init__(self, first_packed: int) -> None:
        self.steps: list[Step] = []
        self.literals = bytearray()
        self.packed: list[PackedConstant] = []
        self.op_id = -1
        self.guard: tuple[int, bool] | None = None
        self._first_packed = first_packed

    def temporary(
        self, shape: Sequence[int], dtype: DataType = DataType.F32, order: Sequence[int] | None = None
    ) -> Value:
        """A new temporary without gaps, row-major or with its axes in another order."""
        dims = tuple(shape)
        strides = dense_strides(dims) if order is None else strides_in(dims, order)
        return Value(dtype, dims, strides, Buffer(ARENA, dtype.nbytes(prod(dims))))

    def literal(self, array: np.ndarray[Any, Any]) -> Value:
        """Numbers that are known now, as a value; sizes among them then have their values in the whole compilation."""
        if array.dtype == object:
            array = array.astype(np.int64)
        offset = len(self.literals)
        self.literals += array.tobytes() + bytes(-array.nbytes % 64)
        buffer = Buffer(LITERALS, array.nbytes, offset)
        return Value(DataType.parse(array.dtype), array.shape, dense_strides(array.shape), buffer)

    def emit(
        self,
        call: KernelCall,
        args: Sequence[Value],
        name: str | None = None,
        *,
        in_place: Sequence[int] = (),
        rewrites: bool = False,
    ) -> None:
        """Append a kernel call on these values, in the kernel's order; calls without work are left out."""
        if call.ntasks > 0:
            label = f"{call.kernel.name}:{call.kernel.isa}" + ("" if name is None else f" {name}")
            made = Step(call, tuple(args), label, tuple(in_place), self.op_id, self.guard, rewrites=rewrites)
            self.steps.append(made)

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
        self.run_program(builder, [place, source], is_elementwise=True)

    def run_program(
        self, builder: EltwiseBuilder, args: Sequence[Value], name: str | None = None, *, is_elementwise: bool = False
    ) -> None:
        """Append an elementwise program; `is_elementwise`: it writes its first argument alone."""
        self.emit(builder.build(), args, name, in_place=range(len(args)) if is_elementwise else ())

    def positions(self, count: int) -> Value:
        """The numbers 0, 1, ..., s32."""
        place = self.temporary((count,), DataType.S32)
        self.emit(gen_index(place.shape, 0), [place])
        return place

    def gather(self, geometry: Mapping[str, Any], source: Value, indices: Value, place: Value) -> None:
        """Pick rows, whose geometry is that of `graphpool._kernels.move.index.gather`."""
        self.emit(gather(**geometry, index_dtype=indices.dtype.value), [source, indices, place])

    def scatter(
        self,
        geometry: Mapping[str, Any],
        updates: Value,
        indices: Value,
        place: Value,
        reduction: str,
        *,
        rewrites: bool = False,
    ) -> None:
        """Put rows, in order, whose geometry is that of `graphpool._kernels.move.index.scatter`.

        `rewrites`: as of `Step`.
        """
        index_dtype, dtype = indices.dtype.value, place.dtype.value
        call = scatter(**geometry, index_dtype=index_dtype, dtype=dtype, reduction=reduction)
        self.emit(call, [updates, indices, place], rewrites=rewrites)

    def dense(self, value: Value, dtype: DataType = DataType.F32, order: Sequence[int] | None = None) -> Value:
        """The value as elements of a type without gaps, row-major or in another order: itself, or a converted copy."""
        axes = tuple(range(len(value.shape))) if order is None else tuple(order)
        if value.dtype is dtype and value.lies_in(axes):
            return value
        place = self.temporary(value.shape, dtype, axes)
        self.move(value, place)
        return place

    def typed(self, value: Value, dtype: DataType = DataType.F32) -> Value:
        """The value as elements of a type, axes in the order in which they lie: itself, or a converted copy."""
        return value if value.dtype is dtype else self.dense(value, dtype, value.order)

    # ---- constants

    def pack(self, layout: WeightLayout, source: Value, place: Value) -> None:
        """Bring plain weights into a layout, in a place of bytes."""
        for call, *args in layout.pack(self.typed(source, layout.reads), place):
            self.emit(call, args)

    def unpack(self, layout: WeightLayout, packed: Value, place: Value) -> None:
        """The inverse; UnsupportedError where packing has changed values."""
        if not layout.is_exact(place.dtype):
            accepted = "layouts that keep every bit"
            hint = "keep the plain weights, or compile with prefer=memory and without fpmath"
            raise UnsupportedError(
                explain(f"unpacking {place.dtype} weights", accepted=accepted, got=layout.name, hint=hint)
            )
        plain = place if place.dtype is layout.reads else self.temporary(place.shape, layout.reads)
        for call, *args in layout.unpack(packed, plain):
            self.emit(call, args)
        if plain is not place:
            self.move(plain, place)

    def packed_constant(
        self,
        sources: Sequence[Value],
        nbytes: int,
        fill: Callable[[Value], None],
        restore: Restore | None = None,
    ) -> Value:
        """Constant inputs packed, so many bytes, which the constant tensor cache may keep.

        `fill` takes the packed constant as bytes, and emits the steps that write it from the sources alone; `restore`
        emits those that write every bit of the one source again, to an emitter of its own when somebody asks for them:
        it must not keep this one. The result is to be read under ``when_kept(result, True)`` only; other steps must
        compute the same without it, under ``when_kept(result, False)``. `read_packed` takes care of both.
        """
        nbytes = index(nbytes)  # what is packed once serves all sizes, or is that of one
        base = self._first_packed + len(self.packed)
        result = Value(DataType.U8, (nbytes,), (1,), Buffer(base, nbytes))
        bases = tuple(dict.fromkeys(source.buffer.base for source in sources))
        self.packed.append(PackedConstant(bases, result, self._steps_of(fill, result), restore))
        return result

    def _steps_of(self, emit: Callable[[Value], None], packed: Value) -> tuple[Step, ...]:
        """The steps that a call emits, which do not become steps of the partition."""
        outer, self.steps = self.steps, []
        guard, self.guard = self.guard, None
        emit(packed)
        steps = tuple(self.steps)
        self.steps, self.guard = outer, guard
        return steps

    @contextmanager
    def when_kept(self, packed: Value, is_kept: bool) -> Iterator[None]:
        """Let the steps emitted inside run only when a packed constant is kept, or only when it is not."""
        guard, self.guard = self.guard, (packed.buffer.base, is_kept)
        yield
        self.guard = guard

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
