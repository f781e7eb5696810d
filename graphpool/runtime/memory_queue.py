"""Who waits for memory of an engine: runs and loads that find too little of it beside others."""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from weakref import WeakSet

from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidArgumentError, MemoryTimeoutError, OutOfMemoryError, brief, check_choice, explain
from graphpool.fork import Locked
from graphpool.memory import Budget
from graphpool.memory._check import out_of_memory

from ._counters import JobRunner
from .group_room import NO_GROUPS, GroupRoom
from .inner_models import is_inner

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from ._result_arrays import ResultArrays

__all__ = ["ON_PRESSURE", "MemoryQueue", "QueueStats"]

ON_PRESSURE = ("refuse", "wait")
_NO_FACTS = {"requested": 0, "in_use": 0, "limit": 0, "resource": "budget", "smallest_limit": None}

_PAUSE_S = 0.01
"""Before a job is tried again that fits beside what is kept."""

_FIRST_PATIENCE_S = 0.5
"""For so long a job waits for what it seems to miss while nobody else does anything; twice as long each time."""

_LOOK_S = 0.1
"""Between two looks at a control group, and, twice as long each time up to `_FIRST_PATIENCE_S`, two trials in it."""

_UNBOUNDED = Budget().limit

V = TypeVar("V")


@dataclass(frozen=True, slots=True)
class QueueStats:
    """A queue at one moment.

    Attributes
    ----------
    waiting : int
        Jobs that wait now, or are tried again.
    waits, timeouts : int
        Jobs that found too little memory beside others and were tried in turn, and those of them that waited in vain;
        since the queue was made.
    waited_s : float
        Their time until the end of the last trial, all together, of those that have ended. Unit: seconds.
    """

    waiting: int
    waits: int
    timeouts: int
    waited_s: float


@dataclass(eq=False)
class _Waiter:
    """A job that waits; it takes at least so many bytes beside what is kept, as far as its last trial has shown.

    What others were giving back at that moment is in this number, so from `retry_s` on, by `time.monotonic`, the job is
    tried whatever it says, if nobody else does anything. Where a control group had no room for `group_nbytes`, it is
    tried once that has.
    """

    is_load: bool
    extra_nbytes: int = 0
    group_nbytes: int = 0
    retry_s: float = 0.0
    patience_s: float = _FIRST_PATIENCE_S
    group_patience_s: float = _LOOK_S
    seems_too_large: bool = False

    def fail(self, extra_nbytes: int) -> None:
        """A trial has shown that it takes so much."""
        self.extra_nbytes, self.group_nbytes = extra_nbytes, 0
        self.retry_s = monotonic() + self.patience_s
        self.patience_s *= 2

    def fail_in_group(self, nbytes: int) -> None:
        """A trial has come to so many bytes, and maybe no further."""
        self.extra_nbytes, self.group_nbytes = 0, nbytes
        self.retry_s = monotonic() + self.group_patience_s
        self.group_patience_s = min(2 * self.group_patience_s, _FIRST_PATIENCE_S)

    def look_at(self, room: GroupRoom) -> None:
        """Note whether the group has come to have room, where it is time to look."""
        now_s = monotonic()
        if self.group_nbytes and self.retry_s <= now_s:
            self.retry_s = now_s + _LOOK_S
            self.group_nbytes = 0 if room.has(self.group_nbytes) else self.group_nbytes

    def may_fit(self, room_nbytes: int, is_idle: bool) -> bool:
        """Whether a trial may find what the last one missed."""
        is_small = self.extra_nbytes <= room_nbytes or (is_idle and self.retry_s <= monotonic())
        return is_small and not self.group_nbytes


class MemoryQueue(JobRunner, Locked):
    """Lets the jobs of an engine, runs and loads, go on side by side, and those that find too little memory in turn.

    A job that fails for lack of memory lets go of all that it has taken and is tried again while no other job is going
    on, so that what others took for themselves has come back: a limit that suffices for one run suffices for any number
    of threads. What then is in use belongs to users: models that are open, results that are held. With ``wait`` the job
    waits for that too, and is tried again when so much has come back that it may fit.

    Who waits holds nothing that it took for its job, so no two jobs wait for one another; models that are open must not
    either. So a run goes before loads: its model comes back no earlier than the run has ended, while a load has nothing
    yet. And a model is not charged for its first form before that can run beside all that is kept, with one result of
    each open model held: so the one that was charged last can run, and when it is closed the one before it can. Runs
    are tried in the order of their arrival, of those that may fit; loads one after another, and new ones behind those
    that wait.

    Where a control group has no room, what the engine could have again is given up first, as under pressure of the
    budget. With ``wait`` the job then waits for room in the group, at which it looks now and then: nobody tells when
    others, or the rest of the process, let go of something.

    A model whose shapes are open holds memory before anybody knows what its runs take. It is let in where every open
    model can still run beside it, and the next load of another thread waits until it has its first form, or does
    nothing for a moment: so no two models wait for one another at their first runs, but those that one thread loads, or
    that are first run later.

    Parameters
    ----------
    budget : Budget
    on_pressure : {"refuse", "wait"}
    timeout_s : float
        How long a job waits in all, with ``wait``. Unit: seconds.
    room : GroupRoom, optional
        Refuses what a control group would kill the process for.

    Attributes
    ----------
    waits : bool

    Raises
    ------
    InvalidArgumentError
        A parameter is none of those accepted.

    Notes
    -----
    Threads: safe, also in a forked child. Waiting ends with a signal whose handler raises, such as that of Ctrl-C.
    Cost: a quarter of a microsecond a job that finds room.
    """

    def __init__(self, budget: Budget, on_pressure: str, timeout_s: float, room: GroupRoom = NO_GROUPS) -> None:
        if not isinstance(timeout_s, int | float) or isinstance(timeout_s, bool) or not timeout_s >= 0:
            raise InvalidArgumentError(explain("pressure_timeout_s", accepted="seconds >= 0", got=brief(timeout_s)))
        self.waits = check_choice("on_pressure", on_pressure, ON_PRESSURE) == "wait"
        self._timeout_s = timeout_s
        self._room = room
        self._waits = self._timeouts = 0
        self._waited_s = 0.0
        self._results: WeakSet[ResultArrays] = WeakSet()  # of models
        self._reset()
        super().__init__()

    def _reset_in_child(self) -> None:
        super()._reset_in_child()
        self._reset()

    def _reset(self) -> None:
        """Nobody is there: in a forked child the threads of the others do not exist."""
        self._charging = threading.RLock()
        self._jobs.forget()
        self._line: list[_Waiter] = []  # runs, then loads
        self._newcomers: WeakSet[Newcomer] = WeakSet()

    def load(self, work: Callable[[], V]) -> V:
        """As `run`, for what takes memory for good; refused at once unless this queue waits."""
        if not self.waits:
            return work()
        if not self._jobs.is_here and (self._line or self._is_one_to_run()):
            return self._try_in_turn(work, _no_nbytes, is_load=True)
        return self.run(work, _no_nbytes, is_load=True)

    def stats(self) -> QueueStats:
        """Counters."""
        with self._lock:
            return QueueStats(len(self._line), self._waits, self._timeouts, self._waited_s)

    # ---- forms of models

    def charge_form(
        self, charge: Callable[[], object], nbytes: int, results: ResultArrays, results_nbytes: int, *, holder: str
    ) -> None:
        """Check that a form will find room for a run, and charge it; nobody else does so meanwhile.

        Parameters
        ----------
        charge : callable
        nbytes : int
            Of the form and a run of it but for its results. Unit: bytes.
        results : ResultArrays
            Those of its model.
        results_nbytes : int
            Unit: bytes.
        holder : str

        Raises
        ------
        OutOfMemoryError
            They do not fit.
        """
        with self._charging:
            self._budget.check(nbytes, holder=holder, later_nbytes=results_nbytes, awaits_leases=not is_inner())
            own = self._jobs.own_nbytes if self.waits else None
            if own is not None:
                own_nbytes = own()
                is_first = not (own_nbytes and (results.most_nbytes or is_inner()))
                if is_first and self._budget.kept > own_nbytes:
                    self._check_others(nbytes + results_nbytes, results_nbytes, holder)
            charge()
            # for results that never fit nobody keeps room: a stranger's sizes would shut out all other models
            if results.most_nbytes < results_nbytes <= self._budget.limit - nbytes:
                is_first, results.most_nbytes = not results.most_nbytes, results_nbytes
                if is_first:
                    with self._lock:
                        self._results.add(results)

    def charge_source(
        self, charge: Callable[[], object], missing_nbytes: Callable[[], int], others_nbytes: int, model: Newcomer
    ) -> None:
        """Charge for what a model without a form holds, which is forgotten when it is collected.

        Parameters
        ----------
        charge : callable
        missing_nbytes : callable
            What it would charge now; asked where jobs wait. Unit: bytes.
        others_nbytes : int
            What a run of an open model takes at most, but for its results. Unit: bytes.
        model : Newcomer

        Raises
        ------
        OutOfMemoryError
            It does not fit; or not beside such a run, or not before that of another newcomer, where jobs wait.
        """
        holder = f"weights of {model.name}"
        with self._charging:
            if self.waits and self._jobs.is_here and self._budget.kept:
                nbytes = missing_nbytes()
                if self._is_one_to_run():  # both were let in before either had charged anything
                    raise self._refusal_in_turn(nbytes, holder)
                self._check_others(nbytes, others_nbytes, holder)
            charge()
            with self._lock:
                self._newcomers.add(model)

    def forget(self, results: ResultArrays) -> None:
        """A model is closed."""
        with self._lock:
            self._results.discard(results)

    def _refusal_in_turn(self, nbytes: int, holder: str) -> OutOfMemoryError:
        """The error of a job that is to wait for its turn, whatever is free."""
        budget = self._budget
        return out_of_memory(
            nbytes, in_use=budget.in_use, limit=budget.limit, resource=f"budget (asked by {holder})",
            smallest_limit=budget.kept + nbytes, holdings=budget.holdings(),
        )  # fmt: skip

    def _check_others(self, nbytes: int, spare_nbytes: int, holder: str) -> None:
        """Check that so much fits beside open models, each of which has a result that somebody holds."""
        with self._lock:
            models = list(self._results)
        spare_nbytes += sum(max(arrays.most_nbytes - arrays.used, 0) for arrays in models)
        try:
            self._budget.check(nbytes + spare_nbytes, holder=holder)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(str(error), **error.fields, spare_nbytes=spare_nbytes) from None

    # ---- jobs beside others

    def _wait_to_begin(self, own_nbytes: Callable[[], int]) -> int:
        """Begin a job of this thread when no other is to be alone; its number, see `Jobs.begin`."""
        number = -1

        def has_begun() -> bool:
            nonlocal number
            number = self._jobs.begin(own_nbytes)
            return number >= 0

        self._budget.wait_until(has_begun)
        return number

    def _end(self, waiter: _Waiter | None) -> None:
        """End a job of this thread, if it had begun, and let others go on beside it."""
        self._jobs.end(waiter)
        self._budget.wake()

    def _may_fit_later(self, number: int, error: OutOfMemoryError, own_nbytes: Callable[[], int]) -> bool:
        """Whether a job that has failed may succeed alone, or when users have let go of something."""
        if _is_of_group(error):
            return self._budget.reclaim(error.fields["requested"]) > 0 or self.waits or number != self._jobs.begun
        if number != self._jobs.begun:
            return True
        if not self.waits or error.fields.get("smallest_limit") is None:
            return False
        in_use: int = error.fields["in_use"]
        return in_use > own_nbytes()  # others had something, which may have come back by now

    # ---- jobs in turn

    def _try_in_turn(self, work: Callable[[], V], own_nbytes: Callable[[], int], is_load: bool) -> V:
        me = _Waiter(is_load)
        end_s = monotonic() + self._timeout_s
        facts: dict[str, Any] = {}
        with self._waiting(me):
            while True:
                timeout_s = max(end_s - monotonic(), 0.0) if self.waits else None
                try:
                    if not self._budget.wait_until(partial(self._is_turn, me, own_nbytes), timeout_s=timeout_s):
                        break
                    kept_nbytes = self._budget.kept
                    others_nbytes = max(kept_nbytes - own_nbytes(), 0)
                    return work()
                except OutOfMemoryError as error:
                    is_of_group = _is_of_group(error)
                    if not self.waits or (error.fields.get("smallest_limit") is None and not is_of_group):
                        raise
                    facts = dict(error.fields)
                finally:
                    self._end(me)
                if is_of_group:
                    self._budget.reclaim(facts["requested"])
                    me.fail_in_group(facts["requested"])
                    continue
                me.fail(self._missing_nbytes(facts, kept_nbytes))
                others_nbytes += facts.pop("spare_nbytes", 0)
                facts["smallest_limit"] = max(facts["smallest_limit"] - others_nbytes, 0)
                is_too_large = facts["smallest_limit"] > self._budget.limit
                is_sure = me.seems_too_large or (not others_nbytes and monotonic() >= end_s)
                if is_too_large and is_sure:
                    raise OutOfMemoryError(_describe("does not fit an idle engine", facts), **facts)
                me.seems_too_large = is_too_large
                if is_too_large:  # or others were giving something back: once more
                    me.extra_nbytes = 0
                if me.extra_nbytes == 0:  # what could be given up was in use: somebody had it for a moment
                    self._budget.wait_until(lambda: False, timeout_s=_PAUSE_S)
                if monotonic() >= end_s:
                    break
        with self._lock:
            self._timeouts += 1
        what = f"found no memory within {self._timeout_s:g} s"
        raise MemoryTimeoutError(_describe(what, facts), **_NO_FACTS | facts)

    def _missing_nbytes(self, facts: Mapping[str, Any], kept_nbytes: int) -> int:
        """What a job that has failed takes at least beside what is kept, which was so much before."""
        now_nbytes = self._budget.kept
        if not now_nbytes:  # nothing can come back: others had what they would give up
            return 0
        extra_nbytes: int = facts["smallest_limit"] - max(kept_nbytes, now_nbytes)
        extra_nbytes = max(extra_nbytes, self._budget.limit - now_nbytes + 1)  # something has to come back first
        return min(extra_nbytes, self._budget.limit)

    @contextmanager
    def _waiting(self, me: _Waiter) -> Iterator[None]:
        begin_s = monotonic()
        try:
            with self._lock:
                self._waits += 1
                loads = [number for number, waiter in enumerate(self._line) if waiter.is_load]
                self._line.insert(loads[0] if loads and not me.is_load else len(self._line), me)
            yield
        finally:
            with self._lock, suppress(ValueError):
                self._waited_s += monotonic() - begin_s
                self._line.remove(me)
            self._end(me)

    def _is_one_to_run(self) -> bool:
        """Whether memory is bounded, and a model of another thread is about to show what its runs take."""
        if self._budget.limit == _UNBOUNDED:
            return False
        with self._lock:
            newcomers = list(self._newcomers)
        return any(model.is_about_to_run for model in newcomers)

    def _is_turn(self, me: _Waiter, own_nbytes: Callable[[], int]) -> bool:
        """Whether it is this job's turn and no other is going on; from its turn on, none begins."""
        me.look_at(self._room)
        room_nbytes = self._budget.limit - self._budget.kept
        has_to_wait = me.is_load and self._is_one_to_run()
        with self._lock:
            alone, is_idle = self._jobs.alone, not self._jobs.count
            if alone not in (None, me):
                return False
            runs = [waiter for waiter in self._line if not waiter.is_load] or self._line[:1]
            due = (one for one in runs if one.may_fit(room_nbytes, is_idle))
            if next(due, None) is me and not has_to_wait:
                return self._jobs.begin(own_nbytes, me) >= 0
        if alone is me:
            self._end(me)
        return False


class Newcomer(Protocol):
    """A model that holds memory and may have no form yet."""

    name: str

    @property
    def is_about_to_run(self) -> bool:
        """Whether another thread makes its first form now, or is likely to in a moment."""


def _no_nbytes() -> int:
    """What the budget counts for a job that belongs to nothing. Unit: bytes."""
    return 0


def _is_of_group(error: OutOfMemoryError) -> bool:
    """Whether a control group has too little left now, and could ever have enough."""
    return "is_of_group" in error.fields and error.fields["requested"] <= error.fields["limit"]


def _describe(what: str, facts: Mapping[str, Any]) -> str:
    """Why a job does not run."""
    if not facts:
        return explain(f"a job {what}", hint="others before it were waiting for memory")
    holdings = ", ".join(f"{name} {nbytes}" for name, nbytes in (facts.get("holdings") or {}).items() if nbytes)
    least = facts["smallest_limit"]
    return explain(
        f"what {facts['resource']} was asked for {what}",
        accepted=f"up to {facts['limit']} bytes in all",
        got=f"a request of {facts['requested']} bytes beside {facts['in_use']} in use"
        + f" ({holdings})" * bool(holdings),
        hint="let go of what others hold there, or raise its limit"
        if least is None
        else f"on an idle engine the smallest limit is {least} bytes",
    )
