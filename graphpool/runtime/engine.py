"""An engine: a device with its memory, its threads and its context."""

from __future__ import annotations

import sys
import warnings
import weakref
from typing import TYPE_CHECKING, Any

from ..cache import constant_tensor_cache
from ..errors import InvalidArgumentError, StateError, UnsupportedError, explain
from ..memory import HostResource, LimitingResource, StatisticsResource
from ..typing import parse_nbytes
from .shared_arenas import SharedArenas
from .threads import available_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..typing import MemoryResource

__all__ = ["Engine"]


class Engine:
    """A device on which partitions are compiled and executed.

    Parameters
    ----------
    kind : {"cpu", "gpu"}, default="cpu"
    index : int, default=0
        Number of the device among those of its kind; there is one CPU.
    threads : int, optional
        Threads that one execution may use; by default what the affinity mask and the control group allow.
    memory_limit : int or str, optional
        Most memory that the engine hands out, for arenas and for the tensors that it allocates: bytes, or a string
        such as ``"512MiB"``. Unlimited by default.
    allocator : MemoryResource, optional
        Where the memory comes from, for instance ``gp.Allocator(malloc, free)``.
    context : hashable, optional
        Engines of different contexts share no cached constants and no compiled partitions.

    Attributes
    ----------
    kind, index, threads, context
        As given or determined.
    memory_limit : int or None
        Unit: bytes.
    resource : MemoryResource
        Where arenas and output tensors are allocated; counts them and holds the limit.
    shared_arenas : SharedArenas
        Arenas of compiled partitions with ``scratch="shared"``.

    Raises
    ------
    InvalidArgumentError
        Unknown kind, no such device, threads below 1, or not a size.
    UnsupportedError
        The kind needs an extra that is not installed.

    Notes
    -----
    Ownership: keeps the allocator alive as long as any of its memory is in use. Threads: safe.
    Source: seed "graph programming model", section Engine.
    """

    def __init__(
        self,
        kind: str = "cpu",
        *,
        index: int = 0,
        threads: int | None = None,
        memory_limit: int | str | None = None,
        allocator: MemoryResource | None = None,
        context: Any = None,
    ) -> None:
        if kind == "gpu":
            hint = "install the extra graphpool[cuda]"
            raise UnsupportedError(explain("engines of kind gpu have no backend here", hint=hint), kind=kind)
        if kind != "cpu":
            raise InvalidArgumentError(explain("engine kind", accepted="cpu, gpu", got=repr(kind)))
        if index != 0:
            raise InvalidArgumentError(explain("engine index", accepted="0, there is one cpu", got=repr(index)))
        if threads is not None and (not isinstance(threads, int) or isinstance(threads, bool) or threads < 1):
            raise InvalidArgumentError(explain("threads", accepted="an int of at least 1, or None", got=repr(threads)))
        self.kind = kind
        self.index = index
        self.threads = available_threads() if threads is None else threads
        self.context = context
        self.memory_limit = None if memory_limit is None else parse_nbytes(memory_limit)
        source: MemoryResource = HostResource() if allocator is None else allocator
        if self.memory_limit is not None:
            source = LimitingResource(source, self.memory_limit)
        self._statistics = StatisticsResource(source)
        self._is_closed = False
        self._dependents: weakref.WeakSet[Any] = weakref.WeakSet()
        self.shared_arenas = SharedArenas(self._statistics)

    @property
    def resource(self) -> MemoryResource:
        """Where arenas and output tensors are allocated."""
        return self._statistics

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return self._is_closed

    def stats(self) -> Any:
        """Counters of the memory that the engine has handed out: current, peak and total bytes and counts."""
        return self._statistics.stats()

    def attach(self, dependent: Any) -> None:
        """Remember something with ``close()`` and ``trim()`` that holds memory of this engine, weakly."""
        if self._is_closed:
            raise StateError(explain(f"{self!r} is closed", hint="create another engine"))
        self._dependents.add(dependent)

    def trim(self) -> int:
        """Give back the memory of idle arenas.

        Returns
        -------
        nbytes : int
            Memory given back. Unit: bytes.
        """
        freed: int = sum(dependent.trim() for dependent in list(self._dependents))
        return freed + self.shared_arenas.trim()

    def close(self) -> None:
        """Close all compiled partitions of the engine and give their memory and its constants back. Idempotent.

        Tensors that the engine allocated keep their memory until they die.
        """
        self._is_closed = True
        for dependent in list(self._dependents):
            dependent.close()
        self.shared_arenas.close()
        constant_tensor_cache(self.kind, self.index).remove_all_of(self._statistics)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not getattr(self, "_is_closed", True) and not is_finalizing():
            if self.stats().current_nbytes:
                warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            self.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        limit = "" if self.memory_limit is None else f", memory_limit={self.memory_limit / 2**20:g} MiB"
        state = ", closed" if self._is_closed else ""
        return f"Engine({self.kind}:{self.index}, threads={self.threads}{limit}{state})"
