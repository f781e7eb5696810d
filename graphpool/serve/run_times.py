"""How long runs of models take, what those that run now still need, and how late all is noticed, from those before."""

from __future__ import annotations

import math

from graphpool._dataclasses import dataclass

__all__ = ["RunTimes"]

_SMOOTHING = 0.1
"""What the last value counts in a mean."""


@dataclass(eq=False)
class _Mean:
    """Of what was seen, at last when; what is too old does not count. Unit: seconds."""

    most_age_s: float
    rises_at_once: bool = False
    mean_s: float = 0.0
    seen_s: float = -math.inf

    def add(self, value_s: float, now_s: float) -> None:
        """One more; the last ones count most."""
        is_whole = self._is_old(now_s) or (self.rises_at_once and value_s > self.mean_s)
        share = 1.0 if is_whole else _SMOOTHING
        self.mean_s += (value_s - self.mean_s) * share
        self.seen_s = now_s

    def at(self, now_s: float) -> float:
        """The mean; 0 for what is not known."""
        return 0.0 if self._is_old(now_s) else self.mean_s

    def _is_old(self, now_s: float) -> bool:
        return now_s - self.seen_s > self.most_age_s


class RunTimes:
    """Expected times of runs, and of the event loop beside them.

    Parameters
    ----------
    most_age_s : float
        What was not seen for so long is not known any more, so that a mean which is wrong, as after a run that compiled
        or a process that was stopped, keeps no request away for longer. Unit: seconds.

    Notes
    -----
    Threads: of one event loop. Moments are the caller's, on one clock; all are in seconds.
    """

    def __init__(self, most_age_s: float) -> None:
        self._most_age_s = most_age_s
        self._models: dict[str, _Mean] = {}
        self._running: dict[object, tuple[str, float]] = {}
        self._most_lag_s = most_age_s / 2
        self._lag = _Mean(most_age_s, rises_at_once=True)

    def begin(self, run: object, name: str, now_s: float) -> None:
        """A run of a model begins."""
        self._running[run] = name, now_s

    def end(self, run: object, now_s: float) -> None:
        """It is over."""
        name, since_s = self._running.pop(run)
        self._models.setdefault(name, _Mean(self._most_age_s)).add(now_s - since_s, now_s)

    def mean_s(self, name: str, now_s: float) -> float:
        """Of a run of a model; 0 for what is not known."""
        known = self._models.get(name)
        return 0.0 if known is None else known.at(now_s)

    def resume(self, end_s: float, now_s: float) -> None:
        """Who waited for a run that ended then goes on."""
        self._lag.add(min(now_s - end_s, self._most_lag_s), now_s)

    def lag_s(self, now_s: float) -> float:
        """From the end of a run until who waits for it goes on.

        That is half a pass of the event loop until it is seen, and one more. What comes from clients waits as long,
        before anything knows of it: so it is the longest of late, not the mean, which half of them exceed; and half of
        `most_age_s` at most, beyond which no answer would ever be in time.
        """
        return self._lag.at(now_s)

    def left_s(self, now_s: float) -> float:
        """Of all that runs now, together; a run that is late by some time is expected to take as long again."""
        return sum(abs(self.mean_s(name, now_s) - (now_s - since_s)) for name, since_s in self._running.values())
