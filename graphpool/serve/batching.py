"""The queue before the models: runs in worker threads, requests of one kind joined where a model allows it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass, field

from ..errors import GraphpoolError, InvalidArgumentError, InvalidShapeError, MemoryTimeoutError, explain
from ..runtime.shape_ranges import ShapeRanges
from .admission import FullError
from .run_times import RunTimes

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence
    from concurrent.futures import Executor

    from ..runtime import Model

    Arrays = dict[str, Any]

__all__ = ["RunQueue", "ServedModel"]


class ServedModel:
    """A model, and how requests to it may be joined.

    Parameters
    ----------
    name : str
    model : Model
    join : str, optional
        Name of the first dimension of all inputs and outputs, whose range is declared: rows that do not see one
        another. None: requests are not joined.

    Attributes
    ----------
    name, model
        As given.
    most_rows : int
        Up to which requests are joined: the upper end of the declared range; 1 without `join`.

    Raises
    ------
    InvalidArgumentError
        A port does not begin with that dimension, or it has no declared range.

    Notes
    -----
    Threads: immutable, safe.
    """

    def __init__(self, name: str, model: Model, join: str | None = None) -> None:
        self.name, self.model = name, model
        self._ranges = ShapeRanges(model.declared_shapes or {}, model.inputs)
        self.most_rows = 1 if join is None else self._find_most_rows(join)

    def _find_most_rows(self, join: str) -> int:
        for port in (*self.model.inputs, *self.model.outputs):
            if not port.shape or port.shape[0] != join:
                got = "no rank" if port.shape is None else list(port.shape)
                raise InvalidArgumentError(
                    explain(f"{self.name}: {port.name!r}, to be joined", accepted=f"first dimension {join!r}", got=got)
                )
        if join not in self._ranges.spans:
            hint = f"declare it when the model is loaded: shapes={{{join!r}: (1, 8)}}"
            raise InvalidArgumentError(explain(f"{self.name}: dimension {join!r} to join has no range", hint=hint))
        return self._ranges.spans[join][1]

    def check(self, arrays: Arrays) -> None:
        """Raise `InvalidShapeError` for shapes that are not declared, or rows that differ between inputs."""
        shapes = {name: array.shape for name, array in arrays.items()}
        self._ranges.check(shapes)
        if self.most_rows > 1 and len({shape[0] for shape in shapes.values()}) > 1:
            raise InvalidShapeError(explain(f"{self.name}: first dimensions", accepted="one size", got=shapes))

    def kind(self, arrays: Arrays) -> Hashable:
        """What requests have in common that may be joined; None if these may not."""
        if self.most_rows == 1:
            return None
        return (self.name, *(array.shape[1:] for array in arrays.values()))


@dataclass(eq=False)
class _Job:
    """A request that waits or runs."""

    served: ServedModel
    arrays: Arrays
    kind: Hashable
    due_s: float
    result: asyncio.Future[Arrays]
    since_s: float = field(default_factory=time.monotonic)
    end_s: float = 0.0

    @property
    def nrows(self) -> int:
        return next(iter(self.arrays.values())).shape[0] if self.kind is not None else 1


@dataclass(eq=False)
class _Batch:
    """Jobs that run as one."""

    served: ServedModel
    jobs: list[_Job]
    start_s: float


class RunQueue:
    """Runs requests in the order of their arrival, several at once, each in a thread.

    Requests come with the moment by which they are to be answered. By the times of runs so far, one that would be late
    is refused when it comes, and dropped when a worker is free that others can use. A worker takes what runs next by
    itself: an event loop with many connections takes long to notice the end of a run.

    Parameters
    ----------
    executor : concurrent.futures.Executor
        Where models run.
    nworkers : int
        Runs at once.
    delay_s : float
        How long a request waits at most for others to be joined with while a worker is free. Unit: seconds.
    deadline_s : float
        Of a request at most. Unit: seconds.
    on_run : callable
        Called with a `ServedModel`, how many requests ran as one, and the seconds that it took.

    Notes
    -----
    Threads: of one event loop, but for what the executor runs.
    """

    def __init__(
        self,
        executor: Executor,
        nworkers: int,
        delay_s: float,
        deadline_s: float,
        on_run: Callable[[ServedModel, int, float], None],
    ) -> None:
        self._executor, self._nworkers, self._nfree, self._delay_s = executor, nworkers, nworkers, delay_s
        self._on_run = on_run
        self._lock = threading.Lock()  # of what workers change too: jobs that wait, free workers, times of runs
        self._waiting: deque[_Job] = deque()
        self._times = RunTimes(deadline_s)
        self._undelivered: set[_Batch] = set()
        self._changed = asyncio.Event()  # fewer wait or run
        self._timer: asyncio.TimerHandle | None = None

    @property
    def nwaiting(self) -> int:
        """Requests that wait for a worker."""
        return len(self._waiting)

    @property
    def nrunning(self) -> int:
        """Workers that run a model."""
        return self._nworkers - self._nfree

    @property
    def lag_s(self) -> float:
        """About how long what has come waits for the event loop. Unit: seconds."""
        with self._lock:
            return self._times.lag_s(time.monotonic())

    def expected_wait_s(self) -> float:
        """About how long a newcomer would wait for a worker. Unit: seconds."""
        with self._lock:
            return self._expected_wait_s(time.monotonic())

    def _expected_wait_s(self, now_s: float) -> float:
        if self._nfree:
            return 0.0
        waiting_s = sum(
            self._times.mean_s(job.served.name, now_s) * job.nrows / job.served.most_rows for job in self._waiting
        )
        return (self._times.left_s(now_s) + waiting_s) / self._nworkers

    def refuse_late(self, served: ServedModel, due_s: float) -> None:
        """Raise `FullError` if no worker is free and a newcomer would be answered too late."""
        now_s = time.monotonic()
        with self._lock:
            if self._nfree:
                return
            takes_s = self._expected_wait_s(now_s) + self._times.mean_s(served.name, now_s) + self._times.lag_s(now_s)
        if now_s + takes_s > due_s:
            raise FullError(f"an answer would take about {takes_s:.2g} s, {max(due_s - now_s, 0):.2g} s are left")

    async def run(self, served: ServedModel, arrays: Arrays, due_s: float) -> Arrays:
        """The results of a model; a request that is cancelled while it waits does not run.

        Raises `FullError` at once and `TimeoutError` later for what would be late, else as `Model.run`. Nothing ends a
        run that has begun.
        """
        served.check(arrays)
        self.refuse_late(served, due_s)
        job = _Job(served, arrays, served.kind(arrays), due_s, asyncio.get_running_loop().create_future())
        with self._lock:
            self._waiting.append(job)
        self._dispatch()
        try:
            found = await job.result
            with self._lock:
                self._times.resume(job.end_s, time.monotonic())
            return found
        finally:
            with self._lock:
                if job in self._waiting:  # nobody waits for it any more
                    self._waiting.remove(job)
            self._changed.set()

    async def drain(self) -> None:
        """Return when nothing waits or runs."""
        while self._waiting or self._undelivered:
            self._changed.clear()
            await self._changed.wait()

    def _dispatch(self) -> None:
        """Give free workers what is ready, the oldest first."""
        loop = asyncio.get_running_loop()
        while True:
            with self._lock:
                batch, late = self._next() if self._nfree else (None, [])
                self._nfree -= batch is not None
            for job in late:
                _settle(job, TimeoutError())
            if batch is None:
                self._wake(loop)
                return
            self._executor.submit(self._work, loop, batch)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look again when the oldest one has waited for others long enough."""
        if self._timer is not None:
            self._timer.cancel()
        with self._lock:
            since_s = self._waiting[0].since_s if self._nfree and self._waiting else None
        due = None if since_s is None else since_s + self._delay_s - time.monotonic()
        self._timer = None if due is None else loop.call_later(due, self._dispatch)

    def _next(self) -> tuple[_Batch | None, list[_Job]]:
        """What runs next, out of the queue, if anything is ready; and what would be late."""
        now_s = time.monotonic()
        late = self._take_late(now_s)
        batch = self._take(now_s)
        if batch is not None:
            self._undelivered.add(batch)
            self._times.begin(batch, batch.served.name, now_s)
        return batch, late

    def _take_late(self, now_s: float) -> list[_Job]:
        """What would be late, unless nothing else waits: then its run costs no other its time, and is measured."""
        late: list[_Job] = []
        for job in self._waiting:
            ends_s = now_s + self._times.mean_s(job.served.name, now_s) + self._times.lag_s(now_s)
            is_left = job.result.done() or now_s >= job.due_s
            if is_left or (ends_s > job.due_s and len(late) < len(self._waiting) - 1):
                late.append(job)
        for job in late:
            self._waiting.remove(job)
        return late

    def _take(self, now_s: float) -> _Batch | None:
        """The oldest jobs that run as one; none if all wait for others to join."""
        looked_at = set()
        for job in self._waiting:
            if job.kind in looked_at:
                continue
            jobs, is_full = self._alike(job)
            if is_full or now_s >= job.since_s + self._delay_s:
                for taken in jobs:
                    self._waiting.remove(taken)
                return _Batch(job.served, jobs, now_s)
            looked_at.add(job.kind)
        return None

    def _alike(self, first: _Job) -> tuple[list[_Job], bool]:
        """Jobs to join with the oldest one of a kind, and whether there is no room for another."""
        if first.kind is None:
            return [first], True
        jobs: list[_Job] = []
        nrows, most = 0, first.served.most_rows
        for job in self._waiting:
            if job.kind == first.kind:
                if jobs and nrows + job.nrows > most:
                    return jobs, True
                jobs.append(job)
                nrows += job.nrows
        return jobs, nrows >= most

    def _work(self, loop: asyncio.AbstractEventLoop, batch: _Batch | None) -> None:
        """In a worker thread: run this, and what is ready behind it."""
        while batch is not None:
            batch = self._follow(loop, batch, _run_batch(batch))

    def _follow(
        self, loop: asyncio.AbstractEventLoop, batch: _Batch, found: Sequence[Arrays | Exception]
    ) -> _Batch | None:
        """Hand over what was found; what this worker runs next."""
        now_s = time.monotonic()
        with self._lock:
            self._times.end(batch, now_s)
            following, late = self._next()
            self._nfree += following is None
        loop.call_soon_threadsafe(self._deliver, batch, found, late, now_s)
        return following

    def _deliver(self, batch: _Batch, found: Sequence[Arrays | Exception], late: list[_Job], end_s: float) -> None:
        """On the event loop: wake those who wait for it."""
        for job, value in zip(batch.jobs, found, strict=True):
            job.end_s = end_s
            _settle(job, value)
        for job in late:
            _settle(job, TimeoutError())
        self._on_run(batch.served, len(batch.jobs), end_s - batch.start_s)
        self._undelivered.discard(batch)
        self._changed.set()
        self._dispatch()


def _settle(job: _Job, value: Arrays | Exception) -> None:
    if job.result.done():  # cancelled
        return
    if isinstance(value, Exception):
        job.result.set_exception(value)
    else:
        job.result.set_result(value)


# ---- in a worker thread


def _run_batch(batch: _Batch) -> Sequence[Arrays | Exception]:
    try:
        return _run_joined(batch.served.model, [job.arrays for job in batch.jobs])
    except Exception as error:
        return [error] * len(batch.jobs)


def _run_joined(model: Model, requests: list[Arrays]) -> list[Arrays | Exception]:
    """Results or an error for each; where a joined run fails each runs alone, since one may be to blame."""
    if len(requests) > 1:
        try:
            return list(_split(model.run(_joined(requests)), requests))
        except MemoryTimeoutError:
            raise
        except GraphpoolError:
            pass
    return [_run_alone(model, request) for request in requests]


def _run_alone(model: Model, request: Arrays) -> Arrays | Exception:
    try:
        return model.run(request)
    except Exception as error:  # told to the one who asked
        return error


def _joined(requests: list[Arrays]) -> Arrays:
    return {name: np.concatenate([request[name] for request in requests]) for name in requests[0]}


def _split(results: Arrays, requests: list[Arrays]) -> Any:
    """The rows of each request: copies, so that no client keeps the rows of others in memory."""
    start = 0
    for request in requests:
        end = start + next(iter(request.values())).shape[0]
        yield {name: array[start:end].copy() for name, array in results.items()}
        start = end
