"""Which sibling convolutions one call computes: those for which `ios` asks, or for which it was measured to be faster.

The merge is a matter of lowering and the schedule one of steps, so the steps are lowered without any first: what they
cost decides, and the partition is lowered anew with the merges that gain.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ...runtime.costs import stage_key, stage_latencies
from ...runtime.scheduling import MIN_MEASURED_GAIN, chosen_policy
from ...schedule import Run
from .streams import StepGraph, schedule_steps, schedule_units, step_cost, step_signature

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ...graph.op import Op
    from ...runtime.scheduling import ScheduleOptions
    from .lowering import Lowering, Step
    from .streams import StepPlan

__all__ = ["Relowering", "place_steps", "sibling_steps"]

Merges = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Relowering:
    """A partition that can be lowered with other merges.

    Attributes
    ----------
    lower : callable
        Takes sets of convolutions, by the ids of their ops, and gives a `Lowering`.
    ops : sequence of Op
    nports : (int, int)
        Inputs and outputs.
    lanes : int
    """

    lower: Callable[[Merges], Lowering]
    ops: Sequence[Op]
    nports: tuple[int, int]
    lanes: int

    def latency(self, step: Step, lowering: Lowering) -> float:
        """Seconds of a step that all lanes share: as it was measured by itself, else as `step_cost` has it."""
        found = stage_latencies().get(stage_key([[step_signature(step)]], self.lanes))
        op = next(op for op in self.ops if op.id == step.op_id)
        return step_cost(step, op, lowering.shapes, self.lanes) if found is None else found


def place_steps(partition: Relowering, options: ScheduleOptions) -> tuple[Lowering, StepPlan]:
    """The steps of a partition, and how they are placed on streams."""
    plain, ports = partition.lower(()), (partition.ops, partition.nports, partition.lanes)
    if not plain.siblings:
        return plain, schedule_steps(plain, *ports, options)
    steps = StepGraph.of(plain, *ports)
    if chosen_policy(options, partition.lanes, steps.signature) == "ios":
        merges = _wanted_by_ios(partition, plain, steps, options)
    else:
        merges = tuple(ids for ids in plain.siblings if _is_measured_faster(partition, plain, ids))
    lowering = partition.lower(merges) if merges else plain
    return lowering, schedule_steps(lowering, *ports, options, steps.signature)


def _wanted_by_ios(partition: Relowering, plain: Lowering, steps: StepGraph, options: ScheduleOptions) -> Merges:
    """Siblings that are one call in the best sequence of stages."""
    joint = partition.lower(plain.siblings)
    latency = {
        frozenset(ids): sum(partition.latency(step, joint) for step in sibling_steps(joint, ids))
        for ids in plain.siblings
    }
    op_of = {n: plain.steps[main].op_id for n, (main, unit) in enumerate(steps.units.items()) if len(unit) > 1}

    def merge(nodes: tuple[int, ...]) -> float | None:
        return latency.get(frozenset(op_of.get(node, -1) for node in nodes))

    found = schedule_units(steps, replace(options, policy="ios"), partition.lanes, merge=merge)
    calls = [i.nodes for i in found.instructions if isinstance(i, Run) and len(i.nodes) > 1]
    merged = {frozenset(op_of[node] for node in nodes) for nodes in calls}
    return tuple(ids for ids in plain.siblings if frozenset(ids) in merged)


def _is_measured_faster(partition: Relowering, plain: Lowering, ids: tuple[int, ...]) -> bool:
    """Whether one call was measured to take less, with all copies that it saves or asks for."""
    if not _is_measured(partition, sibling_steps(plain, ids)):
        return False
    joint = partition.lower((ids,))
    if not _is_measured(partition, sibling_steps(joint, ids)):
        return False
    saved, added = _difference(plain.steps, joint.steps), _difference(joint.steps, plain.steps)
    before = sum(partition.latency(step, plain) for step in saved)
    return sum(partition.latency(step, joint) for step in added) <= (1 - MIN_MEASURED_GAIN) * before


def _is_measured(partition: Relowering, steps: Sequence[Step]) -> bool:
    """Whether each step was measured by itself."""
    keys = [stage_key([[step_signature(step)]], partition.lanes) for step in steps]
    return all(stage_latencies().get(key) is not None for key in keys)


def sibling_steps(lowering: Lowering, ids: Collection[int]) -> list[Step]:
    """The steps that compute these convolutions on the forms of their weights."""
    missing = {step.guard[0] for step in lowering.steps if step.guard is not None and not step.guard[1]}
    wanted = [step for step in lowering.steps if step.guard is not None and step.guard[1] and step.guard[0] in missing]
    last = {step.guard: step for step in wanted if step.op_id in ids}
    return list(last.values())


def _difference(steps: Sequence[Step], others: Sequence[Step]) -> list[Step]:
    """Steps that have no equal among the others."""
    left = Counter(map(step_signature, others))
    found = []
    for step in steps:
        signature = step_signature(step)
        if left[signature]:
            left[signature] -= 1
        else:
            found.append(step)
    return found
