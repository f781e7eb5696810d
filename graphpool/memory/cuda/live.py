"""LiveRequests: what a resource of a GPU has given and not got back."""

from __future__ import annotations

from graphpool._dataclasses import NamedTuple

from ...fork import Locked
from .device import open_device

__all__ = ["Block", "LiveRequests"]


class Block(NamedTuple):
    """A live request: its bytes, where its allocation begins, and how many bytes that takes."""

    nbytes: int
    start: int
    taken: int


class LiveRequests(Locked):
    """Base of resources of one device, whose live requests are changed under the lock."""

    def __init__(self, index: int) -> None:
        super().__init__()
        self.device = open_device(index)
        self._live: dict[int, Block] = {}

    @property
    def nbytes(self) -> int:
        """Sum of the live requests. Unit: bytes."""
        return sum(block.nbytes for block in self._live.copy().values())

    @property
    def count(self) -> int:
        """How many requests are live."""
        return len(self._live)
