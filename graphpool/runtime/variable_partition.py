"""A partition compiled for sizes that may vary."""

from __future__ import annotations

from functools import partial
from operator import add, gt, le
from typing import TYPE_CHECKING, Any, Protocol

from graphpool._dataclasses import dataclass

from ._compiled import ALIGNMENT, CompiledPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphpool._size_bounds import SizeBounds
    from graphpool._size_program import SizeValues
    from graphpool.graph.logical_tensor import LogicalTensor
    from graphpool.graph.partition import Partition

    from ._program import Program
    from ._variable import VariableProgram
    from .primitive import Primitive
    from .shared_arenas import SharedArenas

__all__ = ["Plan", "VariablePartition"]


class Temporaries(Protocol):
    """The temporaries of a program, which a backend plans."""

    @property
    def sizes(self) -> Sequence[Any]:
        """Of each, an int or Size. Unit: bytes."""
        ...

    def plan(self, sizes: Sequence[int]) -> tuple[Sequence[int], int]:
        """Offset of each for other sizes, and the size of the arena. Unit: bytes."""
        ...


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
    temporaries : object
        What has sizes in their arenas, and plans them.
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
        uses: Sequence[tuple[int, tuple[int, ...]]],
    ) -> None:
        self.partition, self.inputs, self.outputs, self.engine = partition, inputs, outputs, engine
        self.primitive, self._variable, self._temporaries = primitive, variable, temporaries
        self._weights, self._uses = weights, uses
        self._plan: Plan | None = None
        self._ports = (*inputs, *outputs)
        self._varied = [k for k, tensor in enumerate(self._ports) if tensor.varies]

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
    ) -> CompiledPartition:
        """The compiled partition for other sizes, which shares all constants with the first.

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
        return self.compiled(first, self.program(values, slack, grows, plan), sized, arenas)

    def program(self, values: SizeValues, slack: bool, grows: bool, plan: Plan | None = None) -> Program:
        """The program of `instance`."""
        sizes = values.shape(self._temporaries.sizes)
        if plan is None:
            plan = self._plan_for(sizes, slack, grows)
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
        return all(map(le, values.shape(self._temporaries.sizes), plan.sizes))

    def _plan_for(self, sizes: tuple[int, ...], slack: bool, grows: bool) -> Plan:
        """The plan that is there, if it is not much too large; else an exact one, with room where sizes grow."""
        known = self._plan if slack else None
        is_growing = known is not None and any(map(gt, sizes, known.sizes))
        if known is not None and not is_growing and sum(known.sizes) <= 2 * sum(sizes):
            return known
        exact = self._plan_of(sizes)
        self._plan = exact.wider() if is_growing and grows else exact
        return self._plan

    def _plan_of(self, sizes: Sequence[int]) -> Plan:
        offsets, nbytes = self._temporaries.plan(sizes)
        return Plan(tuple(sizes), tuple(offsets), nbytes)


def _widened(units: int) -> int:
    """Bytes of so many units of alignment and an eighth of them."""
    return (units + units // 8) * ALIGNMENT


def _buffers_of(
    uses: Sequence[tuple[int, tuple[int, ...]]], sizes: Sequence[int], plan: Plan
) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """As in `ProgramDetails`."""
    return tuple([(plan.offsets[number], sizes[number], steps) for number, steps in uses])


@dataclass(frozen=True)
class Plan:
    """Sizes and offsets of temporaries, and the size of their arena. Unit: bytes."""

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    nbytes: int

    def wider(self) -> Plan:
        """The same order of places, with room for temporaries that are an eighth larger; so is the arena at most.

        In whole units of alignment k becomes k + k // 8, and floor(a / 8) + floor(b / 8) is at most floor((a + b) / 8):
        what lies behind a temporary still does.
        """
        sizes = tuple([max(size, _widened(size // ALIGNMENT)) for size in self.sizes])
        offsets = tuple([_widened(offset // ALIGNMENT) for offset in self.offsets])
        return Plan(sizes, offsets, max(map(add, offsets, sizes), default=0))
