"""The control groups that the process is in, of either version: where the files lie that limit it."""

from __future__ import annotations

from contextlib import suppress
from os import fspath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["LIMITS", "MEMBERSHIP", "ROOT", "group_folders", "read_count", "text_of", "used_nbytes"]

ROOT, MEMBERSHIP = "/sys/fs/cgroup", "/proc/self/cgroup"

LIMITS = {1: ("memory.limit_in_bytes",), 2: ("memory.max", "memory.high")}
"""Files of a group that limit its memory, by version."""

_USED = {1: ("memory.usage_in_bytes", "total_"), 2: ("memory.current", "")}
"""The file that tells what a group uses, and how names in its statistics begin that have groups below added."""


def group_folders(
    controller: str, root: str | Path = ROOT, membership: str | Path = MEMBERSHIP
) -> Iterator[tuple[int, str]]:
    """(version, folder) of the process's groups that may have a controller, and of all groups that contain them.

    Every one of them limits. A container may see its own group as the root, whatever the path says; the root is one of
    the folders. Nothing where there are no groups.
    """
    root = fspath(root)
    for line in text_of(membership).splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        if controllers == "":
            for name in ("", "unified"):
                yield from ((2, folder) for folder in _ancestors(f"{root}/{name}", path))
        elif controller in controllers.split(","):
            for name in (controller, controllers):
                yield from ((1, folder) for folder in _ancestors(f"{root}/{name}", path))


def _ancestors(root: str, path: str) -> list[str]:
    """The folder of a group and of the groups that contain it."""
    names = [root.rstrip("/"), *filter(None, path.split("/"))]
    return ["/".join(names[:count]) for count in range(len(names), 0, -1)]


def read_count(file: str) -> int | None:
    """The number in a file; None for ``max``, or if it cannot be read or is none."""
    text = text_of(file).strip()
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 32 else None


def text_of(file: str | Path) -> str:
    """What is in a file; nothing if it cannot be read. An engine asks, so that workers need no pathlib."""
    with suppress(OSError, ValueError), open(file) as opened:  # noqa: PTH123
        return opened.read()
    return ""


def used_nbytes(version: int, folder: str) -> int | None:
    """What a group uses, but for what the system takes away at need: pages of files, and its caches of their names.

    None if it does not tell.
    """
    name, prefix = _USED[version]
    used = read_count(f"{folder}/{name}")
    if used is None:
        return None
    lines = text_of(f"{folder}/memory.stat").splitlines()
    names = (f"{prefix}inactive_file", f"{prefix}active_file", "slab_reclaimable")
    counts = [count for key, _, count in (line.partition(" ") for line in lines) if key in names]
    return max(used - sum(int(count) for count in counts if count.isdecimal()), 0)
