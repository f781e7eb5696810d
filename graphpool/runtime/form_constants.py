"""The constants of one form of a model: bound as they are, or kept packed alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass, replace
from graphpool.cache import PackedKey, constant_tensor_cache, fingerprint, packed_store
from graphpool.mapped_file import MappedFile

from ._constants import packed_key
from ._tensor import Tensor
from .constant_memory import content_key, memory_of
from .constant_part import file_of, held_nbytes
from .mapped_reads import MappedReads, reads_of, rows_read
from .packed_weight import PackedWeight, replacing_parts

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, MutableMapping, Sequence

    from graphpool.cache import ConstantBuffer
    from graphpool.graph.logical_tensor import LogicalTensor

    from ._compiled import CompiledPartition
    from ._program import Program
    from ._stream import Stream
    from .constant_part import ConstantPart
    from .engine import Engine
    from .model_form import ModelForm
    from .model_step import ModelStep

    Packed = tuple["_Use", tuple[Hashable, Hashable], ConstantBuffer]

__all__ = ["FormConstants"]


@dataclass(frozen=True)
class _Use:
    """A step that reads a packed constant: the number of the part that packs it."""

    step: ModelStep
    compiled: CompiledPartition
    number: int

    @property
    def part(self) -> ConstantPart:
        """What packs it."""
        assert self.compiled.primitive is not None  # it has parts
        return self.compiled.primitive.constant_parts[self.number]


class FormConstants:
    """Values of a form's constants by tensor id, and the tensors that steps read.

    `bound` has tensors by the identity of their content, from other forms and for others. Ownership: keeps the values;
    packed weights are closed by who gets them from `pack`. Threads: changed by one thread, before the first run.
    """

    def __init__(
        self,
        form: ModelForm,
        described: Mapping[int, LogicalTensor],
        steps: Sequence[ModelStep],
        stream: Stream,
        bound: MutableMapping[Hashable, Tensor],
    ) -> None:
        self.values = dict(form.constants)
        self._tables = [one for one in form.host_functions.values() if getattr(one, "nbytes", 0)]
        self.tensors: dict[int, Tensor] = {}
        self._form, self._described, self._steps = form, described, steps
        self._stream = stream
        self._engine: Engine = stream.engine
        for tensor_id in form.constants:
            if tensor_id in described:
                self.tensors[tensor_id] = self._bind(tensor_id, bound)

    def held(self) -> dict[Hashable, int]:
        """Size in bytes of what the budget counts, by keys that are equal for what forms share.

        These are the `contents`, see `EngineConstants.nbytes_of`.
        """
        return {content_key(value): self._engine.constants.nbytes_of(value) for value in self.contents}

    @property
    def contents(self) -> list[Any]:
        """The values, and host functions that hold tables."""
        return [*self.values.values(), *self._tables]

    def missing_nbytes(self) -> int:
        """What the budget would be charged for the contents now. Unit: bytes."""
        return self._engine.constants.missing_nbytes(self.contents)

    def cached(self) -> dict[Hashable, int]:
        """The packed constants that the constant tensor cache keeps now: key -> size in bytes."""
        origins = [step.compiled for step in self._steps if step.compiled is not None]
        return {key: nbytes for compiled in origins for key, nbytes in compiled.cached_constants().items()}

    def packable(self) -> dict[Hashable, int]:
        """All that the cache may come to keep packed: keys that are equal for what forms share -> size in bytes."""
        found: dict[Hashable, int] = {}
        for use in self._all_uses():
            contents = [self.values.get(use.step.inputs[position]) for position in use.part.sources]
            if not any(isinstance(content, PackedWeight) for content in contents):
                found[use.part.key, tuple(map(content_key, contents))] = use.part.nbytes
        return found

    def close(self, keeps: bool) -> None:
        """Let go of what steps read, once no run is going on; what was made for the cache stays there if so told."""

    def mapped_reads(self, programs: Sequence[Program | None]) -> MappedReads:
        """What steps with these programs read of mapped files: nothing where they read a packed form that is cached."""
        outputs = set(self._form.outputs.values())
        rows_nbytes: dict[int, int | None] = {
            tensor_id: None if tensor_id in outputs else 0
            for tensor_id, value in self.values.items()
            if file_of(value) is not None
        }
        for step, program in zip(self._steps, programs, strict=True):
            if rows_nbytes.keys().isdisjoint(step.inputs):
                continue
            found = None
            if step.compiled is not None and program is not None:
                found = rows_read(program, step.compiled.has_cached_constants())
            for position, tensor_id in enumerate(step.inputs):
                known_nbytes = rows_nbytes.get(tensor_id)
                if known_nbytes is not None:
                    more_nbytes = None if found is None else found.get(position, 0)
                    rows_nbytes[tensor_id] = None if more_nbytes is None else known_nbytes + more_nbytes
        return self._reads_of(rows_nbytes)

    def _reads_of(self, rows_nbytes: Mapping[int, int | None]) -> MappedReads:
        """Reads of so many bytes of each constant, None for all of it; those in no file are passed over."""
        reads: dict[Hashable, MappedReads] = {}
        for tensor_id, nbytes in rows_nbytes.items():
            value = self.values[tensor_id]
            file = file_of(value)
            if nbytes != 0 and file is not None:
                one = reads_of(memory_of(value), file, nbytes)
                reads[content_key(value)] = replace(one, counted_nbytes=self._engine.constants.nbytes_of(value))
        return MappedReads.joined(reads.values())

    def inputs_of(self, step: ModelStep) -> tuple[Tensor, ...]:
        """Tensors for the step's inputs; those that are no constants have no data."""
        return tuple([self.tensors.get(i) or Tensor.at(self._described[i], self._engine) for i in step.inputs])

    def prepare(self) -> None:
        """Bring the packed constants that kernels want into the cache.

        Where there is a packed store, it keeps what the parts of mapped files are named by.
        """
        for step in self._steps:
            if step.compiled is not None:
                step.compiled.prepare(self.inputs_of(step), stream=self._stream)
        store = packed_store()
        if store is not None:
            files = {id(file): file for file in map(file_of, self.values.values()) if isinstance(file, MappedFile)}
            for file in files.values():
                store.note(file)

    def packed(self) -> dict[PackedKey, ConstantBuffer]:
        """The packed constants that steps read, by names that hold in every process; made where they are missing.

        What the cache declines is left out. Cost: a read of each weight.
        """
        found = {}
        for use in self._all_uses():
            inputs = self.inputs_of(use.step)
            sources = [inputs[position] for position in use.part.sources]
            weights = [source.owner for source in sources if isinstance(source.owner, PackedWeight)]
            if not weights:
                _, buffer = use.compiled.own_constant(use.number, inputs, self._stream)
                if buffer is not None:
                    found[packed_key(use.part, sources)] = buffer
            elif len(sources) == 1 and weights[0].part.key == use.part.key:
                name = fingerprint(np.asarray(weights[0]))
                found[PackedKey(name, use.part.layout, use.part.isa)] = weights[0].buffer
        return found

    def packed_keys(self) -> list[list[PackedKey]]:
        """Of each compiled partition the names of its packed constants, alike in every process.

        Cost: a digest of each weight, unless it was taken.
        """
        found: list[list[PackedKey]] = [[] for step in self._steps if step.compiled is not None]
        places = {id(step): number for number, step in enumerate(s for s in self._steps if s.compiled is not None)}
        for use in self._all_uses():
            inputs = self.inputs_of(use.step)
            found[places[id(use.step)]].append(packed_key(use.part, [inputs[k] for k in use.part.sources]))
        return found

    def _all_uses(self) -> Iterator[_Use]:
        for step in self._steps:
            compiled = step.compiled
            if compiled is not None and compiled.primitive is not None:
                for number in range(len(compiled.primitive.constant_parts)):
                    yield _Use(step, compiled, number)

    def look_again(self) -> None:
        """Let go of packed constants in memory of the engine that no run is using, and look for them once more."""
        cache = constant_tensor_cache(self._engine.kind, self._engine.index)
        for step in self._steps:
            for key in {} if step.compiled is None else step.compiled.cached_constants():
                cache.evict_idle(key, self._engine.constants.resource)
        self.prepare()

    def _bind(self, tensor_id: int, bound: MutableMapping[Hashable, Tensor]) -> Tensor:
        """The tensor of a constant: the one that other forms use, if it is the same.

        A packed weight is unpacked if this form wants it in another way.
        """
        value = self.values[tensor_id]
        if isinstance(value, PackedWeight):
            uses = self._uses(tensor_id)
            if uses and all(use.part.key == value.part.key for use in uses):
                return self._stand_in(tensor_id, value, [(use, value.key, value.buffer) for use in uses])
            value = self.values[tensor_id] = np.asarray(value)
        tensor = bound.get(content_key(value))
        if tensor is None or tensor.lt != self._described[tensor_id]:
            data = value if isinstance(value, np.ndarray) else memory_of(value)
            tensor = bound[content_key(value)] = Tensor(self._described[tensor_id], self._engine, data)
        return tensor

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

    def pack(self, packed: list[PackedWeight]) -> None:
        """Let packed weights, added to `packed`, stand for weights that they can give back.

        One after another, the largest first, as each frees memory.
        """
        for tensor_id in sorted(self.tensors, key=lambda i: -self._described[i].nbytes):
            value = self.values[tensor_id]
            uses = self._uses(tensor_id) if held_nbytes(value) else []
            weight = self._pack(tensor_id, uses) if uses else None
            if weight is not None:
                if content_key(value) not in map(content_key, self.values.values()):
                    self._engine.constants.release([value])
                packed.append(weight)
                if self._form.forget is not None:
                    self._form.forget(value, weight)

    def _pack(self, tensor_id: int, uses: Sequence[_Use]) -> PackedWeight | None:
        """Let a constant be packed alone; None, and all is as it was, if the cache declines packed weights of it."""
        found: list[Packed] = []
        for use in uses:
            key, buffer = use.compiled.own_constant(use.number, self.inputs_of(use.step), self._stream)
            if key is None or buffer is None:
                return None
            found.append((use, key, buffer))
        first, key, buffer = found[0]
        weight = PackedWeight(self._described[tensor_id], first.part, key, buffer, self._engine)
        self._engine.constants.hold([weight], holder="packed weights")
        try:
            self.tensors[tensor_id] = self._stand_in(tensor_id, weight, found)
        except BaseException:
            self._engine.constants.release([weight])
            raise
        self.values[tensor_id] = weight
        return weight

    def _stand_in(self, tensor_id: int, weight: PackedWeight, packed: Sequence[Packed]) -> Tensor:
        """A tensor for which executions take what is packed; no kernel reads it. It lies in the packed weight."""
        tensor = Tensor.at(self._described[tensor_id], self._engine, weight.buffer.address, weight)
        for use, key, buffer in packed:
            bound = zip(use.step.inputs, self.inputs_of(use.step), strict=True)
            inputs = [tensor if i == tensor_id else other for i, other in bound]
            use.compiled.replace_constant(use.number, key, buffer, inputs)
        return tensor
