"""Runs the steps of a model on one arena at a time: binds what the caller gives, calls the steps, collects results."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

from graphpool.graph.logical_tensor import LogicalTensor
from graphpool.typing import DataType

from . import blas_threads
from ._tensor import Tensor
from ._trace import clock_ns, current
from .model_step import is_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from graphpool.memory._arrays import ArrayAllocator

    from ._stream import Stream
    from ._trace import Recorder
    from .form_constants import FormConstants
    from .model_form import ModelForm
    from .model_step import ModelStep
    from .result_arrays import ResultArrays

__all__ = ["Runner"]

_MAX_FRAMES = 64


class Frame:
    """What one run at a time uses: values by tensor id, tensors bound to one arena, and the calls in order.

    The arrays that it makes are charged through `arrays`.
    """

    __slots__ = ("address", "arrays", "calls", "inputs", "outputs", "values")

    def __init__(self, values: Mapping[int, Any], arrays: ArrayAllocator) -> None:
        self.arrays = arrays
        self.address = 0
        self.values: dict[int, Any] = dict(values)
        self.calls: list[Callable[[], object]] = []
        self.inputs: dict[int, Tensor] = {}
        self.outputs: dict[int, Tensor] = {}


class Runner:
    """Keeps a frame for each arena. `offsets` has the places there, see `plan_arena`; `targets` are written directly.

    `sizes` has the memory of outputs whose shape is known, `host_nbytes` is what a run reserves for host functions.
    Ownership: keeps frames, which refer to arenas by address alone. Threads: `run` may be going on in any number of
    threads, on an arena each.
    """

    def __init__(
        self,
        form: ModelForm,
        described: Mapping[int, LogicalTensor],
        steps: Sequence[ModelStep],
        offsets: Mapping[Any, int],
        targets: Collection[int],
        sizes: Mapping[str, int],
        host_nbytes: int,
        constants: FormConstants,
        stream: Stream,
        results: ResultArrays,
    ) -> None:
        self._form, self._described, self._steps, self._offsets = form, described, steps, offsets
        self._constants, self._stream, self._results = constants, stream, results
        self._host_nbytes, self._sizes = host_nbytes, sizes
        self._names = {i: name for name, i in form.outputs.items()}
        self._targets = {i: _shape_of(described[i]) for i in targets}
        written = [i for step in steps for i in step.outputs if i not in offsets]
        self._passing = {*form.inputs.values(), *written}
        programs = [step.compiled.program for step in steps if step.compiled is not None]
        self._uses_blas = any(program is not None and program.uses_blas for program in programs)
        self._frames: dict[int, list[Frame]] = {}  # idle ones by address, which all arenas without bytes share

    def take_room(self, address: int, given: Mapping[str, Any], fresh: dict[int, Any]) -> Frame:
        """Take what a run needs beside the arena at an address: results, put into `fresh` by tensor id, and room.

        Raises
        ------
        OutOfMemoryError
            There is no memory for it; `fresh` may hold some of the results.
        """
        frame = self._take_frame(address)
        nbytes, wanted = self._host_nbytes, {}
        if len(given) < len(self._form.outputs):
            places = {self._form.outputs[name] for name in given}
            nbytes += sum(size for name, size in self._sizes.items() if name not in given)
            for i, shape in self._targets.items():
                if i not in places and shape is not None:
                    wanted[i] = (self._names[i], *shape)
        if nbytes or wanted:
            try:
                self._results.take(wanted, frame.arrays, fresh, 2 * len(self._frames), nbytes)
            except BaseException:
                self._give_back(frame)
                raise
        return frame

    def run(
        self, frame: Frame, inputs: Mapping[str, Any], given: Mapping[str, Any], fresh: Mapping[int, Any]
    ) -> dict[str, Any]:
        """Outputs by name, on the arena of a frame, which is the caller's until then; see `Executable.run`.

        `take_room` has filled `fresh`.
        """
        if self._uses_blas:
            blas_threads.enter()  # once around all partitions: theirs only count then
        if self._form.host_budget is not None:
            self._form.host_budget.start()
        try:
            self.bind(frame, inputs, given, fresh)
            recorder = current()
            if recorder is None:
                for call in frame.calls:
                    call()
            else:
                self._run_recorded(frame, recorder)
            return self._collect(frame, given)
        finally:
            if self._uses_blas:
                blas_threads.leave()
            self._unbind(frame)
            self._give_back(frame)

    def clear(self) -> None:
        """Forget the frames: their arenas go."""
        self._frames.clear()

    def _run_recorded(self, frame: Frame, recorder: Recorder) -> None:
        """Run and note the host functions; programs record their own steps."""
        for step, call in zip(self._steps, frame.calls, strict=True):
            start = clock_ns()
            call()
            if step.compiled is None:
                recorder.note(step.label, start, clock_ns())

    def bind(self, frame: Frame, inputs: Mapping[str, Any], given: Mapping[str, Any], fresh: Mapping[int, Any]) -> None:
        """Put the arrays of a run in place."""
        values = frame.values
        for name, tensor_id in self._form.inputs.items():
            values[tensor_id] = inputs[name]
        values.update(dict.fromkeys(self._targets))  # of unknown shape: a host function brings them
        values.update(fresh)
        for name, array in given.items():
            if self._form.outputs[name] in self._targets:
                values[self._form.outputs[name]] = array
        for tensor_id, tensor in (*frame.inputs.items(), *frame.outputs.items()):
            tensor.rebind(values[tensor_id])

    def _unbind(self, frame: Frame) -> None:
        """Forget the arrays of a run, which belong to the caller."""
        for tensor in (*frame.inputs.values(), *frame.outputs.values()):
            tensor.rebind(None)
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
            idle = self._frames.setdefault(address, [])
        try:
            return idle.pop()
        except IndexError:
            frame = self.make_frame(address)
            frame.address = address
            return frame

    def _give_back(self, frame: Frame) -> None:
        frame.arrays.unreserve()
        idle = self._frames.get(frame.address)
        if idle is not None:
            idle.append(frame)

    def make_frame(self, address: int) -> Frame:
        """A frame for the arena at an address."""
        frame = Frame(self._constants.values, self._results.allocator())
        tensors = dict(self._constants.tensors)
        for ids, bound in ((self._form.inputs.values(), frame.inputs), (self._targets, frame.outputs)):
            for tensor_id in ids:
                if is_plain(self._described.get(tensor_id)):
                    tensors[tensor_id] = bound[tensor_id] = self._tensor_at(tensor_id)
        for tensor_id in (i for step in self._steps for i in step.outputs if i in self._offsets):
            tensors[tensor_id] = self._tensor_at(tensor_id, address + self._offsets[tensor_id])
            frame.values[tensor_id] = tensors[tensor_id].numpy()
        calls = (self._make_call(number, step, frame, tensors, address) for number, step in enumerate(self._steps))
        frame.calls.extend(calls)
        return frame

    def _tensor_at(self, tensor_id: int, *address: int) -> Tensor:
        return Tensor.at(self._described[tensor_id], self._stream.engine, *address)

    def _make_call(
        self, number: int, step: ModelStep, frame: Frame, tensors: Mapping[int, Tensor], address: int
    ) -> Callable[[], object]:
        if step.compiled is None:
            are_plain = [is_plain(self._described[i]) for i in step.outputs]
            return partial(step.call_host, frame.values, are_plain, self._form.host_budget, frame.arrays)
        scratch = None
        if ~number in self._offsets:
            described = LogicalTensor(0, DataType.U8, (step.compiled.scratchpad_nbytes,))
            scratch = Tensor.at(described, self._stream.engine, address + self._offsets[~number])
        # tuples, which `execute` takes as they are
        ins, outs = (tuple([tensors[i] for i in ids]) for ids in (step.inputs, step.outputs))
        return partial(step.compiled.execute, self._stream, ins, outs, scratchpad=scratch)


def _shape_of(tensor: LogicalTensor) -> tuple[Any, Any] | None:
    """Shape and NumPy type of a tensor that lies in memory."""
    return (tensor.shape, tensor.dtype.numpy) if is_plain(tensor) else None
