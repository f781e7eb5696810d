"""A partition compiled for sizes that may vary."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from ._compiled import CompiledPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from graphpool._size_program import SizeValues
    from graphpool.graph.logical_tensor import LogicalTensor
    from graphpool.graph.partition import Partition

    from ._variable import VariableProgram
    from .primitive import Primitive
    from .shared_arenas import SharedArenas

__all__ = ["VariablePartition"]


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
    ) -> None:
        self.partition, self.inputs, self.outputs, self.engine = partition, inputs, outputs, engine
        self.primitive, self._variable, self._temporaries = primitive, variable, temporaries
        self._weights = weights
        self._plan: _Plan | None = None
        self._ports = (*inputs, *outputs)
        self._varied = [k for k, tensor in enumerate(self._ports) if tensor.varies]

    def first(self, values: SizeValues, scratch: str = "caller") -> CompiledPartition:
        """The compiled partition for the sizes of the compilation, and where those for others have temporaries."""
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
        arenas : SharedArenas, optional
            Where executions have their temporaries; the default is as for the first.
        """
        plan = self._plan_for(values, slack)
        program = self._variable.instance(values, plan.offsets, plan.nbytes)
        self.primitive.add_program(program)
        return first.resized(program, {k: sized(self._ports[k]) for k in self._varied}, arenas)

    def _plan_for(self, values: SizeValues, slack: bool) -> _Plan:
        """The plan that is there, if it is not much too large; else an exact one, with room where sizes grow."""
        sizes = [values.of(size) for size in self._temporaries.sizes]
        plan = self._plan if slack else None
        if plan is not None:
            is_growing = any(size > planned for size, planned in zip(sizes, plan.sizes, strict=True))
            if not is_growing and sum(plan.sizes) <= 2 * sum(sizes):
                return plan
            if is_growing:
                sizes = [size + size // 8 for size in sizes]
        offsets, nbytes = self._temporaries.plan(sizes)
        self._plan = _Plan(tuple(sizes), tuple(offsets), nbytes)
        return self._plan


@dataclass(frozen=True)
class _Plan:
    """Sizes and offsets of temporaries, and the size of their arena. Unit: bytes."""

    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    nbytes: int
