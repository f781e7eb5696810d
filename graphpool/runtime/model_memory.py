"""What one model holds between runs, how often it is used, and what it would cost to have again."""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakSet

from graphpool._dataclasses import NamedTuple, dataclass
from graphpool.cache.constants import BYTES_PER_S, CALL_COST_S
from graphpool.errors import InvalidArgumentError, brief, explain
from graphpool.fork import Locked

from ._counters import UseCount
from .constant_memory import content_key

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence

    from ._form_cache import FormCache
    from ._result_arrays import ResultArrays
    from ._share import PrimitiveShare
    from .engine_models import EngineModels
    from .executable import Executable
    from .open_sessions import Sessions
    from .shared_arenas import SharedArenas
    from .variable_forms import VariableForms

V = TypeVar("V")

__all__ = [
    "Candidate", "ModelCounts", "ModelMemory", "ModelUsage", "Ranked", "check_priority", "missing_nbytes",
    "shared_nbytes",
]  # fmt: skip

PATIENCE = 2.0
"""How many of its usual intervals a model may stay unused before its worth begins to fall."""

FAULT_BYTES_PER_S = 1e9
"""At which the system gives memory that was never touched, a page at a time. Unit: bytes per second."""

RESIZE_S = 3e-4
"""What a form for other shapes is taken to cost before one was made."""

FIRST_RUN_S = 0.5
"""For so long after a load its thread is taken to be about to run the model."""

_MOST_RESIZED = 8
"""Such forms whose cost is measured: to ask for the processor's time is a tenth of it where caches hold other data."""


@dataclass(frozen=True, slots=True)
class ModelUsage:
    """What a model holds now.

    Attributes
    ----------
    name : str
    packed_nbytes, constants_nbytes, programs_nbytes, forms_nbytes, arenas_nbytes, results_nbytes, states_nbytes : int
        Packed weights in memory of the engine; constants in memory, those in mapped files apart; what was compiled, and
        the programs that were made of it for other shapes; arenas; memory kept for results; states of open sessions.
        What models share counts at each. Unit: bytes.
    uses : int
        Runs, and compilations ahead of runs.
    last_use_s : float or None
        Time of the last one, as `time.monotonic` gives it; None before the first. Unit: seconds.
    priority : float
    is_pinned, is_busy : bool
        Whether it keeps what it has; whether a run or a compilation is going on.
    """

    name: str
    packed_nbytes: int
    constants_nbytes: int
    programs_nbytes: int
    forms_nbytes: int
    arenas_nbytes: int
    results_nbytes: int
    states_nbytes: int
    uses: int
    last_use_s: float | None
    priority: float
    is_pinned: bool
    is_busy: bool

    @property
    def nbytes(self) -> int:
        """All of it. Unit: bytes."""
        counts = self.packed_nbytes, self.constants_nbytes, self.programs_nbytes, self.forms_nbytes
        return sum(counts) + self.arenas_nbytes + self.results_nbytes + self.states_nbytes


@dataclass(frozen=True, slots=True)
class ModelCounts:
    """What the models of one name have done.

    Attributes
    ----------
    runs, compilations : int
        Runs that gave results; how often one of them was compiled.
    """

    runs: int = 0
    compilations: int = 0

    def __add__(self, other: ModelCounts) -> ModelCounts:
        return ModelCounts(self.runs + other.runs, self.compilations + other.compilations)


class Candidate(NamedTuple):
    """Memory that could be given up: what it saves, in seconds per use of any model and per byte, and how.

    `give_up` takes how many bytes are missing, and returns how many were freed.
    """

    worth: float
    nbytes: int
    give_up: Callable[[int], int]


class ModelMemory(Locked):
    """The parts of a model that cost time to have again, and the use that is made of it, which runs `count`.

    Ownership: of nothing but constants that a model without forms needs to come back, which stay charged. Threads:
    safe.
    """

    def __init__(self, order: EngineModels, name: str, priority: float) -> None:
        super().__init__()
        self._order, self.name = order, name
        self.priority = check_priority(priority)
        self.is_pinned = False
        self.count = UseCount(order.uses, order)
        self._compile_s = self._resize_s = self._pack_s_per_byte = 0.0
        self._packing_s, self._compilations, self._nresized = 0.0, 0, 0
        self._source: list[Any] = []
        self._loaded: tuple[int, float] | None = None  # by which thread and when, until there is a form
        self._is_closed = False
        self._expectant: WeakSet[Executable] = WeakSet()

    def own(
        self,
        forms: FormCache[Executable],
        variable: VariableForms[Executable],
        arenas: SharedArenas,
        results: ResultArrays,
        sessions: Sessions,
        specialise: Any,
        undo: Callable[[], None],
    ) -> None:
        """The parts; `undo` is called when all forms are given up. From now on the engine's budget may ask."""
        self._forms, self._variable, self._arenas, self._results = forms, variable, arenas, results
        self._sessions, self._specialise, self._undo = sessions, specialise, undo
        self._order.add(self)

    # ---- use

    def rate(self, now: int) -> float:
        """Uses of it per use of any model, times its priority, which falls while it is not used."""
        return self.priority / max(self.count.interval, (now - self.count.last) / PATIENCE, 1.0)

    def timed(self, make: Callable[..., V], *given: Any) -> V:
        """What makes a form gives; what it costs to have one without compilation is measured, the first few times."""
        if self._nresized == _MOST_RESIZED:
            return make(*given)
        begin, compilations = self._order.cost_clock(), self._compilations
        made = make(*given)
        self._loaded = None
        if self._compilations == compilations:
            taken = self._order.cost_clock() - begin
            self._resize_s = min(taken, self._resize_s or taken)
            self._nresized += 1
        return made

    @contextmanager
    def timed_compiling(self) -> Iterator[None]:
        """Measure a compilation, without the packing of weights; what it was made of is held by the form then."""
        begin, packing_s = self._order.cost_clock(), self._packing_s
        yield
        taken = self._order.cost_clock() - begin - (self._packing_s - packing_s)
        self._compile_s = min(taken, self._compile_s or taken)
        self._compilations += 1
        self._hold_source([])

    @contextmanager
    def timed_packing(self, form: Executable) -> Iterator[None]:
        """Measure what it costs to pack the weights of a form."""
        begin = self._order.cost_clock()
        yield
        taken, nbytes = self._order.cost_clock() - begin, form.cached_nbytes
        self._packing_s += taken
        if nbytes and not self._pack_s_per_byte:
            self._pack_s_per_byte = self._order.pack_s_per_byte = max(taken / nbytes, 1 / BYTES_PER_S)

    @property
    def pack_s_per_byte(self) -> float:
        """What packed weights cost, which another model shows before it was measured here."""
        return self._pack_s_per_byte or self._order.pack_s_per_byte

    @property
    def is_here(self) -> bool:
        """Whether this thread runs the model or compiles it."""
        return self._forms.is_used_by(threading.get_ident())

    @property
    def is_busy(self) -> bool:
        """Whether a run or a compilation is going on."""
        return self._forms.is_busy

    @property
    def is_kept(self) -> bool:
        """Whether nothing of it may be given up now: it is pinned, and not its own run needs memory."""
        return self.is_pinned and not self.is_here

    @property
    def is_closed(self) -> bool:
        """Whether the model is closed."""
        return self._forms.is_closed

    # ---- what the next run needs

    def keep_room_for(self, form: Executable) -> None:
        """Count what the form's next run needs and does not hold among what constants leave free; held weakly."""
        with self._lock:
            self._expectant.add(form)

    @property
    def demand(self) -> int:
        """What the run that needs most needs and does not hold. Unit: bytes."""
        with self._lock:
            forms = list(self._expectant)
        return max((form.demand for form in forms), default=0)

    # ---- what could be given up

    def candidates(self, now: int) -> Iterator[Candidate]:
        """Parts that no other model has a share in, the programs apart."""
        rate, pool, results = self.rate(now), self._arenas.current(), self._results
        fault = rate / FAULT_BYTES_PER_S
        yield Candidate(fault, pool.reclaimable, pool.reclaim)
        yield Candidate(fault, results.reclaimable, results.reclaim)
        forms = [form for form in self._forms.forms() if form.is_resized]
        nbytes = self._forms.reclaimable
        if nbytes:
            each = rate * (self._resize_s or RESIZE_S) * len(forms) / max(self._forms.held, 1)
            yield Candidate(each, nbytes, self._forms.reclaim)
        for form in self._variable:
            nbytes = form.open_nbytes
            yield Candidate(rate * (self._resize_s or RESIZE_S) / max(nbytes, 1), nbytes, form.close_open)

    def least_worth(self, now: int) -> float:
        """What its memory saves at least, in seconds per use of any model and per byte."""
        return self.rate(now) * min(self.pack_s_per_byte, 1 / FAULT_BYTES_PER_S)

    def shares(self) -> Counter[PrimitiveShare]:
        """What was compiled: which program it uses how often."""
        return Counter(share for form in self.forms() for share in form.shares)

    def packed(self) -> dict[Hashable, int]:
        """The packed weights that it uses and the constant tensor cache keeps: key -> size in bytes."""
        return {key: nbytes for form in self.forms() for key, nbytes in form.cached_constants().items()}

    def program_worth(self, now: int, packed_nbytes: int) -> float:
        """Seconds per use of any model that are saved by what was compiled, with the weights that go with it."""
        compiled = sum(not form.is_resized for form in self.forms())
        return self.rate(now) * (compiled * self._compile_s + CALL_COST_S + packed_nbytes * self.pack_s_per_byte)

    def give_up_programs(self) -> bool:
        """Close all forms, unless one is in use or being made; whether that was done."""
        taken = self._forms.take_idle(self._variable, self.keep_source)
        for form in taken or ():
            form.close()
        return taken is not None

    def keep_source(self, forms: Sequence[Executable]) -> None:
        """Keep charged what stays in memory so that forms can be made again, which those hold that are given up."""
        nbytes_of, stays = self._order.constants.nbytes_of, self._lasting()
        held = {content_key(content): content for content in self._source} | _constants_of(forms)
        self._hold_source([value for key, value in held.items() if key in stays and nbytes_of(value)])
        self._undo()

    def hold_until_compiled(self) -> None:
        """Charge for what stays in memory of a model without forms, of which the first is charged for it then.

        Pages of mapped files are not in memory yet.

        Raises
        ------
        OutOfMemoryError
            It does not fit, or leaves a model that is open no room to run.
        """
        constants, queue = self._order.constants, self._order.queue
        contents = constants.in_memory(self._lasting().values())
        if contents:
            charge, missing_nbytes = partial(self._hold_source, contents), partial(constants.missing_nbytes, contents)
            self._loaded = threading.get_ident(), time.monotonic()
            queue.charge_source(charge, missing_nbytes, self._order.most_run_nbytes, self)

    @property
    def is_about_to_run(self) -> bool:
        """Whether another thread has loaded it, and compiles the first form now or is likely to in a moment."""
        loaded = self._loaded
        if loaded is None or loaded[0] == threading.get_ident():
            return False
        return self.is_busy or time.monotonic() < loaded[1] + FIRST_RUN_S

    def uncharge_unread(self, contents: Iterable[Any]) -> None:
        """A form is about to be charged for its contents: others are not counted from now on."""
        if self._source:
            read = set(map(content_key, contents))
            self._hold_source([content for content in self._source if content_key(content) in read])

    def _lasting(self) -> dict[Hashable, Any]:
        """The constants that stay in memory whatever is given up, by `content_key`."""
        return {content_key(content): content for content in getattr(self._specialise, "lasting", lambda: ())()}

    @property
    def variable_nbytes(self) -> int:
        """Programs of which those for other shapes are made, and the numbers that go with them. Unit: bytes."""
        forms, stays, nbytes_of = list(self._variable), self._lasting(), self._order.constants.nbytes_of
        numbers = sum([nbytes_of(value) for key, value in _constants_of(forms).items() if key not in stays])
        return numbers + sum([form.own_nbytes for form in forms])

    def _hold_source(self, contents: list[Any]) -> None:
        """Hold these, which are charged by others now, instead of what was held."""
        self._order.constants.hold(contents, holder=f"weights of {self.name}")
        with self._lock:
            if not self._is_closed:
                contents, self._source = self._source, contents
        self._order.constants.release(contents)

    @property
    def source_nbytes(self) -> int:
        """Constants that are held although no form has them. Unit: bytes."""
        return sum(map(self._order.constants.nbytes_of, self._source))

    def close(self) -> None:
        """The model is closed. Idempotent."""
        with self._lock:
            self._is_closed, self._loaded = True, None
            contents, self._source = self._source, []
        self._order.constants.release(contents)
        self._order.end(self)
        self._specialise = None

    def forms(self) -> list[Executable]:
        """Those that are kept, and those that others are made of."""
        return list(dict.fromkeys([*self._forms.forms(), *self._variable]))

    # ---- for people

    def counts(self) -> ModelCounts:
        """What it has done so far."""
        return ModelCounts(self._forms.runs, self._variable.compilations)

    def usage(self) -> ModelUsage:
        """What it holds now."""
        forms, nbytes_of = self.forms(), self._order.constants.nbytes_of
        contents = [*self._source, *(value for form in forms for value in form.form.constants.values())]
        return ModelUsage(
            name=self.name,
            packed_nbytes=sum(self.packed().values()),
            constants_nbytes=sum({content_key(value): nbytes_of(value) for value in contents}.values()),
            programs_nbytes=sum({share: share.primitive.nbytes for share in self.shares()}.values()),
            forms_nbytes=sum(form.own_nbytes for form in forms if form.is_resized),
            arenas_nbytes=self._arenas.current().stats().nbytes,
            results_nbytes=self._results.held,
            states_nbytes=self._sessions.nbytes,
            uses=self.count.uses,
            last_use_s=self.count.last_s,
            priority=self.priority,
            is_pinned=self.is_pinned,
            is_busy=self.is_busy,
        )


class Ranked:
    """Base of what has a `ModelMemory`, and says what it is worth beside other models of the engine."""

    _memory: ModelMemory

    @property
    def priority(self) -> float:
        """How much more it is worth than another model that is used as often; may be set to any number above 0."""
        return self._memory.priority

    @priority.setter
    def priority(self, priority: float) -> None:
        self._memory.priority = check_priority(priority)

    def pin(self) -> None:
        """Keep all that it has, and will have, from being given up when other models need memory. Idempotent."""
        self._memory.is_pinned = True

    def unpin(self) -> None:
        """End `pin`. Idempotent."""
        self._memory.is_pinned = False

    @property
    def is_pinned(self) -> bool:
        """Whether it keeps all that it has."""
        return self._memory.is_pinned


def check_priority(priority: Any) -> float:
    """A priority as a number; InvalidArgumentError for what is none above 0."""
    if isinstance(priority, int | float) and not isinstance(priority, bool) and 0 < priority < float("inf"):
        return float(priority)
    hint = "model.pin() keeps all that a model has"
    raise InvalidArgumentError(explain("priority", accepted="a finite number above 0", got=brief(priority), hint=hint))


def _constants_of(forms: Iterable[Executable]) -> dict[Hashable, Any]:
    """Contents of constants by `content_key`."""
    return {content_key(value): value for form in forms for value in form.form.constants.values()}


def missing_nbytes(forms: Sequence[Executable]) -> int:
    """Bytes of packed constants that forms may come to keep beside those that the cache has now."""
    packable = {key: nbytes for form in forms for key, nbytes in form.packable_constants().items()}
    return max(0, sum(packable.values()) - shared_nbytes(forms)[2])


def shared_nbytes(forms: Sequence[Executable]) -> tuple[int, int, int]:
    """Bytes of the programs, the constants and the packed constants of forms, shared ones counted once."""
    firsts = dict.fromkeys(form.first for form in forms)  # others have the same constants
    constants = {key: nbytes for form in firsts for key, nbytes in form.held_constants().items()}
    cached = {key: nbytes for form in firsts for key, nbytes in form.cached_constants().items()}
    return sum(form.own_nbytes for form in forms), sum(constants.values()), sum(cached.values())
