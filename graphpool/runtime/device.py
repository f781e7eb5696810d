"""What an engine is on: the protocols that the implementations for CPUs and GPUs share, and where these are.

Nothing else in the library asks of which kind an engine is: what depends on that is a method here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from graphpool.errors import InvalidArgumentError, brief, explain

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from graphpool._kernels.core._team import Team
    from graphpool.graph import LogicalTensor
    from graphpool.typing import MemoryResource

    from ._tensor import Tensor
    from .allowed_memory import MemoryLimit
    from .engine import Engine
    from .form_parts import FormParts

__all__ = ["Device", "Mark", "Queue", "open_device"]

_IMPLEMENTATIONS = {"cpu": ("host_device", "HostDevice"), "gpu": ("cuda.gpu_device", "GpuDevice")}


class Mark(Protocol):
    """A point in the work of a queue."""

    @property
    def is_done(self) -> bool:
        """Whether all work before it is done."""
        ...

    def wait(self) -> None:
        """Return when it is done."""
        ...


class Queue(Protocol):
    """What does the work of a stream, in order.

    Attributes
    ----------
    team : Team or None
        Threads of the host that do it.
    """

    team: Team | None

    def wait(self) -> None:
        """Return when all work given so far is done."""
        ...

    def record(self) -> Mark:
        """A mark behind all work given so far."""
        ...

    def wait_for(self, mark: Any) -> None:
        """Let work given from now on start behind a mark of a queue of the same device."""
        ...

    def close(self) -> None:
        """Wait, and give back what it has."""
        ...


class Device(Protocol):
    """What depends on where an engine is.

    Attributes
    ----------
    is_host : bool
        Whether the host may follow addresses of its memory.
    dlpack_device : tuple of (int, int)
        What ``__dlpack_device__`` of its tensors gives.
    forms : FormParts
        What compiled forms of models are made of here.
    """

    is_host: bool
    dlpack_device: tuple[int, int]
    forms: FormParts

    def parse_limit(self, value: int | str | None) -> MemoryLimit:
        """The limit of memory that the user's words stand for; InvalidArgumentError where they do for none."""
        ...

    def resource(self, limit: int | None) -> MemoryResource:
        """Where memory comes from when the user brings nothing, at most so many bytes."""
        ...

    def host_blocks(self, blocks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """Those of (address, bytes) that are memory of the host."""
        ...

    def queue(self, engine: Engine, native: object) -> Queue:
        """What does the work of a new stream; `native` is the user's own, or None."""
        ...

    def bind(self, data: Any, lt: LogicalTensor) -> tuple[int, bool, Any]:
        """Address of the user's data, whether it is read-only, what keeps it alive; raises where it does not fit."""
        ...

    def fill(self, tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
        """Write an array of the host to a tensor; ValueError where it does not fit."""
        ...

    def read(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """The bytes of a tensor, which has some, on the host."""
        ...

    def view(self, tensor: Tensor) -> Any:
        """The tensor as an object with DLPack."""
        ...

    def close(self) -> None:
        """Give back what the device has for its engine; called once."""
        ...


def open_device(kind: str, index: int) -> Device:
    """The device of a kind and number.

    Parameters
    ----------
    kind : {"cpu", "gpu"}
    index : int

    Returns
    -------
    device : Device
        For one engine.

    Raises
    ------
    InvalidArgumentError
        Unknown kind, or no such device.
    UnsupportedError
        It needs what is not installed.
    """
    found = _IMPLEMENTATIONS.get(kind) if isinstance(kind, str) else None
    if found is None:
        raise InvalidArgumentError(explain("engine kind", accepted=", ".join(_IMPLEMENTATIONS), got=brief(kind)))
    module, name = found
    device: Device = getattr(import_module(f".{module}", __package__), name)(index)
    return device
