"""The compiled forms of a model and what they share: constants, arenas, results, the promises for declared shapes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from weakref import WeakValueDictionary

import numpy as np

from graphpool import spans
from graphpool._collection import collection_paused
from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidArgumentError, OutOfMemoryError, StateError, explain
from graphpool.log import compile_log, execute_log, profile_log
from graphpool.memory._arrays import ArrayAllocator
from graphpool.memory._budget import IDLE_PRIMITIVES

from ._form_cache import FormCache
from ._model_run import ModelRun, is_dense
from ._result_arrays import ResultArrays
from ._stream import Stream
from .constant_part import check_files
from .declared_shapes import DeclaredShapes
from .executable import Executable
from .form_record import UnwritableError
from .late_forms import keep_soon
from .load_room import LoadRoom, load_charged, refused_with
from .mapped_reads import NO_READS, MappedReads
from .memory_peak import MemoryPeak, within_limit
from .model_memory import ModelMemory, missing_nbytes, shared_nbytes
from .model_port import check_is_mapping, describe_shapes, stand_in
from .open_sessions import Sessions
from .shape_ranges import ShapeRanges
from .shared_arenas import SharedArenas
from .stored_forms import FormRequest, StoredSpecialiser, context_of
from .variable_forms import VariableForms

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterator, Sequence

    from graphpool.cache import ConstantBuffer, PackedKey
    from graphpool.memory import BufferInfo

    from ._form_cache import FormUse
    from ._tensor import Tensor
    from .engine import Engine
    from .form_record import ReadSteps
    from .held_states import HeldStates
    from .host_room import RunBound
    from .model_form import ModelForm
    from .model_port import ModelPort
    from .packed_weight import PackedWeight
    from .scheduling import ScheduleOptions
    from .variable_form import VariableForm

    Specialise = Callable[[Mapping[str, Any], Mapping[str, np.ndarray[Any, Any]]], ModelForm]

__all__ = ["ModelForms", "ModelStats"]

V = TypeVar("V")


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


class ModelForms(ModelRun):
    """Makes the forms that runs find, compiled where need be. Parameters are those of `Model`.

    Attributes
    ----------
    cache : FormCache
        Forms by shapes; `variable`: those that others are made of without a compilation.
    sessions : Sessions
    stream : Stream
        Of all forms: whoever finds its threads taken works alone.
    dims : dict of str to tuple or None
        Names and numbers of the dimensions of each input, as declared.
    arguments : dict
        What a pickled model needs to make them again.

    Notes
    -----
    Ownership: owns the forms, arenas, results and packed weights. Threads: safe, one form is compiled at a time.
    """

    def __init__(
        self,
        inputs: Sequence[ModelPort],
        outputs: Sequence[ModelPort],
        specialise: Specialise,
        engine: Engine,
        name: str,
        options: ScheduleOptions,
        weights: str,
        deciding: Collection[str],
        capacity: int,
        shapes: Mapping[str, Any] | None,
        priority: float,
        stream: Stream | None = None,
    ) -> None:
        self.memory = keeper = ModelMemory(engine.model_memory, name, priority)
        names = [port.name for port in inputs if port.name in deciding]
        cache: FormCache[Executable] = FormCache(name, capacity)
        super().__init__(name, inputs, outputs, names, cache, keeper.count, engine.queue, engine.host_budget)
        self._inputs, self._engine = inputs, engine
        self.specialise: Specialise = specialise
        self._is_inner = getattr(specialise, "is_inner", False)
        self._options, self._weights = options, weights
        self.arguments: dict[str, Any] = {"deciding": self.deciding, "capacity": capacity, "shapes": shapes}
        ranges = ShapeRanges({} if shapes is None else shapes, inputs)
        is_fixed = not deciding and all(
            dims is not None and all(isinstance(dim, int) for dim in dims) for dims in ranges.dims.values()
        )
        varies = engine.device.forms.vary and getattr(specialise, "takes_sizes", False)
        dims = ranges.dims if varies and not is_fixed else None
        self.dims = ranges.dims
        self.variable: VariableForms[Executable] = VariableForms(
            dims, engine, capacity, serve_alone=True, discard=self._discard
        )
        engine.budget.register(self.cache, stage=IDLE_PRIMITIVES, keeper=keeper)
        self.sessions = Sessions()
        self.stream = Stream(engine) if stream is None else stream
        self._bound: WeakValueDictionary[Hashable, Tensor] = WeakValueDictionary()
        self._packed: list[PackedWeight] = []
        self._results = ResultArrays(engine.host_budget, f"results of {name}", grows=shapes is None, keeper=keeper)
        self._arenas = SharedArenas(engine.source, engine.budget, f"arena of {name}", keeper)
        self._arenas.enter()
        self._roomy: FormUse[Executable] | None = None  # the last one that room was made for
        keeper.own(self.cache, self.variable, self._arenas, self._results, self.sessions, specialise, self._undo)
        if shapes is not None:
            self.declared = DeclaredShapes(
                ranges,
                name,
                self.deciding,
                engine.budget,
                self._compile_planned,
                self.variable.give_up,
                self._settle,
                self._peak_at,
            )

    def load(self, is_compiled_later: bool) -> None:
        """Compile for the declared shapes, or charge for what stays in memory until the model is compiled.

        Raises `OutOfMemoryError` if that does not fit.
        """
        if self.declared is not None:
            with self.cache.in_use():
                self.declared.load()
        if is_compiled_later and not self.memory.forms() and not self._is_inner:
            self.memory.hold_until_compiled()

    # ---- running

    def _run_told(self, arrays: Mapping[str, Any], work: Callable[..., V], *given: Any) -> V:
        shapes, start = describe_shapes(arrays), time.perf_counter()
        execute_log.info("%s: runs for %s", self.name, shapes)
        with spans.span(f"execute {self.name}", model=self.name, shapes=shapes) as note:
            results = self.in_turn(work, *given)
            arena_nbytes = self._arenas.current().nbytes
            note(arena_nbytes=arena_nbytes)
        ms = (time.perf_counter() - start) * 1e3
        profile_log.info("%s: ran for %s in %.3g ms, arena %d bytes", self.name, shapes, ms, arena_nbytes)
        return results

    def _may_fit_alone(self, error: OutOfMemoryError) -> bool:
        """Give up what was compiled for other shapes if a form of its own finds room without that; whether it was done.

        A form for these shapes alone takes no programs beside its own: it has to do where nothing else fits.
        """
        least = error.fields.get("smallest_limit")
        if least is None or self.declared is not None:
            return False
        missing_nbytes = least - self._engine.budget.limit
        return 0 < missing_nbytes <= self.memory.variable_nbytes and self.memory.give_up_programs()

    def repeat(self, arrays: dict[str, Any], work: Callable[[Executable, Any], None]) -> None:
        """Hand the form for these inputs, made if need be, and them, to what makes trips of a loop on it."""
        use, runs = self.enter(arrays), 0
        try:
            work(use.executable, arrays)
            runs = 1
        finally:
            self.cache.leave(use, runs)

    @contextmanager
    def hold(self, arrays: dict[str, Any]) -> Iterator[Executable | None]:
        """As `Model.hold`."""
        if self.deciding:
            yield None
            return
        use = self.enter(arrays)
        try:
            yield use.executable
        finally:
            self.cache.leave(use)

    # ---- forms

    def _end_late(self) -> None:
        """Give back what a run of a model that was closed meanwhile has made: its weights are not read again."""
        self.variable.close()
        self._close_packed()

    def _enter_shapes(self, shapes: Mapping[str, Any] | None) -> FormUse[Executable]:
        """The form for these shapes, which stays open as of `enter`."""
        if shapes is not None:
            check_is_mapping("shapes", shapes, "names of inputs as keys, and shapes or arrays for them")
        given = dict(shapes or {})
        names = [port.name for port in self._inputs]
        unknown = [name for name in given if name not in names]
        if unknown:
            raise InvalidArgumentError(explain(f"unknown input {unknown[0]!r}", accepted=f"inputs {names}"))
        return self.enter(
            {port.name: stand_in(port, given.get(port.name), port.name in self.deciding) for port in self._inputs}
        )

    def at(self, shapes: Mapping[str, Any] | None) -> Executable:
        """The form for these shapes, made if need be."""
        use = self._enter_shapes(shapes)
        self.cache.leave(use)
        return use.executable

    def buffers(self, shapes: Mapping[str, Any] | None) -> list[BufferInfo]:
        """As `Model.buffers`."""
        use = self._enter_shapes(shapes)
        try:
            return use.executable.buffers()
        finally:
            self.cache.leave(use)

    def last(self) -> Executable:
        """The one that was used last; if there is none, that for static inputs."""
        self.cache.check_open()
        kept = self.cache.forms()
        return kept[-1] if kept else self.at(None)

    def last_forms(self) -> list[Executable]:
        """The one that was used last, if any, with those inside it."""
        return [form for kept in self.cache.forms()[-1:] for form in kept.with_inner()]

    def _make(self, exactly: bool, arrays: Mapping[str, Any], states: HeldStates | None) -> Executable:
        """A form for these inputs."""
        try:
            return self.memory.timed(self._form_for, exactly, arrays, states)
        except StateError:
            self.cache.check_open()  # another thread has closed the model, and with it weights that this one reads
            raise

    def _form_for(self, exactly: bool, arrays: Mapping[str, Any], states: HeldStates | None) -> Executable:
        deciding = {name: arrays[name] for name in self.deciding}
        given = {name: value.shape if isinstance(value, np.ndarray) else None for name, value in arrays.items()}
        if self.declared is not None:
            self.declared.check(given)
        if states is not None:
            compile_form = partial(self._compile, states=states)
            return self.variable.form(given | states.shapes, deciding, exactly, compile_form, states.dims, states.pairs)
        if self.declared is not None:
            self.declared.prepare()
            with self._arenas.kept():
                self._make_room(0, max((form.variable.instance_nbytes for form in self.variable), default=0))
                return self.variable.form(given, deciding, exactly, self._compile)
        return self.variable.form(given, deciding, exactly, self._compile)

    def _discard(self, form: Executable) -> None:
        """Close a form that a run found no room beside."""
        self.memory.keep_source([form])
        form.close()

    def _make_room_for(self, use: FormUse[Executable]) -> None:
        """Keep to what is promised for declared shapes before a run of another form than the last."""
        if self._roomy is not use:
            form, self._roomy = use.executable, use
            self._make_room(form.arena_nbytes, form.results_nbytes + form.host_nbytes)

    def _make_room(self, arena_nbytes: int, nbytes: int) -> None:
        """Keep to what is promised for declared shapes, without a limit too: give up what is kept for other shapes.

        A run takes an arena so large at least, and so many bytes beside it.
        """
        most_nbytes = None if self.declared is None else self.declared.most_run_nbytes
        if most_nbytes is not None:
            kept_nbytes = self.cache.held + max(self._arenas.current().nbytes, arena_nbytes) + self._results.held
            excess = kept_nbytes + nbytes - most_nbytes
            if excess > 0:
                excess -= self._results.reclaim(excess)
            if excess > 0 and self.cache.reclaim(excess) < excess:
                self._arenas.shrink(arena_nbytes)

    def _settle(self, *more: Executable) -> None:
        """Bring in the pages that forms read, of all of them: packing for one may have given back those of others."""
        self._reads_of(*more, *self.cache.forms(), *self.variable).settle()

    def _compile_planned(self, shapes: Mapping[str, Any]) -> Executable | None:
        """A form for declared shapes, kept for good; None if sizes cannot vary, of which plain shapes say why."""
        return self.variable.plan(shapes, partial(self._compile, is_planned=True))

    @collection_paused()
    def _compile(
        self,
        shapes: Mapping[str, Any],
        deciding: Mapping[str, Any],
        variable: VariableForm | None,
        states: HeldStates | None = None,
        is_planned: bool = False,
    ) -> Executable:
        """A form for these shapes, in which sizes may vary."""
        start, described = time.perf_counter(), describe_shapes(shapes)
        with spans.span(f"compile {self.name}", model=self.name, shapes=described) as note:
            made = self._compile_form(shapes, deciding, variable, states, is_planned)
            if spans.opener is not None:  # what constants take is added up anew
                note(
                    programs=made.nprograms, programs_nbytes=made.programs_nbytes,
                    constants_nbytes=made.constants_nbytes, arena_nbytes=made.arena_nbytes,
                )  # fmt: skip
        if compile_log.is_on():
            self._tell_compiled(made, described, (time.perf_counter() - start) * 1e3)
        return made

    def _compile_form(
        self,
        shapes: Mapping[str, Any],
        deciding: Mapping[str, Any],
        variable: VariableForm | None,
        states: HeldStates | None,
        is_planned: bool,
    ) -> Executable:
        with self.memory.timed_compiling():
            request = None
            if states is None:
                how = is_planned, variable, self._engine, self._options, self._weights
                request = FormRequest(shapes, deciding, *how)
            stored = None if request is None else self._recall(request)
            room = LoadRoom(self._engine.host_budget, f"loading of {self.name}")
            if stored is None:
                form, steps = self._specialise(shapes, deciding, room), None
            else:
                form, steps, variable = stored
            shared = self._bound, self.name, self._options, self._weights, self._packed, self._results
            held = None if states is None else states.sized(shapes)
            made = None
            try:
                with nullcontext() if is_planned else room.refusing():
                    made = Executable(
                        form, self._engine, *shared, variable, self.stream, held, self._arenas, is_planned, steps,
                        None if request is None else request.key,
                    )  # fmt: skip
                    made.inner_bound(prepares=True)
                if is_planned:  # of those that are it is told when all are there
                    made.refused = room.worse(made.refused)
                else:  # of those that are it is done when all are there
                    self._settle(made)
            except BaseException as error:
                if made is not None:
                    made.close()
                if not isinstance(error, OutOfMemoryError) or variable is None or not self._is_inner:
                    raise
                least = error.fields.get("smallest_limit")
                if least is None:
                    raise
                # runs have programs for sizes of their own, which the bound of the model around this one counts
                raise refused_with(error, least + variable.instance_nbytes) from error
        is_new, specialise = stored is None and made.refused is None, self.specialise
        if is_new and request and isinstance(specialise, StoredSpecialiser) and specialise.keep(request, made):
            keep_soon(self)
        return made

    def keep_late(self) -> None:
        """Store what was compiled and not stored yet: a while after the first run, and before the model is closed."""
        if isinstance(self.specialise, StoredSpecialiser):
            self.specialise.keep_late()

    def _recall(self, request: FormRequest) -> tuple[ModelForm, ReadSteps, VariableForm | None] | None:
        """The form if some process has stored it; None if it has to be compiled."""
        if not isinstance(self.specialise, StoredSpecialiser):
            return None
        return self._load_charged(self.specialise.recall, request, self._specialise)

    def _load_charged(self, function: Callable[..., V], *given: object) -> V:
        return load_charged(self._engine.host_budget, f"loading of {self.name}", function, *given)

    @staticmethod
    def _reads_of(*forms: Executable) -> MappedReads:
        return MappedReads.joined(form.mapped_reads() for form in forms)

    def _specialise(
        self, shapes: Mapping[str, Any], deciding: Mapping[str, Any], room: LoadRoom | None = None
    ) -> ModelForm:
        """What the importer makes of these shapes; what it runs inside shares the model's engine."""
        call = self._load_charged if room is None else room.call
        form = call(self.specialise, {port.name: shapes[port.name] for port in self._inputs}, deciding)
        for inner in form.inner:
            inner.attach(
                engine=self._engine, capacity=self.arguments["capacity"], schedule=self._options.policy,
                streams=self._options.streams, weights=self._weights, stream=self.stream,
            )  # fmt: skip
        return form

    def plain(self, arrays: Mapping[str, Any]) -> ModelForm:
        """As `Model.plain_form`."""
        shapes = {port.name: getattr(arrays[port.name], "shape", None) for port in self._inputs}
        deciding = {name: arrays[name] for name in self.deciding}
        return self.cache.exclusively(lambda: self._specialise(shapes, deciding))

    def _tell_compiled(self, form: Executable, shapes: str, ms: float) -> None:
        compile_log.info(
            "%s: compiled for %s in %.3g ms: %d programs (%d bytes), %d host functions; constants %d, arena %d bytes",
            self.name, shapes, ms, form.nprograms, form.programs_nbytes, form.nhosted,
            form.constants_nbytes, form.arena_nbytes,
        )  # fmt: skip

    # ---- what is known of them

    def peak(self, shapes: Mapping[str, Any] | None, outputs: bool, sequential: bool) -> MemoryPeak:
        """As `Model.predict_peak`."""
        if shapes is not None or self.declared is None:
            return self._peak_for(shapes, outputs, sequential)
        self.declared.check_plannable()
        self.cache.exclusively(self.declared.prepare)
        bounds = [form.inner_bound() for form in self.variable]
        inner_nbytes = max((bound.most_nbytes for bound in bounds), default=0)
        reads = max([form.mapped_reads() for form in self.variable], key=lambda one: one.nbytes, default=NO_READS)
        kept_nbytes, untouched_nbytes = self.kept_nbytes() + self.sessions.nbytes, 0
        if self.declared.most_run_nbytes is not None:  # no other form runs
            untouched_nbytes = min([form.untouched_nbytes() for form in self.variable], default=0)
        later_nbytes = missing_nbytes(list(self.variable))
        found = self.declared.peak(
            kept_nbytes, reads, self._engine, outputs, inner_nbytes, untouched_nbytes, later_nbytes
        )
        found.unbounded = tuple(dict.fromkeys(name for bound in bounds for name in bound.unbounded))
        found.is_exact = found.is_exact and not found.unbounded
        found.reserved_nbytes = max((form.reserved_nbytes for form in self.variable), default=0)
        found.objects_nbytes = max((bound.objects_nbytes for bound in bounds), default=0)
        return found

    def _peak_for(self, shapes: Mapping[str, Any] | None, outputs: bool, sequential: bool) -> MemoryPeak:
        """Of these shapes, or arrays, of which a run copies those that are not dense before all else."""
        copies_nbytes = _copies_nbytes(shapes)
        with _refused_beside(copies_nbytes):
            use = self._enter_shapes(shapes)
        try:
            form = use.executable
            if self._engine.memory_limit is not None:
                form.pack_missing()
            with _refused_beside(copies_nbytes):
                whole_nbytes = copies_nbytes + self._peak_of(form, outputs, sequential)
            if copies_nbytes:
                run_nbytes = form.check_room(form.form.outputs if outputs else ())
                self._engine.host_budget.check(copies_nbytes + run_nbytes, holder=f"copies of {self.name}")
            nbytes, is_all = within_limit(whole_nbytes, self._engine)
            found = MemoryPeak(nbytes, form.mapped_reads(), self._engine, form.untouched_nbytes())
            inner = form.inner_bound()
            found.is_exact = is_all and not (inner.most_nbytes or inner.unbounded)
            found.unbounded, found.objects_nbytes = inner.unbounded, inner.objects_nbytes
            found.reserved_nbytes = form.reserved_nbytes
        finally:
            self.cache.leave(use)
        return found

    def _peak_at(self, shapes: Mapping[str, Any] | None, outputs: bool) -> int:
        use = self._enter_shapes(shapes)
        try:
            return self._peak_of(use.executable, outputs)
        finally:
            self.cache.leave(use)

    def _peak_of(self, form: Executable, outputs: bool, sequential: bool = False) -> int:
        form.check_room(form.form.outputs if outputs else ())
        nbytes = form.sequential_peak_nbytes if sequential else form.peak_nbytes
        bound = form.inner_bound()
        nbytes += self.sessions.nbytes + bound.most_nbytes
        if self.declared is not None:  # beside all forms of the ranges, which are kept
            nbytes += self.kept_nbytes(form) - form.kept_nbytes
        return nbytes if outputs else nbytes - form.results_nbytes

    def _between_runs_nbytes(self) -> int:
        """What the budget keeps for the model between runs, its sessions included. Unit: bytes."""
        programs, constants, _ = shared_nbytes(self.memory.forms())
        is_kept = self.memory.is_pinned or self._engine.model_memory.keeps_programs
        kept = programs - self.cache.reclaimable if is_kept else 0
        return kept + constants + self.memory.source_nbytes + self.sessions.nbytes

    def bound_run(self, shapes: Mapping[str, Any]) -> RunBound:
        """As `Model.bound_run`."""
        use = self._enter_shapes(shapes)
        try:
            form = use.executable
            inner = form.inner_bound()
            others_nbytes = form.programs_nbytes + self.arguments["capacity"] * form.own_nbytes
            kept_nbytes = form.kept_nbytes + others_nbytes + inner.kept_nbytes
            run_nbytes, opened_nbytes = form.run_nbytes + inner.run_nbytes, form.run_nbytes + inner.opened_nbytes
            programs_nbytes = inner.programs_nbytes
            if form.instance_nbytes:  # other sizes may ask for another compilation
                programs_nbytes += form.first.programs_nbytes + form.instance_nbytes
            return inner._replace(
                kept_nbytes=kept_nbytes, run_nbytes=run_nbytes, opened_nbytes=opened_nbytes,
                programs_nbytes=programs_nbytes,
            )  # fmt: skip
        finally:
            self.cache.leave(use)

    def kept_nbytes(self, *forms: Executable) -> int:
        """Memory of these forms, and of those that others are made of, between runs. Unit: bytes."""
        return sum(shared_nbytes([*forms, *self.variable]))

    def read_weight(self, name: str) -> np.ndarray[Any, Any]:
        """As `Model.read_weight`."""
        self.cache.check_open()
        forms = [executable.form for executable in self.cache.forms()]
        for form in forms:
            if name in form.weights:
                weight = form.constants[form.weights[name]]
                check_files([weight])
                return ArrayAllocator(self._engine.host_budget, f"weight {name}").call(np.asarray, weight)
        names = sorted({known for form in forms for known in form.weights})
        raise InvalidArgumentError(explain(f"no weight {name!r}", accepted=", ".join(names) or "none yet"), weight=name)

    def stats(self) -> ModelStats:
        """Counters."""
        forms, cache = self.cache.forms(), self.cache
        known = self.memory.forms()
        programs, constants, cached = shared_nbytes(known)
        largest = max(((form.arena_nbytes, form.sequential_arena_nbytes) for form in forms), default=(0, 0))
        return ModelStats(
            runs=cache.runs,
            hits=cache.hits,
            misses=cache.misses,
            evictions=cache.evictions,
            compilations=self.variable.compilations,
            respecialisations=tuple(self.variable.respecialisations),
            forms=len(forms),
            arena_nbytes=self._arenas.current().stats().nbytes,
            constants_nbytes=constants,
            cached_nbytes=cached,
            programs_nbytes=programs,
            streams=max((form.streams for form in known), default=1),
            largest_arena_nbytes=largest[0],
            sequential_arena_nbytes=largest[1],
        )

    # ---- sharing

    def packed_constants(self) -> dict[PackedKey, ConstantBuffer]:
        """As `Model.packed_constants`."""
        found: dict[PackedKey, ConstantBuffer] = {}
        self._each_form(lambda form: found.update(form.packed_constants()))
        return found

    def written_forms(self) -> tuple[str | None, list[tuple[Any, tuple[int, ...], bytes, list[Any]]]]:
        """As `Model.written_forms`."""
        context = context_of(self._engine, self._options, self._weights)
        found: list[tuple[Any, tuple[int, ...], bytes, list[Any]]] = []

        def write_all() -> None:
            for form in self.memory.forms():
                if form.key is not None and not form.is_resized:
                    with suppress(UnwritableError):
                        found.append((*form.key, *form.written()))

        if context is not None:
            self.cache.exclusively(write_all)
        return context, found

    def look_again_for_constants(self) -> None:
        """Take packed constants from where they are kept for several processes, where they are there by now."""
        self._each_form(lambda form: form.look_again_for_constants())

    def _each_form(self, work: Callable[[Executable], None]) -> None:
        """Do something with all forms, those of models inside them included, while none is given up."""

        def work_on_all() -> None:
            for kept in self.memory.forms():
                for form in kept.with_inner():
                    work(form)

        self.cache.exclusively(work_on_all)

    # ---- life

    def clear(self) -> None:
        """Give up all forms; the next run compiles."""
        self.memory.keep_source(self.memory.forms())
        self.cache.clear()
        self.variable.close()

    def _undo(self) -> None:
        """The forms for declared shapes are given up."""
        if self.declared is not None:
            self.declared.undo()

    def trim(self) -> int:
        """As `Model.trim`."""
        freed = sum([form.close_open() for form in self.variable])
        for form in self.cache.forms():
            form.clear()
        functions = dict.fromkeys(inner for form in self.memory.forms() for inner in form.form.inner)
        freed += sum([function.trim() for function in functions])
        freed += self._results.clear() + self._arenas.current().trim()
        return freed + self.cache.reclaim(self.cache.reclaimable)

    def close(self) -> bool:
        """Give all memory back once runs that are going on have ended, refuse new ones; whether they were not yet."""
        self.keep_late()
        was_closed = self.cache.clear(closes=True)
        self.sessions.close()
        self.variable.close()
        self._results.clear()
        self._engine.queue.forget(self._results)
        self._close_packed()
        if not self.memory.is_busy:  # else a run that is going on may need it
            self.specialise = _refuse_closed  # what it was holds the weights
        self.memory.close()
        if not was_closed:
            self._arenas.leave()
        return not was_closed

    def _close_packed(self) -> None:
        while self._packed:
            with suppress(IndexError):  # another thread has closed the last one
                self._packed.pop().close()


@contextmanager
def _refused_beside(nbytes: int) -> Iterator[None]:
    """A block that knows nothing of so many bytes: its `OutOfMemoryError` names the limit that does for them too."""
    try:
        yield
    except OutOfMemoryError as error:
        least = error.fields.get("smallest_limit")
        if least is None or not nbytes:
            raise
        raise refused_with(error, least + nbytes) from error


def _copies_nbytes(given: Any) -> int:
    """What a run on these arrays takes for copies of those that are not dense. Unit: bytes."""
    values = given.values() if isinstance(given, Mapping) else ()  # what is none is refused where forms are looked for
    arrays = [array for array in values if isinstance(array, np.ndarray) and not array.dtype.hasobject]
    return sum(array.nbytes for array in arrays if not is_dense(array))


def _refuse_closed(*arguments: Any) -> NoReturn:
    """In place of what would make a form."""
    raise StateError(explain("the model is closed", hint="load it again"))
