"""Loops whose course only a run tells: the body is a model, and its trips are calls on other addresses."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidArgumentError, InvalidShapeError, OutOfMemoryError, explain
from graphpool.memory._arrays import ArrayAllocator

from .data_dependent import as_extent
from .host_room import RunBound
from .inner_models import InnerModels, inner_run
from .trip_places import TripPlaces, moved_states, view_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ._host_call import HostBudget
    from .executable import Executable
    from .model import Model
    from .open_trips import OpenTrips

__all__ = ["Loop", "LoopPorts", "Row"]

_UNENDING = 2**62
"""Trips of a loop without a trip count."""

_CHUNK_NS = 50_000_000
"""After which time is looked at, and the arena is given to others, between two trips."""

_CHUNK_TRIPS = 2**16

_OPEN_CAPACITY = 256
"""Forms of a body to keep, each of some kilobytes, where trips have shapes of their own."""

_LEAST_NBYTES = 2**12
"""Room for a state of which the shape changes."""

_FIRST_NBYTES = 2**20
"""Of rows whose number is not known, before there are more."""


@dataclass(frozen=True)
class Row:
    """What each trip gives for one output: its shape where it is known (0 for unknown sizes), and its type."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True)
class LoopPorts:
    """Inputs and outputs of a body.

    Attributes
    ----------
    states : tuple of (str, str)
        Input, and the output that it is in the next trip.
    scanned : tuple of (str, bool)
        Inputs of which each trip has another row of an array, and whether the last row comes first.
    rows : tuple of (str, bool)
        Outputs that are rows of an array, and whether the first trip gives the last row.
    listed : tuple of (str, int)
        Inputs without elements, of which the extent is what an array of integers has at the number of the trip, times 1
        or -1; 0 where that is negative.
    outer : tuple of str
        Inputs that stay as they are.
    counter : str or None
        Input that counts the trips: a number, or the extent of an array without elements.
    is_extent : bool
        Which of both.
    check : str or None
        Output that says whether another trip follows; None for a body that always says so.
    is_open : bool
        Whether shapes may change from trip to trip.
    """

    states: tuple[tuple[str, str], ...]
    scanned: tuple[tuple[str, bool], ...]
    rows: tuple[tuple[str, bool], ...]
    listed: tuple[tuple[str, int], ...]
    outer: tuple[str, ...]
    counter: str | None
    is_extent: bool
    check: str | None
    is_open: bool

    @property
    def has_sizes(self) -> bool:
        """Whether the number of a trip says sizes."""
        return self.is_extent or bool(self.listed)


class Loop(InnerModels):
    """Runs a body so many times, or until it says that no trip follows.

    While shapes stay as they are and kernels run all of the body, trips cost no Python: see `Trips`. Other trips are
    runs of the body's model.

    Parameters
    ----------
    label : str
        Of the node, for errors.
    ports : LoopPorts
    rows : sequence of Row
        Of each of ``ports.rows``, for loops that make no trip.
    make : callable
        Makes the body's model.
    budget : HostBudget
        Counts trips and time, so that a loop comes to an end.
    places : sequence of int
        Which of the tensors of a call is each of those below.
    most : int or None
        Trip count; None where calls bring it as their first tensor, or what is scanned tells it.
    takes_most, takes_condition : bool
        Whether calls bring the trip count, and then a condition for the first trip.
    has_places : bool
        Whether calls bring arrays for the rows, as their number is known before.
    are_alike : bool
        Whether all trips have the same shapes, inside the body too.

    Notes
    -----
    Calls take these, then the first contents of the states, what is scanned, the array of each of ``ports.listed``, and
    what is outer; they give the last
    contents of the states, and the rows of all trips along a first axis. What is held for the states between trips, and
    for rows whose number is not known, is charged to the engine's budget.
    """

    kind = "loop"

    class Parts(NamedTuple):
        """What a call brings, or of each what is known of it; None for what it does not bring."""

        most: Any
        condition: Any
        states: list[Any]
        scanned: list[Any]
        listed: list[Any]
        outer: list[Any]

    def __init__(
        self,
        label: str,
        ports: LoopPorts,
        rows: Sequence[Row],
        make: Callable[..., Model],
        budget: HostBudget,
        places: Sequence[int],
        most: int | None,
        takes_most: bool,
        takes_condition: bool,
        has_places: bool,
        are_alike: bool,
    ) -> None:
        super().__init__(make)
        self.label, self.ports, self.rows, self.budget = label, ports, tuple(rows), budget
        self._places = tuple(places)
        self._most, self._takes_most, self._takes_condition = most, takes_most, takes_condition
        self.has_places, self._are_alike = has_places, are_alike

    @property
    def most(self) -> int | None:
        """The trip count, where it is known."""
        return self._most

    def parts(self, tensors: Sequence[Any]) -> Parts:
        """The tensors of a call as what they are to the loop."""
        given = iter([tensors[place] for place in self._places])
        most = next(given) if self._takes_most else None
        condition = next(given) if self._takes_condition else None
        states = [next(given) for _ in self.ports.states]
        scanned = [next(given) for _ in self.ports.scanned]
        listed = [next(given) for _ in self.ports.listed]
        return self.Parts(most, condition, states, scanned, listed, list(given))

    def attach(self, **options: Any) -> None:
        """As of `InnerModels`; forms for shapes that change in trips are kept for the next call."""
        capacity = max(options["capacity"], 0 if self._are_alike else _OPEN_CAPACITY)
        super().attach(**{**options, "capacity": capacity})

    def __call__(self, inputs: list[Any], outputs: list[Any]) -> Sequence[Any]:
        """See above."""
        given = self.parts(inputs)
        most = self._most if given.most is None else _number(given.most)
        goes_on = given.condition is None or bool(_number(given.condition))
        lengths = {len(array) for array in given.scanned}
        if len(lengths) > 1:
            raise InvalidShapeError(
                explain(f"node {self.label!r}: what is scanned", accepted="one length", got=sorted(lengths)),
                node=self.label,
            )
        if lengths:
            most = lengths.pop()
        if most is None:
            most = _UNENDING
        with inner_run():
            run = _Run(self, self.open_model(), given, outputs)
            return run.go(most if goes_on else 0)

    def bound_run(self, shapes: Sequence[Any]) -> RunBound:
        """As of `InnerModels`."""
        given = self.parts(shapes)
        found: dict[str, Any] = {name: s for (name, _), s in zip(self.ports.states, given.states, strict=True)}
        for (name, _), shape in zip(self.ports.scanned, given.scanned, strict=True):
            found[name] = shape if shape is None else shape[1:]
        found.update(zip(self.ports.outer, given.outer, strict=True))
        if self.ports.counter is not None:
            found[self.ports.counter] = (0, 0) if self.ports.is_extent else ()
        if None in found.values() or self.ports.listed:  # integers of the run
            return RunBound(unbounded=(self.label,))
        model = self.open_model()
        types = {port.name: port.dtype.numpy for port in model.inputs if port.dtype is not None}
        states = sum(prod(found[name]) * types[name].itemsize for name, _ in self.ports.states)
        bound = model.bound_run(found)  # which has one result for each state
        unbounded = list(bound.unbounded)
        results: list[Any] = [None if self.ports.is_open else found[name] for name, _ in self.ports.states]
        rows, most = self.rows, self._most
        is_told = self.has_places or not rows or (most is not None and all(0 not in row.shape for row in rows))
        if self.ports.is_open or not is_told:
            unbounded.append(self.label)  # states that grow, or nobody knows how many rows, or how long they are
        elif most is not None and not self.has_places:  # beside what is written lies what was before, or a copy
            states += 2 * sum(most * prod(row.shape) * row.dtype.itemsize for row in rows)
            results += [(most, *row.shape) for row in rows]
        run = bound.opened_nbytes + states
        return bound._replace(run_nbytes=run, opened_nbytes=run, unbounded=tuple(unbounded), results=results)


def _number(array: Any) -> int:
    return int(np.asarray(array).reshape(()))


class _Run:
    """One call of a loop: what the next trip reads, and what the trips so far have given."""

    def __init__(self, loop: Loop, model: Model, given: Loop.Parts, targets: Sequence[Any]) -> None:
        self._loop, self._ports, self._model = loop, loop.ports, model
        states = self._states = given.states
        self._scanned, self._outer = given.scanned, dict(zip(self._ports.outer, given.outer, strict=True))
        self._listed = [(array, sign) for array, (_, sign) in zip(given.listed, self._ports.listed, strict=True)]
        self._arrays = ArrayAllocator(model.engine.host_budget, f"loop {loop.label!r}")
        self._targets = list(targets[: len(states)])
        self._buffers: dict[int, tuple[Any, Any]] = {}
        self._rooms: dict[int, tuple[Any, Any]] = {}  # bytes for states whose shapes change
        self._done, self._most, self._is_ended = 0, 0, False
        pairs = zip(loop.rows, self._ports.rows, targets[len(states) :], strict=True)
        self._rows = [_Rows(loop.label, row, is_turned, target, self._arrays) for row, (_, is_turned), target in pairs]

    def go(self, most: int) -> list[Any]:
        """The results of so many trips at most."""
        initial = list(self._states)
        for rows in self._rows:
            rows.most = most
        self._most = most
        repeat, spend, label = self._model.repeat, self._loop.budget.spend, self._loop.label
        while self._done < most and not self._is_ended:
            before = self._done
            repeat(self._inputs(), self._advance)
            spend(self._done - before, label)
        found = enumerate(zip(self._states, initial, self._targets, strict=True))
        kept = [
            self._arrays.call(np.array, now) if to is None and (now is own or self._is_roomy(number)) else now
            for number, (now, own, to) in found
        ]
        return kept + [rows.result(self._done) for rows in self._rows]

    def _inputs(self) -> dict[str, Any]:
        """Inputs of the next trip."""
        ports, found = self._ports, dict(self._outer)
        for (name, _), value in zip(ports.states, self._states, strict=True):
            found[name] = value
        for (name, is_turned), array in zip(ports.scanned, self._scanned, strict=True):
            found[name] = array[self._most - 1 - self._done if is_turned else self._done, ...]
        for (name, sign), (array, _) in zip(ports.listed, self._listed, strict=True):
            if self._done >= len(array):
                what = f"node {self._loop.label!r}: the place in an array that a trip reads"
                raise InvalidArgumentError(
                    explain(what, accepted=f"below {len(array)}", got=self._done), node=self._loop.label
                )
            found[name] = as_extent(sign * array.item(self._done))
        if ports.counter is not None:
            found[ports.counter] = as_extent(self._done) if ports.is_extent else np.array(self._done)
        return found

    def _advance(self, form: Executable, inputs: dict[str, Any]) -> None:
        """Make the next trips on a form: as many as can be without Python, or one."""
        ports = self._ports
        if not ports.has_sizes and form.can_repeat(ports, inputs):
            self._repeat(form, inputs, min(self._most - self._done, _CHUNK_TRIPS))
            return
        if self._go_on(form, inputs):
            return
        results = self._arrays.call(form.run, inputs)
        for rows, (name, _) in zip(self._rows, ports.rows, strict=True):
            rows.put(self._done, np.asarray(results[name]))
        self._states = [results[name] for _, name in ports.states]
        self._done += 1
        self._is_ended = ports.check is not None and not _number(results[ports.check])

    def _repeat(self, form: Executable, inputs: dict[str, Any], most: int) -> None:
        """Make trips in which nothing but addresses change."""
        ports = self._ports
        for rows, (name, _) in zip(self._rows, ports.rows, strict=True):
            described = form.output(name)
            assert described is not None  # as it can repeat
            most = min(most, rows.reserve(self._done, *described))
        buffers = [self._buffers_for(number) for number in range(len(self._states))]
        places_of_rows = [rows.place(self._done) for rows in self._rows]
        places = TripPlaces(ports, inputs, self._scanned, buffers, places_of_rows, self._done)
        done, self._is_ended, self._states = form.runner.repeat(places, most, _CHUNK_NS)
        self._done += done

    def _go_on(self, form: Executable, inputs: dict[str, Any]) -> bool:
        """Make trips of other shapes, as long as they need no other form; whether there were any."""
        before = self._done
        try:
            trips = form.take_open(self._ports, inputs)
        except OutOfMemoryError:  # one trip at a time takes less
            return False
        while trips is not None:
            try:
                halt = self._make_trips(form, trips, inputs)
            except BaseException:
                trips.close()
                raise
            if halt != "room":
                form.leave_open(trips)
                break
            trips.close()
            inputs = self._inputs()
            try:
                trips = form.make_open(inputs)
            except OutOfMemoryError:
                break
        return self._done > before

    def _make_trips(self, form: Executable, trips: OpenTrips, inputs: dict[str, Any]) -> str | None:
        """Make trips until something keeps the next one from being made; what that is."""
        ports = self._ports
        while True:
            described = [form.output(name) for name, _ in ports.rows]
            most = min(self._most - self._done, _CHUNK_TRIPS)
            for rows, row in zip(self._rows, described, strict=True):
                assert row is not None  # as it can repeat
                most = min(most, rows.reserve(self._done, *row))
            sizes = trips.sizes(inputs, [row[0] for row in described if row is not None], self._listed)
            if sizes is None:
                return "form"
            moved = moved_states(ports, form.form)
            buffers = [self._bytes_for(number, trips) for number in range(len(self._states))]
            inputs = self._inputs()  # states that grow in place were brought there
            for place, number in enumerate(moved):
                sizes.set_capacity(place, len(buffers[number][0]))
            places = TripPlaces(
                ports, inputs, self._scanned, buffers, [rows.place(self._done) for rows in self._rows], self._done
            )
            done, ended, self._states = trips.run(places, sizes, most, _CHUNK_NS)
            self._done += done
            self._is_ended = ended.is_ended
            if ended.halt != "bytes":
                return ended.halt
            for place, number in enumerate(moved):
                self._reserve_bytes(number, sizes.needed_nbytes(place))
            inputs = self._inputs()

    def _bytes_for(self, number: int, trips: OpenTrips) -> tuple[Any, Any]:
        """As `_buffers_for`, of bytes in a row; the same one twice for a state that grows where it is."""
        state, known = self._states[number], self._rooms.get(number)
        grows = trips.is_appended(number, state.shape)
        if known is None or (known[0] is known[1]) is not grows or len(known[0]) < state.nbytes:
            nbytes = max(state.nbytes, 1)
            room_nbytes = 2 * nbytes + _LEAST_NBYTES if trips.may_grow(number) else nbytes
            known = self._rooms[number] = self._room_of(room_nbytes, nbytes, grows)
        if not grows:
            return known if not np.may_share_memory(state, known[0]) else known[::-1]
        if not np.may_share_memory(state, known[0]):
            self._states[number] = view_of(known[0], state.shape, state.dtype)
            np.copyto(self._states[number], state)
        return known

    def _is_roomy(self, number: int) -> bool:
        """Whether a state may lie in a buffer that is larger."""
        known = self._rooms.get(number)
        return known is not None and len(known[0]) > self._states[number].nbytes

    def _reserve_bytes(self, number: int, nbytes: int) -> None:
        """Have buffers for a state of so many bytes, with room for more."""
        known = self._rooms[number]
        if len(known[0]) < nbytes:
            self._rooms[number] = self._room_of(2 * nbytes + _LEAST_NBYTES, nbytes, known[0] is known[1])

    def _room_of(self, nbytes: int, least_nbytes: int, is_one: bool) -> tuple[Any, Any]:
        """Two buffers of so many bytes, or of the least; the same one twice if one is enough."""
        try:
            found = [self._arrays.empty((nbytes,), np.dtype(np.uint8)) for _ in range(2 - is_one)]
        except OutOfMemoryError:
            if nbytes == least_nbytes:
                raise
            return self._room_of(least_nbytes, least_nbytes, is_one)
        return found[0], found[-1]

    def _buffers_for(self, number: int) -> tuple[Any, Any]:
        """Two arrays for a state: where the next trip writes, and then where the one after it does."""
        now = self._states[number]
        known = self._buffers.get(number)
        if known is None or known[0].shape != now.shape:
            target = self._targets[number]
            is_fit = target is not None and target.shape == now.shape
            first = target if is_fit else self._arrays.empty(now.shape, now.dtype)
            known = self._buffers[number] = first, self._arrays.empty(now.shape, now.dtype)
        return known if now is not known[0] else known[::-1]


class _Rows:
    """What trips give for one output, in one array, which grows where nobody knows how many there will be.

    `target` is where the results go, if that is known; `most` is to be set before the first row.
    """

    def __init__(self, label: str, row: Row, is_turned: bool, target: Any, arrays: ArrayAllocator) -> None:
        self._label, self._row, self._is_turned, self._arrays = label, row, is_turned, arrays
        self._array: Any = target
        self.most = 0

    def reserve(self, done: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
        """Have room for one more row at least; for how many."""
        if self._array is None:
            self._array = self._arrays.empty((self._room(0, shape, dtype), *shape), dtype)
        if self._array.shape[1:] != shape or self._array.dtype != dtype:
            got = f"{dtype} {shape}"
            accepted = f"{self._array.dtype} {self._array.shape[1:]}, as before"
            what = f"node {self._label!r}: what a trip gives"
            raise InvalidShapeError(explain(what, accepted=accepted, got=got), node=self._label)
        if done == len(self._array):
            grown = self._arrays.empty((self._room(done, shape, dtype), *shape), dtype)
            grown[:done] = self._array
            self._array = grown
        return len(self._array) - done

    def _room(self, done: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> int:
        """Rows to have memory for."""
        first = max(_FIRST_NBYTES // max(prod(shape) * dtype.itemsize, 1), 16)
        return self.most if self._is_turned else min(self.most, 2 * done or first)

    def put(self, done: int, row: Any) -> None:
        """Keep a row."""
        self.reserve(done, row.shape, row.dtype)
        self._array[self._index(done)] = row

    def _index(self, done: int) -> int:
        return self.most - 1 - done if self._is_turned else done

    def place(self, done: int) -> tuple[Any, int]:
        """Where the next row goes, and how many bytes from there to the one after it."""
        stride = int(self._array.strides[0])
        return self._array[self._index(done), ...], -stride if self._is_turned else stride

    def result(self, done: int) -> Any:
        """The rows of so many trips."""
        if self._array is None:
            return self._arrays.empty((0, *self._row.shape), self._row.dtype)
        return self._array if done == len(self._array) else self._arrays.call(np.array, self._array[:done])
