"""Sessions: runs of a model of which each finds what the one before has left."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.errors import (
    GraphpoolError,
    InvalidArgumentError,
    InvalidShapeError,
    OutOfMemoryError,
    StateError,
    brief,
    explain,
)
from graphpool.fork import reset_in_child
from graphpool.memory._arrays import ArrayAllocator

from ._model_run import InputPorts, check_outputs
from .held_states import HeldStates
from .model_port import as_input, check_is_mapping, stand_in
from .model_step import settled_tensors
from .session_states import describe_states
from .state_buffers import StateBuffers, StateContent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ._form_cache import FormUse
    from .executable import Executable
    from .held_states import HeldState
    from .model import Model
    from .model_port import ModelPort

__all__ = ["Session"]

_EMPTY = StateContent({}, {})


class Session:
    """Runs of a model that share states: outputs of one run that are inputs of the next; made by `Model.session`.

    States stay in the engine's memory, in buffers for the largest shapes. One that the model joins to something new is
    appended to: what is there is neither read nor written. Any other is written from one of two buffers to the other.

    Parameters
    ----------
    model : Model
    states : mapping of str to str
        Output -> the input that it becomes.
    capacity : mapping of str to int or tuple of int
        See `Model.session`.

    Attributes
    ----------
    model : Model
    states : dict of str to str
    nbytes : int
        Memory of the states, charged to the engine's budget; forks that share it count it each. Unit: bytes.
    length : int
        Size of the states along the axis that grows: positions so far. 0 where none grows.
    shapes : dict of str to tuple of int
        Of the states now, by input. Empty before the first run and after `reset`.
    is_closed : bool
        Whether `close` was called, on the session or its model.

    Notes
    -----
    Ownership: owns its states; forks share them until one of them runs. Memory goes back with `close`, or with the last
    reference. Threads: one at a time, a call while another is under way raises `StateError`; sessions of one model run
    side by side, with the same weights, programs and arenas. Cost of `run`: that of `Model.run`, and a microsecond a
    state. A run that fails, or is interrupted, leaves the states as they were.
    """

    def __init__(self, model: Model, states: Mapping[str, str], capacity: Mapping[str, Any]) -> None:
        check_is_mapping("state", states, "names of outputs as keys, and of inputs for them")
        check_is_mapping("capacity", capacity, "names of dimensions or inputs as keys, and sizes for them")
        self.model, self.states = model, dict(states)
        held = describe_states(model.inputs, model.outputs, self.states, capacity)
        self._given = tuple(port for port in model.inputs if port.name not in held.inputs)
        self._capacity: dict[Any, int] = {
            dim: size
            for state in held.states
            for dim, size in zip(state.dims, state.capacity, strict=True)
            if isinstance(dim, str)
        }
        self._named = [
            (state.input, axis, dim)
            for state in held.states
            for axis, dim in enumerate(state.dims)
            if isinstance(dim, str) and axis not in state.growing
        ]
        self._content = _EMPTY
        self._open_axes = {axis for state in held.states for axis in state.growing if state.dims[axis] is None}
        doubled = [state.input for state in held.states if not state.growing]
        self._start(held, StateBuffers(held, model.engine.budget, f"state of {model.name}", doubled))
        try:
            self._check_room()
        except BaseException:
            self.close()
            raise

    def _start(self, held: HeldStates, buffers: StateBuffers) -> None:
        self._held, self._buffers = held, buffers
        self._inputs = InputPorts(self._given)
        self._output_names = frozenset(port.name for port in self.model.outputs if port.name not in held.outputs)
        self._is_closed = False
        self._reset_in_child()
        reset_in_child(self)
        buffers.share(self)
        self.model._forms.sessions.add(self)

    def _reset_in_child(self) -> None:
        """A fresh lock: in a forked child nobody is left who would release the old one."""
        self._in_use = threading.Lock()

    @contextmanager
    def _use(self) -> Iterator[None]:
        """One call at a time."""
        if not self._in_use.acquire(blocking=False):
            raise StateError(
                explain(f"a session of {self.model.name} is in use", hint="use it in one thread at a time, or fork it")
            )
        try:
            self._check_open()
            yield
        finally:
            self._in_use.release()
            if self._is_closed:  # meanwhile
                self.close()

    def _check_open(self) -> None:
        if self.is_closed:
            raise StateError(explain(f"the session of {self.model.name} is closed", hint="make another one"))

    # ---- running

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Compute the outputs from the inputs and the states, and keep the new states.

        Parameters
        ----------
        inputs : mapping of str to array
            As for `Model.run`, without the states.
        outputs : mapping of str to ndarray, optional
            As for `Model.run`, without the states.

        Returns
        -------
        outputs : dict of str to ndarray
            As of `Model.run`, without the states.

        Raises
        ------
        StateError
            A state has no room for what the run would leave, or is of another batch; the session or the model is
            closed, or in use in another thread. Nothing was run.
        InvalidArgumentError, InvalidDataTypeError, InvalidShapeError, OutOfMemoryError, BackendError, LimitError
            As `Model.run`; the states are as they were.
        """
        with self._use():
            arrays = self._take(inputs)
            self._find_growing(arrays)
            shapes = self._shapes_for(arrays)
            if outputs is not None:
                check_outputs(outputs, arrays, self._output_names)
            return self.model._forms.run_in_turn(arrays, self._run_once, arrays, outputs, shapes)

    def _run_once(
        self, given: dict[str, Any], outputs: Mapping[str, Any] | None, shapes: Mapping[str, tuple[int, ...]]
    ) -> dict[str, Any]:
        self._own(self._content)
        arrays = self.model._forms.dense(self._inputs, given)
        arrays = self._with_states(arrays, {state.input: self._view(state, shapes) for state in self._held.states})
        use = self.model._forms.enter(arrays, self._held)
        runs = 0
        try:
            results = self._run(use, arrays, outputs, shapes)
            runs = 1
            return results
        finally:
            self.model._forms.cache.leave(use, runs)

    def _take(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """The inputs that are no states, checked."""
        if hasattr(inputs, "keys") and not self._held.inputs.isdisjoint(inputs):
            named = min(self._held.inputs.intersection(inputs))
            raise InvalidArgumentError(
                explain(f"input {named!r} is a state of the session", hint="leave it out; restore() sets states"),
                input_name=named,
            )
        return self._inputs.take(inputs)

    def _shapes_for(self, arrays: Mapping[str, Any], length: int | None = None) -> dict[str, tuple[int, ...]]:
        """Shapes of the states as a run on these inputs reads them; with another length if it is given."""
        sizes: dict[str, int] = {}
        for port in self._given:
            if port.shape is not None and isinstance(arrays[port.name], np.ndarray):
                dims = zip(port.shape, arrays[port.name].shape, strict=True)
                sizes.update((dim, size) for dim, size in dims if isinstance(dim, str))
        if length is None and self._fits(sizes):
            return dict(self._content.shapes)
        return {
            state.input: tuple(
                self._size(state, axis, sizes) if length is None or axis not in state.growing else length
                for axis in range(len(state.dims))
            )
            for state in self._held.states
        }

    def _find_growing(self, arrays: Mapping[str, Any]) -> None:
        """Find out which axes without a name grow: others stay as long as they are where they are full."""
        for axis in list(self._open_axes):
            shapes = self._shapes_for(arrays)
            if self._content.is_empty:
                shapes = {state.input: state.full(shapes[state.input], axis) for state in self._held.states}
            try:
                form = self.model.plain_form(self._with_states(arrays, self._stand_ins(shapes)))
            except GraphpoolError:  # masks and positions are those of states without such an axis
                continue
            left, self._open_axes = settled_tensors(form.graph), self._open_axes - {axis}
            states = [
                state.settled(axis, shapes[state.input], left[form.outputs[state.output]].shape)
                for state in self._held.states
            ]
            self._held = HeldStates(tuple(states))

    def _stand_ins(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """Arrays of these shapes in place of the states, by input."""
        states = self._held.states
        return {s.input: np.broadcast_to(np.zeros((), s.dtype.numpy), shapes[s.input]) for s in states}

    def _fits(self, sizes: Mapping[str, int]) -> bool:
        """Whether states are as they are, and inputs say nothing else of them."""
        shapes = self._content.shapes
        named = ((shapes[name][axis], sizes[dim]) for name, axis, dim in self._named if dim in sizes)
        return bool(shapes) and all(now == size for now, size in named)

    def _size(self, state: HeldState, axis: int, sizes: Mapping[str, int]) -> int:
        """One size of a state: what it has, else what inputs say of it."""
        shape, dim, most = self._content.shapes.get(state.input), state.dims[axis], state.capacity[axis]
        now = (0 if axis in state.growing else None) if shape is None else shape[axis]
        size = most if now is None else now
        if isinstance(dim, str) and axis not in state.growing:
            size = sizes.get(dim, size)
        if size > most or (now is not None and size != now):
            accepted = f"at most {most}" if now is None else now
            hint = "make a session with a larger capacity" if now is None else "reset the session first"
            what = f"state {state.input!r}: {state.describe_axis(axis)}"
            message = explain(what, accepted=accepted, got=size, hint=hint)
            raise StateError(message, input_name=state.input, dim=axis)
        return size

    def _own(self, content: StateContent | None = None) -> None:
        """Have the buffers alone, with the content if any is given."""
        self._buffers = self._buffers.own(self, content)
        if content is not None and content.is_empty:
            self._buffers.clear(self._held)

    def _view(self, state: HeldState, shapes: Mapping[str, tuple[int, ...]]) -> np.ndarray[Any, Any]:
        return self._buffers.view(state, self._content.sides.get(state.input, 0), shapes[state.input])

    def _with_states(self, arrays: Mapping[str, Any], views: Mapping[str, Any]) -> dict[str, Any]:
        """All inputs, in the model's order."""
        given = {**arrays, **views}
        return {port.name: given[port.name] for port in self.model.inputs}

    def _run(
        self,
        use: FormUse[Executable],
        arrays: Mapping[str, Any],
        outputs: Mapping[str, Any] | None,
        shapes: Mapping[str, tuple[int, ...]],
    ) -> dict[str, Any]:
        executable, buffers, left = use.executable, self._buffers, dict(shapes)
        appended = executable.appended
        sides = {state.input: self._content.sides.get(state.input, 0) for state in self._held.states}
        held: dict[str, Any] = {}
        for state in self._held.states:
            if state.output not in appended:
                buffers.double(state)
                sides[state.input] = 1 - sides[state.input]
            shape = executable.shape_of(state.output)
            if shape is not None:
                left[state.input] = shape
                held[state.output] = buffers.view(state, sides[state.input], shape)
        results = executable.run(arrays, outputs, held)
        for state in self._held.states:
            result = results.pop(state.output)
            if state.output not in held:  # of a shape that nobody knew before
                array = as_input(self._port(state), result)
                state.check(array.shape)
                left[state.input] = array.shape
                buffers.view(state, sides[state.input], array.shape)[...] = array
        self._content = StateContent(left, sides)
        return results

    def _port(self, state: HeldState) -> ModelPort:
        return next(port for port in self.model.inputs if port.name == state.input)

    # ---- states

    def reset(self) -> None:
        """Begin anew: states that grow have no positions, others are zeros. The memory stays.

        Raises
        ------
        StateError
            The session is closed, or in use in another thread.
        """
        with self._use():
            self._content = _EMPTY

    def truncate(self, length: int) -> None:
        """Forget the positions from `length` on, as when words are taken back. No memory is touched.

        Parameters
        ----------
        length : int
            At most the present one.

        Raises
        ------
        InvalidArgumentError
            There are not so many positions.
        StateError
            A state has no axis that grows: what it was is not known any more. Or the session is closed, or in use in
            another thread.
        """
        with self._use():
            fixed = next((state.input for state in self._held.states if not state.growing), None)
            if fixed is not None:
                hint = "save() before, and restore()"
                raise StateError(explain(f"state {fixed!r} has no positions to forget", hint=hint), input_name=fixed)
            least = min(self._lengths(), default=0)
            if not isinstance(length, int) or not 0 <= length <= least:
                raise InvalidArgumentError(explain("length", accepted=f"0 .. {least}", got=brief(length)))
            if not length:
                self._content = _EMPTY
                return
            shapes = {
                state.input: tuple(
                    length if axis in state.growing else size
                    for axis, size in enumerate(self._content.shapes[state.input])
                )
                for state in self._held.states
            }
            self._content = StateContent(shapes, self._content.sides)

    def fork(self) -> Session:
        """Another session with the same states, as for each beam of a search.

        Returns
        -------
        session : Session
            It shares the memory of the states with this one until one of them runs, which makes a copy first.

        Raises
        ------
        StateError
            The session is closed, or in use in another thread.
        """
        with self._use():
            other = Session.__new__(Session)
            other.model, other.states, other._content = self.model, dict(self.states), self._content
            other._given, other._capacity, other._named = self._given, self._capacity, self._named
            other._open_axes = self._open_axes
            other._start(self._held, self._buffers)
            return other

    def save(self) -> dict[str, np.ndarray[Any, Any]]:
        """The states.

        Returns
        -------
        states : dict of str to ndarray
            Input -> a copy, which the engine's budget counts as long as it is held. `numpy.savez` writes it to a file.
            No entries before the first run.

        Raises
        ------
        OutOfMemoryError
            The budget has no room for the copies.
        StateError
            The session is closed, or in use in another thread.
        """
        with self._use():
            content, arrays = self._content, ArrayAllocator(self.model.engine.budget, "saved states")
            held = () if content.is_empty else self._held.states
            return {state.input: arrays.call(np.array, self._view(state, content.shapes)) for state in held}

    def restore(self, states: Mapping[str, Any]) -> None:
        """Put states in place of those that there are.

        Parameters
        ----------
        states : mapping of str to array
            What `save` has given, of this session or another one; or one array for each state, by its input.

        Raises
        ------
        InvalidArgumentError, InvalidDataTypeError, InvalidShapeError
            A state is missing or unknown, or does not fit; nothing is changed.
        StateError
            There is no room for it; or the session is closed, or in use in another thread.
        OutOfMemoryError
            Forks share the states, and the budget has no room for others.
        """
        if hasattr(states, "keys") and len(states) == 0:
            self.reset()
            return
        with self._use():
            arrays = InputPorts(map(self._port, self._held.states)).take(states)
            self._check_alike(arrays)
            self._own()
            self._content = _EMPTY
            shapes = {name: array.shape for name, array in arrays.items()}
            for state in self._held.states:
                self._view(state, shapes)[...] = arrays[state.input]
            self._content = StateContent(shapes, dict.fromkeys(shapes, 0))

    def _check_alike(self, arrays: Mapping[str, Any]) -> None:
        """Raise unless states fit and sizes of one name are equal."""
        sizes: dict[str, tuple[int, str]] = {}
        for state in self._held.states:
            state.check(arrays[state.input].shape)
            for axis, (dim, size) in enumerate(zip(state.dims, arrays[state.input].shape, strict=True)):
                known, other = sizes.setdefault(dim, (size, state.input)) if isinstance(dim, str) else (size, "")
                if known != size:
                    what = f"state {state.input!r}: {state.describe_axis(axis)}"
                    message = explain(what, accepted=f"{known}, as of {other!r}", got=size)
                    raise InvalidShapeError(message, input_name=state.input, dim=axis)

    # ---- what is known of it

    def _lengths(self) -> list[int]:
        shapes = self._content.shapes
        return [shapes[state.input][axis] for state in self._held.states if shapes for axis in state.growing]

    @property
    def length(self) -> int:
        """Size of the states along the axis that grows."""
        return max(self._lengths(), default=0)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the states now, by input."""
        return dict(self._content.shapes)

    @property
    def nbytes(self) -> int:
        """Memory of the states. Unit: bytes."""
        buffers = self.buffers
        return 0 if buffers is None else buffers.nbytes

    @property
    def buffers(self) -> StateBuffers | None:
        """Where the states lie; None once they are given back."""
        return self.__dict__.get("_buffers")

    def predict_peak(self, shapes: Mapping[str, Any] | None = None, *, length: int | None = None) -> int:
        """What one run at a time takes of the engine's budget, with the states of all sessions of the model.

        Parameters
        ----------
        shapes : mapping of str to shape or array, optional
            As for `Model.predict_peak`, without the states.
        length : int, optional
            Of the states that grow, before the run. Default: the present one.

        Returns
        -------
        nbytes : int
            Exact. Unit: bytes.

        Raises
        ------
        InvalidArgumentError, InvalidShapeError
            A shape is missing or does not fit.
        StateError
            There is no room for the states; the session or the model is closed, or in use in another thread.
        OutOfMemoryError
            It is more than the engine's limit.
        """
        with self._use():
            return self._predict(dict(shapes or {}), length)

    def _predict(self, given: Mapping[str, Any], length: int | None) -> int:
        deciding = self.model._forms.deciding
        arrays = {port.name: stand_in(port, given.get(port.name), port.name in deciding) for port in self._given}
        self._find_growing(arrays)
        shapes = self._shapes_for(arrays, length)
        for state in self._held.states:
            state.check(shapes[state.input])
        use = self.model._forms.enter(self._with_states(arrays, self._stand_ins(shapes)), self._held)
        try:
            executable = use.executable
            executable.check_room(name for name in executable.form.outputs if name not in self._held.outputs)
            whole = [state for state in self._held.states if state.output not in executable.appended]
            missing = sum(map(self._buffers.missing_nbytes, whole))
            return executable.peak_nbytes + self.model._forms.sessions.nbytes + missing
        finally:
            self.model._forms.cache.leave(use)

    def _check_room(self) -> None:
        """Raise `OutOfMemoryError` if a run can never have memory, where it is known what the next one is."""
        is_known = all(
            port.shape is not None and all(isinstance(dim, int) or dim in self._capacity for dim in port.shape)
            for port in self._given
        )
        if not is_known or self.model._forms.deciding:
            return
        shapes = {p.name: [self._capacity.get(d, d) for d in p.shape or ()] for p in self._given}
        most = min((state.capacity[axis] for state in self._held.states for axis in state.growing), default=1)
        try:
            self._predict(shapes, most - 1)
        except OutOfMemoryError:
            raise
        except GraphpoolError:  # the model takes other shapes; a run says what is wrong
            return

    # ---- life

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed or self.model.is_closed

    def close(self) -> None:
        """Give the memory of the states back, after a run that is going on. Idempotent."""
        self._is_closed = True
        if self._in_use.acquire(blocking=False):  # else who uses it closes it
            buffers: StateBuffers | None = self.__dict__.pop("_buffers", None)
            self._in_use.release()
            if buffers is not None:
                buffers.leave(self)

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        raise TypeError("a Session is bound to memory and does not pickle; pickle session.save() instead")

    def __repr__(self) -> str:
        state = "closed" if self.is_closed else f"{len(self.states)} states, length {self.length}"
        return f"Session({self.model.name!r}, {state})"
