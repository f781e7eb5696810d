"""Where the trips of a loop read and write."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ._step_call import Trips, address_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ._form_run import Frame
    from ._step_call import InnerCall, StepCall
    from ._trip_sizes import TripSizes
    from .loop import LoopPorts
    from .model_form import ModelForm

__all__ = ["TripPlaces", "moved_states", "view_of"]


class TripPlaces:
    """Arrays of a loop, for `Trips`.

    Parameters
    ----------
    ports : LoopPorts
    inputs : mapping of str to ndarray
        Of the first trip, by the names of the body.
    scanned : sequence of ndarray
        Of which ``ports.scanned`` are rows.
    buffers : sequence of (ndarray, ndarray)
        For each state where the first trip writes it, and where the second one does.
    rows : sequence of (ndarray, int)
        Where the first trip writes each of ``ports.rows``, and the bytes from there to the next one.
    first : int
        Number of the first trip.

    Attributes
    ----------
    inputs, outputs : dict of str to ndarray
        Those of the first trip, by the names of the body.
    """

    def __init__(
        self,
        ports: LoopPorts,
        inputs: Mapping[str, Any],
        scanned: Sequence[Any],
        buffers: Sequence[tuple[Any, Any]],
        rows: Sequence[tuple[Any, int]],
        first: int,
    ) -> None:
        self._ports, self.inputs, self._scanned = ports, inputs, scanned
        self._buffers, self._rows, self._first = buffers, rows, first
        self._check = np.empty(1, bool)
        self._sizes: TripSizes | None = None
        self.outputs: dict[str, Any] = {}
        if ports.check is not None:
            self.outputs[ports.check] = self._check[0, ...]
        for (name, _), (place, _) in zip(ports.rows, rows, strict=True):
            self.outputs[name] = place
        for (_, name), (place, _) in zip(ports.states, buffers, strict=True):
            self.outputs[name] = place

    def bind(self, form: ModelForm, numbers: Mapping[int, int], frame: Frame) -> None:
        """Put the inputs of the first trip in place, which are as the calls want them."""
        for name, tensor_id in form.inputs.items():
            if tensor_id in numbers:
                frame.addresses.put(numbers[tensor_id], address_of(self.inputs[name]))

    def trips(
        self,
        form: ModelForm,
        numbers: Mapping[int, int],
        targets: Collection[int],
        frame: Frame,
        calls: Sequence[StepCall | InnerCall],
        sizes: TripSizes | None = None,
    ) -> Trips:
        """The trips on the addresses of a frame; `numbers` are those of tensors, `targets` what calls write.

        With `sizes`, those of the states may change, whose buffers are bytes in a row then.
        """
        ports, free = self._ports, set(targets)
        self._sizes = sizes

        def claim(name: str) -> tuple[int, bool]:
            """The number of an output, and whether calls write it for whoever asks first."""
            tensor_id = form.outputs[name]
            is_direct = tensor_id in free
            free.discard(tensor_id)
            if tensor_id in form.constants:
                frame.addresses.put(numbers[tensor_id], address_of(frame.values[tensor_id]))
            return numbers[tensor_id], is_direct

        carried, self._moved = [], moved_states(ports, form)
        for number in self._moved:
            (source, target), (one, other) = ports.states[number], self._buffers[number]
            now = self.inputs[source]
            to, is_direct = claim(target)
            places = now.nbytes, address_of(now), address_of(one), address_of(other)
            carried.append((numbers.get(form.inputs[source], -1), to, is_direct, *places))
        written = [
            (*claim(name), address_of(place), stride, place.nbytes)
            for (name, _), (place, stride) in zip(ports.rows, self._rows, strict=True)
        ]
        read = [
            (numbers[form.inputs[name]], True, address_of(self.inputs[name]), _stride(array, is_turned), 0)
            for (name, is_turned), array in zip(ports.scanned, self._scanned, strict=True)
            if form.inputs[name] in numbers
        ]
        counter = -1 if ports.counter is None else numbers.get(form.inputs[ports.counter], -1)
        condition, condition_at = -1, 0
        if ports.check is not None:
            condition, is_direct = claim(ports.check)
            condition_at = address_of(self._check) if is_direct else 0
        ends = condition, condition_at
        return Trips(frame.addresses, calls, carried, read, written, counter, self._first, *ends, sizes)

    def states(self, trips: Trips) -> list[Any]:
        """What the states are after trips."""
        found = [self.inputs[source] for source, _ in self._ports.states]
        for place, number in enumerate(self._moved):
            address = trips.content(place)
            arrays = (*self._buffers[number], found[number])
            content = next(array for array in arrays if address_of(array) == address)
            if self._sizes is not None and content is not found[number]:
                content = view_of(content, self._sizes.shape(place), found[number].dtype)
            found[number] = content
        return found


def moved_states(ports: LoopPorts, form: ModelForm) -> list[int]:
    """The states that a trip does not leave as they are."""
    states = enumerate(ports.states)
    return [number for number, (source, target) in states if form.outputs[target] != form.inputs[source]]


def view_of(buffer: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
    """An array at the beginning of a row of bytes."""
    return buffer[: prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _stride(array: Any, is_turned: bool) -> int:
    """Bytes from the row of one trip to that of the next."""
    return int(-array.strides[0] if is_turned else array.strides[0])
