"""The memory of one run of a form: places in its arena, its results, and room for host functions."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass
from graphpool.fork import cached_property

from .host_room import NO_ROOM, HostRoom, RunBound
from .inner_models import InnerModels
from .model_step import find_buffers, is_plain, plan_arena

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from graphpool.graph.logical_tensor import LogicalTensor
    from graphpool.memory import BufferInfo, Planner

    from ._form_sizes import SizedArrays
    from ._program import Program
    from .model_step import ModelStep
    from .variable_partition import Plan

__all__ = ["FormPlan", "RangeLayout", "TensorPlaces"]


@dataclass(frozen=True)
class RangeLayout:
    """Places of all that one arena holds in the runs of a form, whatever the shapes in a range: for the largest sizes.

    No two tensors that live at one time share bytes, as every one is at most as large as it was planned, and lives
    through the same steps for all shapes of a form.

    Attributes
    ----------
    plans : tuple of Plan
        Of the temporaries of each compiled partition.
    sizes : dict of int to int
        Tensor between partitions -> most bytes that it takes.
    offsets : dict
        As of `plan_arena`.
    nbytes : int
        Size of the arena. Unit: bytes.
    """

    plans: tuple[Plan, ...]
    sizes: Mapping[int, int]
    offsets: Mapping[Any, int]
    nbytes: int

    def holds(self, tensors: Mapping[int, LogicalTensor]) -> bool:
        """Whether no tensor is larger than planned; partitions say that of their temporaries."""
        return all(tensors[i].nbytes <= nbytes for i, nbytes in self.sizes.items())


class TensorPlaces:
    """Where the tensors of a form lie, whatever their sizes: in the arena, or in arrays that runs are given or make.

    Parameters
    ----------
    outputs : mapping of str to int
        Ids by name.
    tensors : mapping of int to LogicalTensor
        Of any sizes.
    steps : sequence of ModelStep
    held : collection of str
        Names of the outputs that go into the memory of a session.
    planner : Planner, optional
        The user's.
    copied_nbytes : int
        Constants that are outputs and no tensors, of which a run makes copies. Unit: bytes.

    Attributes
    ----------
    targets : list of int
        Outputs that steps write directly.
    between : list of int
        Tensors that lie in the arena.
    fresh : list of int
        Outputs that runs make arrays for.
    hosted : list of ModelStep
        Those that the host runs.
    before_functions : list of ModelStep
        Those of them behind which a host function comes that takes of what a run has reserved for these.
    """

    def __init__(
        self,
        outputs: Mapping[str, int],
        tensors: Mapping[int, LogicalTensor],
        steps: Sequence[ModelStep],
        held: Collection[str],
        planner: Planner | None,
        copied_nbytes: int = 0,
    ) -> None:
        self.outputs, self.steps, self.planner = outputs, steps, planner
        made = {i for step in steps for i in step.outputs}
        self.targets = [i for i in outputs.values() if i in made]
        self.between = [i for i in made.difference(self.targets) if is_plain(tensors[i])]
        self.fresh = [i for name, i in outputs.items() if name not in held]
        self._copied_nbytes = copied_nbytes
        self._fresh_kinds: list[int] | None = None
        self.hosted = [step for step in steps if step.compiled is None]
        functions = [k for k, step in enumerate(self.hosted) if not isinstance(step.function, InnerModels)]
        self.before_functions = self.hosted[: functions[-1]] if functions else []

    def fresh_kinds(self, numbers: Mapping[int, int]) -> list[int]:
        """Of each result that a run makes, and whose shape is known, the number of its kind, whatever the sizes."""
        if self._fresh_kinds is None:
            self._fresh_kinds = [numbers[i] for i in self.fresh if i in numbers]
        return self._fresh_kinds

    def plan(
        self, tensors: Mapping[int, LogicalTensor], programs: Sequence[Program | None]
    ) -> tuple[Mapping[Any, int], int]:
        """Places in an arena, as of `plan_arena`, and its size, with the scratch memory of these programs."""
        if len(programs) == 1 and not self.between:  # as for most models: one program, which knows its temporaries
            nbytes = 0 if programs[0] is None else programs[0].arena_nbytes
            return {~0: 0} if nbytes else {}, nbytes
        scratch = [0 if program is None else program.arena_nbytes for program in programs]
        return plan_arena(self.steps, self.sizes(tensors), scratch, self.planner)

    def sizes(self, tensors: Mapping[int, LogicalTensor]) -> dict[int, int]:
        """Memory of those that lie in the arena. Unit: bytes."""
        return {i: tensors[i].nbytes for i in self.between}

    def host_room(self, tensors: Mapping[int, LogicalTensor]) -> HostRoom:
        """What the host functions take at most, but for those that run models, which count it themselves."""
        # asked anew: forms of GPUs, whose runs take what lies on the host otherwise, have none in `hosted`
        functions = [step for step in self.hosted if not isinstance(step.function, InnerModels)]
        return HostRoom.of(tensors, functions, self._copied_nbytes) if functions or self._copied_nbytes else NO_ROOM


class FormPlan:
    """Offsets of the tensors between steps and of the scratch memory of steps, and what a run takes beside them.

    `arrays` describes the outputs that lie in memory, `programs` are those of the steps, for these sizes. With a
    `layout` the arena is as it says. `results_nbytes` is the memory of the results of a run, `host` that
    for host functions.
    """

    def __init__(
        self,
        places: TensorPlaces,
        tensors: Mapping[int, LogicalTensor],
        arrays: SizedArrays,
        programs: Sequence[Program | None],
        layout: RangeLayout | None,
    ) -> None:
        self._places, self._programs, self._tensors, self._layout = places, programs, tensors, layout
        self.offsets: Mapping[Any, int]
        if layout is None:
            self.offsets, self.arena_nbytes = places.plan(tensors, programs)
        else:
            self.offsets, self.arena_nbytes = layout.offsets, layout.nbytes
        self._arrays = arrays
        self.results_nbytes = arrays.total_nbytes(places.fresh_kinds(arrays.numbers))
        self.host = places.host_room(tensors)
        self.host_nbytes = self.host.nbytes

    @cached_property
    def results(self) -> dict[str, int]:
        """Memory of each output, 0 where its shape follows from contents. Unit: bytes."""
        arrays = self._arrays
        return {name: arrays[i].nbytes if i in arrays else 0 for name, i in self._places.outputs.items()}

    @property
    def before_functions(self) -> Sequence[ModelStep]:
        """As of `TensorPlaces`."""
        return self._places.before_functions

    @property
    def sequential_arena_nbytes(self) -> int:
        """What the arena would take if every step followed the one before. Unit: bytes."""
        steps, programs = self._places.steps, self._programs
        own = [0 if program is None else program.arena_nbytes for program in programs]
        scratch = list(map(_sequential_nbytes, steps, programs, own))
        if self._layout is not None or scratch == own:
            return self.arena_nbytes
        return plan_arena(steps, self._places.sizes(self._tensors), scratch, self._places.planner)[1]

    def run_nbytes(self, outputs: Iterable[str]) -> int:
        """Memory of a run that makes these outputs. Unit: bytes."""
        return self.arena_nbytes + self.host_nbytes + sum(self.results[name] for name in outputs)

    def inner_bound(self, prepares: bool) -> tuple[RunBound, int]:
        """What models inside the form take at most, and what they need beside what a run of it takes. Unit: bytes.

        Compiles them; with `prepares` those alone that are to be compiled with the form.
        """
        kept, most, held, objects, opened, programs, need = 0, 0, 0, 0, 0, 0, 0
        host, tensors = self.host, self._tensors
        reserved = {id(step): host.nbytes for step in self.before_functions}
        unbounded = list(host.unbounded)
        largest = {i: value.shape for i, value in host.values.items()}  # shapes that only a run tells
        for step in self._places.steps:
            if isinstance(step.function, InnerModels) and (step.function.is_prepared or not prepares):
                known = [tensors.get(i) for i in step.inputs]
                shapes = [
                    t.shape if t is not None and is_plain(t) else largest.get(i)
                    for i, t in zip(step.inputs, known, strict=True)
                ]
                bound = step.function.bound_run(shapes)
                kept += bound.kept_nbytes
                run = reserved.get(id(step), host.held_nbytes) + held + bound.run_nbytes
                most, need = max(most, run), max(need, run + bound.programs_nbytes)
                programs = max(programs, bound.programs_nbytes)
                objects, opened = max(objects, bound.objects_nbytes), opened + bound.opened_nbytes
                if not all(is_plain(tensors.get(i)) for i in step.outputs):
                    held += bound.run_nbytes  # its results have no other place
                unbounded.extend(bound.unbounded)
                largest.update(zip(step.outputs, bound.results, strict=False))
        run = max(most - host.nbytes, 0)
        slack = min(max(most - host.held_nbytes, 0), host.nbytes - host.held_nbytes)
        objects += host.objects_nbytes + slack
        names = tuple(dict.fromkeys(unbounded))
        found = RunBound(kept, run, names, objects, opened_nbytes=opened, programs_nbytes=programs)
        return found, max(need - host.nbytes, 0)

    def layout(self, tensors: Mapping[int, LogicalTensor], plans: tuple[Plan, ...]) -> RangeLayout:
        """The plan for tensors as large as these, and for plans of each compiled partition."""
        steps, needs = self._places.steps, iter(plans)
        scratch = [0 if step.compiled is None else next(needs).nbytes for step in steps]
        sizes = self._places.sizes(tensors)
        offsets, nbytes = plan_arena(steps, sizes, scratch, self._places.planner)
        return RangeLayout(plans, sizes, offsets, nbytes)

    def buffers(self, tensors: Mapping[int, LogicalTensor]) -> list[BufferInfo]:
        """What lies in the arena, as `Model.buffers` says, for tensors as large as these."""
        return find_buffers(self._places.steps, self._programs, self._places.sizes(tensors))

    def most_run_nbytes(self, tensors: Mapping[int, LogicalTensor], outputs: bool) -> int:
        """What arrays of host functions, and results if so told, take for tensors as large as these. Unit: bytes."""
        wanted = self._places.outputs.values() if outputs else ()
        return _nbytes_of(tensors, wanted) + self._places.host_room(tensors).nbytes


def _sequential_nbytes(step: ModelStep, program: Program | None, nbytes: int) -> int:
    """What the arena of a program would take if its calls ran one after another, as far as that is known."""
    compiled = step.compiled
    return nbytes if compiled is None or program is not compiled.program else compiled.sequential_nbytes


def _nbytes_of(tensors: Mapping[int, LogicalTensor], tensor_ids: Iterable[int]) -> int:
    """Memory of arrays for these tensors, as far as shapes are known. Unit: bytes."""
    found = [tensors.get(i) for i in tensor_ids]
    return sum(prod(t.shape or ()) * t.dtype.numpy.itemsize for t in found if t is not None and is_plain(t))
