"""A partition compiled for sizes that may vary."""

from __future__ import annotations

from functools import partial
from operator import add
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass
from graphpool._size_program import Numbers, SizeTable

from ._compiled import ALIGNMENT, CompiledPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphpool._size_bounds import SizeBounds
    from graphpool._size_program import SizeValues
    from graphpool.graph.logical_tensor import LogicalTensor
    from graphpool.graph.partition import Partition

    from ._program import Program
    from ._variable import VariableProgram
    from .primitive import Buffers, Primitive
    from .shared_arenas import SharedArenas
    from .temporaries import Temporaries

__all__ = ["Plan", "VariablePartition"]


_MOST_PLANS = 6
"""To keep for sizes of several orders of magnitude: shapes that come at random would take turns with one."""


class VariablePartition:
    """A program for one set of sizes, and what makes programs for others of it.

    Parameters
    ----------
    partition : Partition
    inputs, outputs : tuple of LogicalTensor
        The ports in order, layouts settled; their sizes may vary.
    engine : Engine
    weights : {"cached", "scoped"}
    primitive : Primitive
        For the sizes of the compilation; no cache knows it.
    variable : VariableProgram
        What makes the programs for other sizes.
    temporaries : Temporaries
    sequential : Temporaries
        The same as if every step followed the one before; the temporaries themselves where that is so.
    uses : sequence of (int, tuple of int)
        Of each buffer the number of the temporary that it is, and the steps that use it.

    Notes
    -----
    Ownership: owns the primitive. Threads: one at a time.
    """

    def __init__(
        self,
        partition: Partition,
        inputs: tuple[LogicalTensor, ...],
        outputs: tuple[LogicalTensor, ...],
        engine: Any,
        weights: str,
        primitive: Primitive,
        variable: VariableProgram,
        temporaries: Temporaries,
        sequential: Temporaries,
        uses: Sequence[tuple[int, tuple[int, ...]]],
    ) -> None:
        self.partition, self.inputs, self.outputs, self.engine = partition, inputs, outputs, engine
        self.primitive, self._variable, self._temporaries = primitive, variable, temporaries
        self._sequential = None if sequential is temporaries else sequential
        self._weights, self._uses, self._sizes = weights, uses, SizeTable(temporaries.sizes)
        self._plans: list[Plan] = []
        self._need_nbytes = primitive.program.arena_nbytes
        self._stream_ratio = max(1.0, self._need_nbytes / max(1, primitive.details.sequential_nbytes))
        self._ports = (*inputs, *outputs)
        self._varied = [k for k, tensor in enumerate(self._ports) if tensor.varies]

    def __reduce__(self) -> tuple[Any, ...]:
        """As it was compiled: plans that were made since are left out."""
        temporaries = self._temporaries.linked()
        sequential = temporaries if self._sequential is None else self._sequential.linked()
        settled = self.partition, self.inputs, self.outputs, self.engine, self._weights, self.primitive
        return VariablePartition, (*settled, self._variable, temporaries, sequential, self._uses)

    def first(self, values: SizeValues | None, scratch: str = "caller") -> CompiledPartition:
        """The compiled partition for the sizes of the compilation, and where those for others have temporaries.

        `values` are None where no size varies.
        """
        inputs, outputs = ([tensor.with_sizes(values) for tensor in side] for side in (self.inputs, self.outputs))
        return CompiledPartition(
            self.partition,
            inputs,
            outputs,
            self.engine,
            primitive=self.primitive,
            scratch=scratch,
            weights=self._weights,
        )

    def instance(
        self,
        first: CompiledPartition,
        values: SizeValues,
        sized: Callable[[LogicalTensor], LogicalTensor],
        slack: bool,
        grows: bool,
        plan: Plan | None = None,
        arenas: SharedArenas | None = None,
    ) -> CompiledPartition | None:
        """The compiled partition for other sizes, which shares all constants with the first; None as of `program`.

        Parameters
        ----------
        first : CompiledPartition
        values : SizeValues
        sized : callable
            Gives a port for these values.
        slack : bool
            Whether the arena may be larger than needed, so that one plan serves sizes that are alike.
        grows : bool
            Whether a plan made anew has room for sizes that grow. Not for decisions that were taken for others: what
            these sizes need under their own, of which the room is an eighth, is not known.
        plan : Plan, optional
            One that holds for these sizes, instead of one made for them.
        arenas : SharedArenas, optional
            Where executions have their temporaries; the default is as for the first.
        """
        program = self.program(values, slack, grows, plan)
        return None if program is None else self.compiled(first, program, sized, arenas)

    def program(self, values: SizeValues, slack: bool, grows: bool, plan: Plan | None = None) -> Program | None:
        """The program of `instance`; None where the steps are on streams, and may need more memory than is due.

        How they are placed was chosen for the sizes of the compilation. What is due is an eighth more than these sizes
        need on one stream, times what streams took beyond one in the compilation: to place steps anew takes another.
        """
        sizes = self._sizes.of(values)
        if plan is None:
            plan = self._plan_for(sizes, values, slack, grows)
        if plan is None:
            return None
        program = self._variable.instance(values, plan.offsets, plan.nbytes)
        self.primitive.add_program(program, partial(_buffers_of, self._uses, sizes, plan))
        return program

    def compiled(
        self,
        first: CompiledPartition,
        program: Program,
        sized: Callable[[LogicalTensor], LogicalTensor],
        arenas: SharedArenas | None = None,
    ) -> CompiledPartition:
        """The compiled partition of `instance` that runs its program."""
        return first.resized(program, {k: sized(self._ports[k]) for k in self._varied}, arenas)

    @property
    def instance_nbytes(self) -> int:
        """Memory of a program for other sizes. Unit: bytes."""
        return self._variable.instance_nbytes

    def bounded_plan(self, bounds: SizeBounds) -> Plan:
        """The plan for the most that each temporary takes, which holds for all sizes within the bounds."""
        return self._plan_of([bounds.most(size) for size in self._temporaries.sizes])

    def is_within(self, plan: Plan, values: SizeValues) -> bool:
        """Whether a plan holds for these sizes."""
        return self._sizes.of(values).is_within(plan.sizes)

    def writer(self, program: Program, plan: Plan) -> tuple[VariableProgram, Program, Numbers]:
        """What rewrites a program that has this plan, as `TripSizes` takes it."""
        return self._variable, program, plan.offsets

    def room(self, plan: Plan) -> tuple[SizeTable, Numbers]:
        """What temporaries take, and the most that a plan has for them. Unit: bytes."""
        return self._sizes, plan.sizes

    def buffers(self, plan: Plan) -> Buffers:
        """Offset, size and steps of each temporary, as large as it was planned. Unit: bytes."""
        return _buffers_of(self._uses, plan.sizes, plan)

    def _plan_for(self, sizes: Numbers, values: SizeValues, slack: bool, grows: bool) -> Plan | None:
        """The smallest plan that is there, if it is not much too large; else a new one, with room if it may have any.

        None as of `program`.
        """
        known: Plan | None = None
        for plan in self._plans:
            if (known is None or plan.nbytes < known.nbytes) and sizes.is_within(plan.sizes):
                known = plan
        if known is not None and known.sizes.total <= 2 * sizes.total:
            return known
        exact = self._plan_of(tuple(sizes))
        most_nbytes = self._most_nbytes(exact, known, values)
        if exact.nbytes > most_nbytes:
            return known
        wider = exact.wider() if slack and self._plans and (grows or known is not None) else exact
        found = wider if wider.nbytes <= most_nbytes else exact
        if slack:
            self._plans = [found, *self._plans[: _MOST_PLANS - 1]]
        return found

    def _most_nbytes(self, exact: Plan, known: Plan | None, values: SizeValues) -> int:
        """What a plan may take: as much as one that is there, or an eighth more than sizes need. Unit: bytes."""
        if known is not None:
            return known.nbytes
        need_nbytes = exact.nbytes
        if self._sequential is not None:
            _, nbytes = self._sequential.plan(values.shape(self._sequential.sizes))
            need_nbytes = self._need_nbytes = max(self._need_nbytes, int(nbytes * self._stream_ratio))
        return need_nbytes + need_nbytes // 8

    def _plan_of(self, sizes: Sequence[int]) -> Plan:
        offsets, nbytes = self._temporaries.plan(sizes)
        return Plan(Numbers(sizes), Numbers(offsets), nbytes)


def _widened(units: int) -> int:
    """Bytes of so many units of alignment and an eighth of them."""
    return (units + units // 8) * ALIGNMENT


def _buffers_of(uses: Sequence[tuple[int, tuple[int, ...]]], sizes: Numbers, plan: Plan) -> Buffers:
    """As in `ProgramDetails`."""
    return tuple([(plan.offsets[number], sizes[number], steps) for number, steps in uses])


@dataclass(frozen=True)
class Plan:
    """Sizes and offsets of temporaries, and the size of their arena. Unit: bytes."""

    sizes: Numbers
    offsets: Numbers
    nbytes: int

    def wider(self) -> Plan:
        """The same order of places, with room for temporaries that are an eighth larger; so is the arena at most.

        In whole units of alignment k becomes k + k // 8, and floor(a / 8) + floor(b / 8) is at most floor((a + b) / 8):
        what lies behind a temporary still does. The last unit of each counts as a whole one, as nothing else lies in
        it: so small temporaries that grow, as masks and positions do word by word, have room too.
        """
        most_nbytes = self.nbytes + self.nbytes // 8
        offsets = Numbers([_widened(offset // ALIGNMENT) for offset in self.offsets])
        ends = [offset + _widened(-(-size // ALIGNMENT)) for offset, size in zip(offsets, self.sizes, strict=True)]
        sizes = Numbers([min(end, most_nbytes) - offset for end, offset in zip(ends, offsets, strict=True)])
        return Plan(sizes, offsets, max(map(add, offsets, sizes), default=0))
