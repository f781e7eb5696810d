"""A model: named inputs to named outputs, compiled once for all input shapes for which its decisions hold."""

from __future__ import annotations

import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import numpy as np

from graphpool.errors import InvalidArgumentError, OutOfMemoryError, StateError, explain
from graphpool.memory._arrays import ArrayAllocator
from graphpool.memory._budget import IDLE_PRIMITIVES

from ._stream import Stream
from .collection import collection_paused
from .constant_part import check_files, held_nbytes
from .declared_shapes import DeclaredShapes
from .executable import Executable
from .form_cache import FormCache, FormUse
from .model_port import as_input, check_names, check_outputs, describe_port, stand_in
from .request_batches import Padding, run_side_by_side
from .result_arrays import ResultArrays
from .scheduling import ScheduleOptions, parse_options
from .session import Session, Sessions
from .session_states import find_states
from .shape_ranges import ShapeRanges
from .shared_arenas import SharedArenas
from .variable_forms import VariableForms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from graphpool.graph.partition import Partition

    from ._tensor import Tensor
    from .engine import Engine
    from .held_states import HeldStates
    from .model_form import ModelForm
    from .model_port import ModelPort
    from .packed_weight import PackedWeight
    from .shape_ranges import RangePeak
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
    shapes : mapping of str to int, (int, int) or sequence, optional
        The shapes to come, such as ``{"batch": (1, 8), "tokens": (1, 512)}``: for a named dimension a number or a
        range, both ends included; for an input one of these for each dimension. With all sizes declared, and no
        `deciding` inputs, the model is compiled at once, one plan of memory holds for all shapes, `predict_peak` tells
        the most that any of them takes, and what does not fit the engine's limit is refused now.

    Attributes
    ----------
    inputs, outputs : tuple of ModelPort
    engine : Engine
    name : str
    options : ScheduleOptions
    weights : str

    Raises
    ------
    InvalidArgumentError
        An option is none of those accepted; `shapes` has a name that no dimension or input has, or no range.
    OutOfMemoryError
        The declared shapes do not fit the engine's limit. ``largest`` has, for each size that varies, the largest upper
        end that would fit, were the others left as they are.

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
        shapes: Mapping[str, Any] | None = None,
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
        self._results = ResultArrays(engine.budget, f"results of {name}", grows=shapes is None)
        self._specialise = specialise
        self._deciding = tuple(port.name for port in self.inputs if port.name in deciding)
        self._capacity = capacity
        self._shapes, ranges = shapes, ShapeRanges({} if shapes is None else shapes, self.inputs)
        is_fixed = all(dims is not None and all(isinstance(dim, int) for dim in dims) for dims in ranges.dims.values())
        dims = ranges.dims if getattr(specialise, "takes_sizes", False) and not is_fixed else None
        self._variable: VariableForms[Executable] = VariableForms(dims, engine, capacity)
        self._owns_engine = owns_engine
        self._bound: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
        self._stream = Stream(engine)  # of all forms: whoever finds its threads taken works alone
        self._forms: FormCache[Executable] = FormCache(name, capacity)
        self._sessions = Sessions()
        engine.budget.register(self._forms, stage=IDLE_PRIMITIVES)
        self._arenas = SharedArenas(engine.source, engine.budget, f"arena of {name}")
        self._arenas.enter()
        try:
            engine.attach(self)
        except StateError:
            self._forms.clear(closes=True)
            raise
        self._declared: DeclaredShapes | None = None
        self._roomy: FormUse[Executable] | None = None  # the last one that room was made for
        if shapes is not None:
            self._declared = DeclaredShapes(
                ranges, name, self._deciding, engine.budget, self._compile_planned, self._peak_at
            )
            try:
                self._declared.load()
            except BaseException:
                self.close()
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
        number = self._forms.begin()
        try:
            return self._run(arrays, outputs)
        except OutOfMemoryError:
            if not self._forms.may_fit_alone(number):
                raise
        finally:
            self._forms.end()
        return self._forms.run_alone(lambda: self._run(arrays, outputs))

    def _run(self, arrays: Mapping[str, Any], outputs: Mapping[str, Any] | None) -> dict[str, Any]:
        use, runs = self._enter(arrays), 1
        try:
            if self._declared is not None and self._roomy is not use:
                form, self._roomy = use.executable, use
                self._make_room(form.arena_nbytes, form.results_nbytes + form.host_nbytes)
            return use.executable.run(arrays, outputs)
        except OutOfMemoryError:
            runs = 0
            raise
        finally:
            self._forms.leave(use, runs)

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

    def session(self, state: Mapping[str, str] | None = None, capacity: Mapping[str, Any] | None = None) -> Session:
        """Runs of which each finds the states that the one before has left, such as the caches of attention.

        Parameters
        ----------
        state : mapping of str to str, optional
            Output -> the input that it is in the next run. Default: `states`.
        capacity : mapping of str to int or tuple of int, optional
            Most that a dimension of the states becomes, by its name; or the largest shape of a state, by its input. It
            is needed for dimensions that grow and for those without a name; others are 1 if it does not say.

        Returns
        -------
        session : Session

        Raises
        ------
        InvalidArgumentError, InvalidDataTypeError, InvalidShapeError
            A name is unknown, an output cannot be the input, or a capacity is missing or does not fit.
        OutOfMemoryError
            The engine's budget has no room for the states; nor, where the shapes of the other inputs are known, for
            the last run that they have room for. `smallest_limit` would do.
        StateError
            The model is closed.
        """
        self._forms.check_open()
        return Session(self, self.states if state is None else state, {} if capacity is None else capacity)

    @property
    def states(self) -> dict[str, str]:
        """Outputs that are inputs of the next run, as their names say: ``present...`` becomes ``past...``."""
        return find_states(self.inputs, self.outputs)

    def _enter(self, arrays: Mapping[str, Any], states: HeldStates | None = None) -> FormUse[Executable]:
        """The form for these inputs, made if need be; it stays open until it is left."""
        shapes = tuple(value.shape if isinstance(value, np.ndarray) else None for value in arrays.values())
        key = shapes, tuple(arrays[name].tobytes() for name in self._deciding), None if states is None else states.key
        try:
            return self._forms.enter(key, lambda exactly: self._make(arrays, shapes, exactly, states))
        finally:
            if self._forms.is_closed:  # meanwhile: the form lives until this run ends, its weights are not read again
                self._variable.close()
                self._close_packed()

    @collection_paused()
    def _make(
        self, arrays: Mapping[str, Any], shapes: tuple[Any, ...], exactly: bool, states: HeldStates | None
    ) -> Executable:
        deciding = {name: arrays[name] for name in self._deciding}
        given = dict(zip(arrays, shapes, strict=True))
        if self._declared is not None:
            self._declared.check(given)
        if states is not None:
            compile_form = partial(self._compile, states=states)
            return self._variable.form(
                given | states.shapes, deciding, exactly, compile_form, states.dims, states.pairs
            )
        if self._declared is not None:
            self._declared.prepare()
            self._make_room(0, max((form.instance_nbytes for form in self._variable), default=0))
        return self._variable.form(given, deciding, exactly, self._compile)

    def _make_room(self, arena_nbytes: int, nbytes: int) -> None:
        """Keep to what is promised for declared shapes, without a limit too: give up what is kept for other shapes.

        A run takes an arena so large at least, and so many bytes beside it.
        """
        most_nbytes = None if self._declared is None else self._declared.most_run_nbytes
        if most_nbytes is not None:
            excess = self._forms.held + max(self._arenas.current().nbytes, arena_nbytes) + nbytes - most_nbytes
            if excess > 0 and self._forms.reclaim(excess) < excess:
                self._arenas.shrink(arena_nbytes)

    @collection_paused()
    def _compile_planned(self, shapes: Mapping[str, Any]) -> Executable | None:
        """A form for declared shapes, kept for good; None if sizes cannot vary, of which plain shapes say why."""
        return self._variable.plan(shapes, partial(self._compile, is_planned=True))

    def _compile(
        self,
        shapes: Mapping[str, Any],
        deciding: Mapping[str, Any],
        variable: VariableForm | None,
        states: HeldStates | None = None,
        is_planned: bool = False,
    ) -> Executable:
        """A form for these shapes, in which sizes may vary."""
        loading = ArrayAllocator(self.engine.budget, f"loading of {self.name}")
        form = loading.call(self._specialise, {port.name: shapes[port.name] for port in self.inputs}, deciding)
        loading.hand_over()  # constants are charged as such
        shared = self._bound, self.name, self.options, self.weights, self._packed, self._results
        held = None if states is None else states.sized(shapes)
        return Executable(form, self.engine, *shared, variable, self._stream, held, self._arenas, is_planned)

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
        use = self._enter_shapes(shapes)
        self._forms.leave(use)
        return use.executable

    def _enter_shapes(self, shapes: Mapping[str, Any] | None) -> FormUse[Executable]:
        """The form for these shapes, which stays open until it is left."""
        given = dict(shapes or {})
        unknown = [name for name in given if all(port.name != name for port in self.inputs)]
        if unknown:
            names = [port.name for port in self.inputs]
            raise InvalidArgumentError(explain(f"unknown input {unknown[0]!r}", accepted=f"inputs {names}"))
        arrays = {port.name: stand_in(port, given.get(port.name), port.name in self._deciding) for port in self.inputs}
        return self._enter(arrays)

    def predict_peak(
        self, shapes: Mapping[str, Any] | None = None, *, sequential: bool = False, outputs: bool = True
    ) -> int | RangePeak:
        """What one run at a time takes of the engine's budget.

        That is the arena, scratch included, the constants, packed ones that are cached, the compiled programs, and the
        results, and the states of open sessions; inputs are the caller's. A ``memory_limit`` of so many bytes will do
        if the results of one run are let go of before the next, and so will one without the packed ones: kernels for
        plain layouts run then. What follows from contents is not known before: results without a shape, and arrays of
        host functions.

        Parameters
        ----------
        shapes : mapping of str to shape or array, optional
            As for `specialise`. None, for a model with declared shapes: all of these.
        sequential : bool, default=False
            Whether to tell what one stream would need, whatever the schedule.
        outputs : bool, default=True
            Whether the run makes its results; not where `run` is given arrays for all of them.

        Returns
        -------
        nbytes : int
            Exact. Of declared shapes the most that any takes, a `RangePeak`: its ``sizes`` and ``shapes`` say where.
            Programs of all forms compiled for them count, since they are kept. Unit: bytes.

        Raises
        ------
        InvalidArgumentError, InvalidShapeError
            A shape is missing or does not fit.
        OutOfMemoryError
            It is more than the engine's limit.
        """
        if shapes is not None or self._declared is None:
            return self._peak_at(shapes, outputs, sequential)
        self._declared.check_plannable()
        self._forms.exclusively(self._declared.prepare)
        return self._declared.peak(self._kept_nbytes() + self._sessions.nbytes, outputs)

    def _peak_at(self, shapes: Mapping[str, Any] | None, outputs: bool, sequential: bool = False) -> int:
        use = self._enter_shapes(shapes)
        try:
            form = use.executable
            form.check_room(form.form.outputs if outputs else ())
            nbytes = form.sequential_peak_nbytes if sequential else form.peak_nbytes
            nbytes += self._sessions.nbytes
            if self._declared is not None:  # beside all forms of the ranges, which are kept
                nbytes += self._kept_nbytes(form) - form.kept_nbytes
        finally:
            self._forms.leave(use)
        return nbytes if outputs else nbytes - form.results_nbytes

    def _kept_nbytes(self, *forms: Executable) -> int:
        """Memory of these forms, and of those that others are made of, between runs. Unit: bytes."""
        return sum(_shared_nbytes([*forms, *self._variable]))

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
        if self._declared is not None:
            self._declared.undo()

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
        known = self._known_forms()
        programs, constants, cached = _shared_nbytes(known)
        largest = max(((form.arena_nbytes, form.sequential_arena_nbytes) for form in forms), default=(0, 0))
        return ModelStats(
            runs=cache.runs,
            hits=cache.hits,
            misses=cache.misses,
            evictions=cache.evictions,
            compilations=self._variable.compilations,
            respecialisations=tuple(self._variable.respecialisations),
            forms=len(forms),
            arena_nbytes=self._arenas.current().stats().nbytes,
            constants_nbytes=constants,
            cached_nbytes=cached,
            programs_nbytes=programs,
            streams=max((form.streams for form in known), default=1),
            largest_arena_nbytes=largest[0],
            sequential_arena_nbytes=largest[1],
        )

    def _known_forms(self) -> list[Executable]:
        """Those that are kept, and those that others are made of."""
        return list(dict.fromkeys([*self._forms.forms(), *self._variable]))

    # ---- life

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._forms.is_closed

    def trim(self) -> int:
        """Give back idle arenas, results that nobody holds, and programs for other shapes; returns their bytes.

        Programs that can be had again without compilation are meant; no run uses them now.
        """
        for form in self._forms.forms():
            form.clear()
        freed = self._results.clear() + self._arenas.current().trim()
        return freed + self._forms.reclaim(self._forms.reclaimable)

    def close(self) -> None:
        """Give all memory back; runs that are going on finish first, new ones are refused. Idempotent."""
        was_closed = self._forms.clear(closes=True)
        self._sessions.close()
        self._variable.close()
        self._results.clear()
        self._close_packed()
        if not was_closed:
            self._arenas.leave()
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
        options = (
            self._deciding, self._capacity, self._owns_engine, self.name, self.options, self.weights, self._shapes,
        )  # fmt: skip
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
    shapes: Mapping[str, Any] | None,
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
        shapes=shapes,
    )


def _shared_nbytes(forms: Sequence[Executable]) -> tuple[int, int, int]:
    """Bytes of the programs, the constants and the packed constants of forms, shared ones counted once."""
    constants = {id(value): held_nbytes(value) for form in forms for value in form.form.constants.values()}
    cached = {key: nbytes for form in forms for key, nbytes in form.cached_constants().items()}
    return sum(form.own_nbytes for form in forms), sum(constants.values()), sum(cached.values())
