"""Trips of a loop whose shapes change: a form of its own, whose programs are rewritten in place for each trip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .trip_places import TripPlaces, moved_states

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ._step_call import Trips
    from ._trip_sizes import TripSizes
    from .executable import Executable
    from .form_plan import RangeLayout
    from .loop import LoopPorts

__all__ = ["OpenTrips", "may_open", "symbol_sources", "wider_layout"]

_COUNTER, _FIXED = -1, -2

_SMALL_NBYTES = 2**16
"""Of an arena, which may have room for sizes that double."""


class OpenTrips:
    """A form whose sizes trips change as they go.

    `layout` is where its temporaries lie. Ownership: owns the form. Threads: one at a time.
    """

    def __init__(self, first: Executable, form: Executable, layout: RangeLayout) -> None:
        self._first, self.form, self._layout = first, form, layout

    def sizes(self, ports: LoopPorts, inputs: Mapping[str, Any], rows: Sequence[Any]) -> TripSizes | None:
        """What changes from a trip with these inputs on; None where a symbol would have two values.

        `rows` are the shapes that those of ``ports.rows`` have in all trips.
        """
        form, variable, sizes_of = self._first.form, self._first.variable, self._first.sizes_of
        symbols = variable.symbols({name: inputs[name].shape for name in form.inputs})
        if symbols is None:
            return None
        moved = [ports.states[number] for number in moved_states(ports, form)]
        states: list[tuple[Any, Any, Any, Any]] = []
        kept: list[tuple[int, int]] = []
        for source, target in moved:
            shape, read, (next_sizes, nbytes) = (
                inputs[source].shape, sizes_of(form.inputs[source]), sizes_of(form.outputs[target])
            )  # fmt: skip
            states.append((shape, (None,) * len(shape) if read is None else read[0], next_sizes, nbytes))
        still = form.inputs.keys() - {source for source, _ in moved} - {ports.counter}
        for name in still:
            read = sizes_of(form.inputs[name])
            kept += () if read is None else zip(read[0], inputs[name].shape, strict=True)
        for (name, _), shape in zip(ports.rows, rows, strict=True):
            kept += zip(sizes_of(form.outputs[name])[0], shape, strict=True)
        sources = symbol_sources(self._first, ports, inputs)
        return variable.trip_sizes(symbols, sources, kept, states, self.form.programs, self._layout.plans)

    def run(self, places: TripPlaces, sizes: TripSizes, most: int, time_ns: int) -> tuple[int, Trips, list[Any]]:
        """Make so many trips at most: how many there were, why they ended, and what the states are now."""
        return self.form.runner.go_on(places, sizes, most, time_ns)

    def close(self) -> None:
        """Give the form's memory back. Idempotent."""
        self.form.close()


def symbol_sources(first: Executable, ports: LoopPorts, inputs: Mapping[str, Any]) -> list[int]:
    """Of each symbol what says it in a trip, as `TripSizes` takes it."""
    numbers: dict[tuple[str, int], int] = {}
    for number in moved_states(ports, first.form):
        source, _ = ports.states[number]
        for axis in range(inputs[source].ndim):
            numbers[source, axis] = len(numbers)
    if ports.is_extent and ports.counter is not None:
        numbers[ports.counter, 1] = _COUNTER
    return [next((numbers[place] for place in places if place in numbers), _FIXED) for places in first.variable.places]


def may_open(first: Executable, ports: LoopPorts, inputs: Mapping[str, Any]) -> bool:
    """Whether trips are calls of kernels alone, between which nothing but sizes and addresses change."""
    form, sizes_of = first.form, first.sizes_of
    given = {name for _, name in ports.states} | {name for name, _ in ports.rows}
    if ports.check is not None:
        given.add(ports.check)
    if (
        first.has_tensors_between
        or not first.runner.are_programs
        or given != form.outputs.keys()
        or not first.runner.can_repeat(given)
    ):
        return False
    if not all(isinstance(name, str) for places in first.variable.places for name, _ in places):
        return False  # contents that decide
    if any(sizes_of(i) is None for i in form.outputs.values()):
        return False
    for name, i in form.inputs.items():
        array = inputs[name]
        if sizes_of(i) is None and first.runner.reads(i):
            return False
        if type(array) is not np.ndarray or not (array.flags.c_contiguous and array.flags.aligned):
            return False
    return all(inputs[source].ndim == len(sizes_of(form.outputs[target])[0]) for source, target in ports.states)


def wider_layout(first: Executable, symbols: Sequence[int], sources: Sequence[int]) -> RangeLayout:
    """Places for what these sizes take, and larger ones: twice as large ones where that is little, else an eighth."""

    def layout(grown: Sequence[int]) -> RangeLayout:
        return first.layout(first.variable.box(list(zip(symbols, grown, strict=True))))

    pairs = list(zip(symbols, sources, strict=True))
    found = layout([n if source == _FIXED else 2 * n + 16 for n, source in pairs])
    if found.nbytes <= _SMALL_NBYTES:
        return found
    found, exact = layout([n if source == _FIXED else n + n // 8 for n, source in pairs]), layout(symbols)
    return found if found.nbytes <= exact.nbytes + exact.nbytes // 4 else exact
