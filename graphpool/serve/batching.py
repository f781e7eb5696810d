"""The queue before the models: runs in worker threads, requests of one kind joined where a model allows it."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass, field

from ..errors import GraphpoolError, InvalidArgumentError, InvalidShapeError, MemoryTimeoutError, explain
from ..runtime.shape_ranges import ShapeRanges

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from concurrent.futures import Executor

    from ..runtime import Model

    Arrays = dict[str, Any]

__all__ = ["RunQueue", "ServedModel"]

_SMOOTHING = 0.1
"""What the last run counts in the mean time of a run."""


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
    result: asyncio.Future[Arrays]
    since_s: float = field(default_factory=time.monotonic)

    @property
    def nrows(self) -> int:
        return next(iter(self.arrays.values())).shape[0] if self.kind is not None else 1


class RunQueue:
    """Runs requests in the order of their arrival, several at once, each in a thread.

    Parameters
    ----------
    executor : concurrent.futures.Executor
        Where models run.
    nworkers : int
        Runs at once.
    delay_s : float
        How long a request waits at most for others to be joined with while a worker is free. Unit: seconds.
    on_run : callable
        Called with a `ServedModel`, how many requests ran as one, and the seconds that it took.

    Notes
    -----
    Threads: of one event loop, but for what the executor runs.
    """

    def __init__(
        self, executor: Executor, nworkers: int, delay_s: float, on_run: Callable[[ServedModel, int, float], None]
    ) -> None:
        self._executor, self._nworkers, self._nfree, self._delay_s = executor, nworkers, nworkers, delay_s
        self._on_run = on_run
        self._waiting: deque[_Job] = deque()
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._mean_s = 0.0

    @property
    def nwaiting(self) -> int:
        """Requests that wait for a worker."""
        return len(self._waiting)

    @property
    def nrunning(self) -> int:
        """Workers that run a model."""
        return self._nworkers - self._nfree

    @property
    def expected_wait_s(self) -> float:
        """About how long a newcomer would wait. Unit: seconds."""
        return self._mean_s * len(self._waiting) / self._nworkers

    async def run(self, served: ServedModel, arrays: Arrays) -> Arrays:
        """The results of a model; a request that is cancelled while it waits does not run. Raises as `Model.run`."""
        served.check(arrays)
        job = _Job(served, arrays, served.kind(arrays), asyncio.get_running_loop().create_future())
        self._waiting.append(job)
        self._dispatch()
        try:
            return await job.result
        finally:
            if job in self._waiting:  # nobody waits for it any more
                self._waiting.remove(job)

    async def drain(self) -> None:
        """Return when nothing waits or runs."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    def _dispatch(self) -> None:
        """Give free workers what is ready, the oldest first."""
        while self._nfree and (jobs := self._take()):
            self._nfree -= 1
            task = asyncio.get_running_loop().create_task(self._run(jobs))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _take(self) -> list[_Job]:
        """The oldest jobs that run as one, out of the queue; none if all wait for others to join."""
        wake_s, now_s, looked_at = float("inf"), time.monotonic(), set()
        for job in self._waiting:
            if job.kind in looked_at:
                continue
            jobs, is_full = self._alike(job)
            if is_full or now_s >= job.since_s + self._delay_s:
                for taken in jobs:
                    self._waiting.remove(taken)
                return jobs
            looked_at.add(job.kind)
            wake_s = min(wake_s, job.since_s + self._delay_s)
        self._wake_at(wake_s, now_s)
        return []

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

    def _wake_at(self, wake_s: float, now_s: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        is_due = wake_s < float("inf")
        self._timer = asyncio.get_running_loop().call_later(wake_s - now_s, self._dispatch) if is_due else None

    async def _run(self, jobs: list[_Job]) -> None:
        start_s = time.monotonic()
        served, arrays = jobs[0].served, [job.arrays for job in jobs]
        call = asyncio.get_running_loop().run_in_executor(self._executor, _run_joined, served.model, arrays)
        try:
            found = await call
        except Exception as error:
            found = [error] * len(jobs)
        finally:
            self._nfree += 1
            seconds = time.monotonic() - start_s
            self._mean_s += (seconds / len(jobs) - self._mean_s) * (_SMOOTHING if self._mean_s else 1.0)
            self._on_run(served, len(jobs), seconds)
            self._dispatch()
        for job, value in zip(jobs, found, strict=True):
            if job.result.done():  # cancelled
                continue
            if isinstance(value, Exception):
                job.result.set_exception(value)
            else:
                job.result.set_result(value)


# ---- in a worker thread


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
