"""A loop within a trip of another one: where its trips find what lies at the addresses of the outer trip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.memory._arrays import ArrayAllocator
from graphpool.typing import DataType

from ._step_call import InnerTrips, address_of
from .trip_places import TripPlaces, moved_states

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ._form_run import Frame
    from ._step_call import InnerCall, StepCall
    from .executable import Executable
    from .loop import Loop
    from .model_step import ModelStep
    from .runner import Runner

__all__ = ["NestedLoop"]


class NestedLoop:
    """A loop that is a step of a form, of which a trip of an outer loop runs all.

    `outer` runs that form, `array_of` gives what a tensor of it is in this trip, by id.

    Attributes
    ----------
    inputs : dict of str to ndarray
        Those of the body in its first trip, as far as `is_fit`.
    """

    def __init__(self, step: ModelStep, loop: Loop, outer: Runner, array_of: Callable[[int], Any]) -> None:
        self._loop, self._outer, self._given = loop, outer, loop.parts(step.inputs)
        ports = loop.ports
        self._states, self._rows = step.outputs[: len(ports.states)], step.outputs[len(ports.states) :]
        self._results, self._targets = list(map(array_of, self._states)), list(map(array_of, self._rows))
        self._scanned = list(map(array_of, self._given.scanned))
        self._lengths: set[int] = {len(array) for array in (*self._scanned, *self._targets)}
        if loop.most is not None:
            self._lengths.add(loop.most)
        self.inputs = dict(zip(ports.outer, map(array_of, self._given.outer), strict=True))
        for (name, _), i in zip(ports.states, self._given.states, strict=True):
            self.inputs[name] = array_of(i)
        if self.is_fit:
            for (name, is_turned), array in zip(ports.scanned, self._scanned, strict=True):
                self.inputs[name] = _first_row(array, is_turned)
        if ports.counter is not None:
            self.inputs[ports.counter] = np.array(0)

    @property
    def is_fit(self) -> bool:
        """Whether there is one number of trips, not 0, and a place for what they give."""
        are_known = not self._rows or self._loop.has_places
        if self._loop.ports.has_sizes or len(self._lengths) > 1 or 0 in self._lengths or not are_known:
            return False
        wanted = {self._given.most: DataType.S64, self._given.condition: DataType.BOOLEAN}
        for tensor_id, dtype in wanted.items():
            known = None if tensor_id is None else self._outer.described(tensor_id)
            if known is not None and (known.dtype is not dtype or known.size != 1):
                return False
        arrays = (*self.inputs.values(), *self._scanned)
        return all(array.flags.c_contiguous and array.flags.aligned for array in arrays)

    def takes(self, form: Executable) -> bool:
        """Whether trips are calls of this form's kernels alone, and give what the outer trip has places for."""
        ports = self._loop.ports
        states = [(array.shape, array.dtype) for array in self._results]
        rows = [(array.shape[1:], array.dtype) for array in self._targets]
        outputs = [name for _, name in ports.states], [name for name, _ in ports.rows]
        if [list(map(form.output, names)) for names in outputs] != [states, rows]:
            return False
        return form.can_repeat(ports, self.inputs)

    def trips(self, form: Executable, frame: Frame, calls: Sequence[StepCall | InnerCall]) -> InnerTrips:
        """The trips on a frame of the form, whose calls these are.

        Raises
        ------
        OutOfMemoryError
            There is no room for a second buffer of each state.
        """
        ports, numbers, inner = self._loop.ports, self._outer.number, form.form.inputs
        arrays = ArrayAllocator(form.runner.engine.host_budget, f"loop {self._loop.label!r}")
        buffers = [(array, arrays.empty(array.shape, array.dtype)) for array in self._results]
        firsts = [
            (_first_row(array, is_turned), -array.strides[0] if is_turned else array.strides[0])
            for array, (_, is_turned) in zip(self._targets, ports.rows, strict=True)
        ]
        places = TripPlaces(ports, self.inputs, self._scanned, buffers, firsts, 0)
        trips = form.runner.trips(places, frame, calls)
        moved = moved_states(ports, form.form)
        still = [number for number in range(len(ports.states)) if number not in moved]
        ends = [(numbers(i), numbers(o)) for i, o in zip(self._given.states, self._states, strict=True)]
        outside = dict(zip(ports.outer, self._given.outer, strict=True))
        outside |= {ports.states[number][0]: self._given.states[number] for number in still}
        read = [
            (numbers(i), _offset(array, is_turned))
            for i, array, (name, is_turned) in zip(self._given.scanned, self._scanned, ports.scanned, strict=True)
            if form.runner.reads(inner[name])
        ]
        written = [
            (numbers(i), _offset(array, is_turned))
            for i, array, (_, is_turned) in zip(self._rows, self._targets, ports.rows, strict=True)
        ]
        return InnerTrips(
            trips,
            passed=[(numbers(i), form.runner.number(inner[name])) for name, i in outside.items()
                    if form.runner.reads(inner[name])],
            carried=[(*ends[number], address_of(buffers[number][1])) for number in moved],
            kept=[(*ends[number], self._results[number].nbytes) for number in still],
            moving=[*written, *read],
            length=next(iter(self._lengths), -1),
            count=-1 if self._given.most is None else numbers(self._given.most),
            condition=-1 if self._given.condition is None else numbers(self._given.condition),
            budget=self._loop.budget, label=self._loop.label, held=(places, buffers),
        )  # fmt: skip


def _first_row(array: Any, is_turned: bool) -> Any:
    return array[-1 if is_turned else 0, ...]


def _offset(array: Any, is_turned: bool) -> int:
    """Bytes in front of the first row."""
    return int((len(array) - 1) * array.strides[0]) if is_turned else 0
