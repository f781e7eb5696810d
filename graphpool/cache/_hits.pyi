from collections.abc import Callable, Hashable
from typing import Any

from graphpool.typing import MemoryResource

from ._entry import FullKey
from ._flight import Flight
from ._handle import ConstantBuffer, ConstantHandle
from .policies import Item, PolicyGuard, UseRecorder

class Entry:
    """What the cache knows of a key. Changed under the cache's lock, but for its hits."""

    full: FullKey
    item: Item
    flight: Flight[ConstantBuffer]
    buffer: ConstantBuffer | None

    def __init__(self, full: FullKey, item: Item) -> None: ...
    def keep(self, buffer: ConstantBuffer) -> None: ...
    def leave(self) -> None: ...
    def attach(self, handle: ConstantHandle) -> None: ...
    def detach(self, handle: ConstantHandle | None) -> None: ...
    def live_handles(self) -> list[ConstantHandle]: ...
    def take_uses(self) -> int: ...

class HitPath:
    """Entries, what hits need of them, and the policy that is told of their uses."""

    _entries: dict[FullKey, Entry]
    _hits: int
    _guard: PolicyGuard
    _record: UseRecorder | None

    def __init__(self) -> None: ...
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
    def count_hit(self, entry: Entry, handle: ConstantHandle | None) -> None: ...
    def _find_and_bind(self, full: FullKey, handle: ConstantHandle | None) -> ConstantBuffer | None: ...
    def _tell_hits(self) -> None: ...
    def _tell_hits_of(self, entry: Entry) -> None: ...
