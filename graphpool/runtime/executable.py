"""A whole graph with all shapes known, ready to run: compiled partitions, host functions, one arena for all of them."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from math import prod
from typing import TYPE_CHECKING, Any

from graphpool.errors import OutOfMemoryError, UnsupportedError, explain

from ._stream import Stream
from .form_constants import FormConstants
from .model_port import check_output
from .model_step import ModelStep, is_plain, plan_arena, settled_tensors
from .partition_runs import gather, merge_neighbours
from .primitive import forget_program
from .resizable_form import ResizableForm
from .result_arrays import ResultArrays
from .runner import Runner
from .scheduling import SEQUENTIAL
from .shared_arenas import SharedArenas

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, MutableMapping, Sequence

    from graphpool._size_program import SizeValues
    from graphpool.graph.logical_tensor import LogicalTensor
    from graphpool.graph.partition import Partition
    from graphpool.memory._lease import Lease

    from ._compiled import CompiledPartition
    from ._share import PrimitiveShare
    from ._tensor import Tensor
    from .engine import Engine
    from .model_form import Fallback, ModelForm
    from .packed_weight import PackedWeight
    from .runner import Frame
    from .scheduling import ScheduleOptions
    from .variable_form import VariableForm

__all__ = ["Executable"]

_SMALL_NBYTES = 2**10
"""For what a host function makes of numbers and shapes."""


class Executable(ResizableForm):
    """Compiles a `ModelForm` and runs it.

    Tensors between partitions and the scratch memory of all partitions lie in one arena, planned by lifetimes; in-place
    pairs share their bytes. Outputs are fresh arrays, which the last partition writes directly. Partitions and host
    functions follow one another; where there may be several streams, host functions come between as seldom as can be.

    `bound` has tensors of constants by the identity of their content, from other forms and for others, so that a
    content is fingerprinted once. `packed` grows by what stands for constants from now on, to be closed with the model.
    `results` gives fresh results, shared with other forms. `precomputed` as in `ModelForm`; `sequential_arena_nbytes`
    is what the arena would take if every step followed the one before. `results_nbytes` are the outputs of one run but
    for those whose shape follows from contents; `host_nbytes` is reserved by a run for arrays that NumPy makes in host
    functions: for what the one that takes most gives and is given copies of, as far as shapes are known.

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
        bound: MutableMapping[int, Tensor] | None = None,
        name: str = "model",
        options: ScheduleOptions = SEQUENTIAL,
        weights: str = "scoped",
        packed: list[PackedWeight] | None = None,
        results: ResultArrays | None = None,
        variable: VariableForm | None = None,
        stream: Stream | None = None,
    ) -> None:
        super().__init__()
        self.precomputed = form.precomputed
        self._engine, self._variable, self._name = engine, variable, name
        self._stream = Stream(engine) if stream is None else stream
        self._tensors: Mapping[int, LogicalTensor] = settled_tensors(form.graph)
        partitions = [p for p in form.graph.get_partitions() if p.ops[0].outputs]
        self.partitions = tuple(gather(partitions) if options.may_be_parallel(engine.threads) else partitions)
        merged = merge_neighbours(form.graph, self.partitions)
        kept = "cached" if weights == "cached" else "scoped"
        if variable is None:
            self._steps = [self._compile(form, partition, kept, options) for partition in merged]
        else:
            self._steps = self._compile_variable(form, merged, kept, options, variable)
        self.compiled = tuple(step.compiled for step in self._steps if step.compiled is not None)
        self._constants = FormConstants(form, self._tensors, self._steps, self._stream, {} if bound is None else bound)
        self.form = replace(form, constants=self._constants.values)
        self._results = ResultArrays(engine.budget, f"results of {name}") if results is None else results
        self._plan()
        self._runner = self._make_runner()
        self._shares: list[PrimitiveShare] = []
        self._charge(name)
        self._arenas = SharedArenas(engine.source, engine.budget, f"arena of {name}")
        engine.budget.keep_room_for(self)
        try:
            if weights == "packed":
                self._constants.pack([] if packed is None else packed)
            self._constants.prepare()
        except BaseException:
            self.close()
            raise

    def _plan(self) -> None:
        """Places of the tensors between steps, and of the scratch memory of steps."""
        made = {i for step in self._steps for i in step.outputs}
        self._targets = [i for i in self.form.outputs.values() if i in made]
        between = made.difference(self._targets)
        sizes = {i: self._tensors[i].nbytes for i in between if is_plain(self._tensors[i])}
        self._offsets, self.arena_nbytes = plan_arena(self._steps, sizes, lambda compiled: compiled.scratchpad_nbytes)
        _, self.sequential_arena_nbytes = plan_arena(self._steps, sizes, lambda compiled: compiled.sequential_nbytes)
        self._results_nbytes = {output: self._nbytes_of([i]) for output, i in self.form.outputs.items()}
        self.results_nbytes = sum(self._results_nbytes.values())
        self.host_nbytes = max((self._host_nbytes(step) for step in self._steps), default=0)

    def _make_runner(self) -> Runner:
        return Runner(
            self.form, self._tensors, self._steps, self._offsets, self._targets, self._results_nbytes, self.host_nbytes,
            self._constants, self._stream, self._results,
        )  # fmt: skip

    def _compile_variable(
        self,
        form: ModelForm,
        partitions: Sequence[Partition],
        weights: str,
        options: ScheduleOptions,
        variable: VariableForm,
    ) -> list[ModelStep]:
        """Compile for sizes that may vary; the steps for those that there are now."""
        found = [variable.add(p, *self._ports(p), weights, options) if p.is_supported else None for p in partitions]
        values = variable.finish(self._tensors)
        self._tensors = variable.tensors(values)
        firsts = [None if made is None else made.first(values) for made in found]
        return [self._step(form, p, compiled) for p, compiled in zip(partitions, firsts, strict=True)]

    def resized(self, shapes: Mapping[str, Any], exactly: bool = True) -> Executable | None:
        """The form for other shapes of the inputs, without compilation; None if a decision would come out otherwise.

        Decisions that only say what is faster count if `exactly`. It shares all but the programs with this one, which
        is closed after the last of them.

        Raises
        ------
        OutOfMemoryError
            The engine's budget has no room for its programs and arena.
        """
        variable = self._variable
        values = None if variable is None else variable.values(shapes, exactly)
        if variable is None or values is None or not self._enter():
            return None
        try:
            found = self._resized(variable, values)
            found.is_borrowed = not exactly
            return found
        except BaseException:
            self._leave()
            raise

    def refusal(self, shapes: Mapping[str, Any]) -> str:
        """Why `resized` gives no form for these shapes, for people."""
        return "fixed sizes" if self._variable is None else self._variable.refusal(shapes)

    @property
    def conditions(self) -> tuple[str, ...]:
        """What must hold of the sizes for which this compilation serves, for people; none where they are fixed."""
        variable = self._variable if self._first is None else self._first._variable
        return () if variable is None else variable.conditions

    def _resized(self, variable: VariableForm, values: SizeValues) -> Executable:
        """The form for these sizes, which is counted already."""
        other = copy(self)
        other._become(self)
        other._variable, other._shares = None, []
        other._tensors = tensors = variable.tensors(values)
        other.compiled = tuple(variable.instances(self.compiled, values, tensors, self._engine.memory_limit is None))
        compiled = iter(other.compiled)
        other._steps = [
            step if step.compiled is None else replace(step, compiled=next(compiled)) for step in self._steps
        ]
        other._plan()
        other.own_nbytes = sum(c.program.nbytes for c in other.compiled if c.program is not None)
        other.programs_nbytes = self.programs_nbytes + other.own_nbytes
        run_nbytes = other.arena_nbytes + other.host_nbytes
        nbytes, later_nbytes = other.own_nbytes + run_nbytes, other.results_nbytes
        self._engine.budget.check(nbytes, holder=self._name, later_nbytes=later_nbytes)
        other._runner = other._make_runner()
        self._engine.budget.charge(other.own_nbytes, holder=f"programs of {self._name}")
        return other

    def _ports(self, partition: Partition) -> tuple[list[LogicalTensor], list[LogicalTensor]]:
        inputs, outputs = partition.input_ports, partition.output_ports
        return [self._tensors[port.id] for port in inputs], [self._tensors[port.id] for port in outputs]

    def _compile(self, form: ModelForm, partition: Partition, weights: str, options: ScheduleOptions) -> ModelStep:
        if not partition.is_supported:
            return self._step(form, partition, None)
        policy, streams = options.policy, options.streams
        compiled = partition.compile(
            *self._ports(partition), self._engine, scratch="caller", weights=weights, schedule=policy, streams=streams
        )
        return self._step(form, partition, compiled)

    def _step(self, form: ModelForm, partition: Partition, compiled: CompiledPartition | None) -> ModelStep:
        """What runs a partition: the compiled one, else its host function."""
        op = partition.ops[0]
        function = None if compiled is not None else form.host_functions.get(op.id)
        if compiled is None and function is None:
            raise UnsupportedError(explain(f"{op.label} has neither a backend nor a host function"), op_id=op.id)
        ids = [tuple(port.id for port in side) for side in (partition.input_ports, partition.output_ports)]
        return ModelStep(compiled, function, op.name, ids[0], ids[1], form.fallbacks.get(op.id))

    def _charge(self, name: str) -> None:
        """Charge the budget for programs and constants, once it is known that the arena will fit beside them."""
        used = [primitive for primitive in {c.primitive: None for c in self.compiled} if primitive is not None]
        weights = list(self._constants.values.values())
        budget, users = self._engine.budget, self._engine.primitives
        self.programs_nbytes = self.own_nbytes = sum(primitive.nbytes for primitive in used)
        missing = sum(map(users.missing_nbytes, used)) + self._engine.constants.missing_nbytes(weights)
        run_nbytes = self.arena_nbytes + self.host_nbytes
        budget.check(missing + run_nbytes, holder=name, later_nbytes=self.results_nbytes)
        self._engine.constants.hold(weights, holder=f"weights of {name}")
        try:
            for primitive in used:
                self._shares.append(users.acquire(primitive, reserves=False))
        except BaseException:
            self._uncharge()
            raise

    def _uncharge(self) -> None:
        shares, self._shares = self._shares, []
        for share in shares:
            share.leave(False)
        self._engine.constants.release(self._constants.values.values())

    # ---- running

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs by name for inputs by name: arrays of exactly the specialised shapes and types, dense and aligned.

        Results go into the arrays of `outputs` where those are given. Raises as `Model.run`; where an array of
        `outputs` does not fit, or there is no memory for the arena or a result, nothing was run.
        """
        given = {} if outputs is None else outputs
        for name, array in given.items():
            check_output(name, array, self._tensors.get(self.form.outputs[name]))
        fresh: dict[int, Any] = {}
        lease, frame = self._take_room(given, fresh)
        with lease:
            return self._runner.run(frame, inputs, given, fresh)

    def _take_room(self, given: Mapping[str, Any], fresh: dict[int, Any]) -> tuple[Lease, Frame]:
        """All memory of a run: an arena, results in `fresh`, room for host arrays. Who waits for it holds none."""
        while True:
            lease = self._lease(given)
            try:
                return lease, self._runner.take_room(lease.address, given, fresh)
            except OutOfMemoryError:
                fresh.clear()
                lease.release()
                self._arenas.shrink(self.arena_nbytes)  # larger ones may have been needed for other shapes
                nbytes = self.check_room(self._missing(given))
                if not self._engine.budget.pending:
                    raise
            except BaseException:
                lease.release()
                raise
            self._engine.budget.wait_for_room(nbytes, timeout_s=0.1)  # in vain if what others held is held on

    def _lease(self, given: Mapping[str, Any]) -> Lease:
        try:
            return self._arenas.lease(self.arena_nbytes)
        except OutOfMemoryError:
            self.check_room(self._missing(given))  # which counts the results too
            raise

    def _missing(self, given: Mapping[str, Any]) -> list[str]:
        return [name for name in self.form.outputs if name not in given]

    def check_room(self, outputs: Iterable[str]) -> int:
        """Memory for a run that makes these outputs; raises `OutOfMemoryError` if the budget can never hold it."""
        made = self._nbytes_of(self.form.outputs[name] for name in outputs)
        nbytes = self.arena_nbytes + self.host_nbytes + made
        self._engine.budget.check(nbytes, holder=self._results.holder)
        return nbytes

    def _nbytes_of(self, tensor_ids: Iterable[int]) -> int:
        """Memory of arrays for these tensors, as far as shapes are known. Unit: bytes."""
        found = [self._tensors.get(i) for i in tensor_ids]
        return sum(prod(t.shape or ()) * t.dtype.numpy.itemsize for t in found if t is not None and is_plain(t))

    def _host_nbytes(self, step: ModelStep) -> int:
        if step.compiled is not None:
            return 0
        are_plain = all(is_plain(self._tensors[i]) for i in step.outputs)
        return _SMALL_NBYTES + self._nbytes_of(step.outputs if are_plain else (*step.inputs, *step.outputs))

    # ---- memory

    @property
    def demand(self) -> int:
        """Memory for arena and results that the next run needs and that is not there, which constants leave free."""
        if self._is_closed:
            return 0
        pool = self._arenas.current()
        arena_nbytes = 0 if pool.stats().arenas else max(pool.nbytes, self.arena_nbytes)
        return arena_nbytes + self.host_nbytes + max(self.results_nbytes - self._results.held, 0)

    def cached_constants(self) -> dict[Any, int]:
        """The packed constants that the constant tensor cache keeps now: key -> size in bytes."""
        return {key: nbytes for compiled in self.compiled for key, nbytes in compiled.cached_constants().items()}

    @property
    def constants_nbytes(self) -> int:
        """Memory of the constants but for those that lie in mapped files or are kept packed. Unit: bytes."""
        return self._constants.nbytes

    @property
    def cached_nbytes(self) -> int:
        """Size of the packed constants that are cached. Unit: bytes."""
        return sum(self.cached_constants().values())

    @property
    def peak_nbytes(self) -> int:
        """What one run takes of the budget, see `Model.predict_peak`. Unit: bytes."""
        kept = self.constants_nbytes + self.cached_nbytes + self.programs_nbytes
        return self.arena_nbytes + kept + self.results_nbytes + self.host_nbytes

    @property
    def sequential_peak_nbytes(self) -> int:
        """What that would be if every step followed the one before. Unit: bytes."""
        return self.peak_nbytes - self.arena_nbytes + self.sequential_arena_nbytes

    @property
    def implementations(self) -> tuple[tuple[str, ...], ...]:
        """What runs each partition: one name a kernel call.

        There are none where its ops only change how memory is seen, or share the call of an earlier partition.
        """
        names: dict[int, list[str]] = {}
        for compiled in self.compiled:
            for op_id, name in zip(compiled.step_ops, compiled.implementations, strict=True):
                names.setdefault(op_id, []).append(name)
        return tuple(
            tuple(name for op in p.ops for name in names.get(op.id, ())) if p.is_supported else ("host",)
            for p in self.partitions
        )

    @property
    def fallbacks(self) -> tuple[Fallback | None, ...]:
        """What of the importer's model each partition is that the host runs, and why; None for those of backends."""
        return tuple(None if p.is_supported else self.form.fallbacks.get(p.ops[0].id) for p in self.partitions)

    @property
    def streams(self) -> int:
        """Most streams that a partition runs on."""
        lists = [c.program.streams for c in self.compiled if c.program is not None]
        return max((streams.nstreams for streams in lists if streams is not None), default=1)

    @property
    def arenas(self) -> SharedArenas:
        """Where runs have their arenas, shared by forms for other shapes."""
        return self._arenas

    def stats(self) -> Any:
        """Counters of the arenas: an `ArenaStats`."""
        return self._arenas.current().stats()

    def trim(self) -> int:
        """Give the memory of idle arenas, and of results that nobody holds, back; returns its bytes."""
        self._runner.clear()
        return self._results.clear() + self._arenas.current().trim()

    def _free_own(self) -> None:
        self._runner.clear()
        if self._first is None:
            return
        for compiled in self.compiled:
            compiled.close()
            forget_program(compiled.program)
        self._engine.budget.uncharge(self.own_nbytes)

    def _free_shared(self) -> None:
        self._arenas.close()
        self._uncharge()
        for compiled in self.compiled:
            compiled.close()
