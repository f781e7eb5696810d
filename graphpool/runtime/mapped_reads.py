"""What a run reads of mapped files, page by page: foretold, and brought into memory beforehand.

Where one page is read a system maps what lies around, up to 2 MiB for a bias of a few bytes. What is mapped already
brings in nothing more.
"""

from __future__ import annotations

import mmap
import os
from io import FileIO
from typing import TYPE_CHECKING, Any
from weakref import ref

import numpy as np
from numpy.lib.array_utils import byte_bounds

from graphpool._dataclasses import dataclass
from graphpool._kernels.core.records import record

from ._program import FIRST_EXTERNAL
from .constant_part import PIECE_NBYTES, address_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ._program import Program

__all__ = ["NO_READS", "MappedReads", "reads_of", "rows_read"]


@dataclass(frozen=True)
class MappedReads:
    """What a run reads of mapped files.

    `spans` are (begin, end) of addresses of whole pages that it reads all of, in order and disjoint. `rows_nbytes` is
    the most that lookups bring in of tables of which they read a part, `counted_nbytes` what of both the budget counts.
    Unit: bytes. `files` are those in which the spans lie, which this keeps nobody from unmapping.
    """

    spans: tuple[tuple[int, int], ...] = ()
    rows_nbytes: int = 0
    counted_nbytes: int = 0
    files: tuple[ref[mmap.mmap], ...] = ()

    @property
    def nbytes(self) -> int:
        """What that takes at most of the process's memory, beside what is counted. Unit: bytes."""
        whole_nbytes = sum(end - begin for begin, end in self.spans)
        return max(whole_nbytes + self.rows_nbytes - self.counted_nbytes, 0)

    @classmethod
    def joined(cls, reads: Iterable[MappedReads]) -> MappedReads:
        """All of them; pages that several read stand there once."""
        found = list(reads)
        spans: list[tuple[int, int]] = []
        for begin, end in sorted(span for one in found for span in one.spans):
            if spans and begin <= spans[-1][1]:
                spans[-1] = spans[-1][0], max(end, spans[-1][1])
            else:
                spans.append((begin, end))
        files = tuple({file: None for one in found for file in one.files})
        rows_nbytes, counted_nbytes = sum(one.rows_nbytes for one in found), sum(one.counted_nbytes for one in found)
        return cls(tuple(spans), rows_nbytes, counted_nbytes, files)

    def present_nbytes(self) -> int:
        """How much of the spans the process has in memory now; 0 where the system does not tell. Unit: bytes."""
        try:
            with _open_pages() as file:
                found = [_present(file.fileno(), *span) for span in self.spans]
        except OSError:
            return 0
        return sum(int(np.count_nonzero(pages)) for pages in found) * mmap.PAGESIZE

    def settle(self) -> None:
        """Bring the spans into memory, as far as a later read of one would bring in what lies around it.

        What comes with them goes again, of their files alone: what lies beside these is other memory, which threads
        may be writing to. Nothing is done where the system does not tell which pages are present. Cost: a look at each
        page of the first and last 2 MiB of a span; reads the file where the system does not have it in memory.
        """
        try:
            with _open_pages() as pages:
                for file in filter(None, (found() for found in self.files)):  # stays mapped meanwhile
                    for begin, wanted in self._pieces(file):
                        _bring(pages.fileno(), file, begin, wanted)
        except OSError:
            return

    def _pieces(self, file: mmap.mmap) -> Iterator[tuple[int, np.ndarray[Any, Any]]]:
        """Offsets of what one fault may map of a file, where spans have a part of it, and which pages these have."""
        start = address_of(file)
        last = start + _up(len(file), mmap.PAGESIZE)
        found: dict[int, np.ndarray[Any, Any]] = {}
        for begin, end in ((max(begin, start), min(end, last)) for begin, end in self.spans):
            if begin >= end:
                continue
            for piece in {begin // PIECE_NBYTES * PIECE_NBYTES, (end - 1) // PIECE_NBYTES * PIECE_NBYTES}:
                low, high = max(piece, start), min(piece + PIECE_NBYTES, last)
                wanted = found.setdefault(low, np.zeros((high - low) // mmap.PAGESIZE, np.bool_))
                wanted[max(begin - low, 0) // mmap.PAGESIZE : (end - low) // mmap.PAGESIZE] = True
        yield from ((low - start, wanted) for low, wanted in sorted(found.items()) if not wanted.all())


NO_READS = MappedReads()


def _open_pages() -> FileIO:
    """What the system tells of the pages of this process."""
    return FileIO(os.open("/proc/self/pagemap", os.O_RDONLY | os.O_CLOEXEC))


def _present(descriptor: int, begin: int, end: int) -> np.ndarray[Any, Any]:
    """Which pages are in memory."""
    first, last = begin // mmap.PAGESIZE, end // mmap.PAGESIZE
    entries = np.frombuffer(os.pread(descriptor, (last - first) * 8, first * 8), np.uint64)
    found: np.ndarray[Any, Any] = entries >> np.uint64(63) != 0  # a page's last bit
    return found


def _bring(descriptor: int, file: mmap.mmap, begin: int, wanted: np.ndarray[Any, Any]) -> None:
    """Read these pages of a piece of a file, and give back what was not in memory before and came with them."""
    first = address_of(file) + begin
    last = first + len(wanted) * mmap.PAGESIZE
    before = _present(descriptor, first, last)
    for page in np.flatnonzero(wanted & ~before).tolist():
        file[begin + page * mmap.PAGESIZE]  # is read
    surplus = _present(descriptor, first, last) & ~before & ~wanted
    edges = np.flatnonzero(np.diff(surplus, prepend=False, append=False)).tolist()
    for page, end in zip(edges[::2], edges[1::2], strict=True):
        file.madvise(mmap.MADV_DONTNEED, begin + page * mmap.PAGESIZE, (end - page) * mmap.PAGESIZE)


def reads_of(value: np.ndarray[Any, Any], mapping: mmap.mmap, rows_nbytes: int | None) -> MappedReads:
    """An array in a mapped file, of which lookups bring in so much at most, or that is read as a whole (None).

    So is a small one that has no more pages than one lookup may bring in.
    """
    first, last = byte_bounds(value)
    begin, end = first // mmap.PAGESIZE * mmap.PAGESIZE, _up(last, mmap.PAGESIZE)
    if rows_nbytes is None or end - begin <= PIECE_NBYTES:
        return MappedReads(((begin, end),), files=(ref(mapping),))
    start = address_of(mapping)
    begin = max(begin // PIECE_NBYTES * PIECE_NBYTES, start)
    end = min(_up(end, PIECE_NBYTES), _up(start + len(mapping), mmap.PAGESIZE))
    return MappedReads((), min(rows_nbytes, end - begin))


def _up(address: int, step: int) -> int:
    return -(-address // step) * step


def rows_read(program: Program, has_packed: bool) -> dict[int, int | None]:
    """The most that a program's lookups bring in of each external tensor; None for those that are read otherwise, too.

    By position; those that nothing reads are left out. `has_packed` says that all constants which steps ask for are
    there: no step runs that stands for one that is not. Unit: bytes. Cost: about a microsecond a step.
    """
    found: dict[int, int | None] = {}
    for (_, _, block, args, _, _, guard), call in zip(program.describe(), program.calls, strict=True):
        if has_packed and guard is not None and not guard[1]:
            continue
        for number, (base, _) in enumerate(args):
            position = base - FIRST_EXTERNAL
            known_nbytes = found.get(position, 0)
            if position < 0 or known_nbytes is None:
                continue
            found[position] = None
            if call.kernel.name == "any_gather" and number == 0:
                known = record(call.kernel.params)
                npieces = -(-(known.read(block, "row_nbytes") - 1) // PIECE_NBYTES) + 1  # wherever a row begins
                found[position] = known_nbytes + known.read(block, "npositions") * npieces * PIECE_NBYTES
    return found
