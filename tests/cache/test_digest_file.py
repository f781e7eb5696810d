"""What a packed store keeps of mapped files: the digests of their parts, by which others need not read them."""

import os
import warnings

import numpy as np
import pytest

from graphpool import mapped_file
from graphpool.cache import PackedStore
from graphpool.errors import PerformanceWarning
from graphpool.mapped_file import MappedFile

DIGESTS = {(0, 64): bytes(range(16)), (64, 4096): bytes(range(16, 32))}


@pytest.fixture
def path(tmp_path, monkeypatch):
    """A file that may be told from itself at other times at once."""
    monkeypatch.setattr(mapped_file, "_SETTLED_NS", -1)
    path = tmp_path / "weights.bin"
    path.write_bytes(np.arange(2048, dtype=np.float32).tobytes())
    return path


def take(path, digests=DIGESTS):
    """The file, mapped by a process that has taken digests."""
    mapped = MappedFile(path)
    mapped.taken.update(digests)
    return mapped


def recalled(folder, path):
    """What another process finds."""
    mapped = MappedFile(path)
    PackedStore(folder).recall(mapped)
    return mapped.known


def test_another_process_recalls_what_was_noted(tmp_path, path):
    store = PackedStore(tmp_path / "store")
    store.note(take(path))
    assert recalled(tmp_path / "store", path) == DIGESTS
    assert (len(store), len(list(store.path.glob("*.digests")))) == (0, 1)
    assert store.nbytes == store.stats().nbytes > 32 * len(DIGESTS)
    store.clear()
    assert (recalled(tmp_path / "store", path), store.nbytes) == ({}, 0)


def test_names_do_not_change_within_a_process(tmp_path, path):
    store = PackedStore(tmp_path / "store")
    store.note(take(path))
    again = MappedFile(path)
    store.recall(again)
    assert again.known == {}


def test_what_others_noted_is_kept_with_what_is_new(tmp_path, path):
    PackedStore(tmp_path / "store").note(take(path))
    store, mapped = PackedStore(tmp_path / "store"), MappedFile(path)
    store.recall(mapped)
    mapped.taken[8192 - 64, 64] = bytes(16)
    store.note(mapped)
    assert recalled(tmp_path / "store", path) == DIGESTS | mapped.taken
    third = MappedFile(path)
    store.recall(third)
    assert third.known == DIGESTS | mapped.taken


def test_without_digests_nothing_is_written(tmp_path, path):
    store = PackedStore(tmp_path / "store")
    store.note(MappedFile(path))
    assert list(store.path.iterdir()) == []


def rewrite(path):
    with path.open("r+b") as file:
        file.write(b"other")


def replace(path):
    other = path.with_suffix(".new")
    other.write_bytes(path.read_bytes())
    other.replace(path)


@pytest.mark.parametrize("change", [rewrite, replace, os.unlink])
def test_of_a_file_that_was_changed_since_nothing_is_noted(tmp_path, path, change):
    mapped, store = take(path), PackedStore(tmp_path / "store")
    change(path)
    store.note(mapped)
    assert list(store.path.glob("*.digests")) == []


@pytest.mark.parametrize("change", [rewrite, replace])
def test_of_a_file_that_was_changed_since_nothing_is_recalled(tmp_path, path, change):
    PackedStore(tmp_path / "store").note(take(path))
    change(path)
    assert recalled(tmp_path / "store", path) == {}


def test_of_a_file_that_was_just_written_nothing_is_noted(tmp_path, path, monkeypatch):
    monkeypatch.setattr(mapped_file, "_SETTLED_NS", 10**12)
    store = PackedStore(tmp_path / "store")
    store.note(take(path))
    assert list(store.path.glob("*.digests")) == []


def cut(data):
    return data[:-1]


def emptied(data):
    return b""


def with_another_magic(data):
    return b"X" + data[1:]


def with_another_digest(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def grown(data):
    return data + bytes(32)


@pytest.mark.parametrize("damage", [cut, emptied, with_another_magic, with_another_digest, grown])
def test_a_damaged_file_is_nothing_with_one_warning(tmp_path, path, damage):
    PackedStore(tmp_path / "store").note(take(path))
    [file] = (tmp_path / "store").glob("*.digests")
    file.write_bytes(damage(file.read_bytes()))
    with pytest.warns(PerformanceWarning, match="is damaged and will be made again"):
        assert recalled(tmp_path / "store", path) == {}
    assert not file.exists()


def test_a_file_of_another_name_is_damage(tmp_path, path):
    other = path.with_suffix(".other")
    other.write_bytes(path.read_bytes())
    store = PackedStore(tmp_path / "store")
    store.note(take(path))
    [ours] = store.path.glob("*.digests")
    store.note(take(other))
    [theirs] = set(store.path.glob("*.digests")) - {ours}
    ours.replace(theirs)
    with pytest.warns(PerformanceWarning, match="damaged"):
        assert recalled(tmp_path / "store", other) == {}


def test_links_and_pipes_are_not_read(tmp_path, path):
    PackedStore(tmp_path / "store").note(take(path))
    [file] = (tmp_path / "store").glob("*.digests")
    moved = file.rename(tmp_path / "moved")
    file.symlink_to(moved)
    with pytest.warns(PerformanceWarning, match="cannot be read"):
        assert recalled(tmp_path / "store", path) == {}
    file.unlink()
    os.mkfifo(file)
    with pytest.warns(PerformanceWarning, match="cannot be read"):
        assert recalled(tmp_path / "store", path) == {}


def test_what_was_used_longest_ago_leaves(tmp_path, path):
    store = PackedStore(tmp_path / "store", capacity_nbytes=400)
    store.note(take(path))
    other = path.with_suffix(".other")
    other.write_bytes(bytes(8192))
    store.note(take(other, {(n, 1): bytes(16) for n in range(6)}))
    assert (recalled(store.path, path), len(recalled(store.path, other))) == ({}, 6)
    third = path.with_suffix(".third")
    third.write_bytes(bytes(8192))
    store.note(take(third, {(n, 1): bytes(16) for n in range(99)}))
    assert (recalled(store.path, third), len(recalled(store.path, other))) == ({}, 6)


def test_a_full_disk_is_a_warning(tmp_path, path, monkeypatch):
    store = PackedStore(tmp_path / "store")

    def refuse(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.warns(PerformanceWarning, match=r"digests of .* are not stored"):
        store.note(take(path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store.note(take(path))
    assert list(store.path.iterdir()) == [store.path / ".lock"]
