"""The steps of a model: compiled partitions and host functions, one after another, and where their tensors lie."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._dataclasses import dataclass
from graphpool.errors import BackendError, explain
from graphpool.memory import BufferInfo
from graphpool.memory.user_planner import plan_with
from graphpool.typing import DataType

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from graphpool.graph.graph import Graph
    from graphpool.graph.logical_tensor import LogicalTensor
    from graphpool.memory import Planner

    from ._compiled import CompiledPartition
    from ._program import Program
    from .model_form import Fallback, HostFunction
    from .primitive import Primitive

__all__ = ["ALIGNMENT", "ModelStep", "find_buffers", "is_plain", "plan_arena", "settled_tensors"]

ALIGNMENT = 64


@dataclass(frozen=True)
class ModelStep:
    """One partition: compiled, or a host function; the tensors it reads and writes."""

    compiled: CompiledPartition | None
    function: HostFunction | None
    label: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    fallback: Fallback | None = None

    @property
    def gives_fresh(self) -> bool:
        """Whether results of the host function are no views of what it is given."""
        return bool(getattr(self.function, "gives_fresh", False))

    def copy_result(self, target: Any, result: Any) -> None:
        """Copy what the host function gave to where it belongs."""
        array = np.asarray(result)
        if array.shape != target.shape or array.dtype != target.dtype:
            accepted, got = f"{target.dtype} {target.shape}", f"{array.dtype} {array.shape}"
            raise self.host_error("gave another result than inferred", accepted=accepted, got=got)
        target[...] = array

    def host_error(self, what: str, **parts: str) -> BackendError:
        """An error that names the node of the model, and says why the host ran it."""
        known = self.fallback
        if known is None:
            return BackendError(explain(f"the host function of {self.label} {what}", **parts), backend="host")
        message = explain(
            f"the host function of node {known.node!r} ({known.op_type}) {what}",
            **parts,
            hint=f"the host ran it, since {known.reason}",
        )
        return BackendError(message, backend="host", node=known.node, op_type=known.op_type)


def settled_tensors(graph: Graph) -> dict[int, LogicalTensor]:
    """The graph's tensors with their inferred shapes."""
    found = {}
    for tensor_id, tensor in graph.tensors.items():
        shape = graph.shape(tensor_id)
        found[tensor_id] = tensor if shape is None or shape == tensor.shape else tensor.replace(shape=shape)
    return found


def is_plain(tensor: LogicalTensor | None) -> bool:
    """Whether the tensor lies in memory; others are Python objects that host functions pass on."""
    return tensor is not None and tensor.dtype is not DataType.UNDEF and tensor.is_shape_known


def plan_arena(
    steps: Sequence[ModelStep], sizes: Mapping[int, int], scratch: Sequence[int], planner: Planner | None = None
) -> tuple[dict[Any, int], int]:
    """Places in an arena for tensors between steps, by id, and for the scratch memory of each, by ``~step``; its size.

    In-place pairs of a step share their bytes, where the input dies there and is as large as the output. `sizes` has
    the tensors that lie in the arena, `scratch` the scratch memory of each step. Unit: bytes.
    """
    needs = {~number: nbytes for number, nbytes in enumerate(scratch) if nbytes}
    if not sizes and len(needs) < 2:
        return dict.fromkeys(needs, 0), sum(needs.values())
    uses, root = _uses_between(steps, sizes)
    buffers = [BufferInfo.used_at(i, numbers, sizes[i]) for i, numbers in uses.items()]
    buffers += [BufferInfo.used_at(key, [~key], nbytes) for key, nbytes in needs.items()]
    placed = plan_with(planner, buffers, ALIGNMENT)
    offsets: dict[Any, int] = dict(placed.offsets)
    return offsets | {i: offsets[source] for i, source in root.items()}, placed.nbytes


def _uses_between(steps: Sequence[ModelStep], sizes: Mapping[int, int]) -> tuple[dict[int, list[int]], dict[int, int]]:
    """Steps that use each buffer between steps, by the id of its first tensor; and that id for each tensor."""
    last = {i: number for number, step in enumerate(steps) for i in (*step.outputs, *step.inputs)}
    root: dict[int, int] = {}
    uses: dict[int, list[int]] = {}
    for number, step in enumerate(steps):
        pairs = () if step.compiled is None else step.compiled.inplace_ports
        reused = {
            target: root[source]
            for source, target in pairs
            if source in root and last[source] == number and sizes[source] == sizes.get(target)
        }
        for tensor_id in step.outputs:
            if tensor_id in sizes:
                root[tensor_id] = reused.get(tensor_id, tensor_id)
                uses.setdefault(root[tensor_id], []).extend((number, last[tensor_id]))
    return uses, root


def find_buffers(
    steps: Sequence[ModelStep], programs: Sequence[Program | None], sizes: Mapping[int, int]
) -> list[BufferInfo]:
    """The tensors between steps, of these sizes in bytes, and the temporaries of programs, by steps of the programs."""
    found: list[BufferInfo] = []
    spans, now = [], 0
    for number, (step, program) in enumerate(zip(steps, programs, strict=True)):
        primitive = None if step.compiled is None else step.compiled.primitive
        temporaries = [] if primitive is None or program is None else _temporaries(primitive, program)
        count = 1 if program is None else max(len(program), 1)
        for k, (first, last, nbytes) in enumerate(temporaries):
            found.append(BufferInfo(f"step {number} buffer {k}", now + first, now + last + 1, nbytes, ALIGNMENT))
        spans.append((now, now + count))
        now += count
    for tensor_id, numbers in _uses_between(steps, sizes)[0].items():
        lower, upper = spans[min(numbers)][0], spans[max(numbers)][1]
        found.append(BufferInfo(f"tensor {tensor_id}", lower, upper, sizes[tensor_id], ALIGNMENT))
    return found


def _temporaries(primitive: Primitive, program: Program) -> list[tuple[int, int, int]]:
    """First and last step, and size in bytes, of each temporary of a program; those in one place in turn are one."""
    buffers, _ = primitive.buffers_of(program.serial)
    found: list[tuple[int, int, int]] = []
    places: dict[tuple[int, int], int] = {}
    for offset, nbytes, steps in sorted(buffers, key=lambda buffer: min(buffer[2], default=0)):
        if not (steps and nbytes):
            continue
        known = places.get((offset, nbytes))
        if known is not None and found[known][1] == min(steps):  # it takes over the other's bytes in place
            found[known] = (found[known][0], max(steps), nbytes)
        else:
            places[offset, nbytes] = len(found)
            found.append((min(steps), max(steps), nbytes))
    return found
