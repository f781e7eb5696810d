"""What the host functions of one run may take: steps, and wall time."""

from __future__ import annotations

import threading
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from graphpool.limits import Limits

__all__ = ["HostBudget"]


class HostBudget:
    """Steps and wall time of host functions, for each thread that runs a model anew with each run.

    Threads: safe. One call of NumPy or of ONNX's evaluator is not interrupted: what it may do is bounded before it
    starts.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._local = threading.local()

    def start(self) -> None:
        """Begin a run."""
        self._local.steps = 0
        self._local.end_s = monotonic() + self.limits.host_deadline_s

    def spend(self, steps: int, node: str) -> None:
        """Count steps before they are done, and look at the clock.

        Raises
        ------
        LimitError
            There are too many, or the time is over.
        """
        local = self._local
        if not hasattr(local, "steps"):
            self.start()
        local.steps += steps
        if local.steps > self.limits.host_steps:
            raise self.limits.error("host_steps", local.steps, f"node {node!r}: work of the host", node)
        late_s = monotonic() - local.end_s
        if late_s > 0:
            taken_s = self.limits.host_deadline_s + late_s
            raise self.limits.error("host_deadline_s", round(taken_s, 3), f"node {node!r}: time of the host", node)

    def __reduce__(self) -> tuple[type[HostBudget], tuple[Limits]]:
        return HostBudget, (self.limits,)
