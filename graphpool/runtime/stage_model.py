"""What a stage of `ios` takes: as it was measured, else as its steps would with the threads that there are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass, field

from .costs import stage_key, stage_latencies
from .machine import MEMORY_BANDWIDTH

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["StageModel"]


@dataclass(frozen=True)
class StageModel:
    """Latencies of stages, which are streams of nodes that run side by side.

    `costs` of the nodes are seconds on one thread, `speedups` how many times faster each is on all, `traffic` bytes to
    and from main memory, which all threads share. Without `signatures` nothing is looked up. Threads: safe. Cost of a
    call: a look-up, and a few operations a node where it finds nothing. Source: measured stages as in Ding et al.,
    "IOS" (MLSys 2021); helping threads as malleable tasks (Turek, Wolf, Yu, 1992).
    """

    costs: Sequence[float]
    speedups: Sequence[float]
    signatures: Sequence[str]
    threads: int
    traffic: Sequence[float] = ()
    _is_looked_up: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_is_looked_up", bool(self.signatures) and len(stage_latencies()) > 0)

    def __call__(self, streams: Sequence[Sequence[int]]) -> float:
        """Seconds of a stage."""
        measured = stage_latencies().get(self.key(streams)) if self._is_looked_up else None
        return self.estimate(streams) if measured is None else measured

    def key(self, streams: Sequence[Sequence[int]]) -> str:
        """Under which a measurement of the stage is known: nodes that cost nothing leave no trace in it."""
        named = [[self.signatures[v] for v in stream if self.costs[v]] for stream in streams]
        return stage_key([stream for stream in named if stream], self.threads)

    def estimate(self, streams: Sequence[Sequence[int]]) -> float:
        """Seconds of a stage by the costs of its nodes: threads whose stream has ended, or spare ones, help the rest.

        Main memory cannot be read faster, whatever runs at once.
        """
        work = sorted((sum(self.costs[v] for v in stream), stream) for stream in streams)
        time = done = 0.0
        for place, (alone, stream) in enumerate(work):
            running = len(work) - place
            time += (alone - done) / self._rate(stream, alone, running)
            done = alone
        if not self.traffic:
            return time
        return max(time, sum(self.traffic[v] for stream in streams for v in stream) / MEMORY_BANDWIDTH)

    def _rate(self, stream: Sequence[int], alone: float, running: int) -> float:
        """How many times faster than on one thread a stream goes while so many streams run."""
        if not alone or running >= self.threads:
            return 1.0
        together = sum(self.costs[v] / max(self.speedups[v], 1.0) for v in stream)
        return 1.0 + (alone / together - 1.0) * (self.threads / running - 1.0) / (self.threads - 1)
