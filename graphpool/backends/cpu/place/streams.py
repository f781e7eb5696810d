"""The steps of a program as a graph to schedule: what each reads of which other, and what each costs.

Steps of which a run takes the one or the other (a kernel on packed weights, or the plain one where those are missing)
are placed together, as one node: a *unit*. The schedule of the units is then written out for the steps.
"""

from __future__ import annotations

from math import inf, prod
from typing import TYPE_CHECKING
from zlib import crc32

from graphpool._dataclasses import dataclass
from graphpool.fork import cached_property

from ....graph.shapes import conv_weight_axes
from ....runtime._program import ARENA, FIRST_EXTERNAL
from ....runtime.costs import cost_key, has_costs, stage_key, stage_latencies, step_costs
from ....runtime.machine import (
    CACHED_NBYTES,
    MEMORY_BANDWIDTH,
    SHARED_STEP_S,
    STEP_S,
    THREAD_BANDWIDTH,
    THREAD_FLOPS,
)
from ....runtime.scheduling import make_schedule
from ....schedule import DependencyGraph, Run, Schedule
from ....schedule.simulation import roofline_cost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import Any

    from ....graph.op import Op
    from ....runtime.scheduling import ScheduleOptions
    from ....schedule.instructions import Instruction
    from ..lower.lowering import Lowering
    from ..lower.steps import Step
    from ..lower.values import Buffer

__all__ = [
    "StepGraph",
    "StepPlan",
    "measured_cost",
    "measured_latency",
    "schedule_steps",
    "schedule_units",
    "step_cost",
    "step_edges",
    "step_signature",
    "step_signatures",
    "touched_nbytes",
]

ELTWISE_FLOPS = 20  # of an element: between an addition and a transcendental function


@dataclass(frozen=True)
class StepPlan:
    """How steps are placed on streams: `schedule` is None where nobody asked, `signature` of the steps and their edges.

    Of each step, `speedups` says how many times faster it is taken to be on all threads, `traffic` the bytes that it
    moves to and from main memory.
    """

    schedule: Schedule | None = None
    speedups: tuple[float, ...] = ()
    traffic: tuple[float, ...] = ()
    signature: str = ""

    @property
    def is_parallel(self) -> bool:
        """Whether there is more than one stream."""
        return self.schedule is not None and len(self.schedule.stream_ids) > 1


@dataclass(frozen=True)
class StepGraph:
    """The steps of a lowering, the edges that order them, and what they are taken to cost.

    `units` has the steps that are placed together, ascending, by the one of them that runs where all packed constants
    are kept, in an order that respects the edges. `alone` and `shared` are seconds on one thread and on all, `traffic`
    the bytes to and from main memory, of steps that touch more than caches hold.
    """

    edges: list[tuple[int, int]]
    units: dict[int, tuple[int, ...]]
    alone: tuple[float, ...]
    shared: tuple[float, ...]
    traffic: tuple[float, ...]
    names: tuple[str, ...]
    signatures: tuple[str, ...]

    @classmethod
    def of(cls, lowering: Lowering, ops: Sequence[Op], nports: tuple[int, int], threads: int) -> StepGraph:
        """The graph of the steps of a partition with so many inputs and outputs."""
        by_id, steps = {op.id: op for op in ops}, lowering.steps
        alone, shared = (
            tuple(step_cost(step, by_id[step.op_id], lowering.shapes, n) for step in steps) for n in (1, threads)
        )
        names = tuple(f"{number} {by_id[step.op_id].kind}" for number, step in enumerate(steps))
        edges, signatures = step_edges(steps, *nports), step_signatures(steps)
        return cls(edges, _find_units(steps), alone, shared, _traffic(steps), names, signatures)

    @cached_property
    def signature(self) -> str:
        """What the time of the whole depends on."""
        from hashlib import sha256  # and with it OpenSSL: not for one thread

        return sha256(repr((tuple(dict.fromkeys(self.edges)), list(self.signatures))).encode()).hexdigest()

    @property
    def speedups(self) -> tuple[float, ...]:
        """How many times faster each step is on all threads than on one."""
        return tuple(one / all_ if all_ else 1.0 for one, all_ in zip(self.alone, self.shared, strict=True))

    def of_units(self, values: Sequence[float]) -> list[float]:
        """The sum of values of steps for each unit."""
        return [sum(values[step] for step in unit) for unit in self.units.values()]

    def unit_graph(self) -> DependencyGraph:
        """What is scheduled."""
        home = {step: number for number, unit in enumerate(self.units.values()) for step in unit}
        edges = dict.fromkeys((home[u], home[v]) for u, v in self.edges if home[u] != home[v])
        names = [self.names[main] for main in self.units]
        return DependencyGraph(list(edges), self.of_units(self.alone), names=names)

    def write_out(self, schedule: Schedule) -> Schedule:
        """The schedule of the units for their steps."""
        graph, units = DependencyGraph(self.edges, self.alone, names=self.names), list(self.units.values())
        instructions: list[Instruction] = []
        for instruction in schedule.instructions:
            nodes = instruction.nodes if isinstance(instruction, Run) else ()
            steps = [step for unit in nodes for step in units[unit]]
            instructions += [Run(step) for step in steps] if nodes else [instruction]
        details = dict(schedule.details)
        if "stages" in details:
            details["stages"] = [
                tuple(tuple(step for unit in row for step in units[unit]) for row in stage)
                for stage in details["stages"]
            ]
        return Schedule(graph, tuple(instructions), schedule.policy, details)


def schedule_steps(
    lowering: Lowering,
    ops: Sequence[Op],
    nports: tuple[int, int],
    threads: int,
    options: ScheduleOptions,
    signature: str | None = None,
) -> StepPlan:
    """A schedule for the steps of a partition with so many inputs and outputs.

    Measured costs are taken where `runtime.costs` knows them, else the roofline's. The `signature`, by which whole
    programs were measured, is that of the steps if none is given.
    """
    if not options.may_be_parallel(threads) or len(lowering.steps) < 2:
        return StepPlan()
    steps = StepGraph.of(lowering, ops, nports, threads)
    schedule, own = schedule_units(steps, options, threads, signature), steps.signature
    return StepPlan(steps.write_out(schedule), steps.speedups, steps.traffic, own if signature is None else signature)


def schedule_units(
    steps: StepGraph,
    options: ScheduleOptions,
    threads: int,
    signature: str | None = None,
    merge: Callable[[tuple[int, ...]], float | None] | None = None,
) -> Schedule:
    """The schedule of the units of a graph."""
    graph = steps.unit_graph()
    pairs = zip(graph.costs, steps.of_units(steps.shared), strict=True)
    speedups = [alone / shared if shared else 1.0 for alone, shared in pairs]
    signatures = [steps.signatures[main] for main in steps.units]
    whole, traffic = steps.signature if signature is None else signature, steps.of_units(steps.traffic)
    return make_schedule(graph, options, threads, speedups, whole, signatures=signatures, traffic=traffic, merge=merge)


def _find_units(steps: Sequence[Step]) -> dict[int, tuple[int, ...]]:
    """Each step by itself; those that run only where a packed constant is missing go with the last that wants it."""
    last = {step.guard[0]: number for number, step in enumerate(steps) if step.guard is not None and step.guard[1]}
    units: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        home = number if step.guard is None or step.guard[1] else last.get(step.guard[0], number)
        units.setdefault(home, []).append(number)
    return {home: tuple(units[home]) for home in sorted(units)}


def step_edges(steps: Sequence[Step], ninputs: int, noutputs: int) -> list[tuple[int, int]]:
    """(writer, reader) of every buffer that a step writes.

    A buffer is written by the steps of one group of ops: by the first that touches it, and perhaps by others, which
    are taken to come one after another; those of which no run takes both do not wait for one another. Whoever else
    touches it reads, unless it says that it rewrites, and comes after each of them. Parts of a buffer are written apart
    from each other; who touches the whole reads it.
    """
    first_output = FIRST_EXTERNAL + ninputs
    writers: dict[Buffer, list[int]] = {}
    edges: dict[tuple[int, int], None] = {}
    for number, step in enumerate(steps):
        for buffer in dict.fromkeys(value.buffer for value in step.args):
            if buffer.base != ARENA and not first_output <= buffer.base < first_output + noutputs:
                continue
            before = [k for k in writers.get(buffer, ()) if not _are_alternatives(steps[k], step)]
            edges.update(dict.fromkeys((writer, number) for writer in before))
            is_rewritten = step.rewrites and buffer == step.args[-1].buffer
            if not before or is_rewritten or steps[before[0]].op_id == step.op_id:
                part: Buffer | None = buffer
                while part is not None:
                    writers.setdefault(part, []).append(number)
                    part = part.within
    return list(edges)


def _are_alternatives(a: Step, b: Step) -> bool:
    """Whether no run takes both: one wants a packed constant, the other wants it missing."""
    if a.guard is None or b.guard is None:
        return False
    return a.guard[0] == b.guard[0] and a.guard[1] != b.guard[1]


def step_signatures(steps: Iterable[Step]) -> tuple[str, ...]:
    """What the cost of each step depends on: kernel, tasks, types, shapes and strides of the arguments, parameters."""
    layouts: dict[tuple[Any, ...], str] = {}  # what one step writes the next one reads
    return tuple([_signature(step, layouts) for step in steps])


def step_signature(step: Step) -> str:
    """That of one step."""
    return _signature(step, {})


def _signature(step: Step, layouts: dict[tuple[Any, ...], str]) -> str:
    """That of a step, with the texts of the layouts that are known."""
    keys = [(value.dtype, value.shape, value.strides) for value in step.args]
    for dtype, shape, strides in keys:
        if (dtype, shape, strides) not in layouts:
            layouts[dtype, shape, strides] = f"{dtype}{list(shape)}/{list(strides)}"
    args = " ".join([layouts[key] for key in keys])
    # a block that points to memory differs from process to process
    params = "" if step.call.keep else f" {crc32(step.call.params.tobytes()):08x}"
    return f"{step.call.kernel.name}:{step.call.kernel.isa} x{step.call.ntasks}{params} {args}"


def step_cost(step: Step, op: Op, shapes: Mapping[int, tuple[int, ...]], threads: int) -> float:
    """Seconds of a step on so many threads; none for one that runs only where a packed constant is missing."""
    if step.guard is not None and not step.guard[1]:
        return 0.0
    measured = measured_cost(step, threads)
    if measured is not None:
        return measured
    sharing = min(threads, max(step.call.ntasks, 1))
    nbytes, peak = touched_nbytes(step), THREAD_FLOPS[step.call.kernel.isa]
    bandwidth = min(sharing * THREAD_BANDWIDTH, MEMORY_BANDWIDTH if nbytes > CACHED_NBYTES else inf)
    work = roofline_cost(_flops(step, op, shapes), nbytes, sharing * peak, bandwidth)
    return STEP_S + work + (SHARED_STEP_S if sharing > 1 else 0.0)


def touched_nbytes(step: Step) -> int:
    """Memory that a step reads and writes, each buffer once. Unit: bytes."""
    return sum({value.buffer: value.dtype.nbytes(prod(value.shape)) for value in step.args}.values())


def _traffic(steps: Sequence[Step]) -> tuple[float, ...]:
    """Bytes that each step moves to and from main memory."""
    due = [step.guard is None or step.guard[1] for step in steps]
    touched = [touched_nbytes(step) if is_due else 0 for step, is_due in zip(steps, due, strict=True)]
    return tuple(float(nbytes) if nbytes > CACHED_NBYTES else 0.0 for nbytes in touched)


def measured_cost(step: Step, threads: int) -> float | None:
    """Seconds of a step on so many threads if they were measured: in the model, else by itself."""
    found = step_costs().get(cost_key(step_signature(step), threads)) if has_costs() else None
    return measured_latency(step, threads) if found is None else found


def measured_latency(step: Step, threads: int) -> float | None:
    """Seconds of a step by itself on so many threads if they were measured."""
    return stage_latencies().get(stage_key([[step_signature(step)]], threads)) if has_costs() else None


def _flops(step: Step, op: Op, shapes: Mapping[int, tuple[int, ...]]) -> float:
    """Multiplications and additions of products and convolutions, a flat rate for anything else."""
    kernel = step.call.kernel.name
    result = max(prod(value.shape) for value in step.args)
    if "conv" in kernel and op.kind in ("Convolution", "ConvTranspose"):
        source, weights = (shapes[tensor.id] for tensor in op.inputs[:2])
        inner, outer, _ = conv_weight_axes(len(weights), op.attrs["weights_format"])
        if op.kind == "Convolution":  # of all that share the call
            return 2.0 * max(prod(value.shape) for value in step.args[2:]) * prod(weights) / weights[outer]
        phases = 1 if "im2col" in kernel else prod(op.attrs["strides"])
        return 2.0 * prod(source) * prod(weights) / weights[inner] / phases
    if "matmul" in kernel and op.kind == "MatMul" and len(step.args) > 2:  # two are packed and where to
        a = step.args[0].shape
        depth = a[-2] if op.attrs["transpose_a"] and len(a) > 1 else a[-1]
        return 2.0 * max(prod(value.shape) for value in step.args[2:]) * depth
    return ELTWISE_FLOPS * result
