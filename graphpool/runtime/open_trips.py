"""Trips of a loop whose shapes change: a form of its own, whose programs are rewritten in place for each trip."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._sizes import key_of

from .held_states import lengthens
from .trip_places import moved_states

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ._step_call import Trips
    from ._trip_sizes import TripSizes
    from .executable import Executable
    from .form_plan import RangeLayout
    from .loop import LoopPorts
    from .trip_places import TripPlaces

__all__ = ["OpenTrips", "TripFacts"]

_COUNTER, _FIXED, _FIRST_LISTED = -1, -2, -3

_SMALL_NBYTES = 2**16
"""Of an arena, which may have room for sizes that double."""


class OpenTrips:
    """A form whose sizes trips change as they go.

    `facts` are those of the loop, `layout` is where the form's temporaries lie. Ownership: owns the form. Threads: one
    at a time.
    """

    def __init__(self, facts: TripFacts, form: Executable, layout: RangeLayout) -> None:
        self._facts, self.form = facts, form
        kept = [size for _, sizes in facts.still for size in sizes] + [size for sizes in facts.rows for size in sizes]
        states = [sizes for _, sizes in facts.states]
        variable = facts.first.variable
        self._sizes = variable.trip_sizes(facts.sources, kept, states, form.programs, layout.plans, facts.nlisted)

    def sizes(self, inputs: Mapping[str, Any], rows: Sequence[Any], listed: list[Any]) -> TripSizes | None:
        """What changes from a trip with these inputs on; None where a symbol would have two values.

        `rows` are the shapes that those of the loop have in all trips, `listed` is as in `TripSizes.begin`.
        """
        facts = self._facts
        symbols = facts.symbols(inputs)
        if symbols is None:
            return None
        kept = [size for name, _ in facts.still for size in inputs[name].shape]
        kept += [size for shape in rows for size in shape]
        self._sizes.begin(symbols, kept, [inputs[name].shape for name, _ in facts.states], listed)
        return self._sizes

    def run(self, places: TripPlaces, sizes: TripSizes, most: int, time_ns: int) -> tuple[int, Trips, list[Any]]:
        """Make so many trips at most: how many there were, why they ended, and what the states are now."""
        return self.form.runner.go_on(places, sizes, most, time_ns)

    def may_grow(self, number: int) -> bool:
        """Whether a trip may leave a state with other sizes than it found it."""
        return number in self._facts.growing

    def is_appended(self, number: int, shape: Sequence[int]) -> bool:
        """Whether trips make a state of this shape longer behind all that it has, so that it can stay where it is."""
        axis = self._facts.appended.get(number)
        return axis is not None and prod(shape[: axis % len(shape)]) == 1

    def close(self) -> None:
        """Give the form's memory back. Idempotent."""
        self.form.close()


class TripFacts:
    """What is known of a loop's trips on the forms of one compilation, between which nothing but sizes changes.

    Attributes
    ----------
    moved : list of int
        States that a trip does not leave as they are.
    states : list of (str, (tuple, tuple, int))
        Of these the input, and its sizes, None for any, those of the output, and its bytes.
    still : list of (str, tuple)
        Inputs that stay, and their sizes.
    rows : list of tuple
        Sizes of what each trip gives.
    appended : dict of int to int
        States that a trip makes longer at their end, and nothing else -> the axis.
    growing : set of int
        States whose sizes a trip may change.
    sources : list of int
        Of each symbol what says it in a trip, as `TripSizes` takes it.
    nlisted : int
        How many arrays of integers say some.
    """

    def __init__(self, first: Executable, ports: LoopPorts) -> None:
        form, sizes_of = first.form, first.sizes_of
        self.first: Executable = first
        self.moved = moved_states(ports, form)
        self.states: list[tuple[str, tuple[Any, Any, Any]]] = []
        self.growing: set[int] = set()
        numbers: dict[tuple[str, int], int] = {}
        for number in self.moved:
            source, target = ports.states[number]
            read, (sizes, nbytes) = sizes_of(form.inputs[source]), sizes_of(form.outputs[target])
            self.states.append((source, ((None,) * len(sizes) if read is None else read[0], sizes, nbytes)))
            if read is None or key_of(read[0]) != key_of(sizes):
                self.growing.add(number)
            numbers.update({(source, axis): len(numbers) + axis for axis in range(len(sizes))})
        if ports.is_extent and ports.counter is not None:
            numbers[ports.counter, 0] = _COUNTER
        numbers.update({(name, 0): _FIRST_LISTED - place for place, (name, _) in enumerate(ports.listed)})
        self.nlisted: int = len(ports.listed)
        listed = {name for name, _ in ports.listed}
        others = form.inputs.keys() - {source for source, _ in self.states} - {ports.counter} - listed
        found = [(name, sizes_of(form.inputs[name])) for name in others]
        self.still: list[tuple[str, Any]] = [(name, read[0]) for name, read in found if read is not None]
        self.rows: list[tuple[int, ...]] = [sizes_of(form.outputs[name])[0] for name, _ in ports.rows]
        joins = {(op.inputs[0].id, op.outputs[0].id): op.attrs["axis"] for op in form.graph.ops if lengthens(op)}
        self.appended: dict[int, int] = {}
        for number in self.moved:
            source, target = ports.states[number]
            axis = joins.get((form.inputs[source], form.outputs[target]))
            if axis is not None:
                self.appended[number] = axis
        self.sources: list[int] = [
            next((numbers[place] for place in some if place in numbers), _FIXED) for some in first.variable.places
        ]

    @classmethod
    def of(cls, first: Executable, ports: LoopPorts) -> TripFacts | None:
        """Those of a form; None where trips are not calls of kernels alone, or more than sizes changes."""
        form, sizes_of, runner = first.form, first.sizes_of, first.runner
        given = {name for _, name in ports.states} | {name for name, _ in ports.rows} | {ports.check} - {None}
        if given != form.outputs.keys() or first.has_tensors_between:
            return None
        if not (runner.are_programs and runner.can_repeat(form.outputs)):
            return None
        names = [name for some in first.variable.places for name, _ in some]
        if not all(isinstance(name, str) for name in names):  # contents that decide
            return None
        outputs, inputs = form.outputs.values(), form.inputs.values()
        if any(sizes_of(i) is None for i in outputs):
            return None
        if any(sizes_of(i) is None and runner.reads(i) for i in inputs):
            return None
        return cls(first, ports)

    def symbols(self, inputs: Mapping[str, Any]) -> list[Any] | None:
        """What the symbols are for these inputs; None where one would have two values, or inputs do not fit."""
        for name, (sizes, *_) in self.states:
            if inputs[name].ndim != len(sizes):
                return None
        for array in inputs.values():
            if type(array) is not np.ndarray or not (array.flags.c_contiguous and array.flags.aligned):
                return None
        return self.first.variable.symbols({name: inputs[name].shape for name in self.first.form.inputs})

    def wider_layout(self, symbols: Sequence[int]) -> RangeLayout:
        """Places for these sizes, and larger ones: twice as large ones where that is little, else an eighth."""
        first, pairs = self.first, list(zip(symbols, self.sources, strict=True))

        def layout(grown: Sequence[int]) -> RangeLayout:
            return first.layout(first.variable.box(list(zip(symbols, grown, strict=True))))

        found = layout([n if source == _FIXED else 2 * n + 16 for n, source in pairs])
        if found.nbytes <= _SMALL_NBYTES:
            return found
        found, exact = layout([n if source == _FIXED else n + n // 8 for n, source in pairs]), layout(symbols)
        return found if found.nbytes <= exact.nbytes + exact.nbytes // 4 else exact
