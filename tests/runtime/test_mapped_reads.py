"""Pages of files that runs read are brought into memory, and nothing but pages of the files is given back."""

import gc
import mmap
from pathlib import Path

import numpy as np
import pytest

from graphpool.mapped_file import MappedFile
from graphpool.runtime import mapped_reads
from graphpool.runtime.constant_part import PIECE_NBYTES, address_of
from graphpool.runtime.mapped_reads import MappedReads, reads_of

PAGE = mmap.PAGESIZE


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(np.arange(40 * PAGE // 4, dtype=np.uint32).tobytes())
    return MappedFile(path)


def reads_at(file, first, last):
    """What a run reads that reads these pages of a file."""
    array = np.frombuffer(file, np.uint8)[first * PAGE : last * PAGE]
    return reads_of(array, file, None)


def present(file):
    """Which pages of a file the process has in memory."""
    start = address_of(file)
    with Path("/proc/self/pagemap").open("rb", buffering=0) as pages:
        return mapped_reads._present(pages.fileno(), start, start + len(file)).tolist()


@pytest.mark.native
def test_the_pages_that_are_read_are_there_and_no_others(file):
    file.madvise(mmap.MADV_DONTNEED)
    MappedReads.joined([reads_at(file, 3, 5), reads_at(file, 20, 21)]).settle()
    assert [k for k, is_there in enumerate(present(file)) if is_there] == [3, 4, 20]


def make_maps(count):
    return [mmap.mmap(-1, 16 * PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) for _ in range(count)]


def test_memory_beside_a_file_keeps_what_another_thread_writes(tmp_path, monkeypatch):
    maps = make_maps(2000)  # they fill all smaller gaps of the address space, so that the file comes to lie beside one
    path = tmp_path / "weights"
    path.write_bytes(bytes(40 * PAGE))
    file, look = MappedFile(path), mapped_reads._present
    maps += make_maps(200)
    piece = (address_of(file) + 3 * PAGE) // PIECE_NBYTES
    near = [memory for memory in maps if address_of(memory) // PIECE_NBYTES == piece]
    assert near

    def look_and_write(*args):
        found = look(*args)
        for memory in near:  # as a thread may between any two steps
            memory[:] = b"x" * len(memory)
        return found

    monkeypatch.setattr(mapped_reads, "_present", look_and_write)
    file.madvise(mmap.MADV_DONTNEED)
    reads_at(file, 3, 5).settle()
    assert all(memory[:] == b"x" * len(memory) for memory in near)


def test_reads_keep_no_file_mapped(tmp_path):
    path = tmp_path / "weights"
    path.write_bytes(bytes(4 * PAGE))
    reads = reads_at(MappedFile(path), 0, 2)
    gc.collect()
    assert [found() for found in reads.files] == [None]
    reads.settle()
