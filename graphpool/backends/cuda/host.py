"""Ops that no kernel of a GPU computes: partitions of their own, on the host, between explicit copies."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from ...runtime.scheduling import parse_options
from ..reference import ReferenceBackend
from ..reference.backend import run_ops
from .backend import settle_ports

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...graph.logical_tensor import LogicalTensor
    from ...graph.partition import Partition
    from ...runtime.cuda.gpu_partition import HostPartition

__all__ = ["HostBackend"]


class HostBackend(ReferenceBackend):
    """Evaluates ops on the host as the reference backend does, for engines of kind ``gpu``.

    Notes
    -----
    Threads: immutable, safe.
    """

    name = "host"
    engine_kind = "gpu"
    merges = True
    compile_dynamic = None  # type: ignore[assignment]

    def compile(  # type: ignore[override]
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
    ) -> HostPartition:
        """A partition that copies its inputs to the host and its results to the device; see `Partition.compile`."""
        from ...runtime.cuda.gpu_partition import HostPartition

        parse_options(schedule, streams)
        sources, targets = settle_ports(partition, inputs, outputs)
        function = partial(run_ops, partition.ops, [t.id for t in sources], {t.id: t.shape for t in targets})
        names = [f"host:numpy {op.kind}" for op in partition.ops]
        return HostPartition(partition, sources, targets, engine, names, [op.id for op in partition.ops], function)
