"""A whole graph with all shapes known, ready to run: compiled partitions, host functions, one arena for all of them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from graphpool.errors import UnsupportedError, explain
from graphpool.memory._arena import ArenaPool

from ._stream import Stream
from .form_constants import FormConstants
from .model_port import check_output
from .model_step import ALIGNMENT, ModelStep, is_plain, plan_arena, settled_tensors
from .partition_runs import gather, merge_neighbours
from .result_arrays import ResultArrays
from .runner import Runner
from .scheduling import SEQUENTIAL

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping

    from graphpool.graph.partition import Partition

    from ._share import PrimitiveShare
    from ._tensor import Tensor
    from .engine import Engine
    from .model_form import ModelForm
    from .packed_weight import PackedWeight
    from .scheduling import ScheduleOptions

__all__ = ["Executable"]


class Executable:
    """Compiles a `ModelForm` and runs it.

    Tensors between partitions and the scratch memory of all partitions lie in one arena, planned by lifetimes; in-place
    pairs share their bytes. Outputs are fresh arrays, which the last partition writes directly. Partitions and host
    functions follow one another; where there may be several streams, host functions come between as seldom as can be.

    `bound` has tensors of constants by the identity of their content, from other forms and for others, so that a
    content is fingerprinted once. `packed` grows by what stands for constants from now on, to be closed with the model.
    `results` gives fresh results, shared with other forms. `precomputed` as in `ModelForm`; `sequential_arena_nbytes`
    is what the arena would take if every step followed the one before.

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
    ) -> None:
        self.precomputed = form.precomputed
        self._engine = engine
        stream = Stream(engine)
        self._tensors = settled_tensors(form.graph)
        partitions = [p for p in form.graph.get_partitions() if p.ops[0].outputs]
        self.partitions = tuple(gather(partitions) if options.may_be_parallel(engine.threads) else partitions)
        merged = merge_neighbours(form.graph, self.partitions)
        kept = "cached" if weights == "cached" else "scoped"
        self._steps = [self._compile(form, partition, kept, options) for partition in merged]
        self.compiled = tuple(step.compiled for step in self._steps if step.compiled is not None)
        self._constants = FormConstants(form, self._tensors, self._steps, stream, {} if bound is None else bound)
        self.form = replace(form, constants=self._constants.values)
        made = {i for step in self._steps for i in step.outputs}
        targets = [i for i in form.outputs.values() if i in made]
        sizes = {i: self._tensors[i].nbytes for i in made.difference(targets) if is_plain(self._tensors[i])}
        offsets, self.arena_nbytes = plan_arena(self._steps, sizes, lambda compiled: compiled.scratchpad_nbytes)
        _, self.sequential_arena_nbytes = plan_arena(self._steps, sizes, lambda compiled: compiled.sequential_nbytes)
        self._results = ResultArrays() if results is None else results
        # what is bounded, or given back after a while, does not keep memory that nobody counts
        fresh = self._results if engine.memory_limit is None and engine.idle_decay_s is None else None
        self._runner = Runner(self.form, self._tensors, self._steps, offsets, targets, self._constants, stream, fresh)
        self._shares: list[PrimitiveShare] = []
        self._is_closed = False
        self._charge(name)
        self._arenas = ArenaPool(
            engine.source, self.arena_nbytes, alignment=ALIGNMENT, budget=engine.budget, name=f"arena of {name}"
        )
        engine.budget.keep_room_for(self)
        try:
            if weights == "packed":
                self._constants.pack([] if packed is None else packed)
            self._constants.prepare()
        except BaseException:
            self.close()
            raise

    def _compile(self, form: ModelForm, partition: Partition, weights: str, options: ScheduleOptions) -> ModelStep:
        inputs = [self._tensors[port.id] for port in partition.input_ports]
        outputs = [self._tensors[port.id] for port in partition.output_ports]
        compiled = function = None
        if partition.is_supported:
            policy, streams = options.policy, options.streams
            compiled = partition.compile(
                inputs, outputs, self._engine, scratch="caller", weights=weights, schedule=policy, streams=streams
            )
        else:
            function = form.host_functions.get(partition.ops[0].id)
            if function is None:
                raise UnsupportedError(
                    explain(f"{partition.ops[0].label} has neither a backend nor a host function"),
                    op_id=partition.ops[0].id,
                )
        ids = tuple(t.id for t in inputs), tuple(t.id for t in outputs)
        return ModelStep(compiled, function, partition.ops[0].name, *ids)

    def _charge(self, name: str) -> None:
        """Charge the budget for programs and constants, once it is known that the arena will fit beside them."""
        used = [primitive for primitive in {c.primitive: None for c in self.compiled} if primitive is not None]
        weights = list(self._constants.values.values())
        budget, users = self._engine.budget, self._engine.primitives
        self.programs_nbytes = sum(primitive.nbytes for primitive in used)
        missing = sum(map(users.missing_nbytes, used)) + self._engine.constants.missing_nbytes(weights)
        budget.check(missing + self.arena_nbytes, holder=name)
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
        with self._arenas.lease() as lease:
            return self._runner.run(lease.address, inputs, given)

    # ---- memory

    @property
    def demand(self) -> int:
        """Memory for the arena that the next run needs and that is not there, which constants leave free."""
        return 0 if self._is_closed or self._arenas.stats().arenas else self.arena_nbytes

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
        """What one run takes of the budget: arena, constants, packed ones that are cached, programs. Unit: bytes."""
        return self.arena_nbytes + self.constants_nbytes + self.cached_nbytes + self.programs_nbytes

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
    def streams(self) -> int:
        """Most streams that a partition runs on."""
        lists = [c.program.streams for c in self.compiled if c.program is not None]
        return max((streams.nstreams for streams in lists if streams is not None), default=1)

    def stats(self) -> Any:
        """Counters of the arenas: an `ArenaStats`."""
        return self._arenas.stats()

    def trim(self) -> int:
        """Give the memory of idle arenas back; returns its bytes."""
        self._runner.clear()
        self._results.clear()
        return self._arenas.trim()

    def close(self) -> None:
        """Give all memory back. No run may be going on. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._runner.clear()
        self._arenas.close()
        self._uncharge()
        for compiled in self.compiled:
            compiled.close()
