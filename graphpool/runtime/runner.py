"""Runs the steps of a model on one arena at a time: binds what the caller gives, calls the steps, collects results."""

from __future__ import annotations

from collections import deque
from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from graphpool.errors import OutOfMemoryError

from . import blas_threads
from ._step_call import Addresses, StepCall, StepPorts
from ._tensor import Tensor
from ._trace import clock_ns, current
from .inner_models import InnerModels, is_inner
from .model_step import is_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from graphpool.graph.logical_tensor import LogicalTensor
    from graphpool.memory._arrays import ArrayAllocator
    from graphpool.memory._lease import Lease

    from ._compiled import CompiledPartition
    from ._program import Program
    from ._stream import Stream
    from ._trace import Recorder
    from .form_constants import FormConstants
    from .form_plan import FormPlan
    from .form_sizes import Described
    from .model_form import ModelForm
    from .model_step import ModelStep
    from .result_arrays import ResultArrays
    from .shared_arenas import SharedArenas
    from .trip_places import TripPlaces

__all__ = ["Runner"]

_MAX_FRAMES = 64

V = TypeVar("V")


class Frame:
    """What one run at a time uses: values by tensor id, addresses in one arena, and the calls in order.

    The arrays that it makes are charged through `arrays`.
    """

    __slots__ = ("address", "addresses", "arrays", "calls", "values")

    def __init__(self, address: int, values: Mapping[int, Any], addresses: Addresses, arrays: ArrayAllocator) -> None:
        self.address, self.addresses, self.arrays = address, addresses, arrays
        self.values: dict[int, Any] = dict(values)
        self.calls: list[Callable[[], object]] = []


class Runner:
    """Leases an arena for each run, and keeps a frame for each arena.

    `targets` are written directly; `sized` gives what runs.

    Ownership: keeps frames, which refer to arenas by address alone. Threads: `run` may be going on in any number of
    threads, on an arena each.
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
        self._constants, self._stream, self._results, self._arenas = constants, stream, results, arenas
        self._budget = stream.engine.budget
        self._names = {i: name for name, i in form.outputs.items()}
        made = {i for step in steps for i in step.outputs}
        between = [i for i in made if i not in self._targets and is_plain(described.get(i))]
        self._passing = {*form.inputs.values(), *made}.difference(between)
        self._made = tuple([i for i in self._targets if is_plain(described.get(i))])
        self._bound = (*(i for i in {*form.inputs.values()} if is_plain(described.get(i))), *self._made)
        scratch = [~number for number in range(len(steps))]
        keys = dict.fromkeys((*self._bound, *form.constants, *between, *scratch))
        self._numbers: dict[int, int] = {key: number for number, key in enumerate(keys)}
        plain = [step for step in steps if step.compiled is None or step.compiled.program is None]
        self._seen = {i for step in plain for i in (*step.inputs, *step.outputs)}.intersection(between)

        # idle ones by address, which all arenas without bytes share; a list frees its memory when the last one is taken
        self._frames: dict[int, deque[Frame]] = {}

    def link(self) -> None:
        """Take the constants as they are from now on: those that are packed stay so."""
        self._addresses = Addresses(len(self._numbers))
        for i, tensor in self._constants.tensors.items():
            self._addresses.put(self._numbers[i], tensor.data_ptr)
        self._ports = [self._make_ports(number, step) for number, step in enumerate(self._steps)]

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
        arrays: Mapping[int, Described],
        plan: FormPlan,
        programs: Sequence[Program | None],
    ) -> Runner:
        """One for these sizes: `arrays` describes what the caller gives and gets, `programs` are those of the steps."""
        other = copy(self)
        other._described, other._plan, other._programs = described, plan, programs
        other._wanted, other._fresh = [arrays[i] for i in self._bound], [arrays[i] for i in self._made]
        other._uses_blas = any(program is not None and program.uses_blas for program in programs)
        other._frames = {}
        return other

    _described: Mapping[int, LogicalTensor]
    _plan: FormPlan
    _programs: Sequence[Program | None]
    _wanted: list[Described]
    _fresh: list[Described]
    _uses_blas: bool

    # ---- memory

    def check_room(self, outputs: Iterable[str]) -> int:
        """Memory for a run that makes these outputs; raises `OutOfMemoryError` if the budget can never hold it."""
        nbytes = self._plan.run_nbytes(outputs)
        self._budget.check(nbytes, holder=self._results.holder)
        return nbytes

    def _take_room(self, given: Mapping[str, Any], fresh: dict[int, Any]) -> tuple[Lease, Frame]:
        """All memory of a run: an arena, results in `fresh`, room for host arrays. Who waits for it holds none."""
        while True:
            lease = self._lease(given)
            try:
                return lease, self._take_results(lease.address, given, fresh)
            except OutOfMemoryError:
                fresh.clear()
                lease.release()
                self._arenas.shrink(self._plan.arena_nbytes)  # larger ones may have been needed for other shapes
                nbytes = self.check_room(self._missing(given))
                if not self._budget.pending or is_inner():
                    raise
            except BaseException:
                lease.release()
                raise
            self._budget.wait_for_room(nbytes, timeout_s=0.1)  # in vain if what others held is held on

    def _lease(self, given: Mapping[str, Any]) -> Lease:
        try:
            return self._arenas.lease(self._plan.arena_nbytes)
        except OutOfMemoryError:
            self.check_room(self._missing(given))  # which counts the results too
            raise

    def _missing(self, given: Mapping[str, Any]) -> list[str]:
        return [name for name in self._form.outputs if name not in given]

    def _take_results(self, address: int, given: Mapping[str, Any], fresh: dict[int, Any]) -> Frame:
        """Take what a run needs beside the arena at an address: results, put into `fresh` by tensor id, and room."""
        frame = self._take_frame(address)
        nbytes, wanted = self._plan.host_nbytes, {}
        if len(given) < len(self._form.outputs):
            places = {self._form.outputs[name] for name in given}
            nbytes += sum(self._plan.results[name] for name in self._missing(given))
            for i, found in zip(self._made, self._fresh, strict=True):
                if i not in places:
                    wanted[i] = self._names[i], found.shape, found.dtype
        if nbytes or wanted:
            try:
                self._results.take(wanted, frame.arrays, fresh, 2 * len(self._frames), nbytes)
            except BaseException:
                self._give_back(frame)
                raise
        return frame

    # ---- running

    def run(self, inputs: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name, see `Executable.run`; those of `given` are written there."""
        fresh: dict[int, Any] = {}
        lease, frame = self._take_room(given, fresh)
        with lease:
            return self._use(frame, inputs, given, fresh, self._run_once)

    def can_repeat(self, outputs: Iterable[str]) -> bool:
        """Whether kernels run all of it, and these outputs have places in memory."""
        places = [self._form.outputs[name] for name in outputs]
        return all(self._ports) and all(i in self._numbers for i in places)

    def repeat(self, places: TripPlaces, most: int, time_ns: int) -> tuple[int, bool, list[Any]]:
        """Trips of a loop, see `Executable.repeat`."""
        lease, frame = self._take_room(places.outputs, {})

        def run(frame: Frame, given: Mapping[str, Any]) -> tuple[int, bool, list[Any]]:
            trips = places.trips(self._form, self._numbers, self._targets, frame)
            done = trips.run(most, time_ns)
            return done, trips.is_ended, places.states(trips)

        with lease:
            return self._use(frame, places.inputs, places.outputs, {}, run)

    def _use(
        self,
        frame: Frame,
        inputs: Mapping[str, Any],
        given: Mapping[str, Any],
        fresh: Mapping[int, Any],
        work: Callable[[Frame, Mapping[str, Any]], V],
    ) -> V:
        """Work on the arena of a frame, which is the caller's until then, and on these arrays."""
        if self._uses_blas:
            blas_threads.enter()  # once around all partitions: theirs only count then
        if self._form.host_budget is not None and not is_inner():
            self._form.host_budget.start()
        try:
            self._bind(frame, inputs, given, fresh)
            return work(frame, given)
        finally:
            if self._uses_blas:
                blas_threads.leave()
            self._unbind(frame)
            self._give_back(frame)

    def _run_once(self, frame: Frame, given: Mapping[str, Any]) -> dict[str, Any]:
        """Call the steps; the outputs."""
        recorder = current()
        if recorder is None:
            for call in frame.calls:
                call()
        else:
            self._run_recorded(frame, recorder)
        return self._collect(frame, given)

    def clear(self) -> None:
        """Forget the frames: their arenas go."""
        self._frames.clear()

    def _run_recorded(self, frame: Frame, recorder: Recorder) -> None:
        """Run and note the host functions; programs record their own steps."""
        for step, call in zip(self._steps, frame.calls, strict=True):
            start = clock_ns()
            call()
            if step.compiled is None and not isinstance(step.function, InnerModels):  # which note their own steps
                recorder.note(step.label, start, clock_ns())

    def _bind(
        self, frame: Frame, inputs: Mapping[str, Any], given: Mapping[str, Any], fresh: Mapping[int, Any]
    ) -> None:
        """Put the arrays of a run in place."""
        values = frame.values
        for name, tensor_id in self._form.inputs.items():
            values[tensor_id] = inputs[name]
        values.update(dict.fromkeys(self._targets))  # of unknown shape: a host function brings them
        values.update(fresh)
        for name, array in given.items():
            if self._form.outputs[name] in self._targets:
                values[self._form.outputs[name]] = array
        frame.addresses.bind(self._bound, values, self._wanted, self._tensor_of)

    def _unbind(self, frame: Frame) -> None:
        """Forget the arrays of a run, which belong to the caller."""
        frame.addresses.unbind()
        for tensor_id in self._passing:
            frame.values.pop(tensor_id, None)

    def _collect(self, frame: Frame, given: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs; what is not this run's own fresh array, or where it was asked for, is copied."""
        results: dict[str, Any] = {}
        own = self._targets.keys() - {self._form.outputs[name] for name in given}
        for name, tensor_id in self._form.outputs.items():
            value = frame.values[tensor_id]
            if name in given:
                results[name] = given[name]
                if value is not given[name]:
                    given[name][...] = value
            else:
                results[name] = value if tensor_id in own else frame.arrays.call(copy, value)
                own.discard(tensor_id)
        return results

    def _take_frame(self, address: int) -> Frame:
        """An idle frame of an arena, or a new one, found again when the arena is leased again."""
        idle = self._frames.get(address)
        if idle is None:
            if len(self._frames) > _MAX_FRAMES:
                self._frames.clear()
            idle = self._frames.setdefault(address, deque())
        try:
            return idle.pop()
        except IndexError:
            return self._make_frame(address)

    def _give_back(self, frame: Frame) -> None:
        frame.arrays.unreserve()
        idle = self._frames.get(frame.address)
        if idle is not None:
            idle.append(frame)

    def _make_frame(self, address: int) -> Frame:
        """A frame for the arena at an address."""
        frame = Frame(address, self._constants.values, self._addresses.copy(), self._results.allocator())
        for key, offset in self._plan.offsets.items():
            frame.addresses.put(self._numbers[key], address + offset)
        for i in self._seen:
            frame.values[i] = Tensor.at(
                self._described[i], self._stream.engine, address + self._plan.offsets[i]
            ).numpy()
        frame.calls.extend([self._make_call(number, step, frame) for number, step in enumerate(self._steps)])
        return frame

    def _make_call(self, number: int, step: ModelStep, frame: Frame) -> Callable[[], object]:
        ports, program = self._ports[number], self._programs[number]
        if ports is not None and program is not None:
            return StepCall(ports, program, frame.addresses)
        if step.compiled is not None:
            return partial(self._call_backend, step, step.compiled, frame.values)
        are_plain = [is_plain(self._described[i]) for i in step.outputs]
        return partial(step.call_host, frame.values, are_plain, self._form.host_budget, frame.arrays)

    def _call_backend(self, step: ModelStep, compiled: CompiledPartition, values: Mapping[int, Any]) -> None:
        """Run what has no program on tensors."""
        inputs, outputs = ([self._tensor_of(i, values[i]) for i in ids] for ids in (step.inputs, step.outputs))
        compiled.execute(self._stream, inputs, outputs)

    def _tensor_of(self, tensor_id: int, array: Any) -> Tensor:
        """A tensor on an array; raises where it does not fit."""
        known = self._constants.tensors.get(tensor_id)
        return Tensor(self._described[tensor_id], self._stream.engine, array) if known is None else known
