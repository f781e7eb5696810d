"""Says how a form runs on addresses: where its tensors lie, and which calls its steps are."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from . import blas_threads
from ._form_run import FormRun, Frame
from ._host_call import HostCall
from ._step_call import Addresses, StepCall, StepPorts
from ._tensor import Tensor
from ._trace import clock_ns
from .inner_models import InnerModels, is_inner
from .model_step import is_plain
from .resizable_form import SharesFirst

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import Self

    from graphpool.graph.logical_tensor import LogicalTensor

    from ._compiled import CompiledPartition
    from ._form_sizes import SizedArrays
    from ._program import Program
    from ._result_arrays import ResultArrays
    from ._step_call import InnerCall, Trips
    from ._stream import Stream
    from ._trace import Recorder
    from ._trip_sizes import TripSizes
    from .engine import Engine
    from .form_constants import FormConstants
    from .form_plan import FormPlan
    from .inner_calls import TripCalls
    from .model_form import ModelForm
    from .model_step import ModelStep
    from .shared_arenas import SharedArenas
    from .trip_places import TripPlaces

__all__ = ["Runner"]


class Runner(FormRun, SharesFirst):
    """Makes a frame for each arena, on which a `FormRun` runs.

    `targets` are written directly; `sized` gives what runs.
    """

    def __init__(
        self,
        form: ModelForm,
        described: Mapping[int, LogicalTensor],
        steps: Sequence[ModelStep],
        targets: Sequence[int],
        constants: FormConstants,
        stream: Stream,
        results: ResultArrays,
        arenas: SharedArenas,
    ) -> None:
        self._form, self._steps, self._targets = form, steps, dict.fromkeys(targets)
        self._constants, self._stream, self._results = constants, stream, results
        self._budget = stream.engine.budget
        self._calls_blas: bool | None = None
        self._first = None
        self._numbers: dict[int, int] = {}
        self._ports: list[StepPorts | None] = []
        self._are_calls = False
        sized = [i for i in self._targets if is_plain(described.get(i))]
        bound, passing = self._split(described, sized)
        host_budget = form.host_budget if any(step.function is not None for step in steps) else None
        self.connect(form, self._targets, sized, bound, passing, self._numbers, results, arenas, host_budget)

    def _split(self, described: Mapping[int, LogicalTensor], sized: Sequence[int]) -> tuple[tuple[int, ...], set[int]]:
        """Tensors whose addresses are bound for each run, and those whose arrays runs pass on; `sized` are results."""
        form, steps = self._form, self._steps
        made = {i for step in steps for i in step.outputs}
        between = [i for i in made if i not in self._targets and is_plain(described.get(i))]
        bound = (*(i for i in {*form.inputs.values()} if is_plain(described.get(i))), *sized)
        scratch = [~number for number in range(len(steps))]
        keys = dict.fromkeys((*bound, *form.constants, *between, *scratch))
        self._numbers = {key: number for number, key in enumerate(keys)}
        plain = [step for step in steps if step.compiled is None or step.compiled.program is None]
        read = {i for step in plain for i in (*step.inputs, *step.outputs)}
        self._seen, self._values_read = read.intersection(between), tuple(read.union(form.outputs.values()))
        return bound, {*form.inputs.values(), *made}.difference(between)

    def link(self) -> None:
        """Take the constants as they are from now on: those that are packed stay so."""
        self._addresses = Addresses(len(self._numbers))
        for i, tensor in self._constants.tensors.items():
            self._addresses.put(self._numbers[i], tensor.data_ptr)
        self._ports = [self._make_ports(number, step) for number, step in enumerate(self._steps)]
        self._are_calls = bool(self._ports) and all(self._ports)

    def _make_ports(self, number: int, step: ModelStep) -> StepPorts | None:
        """Where a program finds its tensors; None for what takes arrays."""
        if step.compiled is None or step.compiled.program is None:
            return None
        constants = [self._constants.tensors.get(i) for i in step.inputs]
        numbers = [self._numbers[i] for i in (*step.inputs, *step.outputs)]
        return StepPorts(step.compiled, self._stream, constants, numbers, self._numbers[~number])

    def sized(
        self,
        described: Mapping[int, LogicalTensor],
        arrays: SizedArrays,
        plan: FormPlan,
        programs: list[Program | None],
    ) -> Self:
        """One for these sizes: `arrays` describes what the caller gives and gets, `programs` are those of the steps."""
        other = type(self).__new__(type(self))
        other._first = self
        other._described, other._plan, other._programs = described, plan, programs
        other.size(self, arrays, plan, self._uses_blas(programs), programs if self._are_calls else None)
        return other

    def _uses_blas(self, programs: Sequence[Program | None]) -> bool:
        """Whether every run calls BLAS, whatever the sizes; loads it then."""
        if self._calls_blas is None:
            self._calls_blas = any(program is not None and program.uses_blas for program in programs)
            if self._calls_blas:
                blas_threads.prepare()
        return self._calls_blas

    _described: Mapping[int, LogicalTensor]
    _plan: FormPlan
    _programs: Sequence[Program | None]

    def check_room(self, outputs: Iterable[str]) -> int:
        """Memory for a run that makes these outputs; raises `OutOfMemoryError` if the budget can never hold it."""
        nbytes = self._plan.run_nbytes(outputs)
        self._budget.check(nbytes, holder=self._results.holder, awaits_leases=not is_inner())
        return nbytes

    # ---- running

    def can_repeat(self, outputs: Iterable[str]) -> bool:
        """Whether kernels run all of it, and these outputs have places in memory."""
        ids, shared = self._form.outputs, self._first or self
        steps = zip(shared._steps, shared._ports, strict=True)
        if not all(ports is not None or self._is_inner(step) for step, ports in steps):
            return False
        return all(self.reads(ids[name]) for name in outputs)

    def _is_inner(self, step: ModelStep) -> bool:
        """Whether a step runs models, on tensors that all have places in memory."""
        plain = all(self.reads(i) and is_plain(self._described.get(i)) for i in (*step.inputs, *step.outputs))
        return plain and isinstance(step.function, InnerModels)

    @property
    def are_programs(self) -> bool:
        """Whether all steps are programs."""
        return all((self._first or self)._ports)

    def reads(self, tensor_id: int) -> bool:
        """Whether a tensor has a place among addresses."""
        return tensor_id in self._numbers

    def number(self, tensor_id: int) -> int:
        """Of a tensor among addresses."""
        return self._numbers[tensor_id]

    def described(self, tensor_id: int) -> LogicalTensor:
        """A tensor, for these sizes."""
        return self._described[tensor_id]

    def is_constant(self, tensor_id: int) -> bool:
        """Whether a tensor is a constant of the form."""
        return tensor_id in self._form.constants

    @property
    def steps(self) -> Sequence[ModelStep]:
        """In order of the calls of a frame."""
        return self._steps

    @property
    def targets(self) -> Collection[int]:
        """Outputs that steps write."""
        return self._targets

    @property
    def engine(self) -> Engine:
        """Where it runs."""
        return self._stream.engine

    def repeat(self, places: TripPlaces, most: int, time_ns: int) -> tuple[int, bool, list[Any]]:
        """Make trips of a loop, where `Executable.can_repeat`: so many at most, and none begins after that time.

        Returns
        -------
        done, is_ended, states : int, bool, list of ndarray
            How many trips there were, whether the last one said that no other follows, and what the states are now.
        """

        def run(frame: Frame) -> tuple[int, bool, list[Any]]:
            with self._inside(frame) as inside:
                trips = places.trips(self._form, self._numbers, self._targets, frame, inside.calls)
                done = trips.run(most, time_ns)
            return done, trips.is_ended, places.states(trips)

        return self.use(places.inputs, places.outputs, run)

    def trips(self, places: TripPlaces, frame: Frame, calls: Sequence[StepCall | InnerCall]) -> Trips:
        """Trips of a loop within a trip of another one, on a frame of theirs."""
        places.bind(self._form, self._numbers, frame)
        return places.trips(self._form, self._numbers, self._targets, frame, calls)

    def go_on(self, places: TripPlaces, sizes: TripSizes, most: int, time_ns: int) -> tuple[int, Trips, list[Any]]:
        """Trips of a loop on the programs that `sizes` rewrites: how many there were, and what the states are now."""

        def run(frame: Frame) -> tuple[int, Trips, list[Any]]:
            places.bind(self._form, self._numbers, frame)
            with self._inside(frame) as inside:
                trips = places.trips(self._form, self._numbers, self._targets, frame, inside.calls, sizes)
                done = trips.run(most, time_ns)
            return done, trips, places.states(trips)

        return self.hold(run)

    def _inside(self, frame: Frame) -> TripCalls:
        """The calls of a frame for all trips."""
        from .inner_calls import TripCalls  # and loops: not by all who run a model

        return TripCalls(self, frame)

    def _run_recorded(self, frame: Frame, recorder: Recorder) -> None:
        """Run and note the host functions; programs record their own steps."""
        for step, call in zip(self._steps, frame.calls, strict=True):
            start = clock_ns()
            call()
            if step.compiled is None and not isinstance(step.function, InnerModels):  # which note their own steps
                recorder.note(step.label, start, clock_ns())

    def _make_frame(self, address: int) -> Frame:
        """A frame for the arena at an address."""
        known = self._constants.values
        values = {i: known[i] for i in self._values_read if i in known}
        return Frame(address, values, self._addresses.copy(), self._results.allocator())

    def _set_up(self, frame: Frame) -> None:
        """Let a frame, of this form for other sizes or a new one, be for these: its places in the arena, and calls."""
        shared, offsets = self._first or self, self._plan.offsets
        for key in offsets:
            frame.addresses.put(shared._numbers[key], frame.address + offsets[key])
        for i in shared._seen:
            frame.values[i] = Tensor.at(self._described[i], shared._stream.engine, frame.address + offsets[i]).numpy()
        for step, ports, program in zip(shared._steps, shared._ports, self._programs, strict=True):
            if ports is not None and program is not None:
                frame.calls.append(StepCall(ports, program, frame.addresses))
            else:
                frame.calls.append(self._make_call(step, frame))

    def _make_call(self, step: ModelStep, frame: Frame) -> Callable[[], object]:
        """The call of a step that takes arrays."""
        if step.compiled is not None:
            return partial(self._call_backend, step, step.compiled, frame.values)
        are_plain = [is_plain(self._described[i]) for i in step.outputs]
        keeps_room = any(step is other for other in self._plan.before_functions)
        return HostCall(step, frame.values, are_plain, self._form.host_budget, frame.arrays, keeps_room)

    def _call_backend(self, step: ModelStep, compiled: CompiledPartition, values: Mapping[int, Any]) -> None:
        """Run what has no program on tensors."""
        inputs, outputs = ([self._tensor_of(i, values[i]) for i in ids] for ids in (step.inputs, step.outputs))
        compiled.execute(self._stream, inputs, outputs)

    def _tensor_of(self, tensor_id: int, array: Any) -> Tensor:
        """A tensor on an array; raises where it does not fit."""
        known = self._constants.tensors.get(tensor_id)
        return Tensor(self._described[tensor_id], self._stream.engine, array) if known is None else known
