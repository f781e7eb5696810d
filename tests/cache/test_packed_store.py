import os
import pickle
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from graphpool.cache import PackedKey, PackedStore, fingerprint
from graphpool.cache._packed_file import MAGIC
from graphpool.cache.identity import Fingerprint, digest_of
from graphpool.errors import InvalidArgumentError, OutOfMemoryError, PerformanceWarning, StateError
from graphpool.memory import HostResource, LimitingResource, StatisticsResource
from tests.helpers.memory import run_in_child, run_threads

DATA = np.arange(3000, dtype=np.float32)
HEADER_NBYTES = 4096
FILE_NBYTES = HEADER_NBYTES + DATA.nbytes


def make_key(number=0, layout="f32_k8n64", isa="avx512"):
    return PackedKey(fingerprint(np.array([number])), layout, isa)


def paths(store):
    return sorted(store.path.glob("*.packed"))


def test_what_was_put_is_found_by_another_object(tmp_path):
    key = make_key()
    assert PackedStore(tmp_path).get(key) is None
    assert PackedStore(tmp_path / "deeper" / "store").put(key, DATA)
    store = PackedStore(tmp_path / "deeper" / "store")
    buffer = store.get(key)
    assert np.array_equal(np.frombuffer(buffer, np.float32), DATA)
    assert buffer.address % 4096 == 0
    assert buffer.is_frozen
    assert not np.frombuffer(buffer, np.uint8).flags.writeable
    assert store.get(key) is buffer
    stats = store.stats()
    assert (stats.hits, stats.misses, stats.entries, stats.nbytes) == (2, 0, 1, FILE_NBYTES)


@pytest.mark.parametrize("mapping", [None, "copy"])
def test_a_pickle_is_of_the_same_folder(tmp_path, monkeypatch, mapping):
    monkeypatch.chdir(tmp_path)
    store = PackedStore("here", capacity_nbytes=10**6, mapping=mapping)
    store.put(make_key(), DATA)
    monkeypatch.chdir("/")
    other = pickle.loads(pickle.dumps(store))
    assert (other.path, other.capacity_nbytes) == (tmp_path / "here", 10**6)
    assert other.mapping == (mapping or "map")
    assert np.array_equal(np.frombuffer(other.get(make_key()), np.float32), DATA)


@pytest.mark.parametrize(
    "other",
    [make_key(1), make_key(layout="f32_k8n32"), make_key(isa="avx2"), PackedKey(Fingerprint(b"", "f32", ()), "", "")],
)
def test_every_part_of_the_key_counts(tmp_path, other):
    store = PackedStore(tmp_path)
    store.put(make_key(), DATA)
    assert store.get(other) is None


def test_nothing_to_store_is_a_file_too(tmp_path):
    store = PackedStore(tmp_path)
    assert store.put(make_key(), b"")
    assert bytes(store.get(make_key())) == b""


@pytest.mark.parametrize(
    "key", [None, "name", make_key()._replace(content=None), make_key()._replace(layout=None), make_key(isa=b"avx512")]
)
def test_what_is_no_key_is_named(tmp_path, key):
    store = PackedStore(tmp_path)
    with pytest.raises(InvalidArgumentError, match="key of a packed weight; accepted: a PackedKey"):
        store.get(key)
    with pytest.raises(InvalidArgumentError, match="key of a packed weight; accepted: a PackedKey"):
        store.put(key, DATA)


@pytest.mark.parametrize("data", [None, 3, DATA[::2], DATA.reshape(30, 100).T, np.empty(3, object)])
def test_what_is_no_contiguous_buffer_is_named(tmp_path, data):
    store = PackedStore(tmp_path)
    with pytest.raises(InvalidArgumentError, match="data of a packed weight; accepted: a C-contiguous"):
        store.put(make_key(), data)
    assert not paths(store)


@pytest.mark.parametrize("data", [np.empty((0, 3)), np.ones(3, ml_dtypes.bfloat16), np.array(1.0), bytearray(b"abc")])
def test_whatever_is_contiguous_is_stored(tmp_path, data):
    store = PackedStore(tmp_path)
    assert store.put(make_key(), data)
    assert bytes(store.get(make_key())) == (data.tobytes() if isinstance(data, np.ndarray) else bytes(data))


def test_a_second_put_replaces(tmp_path):
    store = PackedStore(tmp_path)
    store.put(make_key(), DATA)
    old = store.get(make_key())
    store.put(make_key(), DATA)
    assert (len(store), store.nbytes) == (1, FILE_NBYTES)
    assert np.array_equal(np.frombuffer(old, np.float32), DATA)


# ---- damage


def flip(position):
    def damage(path):
        data = bytearray(path.read_bytes())
        data[position] ^= 1
        path.write_bytes(data)

    return damage


DAMAGES = {
    "magic": flip(0),
    "header digest": flip(10),
    "header text": flip(40),
    "header padding": flip(4000),
    "first byte": flip(HEADER_NBYTES),
    "last byte": flip(-1),
    "cut in the header": lambda path: os.truncate(path, 100),
    "cut in the data": lambda path: os.truncate(path, FILE_NBYTES - 1),
    "longer": lambda path: os.truncate(path, FILE_NBYTES + 1),
    "empty": lambda path: os.truncate(path, 0),
    "zeros": lambda path: path.write_bytes(bytes(FILE_NBYTES)),
    "foreign": lambda path: path.write_bytes(b"hello" * 2000),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_a_miss_with_one_warning(tmp_path, damage):
    store = PackedStore(tmp_path)
    for _ in range(2):
        store.put(make_key(), DATA)
        DAMAGES[damage](paths(store)[0])
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            assert store.get(make_key()) is None
            assert store.get(make_key()) is None
        assert paths(store) == []
        assert [w.category for w in caught] in ([PerformanceWarning], [])
    assert caught == []
    store.put(make_key(), DATA)
    assert np.array_equal(np.frombuffer(store.get(make_key()), np.float32), DATA)


def test_a_file_for_another_instruction_set_is_a_miss_with_a_warning(tmp_path):
    store = PackedStore(tmp_path)
    store.put(make_key(isa="avx512"), DATA)
    [wrong] = paths(store)
    store.put(make_key(isa="avx2"), DATA)
    [right] = [path for path in paths(store) if path != wrong]
    wrong.replace(right)
    with pytest.warns(PerformanceWarning, match="does not hold all of f32_k8n64 for avx2"):
        assert store.get(make_key(isa="avx2")) is None


KILLED = """
import os, signal, sys
import numpy as np
from graphpool.cache import PackedKey, PackedStore, _packed_file, fingerprint
when, calls = sys.argv[2], []
real_write, real_fsync, real_close = os.write, os.fsync, os.close
def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)
def write(descriptor, data):
    calls.append(1)
    if when == "middle" and len(calls) == 3:
        die()
    return real_write(descriptor, data)
os.write = write
if when == "flush":
    os.fsync = die
_packed_file.CHUNK_NBYTES = 4096
store = PackedStore(sys.argv[1], capacity_nbytes=40_000)
store.put(PackedKey(fingerprint(np.array([0])), "f32_k8n64", "avx512"), np.arange(3000, dtype=np.float32))
"""


@pytest.mark.parametrize("when", ["middle", "flush"])
def test_a_killed_writer_leaves_nothing_that_is_trusted(tmp_path, when):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), when], check=False)
    assert done.returncode == -signal.SIGKILL
    store = PackedStore(tmp_path, capacity_nbytes=40_000)
    assert (store.get(make_key()), len(store)) == (None, 0)
    assert len(list(tmp_path.glob("*.writing"))) == 1
    assert store.put(make_key(), DATA)
    assert list(tmp_path.glob("*.writing")) == []
    assert np.array_equal(np.frombuffer(store.get(make_key()), np.float32), DATA)


def test_a_living_writer_is_left_alone(tmp_path, monkeypatch):
    store, other = PackedStore(tmp_path), PackedStore(tmp_path)
    real, seen = os.fsync, []

    def fsync(descriptor):
        if not seen:
            seen.append(descriptor)
            assert other.put(make_key(1), DATA)
            assert len(list(tmp_path.glob("*.writing"))) == 1
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    assert store.put(make_key(0), DATA)
    assert len(store) == 2


# ---- bounds


def test_what_was_used_longest_ago_leaves(tmp_path):
    store = PackedStore(tmp_path, capacity_nbytes=3 * FILE_NBYTES)
    for number in range(3):
        store.put(make_key(number), DATA)
        os.utime(paths(store)[0], ns=(number, number)) if number == 0 else None
    for path in paths(store):
        os.utime(path, ns=(5, 5))
    held = store.get(make_key(0))
    store.put(make_key(3), DATA)
    store.put(make_key(4), DATA)
    assert [store.get(make_key(n)) is not None for n in range(5)] == [True, False, False, True, True]
    store.put(make_key(5), DATA)
    store.put(make_key(6), DATA)
    store.put(make_key(7), DATA)
    assert np.array_equal(np.frombuffer(held, np.float32), DATA)
    assert store.get(make_key(0)) is None
    assert store.stats().evictions == 5


def test_what_can_never_fit_is_declined(tmp_path):
    store = PackedStore(tmp_path, capacity_nbytes=FILE_NBYTES)
    store.put(make_key(0), DATA)
    assert not store.put(make_key(1), np.arange(3001, dtype=np.float32))
    assert (len(store), store.stats().declined) == (1, 1)
    assert not PackedStore(tmp_path / "none", capacity_nbytes=0).put(make_key(), b"")


def test_the_bound_holds_while_many_write(tmp_path, monkeypatch):
    stores = [PackedStore(tmp_path, capacity_nbytes=4 * FILE_NBYTES) for _ in range(4)]
    real, over = os.fsync, []

    def fsync(descriptor):
        real(descriptor)
        with stores[0]._folder_lock():  # without it, what leaves and what comes meanwhile may both be listed
            over.append(stores[0].nbytes > 4 * FILE_NBYTES)

    monkeypatch.setattr(os, "fsync", fsync)
    run_threads(4, lambda i: [stores[i].put(make_key(10 * i + n), DATA) for n in range(5)])
    assert not any(over)
    assert 1 <= len(stores[0]) <= 4


@pytest.mark.parametrize("call", ["write", "ftruncate"])
def test_a_full_disk_is_a_warning(tmp_path, monkeypatch, call):
    store, count = PackedStore(tmp_path), len(list(Path("/proc/self/fd").iterdir()))

    def full(descriptor, data):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.warns(PerformanceWarning, match="No space left"):
        assert not store.put(make_key(), DATA)
    assert (store.nbytes, list(tmp_path.glob("*.writing"))) == (0, [])
    assert len(list(Path("/proc/self/fd").iterdir())) == count


def test_clear(tmp_path):
    store = PackedStore(tmp_path)
    store.put(make_key(), DATA)
    held = store.get(make_key())
    store.clear()
    assert (len(store), store.get(make_key())) == (0, None)
    assert np.array_equal(np.frombuffer(held, np.float32), DATA)


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidArgumentError, match="a folder"):
        PackedStore(tmp_path / "file")
    with pytest.raises(InvalidArgumentError):
        PackedStore(tmp_path, capacity_nbytes=-1)
    with pytest.raises(InvalidArgumentError):
        PackedStore(tmp_path).put(make_key(layout="x" * 5000), DATA)


# ---- what is in the folder and is no file of ours


def test_a_pipe_under_a_files_name_stops_nobody(tmp_path):
    store = PackedStore(tmp_path)
    store.put(make_key(), DATA)
    [path] = paths(store)
    path.unlink()
    os.mkfifo(path)
    os.mkfifo(tmp_path / "0123.writing")
    for mapping in ("map", "copy"):
        with pytest.warns(PerformanceWarning, match="cannot be read.*regular file"):
            assert PackedStore(tmp_path, mapping=mapping).get(make_key()) is None
    assert (len(store), store.nbytes) == (0, 0)
    assert store.put(make_key(), DATA)
    assert np.array_equal(np.frombuffer(store.get(make_key()), np.float32), DATA)


def test_links_are_not_followed(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "elsewhere").write_bytes(b"precious")
    store = PackedStore(tmp_path / "store")
    store.put(make_key(), DATA)
    [path] = paths(store)
    path.replace(tmp_path / "whole")
    path.symlink_to(tmp_path / "whole")
    with pytest.warns(PerformanceWarning, match="cannot be read"):
        assert store.get(make_key()) is None
    assert len(store) == 0
    assert store.put(make_key(), DATA)
    assert not path.is_symlink()
    (store.path / ".lock").unlink()
    (store.path / ".lock").symlink_to(tmp_path / "elsewhere")
    with pytest.warns(PerformanceWarning, match="not stored"):
        assert not store.put(make_key(1), DATA)
    with pytest.raises(StateError, match="cannot be used"):
        store.clear()
    assert (tmp_path / "elsewhere").read_bytes() == b"precious"


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_lock_that_is_no_file_is_a_warning(tmp_path, kind):
    store = PackedStore(tmp_path)
    os.mkfifo(tmp_path / ".lock") if kind == "pipe" else (tmp_path / ".lock").mkdir()
    with pytest.warns(PerformanceWarning, match="not stored"):
        assert not store.put(make_key(), DATA)
    assert len(store) == 0


AS_ANOTHER_USER = """
import os, sys, warnings
import numpy as np
from graphpool.cache import PackedKey, PackedStore, fingerprint
from graphpool.errors import StateError
store, key = PackedStore(sys.argv[1]), PackedKey(fingerprint(np.array([0])), "f32_k8n64", "avx512")
os.seteuid(65534)
warnings.simplefilter("ignore")
def attempt(call):
    try:
        return call()
    except StateError as error:
        return type(error).__name__
print([attempt(call) for call in (
    lambda: store.get(key) is not None, lambda: store.put(key, b"1234"), store.stats, lambda: len(store), store.clear,
)], store)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
@pytest.mark.parametrize(
    ("mode", "found"),
    [
        (0o777, "[True, True, CacheStats"),  # the lock of the first user is there and does
        (0o755, "[True, False, CacheStats"),
        (0o700, "[False, False, 'StateError', 'StateError', 'StateError'] <PackedStore"),
    ],
)
def test_another_user_gets_a_miss_or_a_typed_error(tmp_path, mode, found):
    for folder in (tmp_path, *list(tmp_path.parents)[:3]):
        folder.chmod(0o755)
    PackedStore(tmp_path / "store").put(make_key(), DATA)
    (tmp_path / "store").chmod(mode)
    done = subprocess.run(
        [sys.executable, "-c", AS_ANOTHER_USER, str(tmp_path / "store")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(found)


@pytest.mark.parametrize("call", [len, repr, PackedStore.stats, PackedStore.clear, lambda store: store.nbytes])
def test_a_folder_that_cannot_be_read_is_a_typed_error(tmp_path, monkeypatch, call):
    store = PackedStore(tmp_path)

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(os, "scandir", refuse)
    if call is repr:
        assert "cannot be read" in repr(store)
    else:
        with pytest.raises(StateError, match=r"cannot be used; got: .*Permission denied"):
            call(store)


def test_a_header_that_says_nothing_is_damage(tmp_path):
    store = PackedStore(tmp_path)
    for text in (b"[1]", b"{}", b"not JSON", b'{"key": 1, "nbytes": "x", "digest": ""}', b"\xff"):
        store.put(make_key(), DATA)
        [path] = paths(store)
        rest = (len(text).to_bytes(4, "little") + text).ljust(HEADER_NBYTES - 24, b"\0")
        path.write_bytes(MAGIC + digest_of(rest) + rest + DATA.tobytes())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert store.get(make_key()) is None
        assert not path.exists()


# ---- files that others change in place


def test_a_mapped_file_that_was_cut_is_not_handed_out_again(tmp_path):
    store = PackedStore(tmp_path)
    store.put(make_key(), DATA)
    held = store.get(make_key())
    assert store.get(make_key()) is held
    os.truncate(paths(store)[0], HEADER_NBYTES)
    with pytest.warns(PerformanceWarning, match="damaged"):
        assert store.get(make_key()) is None
    store.put(make_key(), DATA)
    assert np.array_equal(np.frombuffer(store.get(make_key()), np.float32), DATA)


def test_a_store_that_copies_stands_whatever_happens_to_its_files(tmp_path):
    store, resource = PackedStore(tmp_path, mapping="copy"), StatisticsResource(HostResource())
    store.put(make_key(), DATA)
    copies = [store.get(make_key()), store.get(make_key(), resource)]
    assert resource.stats().current_nbytes == DATA.nbytes
    os.truncate(paths(store)[0], 0)
    for copy in copies:
        assert (copy.address % 64, copy.is_frozen) == (0, True)
        assert np.array_equal(np.frombuffer(copy, np.float32), DATA)
    with pytest.warns(PerformanceWarning, match="damaged"):
        assert store.get(make_key()) is None
    store.put(make_key(), DATA)
    with pytest.raises(OutOfMemoryError):
        store.get(make_key(), LimitingResource(HostResource(), DATA.nbytes - 1))
    del copy, copies
    assert resource.stats().current_nbytes == 0
    with pytest.raises(InvalidArgumentError, match="map, copy"):
        PackedStore(tmp_path, mapping="share")


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_not_copied(tmp_path, damage):
    store = PackedStore(tmp_path, mapping="copy")
    store.put(make_key(), DATA)
    DAMAGES[damage](paths(store)[0])
    with pytest.warns(PerformanceWarning, match="damaged"):
        assert store.get(make_key()) is None
    assert paths(store) == []


@pytest.mark.parametrize(("mode", "mapping"), [(0o755, "map"), (0o700, "map"), (0o775, "copy"), (0o1777, "copy")])
def test_files_are_mapped_only_where_nobody_else_may_write(tmp_path, mode, mapping):
    folder = tmp_path / "store"
    folder.mkdir()
    folder.chmod(mode)
    store = PackedStore(folder)
    assert store.mapping == mapping
    assert store.put(make_key(), DATA)
    buffer = store.get(make_key())
    if mapping == "copy":
        os.truncate(paths(store)[0], 0)
    assert np.array_equal(np.frombuffer(buffer, np.float32), DATA)
    assert PackedStore(folder, mapping="map").mapping == "map"


def test_a_store_makes_a_folder_for_this_user_alone(tmp_path):
    before = os.umask(0)
    try:
        assert PackedStore(tmp_path / "store").mapping == "map"
    finally:
        os.umask(before)


def test_the_lock_can_be_taken_by_all_whatever_the_umask_and_is_not_made_again(tmp_path, monkeypatch):
    before = os.umask(0o077)
    try:
        PackedStore(tmp_path).put(make_key(), DATA)
    finally:
        os.umask(before)
    lock = tmp_path / ".lock"
    assert lock.stat().st_mode & 0o777 == 0o644
    flags, real = [], os.open

    def note(path, how, *mode, **options):
        if str(path) == str(lock):
            flags.append(how)
        return real(path, how, *mode, **options)

    monkeypatch.setattr(os, "open", note)
    assert PackedStore(tmp_path).put(make_key(1), DATA)
    assert flags
    assert not any(how & os.O_CREAT for how in flags)  # refused for files of others in folders as /tmp is


@pytest.mark.native
@pytest.mark.skipif(os.geteuid() != 0, reason="takes two users")
def test_two_users_share_a_folder(tmp_path):
    folder = tmp_path / "store"
    folder.mkdir()
    folder.chmod(0o1777)
    for part in tmp_path.parents:
        if part.name.startswith("pytest"):
            part.chmod(0o755)
    tmp_path.chmod(0o755)
    assert PackedStore(folder).put(make_key(), DATA)

    def other():
        os.setuid(65534)
        store = PackedStore(folder)
        assert np.array_equal(np.frombuffer(store.get(make_key()), np.float32), DATA)
        assert store.put(make_key(1), DATA)
        assert store.stats().entries == 2

    run_in_child(other)
    store = PackedStore(folder)
    assert np.array_equal(np.frombuffer(store.get(make_key(1)), np.float32), DATA)
    store.clear()
    assert len(store) == 0


@pytest.mark.native
@pytest.mark.skipif(os.geteuid() != 0, reason="takes two users")
def test_a_folder_that_may_not_be_listed_is_a_typed_error(tmp_path):
    folder = tmp_path / "store"
    store = PackedStore(folder)
    folder.chmod(0o700)

    def other():
        os.setuid(65534)
        for use in (store.stats, lambda: store.nbytes, lambda: len(store), store.clear):
            with pytest.raises(StateError, match="cannot be used"):
                use()

    run_in_child(other)
