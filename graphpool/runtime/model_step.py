"""The steps of a model: compiled partitions and host functions, one after another, and where their tensors lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.errors import BackendError, LimitError, explain
from graphpool.memory import BufferInfo, plan
from graphpool.typing import DataType

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from graphpool.graph.graph import Graph
    from graphpool.graph.logical_tensor import LogicalTensor

    from ._compiled import CompiledPartition
    from .host_budget import HostBudget
    from .model_form import HostFunction

__all__ = ["ALIGNMENT", "ModelStep", "is_plain", "plan_arena", "settled_tensors"]

ALIGNMENT = 64


@dataclass(frozen=True)
class ModelStep:
    """One partition: compiled, or a host function; the tensors it reads and writes."""

    compiled: CompiledPartition | None
    function: HostFunction | None
    label: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    def call_host(self, values: dict[int, Any], are_plain: Sequence[bool], budget: HostBudget | None) -> None:
        """Run the host function on the values of a run; `are_plain` says which outputs have a place already."""
        sources = [values[i] for i in self.inputs]
        if not all(are_plain):
            # a result without a known shape may be a view of an input, and arenas are written again
            sources = [source.copy() if isinstance(source, np.ndarray) else source for source in sources]
        targets = [values[i] if plain else None for i, plain in zip(self.outputs, are_plain, strict=True)]
        if budget is not None:
            budget.spend(1, self.label)
        assert self.function is not None  # a step is one or the other
        try:
            results = self.function(sources, targets)
        except LimitError:
            raise
        except Exception as error:
            raise BackendError(
                explain(f"the host function of {self.label} failed", got=f"{type(error).__name__}: {error}"),
                backend="host",
            ) from error
        for tensor_id, target, result in zip(self.outputs, targets, results, strict=True):
            if target is None:
                values[tensor_id] = result
            elif result is not target:
                self._copy_result(target, result)

    def _copy_result(self, target: Any, result: Any) -> None:
        array = np.asarray(result)
        if array.shape != target.shape or array.dtype != target.dtype:
            raise BackendError(
                explain(
                    f"the host function of {self.label} gave another result than inferred",
                    accepted=f"{target.dtype} {target.shape}",
                    got=f"{array.dtype} {array.shape}",
                ),
                backend="host",
            )
        target[...] = array


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
    steps: Sequence[ModelStep], sizes: Mapping[int, int], scratch_of: Callable[[CompiledPartition], int]
) -> tuple[dict[Any, int], int]:
    """Places in an arena for tensors between steps, by id, and for the scratch memory of each, by ``~step``; its size.

    In-place pairs of a step share their bytes, where the input dies there and is as large as the output. `sizes` has
    the tensors that lie in the arena, `scratch_of` tells the scratch memory of a compiled partition. Unit: bytes.
    """
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
    buffers = [BufferInfo.used_at(i, numbers, sizes[i]) for i, numbers in uses.items()]
    for number, step in enumerate(steps):
        if step.compiled is not None and scratch_of(step.compiled):
            buffers.append(BufferInfo.used_at(~number, [number], scratch_of(step.compiled)))
    placed = plan(buffers, alignment=ALIGNMENT)
    offsets: dict[Any, int] = dict(placed.offsets)
    return offsets | {i: offsets[source] for i, source in root.items()}, placed.nbytes
