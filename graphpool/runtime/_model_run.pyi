from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np

from graphpool.memory._arrays import ArrayAllocator
from graphpool.memory._budget import Budget

from ._counters import UseCount
from ._form_cache import FormCache, FormUse
from .declared_shapes import DeclaredShapes
from .executable import Executable
from .held_states import HeldStates
from .memory_queue import MemoryQueue
from .model_port import ModelPort

V = TypeVar("V")

class InputPorts:
    """Takes arrays for the inputs of a model."""

    def __init__(self, ports: Iterable[ModelPort]) -> None: ...
    def take(self, inputs: Mapping[str, Any]) -> dict[str, Any]: ...
    def dense(self, arrays: dict[str, Any], copies: ArrayAllocator) -> dict[str, Any]: ...

def is_dense(array: np.ndarray[Any, Any]) -> bool: ...
def check_outputs(outputs: Mapping[str, Any], inputs: dict[str, Any], names: frozenset[str]) -> None: ...

class ModelRun:
    """What each run of a model goes through; base of `ModelForms`, which makes the forms."""

    declared: DeclaredShapes | None

    def __init__(
        self,
        name: str,
        inputs: Sequence[ModelPort],
        outputs: Sequence[ModelPort],
        deciding: Sequence[str],
        cache: FormCache[Executable],
        count: UseCount,
        queue: MemoryQueue,
        host_budget: Budget,
    ) -> None: ...
    @property
    def copies(self) -> ArrayAllocator: ...
    @property
    def name(self) -> str: ...
    @property
    def cache(self) -> FormCache[Executable]: ...
    @property
    def deciding(self) -> tuple[str, ...]: ...
    def run(self, inputs: Mapping[str, Any], outputs: Mapping[str, Any] | None = None) -> dict[str, Any]: ...
    def dense(self, ports: InputPorts, given: dict[str, Any]) -> dict[str, Any]: ...
    def _run(self, given: Mapping[str, Any], outputs: Mapping[str, Any] | None) -> dict[str, Any]: ...
    def run_in_turn(self, arrays: dict[str, Any], work: Callable[..., V], *given: Any) -> V: ...
    def in_turn(self, work: Callable[..., V], *given: Any) -> V: ...
    def enter(self, arrays: dict[str, Any], states: HeldStates | None = None) -> FormUse[Executable]: ...
