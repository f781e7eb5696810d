"""Stages measured as wholes, for `ios` and for convolutions that one call could compute.

Nobody measures every stage that there could be. What the steps take by themselves says which sequence of stages looks
best; its stages are measured, which makes others look better, until the best one holds only stages that were measured.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..backends.cpu.backend import relowering
from ..backends.cpu.place.merging import fused_steps, place_steps
from ..backends.cpu.place.stages import StageTimer
from ..backends.cpu.place.streams import step_signature
from ..runtime.costs import stage_key, stage_latencies

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..backends.cpu.lower.lowering import Lowering
    from ..backends.cpu.place.merging import Relowering
    from ..runtime import CompiledPartition
    from ..runtime.scheduling import ScheduleOptions

Stage = tuple[tuple[int, ...], ...]


def measure_stages(
    compiled: CompiledPartition, options: ScheduleOptions, threads: int, repeats: int, deadline_s: float
) -> int:
    """Measure horizontally fused convolutions, and the stages that `ios` wants, and keep it in `stage_latencies`.

    Stages are of interest where ``ios`` or ``auto`` may use them; the fastest run of each counts, and nothing is begun
    behind the deadline. Returns how many were measured. Source: lazy search for shortest paths (Dellin and Srinivasa,
    2016): edges are evaluated where the best path that is known runs through them.
    """
    partition = relowering(compiled.partition, compiled.inputs, compiled.outputs, threads)
    with StageTimer(threads) as timer:
        search = _Search(partition, timer, repeats, deadline_s)
        search.measure_horizontal_fusions()
        if options.policy in ("auto", "ios") and options.may_be_parallel(threads):
            search.follow(replace(options, policy="ios"))
    return search.count


@dataclass
class _Search:
    """Measures stages of one partition until a deadline."""

    partition: Relowering
    timer: StageTimer
    repeats: int
    deadline_s: float
    count: int = 0

    def measure_horizontal_fusions(self) -> None:
        """Each convolution that could share a call by itself, and the calls for all of them."""
        plain = self.partition.lower(())
        for ids in plain.horizontal_fusions:
            for lowering in (plain, self.partition.lower((ids,))):
                for step in fused_steps(lowering, ids):
                    self.measure(lowering, ((lowering.steps.index(step),),))

    def follow(self, options: ScheduleOptions) -> None:
        """The stages of the best sequence, again and again, until all of them are known."""
        is_new = True
        while is_new and time.monotonic() < self.deadline_s:
            lowering, placed = place_steps(self.partition, options)
            assert placed.schedule is not None  # somebody asked
            stages: Sequence[Stage] = placed.schedule.details.get("stages", ())
            is_new = sum(self.measure(lowering, stage) for stage in stages) > 0

    def measure(self, lowering: Lowering, stage: Stage) -> bool:
        """Whether the stage was not known and is now."""
        due = [tuple(k for k in row if (guard := lowering.steps[k].guard) is None or guard[1]) for row in stage]
        rows = [row for row in due if row]
        key = stage_key([[step_signature(lowering.steps[k]) for k in row] for row in rows], self.timer.threads)
        if not rows or stage_latencies().get(key) is not None or time.monotonic() >= self.deadline_s:
            return False
        nports = sum(self.partition.nports)
        stage_latencies().put(key, self.timer.seconds(lowering, nports, rows, self.repeats))
        self.count += 1
        return True
