"""Runs the steps of a model on one arena at a time: binds what the caller gives, calls the steps, collects results."""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.graph.logical_tensor import LogicalTensor
from graphpool.typing import DataType

from . import blas_threads
from ._tensor import Tensor
from ._trace import clock_ns, current
from .model_step import is_plain
from .result_arrays import empty_array

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from ._stream import Stream
    from ._trace import Recorder
    from .form_constants import FormConstants
    from .model_form import ModelForm
    from .model_step import ModelStep
    from .result_arrays import ResultArrays

__all__ = ["Runner"]

_MAX_FRAMES = 64


class Frame:
    """What one run at a time uses: values by tensor id, tensors bound to one arena, and the calls in order."""

    __slots__ = ("calls", "inputs", "outputs", "values")

    def __init__(self, values: Mapping[int, Any]) -> None:
        self.values: dict[int, Any] = dict(values)
        self.calls: list[Callable[[], object]] = []
        self.inputs: dict[int, Tensor] = {}
        self.outputs: dict[int, Tensor] = {}


class Runner:
    """Keeps a frame for each arena. `offsets` has the places there, see `plan_arena`; `targets` are written directly.

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
        constants: FormConstants,
        stream: Stream,
        results: ResultArrays | None,
    ) -> None:
        self._form, self._described, self._steps, self._offsets = form, described, steps, offsets
        self._constants, self._stream, self._results = constants, stream, results
        self._names = {i: name for name, i in form.outputs.items()}
        self._targets = {i: _shape_of(described[i]) for i in targets}
        written = [i for step in steps for i in step.outputs if i not in offsets]
        self._passing = {*form.inputs.values(), *written}
        programs = [step.compiled.program for step in steps if step.compiled is not None]
        self._uses_blas = any(program is not None and program.uses_blas for program in programs)
        self._frames: dict[int, Frame] = {}  # by address: who leases an arena has its frame for himself

    def run(self, address: int, inputs: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
        """Outputs by name, on the arena at an address, which is the caller's until then; see `Executable.run`."""
        frame = self._frames.get(address) or self._keep_frame(address)
        if self._uses_blas:
            blas_threads.enter()  # once around all partitions: theirs only count then
        if self._form.host_budget is not None:
            self._form.host_budget.start()
        try:
            self.bind(frame, inputs, given)
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

    def bind(self, frame: Frame, inputs: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Put the arrays of a run in place: inputs, and outputs, which are fresh unless they are given."""
        values, places = frame.values, {self._form.outputs[name]: array for name, array in given.items()}
        for name, tensor_id in self._form.inputs.items():
            values[tensor_id] = inputs[name]
        for tensor_id, shape in self._targets.items():
            array = places.get(tensor_id)
            if array is None and shape is not None:
                array = self._fresh(tensor_id, *shape)
            values[tensor_id] = array
        for tensor_id, tensor in (*frame.inputs.items(), *frame.outputs.items()):
            tensor.rebind(values[tensor_id])

    def _fresh(self, tensor_id: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Memory for a result."""
        if self._results is None:
            return empty_array(shape, dtype)
        return self._results.take(self._names[tensor_id], shape, dtype, 2 * len(self._frames))

    def _unbind(self, frame: Frame) -> None:
        """Forget the arrays of a run, which belong to the caller."""
        for tensor in (*frame.inputs.values(), *frame.outputs.values()):
            tensor.rebind(None)
        for tensor_id in self._passing:
            frame.values.pop(tensor_id, None)

    def _collect(self, frame: Frame, given: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs; what is not this run's own fresh array, or where it was asked for, is copied."""
        results: dict[str, Any] = {}
        fresh = self._targets.keys() - {self._form.outputs[name] for name in given}
        for name, tensor_id in self._form.outputs.items():
            value = frame.values[tensor_id]
            if name in given:
                results[name] = given[name]
                if value is not given[name]:
                    given[name][...] = value
            else:
                results[name] = value if tensor_id in fresh else copy(value)
                fresh.discard(tensor_id)
        return results

    def _keep_frame(self, address: int) -> Frame:
        """A new frame, found again when the arena is leased again."""
        if len(self._frames) > _MAX_FRAMES:
            self._frames.clear()
        frame = self._frames[address] = self.make_frame(address)
        return frame

    def make_frame(self, address: int) -> Frame:
        """A frame for the arena at an address."""
        frame = Frame(self._constants.values)
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
            return partial(step.call_host, frame.values, are_plain, self._form.host_budget)
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
