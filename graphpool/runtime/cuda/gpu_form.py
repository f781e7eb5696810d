"""Compiled forms of models on a GPU: what lies there, and how it gets there and back.

One arena holds inputs, outputs, what lies between partitions, and their temporaries; its addresses are those of a run
from beginning to end. What only the host reads and writes stays with the host.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import NamedTuple
from graphpool.cache import ConstantBuffer, constant_tensor_cache
from graphpool.cache._entry import Outcome
from graphpool.cache._handle import ConstantHandle
from graphpool.cache.identity import quick_fingerprint
from graphpool.errors import OutOfMemoryError

from .._form_run import Frame
from .._host_call import HostCall
from .._step_call import Addresses
from .._tensor import Tensor, pack
from ..constant_memory import memory_of
from ..form_constants import FormConstants
from ..form_parts import FormParts
from ..form_plan import TensorPlaces
from ..model_step import ModelStep, is_plain
from ..runner import Runner
from .gpu_graph import GpuGraph

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, MutableMapping, Sequence

    from graphpool.graph.logical_tensor import LogicalTensor
    from graphpool.memory import Planner
    from graphpool.memory._arrays import ArrayAllocator
    from graphpool.typing import MemoryResource

    from .._stream import Stream
    from ..mapped_reads import MappedReads
    from ..model_form import ModelForm
    from ..packed_weight import PackedWeight
    from .gpu_device import GpuDevice
    from .gpu_partition import GpuPartition, HostPartition
    from .gpu_queue import GpuQueue
    from .watch import Watch

__all__ = ["GPU_PARTS"]

BACKEND_ID = "cuda"
ALIGNMENT = 256


def _launching(steps: Iterable[ModelStep]) -> list[tuple[ModelStep, GpuPartition]]:
    """The steps that are launches of kernels."""
    found: list[tuple[ModelStep, Any]] = [(step, step.compiled) for step in steps]
    return [(step, compiled) for step, compiled in found if compiled is not None and compiled.program is not None]


def _launched(steps: Iterable[ModelStep]) -> set[int]:
    """Ids of the tensors that kernels write."""
    return {i for step, _ in _launching(steps) for i in step.outputs}


def _on_device(steps: Iterable[ModelStep]) -> set[int]:
    """Ids of the tensors that kernels read or write."""
    return {i for step, _ in _launching(steps) for i in (*step.inputs, *step.outputs)}


def with_copies(form: ModelForm, steps: list[ModelStep]) -> list[ModelStep]:
    """The steps between one that copies inputs to the device and one that copies outputs from there."""
    here, launched = _on_device(steps), _launched(steps)
    inputs = tuple(dict.fromkeys([i for i in form.inputs.values() if i in here]))
    outputs = tuple(dict.fromkeys([i for i in form.outputs.values() if i in launched]))
    first = ModelStep(None, None, "copy of the inputs to the device", (), inputs)
    return [first, *steps, ModelStep(None, None, "copy of the outputs to the host", outputs, ())]


class _Copy(NamedTuple):
    """A constant on the device; `pin` keeps it in the cache, None where it is the form's own."""

    key: tuple[Hashable, Hashable]
    buffer: ConstantBuffer
    pin: ConstantHandle | None


class GpuConstants(FormConstants):
    """Constants that kernels read, copied to the device.

    The constant tensor cache of the device has the copies, shared by all models on engines of one context, as far as
    its capacity goes; what it declines is the form's own. `prepare` makes them and `close` lets go of them.
    """

    def __init__(
        self,
        form: ModelForm,
        described: Mapping[int, LogicalTensor],
        steps: Sequence[ModelStep],
        stream: Stream,
        bound: MutableMapping[Hashable, Tensor],
    ) -> None:
        super().__init__(form, described, steps, stream, bound)
        needed = [i for i in self.tensors if i in _on_device(steps) and described[i].nbytes]
        self._keys = {i: (BACKEND_ID, self._key(i)) for i in needed}
        self._copies: dict[Hashable, _Copy] = {}
        self._cache = constant_tensor_cache(self._engine.kind, self._engine.index)
        self._literals_nbytes = sum(compiled.literals_nbytes for _, compiled in _launching(steps))

    def _bind(self, tensor_id: int, bound: MutableMapping[Hashable, Tensor]) -> Tensor:
        """A tensor that has its memory when it was copied."""
        return Tensor.at(self._described[tensor_id], self._engine)

    def _key(self, tensor_id: int) -> Hashable:
        """The content's name among those of engines of one context, as on the CPU."""
        content, dtype = self._content(tensor_id), self._described[tensor_id].dtype
        return self._engine.context, quick_fingerprint(content, dtype=dtype)

    def _content(self, tensor_id: int) -> np.ndarray[Any, Any]:
        """The elements as they lie on the device."""
        value, lt = memory_of(self.values[tensor_id]), self._described[tensor_id]
        array = np.asarray(value)
        return pack(array, lt) if lt.dtype.bits < 8 and value is self.values[tensor_id] else array

    def held(self) -> dict[Hashable, int]:
        """Size in bytes of copies that the cache does not keep, and of literals."""
        held: dict[Hashable, int] = {id(self): self._literals_nbytes}
        held.update((id(copy.buffer), copy.buffer.nbytes) for copy in self._copies.values() if copy.pin is None)
        return held

    def mapped_reads(self, programs: Sequence[Any]) -> MappedReads:
        """What runs read of mapped files: what the host computes with."""
        read = {i for step in self._steps for i in step.inputs}.difference(self._keys)
        return self._reads_of(dict.fromkeys(i for i in self.values if i in read))

    def missing_nbytes(self) -> int:
        """Memory of the copies that are not in the cache. Unit: bytes."""
        missing = {key: self._described[i].nbytes for i, key in self._keys.items()}
        return sum(nbytes for key, nbytes in missing.items() if self._cache.find(key, nbytes) is None)

    def cached(self) -> dict[Hashable, int]:
        """The copies in the cache: key -> size in bytes."""
        return {copy.key: copy.buffer.nbytes for copy in self._copies.values() if copy.pin is not None}

    def pack(self, packed: list[PackedWeight]) -> None:
        """Nothing: kernels read constants as they lie."""

    def prepare(self) -> None:
        """Copy what is not there yet."""
        for tensor_id, key in self._keys.items():
            if key not in self._copies:
                self._copies[key] = self._copy(key, self._content(tensor_id))
            lt, address = self._described[tensor_id], self._copies[key].buffer.address
            self.tensors[tensor_id] = Tensor.at(lt, self._engine, address)

    def _copy(self, key: tuple[Hashable, Hashable], content: np.ndarray[Any, Any]) -> _Copy:
        """The copy that is in the cache, or a new one, there or outside."""
        pin = ConstantHandle(key, self._engine.constants.resource)
        with suppress(OutOfMemoryError), self._cache.lookup_or_reserve(*key, content.nbytes, handle=pin) as found:
            if found.outcome is Outcome.PRODUCE:
                found.fulfil(self._upload(content, self._engine.constants.resource))
            if found.buffer is not None and pin.try_acquire():
                return _Copy(key, found.buffer, pin)
        return _Copy(key, self._upload(content, self._engine.resource), None)

    def _upload(self, content: np.ndarray[Any, Any], resource: MemoryResource) -> ConstantBuffer:
        buffer = ConstantBuffer.allocate(resource, content.nbytes, ALIGNMENT)
        device: Any = self._engine.device
        device.write(buffer.address, np.ascontiguousarray(content))
        return buffer

    def close(self, keeps: bool) -> None:
        """Let go of the copies; those in the cache stay there if so told, or others use them."""
        while self._copies:
            _, copy = self._copies.popitem()
            if copy.pin is not None:
                copy.pin.give_back()
                if not keeps:
                    self._cache.remove_if_unused(*copy.key, last=copy.pin)


class GpuPlaces(TensorPlaces):
    """Inputs, outputs and what lies between kernels have places in the arena; arrays of the host do not count."""

    def __init__(
        self,
        outputs: Mapping[str, int],
        tensors: Mapping[int, LogicalTensor],
        steps: Sequence[ModelStep],
        held: Collection[str],
        planner: Planner | None,
        copied_nbytes: int = 0,
    ) -> None:
        super().__init__(outputs, tensors, steps, held, planner)
        inputs = set(steps[0].outputs)
        self.targets = [i for i in self.targets if i not in inputs]
        made = {i for step in steps for i in step.outputs}
        self.between = sorted(i for i in made & _on_device(steps) if is_plain(tensors[i]))
        self.fresh, self.hosted = [], []


class GpuRunner(Runner):
    """Gives the work of a run to a stream, and computes the host's steps in between; see `Runner`."""

    def _split(self, described: Mapping[int, LogicalTensor], sized: Sequence[int]) -> tuple[tuple[int, ...], set[int]]:
        """None is bound: places on the device are those of frames."""
        self._device: GpuDevice = self._stream.engine.device  # type: ignore[assignment]
        self._launched = _launched(self._steps)
        return (), {*self._form.inputs.values(), *(i for step in self._steps for i in step.outputs)}

    def link(self) -> None:
        """Nothing: frames have the addresses of constants."""

    def check_room(self, outputs: Iterable[str]) -> int:
        """Memory of the device for a run; raises `OutOfMemoryError` if the budget can never hold it."""
        nbytes = self._plan.arena_nbytes
        self._budget.check(nbytes, holder=self._results.holder)
        return nbytes

    def can_repeat(self, outputs: Iterable[str]) -> bool:
        """No: trips of a loop are runs."""
        return False

    def _make_frame(self, address: int) -> Frame:
        """A frame for the arena at an address."""
        return Frame(address, self._constants.values, Addresses(0), self._results.allocator())

    def _set_up(self, frame: Frame) -> None:
        """Say what a run does on it."""
        first, *steps, last = self._steps
        watches: list[Watch] = []
        between = [self._make_step(number, step, frame, watches) for number, step in enumerate(steps, 1)]
        upload = partial(self._upload, frame.values, frame.address, first.outputs)
        download = partial(self._download, frame.values, frame.address, last.inputs, watches)
        frame.calls.extend([upload, *between, download])

    def _address(self, arena: int, tensor_id: int) -> int:
        """Where a tensor lies on the device; 0 where it has no bytes."""
        if not self._described[tensor_id].nbytes:
            return 0
        known = self._constants.tensors.get(tensor_id)
        return arena + self._plan.offsets[tensor_id] if known is None else known.data_ptr

    def _make_step(self, number: int, step: ModelStep, frame: Frame, watches: list[Watch]) -> Callable[[], object]:
        """What runs a step: of launches, a graph that is captured here, which tells what it met by one of `watches`."""
        launching = _launching([step])
        if not launching:
            return partial(self._run_on_host, step, frame.values, frame.address, frame.arrays, tuple(watches))
        [(_, compiled)] = launching
        tensors = [self._address(frame.address, i) for i in (*step.inputs, *step.outputs)]
        watch = compiled.watch()
        bases = compiled.bases(frame.address + self._plan.offsets.get(~number, 0), tensors, watch)
        if not len(compiled.program):
            return int
        graph = GpuGraph(self._device.cuda, compiled.program, bases)
        if watch is None:
            return partial(graph.launch, self._queue.handle)
        watches.append(watch)
        return partial(self._launch, graph, watch)

    def _launch(self, graph: GpuGraph, watch: Watch) -> None:
        watch.begin()
        graph.launch(self._queue.handle)

    @property
    def _queue(self) -> GpuQueue:
        queue: GpuQueue = self._stream.queue  # type: ignore[assignment]
        return queue

    # ---- copies

    def _upload(self, values: Mapping[int, Any], arena: int, tensor_ids: Iterable[int]) -> None:
        """Copy arrays of the run to their places."""
        for i in tensor_ids:
            array = np.ascontiguousarray(values[i])
            assert array.nbytes == self._described[i].nbytes
            self._device.upload(array, self._address(arena, i), self._queue.handle)

    def _download(
        self, values: Mapping[int, Any], arena: int, tensor_ids: Iterable[int], watches: Sequence[Watch]
    ) -> None:
        """Copy outputs to the arrays of the run; the arena's work is done then, and an index outside raises."""
        for i in tensor_ids:
            self._device.download(self._address(arena, i), values[i], self._queue.handle)
        self._device.cuda.synchronize(self._queue.handle)
        _raise_first(watches)

    # ---- what the host runs

    def _run_on_host(
        self,
        step: ModelStep,
        values: dict[int, Any],
        arena: int,
        arrays: ArrayAllocator,
        watches: Sequence[Watch],
    ) -> None:
        """Compute a step from arrays, with copies of what the device has and of what it needs.

        What the launches in front have met is told as soon as their results are here, since the host would compute
        with what is wrong.
        """
        for i in self._launched.intersection(step.inputs):
            if values.get(i) is None or i in self._targets:  # whose array is empty until somebody fills it
                values[i] = self._empty(i) if values.get(i) is None else values[i]
                self._device.download(self._address(arena, i), values[i], self._queue.handle)
                _raise_first(watches)
        if step.compiled is None:
            are_plain = [is_plain(self._described[i]) for i in step.outputs]
            for i, plain in zip(step.outputs, are_plain, strict=True):
                if plain and values.get(i) is None:
                    values[i] = self._empty(i)
            HostCall(step, values, are_plain, self._form.host_budget, arrays)()
        else:
            computing: HostPartition = step.compiled  # type: ignore[assignment]
            found = computing.compute([np.asarray(values[i]) for i in step.inputs])  # constants may be packed
            for i, array in zip(step.outputs, found, strict=True):
                if values.get(i) is None:
                    values[i] = array
                else:
                    values[i][...] = array
        self._upload(values, arena, [i for i in step.outputs if i in self._plan.offsets])

    def _empty(self, tensor_id: int) -> np.ndarray[Any, Any]:
        lt = self._described[tensor_id]
        return np.empty(lt.shape or (), lt.dtype.numpy)


def _raise_first(watches: Sequence[Watch]) -> None:
    """Raise what the first of some programs met, all of which are done."""
    met = [error for error in [watch.end() for watch in watches] if error is not None]
    if met:
        raise met[0]


GPU_PARTS = FormParts(GpuConstants, GpuPlaces, GpuRunner, with_copies, vary=False)
