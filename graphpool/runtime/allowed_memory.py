"""How much memory the process may take, and the limit of an engine that is told as ``auto`` or as a share of that."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from graphpool._dataclasses import dataclass
from graphpool.errors import InvalidArgumentError, explain
from graphpool.typing import parse_nbytes

from .cgroups import LIMITS, MEMBERSHIP, ROOT, group_folders, read_count, text_of, used_nbytes

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["AllowedMemory", "MemoryLimit", "allowed_memory", "parse_memory_limit"]

RESERVE_SHARE, RESERVE_NBYTES = 0.05, 32 * 2**20
"""What ``auto`` leaves for what grows outside of any budget: objects of the interpreter, slack of the C heap, stacks of
threads, the caller's inputs. A share of what is allowed, and at least so many bytes."""


@dataclass(frozen=True)
class AllowedMemory:
    """What the process may take at most, and who says so.

    Attributes
    ----------
    nbytes : int
        Unit: bytes.
    source : str
        The file of a control group, ``"ulimit -v"`` or ``"physical memory"``.
    counts_mapped : bool
        Whether pages of mapped files count: they do in control groups, which take them away again at need, and in
        address space.
    used_nbytes : int
        What is taken of it now: by the process, resident memory or address space; by all of a control group, where
        that tells, without pages of files, if that is more. Unit: bytes.
    """

    nbytes: int
    source: str
    counts_mapped: bool
    used_nbytes: int

    @property
    def reserve_nbytes(self) -> int:
        """What ``memory_limit="auto"`` leaves free. Unit: bytes."""
        return max(int(self.nbytes * RESERVE_SHARE), RESERVE_NBYTES)

    @property
    def auto_nbytes(self) -> int:
        """The limit that ``auto`` gives. Unit: bytes."""
        return self.nbytes - self.used_nbytes - self.reserve_nbytes


@dataclass(frozen=True)
class MemoryLimit:
    """A limit in bytes, None for none, and what counts: memory of the host at all, weights in mapped files."""

    nbytes: int | None
    counts_mapped: bool
    counts_host: bool = True


def allowed_memory(
    root: str | Path = ROOT, membership: str | Path = MEMBERSHIP, proc: str | Path = "/proc"
) -> AllowedMemory:
    """The least of what control groups, ``ulimit -v`` and the machine allow.

    Parameters
    ----------
    root, membership, proc : str or Path
        Where the control groups are mounted, the file that says in which ones the process is, and the folder of
        processes.

    Notes
    -----
    Files that are missing or malformed limit nothing. Of address space as much is taken into account as the process has
    left beside what it has mapped now.
    """
    space_nbytes, resident_nbytes = _present(proc)
    found = [AllowedMemory(_physical_nbytes(), "physical memory", False, resident_nbytes)]
    for version, folder in group_folders("memory", root, membership):
        taken_nbytes = max(used_nbytes(version, folder) or 0, resident_nbytes)
        for file in (f"{folder}/{name}" for name in LIMITS[version]):
            nbytes = read_count(file)
            if nbytes is not None:
                found.append(AllowedMemory(nbytes, file, True, taken_nbytes))
    space = _address_space()
    if space is not None:
        found.append(AllowedMemory(space, "ulimit -v", True, space_nbytes))
    return min(found, key=lambda allowed: allowed.nbytes - allowed.used_nbytes)


def parse_memory_limit(value: int | str | None) -> MemoryLimit:
    """The limit that a number, a size, ``auto`` or a share such as ``60%`` stands for.

    Raises
    ------
    InvalidArgumentError
        It is none of these, or the process has taken so much that ``auto`` leaves nothing.
    """
    if value is None:
        return MemoryLimit(None, False)
    is_auto = isinstance(value, str) and value.strip().lower() == "auto"
    if not is_auto and not (isinstance(value, str) and "%" in value):
        return MemoryLimit(parse_nbytes(value, auto=True), False)
    allowed = allowed_memory()
    nbytes = allowed.auto_nbytes if is_auto else parse_nbytes(value, whole_nbytes=allowed.nbytes, auto=True)
    if nbytes <= 0 and not is_auto:
        raise InvalidArgumentError(
            explain(
                f"memory_limit {value!r} leaves nothing",
                accepted='more than "0%"',
                got=f"{nbytes} of {allowed.nbytes} bytes ({allowed.source})",
            )
        )
    if nbytes <= 0:
        raise InvalidArgumentError(
            explain(
                f"memory_limit {value!r} leaves nothing",
                accepted=f"more than the {allowed.used_nbytes} bytes in use and {allowed.reserve_nbytes} in reserve",
                got=f"{allowed.nbytes} bytes ({allowed.source})",
                hint="raise that limit, or give a size",
            )
        )
    return MemoryLimit(nbytes, allowed.counts_mapped)


def _present(proc: str | Path) -> tuple[int, int]:
    """Address space and resident memory of the process now; 0 where the system does not tell. Unit: bytes."""
    try:
        space, resident, *_ = map(int, text_of(f"{proc}/self/statm").split())
    except ValueError:
        return 0, 0
    page = os.sysconf("SC_PAGESIZE")
    return space * page, resident * page


def _physical_nbytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGESIZE")


def _address_space() -> int | None:
    """The soft limit of ``ulimit -v``; None if there is none. Unit: bytes."""
    try:
        import resource
    except ImportError:  # no POSIX
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft
