"""Weights whose only copy is the form that kernels want: what stands for them, and gives the plain weight back."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.cache import constant_tensor_cache
from graphpool.cache._handle import ConstantHandle
from graphpool.errors import StateError, explain

from ._constants import run_restore

if TYPE_CHECKING:
    from collections.abc import Hashable

    from graphpool.cache import ConstantBuffer
    from graphpool.graph.logical_tensor import LogicalTensor

    from ._compiled import CompiledPartition
    from .constant_part import ConstantPart
    from .engine import Engine

__all__ = ["PackedWeight", "replacing_parts"]


class PackedWeight:
    """A constant that is kept packed; it looks like an array, and is unpacked whenever its elements are read.

    `tensor` is what the plain weight is, `part` the form, which can be restored, `key` that of its entry in the
    constant tensor cache, `buffer` the form's bytes.

    Ownership: co-owns the buffer until `close`, so nothing that happens to the cache's entry can lose the weight; while
    the entry is there others share it, and it does not count as something that could be given up under pressure.
    Threads: safe. Cost of reading: one pass over the weight.
    """

    def __init__(
        self, tensor: LogicalTensor, part: ConstantPart, key: tuple[Hashable, Hashable], buffer: ConstantBuffer,
        engine: Engine,
    ) -> None:  # fmt: skip
        self.shape = tuple(tensor.shape or ())
        self.dtype: np.dtype[Any] = tensor.dtype.numpy
        self.part = part
        self.key = key
        self._buffer: ConstantBuffer | None = buffer
        self._engine = engine
        self._cache = constant_tensor_cache(engine.kind, engine.index)
        pin = ConstantHandle(key, engine.constants.resource)
        if self._cache.find(key, part.nbytes, pin) is buffer:
            pin.try_acquire()  # while somebody uses it the entry is not what a full memory gives up first
        self._pin = pin

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def buffer(self) -> ConstantBuffer:
        """The form's bytes.

        Raises
        ------
        StateError
            The model that held the weight is closed.
        """
        buffer = self._buffer
        if buffer is None:
            raise StateError(explain("the weight went with its model", hint="read weights before closing the model"))
        return buffer

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = np.empty(self.shape, self.dtype)
        run_restore(self.part, self.buffer, array.reshape(-1).view(np.uint8), self._engine.resource)
        array.setflags(write=False)
        return array if dtype is None else array.astype(dtype, copy=False)

    def close(self) -> None:
        """Let go of the form, whose entry leaves the cache unless somebody else uses it. Idempotent."""
        pin = vars(self).pop("_pin", None)  # at once: a model that is closed while it is compiled may do so twice
        self._buffer = None
        if pin is not None:
            if pin.users:  # none in a forked child
                pin.give_back()
            self._cache.remove_if_unused(*self.key, last=pin)

    def __repr__(self) -> str:
        return f"<PackedWeight {self.dtype} {self.shape}>"


def replacing_parts(compiled: CompiledPartition, position: int) -> list[int]:
    """The parts of a compiled partition that can stand for an input; none where something else reads it."""
    parts = () if compiled.primitive is None else compiled.primitive.constant_parts
    found = [k for k, part in enumerate(parts) if position in part.sources]
    return [] if any(parts[k].restoring is None for k in found) else found
