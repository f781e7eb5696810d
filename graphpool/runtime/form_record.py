"""Compiled forms as bytes, written by one process and read by others that have the same build of graphpool.

What is written are the objects of a compilation that runs need: programs with their parameter blocks, kernels by name,
the ports of partitions, what varies with sizes, and how constants are packed. Not written are contents of constants,
which the reader brings, and the graph: a `Deferred` stands for it, and for the partitions, and has them made where
somebody asks.

The format is pickle's, of which the reader takes the classes of `_CLASSES` alone; it runs no other code. A parameter
block is as powerful as code, since kernels do with memory what it says: bytes must come from who is trusted to compile.
What is read stays where it is where it can: parameter blocks are views of the bytes, which all processes map; and what
few ask for, descriptions of steps and programs that unpack weights, is read when somebody does.
"""

from __future__ import annotations

import io
import pickle
import sys
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool import _size_records
from graphpool._dataclasses import dataclass
from graphpool._kernels.core._dispatch import blas_slot, lookup
from graphpool._kernels.core.call import KernelCall
from graphpool._kernels.core.records import record
from graphpool._sizes import Real, Size, Trace
from graphpool.fork import Locked
from graphpool.graph.logical_tensor import LogicalTensor, checked_tensor

from ._compiled import CompiledPartition
from ._host_call import HostBudget
from .model_form import ModelForm
from .model_step import ModelStep, settled_tensors
from .primitive import Primitive
from .variable_form import VariableForm

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphpool._size_program import SizeValues
    from graphpool.cache import PackedKey
    from graphpool.graph.partition import Partition

    from ._form_sizes import FormSizes
    from .constant_part import ConstantPart
    from .engine import Engine
    from .form_steps import FormSteps
    from .model_form import Fallback, HostFunction
    from .partition_runs import PartitionRuns

__all__ = [
    "FORMAT",
    "Deferred",
    "Described",
    "ReadSteps",
    "UnwritableError",
    "dump_record",
    "load_record",
    "read_form",
    "write_form",
]


class UnwritableError(Exception):
    """A form that holds what bytes cannot say, such as a host function."""


class Deferred:
    """Stands for an object that is made when something of it is first asked for. Threads: safe."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __getattr__(self, name: str) -> Any:
        return getattr(self._make(), name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _itself, (self._make(),)

    def __repr__(self) -> str:
        return repr(self._make())


def _itself(made: Any) -> Any:
    return made


@dataclass(frozen=True)
class _Record:
    """What is written of a form.

    `constants` has the number among the contents by tensor id. `steps` has of each its label, inputs and outputs, the
    host function, None where a compiled partition runs, and what that stands for; `host_functions`, `fallbacks` and
    `host_budget` are the form's. `ports` are the inputs and outputs of each compiled partition, for which `primitives`
    has what runs, where no size varies; else `variable` has both. `packed` has the names of the packed constants of
    each.
    """

    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    precomputed: tuple[str, ...]
    weights: Mapping[str, int]
    constants: Mapping[int, int]
    tensors: Mapping[int, LogicalTensor]
    sizes: FormSizes
    steps: Sequence[tuple[str, tuple[int, ...], tuple[int, ...], HostFunction | None, Fallback | None]]
    host_functions: Mapping[int, HostFunction]
    fallbacks: Mapping[int, Fallback]
    host_budget: HostBudget | None
    ports: Sequence[tuple[Any, Any]]
    primitives: Sequence[Primitive]
    variable: VariableForm | None
    packed: Sequence[Sequence[PackedKey]]


def write_form(
    form: ModelForm,
    made: FormSteps | ReadSteps,
    variable: VariableForm | None,
    engine: Engine,
    packed: Sequence[Sequence[PackedKey]],
) -> tuple[bytes, list[Any]]:
    """The bytes of a form that was just compiled, and the contents of the constants that it reads, each once.

    `packed` has the names of packed constants by compiled partition; without names the reader packs them.

    Raises
    ------
    UnwritableError
        Something of it is run by a host function that bytes cannot say, by a backend of the user's own, or planned by
        the user's planner.
    """
    compiled = [step.compiled for step in made.steps if step.function is None]
    programs = [one for one in compiled if type(one) is CompiledPartition and one.primitive is not None]
    if len(programs) < len(compiled) or engine.planner is not None:
        raise UnwritableError("a step without a program, or a planner of the user's own")
    wanted = {*form.inputs.values(), *form.outputs.values(), *form.constants}
    wanted.update(i for step in made.steps for i in (*step.inputs, *step.outputs))
    varies = variable is not None
    distinct = {id(content): content for content in form.constants.values()}
    places = {key: number for number, key in enumerate(distinct)}
    text = _Record(
        form.inputs, form.outputs, form.precomputed, form.weights,
        {tensor_id: places[id(content)] for tensor_id, content in form.constants.items()},
        {} if varies else {i: made.tensors[i] for i in wanted if i in made.tensors}, made.sizes,
        [(step.label, step.inputs, step.outputs, step.function, step.fallback) for step in made.steps],
        form.host_functions, form.fallbacks, form.host_budget,
        [] if varies else [(one.inputs, one.outputs) for one in programs],
        [] if varies else [one.primitive for one in programs if one.primitive is not None],
        None if variable is None else variable.with_tensors(wanted), packed,
    )  # fmt: skip
    numbers = {id(step.compiled.partition): k for k, step in enumerate(made.steps) if step.compiled is not None}
    return _dump(text, engine, numbers), list(distinct.values())


def read_form(
    data: Any, engine: Engine, weights: str, contents: Callable[[], Sequence[Any]], describe: Described
) -> tuple[ModelForm, ReadSteps, VariableForm | None]:
    """The form again, without graph, its steps, and what varies.

    Parameters
    ----------
    data : bytes-like
        Of `write_form`, on this build, for an engine like this one.
    engine : Engine
    weights : {"scoped", "cached"}
        Of compiled partitions.
    contents : callable
        Gives the constants.
    describe : Described
        Has graph and partitions made.
    """
    text: _Record = _load(data, engine, describe)
    values = contents()
    graph: Any = Deferred(lambda: describe.form.graph)
    names: Any = Deferred(lambda: describe.form.names)
    constants = {i: values[number] for i, number in text.constants.items()}
    form = ModelForm(
        graph, constants, text.inputs, text.outputs, text.host_functions, text.precomputed, text.weights,
        host_budget=text.host_budget, fallbacks=text.fallbacks, names=names,
    )  # fmt: skip
    variable, tensors, now = text.variable, text.tensors, None
    if variable is None:
        partitions = [describe.partition(k) for k, (*_, function, _) in enumerate(text.steps) if function is None]
        rows = zip(partitions, text.ports, text.primitives, strict=True)
        compiled = [
            CompiledPartition(partition, *ports, engine, primitive=primitive, scratch="caller", weights=weights)
            for partition, ports, primitive in rows
        ]
    else:
        now = variable.now()
        tensors = variable.tensors(now)
        compiled = variable.first(now)
    for one, keys in zip(compiled, text.packed, strict=bool(text.packed)):
        if keys:
            one._know_constants(keys)
    parts = iter(compiled)
    steps = [
        ModelStep(next(parts) if function is None else None, function, label, inputs, outputs, fallback)
        for label, inputs, outputs, function, fallback in text.steps
    ]
    return form, ReadSteps(text, steps, tensors, now, describe), variable


class Described(Locked):
    """Graph and partitions of a form that was read, made of the model when they are first asked for.

    Parameters
    ----------
    specialise : callable
        Gives the `ModelForm`.
    variable : VariableForm or None
        Of the sizes in its graph.
    divide : callable
        Gives the partitions of a form.
    """

    def __init__(
        self, specialise: Callable[[], ModelForm], variable: VariableForm | None,
        divide: Callable[[ModelForm], PartitionRuns],
    ) -> None:  # fmt: skip
        super().__init__()
        self._specialise, self._variable, self._divide = specialise, variable, divide
        self._made: tuple[ModelForm, Mapping[int, LogicalTensor], PartitionRuns] | None = None

    def _parts(self) -> tuple[ModelForm, Mapping[int, LogicalTensor], PartitionRuns]:
        with self._lock:
            if self._made is None:
                form = self._specialise()
                tensors = settled_tensors(form.graph)
                if self._variable is not None:
                    self._variable.finish(tensors)
                self._made = form, tensors, self._divide(form)
            return self._made

    @property
    def form(self) -> ModelForm:
        """The form, without sizes where those vary."""
        return self._parts()[0]

    def partition(self, number: int) -> Any:
        """A partition that was compiled, which is made when something of it is asked for."""
        return Deferred(lambda: self._parts()[2].compiled[number])

    def partitions(self, symbols: Sequence[int] | None) -> tuple[Partition, ...]:
        """Those before neighbours were merged, for symbols that the form serves."""
        found = self._parts()[2].partitions
        values = self._values(symbols)
        return found if values is None else tuple([partition.with_sizes(values) for partition in found])

    def tensors(self, symbols: Sequence[int] | None) -> Mapping[int, LogicalTensor]:
        """All tensors of the graph, for such symbols."""
        found = self._parts()[1]
        values = self._values(symbols)
        return found if values is None else {i: tensor.with_sizes(values) for i, tensor in found.items()}

    def _values(self, symbols: Sequence[int] | None) -> SizeValues | None:
        return None if self._variable is None or symbols is None else self._variable.at(symbols)


class ReadSteps:
    """The steps of a form that was read, as `FormSteps` has those that were compiled."""

    appended: frozenset[str] = frozenset()

    def __init__(
        self, text: _Record, steps: list[ModelStep], tensors: Mapping[int, LogicalTensor], values: SizeValues | None,
        described: Described,
    ) -> None:  # fmt: skip
        self.steps, self.tensors, self.values, self.sizes = steps, tensors, values, text.sizes
        self._described, self._variable = described, text.variable

    def partitions_at(self, values: SizeValues | None) -> tuple[Partition, ...]:
        """As of `FormSteps`."""
        return self._described.partitions(self._symbols(values))

    def tensors_at(
        self, tensors: Mapping[int, LogicalTensor], values: SizeValues | None
    ) -> Mapping[int, LogicalTensor]:
        """As of `FormSteps`."""
        return self._described.tensors(self._symbols(values))

    def _symbols(self, values: SizeValues | None) -> list[int] | None:
        return None if self._variable is None or values is None else self._variable.symbols_at(values)


# ---- the format


FORMAT = "program:2:"
"""Begins the layout under which a store keeps forms."""


def dump_record(record: Any) -> bytes:
    """Tuples, lists, dicts, numbers and texts, and objects of the classes of forms, as bytes for `load_record`."""
    return _dump(record)


def load_record(data: Any) -> Any:
    """What `dump_record` wrote; raises whatever it meets where the bytes are others.

    Large parts of it are views of the data, which must not change.
    """
    return _load(data)


_ALIGNMENT = 16
"""Of the parts of a record. Unit: bytes."""


def _dump(record: Any, engine: Engine | None = None, numbers: Mapping[int, int] | None = None) -> bytes:
    """The number of parts and the size of each, then the parts: a pickle, and the buffers beside it."""
    room, beside = io.BytesIO(), []  # type: ignore[var-annotated]
    _Writer(room, beside, engine, numbers or {}).dump(record)
    parts = [room.getbuffer(), *(buffer.raw() for buffer in beside)]
    made = bytearray(np.array([len(parts), *(part.nbytes for part in parts)], np.int64).tobytes())
    for part in parts:
        made += bytes(-len(made) % _ALIGNMENT)
        made += part
    return bytes(made)


def _load(data: Any, engine: Engine | None = None, described: Described | None = None) -> Any:
    whole = np.frombuffer(data, np.uint8)
    count = int(whole[:8].view(np.int64)[0])
    parts, end = [], 8 * (1 + count)
    for nbytes in whole[8:end].view(np.int64).tolist():
        begin = -(-end // _ALIGNMENT) * _ALIGNMENT
        end = begin + nbytes
        parts.append(whole[begin:end])
    return _Reader(io.BytesIO(parts[0].data), parts[1:], engine, described).load()


_CLASSES = {
    f"graphpool.{module}": frozenset(names.split())
    for module, names in {
        "_size_program": "SizeProgram",
        "_size_records": "read_trace real_at size_at",
        "cache.identity": "Fingerprint PackedKey",
        "graph.logical_tensor": "checked_tensor",
        "limits": "Limits",
        "onnx._words": "Maps OneHot",
        "runtime._form_sizes": "FormSizes _restore",
        "runtime._program": "Program",
        "runtime._variable": "VariableProgram _restore",
        "runtime.constant_part": "ConstantPart",
        "runtime.form_record": "_Record _call _primitive",
        "runtime._host_call": "HostBudget",
        "runtime.model_form": "Fallback",
        "runtime.model_metadata": "ModelMetadata",
        "runtime.model_port": "IndexRange ModelPort",
        "runtime.primitive": "ProgramDetails",
        "runtime.scheduling": "ScheduleOptions",
        "runtime.stored_forms": "ModelHead StoredForm",
        "runtime.temporaries": "Temporaries",
        "runtime.variable_form": "SizeName Symbols VariableForm",
        "runtime.variable_partition": "VariablePartition",
        "schedule.control": "ListedCall",
        "schedule.graph": "DependencyGraph",
        "schedule.instructions": "AddEvent Run SetStream StreamBarrier WaitEvent",
        "schedule.schedule": "Schedule",
        "typing": "DataType LayoutType PropertyType",
    }.items()
}
"""Module -> what a file may name of it."""


class _Writer(pickle.Pickler):
    """Pickles what `_CLASSES` names."""

    def __init__(
        self, room: io.BytesIO, beside: list[pickle.PickleBuffer], engine: Engine | None, numbers: Mapping[int, int]
    ) -> None:  # fmt: skip
        super().__init__(room, 5, buffer_callback=beside.append)
        self._engine, self._numbers = engine, numbers  # of partitions, by identity

    def persistent_id(self, obj: Any) -> Any:
        """A name for what the reader has."""
        if obj is self._engine and obj is not None:
            return "engine"
        return self._numbers.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        """How an object of a known class is written; raises `UnwritableError` for others."""
        kind = type(obj)
        reduce = _REDUCERS.get(kind)
        if reduce is not None:
            return reduce(obj)
        named = obj if isinstance(obj, type) or (callable(obj) and hasattr(obj, "__qualname__")) else kind
        if getattr(named, "__name__", "") not in _CLASSES.get(getattr(named, "__module__", ""), ()):
            raise UnwritableError(f"an object of type {kind.__qualname__}")
        return NotImplemented


class _Reader(pickle.Unpickler):
    """Takes what `_CLASSES` names, and nothing else."""

    def __init__(
        self, room: io.BytesIO, beside: Sequence[Any], engine: Engine | None, described: Described | None
    ) -> None:  # fmt: skip
        super().__init__(room, buffers=beside)
        self._engine, self._described = engine, described

    def persistent_load(self, pid: Any) -> Any:
        """What was left out."""
        if self._described is None:
            raise pickle.UnpicklingError("a name for what is no part of it")
        return self._engine if pid == "engine" else self._described.partition(pid)

    def find_class(self, module: str, name: str) -> Any:
        """One of the classes, or UnpicklingError."""
        if name not in _CLASSES.get(module, ()):
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a compiled form")
        return getattr(sys.modules.get(module) or import_module(module), name)  # a module is asked for at each tensor


def _reduce_tensor(tensor: LogicalTensor) -> tuple[Any, ...]:
    own = tensor.id, tensor.dtype, tensor.shape, tensor.strides, tensor.layout, tensor.layout_id
    return checked_tensor, (*own, tensor.property, tensor.value)


def _reduce_call(call: KernelCall) -> tuple[Any, ...]:
    """A call; where its parameter block has the address of a slot of BLAS, it says where, and of which type."""
    if call.keep or call.patches:
        raise UnwritableError("a call that is bound to objects")
    block, slot = call.params.tobytes(), None
    place = record(call.kernel.params).place_of("blas")
    if place is not None:
        address = int.from_bytes(block[place : place + _ADDRESS_NBYTES], "little")
        dtype = next((dtype for dtype in ("f32", "f64") if address == blas_slot(dtype)), None)
        if dtype is not None:
            slot = place, dtype
            block = _with_address(block, place, 0)
    return _call, (
        call.kernel.name,
        call.kernel.isa,
        pickle.PickleBuffer(block),
        call.ntasks,
        call.scratch_nbytes,
        slot,
    )


def _call(
    name: str, isa: str, block: Any, ntasks: int, scratch_nbytes: int, slot: tuple[int, str] | None
) -> KernelCall:
    if slot is not None:
        place, dtype = slot
        block = _with_address(block.tobytes(), place, blas_slot(dtype))
    return KernelCall(lookup(name, isa), np.frombuffer(block, np.uint8), ntasks, scratch_nbytes)


_ADDRESS_NBYTES = 8


def _with_address(block: bytes, place: int, address: int) -> bytes:
    return block[:place] + address.to_bytes(_ADDRESS_NBYTES, "little") + block[place + _ADDRESS_NBYTES :]


def _reduce_primitive(primitive: Primitive) -> tuple[Any, ...]:
    own = primitive.program, primitive.implementations, primitive.step_ops, primitive.inplace_ports
    return _primitive, (*own, pickle.PickleBuffer(dump_record(primitive.details)), primitive.constant_parts)


def _primitive(
    program: Any, implementations: Sequence[str], step_ops: Sequence[int], inplace_ports: Sequence[tuple[int, int]],
    details: Any, constant_parts: Sequence[ConstantPart],
) -> Primitive:  # fmt: skip
    described = partial(load_record, details)
    made = Primitive(object(), program, implementations, step_ops, inplace_ports, described, constant_parts)
    made.evict()  # no cache keeps it for other users: it goes with its last one
    return made


def _reduce_located(make: Callable[..., Any], size: Any) -> tuple[Any, ...]:
    return make, _size_records.located(size)


_REDUCERS: dict[type, Callable[[Any], tuple[Any, ...]]] = {
    HostBudget: lambda budget: (HostBudget, (budget.limits,)),
    KernelCall: _reduce_call,
    LogicalTensor: _reduce_tensor,
    Primitive: _reduce_primitive,
    Real: partial(_reduce_located, _size_records.real_at),
    Size: partial(_reduce_located, _size_records.size_at),
    Trace: lambda trace: (_size_records.read_trace, _size_records.write_trace(trace)),
}
