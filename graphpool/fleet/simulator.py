"""Requests through replicas of a service, event by event: what `graphpool.serve` does, in simulated time."""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass

from ..errors import InvalidArgumentError, brief, check_count, explain
from ..serve.run_times import RunTimes
from .checks import check_kind, check_rate, check_seconds, check_share
from .times import ServiceTimes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Answers", "Service", "poisson_arrivals", "simulate"]

_ENTER, _END, _WAKE = range(3)
_MODEL = "model"
"""Of a replica: it has one."""


@dataclass(frozen=True, kw_only=True)
class Service:
    """One process of ``graphpool serve`` with one model, whose requests are all of one kind.

    Parameters
    ----------
    times : ServiceTimes
    workers : int, default=1
        Runs at once.
    most_rows : int, default=1
        Up to which requests are joined; 1: they run one by one.
    join_delay_s : float, default=0.0
        How long a request waits at most for others while a worker is free. Unit: seconds.
    max_requests : int, default=64
        That wait or run; others are refused.
    deadline_s : float, default=30.0
        Within which a request is answered. Unit: seconds.
    overhead_s : float or sequence of float, default=0.0
        That a lone request takes beside its run, as one time or several that were measured: half before, for reading
        and parsing, and half behind it, for writing. The least of them is taken for one request at a time; what is
        above it requests wait for beside one another, as for a processor, and none overtakes another. While runs go on
        it takes longer, as one more run would; while all of several workers run it shares their processors. Unit:
        seconds.

    Raises
    ------
    InvalidArgumentError
        A count below 1, a time that is negative or not finite, or `times` of another class.
    """

    times: ServiceTimes
    workers: int = 1
    most_rows: int = 1
    join_delay_s: float = 0.0
    max_requests: int = 64
    deadline_s: float = 30.0
    overhead_s: float | Sequence[float] = 0.0

    def __post_init__(self) -> None:
        check_kind("times", self.times, ServiceTimes)
        for name in ("workers", "most_rows", "max_requests"):
            check_count(name, getattr(self, name))
        check_seconds("join_delay_s", self.join_delay_s)
        check_seconds("deadline_s", self.deadline_s, can_be_zero=False)
        check_seconds("overhead_s", self.overhead_s, can_be_several=True)

    @property
    def capacity_per_s(self) -> float:
        """Rows a second that it can serve for long, when requests have one row."""
        runs = self.workers * self.most_rows / self.times.mean_s(self.most_rows)
        overhead_s = float(np.min(self.overhead_s))
        return min(runs, 1 / overhead_s) if overhead_s else runs


@dataclass(frozen=True, eq=False)
class Answers:
    """What became of requests, in the order of their arrival.

    Attributes
    ----------
    status : ndarray of int
        200, 503 where there was no place, 504 where the deadline passed.
    latency_s : ndarray of float
        From the arrival to the answer. Unit: seconds.
    wait_s : ndarray of float
        From the arrival to the begin of its run; NaN for what did not run. Unit: seconds.
    run_rows : ndarray of int
        Rows of each run.
    """

    status: np.ndarray[Any, Any]
    latency_s: np.ndarray[Any, Any]
    wait_s: np.ndarray[Any, Any]
    run_rows: np.ndarray[Any, Any]

    def count(self, status: int) -> int:
        """How many requests were answered so.

        Parameters
        ----------
        status : int

        Returns
        -------
        count : int
        """
        return int((self.status == status).sum())

    def quantile_ms(self, share: float) -> float:
        """A time within which a share of what was answered with 200 was answered.

        Parameters
        ----------
        share : float
            From 0 to 1.

        Returns
        -------
        ms : float
            NaN if nothing was. Unit: milliseconds.

        Raises
        ------
        InvalidArgumentError
            A share below 0 or above 1.
        """
        check_share("share", share, can_be_zero=True)
        served = self.latency_s[self.status == 200]
        return float(np.quantile(served, share) * 1e3) if len(served) else float("nan")


class _Run:
    """Requests that run as one, and what of the run is left, as long as all workers run. Unit: seconds."""

    __slots__ = ("left_s", "numbers")

    def __init__(self, left_s: float, numbers: list[int]) -> None:
        self.left_s, self.numbers = left_s, numbers


class _Clock:
    """What a machine gets done by a moment, whose spells come in their order, again and again.

    Parameters
    ----------
    spells : sequence of (float, float)
        As of `ServiceTimes`; none where all time is alike.
    begin : float
        Where among them simulated time begins, as a share of all of them.
    """

    def __init__(self, spells: Sequence[tuple[float, float]], begin: float) -> None:
        self._slowness = [slowness for _, slowness in spells]
        self._times_s = [0.0, *accumulate(lasting_s for lasting_s, _ in spells)]
        self._works_s = [0.0, *accumulate(lasting_s / slowness for lasting_s, slowness in spells)]
        self._begin_s = begin * self._times_s[-1]

    def work_s(self, now_s: float) -> float:
        """What is done by then, in seconds in which nothing slows it, from a moment that is always the same."""
        if not self._slowness:
            return now_s
        rounds, rest_s = divmod(now_s + self._begin_s, self._times_s[-1])
        place = min(bisect_right(self._times_s, rest_s), len(self._slowness)) - 1
        done_s = self._works_s[place] + (rest_s - self._times_s[place]) / self._slowness[place]
        return rounds * self._works_s[-1] + done_s

    def time_s(self, work_s: float) -> float:
        """When so much is done."""
        if not self._slowness:
            return work_s
        rounds, rest_s = divmod(work_s, self._works_s[-1])
        place = min(bisect_right(self._works_s, rest_s), len(self._slowness)) - 1
        passed_s = self._times_s[place] + (rest_s - self._works_s[place]) * self._slowness[place]
        return rounds * self._times_s[-1] + passed_s - self._begin_s


class _Replica:
    """A service in simulated time. Requests of one kind start in the order of their arrival."""

    def __init__(self, run: _Simulation, begin: float) -> None:
        self._run, self._service = run, run.service
        self._clock = _Clock(run.service.times.spells, begin)
        self._entering: dict[int, None] = {}  # in the order of their arrival
        self._waiting: deque[tuple[int, float]] = deque()  # with when it came into the queue
        self._running: list[_Run] = []
        self._leaving: list[float] = []  # a heap: when those that have run are answered
        self._parser_free_s = self._noticed_s = 0.0
        self._message_s = float(np.min(run.service.overhead_s)) / 2
        self._times = RunTimes(run.service.deadline_s)
        self._since_s = 0.0  # up to which runs have gone on
        self._nchanges = 0  # of what runs
        self.last_used = -1

    def nrequests(self, now_s: float) -> int:
        """Requests that are being served."""
        self._expire(now_s)
        while self._leaving and self._leaving[0] <= now_s:
            heapq.heappop(self._leaving)
        running = sum(not self._run.is_late(number, now_s) for run in self._running for number in run.numbers)
        return len(self._entering) + len(self._waiting) + running + len(self._leaving)

    def admit(self, number: int, now_s: float) -> None:
        self._entering[number] = None
        self._run.at(self._parse(now_s), _ENTER, self, number)

    def enter(self, number: int, now_s: float) -> None:
        """The request comes into the queue, unless its deadline has passed, or would."""
        self._expire(now_s)
        if number in self._entering:
            del self._entering[number]
            if self.is_hopeless(now_s, self._run.due_s(number)):
                self._run.refuse(number, 503, now_s)
                return
            self._waiting.append((number, now_s))
            self.dispatch(now_s)

    def is_hopeless(self, now_s: float, due_s: float) -> bool:
        """Whether no worker is free and a newcomer would be answered too late, by the times of runs so far."""
        if len(self._running) < self._service.workers:
            return False
        mean_s = self._times.mean_s(_MODEL, now_s)
        waiting_s = mean_s * sum(
            self._run.rows[number] if self._service.most_rows > 1 else 1 for number, _ in self._waiting
        )
        wait_s = (self._times.left_s(now_s) + waiting_s / self._service.most_rows) / self._service.workers
        return now_s + (wait_s + mean_s) > due_s

    def _parse(self, now_s: float) -> float:
        """When the parser has read or written one more request, and that has been noticed."""
        begin_s = self._clock.work_s(max(self._parser_free_s, now_s))
        self._parser_free_s = self._clock.time_s(begin_s + self._message_s * self._slowness_beside)
        waited_s = max(self._run.draw_overhead_s() / 2 - self._message_s, 0.0)
        self._noticed_s = max(self._noticed_s, self._parser_free_s + waited_s * self._slowness_beside)
        return self._noticed_s  # in order: one thread does both

    def end(self, now_s: float, change: int) -> None:
        """The run that has least left is over, unless others have begun or ended since that was foretold."""
        if change != self._nchanges:
            return
        self._go_on(now_s)
        over = min(self._running, key=lambda run: run.left_s)
        self._running.remove(over)
        self._times.end(over, now_s)
        for number in over.numbers:
            heapq.heappush(self._leaving, self._run.answer(number, self._parse(now_s)))
        self._foretell()
        self.dispatch(now_s)

    def _go_on(self, now_s: float) -> None:
        """Let what runs go on until now."""
        done_s = (self._clock.work_s(now_s) - self._clock.work_s(self._since_s)) / self._slowness
        for run in self._running:
            run.left_s -= done_s
        self._since_s = now_s

    @property
    def _slowness(self) -> float:
        """Time that runs take now, as a share of their time while all workers run."""
        workers, alone = self._service.workers, self._service.times.alone_share
        return 1.0 if workers == 1 else alone + (1 - alone) * max(len(self._running) - 1, 0) / (workers - 1)

    @property
    def _slowness_beside(self) -> float:
        """Time that a message takes now, as a share of that while nothing runs.

        It is slowed as one more run would be; where all workers run it is slowed as they are, and has a share of their
        processors.
        """
        workers, alone, nruns = self._service.workers, self._service.times.alone_share, len(self._running)
        if workers == 1:  # which may have many processors
            return 1.0
        others = min(nruns, workers - 1)
        return (1 + (1 / alone - 1) * others / (workers - 1)) * max((nruns + 1) / workers, 1.0)

    def _foretell(self) -> None:
        """Expect the end of the run that has least left."""
        self._nchanges += 1
        if self._running:
            left_s = min(run.left_s for run in self._running)
            end_s = self._clock.time_s(self._clock.work_s(self._since_s) + left_s * self._slowness)
            self._run.at(end_s, _END, self, self._nchanges)

    def dispatch(self, now_s: float) -> None:
        """Give free workers what is ready."""
        self._expire(now_s)
        service = self._service
        while len(self._running) < service.workers and self._waiting:
            self._drop_late(now_s)
            count, nrows, is_full = self._joined()
            due_s = self._waiting[0][1] + service.join_delay_s
            if not is_full and now_s < due_s:
                self._run.at(due_s, _WAKE, self, 0)
                return
            self._go_on(now_s)
            numbers = [self._waiting.popleft()[0] for _ in range(count)]
            self._running.append(_Run(self._run.draw_s(nrows), numbers))
            self._times.begin(self._running[-1], _MODEL, now_s)
            self._run.start(numbers, now_s)
            self._foretell()

    def _joined(self) -> tuple[int, int, bool]:
        """How many requests run as one, their rows, and whether there is no room for another."""
        most, rows = self._service.most_rows, self._run.rows
        if most == 1:
            return 1, rows[self._waiting[0][0]], True
        count = nrows = 0
        for number, _ in self._waiting:
            if count and nrows + rows[number] > most:
                return count, nrows, True
            count += 1
            nrows += rows[number]
        return count, nrows, nrows >= most

    def _drop_late(self, now_s: float) -> None:
        """Drop what would be late, unless nothing else waits."""
        end_s = now_s + self._times.mean_s(_MODEL, now_s)
        while len(self._waiting) > 1 and end_s > self._run.due_s(self._waiting[0][0]):
            self._run.refuse(self._waiting.popleft()[0], 504, now_s)

    def _expire(self, now_s: float) -> None:
        """Drop what has not begun by its deadline; the oldest come first."""
        while self._waiting and self._run.is_late(self._waiting[0][0], now_s):
            self._waiting.popleft()
        while self._entering and self._run.is_late(first := next(iter(self._entering)), now_s):
            del self._entering[first]


class _Simulation:
    """One course of events."""

    def __init__(self, service: Service, arrivals_s: list[float], rows: list[int], seed: int) -> None:
        self.service, self.arrivals_s, self.rows = service, arrivals_s, rows
        self._rng = np.random.default_rng(seed)
        self._overheads_s = np.atleast_1d(service.overhead_s).tolist()
        self._events: list[tuple[float, int, int, _Replica, int]] = []
        self._count = 0
        self.status = np.full(len(rows), 504)
        self.latency_s = np.full(len(rows), service.deadline_s)
        self.wait_s = np.full(len(rows), np.nan)
        self.run_rows: list[int] = []

    def at(self, time_s: float, kind: int, replica: _Replica, number: int) -> None:
        self._count += 1
        heapq.heappush(self._events, (time_s, self._count, kind, replica, number))

    def draw_s(self, nrows: int) -> float:
        self.run_rows.append(nrows)
        return self.service.times.draw_s(nrows, self._rng.random())

    def draw_overhead_s(self) -> float:
        """What a request takes beside its run, as one of those that were measured."""
        count = len(self._overheads_s)
        return float(self._overheads_s[int(self._rng.random() * count) if count > 1 else 0])

    def due_s(self, number: int) -> float:
        return self.arrivals_s[number] + self.service.deadline_s

    def is_late(self, number: int, now_s: float) -> bool:
        return self.due_s(number) <= now_s

    def refuse(self, number: int, status: int, now_s: float) -> None:
        self.status[number], self.latency_s[number] = status, now_s - self.arrivals_s[number]

    def start(self, numbers: list[int], now_s: float) -> None:
        """Their run begins."""
        for number in numbers:
            self.wait_s[number] = now_s - self.arrivals_s[number]

    def answer(self, number: int, end_s: float) -> float:
        """When a request is answered that could be then."""
        arrival_s = self.arrivals_s[number]
        if end_s - arrival_s <= self.service.deadline_s:
            self.status[number], self.latency_s[number] = 200, end_s - arrival_s
        return arrival_s + float(self.latency_s[number])

    def run(self, nreplicas: int) -> Answers:
        replicas = [_Replica(self, number / nreplicas) for number in range(nreplicas)]
        for number, now_s in enumerate(self.arrivals_s):
            self._advance(now_s)
            count, _, least = min(
                (replica.nrequests(now_s), replica.last_used, k) for k, replica in enumerate(replicas)
            )
            if count >= self.service.max_requests or replicas[least].is_hopeless(now_s, self.due_s(number)):
                self.refuse(number, 503, now_s)
                continue
            replicas[least].last_used = number
            replicas[least].admit(number, now_s)
        self._advance(float("inf"))
        return Answers(self.status, self.latency_s, self.wait_s, np.array(self.run_rows, np.int64))

    def _advance(self, until_s: float) -> None:
        while self._events and self._events[0][0] <= until_s:
            now_s, _, kind, replica, number = heapq.heappop(self._events)
            if kind == _ENTER:
                replica.enter(number, now_s)
            elif kind == _END:
                replica.end(now_s, number)
            else:
                replica.dispatch(now_s)


def poisson_arrivals(rate_per_s: float, count: int, *, seed: int = 0) -> np.ndarray[Any, Any]:
    """Times of arrival at random, independent of one another.

    Parameters
    ----------
    rate_per_s : float
        How many come in a second.
    count : int
    seed : int, default=0
        Of the random numbers; the same times for the same seed.

    Returns
    -------
    arrivals_s : ndarray of float
        Ascending. Unit: seconds.

    Raises
    ------
    InvalidArgumentError
        A rate that is not above 0 and finite, or a negative count.
    """
    check_rate("rate_per_s", rate_per_s)
    check_count("count", count, 0)
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate_per_s, count))


def simulate(
    service: Service,
    arrivals_s: Sequence[float] | np.ndarray[Any, Any],
    rows: Sequence[int] | np.ndarray[Any, Any] | None = None,
    *,
    replicas: int = 1,
    seed: int = 0,
) -> Answers:
    """What becomes of requests to replicas of a service.

    Parameters
    ----------
    service : Service
        Each replica.
    arrivals_s : sequence of float
        When requests arrive, ascending. Unit: seconds.
    rows : sequence of int, optional
        Of each request. Default: 1.
    replicas : int, default=1
        Each request goes to the one with the fewest, to that used the longest ago among those.
    seed : int, default=0
        Of the random numbers by which times of runs are drawn.

    Returns
    -------
    answers : Answers

    Raises
    ------
    InvalidArgumentError
        Times that do not ascend, rows below 1 or not one for each request, no replica, or a negative seed.

    Notes
    -----
    As in `graphpool.serve`: a request has a place from its arrival to its answer; a free worker takes the oldest,
    joined with those behind it up to `most_rows`; runs of one replica slow one another as their times say; requests
    that ran together are written one after another; by the times of runs so far, what would be late is refused when it
    comes, and dropped when a worker is free that others can use; what runs past its deadline is answered 504. Spells
    slow runs and parsing, and come as they were measured, again and again: to the first replica from the first one on,
    to the others from other places, since they have machines of their own. Bodies' bytes and clients that go away are
    not simulated. Replicas have processors of their own.
    Threads: safe. Cost: some 30 microseconds a request, and 0.8 more for each replica. Method: discrete-event
    simulation (Law: Simulation Modeling and Analysis, chapter 1).

    Examples
    --------
    >>> service = Service(times=ServiceTimes({1: 0.010}), max_requests=8)    # doctest: +SKIP
    >>> simulate(service, poisson_arrivals(80.0, 20_000)).quantile_ms(0.99)    # doctest: +SKIP
    """
    check_kind("service", service, Service)
    check_count("replicas", replicas)
    check_count("seed", seed, 0)
    try:
        times = np.asarray(arrivals_s, np.float64)
    except (TypeError, ValueError):
        times = np.full(1, np.nan)
    if times.ndim != 1 or not np.isfinite(times).all() or (np.diff(times) < 0).any():
        raise InvalidArgumentError(explain("arrivals_s", accepted="ascending seconds", got=brief(arrivals_s)))
    sizes = np.ones(len(times), np.int64) if rows is None else np.asarray(rows)
    if sizes.shape != times.shape or sizes.dtype.kind not in "iu" or (sizes < 1).any():
        raise InvalidArgumentError(explain("rows", accepted=f"{len(times)} ints of at least 1", got=brief(rows)))
    return _Simulation(service, times.tolist(), sizes.tolist(), seed).run(replicas)
