"""Pages of mapped constants."""

import mmap
from pathlib import Path

import numpy as np

from graphpool.cache.identity import quick_fingerprint
from graphpool.runtime.constant_part import drop_pages, held_nbytes, known_fingerprint
from graphpool.typing import DataType

NBYTES = 64 * mmap.PAGESIZE


def resident_pages(pages):
    """Resident size of the mapping. Unit: kilobytes."""
    address = f"{np.frombuffer(pages, np.uint8).__array_interface__['data'][0]:x}-"
    lines = iter(Path("/proc/self/smaps").read_text().splitlines())
    next(line for line in lines if line.startswith(address))
    return int(next(line for line in lines if line.startswith("Rss:")).split()[1])


def map_file(path, access):
    path.write_bytes(np.arange(NBYTES // 4, dtype=np.int32).tobytes())
    with path.open("r+b") as file:
        return mmap.mmap(file.fileno(), 0, access=access)


def test_pages_of_a_file_are_dropped_and_read_again(tmp_path):
    pages = map_file(tmp_path / "weights", mmap.ACCESS_READ)
    array = np.frombuffer(pages, np.int32)[7:-9]
    total = int(array.sum(dtype=np.int64))
    before = resident_pages(pages)
    drop_pages(array)
    assert resident_pages(pages) <= 8 < before
    assert int(array.sum(dtype=np.int64)) == total


def test_pages_that_may_differ_from_the_file_stay(tmp_path):
    pages = map_file(tmp_path / "weights", mmap.ACCESS_COPY)
    array = np.frombuffer(pages, np.int32)
    array[:] = 5
    drop_pages(array)
    assert (array == 5).all()


def test_other_arrays_stay():
    array = np.full(NBYTES, 3, np.uint8)
    drop_pages(array)
    assert (array == 3).all()


def test_weights_in_a_file_mapped_for_reading_take_no_memory(tmp_path):
    array = np.frombuffer(map_file(tmp_path / "weights", mmap.ACCESS_READ), np.int32)
    assert held_nbytes(array) == held_nbytes(array[3:].reshape(1, -1)) == 0
    changed = np.frombuffer(map_file(tmp_path / "others", mmap.ACCESS_COPY), np.int32)
    assert held_nbytes(changed) == held_nbytes(array.copy()) == NBYTES


def test_each_version_of_a_content_is_read_once():
    content, first, second = np.ones(4, np.float32), object(), object()
    name = known_fingerprint(first, content, DataType.F32)
    assert name == quick_fingerprint(content)
    content[:] = 2
    assert known_fingerprint(first, content, DataType.F32) == name
    assert known_fingerprint(second, content, DataType.F32) == quick_fingerprint(content) != name
