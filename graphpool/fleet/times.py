"""How long runs take, by how many rows they have: measured, or given."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidArgumentError, brief, explain
from ..profile import random_inputs
from ..runtime.shape_ranges import ShapeRanges

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ..runtime import Model

__all__ = ["ServiceTimes", "measure_times"]

_SECONDS_OF_TURN = 0.05


class ServiceTimes:
    """Seconds that a run takes, by its rows.

    Parameters
    ----------
    seconds : mapping of int to float or sequence of float
        By how many rows a run has, one time or several that were measured while all workers ran. Unit: seconds.
    alone_share : float, default=1.0
        What a run takes that no other one runs beside, as a share of that; between, it grows with each that runs.

    Attributes
    ----------
    rows : tuple of int
        The sizes that are known, ascending.
    alone_share : float
        As given.

    Raises
    ------
    InvalidArgumentError
        No size, one below 1, a time that is not above 0 and finite, or a share that is none.

    Notes
    -----
    Between two sizes times are interpolated, quantile by quantile; below the smallest they are its own, above the
    largest they grow with the rows. Threads: immutable, safe.

    Examples
    --------
    >>> times = ServiceTimes({1: 0.010, 8: [0.030, 0.034]})
    >>> round(times.mean_s(8), 3)
    0.032
    """

    def __init__(self, seconds: Mapping[int, float | Sequence[float]], alone_share: float = 1.0) -> None:
        if not hasattr(seconds, "items") or not seconds:
            accepted = "seconds by rows, such as {1: 0.01, 8: 0.03}"
            raise InvalidArgumentError(explain("service times", accepted=accepted, got=brief(seconds)))
        self._seconds = {rows: _sorted(rows, found) for rows, found in sorted(seconds.items())}
        self.rows = tuple(self._seconds)
        if not isinstance(alone_share, (int, float)) or not 0 < alone_share <= 1:
            accepted = "above 0, up to 1"
            raise InvalidArgumentError(explain("alone_share", accepted=accepted, got=brief(alone_share)))
        self.alone_share = float(alone_share)

    def mean_s(self, rows: int) -> float:
        """Mean time of a run.

        Parameters
        ----------
        rows : int

        Returns
        -------
        seconds : float
            Unit: seconds.
        """
        lower, upper, share, scale = self._around(rows)
        mean = (1 - share) * self._seconds[lower].mean() + share * self._seconds[upper].mean()
        return float(mean * scale)

    def draw_s(self, rows: int, quantile: float) -> float:
        """Time of a run that a share of runs stays below.

        Parameters
        ----------
        rows : int
        quantile : float
            From 0 to below 1; for a random one the time is drawn at random.

        Returns
        -------
        seconds : float
            Unit: seconds.
        """
        lower, upper, share, scale = self._around(rows)
        below, above = self._seconds[lower], self._seconds[upper]
        first, second = below[int(quantile * len(below))], above[int(quantile * len(above))]
        return float(((1 - share) * first + share * second) * scale)

    def _around(self, rows: int) -> tuple[int, int, float, float]:
        """The known sizes around this one, its place between them, and by what their times are multiplied."""
        place = bisect_left(self.rows, rows)
        if place == len(self.rows):
            return self.rows[-1], self.rows[-1], 0.0, rows / self.rows[-1]
        lower, upper = self.rows[max(place - 1, 0)], self.rows[place]
        return lower, upper, (rows - lower) / (upper - lower) if lower < rows else 1.0, 1.0


def _sorted(rows: int, seconds: float | Sequence[float]) -> np.ndarray[Any, Any]:
    is_size = isinstance(rows, int) and not isinstance(rows, bool) and rows >= 1
    try:
        found = np.sort(np.atleast_1d(np.asarray(seconds, np.float64)))
    except (TypeError, ValueError):
        found = np.empty(0)
    if not is_size or found.ndim != 1 or not len(found) or not (np.isfinite(found) & (found > 0)).all():
        accepted = "rows of at least 1, and seconds above 0"
        raise InvalidArgumentError(explain("service times", accepted=accepted, got=brief({rows: seconds})))
    return found


def measure_times(
    model: Model, join: str | None = None, *, most_rows: int = 1, workers: int = 1, seconds: float = 1.0
) -> ServiceTimes:
    """Time runs of a model on this machine, by their rows.

    Parameters
    ----------
    model : Model
        Static, or with declared shapes; the largest are run.
    join : str, optional
        The first dimension of all inputs, by which requests are joined. None: a run has one request, its one row.
    most_rows : int, default=1
        Up to which rows are timed, at powers of two and there.
    workers : int, default=1
        Runs at once, so that times tell how they slow one another; with several the largest size is timed alone too.
    seconds : float, default=1.0
        To spend on each size. Unit: seconds.

    Returns
    -------
    times : ServiceTimes

    Raises
    ------
    InvalidArgumentError
        A shape is not known.

    Notes
    -----
    Sizes take turns, so that a slow spell of the machine meets all. Threads: makes `workers` of them.
    """
    largest = ShapeRanges(model.declared_shapes or {}, model.inputs).largest_shapes()
    sizes = [1] if join is None else sorted({min(1 << k, most_rows) for k in range(most_rows.bit_length() + 1)})
    inputs = {}
    for rows in sizes:
        shapes = {name: (rows, *shape[1:]) for name, shape in largest.items()} if join is not None else largest
        inputs[rows] = random_inputs(model, shapes)
        model.run(inputs[rows])
    found: dict[int, list[float]] = {rows: [] for rows in sizes}
    alone: list[float] = []
    barrier = threading.Barrier(workers)

    def turn(rows: int, times: list[float]) -> None:
        end = time.perf_counter() + _SECONDS_OF_TURN
        start = time.perf_counter()
        while start < end:
            model.run(inputs[rows])
            now = time.perf_counter()
            times.append(now - start)
            start = now

    def work(number: int) -> None:
        for _ in range(max(round(seconds / _SECONDS_OF_TURN), 1)):
            for rows in sizes:
                barrier.wait()
                turn(rows, found[rows])
            barrier.wait()
            if number == 0 and workers > 1:
                turn(sizes[-1], alone)

    with ThreadPoolExecutor(workers) as threads:
        for job in [threads.submit(work, number) for number in range(workers)]:
            job.result()
    share = float(np.median(alone) / np.median(found[sizes[-1]])) if alone else 1.0
    return ServiceTimes(found, min(share, 1.0))
