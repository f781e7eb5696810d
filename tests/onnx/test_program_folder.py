"""Compiled programs that are kept without a packed store: where, of which files, and what never becomes a trouble."""

import fcntl
import os
import pickle
import pwd
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import onnx
import pytest
from onnx import helper

import graphpool as gp
from graphpool import config, mapped_file
from graphpool.cache import program_folder as program_folder_module
from graphpool.cache import program_store, set_packed_store, set_program_folder
from graphpool.runtime import late_forms
from tests.helpers.onnx_models import make_model, random_array
from tests.helpers.stored_models import programs_in, without_store

X = random_array((3, 64))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Where the process keeps programs; files count as settled at once, and nothing may warn."""
    monkeypatch.setattr(mapped_file, "_SETTLED_NS", -1)
    set_program_folder(tmp_path / "programs")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield tmp_path / "programs"
    without_store()


@pytest.fixture
def path(tmp_path):
    return save(tmp_path / "model.onnx")


def save(path, seed=0, rows="rows", **options):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "v"], ["y"])]
    weights = {"w": random_array((64, 96), seed=seed), "v": random_array((96, 32), seed=seed)}
    onnx.save(make_model(nodes, {"x": X}, ["y"], weights, shapes={"x": [rows, 64]}), path, **options)
    return path


def run(source, **options):
    """The result, and whether nothing was compiled."""
    with gp.onnx.load(source, threads=1, **options) as model:
        result = model.run({"x": X})["y"].tobytes()
        return result, getattr(model._forms.specialise, "_real", True) is None


# ---- which files


def test_the_second_load_compiles_nothing(path, folder):
    first, was_found = run(path)
    assert not was_found
    assert run(path) == (first, True)
    [program] = programs_in(folder)
    weights = random_array((64, 96)).tobytes()
    assert weights[:64] not in program.read_bytes()


def test_a_file_that_was_written_just_before_is_not_known_by_its_times(path, folder, monkeypatch):
    monkeypatch.undo()
    set_packed_store(None)
    assert not run(path)[1]
    assert not folder.exists()


@pytest.mark.parametrize("change", ["replaced", "written in place", "touched", "weights beside"])
def test_a_changed_file_is_compiled(change, tmp_path, folder):
    options = {"save_as_external_data": True, "location": "weights.bin", "size_threshold": 0}
    options = options if change == "weights beside" else {}
    path = save(tmp_path / "model.onnx", **options)
    first, _ = run(path)
    assert run(path) == (first, True)
    if change == "replaced":
        save(tmp_path / "other.onnx", seed=1).replace(path)
    elif change == "written in place":
        other = save(tmp_path / "other.onnx", seed=1).read_bytes()
        assert len(other) == path.stat().st_size
        about = path.stat()
        path.write_bytes(other)
        os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))  # the time of change says it
    elif change == "touched":
        os.utime(path)
    else:
        beside = tmp_path / "weights.bin"
        beside.write_bytes((2 * np.frombuffer(beside.read_bytes(), np.float32)).tobytes())
    found, was_found = run(path)
    assert not was_found
    assert (found == first) == (change == "touched")


def test_what_strangers_sent_and_what_is_no_mapped_file_leaves_nothing(path, folder):
    for source, options in (
        (path, {"untrusted": True}), (path, {"mapping": "copy"}), (path, {"weights": "packed"}),
        (path.read_bytes(), {}), (onnx.load(path), {}),
    ):  # fmt: skip
        assert not run(source, **options)[1]
    assert not folder.exists()
    run(path)
    assert not run(path, untrusted=True)[1]


def test_a_packed_store_takes_its_place(path, folder, tmp_path):
    set_packed_store(tmp_path / "store")
    run(path)
    assert not folder.exists()
    assert len(programs_in(tmp_path / "store")) == 1


def test_weights_are_packed_and_charged_as_in_a_load_that_compiles(path, folder):
    def charges():
        with gp.onnx.load(path, threads=1) as model:
            model.run({"x": X})
            return model.stats().cached_nbytes, model.engine.budget.in_use, model.engine.stats().current_nbytes

    first = charges()
    assert first[0] > 0
    assert charges() == first
    assert not list(folder.glob("*.packed"))


# ---- a folder that is of no use


def make_unusable(kind, folder, path):
    run(path)
    [program] = programs_in(folder)
    data = program.read_bytes()
    if kind in ("fifo", "socket folder", "link", "garbage", "empty", "cut", "flipped", "huge"):
        program.unlink()
    if kind == "fifo":
        os.mkfifo(program)
    elif kind == "socket folder":
        program.mkdir()
    elif kind == "link":
        (folder / "elsewhere").write_bytes(data)
        program.symlink_to(folder / "elsewhere")
    elif kind == "garbage":
        program.write_bytes(os.urandom(5000))
    elif kind == "empty":
        program.write_bytes(b"")
    elif kind == "cut":
        program.write_bytes(data[: len(data) // 2])
    elif kind == "flipped":
        program.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
    elif kind == "huge":
        program.touch()
        os.truncate(program, 1 << 42)
    elif kind == "a file":
        for file in folder.iterdir():
            file.unlink()
        folder.rmdir()
        folder.write_text("")
    elif kind == "a pipe for its lock":
        (folder / ".lock").unlink()
        os.mkfifo(folder / ".lock")
        program.unlink()


KINDS = ["fifo", "socket folder", "link", "garbage", "empty", "cut", "flipped", "huge", "a file", "a pipe for its lock"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_lies_there_is_never_a_trouble(kind, folder, path):
    set_program_folder(None)
    wanted = run(path)[0]
    set_program_folder(folder)
    make_unusable(kind, folder, path)
    set_program_folder(folder)
    assert run(path) == (wanted, False)
    if kind in ("garbage", "empty", "cut", "flipped", "huge"):
        assert run(path) == (wanted, True)  # it was written anew


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o707, 0o720])
def test_a_folder_that_others_may_write_to_is_not_used(mode, folder, path):
    run(path)
    folder.chmod(mode)
    assert not run(path)[1]
    folder.chmod(0o700)
    assert run(path)[1]


def test_a_folder_of_another_user_is_not_used(folder, path, monkeypatch):
    run(path)
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert not run(path)[1]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written(folder, path):
    run(path)
    other = save(path.with_name("other.onnx"), seed=1)
    folder.chmod(0o500)
    assert run(path)[1]
    assert not run(other)[1]
    folder.chmod(0o700)
    assert len(programs_in(folder)) == 1


def test_a_full_disk_keeps_nothing(folder, path, monkeypatch):
    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", refuse)
    run(path)
    monkeypatch.undo()
    assert not programs_in(folder)
    assert not list(folder.glob("*.writing"))


def test_who_finds_it_locked_does_not_wait(folder, path):
    folder.mkdir()
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        run(path)
        assert not programs_in(folder)
    run(path)
    assert len(programs_in(folder)) == 1


# ---- bounds


def test_what_was_used_longest_ago_goes_first(folder, tmp_path, monkeypatch):
    paths = [save(tmp_path / f"model{k}.onnx", seed=k) for k in range(4)]
    run(paths[0])
    [program] = programs_in(folder)
    monkeypatch.setattr(program_folder_module, "_CAPACITY_NBYTES", 3 * program.stat().st_size + 100)
    set_program_folder(folder)
    run(paths[1])
    run(paths[2])
    time.sleep(0.02)
    assert run(paths[0])[1]  # which makes it the one used last
    time.sleep(0.02)
    run(paths[3])
    assert len(programs_in(folder)) == 3
    assert [run(path)[1] for path in (paths[0], paths[2], paths[3])] == [True, True, True]
    assert program_store().nbytes <= program_store().capacity_nbytes


def test_large_constants_that_were_computed_are_not_kept(folder, tmp_path, monkeypatch):
    nodes = [helper.make_node("Mul", ["w", "s"], ["v"]), helper.make_node("MatMul", ["x", "v"], ["y"])]
    weights = {"w": random_array((64, 512)), "s": random_array((512,))}
    path = tmp_path / "model.onnx"
    onnx.save(make_model(nodes, {"x": X}, ["y"], weights), path)
    monkeypatch.setattr(program_folder_module.ProgramFolder, "most_nbytes", 100_000)
    run(path)
    assert not folder.exists()
    monkeypatch.undo()
    monkeypatch.setattr(mapped_file, "_SETTLED_NS", -1)
    run(path)
    assert run(path)[1]


# ---- when


def test_it_is_kept_a_while_after_the_first_run(folder, path, monkeypatch):
    monkeypatch.setattr(late_forms, "_DELAY_S", 0.05)
    with gp.onnx.load(path, threads=1) as model:
        model.run({"x": X})
        deadline = time.monotonic() + 60
        while not programs_in(folder) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(programs_in(folder)) == 1
        assert not late_forms._has_thread
        model.run({"x": X[:2]})  # another size of the same form
        assert not late_forms._has_thread


def test_forms_that_were_given_up_are_not_kept(folder, path):
    with gp.onnx.load(path, threads=1) as model, model._forms.specialise._lock:  # which whoever keeps them takes
        model.run({"x": X})
        model._forms.clear()
    assert not folder.exists()


def test_models_closed_by_several_threads_while_it_is_kept(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(late_forms, "_DELAY_S", 0)
    paths = [save(tmp_path / f"model{k}.onnx", seed=k) for k in range(8)]
    wanted = [run(path, mapping="copy")[0] for path in paths]
    found = {}

    def work(k):
        found[k] = [run(paths[k])[0] for _ in range(3)]

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {k: [wanted[k]] * 3 for k in range(8)}
    assert [run(path)[0] for path in paths] == wanted


def test_a_forked_child_keeps_nothing_of_its_parent(folder, path):
    with gp.onnx.load(path, threads=1) as model:
        wanted = model.run({"x": X})["y"].tobytes()
        child = os.fork()
        if not child:
            written = []
            program_folder_module.ProgramFolder.put = lambda *what: written.append(what)
            is_right = model.run({"x": X})["y"].tobytes() == wanted
            model.close()
            os._exit(0 if is_right and not written else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len(programs_in(folder)) == 1


SCRIPT = """
import os, signal, sys, time
import numpy as np
import graphpool as gp, graphpool.onnx
from graphpool import mapped_file
from graphpool.runtime import late_forms
mapped_file._SETTLED_NS = -1
late_forms._DELAY_S = float(sys.argv[3])
model = gp.onnx.load(sys.argv[1], threads=1)
print(model.run({"x": np.ones((3, 64), np.float32)})["y"].tobytes().hex(), flush=True)
print(model._forms.specialise._real is None, flush=True)
if sys.argv[2] == "stays":
    sys.stdin.read()
"""


def start(path, folder, how, delay_s):
    command = [sys.executable, "-W", "ignore", "-c", SCRIPT, path, how, str(delay_s)]
    env = os.environ | {"GRAPHPOOL_PROGRAM_FOLDER": str(folder)}
    return subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_process_that_ends_without_closing_its_model_keeps_it(path, folder):
    first = start(path, folder, "ends", 1000).communicate()[0].split()
    assert first[1] == "False"
    assert start(path, folder, "ends", 1000).communicate()[0].split() == [first[0], "True"]


def test_a_process_that_is_killed_later_has_kept_it(path, folder):
    process = start(path, folder, "stays", 0.01)
    result, was_found = process.stdout.readline().strip(), process.stdout.readline().strip()
    assert was_found == "False"
    deadline = time.monotonic() + 60
    while not programs_in(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert start(path, folder, "ends", 1000).communicate()[0].split() == [result, "True"]


# ---- where


@pytest.fixture
def setting(monkeypatch):
    """GRAPHPOOL_PROGRAM_FOLDER as it is read."""

    def read(text):
        monkeypatch.setenv("GRAPHPOOL_PROGRAM_FOLDER", text)
        monkeypatch.delitem(config._values, "program_folder", raising=False)
        return config.program_folder(), config.describe("program_folder")

    yield read
    config._values.pop("program_folder", None)


def test_the_setting_names_a_folder_or_none(setting, monkeypatch, tmp_path):
    assert setting("/some/where") == ("/some/where", "/some/where")
    assert setting("off") == (None, "off")
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    assert setting("") == ("/caches/graphpool/programs",) * 2
    monkeypatch.setenv("XDG_CACHE_HOME", "caches")  # to be ignored, says the standard
    monkeypatch.setenv("HOME", str(tmp_path))
    assert setting("") == (f"{tmp_path}/.cache/graphpool/programs",) * 2


def test_the_home_of_another_user_stays_as_it_is(setting, monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    assert setting("") == (None, "off")
    monkeypatch.setenv("HOME", str(tmp_path / "absent"))
    assert setting("") == (None, "off")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", lambda uid: (_ for _ in ()).throw(KeyError(uid)))
    assert setting("") == (None, "off")


def test_the_store_pickles_by_path(folder):
    found = pickle.loads(pickle.dumps(program_store()))
    assert (type(found), found.path) == (program_folder_module.ProgramFolder, folder)
    assert not folder.exists()


@pytest.mark.parametrize("wrong", [3, b"bytes", ["a"]])
def test_no_path_is_refused(wrong):
    with pytest.raises(gp.InvalidArgumentError, match="the path of a folder"):
        set_program_folder(wrong)
