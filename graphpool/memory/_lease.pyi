from typing import Self

from ._arena import ArenaPool

class Lease:
    """The right to one arena of a pool: unique, released once, from any thread."""

    pool: ArenaPool
    nbytes: int

    @property
    def address(self) -> int: ...
    @property
    def is_live(self) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
