from collections.abc import Callable, Hashable
from typing import Any

from graphpool.typing import MemoryResource

from ._entry import Entry, FullKey
from ._handle import ConstantBuffer, ConstantHandle
from .policies import Item, Policy

class HitPath:
    """Entries under one lock, and the policy that is told of their uses."""

    _entries: dict[FullKey, Entry]
    _hits: int
    _policy: Policy
    _record: list[Item] | None

    def __init__(self, policy: Policy) -> None: ...
    def get_or_add(
        self,
        backend_id: Hashable,
        key: Hashable,
        nbytes: int,
        producer: Callable[..., Any],
        *,
        resource: MemoryResource | None = None,
        cost: float | None = None,
        handle: ConstantHandle | None = None,
    ) -> ConstantBuffer | None: ...
    def find(self, full: FullKey, nbytes: int, handle: ConstantHandle | None = None) -> ConstantBuffer | None: ...
    def count_hit(self, entry: Entry, buffer: ConstantBuffer, handle: ConstantHandle | None) -> None: ...
