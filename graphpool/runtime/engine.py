"""An engine: a device with its memory, its threads and its context."""

from __future__ import annotations

import sys
import warnings
import weakref
from contextlib import ExitStack
from functools import partial
from numbers import Integral
from typing import TYPE_CHECKING, Any

from .. import log
from ..errors import InvalidArgumentError, StateError, brief, explain
from ..fork import Locked
from ..memory import Budget, LimitingResource, StatisticsResource
from ..memory.user_planner import check_planner
from . import idle_decay
from .device import open_device
from .engine_constants import EngineConstants
from .engine_models import EngineModels
from .engine_primitives import EnginePrimitives
from .group_room import NO_GROUPS, GroupRoom, RoomResource
from .memory_queue import MemoryQueue
from .shared_arenas import SharedArenas
from .threads import available_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from ..memory import AllocationStats, Planner
    from ..typing import MemoryResource
    from ._tensor import Content
    from .model_memory import ModelUsage
    from .process_report import ProcessReport

__all__ = ["Engine"]


class Engine(Locked):
    """A device on which partitions are compiled and executed.

    Parameters
    ----------
    kind : {"cpu", "gpu"}, default="cpu"
    index : int, default=0
        Number of the device among those of its kind; there is one CPU.
    threads : int, optional
        Threads of the host that one execution may use; by default what the affinity mask and the control group allow.
    memory_limit : int or str, optional
        Most memory that is taken on behalf of the engine, for arenas, constants, compiled programs and the tensors
        that it allocates: bytes, or a string such as ``"512MiB"``. ``"60%"`` is a share of what the process may take:
        the least of what its control groups (v1, v2, all that contain them), ``ulimit -v`` and the machine allow.
        ``"auto"`` is what is left of that beside what the process takes now and a reserve of 5 percent, 32 MiB at
        least. Where control groups or ``ulimit -v`` decide, either counts weights in mapped files. Unlimited by
        default. On a GPU it is memory of the device that counts, and shares are of that.
    idle_decay_s : float, optional
        Give back arenas that were idle for so long; by default they stay until `trim` or `close`. Unit: seconds.
    on_pressure : {"refuse", "wait"}, default="refuse"
        What becomes of a load, run or session of a model that finds too little memory while others use it, and would
        fit if nobody else did: it is refused, or waits. Runs are tried in the order of their arrival, of those that
        may fit now, and before loads, which are tried one after another. What would not fit an idle engine is refused
        in any case.
    pressure_timeout_s : float, default=60.0
        How long one waits in all, before `MemoryTimeoutError`. Unit: seconds.
    allocator : MemoryResource, optional
        Where the memory comes from, for instance ``gp.Allocator(malloc, free)``.
    context : hashable, optional
        Engines of different contexts share no cached constants and no compiled partitions.
    planner : Planner, optional
        A function of yours that plans arenas: see `graphpool.memory.Planner`. Its plans are checked. Programs on
        several streams are planned by conflicts instead of lifetimes, without it.

    Attributes
    ----------
    kind, index, threads, context, on_pressure, pressure_timeout_s, planner
        As given or determined.
    device : Device
        What the engine is on: all that depends on its kind.
    is_closed : bool
        Whether `close` was called.
    memory_limit : int or None
        Unit: bytes.
    budget : Budget
        Counts all memory taken on behalf of the engine and holds the limit. Under pressure it trims idle arenas, then
        evicts idle primitives, then takes what models could give up, then evicts cached constants, then lets executions
        wait for a lease.
    host_budget : Budget
        Counts arrays of models that lie in memory of the host: `budget`, or on a GPU one without a limit.
    queue : MemoryQueue
        Lets runs and loads wait for memory that others use.
    resource : MemoryResource
        Where tensors are allocated, charged to the budget.
    source : MemoryResource
        What it takes them from; arenas are allocated here, since their pools charge the budget themselves.
    constants : EngineConstants
        What the budget is charged for weights; ``constants.resource`` has the memory of constants.
    shared_arenas : SharedArenas
        Arenas of compiled partitions with ``scratch="shared"``.

    Raises
    ------
    InvalidArgumentError
        Unknown kind, no such device, threads below 1, or not a size.
    UnsupportedError
        The kind needs an extra, a driver or a device that is not there; the message says what to install or change.

    Notes
    -----
    Ownership: keeps the allocator alive as long as any of its memory is in use. Threads: safe.
    Source: oneDNN Graph's programming model, Engine.
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
        idle_decay_s: float | None = None,
        on_pressure: str = "refuse",
        pressure_timeout_s: float = 60.0,
        planner: Planner | None = None,
    ) -> None:
        log.listen()
        check_planner(planner)
        if threads is not None and (not isinstance(threads, Integral) or isinstance(threads, bool) or threads < 1):
            raise InvalidArgumentError(explain("threads", accepted="an int of at least 1, or None", got=brief(threads)))
        if idle_decay_s is not None and not (isinstance(idle_decay_s, int | float) and idle_decay_s > 0):
            raise InvalidArgumentError(
                explain("idle_decay_s", accepted="seconds > 0, or None", got=brief(idle_decay_s))
            )
        self.device = open_device(kind, index)
        self.kind = kind
        self.index = index
        self.threads = available_threads() if threads is None else int(threads)
        self.context = context
        limit = self.device.parse_limit(memory_limit)
        self._memory_limit, self.memory_limit = memory_limit, limit.nbytes
        self.planner = planner
        self.idle_decay_s = idle_decay_s
        super().__init__()
        self.is_closed = True  # until all is there that closing needs: the constructor may be interrupted anywhere
        self._dependents: weakref.WeakSet[Any] = weakref.WeakSet()
        self.contents: dict[Hashable, Content] = {}  # of tensors with explicit ids, as many as there are ids
        self.budget = Budget(self.memory_limit)
        self.host_budget = self.budget if limit.counts_host else Budget()
        self.on_pressure, self.pressure_timeout_s = on_pressure, pressure_timeout_s
        self._has_own_allocator = allocator is not None
        resource = self.device.resource(limit.nbytes) if allocator is None else allocator
        self._source_blocks: Callable[[], list[tuple[int, int]]] = getattr(resource, "blocks", list)
        self.room = NO_GROUPS
        if limit.nbytes is not None and limit.counts_host and allocator is None:
            self.room = GroupRoom.find(self._source_blocks)
            resource = RoomResource(resource, self.room)
        self.queue = MemoryQueue(self.budget, on_pressure, pressure_timeout_s, self.room)
        self.source = StatisticsResource(resource)
        self.resource = LimitingResource(self.source, self.budget)
        self.primitives = EnginePrimitives(self.source, self.budget)
        self.constants = EngineConstants(kind, index, self.source, self.budget, limit)
        self.shared_arenas = SharedArenas(self.source, self.budget)
        self.model_memory = EngineModels(self.primitives, self.constants, self.budget, self.queue)
        self.is_closed = False
        if idle_decay_s is not None:
            idle_decay.watch(self)

    def stats(self) -> AllocationStats:
        """Counters of the memory that the engine has handed out: current, peak and total bytes and counts.

        The user's weights and compiled programs are not handed out by the engine; `budget` counts them too.

        Returns
        -------
        AllocationStats
        """
        return self.source.stats()

    def process_report(self) -> ProcessReport:
        """What the process's resident memory is, the engine's budget apart from all else.

        Returns
        -------
        report : ProcessReport

        Raises
        ------
        UnsupportedError
            The system does not tell: Linux does.

        Notes
        -----
        Threads: safe. Cost: milliseconds, for the kernel counts the pages of the process.
        """
        holdings = self.budget.holdings()
        holdings["constants"] -= self.constants.mapped_nbytes  # resident as mapped files
        blocks = self.device.host_blocks([*self.budget.blocks(), *self._source_blocks()])
        from .process_report import report_process

        return report_process(holdings, blocks, not self._has_own_allocator)

    @property
    def maps_arenas(self) -> bool:
        """Whether large arenas are fresh mappings of the host's memory: not a GPU's, nor those of an allocator."""
        return not self._has_own_allocator and self.host_budget is self.budget

    def models(self) -> list[ModelUsage]:
        """What each open model holds, and how it is used; the one that was used last is at the end.

        Returns
        -------
        list of ModelUsage
        """
        return self.model_memory.usage()

    def attach(self, dependent: Any) -> None:
        """Remember, weakly, something that holds memory of this engine, to close it with the engine.

        Parameters
        ----------
        dependent : object
            Has a method ``close()``.

        Raises
        ------
        StateError
            The engine is closed.
        """
        with self._lock:
            self._dependents.add(dependent)  # first: `close` either sees it, or was called before and is seen below
        if self.is_closed:
            raise StateError(explain(f"{self!r} is closed", hint="create another engine"))

    def trim(self) -> int:
        """Give back the memory of idle arenas; those that compiled partitions have reserved stay.

        Returns
        -------
        nbytes : int
            Memory given back. Unit: bytes.
        """
        return self.budget.trim()

    def decay(self, now_s: float | None = None) -> int:
        """Give back the memory of arenas that were idle for `idle_decay_s`, which a thread does by itself now and then.

        Parameters
        ----------
        now_s : float, optional
            The time at which they are looked at, as `time.monotonic` gives it; by default now. Unit: seconds.

        Returns
        -------
        nbytes : int
            Memory given back. Unit: bytes.
        """
        return 0 if self.idle_decay_s is None else self.budget.trim(self.idle_decay_s, now_s)

    def close(self) -> None:
        """Close everything that was compiled for the engine, give its memory and its constants back. Idempotent.

        Tensors that the engine allocated keep their memory until they die, and so do results of models; arenas until
        executions that use them have ended, or the thread that is giving them back is done; constants that other
        engines use until those are done with them.
        """
        self.is_closed = True
        idle_decay.unwatch(self)
        with self._lock:
            dependents = list(self._dependents)
        own = (self.primitives, self.constants, self.shared_arenas, self.device)
        with ExitStack() as closing:  # the last one first; a stream may have to tell what its work has met
            for part in reversed((*dependents, *own)):
                closing.callback(part.close)

    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not getattr(self, "is_closed", True) and not is_finalizing():
            if self.stats().current_nbytes:
                warnings.warn(f"{self!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickles by description: the copy is another engine, without any memory."""
        if self._has_own_allocator:
            raise TypeError("an engine with an allocator does not pickle: memory has no meaning in another process")
        names = ("index", "threads", "context", "idle_decay_s", "on_pressure", "pressure_timeout_s", "planner")
        options = {name: getattr(self, name) for name in names}
        return partial(Engine, **options, memory_limit=self._memory_limit), (self.kind,)

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        limit = "" if self.memory_limit is None else f", memory_limit={self.memory_limit / 2**20:g} MiB"
        state = ", closed" if self.is_closed else ""
        return f"Engine({self.kind}:{self.index}, threads={self.threads}{limit}{state})"

    def _repr_html_(self) -> str:
        """For notebooks."""
        from ..drawing import describe_size
        from ..notebook import brief_list, html_table

        held = {name: describe_size(nbytes) for name, nbytes in self.budget.holdings().items() if nbytes}
        rows: dict[str, object] = {
            "threads": self.threads,
            "memory limit": "none" if self.memory_limit is None else describe_size(self.memory_limit),
            "in use": describe_size(self.budget.in_use),
            "most in use": describe_size(self.budget.peak),
            "models": brief_list([usage.name for usage in self.models()]),
        }
        title = f"Engine {self.kind}:{self.index}{', closed' if self.is_closed else ''}"
        return html_table(title, rows | {f"in use by {name.replace('_', ' ')}": size for name, size in held.items()})
