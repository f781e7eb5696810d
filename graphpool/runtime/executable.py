"""A whole graph with all shapes known, ready to run: compiled partitions, host functions, one arena for all of them."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.errors import BackendError, LimitError, UnsupportedError, explain
from graphpool.graph.logical_tensor import LogicalTensor
from graphpool.memory import ArenaPool, BufferInfo, plan
from graphpool.typing import DataType

from . import blas_threads
from ._stream import Stream
from ._tensor import Tensor
from ._trace import clock_ns, current
from .constant_part import held_nbytes
from .model_port import check_output
from .packed_weight import PackedWeight, replacing_parts
from .partition_runs import gather, merge_neighbours
from .result_arrays import ResultArrays, empty_array
from .scheduling import SEQUENTIAL

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence

    from graphpool.cache import ConstantBuffer
    from graphpool.graph.graph import Graph
    from graphpool.graph.partition import Partition

    from ._compiled import CompiledPartition
    from ._share import PrimitiveShare
    from ._trace import Recorder
    from .constant_part import ConstantPart
    from .engine import Engine
    from .host_budget import HostBudget
    from .model_form import HostFunction, ModelForm
    from .scheduling import ScheduleOptions

__all__ = ["Executable"]

ALIGNMENT = 64
_MAX_FRAMES = 64


@dataclass(frozen=True)
class _Step:
    """One partition: compiled, or a host function; the tensors it reads and writes."""

    compiled: CompiledPartition | None
    function: HostFunction | None
    label: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class _Use:
    """A step that reads a constant in a packed form: the number of that part of it."""

    step: _Step
    compiled: CompiledPartition
    number: int

    @property
    def part(self) -> ConstantPart:
        """What makes the form."""
        assert self.compiled.primitive is not None  # it has parts
        return self.compiled.primitive.constant_parts[self.number]


class _Frame:
    """What one run at a time uses: values by tensor id, tensors bound to one arena, and the calls in order."""

    __slots__ = ("calls", "inputs", "outputs", "values")

    def __init__(self) -> None:
        self.values: dict[int, Any] = {}
        self.calls: list[Callable[[], object]] = []
        self.inputs: dict[int, Tensor] = {}
        self.outputs: dict[int, Tensor] = {}


class Executable:
    """Compiles a `ModelForm` and runs it.

    Tensors between partitions and the scratch memory of all partitions lie in one arena, planned by lifetimes; in-place
    pairs share their bytes. Outputs are fresh arrays, which the last partition writes directly.

    Parameters
    ----------
    form : ModelForm
    engine : Engine
    bound : mutable mapping of int to Tensor, optional
        Tensors of constants by the identity of their content, from other forms and for others: a content is then
        fingerprinted once.
    name : str, default="model"
        Of the model, for messages.
    options : ScheduleOptions, optional
        How the steps of each partition are placed on streams; partitions and host functions follow one another, and
        where there may be several streams, in an order in which host functions come between as seldom as can be.
    weights : {"scoped", "cached", "packed"}, default="scoped"
        As for `Model`.
    packed : list of PackedWeight, optional
        Grows by what stands for constants from now on; to be closed with the model.
    results : ResultArrays, optional
        Where fresh results come from, shared with other forms; by default its own.

    Attributes
    ----------
    arena_nbytes, programs_nbytes : int
        Memory of one run at a time, and of the compiled programs. Unit: bytes.
    sequential_arena_nbytes : int
        What the arena would take if every step followed the one before. Unit: bytes.
    partitions : tuple of Partition
        In the order in which they run.
    precomputed : tuple of str
        Nodes that the importer computed ahead from the contents of inputs: see `ModelForm`.

    Raises
    ------
    UnsupportedError
        An op without a backend has no host function either.
    OutOfMemoryError
        The engine's budget can never hold all three at once, whatever it reclaims; nothing is kept.
        `smallest_limit` is the least limit that would do.

    Notes
    -----
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
        self._form = form
        self._weights = weights
        self._engine = engine
        self.precomputed = form.precomputed
        self._options = options
        self._stream = Stream(engine)
        self._tensors: dict[int, LogicalTensor] = _settled_tensors(form.graph)
        partitions = [p for p in form.graph.get_partitions() if p.ops[0].outputs]
        self.partitions = tuple(gather(partitions) if options.may_be_parallel(engine.threads) else partitions)
        self._steps = [self._compile(partition) for partition in merge_neighbours(form.graph, self.partitions)]
        self._values = dict(form.constants)
        self._constants: dict[int, Tensor] = {}
        for tensor_id in form.constants:
            if tensor_id in self._tensors:
                self._constants[tensor_id] = self._bind_constant(tensor_id, {} if bound is None else bound)
        self._form = replace(form, constants=self._values)
        made = {i for step in self._steps for i in step.outputs}
        self._targets = {i: _describe(self._tensors[i]) for i in form.outputs.values() if i in made}
        self._names = {i: name for name, i in form.outputs.items()}
        self._results = ResultArrays() if results is None else results
        programs = [step.compiled.program for step in self._steps if step.compiled is not None]
        self._uses_blas = any(program is not None and program.uses_blas for program in programs)
        written = [i for step in self._steps for i in step.outputs if not self._is_in_arena(i)]
        self._passing = {*form.inputs.values(), *written}
        self._offsets, self.arena_nbytes = self._plan(lambda compiled: compiled.scratchpad_nbytes)
        _, self.sequential_arena_nbytes = self._plan(lambda compiled: compiled.sequential_nbytes)
        # what is bounded, or given back after a while, does not keep memory that nobody counts
        self._keeps_results = engine.memory_limit is None and engine.idle_decay_s is None
        self._frames: dict[int, _Frame] = {}  # by address: who leases an arena has its frame for himself
        self._shares: list[PrimitiveShare] = []
        self._is_closed = False
        self._charge(name)
        self._arenas = ArenaPool(
            engine.source, self.arena_nbytes, alignment=ALIGNMENT, budget=engine.budget, name=f"arena of {name}"
        )
        engine.budget.keep_room_for(self)
        try:
            if weights == "packed":
                self._pack_constants([] if packed is None else packed)
            for step in self._steps:
                self._prepare(step)
        except BaseException:
            self.close()
            raise

    def _charge(self, name: str) -> None:
        """Charge the budget for programs and constants, once it is known that the arena will fit beside them."""
        primitives = {step.compiled.primitive: None for step in self._steps if step.compiled is not None}
        used = [primitive for primitive in primitives if primitive is not None]
        weights = list(self._values.values())
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

    @property
    def demand(self) -> int:
        """Memory for the arena that the next run needs and that is not there, which constants leave free."""
        return 0 if self._is_closed or self._arenas.stats().arenas else self.arena_nbytes

    def _uncharge(self) -> None:
        shares, self._shares = self._shares, []
        for share in shares:
            share.leave(False)
        self._engine.constants.release(self._values.values())

    def _compile(self, partition: Partition) -> _Step:
        inputs = [self._tensors[port.id] for port in partition.input_ports]
        outputs = [self._tensors[port.id] for port in partition.output_ports]
        ids = tuple(t.id for t in inputs), tuple(t.id for t in outputs)
        label = partition.ops[0].name
        if partition.is_supported:
            policy, streams = self._options.policy, self._options.streams
            kept = "cached" if self._weights == "cached" else "scoped"
            compiled = partition.compile(
                inputs, outputs, self._engine, scratch="caller", weights=kept, schedule=policy, streams=streams
            )
            return _Step(compiled, None, label, *ids)
        function = self._form.host_functions.get(partition.ops[0].id)
        if function is None:
            raise UnsupportedError(
                explain(f"{partition.ops[0].label} has neither a backend nor a host function"),
                op_id=partition.ops[0].id,
            )
        return _Step(None, function, label, *ids)

    def _bind_constant(self, tensor_id: int, bound: MutableMapping[int, Tensor]) -> Tensor:
        """The tensor of a constant: the one that other forms use, if it is the same.

        A packed weight is unpacked if this form wants it in another way.
        """
        value = self._values[tensor_id]
        if isinstance(value, PackedWeight):
            uses = self._uses(tensor_id)
            if uses and all(use.part.key == value.part.key for use in uses):
                return self._stand_in(tensor_id, value, [(use, value.key, value.buffer) for use in uses])
            value = self._values[tensor_id] = np.asarray(value)
        tensor = bound.get(id(value))
        if tensor is None or tensor.lt != self._tensors[tensor_id]:
            tensor = bound[id(value)] = Tensor(self._tensors[tensor_id], self._engine, value)
        return tensor

    def _bound(self, step: _Step) -> tuple[Tensor, ...]:
        """Tensors for the step's inputs; those that are no constants have no data."""
        return tuple([self._constants.get(i) or Tensor.at(self._tensors[i], self._engine) for i in step.inputs])

    def _prepare(self, step: _Step) -> None:
        """Bring the step's constants into the cache."""
        if step.compiled is not None:
            step.compiled.prepare(self._bound(step), stream=self._stream)

    # ---- constants of which only the packed form is kept

    def _uses(self, tensor_id: int) -> list[_Use]:
        """What can read the constant packed; none if something reads it as it is."""
        if tensor_id in self._form.outputs.values():
            return []
        found: list[_Use] = []
        for step in self._steps:
            if tensor_id in step.inputs:
                compiled = step.compiled
                parts = [] if compiled is None else replacing_parts(compiled, step.inputs.index(tensor_id))
                if compiled is None or not parts:
                    return []
                found += [_Use(step, compiled, k) for k in parts]
        return found

    def _pack_constants(self, packed: list[PackedWeight]) -> None:
        """Let packed forms stand for weights that they can give back: one after another, as each frees memory."""
        for tensor_id in sorted(self._constants, key=lambda i: -self._tensors[i].nbytes):
            value = self._values[tensor_id]
            uses = self._uses(tensor_id) if held_nbytes(value) else []
            weight = self._pack(tensor_id, uses) if uses else None
            if weight is not None:
                if all(other is not value for other in self._values.values()):
                    self._engine.constants.release([value])
                packed.append(weight)
                if self._form.forget is not None:
                    self._form.forget(value, weight)

    def _pack(self, tensor_id: int, uses: Sequence[_Use]) -> PackedWeight | None:
        """Let a constant be packed alone; None, and all is as it was, if the cache declines packed weights of it."""
        forms: list[tuple[_Use, tuple[Hashable, Hashable], ConstantBuffer]] = []
        for use in uses:
            key, buffer = use.compiled.own_constant(use.number, self._bound(use.step), self._stream)
            if key is None or buffer is None:
                return None
            forms.append((use, key, buffer))
        first, key, buffer = forms[0]
        weight = PackedWeight(self._tensors[tensor_id], first.part, key, buffer, self._engine)
        self._engine.constants.hold([weight], holder="packed weights")
        try:
            self._constants[tensor_id] = self._stand_in(tensor_id, weight, forms)
        except BaseException:
            self._engine.constants.release([weight])
            raise
        self._values[tensor_id] = weight
        return weight

    def _stand_in(
        self,
        tensor_id: int,
        weight: PackedWeight,
        forms: Sequence[tuple[_Use, tuple[Hashable, Hashable], ConstantBuffer]],
    ) -> Tensor:
        """A tensor for which executions take these forms; no kernel reads it. It lies in the packed weight."""
        tensor = Tensor.at(self._tensors[tensor_id], self._engine, weight.buffer.address, weight)
        for use, key, buffer in forms:
            bound = zip(use.step.inputs, self._bound(use.step), strict=True)
            inputs = [tensor if i == tensor_id else other for i, other in bound]
            use.compiled.replace_constant(use.number, key, buffer, inputs)
        return tensor

    # ---- memory

    def cached_constants(self) -> dict[Any, int]:
        """The forms of its constants that the constant tensor cache keeps now: key -> size in bytes."""
        found: dict[Any, int] = {}
        for step in self._steps:
            if step.compiled is not None:
                found |= step.compiled.cached_constants()
        return found

    @property
    def constants_nbytes(self) -> int:
        """Memory of the constants but for those that lie in mapped files or are kept packed. Unit: bytes."""
        return sum({id(value): held_nbytes(value) for value in self._values.values()}.values())

    @property
    def cached_nbytes(self) -> int:
        """Size of the forms of its constants that are cached. Unit: bytes."""
        return sum(self.cached_constants().values())

    @property
    def peak_nbytes(self) -> int:
        """What one run takes of the budget: arena, constants, their forms that are cached, programs. Unit: bytes."""
        return self.arena_nbytes + self.constants_nbytes + self.cached_nbytes + self.programs_nbytes

    @property
    def sequential_peak_nbytes(self) -> int:
        """What that would be if every step followed the one before. Unit: bytes."""
        return self.peak_nbytes - self.arena_nbytes + self.sequential_arena_nbytes

    def _plan(self, scratch_of: Callable[[CompiledPartition], int]) -> tuple[dict[Any, int], int]:
        """Offsets in the arena of tensors, and of scratch memories by ``~step``, and the size of the arena."""
        last = {i: number for number, step in enumerate(self._steps) for i in (*step.outputs, *step.inputs)}
        lives: dict[int, list[int]] = {}
        root: dict[int, int] = {}
        for number, step in enumerate(self._steps):
            reused = self._inplace_sources(step, number, last, root)
            for tensor_id in step.outputs:
                if not self._is_in_arena(tensor_id):
                    continue
                root[tensor_id] = root[reused[tensor_id]] if tensor_id in reused else tensor_id
                lives.setdefault(root[tensor_id], [number, number])[1] = last[tensor_id]
        buffers = [BufferInfo(i, first, end + 1, self._tensors[i].nbytes) for i, (first, end) in lives.items()]
        for number, step in enumerate(self._steps):
            scratch = 0 if step.compiled is None else scratch_of(step.compiled)
            if scratch:
                buffers.append(BufferInfo(~number, number, number + 1, scratch))
        placed = plan(buffers, alignment=ALIGNMENT)
        offsets: dict[Any, int] = dict(placed.offsets)
        return offsets | {i: offsets[source] for i, source in root.items()}, placed.nbytes

    def _is_in_arena(self, tensor_id: int) -> bool:
        return tensor_id not in self._targets and _is_plain(self._tensors[tensor_id])

    def _inplace_sources(
        self, step: _Step, number: int, last: Mapping[int, int], root: Mapping[int, int]
    ) -> dict[int, int]:
        """Output -> input of the step whose bytes it takes over; the input dies here and lies in the arena."""
        pairs = () if step.compiled is None else step.compiled.inplace_ports
        return {
            target: source
            for source, target in pairs
            if source in root
            and last[source] == number
            and self._is_in_arena(target)
            and self._tensors[source].nbytes == self._tensors[target].nbytes
        }

    @property
    def implementations(self) -> tuple[tuple[str, ...], ...]:
        """What runs each partition: one name a kernel call.

        There are none where its ops only change how memory is seen, or share the call of an earlier partition.
        """
        names: dict[int, list[str]] = {}
        for step in self._steps:
            if step.compiled is not None:
                for op_id, name in zip(step.compiled.step_ops, step.compiled.implementations, strict=True):
                    names.setdefault(op_id, []).append(name)
        return tuple(
            tuple(name for op in p.ops for name in names.get(op.id, ())) if p.is_supported else ("host",)
            for p in self.partitions
        )

    @property
    def form(self) -> ModelForm:
        """What was compiled."""
        return self._form

    @property
    def compiled(self) -> tuple[CompiledPartition, ...]:
        """What runs between host functions, in order."""
        return tuple(step.compiled for step in self._steps if step.compiled is not None)

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
        self._frames.clear()
        self._results.clear()
        return self._arenas.trim()

    def close(self) -> None:
        """Give all memory back. No run may be going on. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._frames.clear()
        self._arenas.close()
        self._uncharge()
        for step in self._steps:
            if step.compiled is not None:
                step.compiled.close()

    # ---- running

    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Outputs by name for inputs by name: arrays of exactly the specialised shapes and types, dense and aligned.

        Results go into the arrays of `outputs` where those are given.

        Raises
        ------
        InvalidArgumentError, InvalidDataTypeError, InvalidShapeError
            An array of `outputs` does not fit its output; nothing was run.
        OutOfMemoryError
            There is no memory for the arena or for a result; nothing was run.
        BackendError
            A host function failed.
        LimitError
            Host functions exceeded their steps or their time.
        """
        given = {} if outputs is None else outputs
        for name, array in given.items():
            check_output(name, array, self._tensors.get(self._form.outputs[name]))
        with self._arenas.lease() as lease:
            frame = self._frames.get(lease.address) or self._keep_frame(lease.address)
            if self._uses_blas:
                blas_threads.enter()  # once around all partitions: theirs only count then
            if self._form.host_budget is not None:
                self._form.host_budget.start()
            try:
                self._bind(frame, inputs, given)
                recorder = current()
                if recorder is None:
                    for call in frame.calls:
                        call()
                else:
                    self._run_recorded(frame, recorder)
                return self._collect(frame, given)
            finally:
                if self._uses_blas:
                    blas_threads.leave()
                self._unbind(frame)

    def _run_recorded(self, frame: _Frame, recorder: Recorder) -> None:
        """Run and note the host functions; programs record their own steps."""
        for step, call in zip(self._steps, frame.calls, strict=True):
            start = clock_ns()
            call()
            if step.compiled is None:
                recorder.note(step.label, start, clock_ns())

    def _bind(self, frame: _Frame, inputs: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        values, places = frame.values, {self._form.outputs[name]: array for name, array in given.items()}
        for name, tensor_id in self._form.inputs.items():
            values[tensor_id] = inputs[name]
        for tensor_id, described in self._targets.items():
            array = places.get(tensor_id)
            if array is None and described is not None:
                array = self._fresh(tensor_id, *described)
            values[tensor_id] = array
        for tensor_id, tensor in frame.inputs.items():
            tensor.rebind(values[tensor_id])
        for tensor_id, tensor in frame.outputs.items():
            tensor.rebind(values[tensor_id])

    def _fresh(self, tensor_id: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """Memory for a result."""
        if not self._keeps_results:
            return empty_array(shape, dtype)
        return self._results.take(self._names[tensor_id], shape, dtype, 2 * len(self._frames))

    def _unbind(self, frame: _Frame) -> None:
        """Forget the arrays of a run, which belong to the caller."""
        for tensor in (*frame.inputs.values(), *frame.outputs.values()):
            tensor.rebind(None)
        for tensor_id in self._passing:
            frame.values.pop(tensor_id, None)

    def _collect(self, frame: _Frame, given: Mapping[str, Any]) -> dict[str, Any]:
        """The outputs; what is not this run's own fresh array, or where it was asked for, is copied."""
        results: dict[str, Any] = {}
        fresh = self._targets.keys() - {self._form.outputs[name] for name in given}
        for name, tensor_id in self._form.outputs.items():
            value = frame.values[tensor_id]
            if name in given:
                results[name] = given[name]
                if value is not given[name]:
                    given[name][...] = value
            else:
                results[name] = value if tensor_id in fresh else copy(value)
                fresh.discard(tensor_id)
        return results

    def _keep_frame(self, address: int) -> _Frame:
        """A new frame, found again when the arena is leased again."""
        if len(self._frames) > _MAX_FRAMES:
            self._frames.clear()
        frame = self._frames[address] = self._make_frame(address)
        return frame

    def _make_frame(self, address: int) -> _Frame:
        frame = _Frame()
        frame.values.update(self._values)
        tensors: dict[int, Tensor] = dict(self._constants)
        for tensor_id in self._form.inputs.values():
            if _is_plain(self._tensors.get(tensor_id)):
                tensors[tensor_id] = frame.inputs[tensor_id] = Tensor.at(self._tensors[tensor_id], self._engine)
        for tensor_id in self._targets:
            if _is_plain(self._tensors[tensor_id]):
                tensors[tensor_id] = frame.outputs[tensor_id] = Tensor.at(self._tensors[tensor_id], self._engine)
        for step in self._steps:
            for tensor_id in step.outputs:
                if self._is_in_arena(tensor_id):
                    place = address + self._offsets[tensor_id]
                    tensors[tensor_id] = Tensor.at(self._tensors[tensor_id], self._engine, place)
                    frame.values[tensor_id] = tensors[tensor_id].numpy()
        frame.calls = [
            self._make_call(number, step, frame, tensors, address) for number, step in enumerate(self._steps)
        ]
        return frame

    def _make_call(
        self, number: int, step: _Step, frame: _Frame, tensors: Mapping[int, Tensor], address: int
    ) -> Callable[[], object]:
        if step.compiled is None:
            are_plain = [_is_plain(self._tensors[i]) for i in step.outputs]
            return partial(_call_host, step, frame.values, are_plain, self._form.host_budget)
        scratch = None
        if ~number in self._offsets:
            described = LogicalTensor(0, DataType.U8, (step.compiled.scratchpad_nbytes,))
            scratch = Tensor.at(described, self._engine, address + self._offsets[~number])
        # tuples, which `execute` takes as they are
        ins, outs = (tuple([tensors[i] for i in ids]) for ids in (step.inputs, step.outputs))
        return partial(step.compiled.execute, self._stream, ins, outs, scratchpad=scratch)


def _settled_tensors(graph: Graph) -> dict[int, LogicalTensor]:
    """The graph's tensors with their inferred shapes."""
    found = {}
    for tensor_id, tensor in graph.tensors.items():
        shape = graph.shape(tensor_id)
        found[tensor_id] = tensor if shape is None or shape == tensor.shape else tensor.replace(shape=shape)
    return found


def _is_plain(tensor: LogicalTensor | None) -> bool:
    """Whether the tensor lies in memory; others are Python objects that host functions pass on."""
    return tensor is not None and tensor.dtype is not DataType.UNDEF and tensor.is_shape_known


def _describe(tensor: LogicalTensor) -> tuple[Any, Any] | None:
    """Shape and NumPy type of a tensor that lies in memory."""
    return (tensor.shape, tensor.dtype.numpy) if _is_plain(tensor) else None


def _call_host(step: _Step, values: dict[int, Any], is_plain: Sequence[bool], budget: HostBudget | None = None) -> None:
    """Run a host function on the values of a frame."""
    sources = [values[i] for i in step.inputs]
    if not all(is_plain):
        # a result without a known shape may be a view of an input, and arenas are written again
        sources = [source.copy() if isinstance(source, np.ndarray) else source for source in sources]
    targets = [values[i] if plain else None for i, plain in zip(step.outputs, is_plain, strict=True)]
    if budget is not None:
        budget.spend(1, step.label)
    assert step.function is not None  # a step is one or the other
    try:
        results = step.function(sources, targets)
    except LimitError:
        raise
    except Exception as error:
        raise BackendError(
            explain(f"the host function of {step.label} failed", got=f"{type(error).__name__}: {error}"),
            backend="host",
        ) from error
    for tensor_id, target, result in zip(step.outputs, targets, results, strict=True):
        if target is None:
            values[tensor_id] = result
        elif result is not target:
            _copy_result(step, target, result)


def _copy_result(step: _Step, target: Any, result: Any) -> None:
    array = np.asarray(result)
    if array.shape != target.shape or array.dtype != target.dtype:
        raise BackendError(
            explain(
                f"the host function of {step.label} gave another result than inferred",
                accepted=f"{target.dtype} {target.shape}",
                got=f"{array.dtype} {array.shape}",
            ),
            backend="host",
        )
    target[...] = array
