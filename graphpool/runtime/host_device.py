"""The CPU as a device of engines: memory of the host, work that is done before `execute` returns."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphpool._kernels.core._team import Team
from graphpool.errors import InvalidArgumentError, brief, explain
from graphpool.memory import HostResource

from . import thread_limits
from ._tensor import bind_array, fill_array, raw_array
from .allowed_memory import parse_memory_limit
from .form_constants import FormConstants
from .form_parts import FormParts
from .form_plan import TensorPlaces
from .runner import Runner

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from graphpool.graph import LogicalTensor

    from ._tensor import Tensor
    from .allowed_memory import MemoryLimit
    from .engine import Engine

__all__ = ["HostDevice"]


class _Done:
    """A mark in work that is done."""

    is_done = True

    def wait(self) -> None:
        """Return."""


class HostQueue:
    """A team of threads, which are the caller's own where the engine has one."""

    def __init__(self, threads: int) -> None:
        self.team: Team | None = None
        if threads > 1:
            thread_limits.register()
            self.team = Team(threads)

    def wait(self) -> None:
        """Return: work is done when it was given."""

    def record(self) -> _Done:
        """A mark that is done."""
        return _Done()

    def wait_for(self, mark: _Done) -> None:
        """Return: the mark is done."""

    def close(self) -> None:
        """End the threads."""
        if self.team is not None:
            self.team.close()


class HostDevice:
    """The one CPU; see `graphpool.runtime.device.Device`."""

    is_host = True
    dlpack_device = (1, 0)
    forms = FormParts(FormConstants, TensorPlaces, Runner)

    def __init__(self, index: int) -> None:
        if index != 0:
            raise InvalidArgumentError(explain("engine index", accepted="0, there is one cpu", got=brief(index)))

    def parse_limit(self, value: int | str | None) -> MemoryLimit:
        """Shares are of what the process may take."""
        return parse_memory_limit(value)

    def resource(self, limit: int | None) -> HostResource:
        """The C heap; the engine's budget holds the limit."""
        return HostResource()

    def host_blocks(self, blocks: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
        """All of them."""
        return list(blocks)

    def queue(self, engine: Engine, native: object) -> HostQueue:
        """A team of as many threads as the engine has."""
        if native is not None:
            raise InvalidArgumentError(explain("native stream of a cpu engine", accepted="None", got=brief(native)))
        return HostQueue(engine.threads)

    def bind(self, data: Any, lt: LogicalTensor) -> tuple[int, bool, Any]:
        """Arrays, and what shares memory with them."""
        return bind_array(data, lt)

    def fill(self, tensor: Tensor, array: np.ndarray[Any, Any]) -> None:
        """Write to the buffer."""
        fill_array(tensor, array)

    def read(self, tensor: Tensor) -> np.ndarray[Any, Any]:
        """The bytes themselves, which keep the buffer alive."""
        return raw_array(tensor)

    def view(self, tensor: Tensor) -> Any:
        """The tensor's array."""
        return tensor.numpy()

    def close(self) -> None:
        """There is nothing to give back."""
