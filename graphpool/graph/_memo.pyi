from collections.abc import Callable
from typing import Any

from .logical_tensor import LogicalTensor

class CompileMemo:
    """Up to 8 compilations of one partition, the latest first."""

    def __init__(self) -> None: ...
    def find(
        self,
        inputs: tuple[LogicalTensor, ...],
        outputs: tuple[LogicalTensor, ...],
        engine: Any,
        scratch: str,
        weights: str,
    ) -> Any: ...
    def remember(
        self,
        inputs: tuple[LogicalTensor, ...],
        outputs: tuple[LogicalTensor, ...],
        engine: Any,
        scratch: str,
        weights: str,
        template: Callable[[Any], Any],
    ) -> None: ...

class Record:
    """The arguments of one compilation, and what makes its like."""
