"""The CPU backend: compile = settle layouts, lower, plan, link."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...runtime._compiled import CompiledPartition
from ...runtime._program import ARENA, Program
from ...typing import LayoutType
from .emit import lower_group
from .groups import make_groups
from .layouts import choose_layout, strides_of
from .lowering import Lowering
from .patterns import PATTERNS
from .placement import find_inplace_ports, plan_temporaries
from .support import supports

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ...graph.logical_tensor import LogicalTensor
    from ...graph.op import Op
    from ...graph.partition import Partition
    from ...graph.pattern import Pattern
    from .lowering import Buffer

__all__ = ["CpuBackend"]


class CpuBackend:
    """Runs the op set's forward ops on the compiled kernels.

    Notes
    -----
    Threads: immutable, safe.
    """

    name = "cpu"
    engine_kind = "cpu"
    priority = 100
    merges = True
    patterns: Sequence[Pattern] = PATTERNS

    def supports(self, op: Op) -> bool:
        """Whether the backend runs this op."""
        return supports(op)

    def compile(
        self,
        partition: Partition,
        inputs: Sequence[LogicalTensor],
        outputs: Sequence[LogicalTensor],
        engine: Any,
    ) -> CompiledPartition:
        """Lower, plan and link a partition; see `Partition.compile`."""
        inputs = [_settle(tensor) for tensor in inputs]
        outputs = [_settle(tensor) for tensor in outputs]
        lowering = lower(partition.ops, inputs, outputs)
        return CompiledPartition(
            partition,
            inputs,
            outputs,
            engine,
            program=link(lowering, len(inputs) + len(outputs), engine.threads),
            implementations=[step.name for step in lowering.steps],
            step_ops=[step.op_id for step in lowering.steps],
            inplace_ports=find_inplace_ports(lowering.steps, inputs, outputs),
        )


def _settle(tensor: LogicalTensor) -> LogicalTensor:
    """The tensor with its layout chosen where that was left to us, and checked where it is opaque."""
    if tensor.layout is LayoutType.ANY:
        return choose_layout(tensor)
    if tensor.layout is LayoutType.OPAQUE:
        strides_of(tensor)
    return tensor


def lower(ops: Sequence[Op], inputs: Sequence[LogicalTensor], outputs: Sequence[LogicalTensor]) -> Lowering:
    """The steps of a partition."""
    from ...graph.completion import complete_shapes

    given = {tensor.id: tensor.shape for tensor in (*inputs, *outputs)}
    shapes: dict[int, Any] = complete_shapes(ops, given, trust_ops=False)
    dtypes = {tensor.id: tensor.dtype for op in ops for tensor in (*op.inputs, *op.outputs)}
    lowering = Lowering(inputs, outputs, shapes, dtypes)
    for group in make_groups(ops, shapes, {tensor.id for tensor in outputs}):
        lowering.op_id = group.first.id
        lower_group(lowering, group)
    return lowering


def link(lowering: Lowering, nexternals: int, lanes: int) -> Program:
    """The program of lowered steps for up to `lanes` lanes: places of the temporaries, arguments as (base, offset)."""
    offsets, arena_nbytes = plan_temporaries(lowering.steps)
    steps = [
        (step.call, [(v.buffer.base, _place(v.buffer, offsets) + v.dtype.nbytes(v.offset)) for v in step.args])
        for step in lowering.steps
    ]
    return Program(steps, arena_nbytes, nexternals, lowering.literals, lanes)


def _place(buffer: Buffer, offsets: Mapping[Buffer, int]) -> int:
    return offsets[buffer] if buffer.base == ARENA else buffer.offset
