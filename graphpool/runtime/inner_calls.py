"""Host functions that run models, as calls of a trip: on its addresses, where kernels run all of what is inside."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from graphpool.errors import OutOfMemoryError
from graphpool.typing import DataType

from ._step_call import InnerCall, InnerCalls, InnerTrips, StepCall, address_of
from ._tensor import Tensor
from .branches import Branches
from .loop import Loop
from .nested_loop import NestedLoop

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from ._form_run import Frame
    from .branches import Branch
    from .executable import Executable
    from .model_step import ModelStep
    from .runner import Runner

__all__ = ["TripCalls"]


class TripCalls:
    """What the steps of a form are on a frame, whatever addresses a trip puts there.

    Attributes
    ----------
    calls : list of StepCall or InnerCall

    Notes
    -----
    Ownership: keeps the forms and frames of models inside until it is closed.
    """

    def __init__(self, runner: Runner, frame: Frame) -> None:
        self._runner, self._frame = runner, frame
        self._held = ExitStack()
        pairs = zip(runner.steps, frame.calls, strict=True)
        self.calls = [call if isinstance(call, StepCall) else self._inner_call(step) for step, call in pairs]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._held.close()

    def _inner_call(self, step: ModelStep) -> InnerCall:
        function, condition = step.function, -1
        open_calls: Callable[[int], InnerCalls | InnerTrips | None] = _nothing
        if isinstance(function, Branches):
            tensor_id = step.inputs[function.condition]
            described = self._runner.described(tensor_id)
            if described.dtype is DataType.BOOLEAN and described.size == 1:
                condition, open_calls = self._runner.number(tensor_id), partial(self._open, step, function)
        elif isinstance(function, Loop):
            open_calls = partial(self._open_loop, step, function)
        return InnerCall(self._frame.addresses, condition, open_calls, partial(self._work, step))

    def _array(self, tensor_id: int) -> Any:
        """What a tensor is in this trip."""
        known = self._frame.values.get(tensor_id) if self._runner.is_constant(tensor_id) else None
        if known is not None:
            return known
        described, number = self._runner.described(tensor_id), self._runner.number(tensor_id)
        return Tensor.at(described, self._runner.engine, self._frame.addresses.get(number)).numpy()

    def _work(self, step: ModelStep) -> None:
        """Run the function on arrays."""
        inputs, outputs = [self._array(i) for i in step.inputs], [self._array(i) for i in step.outputs]
        assert step.function is not None  # it has no program
        for target, result in zip(outputs, step.function(inputs, outputs), strict=True):
            if result is not target:
                step.copy_result(target, result)

    def _open(self, step: ModelStep, function: Branches, taken: int) -> InnerCalls | None:
        """The calls of a branch; None where not all of it runs on kernels, or there is no memory for that."""
        branch, model = function.branches[taken], function.open_model(taken)
        arrays = {
            name: self._array(step.inputs[place]) for name, place in zip(branch.inputs, branch.places, strict=True)
        }
        if not all(array.flags.c_contiguous and array.flags.aligned for array in arrays.values()):
            return None
        try:
            form = self._held.enter_context(model.hold(arrays))
            if form is None or not self._may_call(step, branch, form):
                return None
            return self._calls_of(step, branch, form)
        except OutOfMemoryError:
            return None

    def _may_call(self, step: ModelStep, branch: Branch, form: Executable) -> bool:
        wanted = [self._array(i) for i in step.outputs]
        given = [form.output(name) for name in branch.outputs]
        if given != [(array.shape, array.dtype) for array in wanted]:
            return False
        return set(branch.outputs) == form.form.outputs.keys() and form.runner.can_repeat(branch.outputs)

    def _calls_of(self, step: ModelStep, branch: Branch, executable: Executable) -> InnerCalls:
        """The calls of a branch's form, on a frame of its own."""
        runner, form = executable.runner, executable.form
        frame = runner.take_frame()
        self._held.callback(runner.leave_frame, frame)
        inside = self._held.enter_context(TripCalls(runner, frame))
        passed = []
        for name, place in zip(branch.inputs, branch.places, strict=True):
            tensor_id = step.inputs[place]
            if runner.reads(form.inputs[name]):
                if self._runner.is_constant(tensor_id):
                    self._put_constant(self._runner, self._frame, tensor_id)
                passed.append((self._runner.number(tensor_id), runner.number(form.inputs[name]), 0))
        free = set(runner.targets)
        for name, tensor_id in zip(branch.outputs, step.outputs, strict=True):
            inner = form.outputs[name]
            if runner.is_constant(inner):
                self._put_constant(runner, frame, inner)
            nbytes = 0 if inner in free else self._array(tensor_id).nbytes
            free.discard(inner)
            passed.append((self._runner.number(tensor_id), runner.number(inner), nbytes))
        return InnerCalls(frame.addresses, inside.calls, passed)

    def _open_loop(self, step: ModelStep, loop: Loop, _taken: int) -> InnerTrips | None:
        """The trips of a loop whose shapes stay; None as of `_open`, and where there are none, or no place for rows."""
        nested = NestedLoop(step, loop, self._runner, self._array)
        if not nested.is_fit:
            return None
        for tensor_id in filter(self._runner.is_constant, step.inputs):
            self._put_constant(self._runner, self._frame, tensor_id)
        try:
            form = self._held.enter_context(loop.open_model().hold(nested.inputs))
            if form is None or not nested.takes(form):
                return None
            frame = form.runner.take_frame()
            self._held.callback(form.runner.leave_frame, frame)
            inside = self._held.enter_context(TripCalls(form.runner, frame))
            return nested.trips(form, frame, inside.calls)
        except OutOfMemoryError:
            return None

    @staticmethod
    def _put_constant(runner: Runner, frame: Frame, tensor_id: int) -> None:
        """Let a constant have an address, which only those have that programs read."""
        frame.addresses.put(runner.number(tensor_id), address_of(frame.values[tensor_id]))


def _nothing(taken: int) -> None:
    return None
