from collections.abc import Sequence
from typing import Any

from graphpool.limits import Limits
from graphpool.memory._arrays import ArrayAllocator

from .model_step import ModelStep

class Spent:
    """What the run that this thread is at has taken, and until when it may go on."""

class HostBudget:
    """Steps and wall time of host functions, for each thread that runs a model anew with each run."""

    def __init__(self, limits: Limits) -> None: ...
    @property
    def limits(self) -> Limits: ...
    def start(self) -> None: ...
    def spend(self, steps: int, node: str) -> None: ...

class HostCall:
    """A host function on the values of a run."""

    def __init__(
        self,
        step: ModelStep,
        values: dict[int, Any],
        are_plain: Sequence[bool],
        budget: HostBudget | None,
        arrays: ArrayAllocator,
        keeps_room: bool = True,
    ) -> None: ...
    def __call__(self) -> None: ...
