"""A model: named inputs to named outputs, compiled once for all input shapes for which its decisions hold."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from graphpool.errors import InvalidArgumentError, StateError, explain
from graphpool.memory._arrays import ArrayAllocator

from ._stream import Stream
from .collection import collection_paused
from .constant_part import check_files, held_nbytes
from .executable import Executable
from .form_cache import FormCache, FormUse
from .model_port import as_input, check_names, check_outputs, describe_port, stand_in
from .request_batches import Padding, run_side_by_side
from .result_arrays import ResultArrays
from .scheduling import ScheduleOptions, parse_options
from .variable_forms import VariableForms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from graphpool.graph.partition import Partition

    from ._tensor import Tensor
    from .engine import Engine
    from .model_form import ModelForm
    from .model_port import ModelPort
    from .packed_weight import PackedWeight
    from .variable_form import VariableForm

__all__ = ["Model", "ModelStats", "check_weights_mode"]

WEIGHTS_MODES = ("scoped", "cached", "packed")


@dataclass(frozen=True, slots=True)
class ModelStats:
    """Counters of a model.

    Attributes
    ----------
    runs, hits, misses, evictions : int
        Runs that ended; lookups of a specialised form that found one, or had to make one; forms given up.
    compilations : int
        How often the model was compiled: other shapes are served by what was compiled, where all decisions taken on
        sizes come out alike.
    respecialisations : tuple of str
        Why it was compiled anew, the last 32 times: the shapes, and what held for those of the compilation that was
        used last and does not hold for them.
    forms : int
        Specialised forms kept now.
    arena_nbytes, constants_nbytes, cached_nbytes, programs_nbytes : int
        Memory of all their arenas now, of their constants but for those in mapped files, of the packed constants that
        the constant tensor cache keeps, shared ones counted once, and of their compiled programs. Unit: bytes.
    streams : int
        Most streams that one of them uses.
    largest_arena_nbytes, sequential_arena_nbytes : int
        What one run of the largest form takes for its arena, and what it would take on one stream. Unit: bytes.
    """

    runs: int
    hits: int
    misses: int
    evictions: int
    compilations: int
    respecialisations: tuple[str, ...]
    forms: int
    arena_nbytes: int
    constants_nbytes: int
    cached_nbytes: int
    programs_nbytes: int
    streams: int
    largest_arena_nbytes: int
    sequential_arena_nbytes: int


class Model:
    """Runs a whole graph: some partitions on backends, the others on host functions.

    Parameters
    ----------
    inputs, outputs : sequence of ModelPort
    specialise : callable
        Takes the input shapes by name (None for inputs that are no arrays) and the values of the `deciding` inputs by
        name, and returns a `ModelForm`.
    engine : Engine
    deciding : collection of str, default=()
        Inputs whose content decides shapes; the model is specialised to their values.
    capacity : int, default=16
        Specialised forms to keep; the least recently used one is given up first.
    owns_engine : bool, default=False
        Whether `close` closes the engine too.
    name : str, default="model"
    schedule : str, optional
        How steps are placed on streams: ``sequential``, ``wavefront``, ``asap``, ``nimble``, ``list``, ``ios``, or
        ``auto``, which simulates all and keeps to one stream unless more promise a gain. Default: the variable
        ``GRAPHPOOL_STREAM_SCHEDULE``, else ``auto``. Results do not depend on it.
    streams : int, optional
        Most streams, which divide the threads of the engine among them. Default: 2.
    weights : {"scoped", "cached", "packed"}, default="scoped"
        Whether packed constants leave the constant tensor cache with the model, stay there when it is closed, or
        replace the constants: of a weight in memory that kernels read packed alone, whose packing can be undone, the
        model then keeps the packed weights alone, whatever becomes of the cache. `read_weight` unpacks it.

    Attributes
    ----------
    inputs, outputs : tuple of ModelPort
    engine : Engine
    name : str
    options : ScheduleOptions
    weights : str

    Notes
    -----
    Ownership: owns its compiled forms; arrays given to `run` are not kept. Threads: safe; runs go on side by side, each
    with an arena of its own, and one form is compiled at a time. Cost of `run`: a few microseconds and about one a
    partition beyond the work; new shapes take a fraction of a millisecond, or a compilation where a decision changes.
    Source: oneDNN Graph's programming model, what a framework does around partitions.
    """

    def __init__(
        self,
        inputs: Sequence[ModelPort],
        outputs: Sequence[ModelPort],
        specialise: Callable[[Mapping[str, Any], Mapping[str, np.ndarray[Any, Any]]], ModelForm],
        engine: Engine,
        *,
        deciding: Collection[str] = (),
        capacity: int = 16,
        owns_engine: bool = False,
        name: str = "model",
        schedule: str | None = None,
        streams: int | None = None,
        weights: str = "scoped",
    ) -> None:
        check_weights_mode(weights)
        if not isinstance(capacity, int) or capacity < 1:
            raise InvalidArgumentError(explain("capacity", accepted="an int of at least 1", got=repr(capacity)))
        self.options = parse_options(schedule, streams)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self._input_names = [port.name for port in inputs]
        self.engine = engine
        self.name = name
        self.weights = weights
        self._packed: list[PackedWeight] = []
        self._results = ResultArrays(engine.budget, f"results of {name}")
        self._specialise = specialise
        self._deciding = tuple(port.name for port in self.inputs if port.name in deciding)
        self._capacity = capacity
        varies = getattr(specialise, "takes_sizes", False) and not all(port.is_static for port in self.inputs)
        dims = {port.name: port.shape for port in self.inputs} if varies else None
        self._variable: VariableForms[Executable] = VariableForms(dims, engine, capacity)
        self._owns_engine = owns_engine
        self._bound: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._stream = Stream(engine)  # of all forms: whoever finds its threads taken works alone
        self._forms: FormCache[Executable] = FormCache(name, capacity)
        try:
            engine.attach(self)
        except StateError:
            self._forms.clear(closes=True)
            raise

    # ---- running

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Compute the outputs.

        Parameters
        ----------
        inputs : mapping of str to array
            One for each input, of its type and shape: NumPy arrays (read-only ones too) or objects with DLPack. They
            are not written; they are copied only if they are not dense.
        outputs : mapping of str to ndarray, optional
            Where results go: writable, dense arrays of the outputs' types and shapes, apart from one another and from
            the inputs. With all of them given a warm run allocates nothing on the heap.

        Returns
        -------
        outputs : dict of str to ndarray
            In the order of `outputs`: the arrays given, fresh ones for the others, which the engine's budget counts
            until nobody holds them any more. The memory of a large one is then taken again by a later run; `trim`, idle
            decay and pressure give it back.

        Raises
        ------
        InvalidArgumentError, InvalidDataTypeError, InvalidShapeError
            An input is missing or unknown, or does not fit, or an output; the message names it. Nothing was run.
        OutOfMemoryError
            The engine's budget cannot hold constants, programs, arena and results at once; nothing was run. Where that
            can never be, `smallest_limit` is the least limit that would do. Or a host function asked for more than was
            left, which cannot be told before.
        StateError
            The model is closed.
        BackendError
            A host function failed.
        LimitError
            Host functions exceeded what `graphpool.Limits` let them take; the outputs are not complete.
        """
        check_names(inputs, self._input_names)
        arrays = {port.name: as_input(port, inputs[port.name]) for port in self.inputs}
        if outputs is not None:
            check_outputs(outputs, arrays, self.outputs)
        use = self._enter(arrays)
        try:
            return use.executable.run(arrays, outputs)
        finally:
            self._forms.leave(use, runs=1)

    def run_many(
        self, requests: Iterable[Mapping[str, Any]], *, mask: str | None = None, most_rows: int = 8
    ) -> list[dict[str, Any]]:
        """Compute the outputs of many requests.

        Parameters
        ----------
        requests : iterable of mapping of str to array
            The inputs of each, as for `run`; shapes may differ.
        mask : str, optional
            The input, of shape (batch, length), whose zeros hide positions from the model, such as
            ``attention_mask``. Requests of like lengths are then filled up with zeros and run as one batch, and results
            cut to the request's own size; they may differ from those of `run` in the last places, as between kernels.
            None: requests run side by side, one on each thread of the engine, with the results of `run`.
        most_rows : int, default=8
            Of a batch.

        Returns
        -------
        results : list of dict of str to ndarray
            In the order of the requests.

        Raises
        ------
        InvalidArgumentError
            The mask is no input of that kind, or a port does not say where its rows are.

        Otherwise as `run`, of the first request that fails, after all others have ended.

        Notes
        -----
        Threads: safe. Each request that runs has an arena of its own; where the engine's limit has no room for
        another, it waits. With a mask all requests are checked before anything runs.
        """
        jobs = list(requests)
        if mask is None:
            return run_side_by_side(self.run, jobs, self._stream)
        padding = Padding(self.inputs, self.outputs, mask, most_rows)
        checked = [padding.checked(request) for request in jobs]
        results: list[dict[str, Any]] = [{} for _ in checked]
        for batch in padding.batches(checked):
            for number, found in padding.split(self.run(padding.join(checked, batch)), batch):
                results[number] = found
        return results

    def _enter(self, arrays: Mapping[str, Any]) -> FormUse[Executable]:
        """The form for these inputs, made if need be; it stays open until it is left."""
        shapes = tuple(value.shape if isinstance(value, np.ndarray) else None for value in arrays.values())
        key = shapes, tuple(arrays[name].tobytes() for name in self._deciding)
        try:
            return self._forms.enter(key, lambda exactly: self._make(arrays, shapes, exactly))
        finally:
            if self._forms.is_closed:  # meanwhile: the form lives until this run ends, its weights are not read again
                self._variable.close()
                self._close_packed()

    @collection_paused()
    def _make(self, arrays: Mapping[str, Any], shapes: tuple[Any, ...], exactly: bool) -> Executable:
        deciding = {name: arrays[name] for name in self._deciding}
        return self._variable.form(dict(zip(arrays, shapes, strict=True)), deciding, exactly, self._compile)

    def _compile(
        self, shapes: Mapping[str, Any], deciding: Mapping[str, Any], variable: VariableForm | None
    ) -> Executable:
        """A form for these shapes, in which sizes may vary."""
        loading = ArrayAllocator(self.engine.budget, f"loading of {self.name}")
        form = loading.call(self._specialise, shapes, deciding)
        loading.hand_over()  # constants are charged as such
        shared = self._bound, self.name, self.options, self.weights, self._packed, self._results
        return Executable(form, self.engine, *shared, variable, self._stream)

    # ---- what is known of it

    def specialise(self, shapes: Mapping[str, Any] | None = None) -> Executable:
        """Compile for given shapes ahead of the first run.

        Parameters
        ----------
        shapes : mapping of str to shape or array, optional
            For every input that is not static: its shape, or an array of it, which an input whose content decides
            shapes needs. None: all inputs are static.

        Returns
        -------
        executable : Executable
            It belongs to the model, which may close it when it meets many other shapes.

        Raises
        ------
        InvalidArgumentError, InvalidShapeError
            A shape is missing or does not fit.
        """
        given = dict(shapes or {})
        unknown = [name for name in given if all(port.name != name for port in self.inputs)]
        if unknown:
            names = [port.name for port in self.inputs]
            raise InvalidArgumentError(explain(f"unknown input {unknown[0]!r}", accepted=f"inputs {names}"))
        arrays = {port.name: stand_in(port, given.get(port.name), port.name in self._deciding) for port in self.inputs}
        use = self._enter(arrays)
        self._forms.leave(use)
        return use.executable

    def predict_peak(
        self, shapes: Mapping[str, Any] | None = None, *, sequential: bool = False, outputs: bool = True
    ) -> int:
        """What one run at a time takes of the engine's budget.

        That is the arena, scratch included, the constants, packed ones that are cached, the compiled programs, and the
        results; inputs are the caller's. A ``memory_limit`` of so many bytes will do if the results of one run are let
        go of before the next, and so will one without the packed ones: kernels for plain layouts run then. What follows
        from contents is not known before: results without a shape, and arrays of host functions.

        Parameters
        ----------
        shapes : mapping of str to shape or array, optional
            As for `specialise`.
        sequential : bool, default=False
            Whether to tell what one stream would need, whatever the schedule.
        outputs : bool, default=True
            Whether the run makes its results; not where `run` is given arrays for all of them.

        Returns
        -------
        nbytes : int
            Exact. Unit: bytes.

        Raises
        ------
        InvalidArgumentError, InvalidShapeError
            A shape is missing or does not fit.
        OutOfMemoryError
            It is more than the engine's limit.
        """
        executable = self.specialise(shapes)
        executable.check_room(executable.form.outputs if outputs else ())
        nbytes = executable.sequential_peak_nbytes if sequential else executable.peak_nbytes
        return nbytes if outputs else nbytes - executable.results_nbytes

    def read_weight(self, name: str) -> np.ndarray[Any, Any]:
        """The content of a constant under the importer's name.

        Parameters
        ----------
        name : str
            Of a constant that a form compiled so far reads; the importer may have folded others away.

        Returns
        -------
        array : ndarray
            Read-only; a fresh one where the weight is kept packed, for which unpacking gives back every bit.

        Raises
        ------
        InvalidArgumentError
            No form has such a constant.
        StateError
            The model is closed, or its file was changed in place.

        Notes
        -----
        Threads: safe.
        """
        self._forms.check_open()
        forms = [executable.form for executable in self._forms.forms()]
        for form in forms:
            if name in form.weights:
                weight = form.constants[form.weights[name]]
                check_files([weight])
                return ArrayAllocator(self.engine.budget, f"weight {name}").call(np.asarray, weight)
        names = sorted({known for form in forms for known in form.weights})
        raise InvalidArgumentError(explain(f"no weight {name!r}", accepted=", ".join(names) or "none yet"), weight=name)

    def respecialise(self) -> None:
        """Give up the compiled forms; the next run compiles, with the costs of steps that are known by then.

        Notes
        -----
        Threads: safe; runs that are going on finish with the form they have.
        """
        self._forms.clear()
        self._variable.close()

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """Partitions of the form that was used last, in the order in which they run.

        Raises
        ------
        InvalidArgumentError
            No run was made yet, and not all inputs are static.
        """
        self._forms.check_open()
        kept = self._forms.forms()
        return (kept[-1] if kept else self.specialise()).partitions

    def stats(self) -> ModelStats:
        """Counters of the model."""
        forms, cache = self._forms.forms(), self._forms
        constants = {id(value): held_nbytes(value) for form in forms for value in form.form.constants.values()}
        cached = {key: nbytes for form in forms for key, nbytes in form.cached_constants().items()}
        largest = max(((form.arena_nbytes, form.sequential_arena_nbytes) for form in forms), default=(0, 0))
        return ModelStats(
            runs=cache.runs,
            hits=cache.hits,
            misses=cache.misses,
            evictions=cache.evictions,
            compilations=self._variable.compilations,
            respecialisations=tuple(self._variable.respecialisations),
            forms=len(forms),
            arena_nbytes=sum(arenas.current().stats().nbytes for arenas in {form.arenas for form in forms}),
            constants_nbytes=sum(constants.values()),
            cached_nbytes=sum(cached.values()),
            programs_nbytes=sum(form.own_nbytes for form in {*forms, *self._variable}),
            streams=max((form.streams for form in forms), default=1),
            largest_arena_nbytes=largest[0],
            sequential_arena_nbytes=largest[1],
        )

    # ---- life

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._forms.is_closed

    def trim(self) -> int:
        """Give the memory of idle arenas, and of results that nobody holds, back; returns its bytes."""
        return sum(form.trim() for form in self._forms.forms())

    def close(self) -> None:
        """Give all memory back; runs that are going on finish first, new ones are refused. Idempotent."""
        was_closed = self._forms.is_closed
        self._forms.clear(closes=True)
        self._variable.close()
        self._results.clear()
        self._close_packed()
        if self._owns_engine and not was_closed:
            self.engine.close()

    def _close_packed(self) -> None:
        while self._packed:
            with suppress(IndexError):  # another thread has closed the last one
                self._packed.pop().close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles without what was compiled: it is compiled anew, or found in the caches, at the first run.

        With protocol 5 and a ``buffer_callback`` the weights stay out of band. What is loaded has an engine of its own,
        which it shares with all that was pickled together; close the model, and the engine if it is not the model's.
        """
        self._forms.check_open()
        options = (self._deciding, self._capacity, self._owns_engine, self.name, self.options, self.weights)
        return _restore, (self.inputs, self.outputs, self._specialise, self.engine, *options)

    def __enter__(self) -> Model:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if hasattr(self, "_forms") and not self._forms.is_closed and not is_finalizing():
            warnings.warn(f"{self!r} was never closed", ResourceWarning, stacklevel=1, source=self)
            self.close()

    def __repr__(self) -> str:
        ins, outs = (
            ", ".join(f"{port.name}: {describe_port(port)}" for port in side) for side in (self.inputs, self.outputs)
        )
        state = ", closed" if self._forms.is_closed else ""
        return f"Model({self.name!r}, ({ins}) -> ({outs}){state})"


def check_weights_mode(weights: object) -> None:
    """Raise unless it is a mode of `Model`."""
    if weights not in WEIGHTS_MODES:
        raise InvalidArgumentError(explain("weights", accepted=", ".join(WEIGHTS_MODES), got=repr(weights)))


def _restore(
    inputs: tuple[ModelPort, ...],
    outputs: tuple[ModelPort, ...],
    specialise: Callable[[Mapping[str, Any], Mapping[str, np.ndarray[Any, Any]]], ModelForm],
    engine: Engine,
    deciding: tuple[str, ...],
    capacity: int,
    owns_engine: bool,
    name: str,
    options: ScheduleOptions,
    weights: str,
) -> Model:
    """A model from its pickle."""
    return Model(
        inputs,
        outputs,
        specialise,
        engine,
        deciding=deciding,
        capacity=capacity,
        owns_engine=owns_engine,
        name=name,
        schedule=options.policy,
        streams=options.streams,
        weights=weights,
    )
