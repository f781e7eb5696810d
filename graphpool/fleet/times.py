"""How long runs take, by how many rows they have: measured, or given."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidArgumentError, brief, check_count, explain
from ..profile import random_inputs
from ..runtime import Model
from ..runtime.shape_ranges import ShapeRanges
from .checks import check_kind, check_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["ServiceTimes", "measure_times"]

_SECONDS_OF_TURN, _SECONDS_OF_SPELL, _RUNS_OF_SPELL = 0.005, 0.025, 4
"""A spell is as short as lets it hold some runs: what is slow for longer than that makes requests pile up."""


class ServiceTimes:
    """Seconds that a run takes, by its rows.

    Parameters
    ----------
    seconds : mapping of int to float or sequence of float
        By how many rows a run has, one time or several that were measured while all workers ran. Unit: seconds.
    alone_share : float, default=1.0
        What a run takes that no other one runs beside, as a share of that; between, it grows with each that runs.
    spells : sequence of (float, float), optional
        Seconds, and how many times as long as `seconds` runs took meanwhile, in the order in which that was measured.
        In slow spells of a machine requests pile up, which times that are drawn one by one do not tell.

    Attributes
    ----------
    rows : tuple of int
        The sizes that are known, ascending.
    alone_share : float
        As given.
    spells : tuple of (float, float)
        As given.

    Raises
    ------
    InvalidArgumentError
        No size, one below 1, a time or a factor that is not above 0 and finite, or a share that is none.

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

    def __init__(
        self,
        seconds: Mapping[int, float | Sequence[float]],
        alone_share: float = 1.0,
        spells: Sequence[tuple[float, float]] = (),
    ) -> None:
        if not hasattr(seconds, "items") or not seconds:
            accepted = "seconds by rows, such as {1: 0.01, 8: 0.03}"
            raise InvalidArgumentError(explain("service times", accepted=accepted, got=brief(seconds)))
        self._seconds = {rows: _sorted(rows, found) for rows, found in sorted(seconds.items())}
        self.rows = tuple(self._seconds)
        if not isinstance(alone_share, (int, float)) or not 0 < alone_share <= 1:
            accepted = "above 0, up to 1"
            raise InvalidArgumentError(explain("alone_share", accepted=accepted, got=brief(alone_share)))
        self.alone_share = float(alone_share)
        self.spells = _as_spells(spells)
        speeds = [(lasting_s, lasting_s / slowness) for lasting_s, slowness in self.spells] or [(1.0, 1.0)]
        lasting_s, done_s = map(sum, zip(*speeds, strict=True))
        self._mean_slowness = lasting_s / done_s

    @classmethod
    def of_runs(
        cls,
        starts_s: Sequence[float] | np.ndarray[Any, Any],
        rows: Sequence[int] | np.ndarray[Any, Any],
        seconds: Sequence[float] | np.ndarray[Any, Any],
        alone_share: float = 1.0,
    ) -> ServiceTimes:
        """Times of runs that were noted, with the spells in which they were slow.

        Parameters
        ----------
        starts_s : sequence of float
            When each began, on any clock. Unit: seconds.
        rows : sequence of int
            Of each.
        seconds : sequence of float
            How long each took, or would have taken while all workers ran. Unit: seconds.
        alone_share : float, default=1.0
            As of the class.

        Returns
        -------
        times : ServiceTimes
            Whose spells begin with the first run, and last as long as four runs each, 25 ms at least, or until the next
            run.

        Raises
        ------
        InvalidArgumentError
            As of the class, or not one of each for each run.

        Notes
        -----
        A run's time is taken for the product of what its rows take and of what its spell does. Sizes are told from one
        another by runs of one spell alone (the within estimator; Wooldridge: Econometric Analysis of Cross Section and
        Panel Data, chapter 10), since large runs may only come about in slow spells, where requests pile up.
        """
        try:
            starts, counts, taken = table = np.array([[*starts_s], [*rows], [*seconds]], np.float64)
            is_right = table.size and np.isfinite(table).all() and (taken > 0).all() and (counts == counts // 1).all()
        except (TypeError, ValueError):
            is_right = False
        if not is_right:
            accepted = "one start, a whole number of rows and seconds above 0 for each"
            raise InvalidArgumentError(explain("runs", accepted=accepted, got=brief((starts_s, rows, seconds))))
        spell_s = max(_SECONDS_OF_SPELL, _RUNS_OF_SPELL * float(np.median(taken)))
        known, places = np.unique((starts + taken / 2 - starts.min()) // spell_s, return_inverse=True)
        sizes, kinds = np.unique(counts, return_inverse=True)
        slowness = _spells_of(np.log(taken), kinds, places)
        alike = taken / np.exp(slowness[places])
        times = {int(size): alike[kinds == kind].tolist() for kind, size in enumerate(sizes)}
        lasting_s = np.diff([0.0, *known[1:], known[-1] + 1]) * spell_s
        return cls(times, alone_share, [*zip(lasting_s.tolist(), np.exp(slowness).tolist(), strict=True)])

    def mean_s(self, rows: int) -> float:
        """Mean time of a run, slow spells included.

        Parameters
        ----------
        rows : int

        Returns
        -------
        seconds : float
            Unit: seconds.

        Raises
        ------
        InvalidArgumentError
            Rows below 1.
        """
        check_count("rows", rows)
        lower, upper, share, scale = self._around(rows)
        mean = (1 - share) * self._seconds[lower].mean() + share * self._seconds[upper].mean()
        return float(mean * scale * self._mean_slowness)

    def draw_s(self, rows: int, quantile: float) -> float:
        """Time of a run that a share of runs stays below, outside slow spells.

        Parameters
        ----------
        rows : int
        quantile : float
            From 0 to below 1; for a random one the time is drawn at random.

        Returns
        -------
        seconds : float
            Unit: seconds.

        Raises
        ------
        InvalidArgumentError
            Rows below 1, or a share out of range.
        """
        check_count("rows", rows)
        if not 0 <= quantile < 1:
            raise InvalidArgumentError(explain("quantile", accepted="from 0 to below 1", got=brief(quantile)))
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


def _spells_of(
    values: np.ndarray[Any, Any], kinds: np.ndarray[Any, Any], places: np.ndarray[Any, Any]
) -> np.ndarray[Any, Any]:
    """Of values that are sums of one for their kind and one for their place, those of the places; their median is 0."""
    left = values - _medians(values, kinds)[kinds]  # which is taken where kinds have no place in common
    counts = np.bincount(places)
    columns = [left, *(np.asarray(kinds == kind, np.float64) for kind in range(kinds.max() + 1))]
    target, *own = (column - (np.bincount(places, column) / counts)[places] for column in columns)
    more = np.linalg.lstsq(np.stack(own, axis=1), target, rcond=1e-9)[0]
    found = _medians(left - more[kinds], places)
    return found - np.median(found)  # type: ignore[no-any-return]


def _medians(values: np.ndarray[Any, Any], groups: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Of each group, from 0 to the last one, the median."""
    order = np.argsort(groups, kind="stable")
    parts = np.split(values[order], np.cumsum(np.bincount(groups))[:-1])
    return np.array([np.median(part) for part in parts])


def _as_spells(spells: Any) -> tuple[tuple[float, float], ...]:
    try:
        found = np.asarray([*spells], np.float64).reshape(-1, 2)
    except (TypeError, ValueError):
        found = np.full((1, 2), np.nan)
    if not (np.isfinite(found) & (found > 0)).all():
        accepted = "pairs of seconds and a factor, all above 0 and finite"
        raise InvalidArgumentError(explain("spells", accepted=accepted, got=brief(spells)))
    return tuple((float(lasting_s), float(slowness)) for lasting_s, slowness in found)


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
        A shape is not known, `join` is not such a dimension, or a count or a time is none.

    Notes
    -----
    Sizes take turns, so that a slow spell of the machine meets all and is told from
    slow sizes. Threads: makes `workers` of them.
    """
    check_kind("model", model, Model)
    check_count("most_rows", most_rows)
    check_count("workers", workers)
    check_seconds("seconds", seconds)
    if join is not None:
        firsts = {port.name: port.shape[0] if port.shape else None for port in model.inputs}
        if any(first != join for first in firsts.values()):
            accepted = f"the first dimension of all inputs: {firsts}"
            raise InvalidArgumentError(explain("join", accepted=accepted, got=brief(join)))
    largest = ShapeRanges(model.declared_shapes or {}, model.inputs).largest_shapes()
    sizes = [1] if join is None else sorted({min(1 << k, most_rows) for k in range(most_rows.bit_length() + 1)})
    inputs = {}
    for rows in sizes:
        shapes = {name: (rows, *shape[1:]) for name, shape in largest.items()} if join is not None else largest
        inputs[rows] = random_inputs(model, shapes)
        model.run(inputs[rows])
    runs: list[tuple[float, int, float]] = []
    alone: list[float] = []
    barrier = threading.Barrier(workers)

    def turn(rows: int, note: Callable[[float, float], None]) -> None:
        end = time.perf_counter() + _SECONDS_OF_TURN
        start = time.perf_counter()
        while start < end:
            model.run(inputs[rows])
            now = time.perf_counter()
            note(start, now - start)
            start = now

    def work(number: int) -> None:
        for _ in range(max(round(seconds / _SECONDS_OF_TURN), 1)):
            for rows in sizes:
                barrier.wait()
                turn(rows, lambda start_s, taken_s, rows=rows: runs.append((start_s, rows, taken_s)))  # type: ignore[misc]
            barrier.wait()
            if number == 0 and workers > 1:
                turn(sizes[-1], lambda _, taken_s: alone.append(taken_s))

    with ThreadPoolExecutor(workers) as threads:
        for job in [threads.submit(work, number) for number in range(workers)]:
            job.result()
    largest_s = [taken_s for _, rows, taken_s in runs if rows == sizes[-1]]
    share = float(np.median(alone) / np.median(largest_s)) if alone else 1.0
    starts_s, counts, taken_s = zip(*runs, strict=True)
    return ServiceTimes.of_runs(starts_s, counts, taken_s, min(share, 1.0))
