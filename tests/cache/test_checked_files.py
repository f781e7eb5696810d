"""Files of a packed store that were found undamaged are not read again, by any process, until somebody writes them."""

import os
import warnings

import numpy as np
import pytest

from graphpool import mapped_file
from graphpool.cache import PackedKey, PackedStore, _packed_file, fingerprint
from graphpool.cache._checked_files import CheckedFiles
from graphpool.errors import PerformanceWarning

DATA = np.arange(3000, dtype=np.float32)
KEY = PackedKey(fingerprint(np.array([0])), "f32_k8n64", "avx512")


@pytest.fixture
def settled(monkeypatch):
    """Let files be as if written long ago."""
    monkeypatch.setattr(mapped_file, "_SETTLED_NS", -1)


@pytest.fixture
def reads(monkeypatch):
    """The number of times that a file was checked, in a list of one."""
    counted, real = [0], _packed_file._check_header

    def check(*args):
        counted[0] += 1
        real(*args)

    monkeypatch.setattr(_packed_file, "_check_header", check)
    return counted


def get_anew(folder, **options):
    """What another process finds."""
    buffer = PackedStore(folder, **options).get(KEY)
    return None if buffer is None else np.frombuffer(buffer, np.float32).copy()


def test_a_file_is_checked_once(tmp_path, settled, reads):
    assert PackedStore(tmp_path).put(KEY, DATA)
    for _ in range(3):
        assert np.array_equal(get_anew(tmp_path), DATA)
    assert reads == [1]
    os.utime(next(tmp_path.glob("*.packed")))
    assert np.array_equal(get_anew(tmp_path), DATA)
    assert reads == [2]


def test_a_file_that_was_just_written_is_checked_each_time(tmp_path, reads):
    assert PackedStore(tmp_path).put(KEY, DATA)
    for _ in range(3):
        assert np.array_equal(get_anew(tmp_path), DATA)
    assert reads == [3]
    assert not (tmp_path / ".checked").exists()


@pytest.mark.parametrize("size", [0, 100, 4096, 4096 + DATA.nbytes - 1])
def test_a_file_that_was_cut_or_written_in_place_is_found(tmp_path, settled, size):
    assert PackedStore(tmp_path).put(KEY, DATA)
    get_anew(tmp_path)
    [path] = tmp_path.glob("*.packed")
    with path.open("r+b") as file:
        file.truncate(size)
    with pytest.warns(PerformanceWarning, match="damaged"):
        assert get_anew(tmp_path) is None
    assert PackedStore(tmp_path).put(KEY, DATA)
    get_anew(tmp_path)
    with path.open("r+b") as file:
        file.seek(5000)
        file.write(b"other")
    with pytest.warns(PerformanceWarning, match="damaged"):
        assert get_anew(tmp_path) is None


def test_a_file_under_another_name_is_checked(tmp_path, settled, reads):
    assert PackedStore(tmp_path).put(KEY, DATA)
    get_anew(tmp_path)
    [path] = tmp_path.glob("*.packed")
    other = PackedKey(KEY.content, KEY.layout, "avx2")
    path.rename(tmp_path / _packed_file.file_name(other))
    with pytest.warns(PerformanceWarning, match="damaged"):
        assert PackedStore(tmp_path).get(other) is None
    assert reads == [2]


def test_nothing_is_taken_for_checked_where_others_may_write(tmp_path, settled, reads):
    folder = tmp_path / "store"
    assert PackedStore(folder).put(KEY, DATA)
    get_anew(folder)
    assert reads == [1]
    folder.chmod(0o777)
    for _ in range(2):
        assert np.array_equal(get_anew(folder, mapping="map"), DATA)
    assert reads == [3]
    folder.chmod(0o755)
    (folder / ".checked").chmod(0o666)
    for _ in range(2):
        assert np.array_equal(get_anew(folder), DATA)
    assert reads == [5]


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_a_note_that_is_no_file_is_not_used(tmp_path, settled, reads, kind):
    note, elsewhere = tmp_path / ".checked", tmp_path / "elsewhere"
    elsewhere.write_bytes(b"precious")
    {"link": lambda: note.symlink_to(elsewhere), "pipe": lambda: os.mkfifo(note), "folder": note.mkdir}[kind]()
    assert PackedStore(tmp_path).put(KEY, DATA)
    with warnings.catch_warnings(action="error"):
        for _ in range(2):
            assert np.array_equal(get_anew(tmp_path), DATA)
    assert reads == [2]
    assert elsewhere.read_bytes() == b"precious"


def test_a_note_that_was_cut_is_begun_anew(tmp_path):
    path = tmp_path / ".checked"
    CheckedFiles(path).add(("a", 1))
    CheckedFiles(path).add(("b", 2))
    assert [CheckedFiles(path).has(identity) for identity in (("a", 1), ("b", 2), ("a", 2))] == [True, True, False]
    path.write_bytes(path.read_bytes()[:-3])
    assert CheckedFiles(path).has(("a", 1))
    assert not CheckedFiles(path).has(("b", 2))
    CheckedFiles(path).add(("b", 2))
    assert [CheckedFiles(path).has(identity) for identity in (("a", 1), ("b", 2))] == [False, True]


def test_a_note_has_a_bound(tmp_path):
    path = tmp_path / ".checked"
    path.write_bytes(bytes(1 << 20))
    CheckedFiles(path).add(("a", 1))
    assert path.stat().st_size == 16
    assert CheckedFiles(path).has(("a", 1))


def test_clearing_removes_the_note(tmp_path, settled):
    store = PackedStore(tmp_path)
    assert store.put(KEY, DATA)
    get_anew(tmp_path)
    assert (tmp_path / ".checked").exists()
    store.clear()
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
