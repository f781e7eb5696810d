"""A whole graph with all shapes known, ready to run: compiled partitions, host functions, one arena for all of them."""

from __future__ import annotations

from contextlib import nullcontext, suppress
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import replace
from graphpool.errors import OutOfMemoryError, StateError, explain

from ._result_arrays import ResultArrays
from ._stream import Stream
from .form_charge import FormCharge, lacking_nbytes
from .form_plan import FormPlan
from .form_record import write_form
from .form_steps import FormSteps
from .host_room import RunBound
from .inner_models import InnerModels, is_inner
from .load_room import refused_with
from .mapped_reads import MappedReads
from .resizable_form import ResizableForm
from .scheduling import SEQUENTIAL
from .shared_arenas import SharedArenas
from .untouched import touched_spans, untouched_nbytes
from .variable_form import SizedTensors

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, MutableMapping

    from graphpool._size_bounds import SizeBounds
    from graphpool._size_program import SizeValues
    from graphpool.cache import ConstantBuffer, PackedKey
    from graphpool.graph.logical_tensor import LogicalTensor
    from graphpool.graph.partition import Partition
    from graphpool.memory import BufferInfo

    from ._compiled import CompiledPartition
    from ._program import Program
    from ._share import PrimitiveShare
    from ._tensor import Tensor
    from .engine import Engine
    from .form_plan import RangeLayout
    from .form_record import ReadSteps
    from .held_states import HeldStates
    from .loop import LoopPorts
    from .model_form import Fallback, ModelForm
    from .model_step import ModelStep
    from .open_trips import OpenTrips, TripFacts
    from .packed_weight import PackedWeight
    from .scheduling import ScheduleOptions
    from .variable_form import VariableForm

__all__ = ["Executable", "kept_weights"]


def kept_weights(weights: str) -> str:
    """What becomes of packed constants of compiled partitions of a model with these `weights`."""
    return "cached" if weights == "cached" else "scoped"


class Executable(ResizableForm):
    """Compiles a `ModelForm` and runs it.

    Tensors between partitions and the scratch memory of all partitions lie in one arena, planned by lifetimes; in-place
    pairs share their bytes. Outputs are fresh arrays, which the last partition writes directly. Partitions and host
    functions follow one another; where there may be several streams, host functions come between as seldom as can be.

    `bound` has tensors of constants by the key of their content, from other forms and for others, so that a
    content is fingerprinted once. `packed` grows by what stands for constants from now on, to be closed with the model.
    With `steps` nothing is compiled: they were read, with the form. `key` tells it from others, as of `FormRequest`; it
    is None if it is not to be stored. `results` gives fresh results, shared with other forms. `precomputed` as in
    `ModelForm`. `results_nbytes` are the outputs of one run but for those whose shape follows from contents;
    `host_nbytes` is reserved by a run for arrays that NumPy makes in host functions, as `HostRoom` says. With `states`,
    outputs go into the memory of a session, which brings it; `appended` are the names of those for which the part that
    they have in common with their input is not written.

    With `is_planned` it is one of those for declared shapes: if it finds no room, `refused` has the error, and nothing
    can run.

    Raises `UnsupportedError` for an op that has neither a backend nor a host function, and `OutOfMemoryError`, whose
    `smallest_limit` would do, where the engine's budget can never hold programs, constants and arena at once; nothing
    is kept then.

    Ownership: owns compiled partitions and arenas, keeps the constants alive. Threads: `run` may be going on in any
    number of threads, each with an arena of its own. Cost of `run`: about a microsecond a partition beyond the work.
    """

    def __init__(
        self,
        form: ModelForm,
        engine: Engine,
        bound: MutableMapping[Hashable, Tensor] | None = None,
        name: str = "model",
        options: ScheduleOptions = SEQUENTIAL,
        weights: str = "scoped",
        packed: list[PackedWeight] | None = None,
        results: ResultArrays | None = None,
        variable: VariableForm | None = None,
        stream: Stream | None = None,
        states: HeldStates | None = None,
        arenas: SharedArenas | None = None,
        is_planned: bool = False,
        steps: ReadSteps | None = None,
        key: tuple[Any, tuple[int, ...]] | None = None,
    ) -> None:
        super().__init__(variable)
        self.key = key
        self._open: list[OpenTrips] = []  # idle
        self._has_trips: bool | None = None
        self._trip_facts: tuple[TripFacts | None, ...] = ()  # once they are known
        self.precomputed, self.is_planned = form.precomputed, is_planned
        self._keeps_constants = weights == "cached"
        self._engine, self._name, self._states = engine, name, states
        self._layout: RangeLayout | None = None
        self._stream = Stream(engine) if stream is None else stream
        made = steps or FormSteps(form, engine, kept_weights(weights), options, variable, states)
        self._made, self.appended, self._values = made, made.appended, made.values
        self._steps, self._tensors = made.steps, made.tensors
        self._sizes, self._origins = made.sizes, [step.compiled for step in self._steps if step.compiled is not None]
        self._described: tuple[CompiledPartition, ...] | None = tuple(self._origins)
        self._plain: tuple[Partition, ...] | None = None
        self._programs = [None if step.compiled is None else step.compiled.program for step in self._steps]
        parts = engine.device.forms
        given = {} if bound is None else bound
        self._constants = parts.constants(form, self._tensors, self._steps, self._stream, given)
        self.form = replace(form, constants=self._constants.values)
        self._results = ResultArrays(engine.host_budget, f"results of {name}") if results is None else results
        self._arenas = SharedArenas(engine.source, engine.budget, f"arena of {name}") if arenas is None else arenas
        held = () if states is None else states.outputs
        texts = [form.constants.get(i) for i in form.outputs.values() if i not in self._tensors]
        copied_nbytes = sum(value.nbytes for value in texts if isinstance(value, np.ndarray))
        self._places = parts.places(form.outputs, self._tensors, self._steps, held, engine.planner, copied_nbytes)
        self._make_plan(self, made.values, None)
        self.runner = self._first_runner = parts.runner(
            self.form, self._tensors, self._steps, self._places.targets, self._constants, self._stream, self._results,
            self._arenas,
        )  # fmt: skip
        nbytes = (0, 0) if is_planned else (self.arena_nbytes + self.host_nbytes, self.results_nbytes)  # told later on
        keeper = self._arenas.keeper
        if keeper is not None:
            keeper.uncharge_unread(self._constants.contents)
        try:
            self.charge = FormCharge(engine, name, self._origins, self._constants, self._results, *nbytes, is_planned)
        except OutOfMemoryError as error:
            need_nbytes = self._inner_need_nbytes()
            least = error.fields["smallest_limit"]
            if least is None or need_nbytes <= 0:
                raise
            raise refused_with(error, least + need_nbytes) from error
        self.programs_nbytes = self.own_nbytes = self.charge.programs_nbytes
        self._need_nbytes = self.arena_nbytes if variable is None else 0
        self._arenas.enter(self._need_nbytes)
        (engine.budget if keeper is None else keeper).keep_room_for(self)
        self.refused = self.charge.refused
        if self.refused is not None:  # it is there to tell what it lacks
            return
        try:
            with nullcontext() if keeper is None else keeper.timed_packing(self):
                if weights == "packed":
                    self._constants.pack([] if packed is None else packed)
                self._constants.prepare()
            self._first_runner.link()
            self._make_runner(self)
        except BaseException:
            self.close()
            raise

    def _make_plan(self, first: Executable, values: SizeValues | None, layout: RangeLayout | None) -> None:
        """Plan the memory of a run."""
        self._arrays = first._sizes.of(values)
        plan = self._plan = FormPlan(first._places, self._tensors, self._arrays, self._programs, layout)
        self.arena_nbytes, self.results_nbytes = plan.arena_nbytes, plan.results_nbytes
        self.host_nbytes = plan.host_nbytes

    def _make_runner(self, first: Executable) -> None:
        self.runner = first._first_runner.sized(self._tensors, self._arrays, self._plan, self._programs)

    @property
    def compiled(self) -> tuple[CompiledPartition, ...]:
        """The partitions that backends run, described when they are first asked for."""
        if self._described is None:
            assert self._first is not None
            assert isinstance(self._tensors, SizedTensors)
            programs = [program for program in self._programs if program is not None]
            self._described = tuple(self._first.variable.compiled(self._origins, programs, self._tensors))
        return self._described

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions with the sizes that the form is for, made when they are first asked for."""
        if self._plain is None:
            self._plain = self._made.partitions_at(self._values)
        return self._plain

    @property
    def nprograms(self) -> int:
        """How many programs a run executes."""
        return len(self._origins)

    @property
    def nhosted(self) -> int:
        """How many steps the host runs."""
        return len(self._places.hosted)

    def written(self, names_weights: bool = True) -> tuple[bytes, list[Any]]:
        """As of `write_form`; names of packed constants, if they are wanted, may take a read of each weight."""
        packed = self._constants.packed_keys() if names_weights else ()
        return write_form(self.form, self._made, self._variable, self._engine, packed)

    @property
    def steps(self) -> tuple[ModelStep, ...]:
        """What a run does, in this order, with the partitions of these sizes."""
        made = iter(self.compiled)
        return tuple(step if step.compiled is None else replace(step, compiled=next(made)) for step in self._steps)

    @property
    def tensors(self) -> Mapping[int, LogicalTensor]:
        """All tensors by id, with their shapes."""
        return self._made.tensors_at(self._tensors, self._values)

    @property
    def offsets(self) -> Mapping[Any, int]:
        """Places in the arena, as of `plan_arena`. Unit: bytes."""
        return self._plan.offsets

    @property
    def conditions(self) -> tuple[str, ...]:
        """What must hold of the sizes for which this compilation serves, for people; none where they are fixed."""
        variable = self.first._variable
        return () if variable is None else variable.conditions

    @property
    def instance_nbytes(self) -> int:
        """Memory of the programs of one form for other sizes, this or one to be made; 0 of fixed sizes. Unit: bytes."""
        if self.is_resized:
            return self.own_nbytes
        return 0 if self._variable is None else self._variable.instance_nbytes

    # ---- ranges of shapes

    @property
    def variable(self) -> VariableForm:
        """What varies, of a form of which sizes do."""
        assert self._variable is not None
        return self._variable

    def layout(self, bounds: SizeBounds) -> RangeLayout:
        """The plan that holds for all shapes within bounds."""
        return self._plan.layout(self.variable.tensors(bounds), self.variable.plans(bounds))

    def use_layout(self, layout: RangeLayout) -> None:
        """Let all runs for other shapes have this plan; shapes for which it does not hold are not served."""
        self._layout, self.arena_nbytes = layout, layout.nbytes

    def most_run_nbytes(self, bounds: SizeBounds, outputs: bool) -> int:
        """The most that arrays of host functions, and results if so told, take within bounds. Unit: bytes."""
        return self._plan.most_run_nbytes(self.variable.tensors(bounds), outputs)

    # ---- other shapes

    def _resized(self, variable: VariableForm, values: SizeValues, exactly: bool) -> Executable | None:
        """The form for these sizes, which is counted already; None where no plan holds for them."""
        layout = self._layout
        if layout is not None:
            holds = layout.holds(variable.tensors(values)) and variable.are_within(layout.plans, values)
            if not holds:
                return None
        return self._sized(variable, values, exactly, layout)

    def _sized(
        self, variable: VariableForm, values: SizeValues, exactly: bool, layout: RangeLayout | None
    ) -> Executable | None:
        """As `_resized`; a layout must hold."""
        slack, tensors = self._engine.memory_limit is None, variable.tensors(values)
        programs = variable.programs(values, slack, exactly, None if layout is None else layout.plans)
        if programs is None:
            return None
        other = object.__new__(Executable)
        other._become(self, not exactly and layout is None)
        other.form = self.form  # which trips of loops read
        other._tensors, other._values, other._plain, other._described = tensors, values, None, None
        made = iter(programs)
        other._programs = [None if step.compiled is None else next(made) for step in self._steps]
        other._make_plan(self, values, layout)
        other.own_nbytes = sum([program.nbytes for program in programs])
        other.programs_nbytes = self.programs_nbytes + other.own_nbytes
        nbytes = other.own_nbytes + other.arena_nbytes + other.host_nbytes
        other._make_runner(self)
        charge = partial(self._engine.budget.charge, other.own_nbytes, holder=f"programs of {self._name}")
        try:
            self._engine.queue.charge_form(charge, nbytes, self._results, other.results_nbytes, holder=self._name)
        except BaseException:
            variable.forget(programs)
            raise
        other._need_nbytes = other.arena_nbytes
        self._arenas.enter(other._need_nbytes)
        return other

    # ---- running

    def run(
        self,
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any] | None = None,
        held: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Outputs by name for inputs by name: arrays of exactly the specialised shapes and types, dense and aligned.

        Results go into the arrays of `outputs`, and of `held` for states, where those are given. Raises as `Model.run`;
        where an array of `outputs` does not fit, or there is no memory for the arena or a result, nothing was run.
        """
        if self._is_closed:
            raise StateError(explain("the form is closed", hint="specialise the model again"))
        return self.runner.run(inputs, outputs, held)

    def output(self, name: str) -> tuple[tuple[int, ...], Any] | None:
        """Shape and type of an output; None where they follow from contents, or it is no array."""
        tensor_id = self.form.outputs[name]
        known = self._arrays.get(tensor_id)
        if known is not None:
            return known.shape, known.dtype
        constant = self.form.constants.get(tensor_id)
        return (constant.shape, constant.dtype) if isinstance(constant, np.ndarray) else None

    def can_repeat(self, ports: LoopPorts, inputs: Mapping[str, Any]) -> bool:
        """Whether a trip of a loop is calls of kernels alone, and leaves states as it found them but for elements."""
        first = self.first
        if first._has_trips is None:  # whatever the sizes, for the one loop that has the form
            rows = [name for name, _ in ports.rows]
            names = [*(name for _, name in ports.states), *rows, *([] if ports.check is None else [ports.check])]
            are_known = all(self.output(name) is not None for name in rows)
            first._has_trips = are_known and self.runner.can_repeat(names)
        if not first._has_trips:
            return False
        for source, target in ports.states:
            array, found = inputs[source], self.output(target)
            if found != (array.shape, array.dtype) or not array.flags.c_contiguous:
                return False
        return True

    # ---- trips whose shapes change

    @property
    def has_tensors_between(self) -> bool:
        """Whether tensors between steps lie in the arena."""
        return bool(self._places.between)

    @property
    def programs(self) -> list[Program]:
        """Of the steps that are such."""
        return [program for program in self._programs if program is not None]

    def sizes_of(self, tensor_id: int) -> Any:
        """Shape and bytes of an input or output, with sizes where they vary; None for what is no dense array."""
        constant = self.form.constants.get(tensor_id)
        if isinstance(constant, np.ndarray):
            return (constant.shape, constant.nbytes) if constant.flags.c_contiguous else None
        return self._sizes.sizes_of(tensor_id)

    def origins(self, output: str) -> list[Any] | None:
        """Of each dimension of an output its size where that is fixed, else an input and the axis whose size it is.

        None for a dimension that is computed otherwise; None in all where sizes are fixed, or follow from contents.
        """
        first = self.first
        found = None if first._variable is None else first.sizes_of(first.form.outputs[output])
        return None if found is None else [first.variable.origin(size) for size in found[0]]

    def take_open(self, ports: LoopPorts, inputs: Mapping[str, Any]) -> OpenTrips | None:
        """What makes trips of which each may have other shapes, for one loop at a time; None where that cannot be.

        Goes back by `leave_open`. Raises `OutOfMemoryError` as `resized`.
        """
        first = self.first
        if not first._trip_facts:
            from .open_trips import TripFacts  # and what knows of loops: not by all who run a model

            first._trip_facts = (None if first._variable is None else TripFacts.of(first, ports),)
        [facts] = first._trip_facts
        if facts is None:
            return None
        with suppress(IndexError):
            return first._open.pop()
        return first._make_open(facts, inputs)

    def make_open(self, inputs: Mapping[str, Any]) -> OpenTrips | None:
        """As `take_open`, which gave some before, with room for these inputs, and for larger ones."""
        first = self.first
        [facts] = first._trip_facts
        return None if facts is None else first._make_open(facts, inputs)

    def _make_open(self, facts: TripFacts, inputs: Mapping[str, Any]) -> OpenTrips | None:
        symbols, variable = facts.symbols(inputs), self.variable
        values = None if symbols is None else variable.at(symbols)
        if symbols is None or values is None or not self._enter():
            return None
        found = None
        try:
            layout = facts.wider_layout(symbols)
            found = self._sized(variable, values, False, layout)
        finally:
            if found is None:
                self._leave()
        if found is None:
            return None
        from .open_trips import OpenTrips

        try:
            return OpenTrips(facts, found, layout)
        except BaseException:
            found.close()
            raise

    def leave_open(self, trips: OpenTrips) -> None:
        """Keep it for the next loop, or close it where no form is left for it."""
        first = self.first
        first._open.append(trips)
        if first._is_closed:
            first.close_open()

    @property
    def open_nbytes(self) -> int:
        """Programs that wait for the next loop whose shapes change. Unit: bytes."""
        return sum([trips.form.own_nbytes for trips in list(self._open)])

    def close_open(self, nbytes: float = inf) -> int:
        """Give these up, which the next loop makes again, until so many bytes are free; returns them."""
        freed_nbytes = 0
        with suppress(IndexError):  # another thread has closed the last one
            while self._open and freed_nbytes < nbytes:
                trips = self._open.pop()
                freed_nbytes += trips.form.own_nbytes
                trips.close()
        return freed_nbytes

    def shape_of(self, output: str) -> tuple[int, ...] | None:
        """Shape of an output; None where it follows from contents."""
        known = self._arrays.get(self.form.outputs[output])
        return None if known is None else known.shape

    def check_room(self, outputs: Iterable[str]) -> int:
        """Memory for a run that makes these outputs; raises `OutOfMemoryError` if the budget can never hold it."""
        return self.runner.check_room(outputs)

    def serve_alone(self) -> None:
        """As of `ResizableForm`."""
        self._arenas.enter(self.arena_nbytes)
        self._arenas.leave(self._need_nbytes)
        self._need_nbytes = self.arena_nbytes

    def check_run(self) -> None:
        """Raise `OutOfMemoryError` if the budget can never hold a run, its results included."""
        self._check_run(self._plan.inner_bound(prepares=True)[1])

    # ---- memory

    @property
    def demand(self) -> int:
        """Memory for arena and results that the next run needs and that is not there, which constants leave free."""
        if self._is_closed:
            return 0
        pool = self._arenas.current()
        arena_nbytes = 0 if pool.stats().arenas else max(pool.nbytes, self.arena_nbytes)
        return arena_nbytes + self.host_nbytes + max(self.results_nbytes - self._results.held, 0)

    def packed_constants(self) -> dict[PackedKey, ConstantBuffer]:
        """The packed constants, made where they are missing, by names that hold in every process."""
        return self._constants.packed()

    def pack_missing(self) -> None:
        """Keep packed what a run would find room for by now."""
        for form in self.with_inner():
            form._constants.prepare()

    def look_again_for_constants(self) -> None:
        """Take packed constants from where they are kept for several processes, where they are there by now."""
        self._constants.look_again()

    def buffers(self) -> list[BufferInfo]:
        """What lies in the arena of a run, as `Model.buffers` says."""
        return self._plan.buffers(self._tensors)

    @property
    def shares(self) -> tuple[PrimitiveShare, ...]:
        """What it uses of the engine's programs; nothing if it was made of another form, which uses them for both."""
        return () if self.is_resized else self.charge.shares

    def cached_constants(self) -> dict[Any, int]:
        """The packed constants that the constant tensor cache keeps now: key -> size in bytes."""
        return self._constants.cached()

    def packable_constants(self) -> dict[Hashable, int]:
        """The packed constants that it may come to keep: key, equal for what forms share -> size in bytes."""
        return self._constants.packable()

    @property
    def constants_nbytes(self) -> int:
        """Memory of the constants but for those that lie in mapped files or are kept packed. Unit: bytes."""
        return sum(self.held_constants().values())

    def held_constants(self) -> dict[Hashable, int]:
        """The same one by one: key, equal for what forms share -> size in bytes."""
        return self._constants.held()

    def mapped_reads(self) -> MappedReads:
        """What runs read of weights in mapped files, and models inside the form as they were used last."""
        return MappedReads.joined(form._constants.mapped_reads(form._programs) for form in self.with_inner())

    def untouched_nbytes(self) -> int:
        """What of the arena runs leave out of memory; 0 where there is an arena by now. Unit: bytes.

        With a layout that is so of all shapes that it is for.
        """
        pool, layout = self._arenas.current(), self._layout
        if pool.stats().arenas or not self._engine.maps_arenas:
            return 0
        sizes = self._places.sizes(self._tensors) if layout is None else layout.sizes
        offsets = self._plan.offsets if layout is None else layout.offsets
        nbytes = self.arena_nbytes
        touched = [(offsets[i], offsets[i] + size) for i, size in sizes.items()]
        planned = None if layout is None else iter((self._first or self).variable.buffers(layout.plans))
        for number, (step, program) in enumerate(zip(self._steps, self._programs, strict=True)):
            if step.compiled is None or program is None:
                continue
            assert step.compiled.primitive is not None  # it has a program
            buffers = step.compiled.primitive.buffers_of(program.serial)[0] if planned is None else next(planned)
            if ~number in offsets:
                touched += touched_spans(step.compiled, buffers, offsets[~number])
        return untouched_nbytes(nbytes, touched, max(nbytes, pool.nbytes))

    @property
    def cached_nbytes(self) -> int:
        """Size of the packed constants that are cached. Unit: bytes."""
        return sum(self.cached_constants().values())

    @property
    def kept_nbytes(self) -> int:
        """What is held between runs: constants, packed ones that are cached, programs. Unit: bytes."""
        return self.constants_nbytes + self.cached_nbytes + self.programs_nbytes

    @property
    def run_nbytes(self) -> int:
        """What one run takes beside that: arena, results, room for host functions. Unit: bytes."""
        return self.arena_nbytes + self.results_nbytes + self.host_nbytes

    @property
    def peak_nbytes(self) -> int:
        """What one run takes of the budget, see `Model.predict_peak`. Unit: bytes."""
        return self.kept_nbytes + self.run_nbytes

    def inner_bound(self, prepares: bool = False) -> RunBound:
        """What models inside the form take beside that at most, as far as it is bounded.

        Compiles them, if that was not done: with `prepares` those alone that are to be compiled with the form. All
        nodes of the form of which no bound is known are named.

        Raises
        ------
        OutOfMemoryError
            The budget can never hold both at once.
        """
        try:
            bound, need_nbytes = self._plan.inner_bound(prepares)
        except OutOfMemoryError as error:  # of a model inside, by itself
            least = error.fields.get("smallest_limit")
            if least is None:
                raise
            lacking = lacking_nbytes([self.charge]) + self._around_nbytes
            raise refused_with(error, least + lacking) from error
        if need_nbytes:
            self._check_run(need_nbytes)
        return bound

    def _check_run(self, need_nbytes: int) -> None:
        """Raise `OutOfMemoryError` if the budget can never hold a run and so much beside it. Unit: bytes."""
        nbytes = self._around_nbytes + need_nbytes
        self._engine.budget.check(nbytes, holder=self._name, awaits_leases=not is_inner())

    @property
    def _around_nbytes(self) -> int:
        """What a run has while models inside it run; of declared shapes a program for its sizes too. Unit: bytes."""
        return self.run_nbytes + (self.instance_nbytes if self.is_planned else 0)

    def _inner_need_nbytes(self) -> int:
        """What the models inside need beside a form that finds no room; they are closed. Unit: bytes."""
        kept_nbytes = self._engine.budget.kept
        try:
            _, need_nbytes = self._plan.inner_bound(prepares=True)
            return need_nbytes + self._engine.budget.kept - kept_nbytes
        except OutOfMemoryError as other:  # of a model inside, by itself
            return (other.fields["smallest_limit"] or 0) - kept_nbytes
        finally:
            for inner in self.form.inner:
                inner.close()

    @property
    def reserved_nbytes(self) -> int:
        """What runs reserve for host functions, if these may write less of it. Unit: bytes."""
        return 0 if self._plan.host.is_exact else self.host_nbytes

    def with_inner(self) -> list[Executable]:
        """The form, and those of models inside it that were used last."""
        return [self, *(form for inner in self.form.inner for form in inner.last_forms())]

    @property
    def sequential_arena_nbytes(self) -> int:
        """Size of the arena if every step followed the one before. Unit: bytes."""
        return self._plan.sequential_arena_nbytes

    @property
    def sequential_peak_nbytes(self) -> int:
        """What that would be if every step followed the one before. Unit: bytes."""
        return self.peak_nbytes - self.arena_nbytes + self.sequential_arena_nbytes

    @property
    def implementations(self) -> tuple[tuple[str, ...], ...]:
        """What runs each partition: one name a kernel call.

        There are none where its ops only change how memory is seen, or share the call of an earlier partition. What
        runs models inside the form has one: "data_dependent" for the part whose shapes follow from what a run
        computes, "loop", "branch".
        """
        names: dict[int, list[str]] = {}
        for compiled in self._origins:
            for op_id, name in zip(compiled.step_ops, compiled.implementations, strict=True):
                names.setdefault(op_id, []).append(name)
        return tuple(
            tuple(name for op in p.ops for name in names.get(op.id, ())) if p.is_supported else self._name_host(p)
            for p in self.partitions
        )

    def _name_host(self, partition: Partition) -> tuple[str]:
        function = self.form.host_functions.get(partition.ops[0].id)
        return (function.kind,) if isinstance(function, InnerModels) else ("host",)

    @property
    def fallbacks(self) -> tuple[Fallback | None, ...]:
        """What of the importer's model each partition is that the host runs, and why; None for those of backends."""
        return tuple(None if p.is_supported else self.form.fallbacks.get(p.ops[0].id) for p in self.partitions)

    @property
    def streams(self) -> int:
        """Most streams that a partition runs on."""
        schedules = [compiled.schedule for compiled in self._origins]
        return max((len(schedule.stream_ids) for schedule in schedules if schedule is not None), default=1)

    def stats(self) -> Any:
        """Counters of the arenas: an `ArenaStats`."""
        return self._arenas.current().stats()

    def clear(self) -> None:
        """Forget what runs keep for the next one: their arenas go."""
        self.runner.clear()

    def _free_own(self) -> None:
        self.runner.end()
        first = self._first
        if first is None:
            self.close_open()
            return
        for compiled in self._described or ():
            compiled.close()
        first.variable.forget([program for program in self._programs if program is not None])
        first._engine.budget.uncharge(self.own_nbytes)
        first._arenas.leave(self._need_nbytes)

    def _free_shared(self) -> None:
        self.runner.clear()
        for inner in self.form.inner:
            inner.close()
        self._arenas.leave(self._need_nbytes)
        self.charge.release()
        self._constants.close(self._keeps_constants)
        for compiled in self._origins:
            compiled.close()
