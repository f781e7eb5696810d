"""What the process's resident memory is: the budget's part, mapped files, libraries, stacks, slack of the heap."""

from __future__ import annotations

import ctypes
import mmap
import re
from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import dataclass
from graphpool.errors import UnsupportedError, explain

from .cgroups import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

__all__ = ["ProcessReport", "report_process", "resident_nbytes"]

_HEAP_NBYTES = 64 * 2**20
"""Alignment of the C library's heaps of threads (glibc, 64 bits)."""

_GUARD_NBYTES = 64 * 2**10
"""Most that is kept unreadable below the stack of a thread."""


@dataclass(frozen=True)
class ProcessReport:
    """Resident memory of the process by what it is, as one engine sees it.

    Attributes
    ----------
    resident_nbytes : int
        All of it: what `parts` sum up to. Unit: bytes.
    parts : dict of str to int
        Resident memory of the budget (``"budget"``), of mapped files that are no libraries, which the system takes away
        at need (``"mapped files"``), of ``"shared memory"`` without a file, as of `graphpool.share`, which every
        process that maps it shows and which stays until the last is done with it, of ``"libraries"`` and the
        interpreter's own file, of ``"stacks"``, free blocks that the C heap keeps (``"heap slack"``, if
        `is_slack_known`), and of ``"interpreter and caller"``: objects, the caller's arrays, other engines. Unit:
        bytes.
    holdings : dict of str to int
        What the budget counts, by holder. Memory that is counted and was never written is not resident. Unit: bytes.
    mapped_nbytes : int
        Size of the mapped files' mappings, resident or not. Unit: bytes.
    shared_nbytes : int
        Size of the mappings of shared memory, likewise. Unit: bytes.
    page_tables_nbytes : int
        What the kernel takes for the process beside that, which is not part of its resident size. Unit: bytes.
    is_slack_known : bool
        Whether the C library tells (glibc does); else the slack is with interpreter and caller.
    is_budget_exact : bool
        Whether the residency of what the budget counts was looked up, as it can be for memory of graphpool's own; that
        of an `allocator` of yours is taken to be resident.

    Notes
    -----
    ``str()`` gives a table. While other threads take memory, parts may be of slightly different moments.
    """

    resident_nbytes: int
    parts: dict[str, int]
    holdings: dict[str, int]
    mapped_nbytes: int
    shared_nbytes: int
    page_tables_nbytes: int
    is_slack_known: bool
    is_budget_exact: bool

    @property
    def fixed_nbytes(self) -> int:
        """What is neither the budget's nor in mapped files: interpreter, shared memory, stacks, slack. Unit: bytes."""
        return self.resident_nbytes - self.parts["budget"] - self.parts["mapped files"]

    def to_dict(self) -> dict[str, Any]:
        """All numbers by name, for JSON."""
        return vars(self) | {"fixed_nbytes": self.fixed_nbytes}

    def __str__(self) -> str:
        counted = ", ".join(f"{name} {_mib(nbytes)}" for name, nbytes in self.holdings.items() if nbytes)
        notes = {
            "budget": f"of {_mib(sum(self.holdings.values()))} counted" + (f": {counted}" if counted else ""),
            "mapped files": f"of {_mib(self.mapped_nbytes)} mapped; the system takes them away at need",
            "shared memory": f"of {_mib(self.shared_nbytes)} mapped; once for all processes that have it",
            "heap slack": "" if self.is_slack_known else "unknown: this C library does not tell",
        }
        rows = [(name, nbytes, notes.get(name, "")) for name, nbytes in self.parts.items()]
        rows += [("resident", self.resident_nbytes, ""), ("page tables", self.page_tables_nbytes, "not in it")]
        return "\n".join(f"{name:<24}{_mib(nbytes):>14}  {note}".rstrip() for name, nbytes, note in rows)


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.2f} MiB"


@dataclass(frozen=True)
class _Mapping:
    """A part of the address space."""

    start: int
    end: int
    permissions: str
    path: str
    resident_nbytes: int
    anonymous_nbytes: int

    @property
    def nbytes(self) -> int:
        return self.end - self.start


def report_process(
    holdings: Mapping[str, int], blocks: Iterable[tuple[int, int]], is_budget_exact: bool, proc: str | Path = "/proc"
) -> ProcessReport:
    """Read what the kernel and the C library tell of the process.

    Parameters
    ----------
    holdings : mapping of str to int
        What the budget counts. Unit: bytes.
    blocks : iterable of (int, int)
        Address and size of memory that it counts, as far as they are known; the rest is taken to be resident.
    is_budget_exact : bool
        Whether all large blocks are among them.
    proc : str or Path
        The folder of processes.

    Raises
    ------
    UnsupportedError
        There is no ``/proc/self/smaps``.
    """
    known = list(blocks)
    try:
        with open(f"{proc}/self/smaps") as file:  # noqa: PTH123 - workers need no pathlib
            mappings = _read_mappings(file)
    except OSError as error:
        message = explain("the system does not tell what the process's memory is", accepted="Linux", got=error)
        raise UnsupportedError(message) from error
    counted = sum(holdings.values())
    budget = counted - sum(nbytes for _, nbytes in known) + sum(resident_nbytes(*block) for block in known)
    kinds = _kinds_of(mappings)
    resident = {kind: sum(m.resident_nbytes for m in found) for kind, found in kinds.items()}
    files, shared_nbytes = kinds["mapped files"], sum(m.nbytes for m in kinds["shared memory"])
    written = sum(m.anonymous_nbytes for m in files)  # pages of files that are the process's own by now
    in_use = _heap_in_use()
    slack = 0 if in_use is None else max(resident["heap"] - in_use, 0)
    total = sum(m.resident_nbytes for m in mappings)
    parts = {
        "budget": max(budget, 0),
        "mapped files": resident["mapped files"] - written,
        "shared memory": resident["shared memory"],
        "libraries": resident["libraries"],
        "stacks": resident["stacks"],
        "heap slack": slack,
    }
    parts["interpreter and caller"] = max(total - sum(parts.values()), 0)
    found = re.search(r"^VmPTE:\s+(\d+) kB$", text_of(f"{proc}/self/status"), re.MULTILINE)
    return ProcessReport(
        total, parts, dict(holdings), sum(m.nbytes for m in files), shared_nbytes,
        int(found[1]) * 1024 if found else 0, in_use is not None, is_budget_exact,
    )  # fmt: skip


_HEADER = re.compile(r"^([0-9a-f]+)-([0-9a-f]+) (\S+) \S+ \S+ \S+ *(.*)$")


def _read_mappings(lines: Iterable[str]) -> list[_Mapping]:
    """What ``smaps`` lists; line by line, since all of it would be a megabyte more in the heap."""
    found: list[_Mapping] = []
    facts: dict[str, int] = {}
    header: re.Match[str] | None = None

    def end() -> None:
        if header is not None:
            start, stop = int(header[1], 16), int(header[2], 16)
            sizes = facts.get("Rss", 0) * 1024, facts.get("Anonymous", 0) * 1024
            found.append(_Mapping(start, stop, header[3], header[4], *sizes))

    for line in lines:
        match = _HEADER.match(line)
        if match is not None:
            end()
            header, facts = match, {}
        else:
            name, _, value = line.partition(":")
            if name in ("Rss", "Anonymous"):
                facts[name] = int(value.split()[0])
    end()
    return found


_KINDS = ("libraries", "mapped files", "shared memory", "stacks", "heap", "rest")
_SHARED_MEMORY = ("/memfd:", "/dev/shm/", "/SYSV", "/dev/zero")  # noqa: S108 - nothing is written there
"""How paths of memory without a file begin."""


def _kinds_of(mappings: Sequence[_Mapping]) -> dict[str, list[_Mapping]]:
    """Mappings by what they are; the rest is memory of nobody in particular."""
    libraries = {m.path for m in mappings if "x" in m.permissions}
    kinds: dict[str, list[_Mapping]] = {name: [] for name in _KINDS}
    before = _Mapping(0, 0, "---p", "", 0, 0)
    kind = "rest"
    for number, this in enumerate(mappings):
        after = mappings[number + 1] if number + 1 < len(mappings) else before
        is_zeroed_data = kind == "libraries" and before.end == this.start and before.permissions[1] == "w"
        kind = _kind_of(this, before, after, libraries, is_zeroed_data)
        kinds[kind].append(this)
        before = this
    return kinds


def _kind_of(this: _Mapping, before: _Mapping, after: _Mapping, libraries: set[str], is_zeroed_data: bool) -> str:
    if this.path == "[stack]":
        return "stacks"
    if this.path == "[heap]":
        return "heap"
    if this.path.startswith(_SHARED_MEMORY):
        return "shared memory"
    if this.path:
        return "libraries" if this.path in libraries or this.path.startswith("[v") else "mapped files"
    if not this.permissions.startswith("rw"):
        return "rest"
    if this.start % _HEAP_NBYTES == 0 and after.start == this.end and after.permissions[:2] == "--":
        return "heap"
    if before.permissions[:2] == "--" and before.end == this.start and before.nbytes <= _GUARD_NBYTES:
        return "stacks"
    return "libraries" if is_zeroed_data else "rest"


class _Mallinfo2(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_size_t) for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")),
        *((name, ctypes.c_size_t) for name in ("uordblks", "fordblks", "keepcost")),
    )


def _heap_in_use() -> int | None:
    """Bytes of the C heap in use, but for large blocks, mapped one by one; None if the library does not tell."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        return None
    mallinfo2.restype = _Mallinfo2
    return int(mallinfo2().uordblks)


def resident_nbytes(address: int, nbytes: int) -> int:
    """How much of a block of memory is resident. Unit: bytes."""
    if nbytes <= 0:
        return 0
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    npages = -(-(address + nbytes - first) // mmap.PAGESIZE)
    states = (ctypes.c_ubyte * npages)()
    mincore = ctypes.CDLL(None).mincore
    mincore.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
    if mincore(first, npages * mmap.PAGESIZE, states) != 0:
        return nbytes  # given back meanwhile, perhaps in part
    present = npages - bytes(states).translate(_LAST_BIT).count(0)
    return min(present * mmap.PAGESIZE, nbytes)


_LAST_BIT = bytes(number & 1 for number in range(256))
