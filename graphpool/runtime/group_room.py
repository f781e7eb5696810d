"""What a control group has left now, whoever took the rest: what would get the process killed is refused instead."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from graphpool.errors import OutOfMemoryError
from graphpool.fork import Locked
from graphpool.memory._check import out_of_memory
from graphpool.memory.adaptors import Adaptor

from .cgroups import LIMITS, MEMBERSHIP, ROOT, group_folders, read_count, used_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from graphpool.typing import MemoryResource

__all__ = ["NO_GROUPS", "GroupRoom", "RoomResource"]

_LEAST_NBYTES = 1 << 20
"""Smaller requests are not looked at. Unit: bytes."""

_MARGIN_NBYTES = 16 << 20
"""What is left for what nobody counts: objects, stacks, the C heap. Unit: bytes."""

_ENDLESS = 1 << 62
"""From here on a limit is none. Unit: bytes."""


class GroupRoom(Locked):
    """The control groups that limit the process, and the memory of an engine that may not have been written yet.

    Parameters
    ----------
    groups : iterable of (int, str, str)
        Version, folder, and the file that limits.
    blocks : callable
        Address and size of what the engine has taken: of a group's pages only what was written counts.

    Notes
    -----
    Threads: safe. Cost: three small files are read for each group.
    """

    def __init__(self, groups: Iterable[tuple[int, str, str]], blocks: Callable[[], list[tuple[int, int]]]) -> None:
        super().__init__()
        self._groups, self._blocks = tuple(groups), blocks
        self._awaited_nbytes = 0

    @classmethod
    def find(
        cls,
        blocks: Callable[[], list[tuple[int, int]]],
        root: str | Path = ROOT,
        membership: str | Path = MEMBERSHIP,
    ) -> GroupRoom:
        """Of the groups that the process is in now, those that have a limit and tell what they use."""
        found = [
            (version, folder, name)
            for version, folder in group_folders("memory", root, membership)
            for name in LIMITS[version]
            if (read_count(f"{folder}/{name}") or _ENDLESS) < _ENDLESS and used_nbytes(version, folder) is not None
        ]
        return cls(found, blocks)

    def check(self, nbytes: int, who: str) -> None:
        """Refuse so many bytes more than were taken, if a group would kill the process for them.

        Raises
        ------
        OutOfMemoryError
            A group has less left; the error tells what the process holds.
        """
        for file, most, used in self._full(nbytes):
            raise _refusal(file, most, used, nbytes, who, self._blocks())

    def has(self, nbytes: int) -> bool:
        """Whether `check` would let so many bytes pass now."""
        return next(self._full(nbytes), None) is None

    def _full(self, nbytes: int) -> Iterator[tuple[str, int, int]]:
        """The groups that have less left: the file, the most that may be taken, and what is."""
        for version, folder, name in self._groups if nbytes >= _LEAST_NBYTES else ():
            limit, used = read_count(f"{folder}/{name}"), used_nbytes(version, folder)
            most = _ENDLESS if limit is None else limit - _MARGIN_NBYTES
            used = self._awaited_nbytes + (used or 0)
            if used + nbytes <= most:
                continue
            from .process_report import resident_nbytes  # and a regular expression: not by all who make an engine

            used += sum(size - resident_nbytes(address, size) for address, size in self._blocks())
            if used + nbytes > most:
                yield f"{folder}/{name}", most, used

    @contextmanager
    def taking(self, nbytes: int, who: str) -> Iterator[None]:
        """As `check`, for what is taken within the block, beside that of other threads which do so."""
        with self._lock:
            self.check(nbytes, who)
            self._awaited_nbytes += nbytes
        try:
            yield
        finally:
            with self._lock:
                self._awaited_nbytes -= nbytes


NO_GROUPS = GroupRoom((), list)
"""That of an engine whose memory no group counts, or that has no limit."""


def _refusal(
    file: str, limit: int, used: int, nbytes: int, who: str, blocks: list[tuple[int, int]]
) -> OutOfMemoryError:
    """The error, with what the process holds by kind."""
    from .process_report import report_process

    report = report_process({"engine": sum(size for _, size in blocks)}, blocks, True)
    parts = {"this engine" if name == "budget" else name: size for name, size in report.parts.items()}
    error = out_of_memory(
        nbytes, in_use=used, limit=limit, resource=f"control group {file} (asked by {who})",
        holdings=parts, hint="let go of what the process holds beside the engine, or raise the group's limit",
    )  # fmt: skip
    return OutOfMemoryError(str(error), **error.fields, is_of_group=True)


class RoomResource(Adaptor):
    """Asks a `GroupRoom` before it takes memory."""

    def __init__(self, upstream: MemoryResource, room: GroupRoom) -> None:
        super().__init__(upstream)
        self._room = room

    def allocate(self, nbytes: int, alignment: int = 64, stream: object = None) -> int:
        """As the upstream; raises `OutOfMemoryError` where a group has too little left."""
        self._room.check(nbytes, "an engine's memory")
        return self.upstream.allocate(nbytes, alignment, stream)

    def deallocate(self, address: int, nbytes: int, alignment: int = 64, stream: object = None) -> None:
        """Give back to the upstream."""
        self.upstream.deallocate(address, nbytes, alignment, stream)
