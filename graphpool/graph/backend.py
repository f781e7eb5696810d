"""What a backend is to the graph, and the registry in which backends hand themselves in."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Protocol

from .. import _backend_loader
from ..errors import InvalidArgumentError, check_choice, explain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .logical_tensor import LogicalTensor
    from .op import Op
    from .partition import Partition
    from .pattern import Pattern
    from .spelling import Spelling

ENGINE_KINDS = ("cpu", "gpu")


class Backend(Protocol):
    """Claims ops of a graph and compiles the partitions made of them. Safe to use from many threads.

    Attributes
    ----------
    name : str
        Unique within an engine kind; part of cache keys.
    priority : int
        Backends of one kind claim ops in descending order of priority.
    merges : bool
        Whether partitions that follow one another may be compiled as one.
    patterns : sequence of Pattern or Spelling
        For `policy="fusion"`: what it runs as one op, in the order in which it is looked for, and as one partition.
    """

    name: str
    engine_kind: str
    priority: int
    merges: bool
    patterns: Sequence[Pattern | Spelling]

    def supports(self, op: Op) -> bool:
        """Whether the backend can run an op.

        Parameters
        ----------
        op : Op
            Its kind, types and attributes count; shapes may be unknown.

        Returns
        -------
        is_supported : bool
        """
        ...

    def opaque_nbytes(self, tensor: LogicalTensor) -> int | None:
        """Size of an opaque tensor of known shape.

        Parameters
        ----------
        tensor : LogicalTensor

        Returns
        -------
        nbytes : int or None
            None where its layout id is none that this backend gives out. Unit: bytes.

        Raises
        ------
        InvalidArgumentError
            The id is one of this backend, but not for such a tensor on this processor.
        """
        ...

    def compile(
        self,
        partition: Partition,
        inputs: Sequence[LogicalTensor],
        outputs: Sequence[LogicalTensor],
        engine: Any,
        *,
        scratch: str,
        weights: str,
        schedule: str,
        streams: int,
    ) -> Any:
        """A compiled partition for complete inputs, and outputs that `partition.complete` completes.

        Both are in the caller's order; what stands behind the engine is that of `Partition.compile`, and a backend
        whose work has no steps to place on streams need not look at `schedule` and `streams`. Its ``template``, if
        not None, is callable with the engine and makes another one like it, or gives None; the partition refers to it
        weakly and calls it when the same arguments are given again.

        A backend that has a method ``compile_dynamic`` of the same signature is asked by it for inputs with unknown
        dimensions, and gives what is called as a `DynamicPartition`; others refuse them.

        Parameters
        ----------
        partition : Partition
        inputs : sequence of LogicalTensor
            With shapes and layouts known.
        outputs : sequence of LogicalTensor
            Their layout may be ``any``.
        engine : Engine
        scratch, weights, schedule : str
            As for `Partition.compile`.
        streams : int
            Most streams.

        Returns
        -------
        compiled : object
            With the interface of `CompiledPartition`.
        """
        ...


_registry: dict[str, list[Backend]] = {kind: [] for kind in ENGINE_KINDS}
_loading = threading.Lock()


def register_backend(backend: Backend) -> None:
    """Make a backend take part in the partitioning of graphs of its engine kind.

    Registering another one of the same name replaces the first; graphs that are partitioned already keep theirs.

    Parameters
    ----------
    backend : Backend

    Raises
    ------
    InvalidArgumentError
        There is no such kind of engine as its `engine_kind`.
    """
    group = _registry[check_engine_kind(backend.engine_kind)]
    group[:] = sorted([b for b in group if b.name != backend.name] + [backend], key=lambda b: -b.priority)


def backends_for(engine_kind: str) -> list[Backend]:
    """The backends of an engine kind; safe from many threads.

    Parameters
    ----------
    engine_kind : str
        ``"cpu"`` or ``"gpu"``.

    Returns
    -------
    backends : list of Backend
        Highest priority first.

    Raises
    ------
    InvalidArgumentError
        There is no such kind.
    """
    group = _registry[check_engine_kind(engine_kind)]
    if engine_kind in _backend_loader.loaders:
        _load(engine_kind)
    return list(group)


def are_own_backends(engine_kind: str) -> bool:
    """Whether those of an engine kind are the ones that ship with graphpool, as far as any was registered yet."""
    return all(type(backend).__module__.startswith("graphpool.") for backend in _registry[engine_kind])


def opaque_nbytes(tensor: LogicalTensor) -> int:
    """Size of an opaque tensor of known shape, as the backend says that gave out its layout id. Unit: bytes.

    Raises InvalidArgumentError where no backend gives out this id, or not for such a tensor on this processor.
    """
    for kind in ENGINE_KINDS:
        for backend in backends_for(kind):
            nbytes = backend.opaque_nbytes(tensor)
            if nbytes is not None:
                return nbytes
    raise InvalidArgumentError(
        explain(
            f"tensor {tensor.id}: layout id",
            accepted="one that query_logical_tensor of a compiled partition gave",
            got=f"{tensor.layout_id}, which no backend knows",
        ),
        tensor_id=tensor.id,
    )


def _load(engine_kind: str) -> None:
    """Call the loader of a kind, unless another thread has meanwhile; it counts as called when it has ended."""
    with _loading:
        loader = _backend_loader.loaders.get(engine_kind)
        if loader is not None:
            loader()
            del _backend_loader.loaders[engine_kind]


def _reset_in_child() -> None:
    """A fresh lock: in a forked child nobody is left who would release the old one."""
    global _loading
    _loading = threading.Lock()


os.register_at_fork(after_in_child=_reset_in_child)


def check_engine_kind(kind: str) -> str:
    """The kind itself when it is one."""
    return check_choice("engine kind", kind, ENGINE_KINDS)
