"""The control groups that the process is in, of either version: where the files lie that limit it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["MEMBERSHIP", "ROOT", "group_folders", "read_count"]

ROOT, MEMBERSHIP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")


def group_folders(controller: str, root: Path = ROOT, membership: Path = MEMBERSHIP) -> Iterator[tuple[int, Path]]:
    """(version, folder) of the process's groups that may have a controller, and of all groups that contain them.

    Every one of them limits. A container may see its own group as the root, whatever the path says; the root is one of
    the folders. Nothing where there are no groups.
    """
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        if controllers == "":
            for name in ("", "unified"):
                yield from ((2, folder) for folder in _ancestors(root / name, path))
        elif controller in controllers.split(","):
            for name in (controller, controllers):
                yield from ((1, folder) for folder in _ancestors(root / name, path))


def _ancestors(root: Path, path: str) -> list[Path]:
    """The folder of a group and of the groups that contain it."""
    folder = root / path.lstrip("/")
    return [folder, *(parent for parent in folder.parents if parent == root or root in parent.parents)]


def read_count(file: Path) -> int | None:
    """The number in a file; None for ``max``, or if it cannot be read or is none."""
    try:
        text = file.read_text().strip()
    except (OSError, ValueError):
        return None
    return int(text) if text.isdecimal() and text.isascii() and len(text) < 32 else None
