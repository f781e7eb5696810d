"""Which convolutions of one image one call computes: those for which `ios` asks, or that were measured to be faster.

The merge is a matter of lowering and the schedule one of steps, so the steps are lowered without any first: what they
cost decides, and the partition is lowered anew with the merges that gain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass, replace
from graphpool.fork import cached_property

from ....runtime.costs import has_costs, stage_latencies
from ....runtime.scheduling import MIN_MEASURED_GAIN, SEQUENTIAL, chosen_policy
from ....schedule import Run
from .streams import StepGraph, measured_latency, schedule_steps, schedule_units, step_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ....graph.op import Op
    from ....runtime.scheduling import ScheduleOptions
    from ..lower.lowering import Lowering
    from ..lower.steps import Step
    from .streams import StepPlan

__all__ = ["Relowering", "fused_steps", "place_steps"]

Merges = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Relowering:
    """A partition that can be lowered with other merges.

    `lower` takes sets of convolutions, by the ids of their ops; `nports` are the inputs and outputs.
    """

    lower: Callable[[Merges], Lowering]
    ops: Sequence[Op]
    nports: tuple[int, int]
    threads: int

    def hinted(self, merges: Merges) -> Lowering:
        """The lowering for the sizes that there are now, as plain numbers: what costs are estimated by."""
        return self.lower(merges).with_hints()

    def latency(self, step: Step, lowering: Lowering) -> float:
        """Seconds of a step that all threads share: as it was measured by itself, else as `step_cost` has it."""
        found = measured_latency(step, self.threads)
        return step_cost(step, self._by_id[step.op_id], lowering.shapes, self.threads) if found is None else found

    @cached_property
    def _by_id(self) -> dict[int, Op]:
        return {op.id: op for op in self.ops}


def place_steps(partition: Relowering, options: ScheduleOptions) -> tuple[Lowering, Lowering, StepPlan]:
    """The steps of a partition, the same for the sizes that there are now, and how they are placed on streams."""
    plain, ports = partition.hinted(()), (partition.ops, partition.nports, partition.threads)
    options = SEQUENTIAL if plain.loops else options
    signature, merges = None, None
    if plain.horizontal_fusions and options.may_be_parallel(partition.threads):
        steps = StepGraph.of(plain, *ports)
        signature = steps.signature
        if chosen_policy(options, partition.threads, signature) == "ios":
            merges = _wanted_by_ios(partition, plain, steps, options)
    if merges is None:
        merges = _measured_faster(partition, plain)
    hinted = partition.hinted(merges) if merges else plain
    return partition.lower(merges), hinted, schedule_steps(hinted, *ports, options, signature)


def _wanted_by_ios(partition: Relowering, plain: Lowering, steps: StepGraph, options: ScheduleOptions) -> Merges:
    """HorizontalFusion that are one call in the best sequence of stages."""
    joint = partition.hinted(plain.horizontal_fusions)
    latency = {
        frozenset(ids): sum(partition.latency(step, joint) for step in fused_steps(joint, ids))
        for ids in plain.horizontal_fusions
    }
    op_of = {n: plain.steps[main].op_id for n, (main, unit) in enumerate(steps.units.items()) if len(unit) > 1}

    def merge(nodes: tuple[int, ...]) -> float | None:
        return latency.get(frozenset(op_of.get(node, -1) for node in nodes))

    found = schedule_units(steps, replace(options, policy="ios"), partition.threads, merge=merge)
    calls = [i.nodes for i in found.instructions if isinstance(i, Run) and len(i.nodes) > 1]
    merged = {frozenset(op_of[node] for node in nodes) for nodes in calls}
    return tuple(ids for ids in plain.horizontal_fusions if frozenset(ids) in merged)


def _measured_faster(partition: Relowering, plain: Lowering) -> Merges:
    """HorizontalFusion for which one call was measured to take less, with all copies that it saves or asks for."""
    if not has_costs() or not len(stage_latencies()):
        return ()
    known = tuple(ids for ids in plain.horizontal_fusions if _is_measured(partition, fused_steps(plain, ids)))
    if not known:
        return ()
    joint = partition.hinted(known)
    before, after = _latencies_by_op(partition, plain), _latencies_by_op(partition, joint)

    def gains(ids: tuple[int, ...]) -> bool:
        concerned = {*ids, *_readers(joint, ids)}
        alone, together = (sum(found.get(op_id, 0.0) for op_id in concerned) for found in (before, after))
        changed = sum(before.get(op_id, 0.0) for op_id in ids)
        return _is_measured(partition, fused_steps(joint, ids)) and alone - together >= MIN_MEASURED_GAIN * changed

    return tuple(filter(gains, known))


def _latencies_by_op(partition: Relowering, lowering: Lowering) -> dict[int, float]:
    """What the steps of each group of ops take where all packed constants are kept, by the id of its first op."""
    found: dict[int, float] = {}
    for step in lowering.steps:
        if step.guard is None or step.guard[1]:
            found[step.op_id] = found.get(step.op_id, 0.0) + partition.latency(step, lowering)
    return found


def _readers(joint: Lowering, ids: tuple[int, ...]) -> set[int]:
    """Ids of the ops whose steps touch the result of a call for several convolutions."""
    results = {step.args[-1].buffer for step in fused_steps(joint, ids)}
    return {step.op_id for step in joint.steps if any(value.buffer in results for value in step.args)}


def _is_measured(partition: Relowering, steps: Sequence[Step]) -> bool:
    """Whether each step was measured by itself."""
    return all(measured_latency(step, partition.threads) is not None for step in steps)


def fused_steps(lowering: Lowering, ids: Collection[int]) -> list[Step]:
    """The steps that compute these convolutions on their packed weights."""
    missing = {step.guard[0] for step in lowering.steps if step.guard is not None and not step.guard[1]}
    wanted = [step for step in lowering.steps if step.guard is not None and step.guard[1] and step.guard[0] in missing]
    last = {step.guard: step for step in wanted if step.op_id in ids}
    return list(last.values())
