"""The models of an engine: what each holds, and in which order they give it up when memory is short."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from time import thread_time
from typing import TYPE_CHECKING
from weakref import WeakSet

from graphpool.cache.constants import BYTES_PER_S
from graphpool.fork import Locked
from graphpool.memory._budget import IDLE_PRIMITIVES

from ._counters import UseClock
from .model_memory import Candidate, ModelCounts

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from graphpool.memory import Budget

    from ._share import PrimitiveShare
    from .engine_constants import EngineConstants
    from .engine_primitives import EnginePrimitives
    from .memory_queue import MemoryQueue
    from .model_memory import ModelMemory, ModelUsage

__all__ = ["EngineModels"]

MARGIN = 1.4
"""How much more packed weights must save than what goes for them: to exchange them costs a packing."""


class EngineModels(Locked):
    """The models of one engine, weakly, and one order over all that they could give up.

    What saves least goes first: rate of use x cost of having it again / bytes. The rate is 1 / (mean interval between
    the uses of the model), or 1 / (time unused / patience) once that is longer, where time is counted in uses of any
    model; costs are measured when something is made, those of fresh pages predicted. Weights that several models share
    save for all of them. What a run is using, what of a model's programs and packed weights belongs to a run that is
    going on, and what a pinned model holds, is no candidate; nor are states of sessions, nor constants in memory.

    Packed weights that miss room may take that of what is worth less, and else their plain layout is read: so a cycle
    over more models than fit exchanges nothing in vain.

    With `keeps_programs` an open model has what it needs to run: where jobs wait in the queue for memory, none may wait
    for a program that was given up while others were let in. `cost_clock` tells seconds, by default of this
    thread on a processor: time that passes while others run says nothing of a cost.

    Notes
    -----
    Threads: safe; memory is given up outside every lock. Cost: about 50 microseconds a model and call, under pressure
    alone. Source: value per byte after GreedyDual-Size (P. Cao, S. Irani, 1997) and GreedyDual-Size-Frequency
    (L. Cherkasova, 1998), with the interval between uses instead of a count, as LRU-K has it (O'Neil and others, 1993),
    and in place of an inflating offset: see `graphpool.cache.policies.CostPolicy`.
    """

    idle_since = math.inf  # asked after what belongs to no model

    def __init__(
        self, primitives: EnginePrimitives, constants: EngineConstants, budget: Budget, queue: MemoryQueue
    ) -> None:
        super().__init__()
        self._primitives, self.constants, self._budget, self.queue = primitives, constants, budget, queue
        self._models: WeakSet[ModelMemory] = WeakSet()
        self._ended: dict[str, ModelCounts] = {}  # by name, of models that are closed
        self.uses = UseClock()
        self.pack_s_per_byte = 1 / BYTES_PER_S  # of the model that has packed last: what others are taken to need
        self._in_vain: tuple[ModelMemory, int, int] | None = None  # who missed how much room, and when
        self.keeps_programs = queue.waits
        self.cost_clock: Callable[[], float] = thread_time
        constants.kept_keys = self.kept_keys
        budget.register(self, stage=IDLE_PRIMITIVES)
        budget.keep_room_for(self)

    def __len__(self) -> int:
        return len(self._models)

    def add(self, model: ModelMemory) -> None:
        """One model more, until it is collected or closed."""
        with self._lock:
            self._models.add(model)

    def end(self, model: ModelMemory) -> None:
        """A model is closed: what it has counted stays. Idempotent."""
        with self._lock:
            if model in self._models:
                self._models.discard(model)
                self._ended[model.name] = self._ended.get(model.name, ModelCounts()) + model.counts()

    def counts(self) -> dict[str, ModelCounts]:
        """Runs and compilations by name, of models that are closed too, so that they only grow.

        A run that ends after its model was closed is not counted.
        """
        with self._lock:
            found = dict(self._ended)
            for model in self._models:
                found[model.name] = found.get(model.name, ModelCounts()) + model.counts()
        return found

    def _open(self) -> list[ModelMemory]:
        """Those that are not closed."""
        with self._lock:
            models = list(self._models)
        return [model for model in models if not model.is_closed]

    def usage(self) -> list[ModelUsage]:
        """What each open model holds, in the order of their last use."""
        return sorted([model.usage() for model in self._open()], key=lambda usage: usage.last_use_s or -math.inf)

    # ---- the order

    def _candidates(self, but: ModelMemory | None = None) -> list[Candidate]:
        """What could be given up now, what saves least per byte first; nothing of the model `but`."""
        models = self._open()
        now = self.uses.now
        found = [c for model in models if not (model is but or model.is_kept) for c in model.candidates(now)]
        packed = {model: model.packed() for model in models}
        idle = self.constants.idle()
        found += self._packed_candidates(packed, idle, now)
        for group in () if self.keeps_programs else _with_shared([m for m in models if not (m.is_busy or m.is_kept)]):
            nbytes, worth = self._shares_nbytes(group), 0.0
            going = {key: size for model in group for key, size in packed[model].items() if key in idle}
            for model in group:
                worth += model.program_worth(now, sum(going[key] for key in packed[model] if key in going))
            nbytes += sum(going.values())
            found.append(Candidate(worth / max(nbytes, 1), nbytes, partial(self._give_up_programs, group)))
        return sorted((c for c in found if c.nbytes), key=lambda candidate: candidate.worth)

    def _packed_candidates(
        self, packed: dict[ModelMemory, dict[Hashable, int]], idle: dict[Hashable, int], now: int
    ) -> Iterable[Candidate]:
        """Each packed weight by itself; those that nobody is there for any more save nothing."""
        worths: Counter[Hashable] = Counter()
        kept: set[Hashable] = set()
        for model, keys in packed.items():
            each = model.rate(now) * model.pack_s_per_byte
            worths.update(dict.fromkeys(keys, each))
            if model.is_busy or model.is_kept:
                kept.update(keys)
        unbound = self.constants.unbound()
        for key, nbytes in idle.items():
            if key not in kept and (key in worths or key in unbound):
                yield Candidate(worths[key], nbytes, partial(self._evict, key))

    def _evict(self, key: Hashable, nbytes: int) -> int:
        return self.constants.evict(key)

    def _give_up_programs(self, models: Sequence[ModelMemory], nbytes: int) -> int:
        before = self._budget.in_use
        given_up = [model.give_up_programs() for model in models]
        if any(given_up):
            self._primitives.reclaim(self._primitives.reclaimable)
        return max(before - self._budget.in_use, 0)

    def _shares_nbytes(self, models: Iterable[ModelMemory]) -> int:
        """Memory of programs that nobody but these models uses. Unit: bytes."""
        used = sum((model.shares() for model in models), Counter())
        return sum(share.primitive.nbytes for share, users in used.items() if share.users <= users)

    @property
    def most_run_nbytes(self) -> int:
        """The most that a run of a model takes beside what is kept and its results. Unit: bytes."""
        return max(
            (form.arena_nbytes + form.host_nbytes for model in self._open() for form in model.forms()), default=0
        )

    # ---- for the budget

    @property
    def demand(self) -> int:
        """What the next run of any model needs and does not hold, all those together that are going on. Unit: bytes."""
        demands = [(model.is_busy, model.demand) for model in self._open()]
        busy = sum(nbytes for is_busy, nbytes in demands if is_busy)
        return max(busy, max((nbytes for _, nbytes in demands), default=0))

    @property
    def reclaimable(self) -> int:
        """Programs of models that no run uses; the rest is counted where it is held. Unit: bytes."""
        idle = [] if self.keeps_programs else [m for m in self._open() if not (m.is_busy or m.is_kept)]
        return self._shares_nbytes(idle)

    def reclaim(self, nbytes: int) -> int:
        """Give up what saves least until so many bytes are free; returns them."""
        return _give_up(self._candidates(), nbytes)

    def displace(self, nbytes: int) -> int:
        """Make room for packed weights of the model that this thread runs or compiles, if what goes is worth less.

        Gives up nothing if that would not suffice. Returns the bytes freed.
        """
        models = self._open()
        newcomer = next((model for model in models if model.is_here), None)
        if newcomer is None:
            return 0
        now, vain = self.uses.now, self._in_vain
        if vain is not None and vain[:2] == (newcomer, now) and vain[2] <= nbytes:
            return 0
        worth = newcomer.rate(now) * newcomer.pack_s_per_byte / MARGIN
        is_any_less = any(model.least_worth(now) < worth for model in models)
        victims = [c for c in self._candidates(newcomer) if c.worth < worth] if is_any_less else []
        if sum(c.nbytes for c in victims) < nbytes:
            self._in_vain = newcomer, now, nbytes
            return 0
        return _give_up(victims, nbytes)

    def kept_keys(self) -> set[Hashable]:
        """The packed weights of pinned models."""
        return {key for model in self._open() if model.is_kept for key in model.packed()}


def _with_shared(models: Sequence[ModelMemory]) -> list[list[ModelMemory]]:
    """Each model alone, then those together that share programs, which go when all of them are given up."""
    groups: list[tuple[set[PrimitiveShare], list[ModelMemory]]] = []
    for model in models:
        shares, members = set(model.shares()), [model]
        apart = []
        for group in groups:
            if shares.isdisjoint(group[0]):
                apart.append(group)
            else:
                shares, members = shares | group[0], [*group[1], *members]
        groups = [*apart, (shares, members)]
    return [[model] for model in models] + [members for _, members in groups if len(members) > 1]


def _give_up(candidates: Iterable[Candidate], nbytes: int) -> int:
    freed = 0
    for candidate in candidates:
        if freed >= nbytes:
            break
        freed += candidate.give_up(nbytes - freed)
    return freed
