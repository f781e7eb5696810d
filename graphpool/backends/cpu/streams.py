"""The steps of a program as a graph to schedule: what each reads of which other, and what each costs."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from math import prod
from typing import TYPE_CHECKING
from zlib import crc32

from ...graph.shapes import conv_weight_axes
from ...runtime._program import ARENA, FIRST_EXTERNAL
from ...runtime.scheduling import cost_key, make_schedule, step_costs
from ...schedule import DependencyGraph, roofline_cost

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...graph.op import Op
    from ...runtime.scheduling import ScheduleOptions
    from ...schedule import Schedule
    from .lowering import Buffer, Lowering, Step

__all__ = ["schedule_steps", "step_edges", "step_signature"]

# A lane of a server processor of 2020 or later, as far as a guess goes; `profile_ops` measures what matters.
PEAK_FLOPS = {"generic": 10e9, "avx2": 60e9, "avx512": 100e9, "avx512_bf16": 100e9, "neon": 25e9}
BANDWIDTH = 8e9  # unit: bytes a second
STEP_S = 0.2e-6  # an empty step
SHARED_STEP_S = 1e-6  # what sharing a step among lanes adds
ELTWISE_FLOPS = 20  # of an element: between an addition and a transcendental function


@dataclass(frozen=True)
class StepPlan:
    """How steps are placed on streams.

    Attributes
    ----------
    schedule : Schedule or None
        Of the steps by their position; None when nobody asked.
    speedups : tuple of float
        How many times faster each step is taken to be on all lanes than on one.
    signature : str
        Of the steps and their edges: what the time of the whole depends on.
    """

    schedule: Schedule | None = None
    speedups: tuple[float, ...] = ()
    signature: str = ""

    @property
    def is_parallel(self) -> bool:
        """Whether there is more than one stream."""
        return self.schedule is not None and len(self.schedule.stream_ids) > 1


def schedule_steps(
    lowering: Lowering, ops: Sequence[Op], nports: tuple[int, int], lanes: int, options: ScheduleOptions
) -> StepPlan:
    """A schedule for the steps of a partition with so many inputs and outputs.

    Measured costs are taken where `runtime.scheduling.step_costs` knows them, else the roofline's.
    """
    if options.policy == "sequential" or min(options.streams, lanes) == 1 or len(lowering.steps) < 2:
        return StepPlan()
    by_id = {op.id: op for op in ops}
    alone, shared = (
        [_cost(step, by_id[step.op_id], lowering.shapes, count) for step in lowering.steps] for count in (1, lanes)
    )
    names = [f"{number} {by_id[step.op_id].kind}" for number, step in enumerate(lowering.steps)]
    graph = DependencyGraph(step_edges(lowering.steps, *nports), alone, names=names)
    speedups = tuple(one / all_ if all_ else 1.0 for one, all_ in zip(alone, shared, strict=True))
    content = repr((graph.edges, [step_signature(step) for step in lowering.steps]))
    signature = sha256(content.encode()).hexdigest()
    return StepPlan(make_schedule(graph, options, lanes, speedups, signature), speedups, signature)


def step_edges(steps: Sequence[Step], ninputs: int, noutputs: int) -> list[tuple[int, int]]:
    """(writer, reader) of every buffer that a step writes.

    A buffer is written by the steps of one group of ops: by the first that touches it, and perhaps by others, which
    are taken to come one after another; those of which no run takes both do not wait for one another. Whoever else
    touches it reads, and comes after each of them. Parts of a buffer are written apart from each other; who touches the
    whole reads it.
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
            if not before or steps[before[0]].op_id == step.op_id:
                part: Buffer | None = buffer
                while part is not None:
                    writers.setdefault(part, []).append(number)
                    part = part.within
    return list(edges)


def _are_alternatives(a: Step, b: Step) -> bool:
    """Whether no run takes both: one wants a constant form, the other wants it missing."""
    if a.guard is None or b.guard is None:
        return False
    return a.guard[0] == b.guard[0] and a.guard[1] != b.guard[1]


def step_signature(step: Step) -> str:
    """What the cost of a step depends on: kernel, tasks, types, shapes and strides of the arguments, parameters."""
    args = " ".join(f"{v.dtype}{list(v.shape)}/{list(v.strides)}" for v in step.args)
    # a block that points to memory differs from process to process
    params = "" if step.call.keep else f" {crc32(step.call.params.tobytes()):08x}"
    return f"{step.call.kernel.name}:{step.call.kernel.isa} x{step.call.ntasks}{params} {args}"


def _cost(step: Step, op: Op, shapes: Mapping[int, tuple[int, ...]], lanes: int) -> float:
    """Seconds of a step on so many lanes; none for one that runs only where a constant form is missing."""
    if step.guard is not None and not step.guard[1]:
        return 0.0
    measured = step_costs().get(cost_key(step_signature(step), lanes))
    if measured is not None:
        return measured
    sharing = min(lanes, max(step.call.ntasks, 1))
    nbytes = sum({value.buffer: value.dtype.nbytes(prod(value.shape)) for value in step.args}.values())
    work = roofline_cost(_flops(step, op, shapes), nbytes, PEAK_FLOPS[step.call.kernel.isa], BANDWIDTH)
    return STEP_S + work / sharing + (SHARED_STEP_S if sharing > 1 else 0.0)


def _flops(step: Step, op: Op, shapes: Mapping[int, tuple[int, ...]]) -> float:
    """Multiplications and additions of products and convolutions, a flat rate for anything else."""
    kernel = step.call.kernel.name
    result = max(prod(value.shape) for value in step.args)
    if "conv" in kernel and op.kind in ("Convolution", "ConvTranspose"):
        source, weights, dst = (shapes[tensor.id] for tensor in (*op.inputs[:2], op.outputs[0]))
        inner, outer, _ = conv_weight_axes(len(weights), op.attrs["weights_format"])
        if op.kind == "Convolution":
            return 2.0 * prod(dst) * prod(weights) / weights[outer]
        phases = 1 if "im2col" in kernel else prod(op.attrs["strides"])
        return 2.0 * prod(source) * prod(weights) / weights[inner] / phases
    if "matmul" in kernel and op.kind == "MatMul":
        a = step.args[0].shape
        depth = a[-2] if op.attrs["transpose_a"] and len(a) > 1 else a[-1]
        return 2.0 * max(prod(value.shape) for value in step.args[2:]) * depth
    return ELTWISE_FLOPS * result
