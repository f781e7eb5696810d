from graphpool.memory import MemoryManagerCached
from graphpool.memory._arena import ArenaPool

from .engine_primitives import EnginePrimitives
from .primitive import Primitive

class IdleBytes:
    """Sum over the shares of an engine that have no users."""

    def __int__(self) -> int: ...

class PrimitiveShare:
    """The users of a primitive on one engine, and its `MemoryManagerCached` there."""

    primitive: Primitive
    owner: EnginePrimitives
    manager: MemoryManagerCached
    arenas: ArenaPool | None
    idle_since: float

    def __init__(self, primitive: Primitive, owner: EnginePrimitives) -> None: ...
    @property
    def users(self) -> int: ...
    def enter(self, reserves: bool) -> bool: ...
    def leave(self, reserved: bool) -> None: ...
    def try_end(self) -> bool: ...
