from typing import Any

from graphpool.cache._recency import Node

from ._compiled import CompiledPartition
from .engine import Engine

class Template:
    """Makes compiled partitions like one that was made, as long as the caches keep what it was made of."""

    @property
    def is_stale(self) -> bool: ...
    def __init__(self, compiled: CompiledPartition, form: Node[Any, Any], primitive: Node[Any, Any]) -> None: ...
    def __call__(self, engine: Engine) -> CompiledPartition | None: ...
