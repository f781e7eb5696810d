"""The CUDA backend: compile = settle ports, lower, plan temporaries, link."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...errors import UnsupportedError, explain
from ...graph.completion import complete_shapes
from ...graph.spelling import possible_spellings, respell
from ...graph.view import GraphView
from ...runtime._program import ARENA, FIRST_EXTERNAL
from ...runtime.scheduling import make_schedule, parse_options
from ...schedule import DependencyGraph
from ...typing import LayoutType
from ..cpu.match.groups import make_groups
from ..cpu.match.swaps import RESHAPES_BEHIND, swap
from ..cpu.match.undone import drop_undone
from ..cpu.patterns import PATTERNS, SPELLINGS
from ..cpu.place.placement import find_inplace_ports, find_temporaries
from ..cpu.place.streams import step_edges, touched_nbytes
from .attention import has_kernel
from .lowering import CudaLowering
from .rules import lower_group
from .support import supports

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ...graph.logical_tensor import LogicalTensor
    from ...graph.op import Op
    from ...graph.partition import Partition
    from ...graph.pattern import Pattern
    from ...graph.spelling import Spelling
    from ...runtime.cuda.cublas_lt import CublasLt
    from ...runtime.cuda.gpu_partition import GpuPartition
    from ...runtime.scheduling import ScheduleOptions
    from ...schedule import Schedule
    from ..cpu.lower.steps import Step
    from ..cpu.lower.values import Buffer

__all__ = ["CudaBackend"]

LAUNCH_S, BYTES_PER_S = 3e-6, 1e12
"""What schedules reckon with."""


class CudaBackend:
    """Runs ops in f32 and bf16 on kernels that NVRTC compiles when they are first needed.

    Notes
    -----
    Threads: immutable, safe. Nothing of CUDA is imported before a partition is compiled.
    """

    name = "cuda"
    engine_kind = "gpu"
    priority = 100
    merges = True
    patterns: Sequence[Pattern | Spelling] = PATTERNS

    def supports(self, op: Op) -> bool:
        """Whether the backend runs this op."""
        return supports(op)

    def opaque_nbytes(self, tensor: LogicalTensor) -> int | None:
        """None: the backend reads and writes plain layouts only."""
        return None

    def compile(
        self,
        partition: Partition,
        inputs: Sequence[LogicalTensor],
        outputs: Sequence[LogicalTensor],
        engine: Any,
        *,
        scratch: str = "primitive",
        weights: str = "cached",
        schedule: str = "sequential",
        streams: int = 1,
    ) -> GpuPartition:
        """A partition that gives launches to streams; see `Partition.compile`.

        Temporaries lie in memory of the stream whatever `scratch` says, and constants are read as they lie. Where the
        schedule has several streams, `execute` runs it on one, in issue order; graphs of models have them all.
        """
        from ...runtime.cuda.gpu_partition import GpuPartition
        from ...runtime.cuda.launches import LaunchList

        options = parse_options(schedule, streams)
        sources, targets = settle_ports(partition, inputs, outputs)
        device = engine.device
        lowering = lower(partition.ops, sources, targets, device.products())
        chosen = _schedule(lowering, len(sources), len(targets), options)
        temporaries = find_temporaries(lowering.steps, chosen, engine.planner)
        places, arena_nbytes = temporaries.plan()
        word_base = FIRST_EXTERNAL + len(sources) + len(targets)
        launches = _link(lowering.steps, temporaries.offsets(places), device.ready, word_base)
        return GpuPartition(
            partition,
            sources,
            targets,
            engine,
            [step.name for step in lowering.steps],
            [step.op_id for step in lowering.steps],
            LaunchList(launches, arena_nbytes, chosen),
            bytes(lowering.literals),
            find_inplace_ports(lowering.steps, sources, targets, chosen),
        )


def settle_ports(
    partition: Partition, inputs: Sequence[LogicalTensor], outputs: Sequence[LogicalTensor]
) -> tuple[list[LogicalTensor], list[LogicalTensor]]:
    """The ports with shapes completed and strided layouts; UnsupportedError for opaque ones."""
    settled = [list(inputs), partition.complete(inputs, outputs)]
    for tensor in (*settled[0], *settled[1]):
        if tensor.layout is LayoutType.OPAQUE:
            what, hint = f"tensor {tensor.id}: layout on a GPU", "put a Reorder op in front"
            raise UnsupportedError(explain(what, accepted="strided", got="opaque", hint=hint), tensor_id=tensor.id)
    sources, targets = (
        [t.replace(layout="strided") if t.layout is LayoutType.ANY else t for t in side] for side in settled
    )
    return sources, targets


def lower(
    ops: Sequence[Op],
    inputs: Sequence[LogicalTensor],
    outputs: Sequence[LogicalTensor],
    products: CublasLt | None = None,
) -> CudaLowering:
    """The steps of a partition; `products` computes the products that it can."""
    results = {tensor.id for tensor in outputs}
    given = {tensor.id: tensor.shape for tensor in (*inputs, *outputs)}
    shapes: dict[int, Any] = complete_shapes(ops, given, trust_ops=False)
    for rewrite in (_replace_spelt, drop_undone, partial(swap, RESHAPES_BEHIND)):
        ops = rewrite(ops, shapes, results)
    dtypes = {tensor.id: tensor.dtype for op in ops for tensor in (*op.inputs, *op.outputs)}
    lowering = CudaLowering(inputs, outputs, shapes, dtypes)
    lowering.products = products
    for group in make_groups(ops, shapes, results, attentions=has_kernel):
        lowering.op_id = group.first.id
        lower_group(lowering, group)
    return lowering


def _schedule(lowering: CudaLowering, ninputs: int, noutputs: int, options: ScheduleOptions) -> Schedule | None:
    """The launches on several streams; None where they follow one another.

    Costs are bytes over a bandwidth and the time of a launch, and a stream is taken to have the device as if alone:
    nothing was measured.
    """
    count = len(lowering.steps)
    if not options.may_be_parallel(options.streams) or count < 2:
        return None
    costs = [LAUNCH_S + touched_nbytes(step) / BYTES_PER_S for step in lowering.steps]
    names = [f"{number} {step.name}" for number, step in enumerate(lowering.steps)]
    graph = DependencyGraph(step_edges(lowering.steps, ninputs, noutputs), costs, names=names)
    chosen = make_schedule(graph, options, options.streams, [1.0] * count)
    return chosen if len(chosen.stream_ids) > 1 else None


def _replace_spelt(ops: Sequence[Op], shapes: dict[int, tuple[int, ...]], outputs: Collection[int]) -> list[Op]:
    """The ops with one in place of each function that they spell out and that kernels compute."""
    spellings = possible_spellings(SPELLINGS, ops)
    return [new.op for new in respell(GraphView(ops), spellings, shapes, supports, outputs)] if spellings else list(ops)


def _link(steps: Sequence[Step], offsets: Mapping[Buffer, int], ready: Any, word_base: int) -> list[Any]:
    """Launches, whose calls `ready` makes so, with (base, offset in bytes) for each address.

    `word_base` is the base of the words of those that are watched.
    """
    from ...runtime.cuda.launches import Launch
    from ...runtime.cuda.watch import WORD_NBYTES

    launches, nwords = [], 0
    for step in steps:
        args = []
        for value in step.args:
            buffer = value.buffer.whole
            start = offsets[buffer] if buffer.base == ARENA else buffer.offset
            args.append((buffer.base, start + value.dtype.nbytes(value.offset)))
        call: Any = step.call
        if call.is_watched:
            args.append((word_base, nwords * WORD_NBYTES))
            nwords += 1
        launches.append(Launch(ready(call), tuple(args), call.is_watched))
    return launches
