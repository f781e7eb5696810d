"""How long runs of models take, and what those that run now still need, from the runs before."""

from __future__ import annotations

from graphpool._dataclasses import dataclass

__all__ = ["RunTimes"]

_SMOOTHING = 0.1
"""What the last value counts in a mean."""


@dataclass(eq=False)
class _Model:
    """Of the runs of one model. Unit: seconds."""

    mean_s: float
    ended_s: float


class RunTimes:
    """Expected times of runs.

    Parameters
    ----------
    most_age_s : float
        A model that did not run for so long counts as one that never ran, so that a mean which is wrong, as after a run
        that compiled, keeps no request away for longer. Unit: seconds.

    Notes
    -----
    Threads: of one event loop. Moments are the caller's, on one clock; all are in seconds.
    """

    def __init__(self, most_age_s: float) -> None:
        self._most_age_s = most_age_s
        self._models: dict[str, _Model] = {}
        self._running: dict[object, tuple[str, float]] = {}

    def begin(self, run: object, name: str, now_s: float) -> None:
        """A run of a model begins."""
        self._running[run] = name, now_s

    def end(self, run: object, now_s: float) -> None:
        """It is over."""
        name, since_s = self._running.pop(run)
        known = self._models.setdefault(name, _Model(now_s - since_s, now_s))
        known.mean_s = smooth(known.mean_s, now_s - since_s)
        known.ended_s = now_s

    def mean_s(self, name: str, now_s: float) -> float:
        """Of a run of a model; 0 for what is not known."""
        known = self._models.get(name)
        return 0.0 if known is None or now_s - known.ended_s > self._most_age_s else known.mean_s

    def left_s(self, now_s: float) -> float:
        """Of all that runs now, together; a run that is late by some time is expected to take as long again."""
        return sum(abs(self.mean_s(name, now_s) - (now_s - since_s)) for name, since_s in self._running.values())


def smooth(mean: float, value: float) -> float:
    """A mean after one more value; the last ones count most."""
    return mean + (value - mean) * _SMOOTHING
