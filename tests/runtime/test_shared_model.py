import os
import pickle
import threading

import numpy as np
import pytest
from onnx import TensorProto
from onnx.helper import make_graph, make_model, make_node, make_tensor_value_info
from onnx.numpy_helper import from_array

import graphpool as gp
from graphpool import mapped_file
from graphpool.cache import PackedStore, constant_tensor_cache, set_packed_store
from graphpool.cache.sealed_store import SealedStore
from graphpool.mapped_file import MappedFile
from tests.helpers.memory import run_in_child, run_threads
from tests.helpers.shared_models import PACKED_NBYTES, PARAMS, inputs, is_right, make_products, save_products

TABLE_NBYTES = PARAMS["table"].nbytes


@pytest.fixture(autouse=True)
def no_store():
    """Whatever the environment says: anonymous memory unless a test names a folder."""
    set_packed_store(None)
    yield
    set_packed_store(None)
    constant_tensor_cache("cpu").clear()


SOURCES = {
    "file": lambda folder: save_products(folder / "m.onnx"),
    "external": lambda folder: save_products(folder / "m.onnx", external=True),
    "bytes": lambda folder: make_products().SerializeToString(),
    "proto": lambda folder: make_products(),
}


def constants_of(model):
    return model.engine.budget.holdings()["constants"]


@pytest.mark.parametrize("place", ["memory", "folder"])
@pytest.mark.parametrize("source", SOURCES)
def test_packed_weights_and_constants_are_mapped_by_all(tmp_path, source, place):
    store = None if place == "memory" else tmp_path / "store"
    with gp.onnx.load(SOURCES[source](tmp_path), threads=1) as model:
        before = constants_of(model)
        assert before >= PACKED_NBYTES
        handle = gp.share(model, store=store)
        assert constants_of(model) <= before - PACKED_NBYTES  # the model itself uses what is shared
        assert is_right(model.run(inputs(0))["y"], 0)
        text = pickle.dumps(handle)
        assert len(text) < 1000
        with pickle.loads(text).open() as copy:
            assert is_right(copy.run(inputs(1))["y"], 1)
            assert constants_of(copy) < 4096
            assert np.array_equal(copy.read_weight("table"), PARAMS["table"])
    with handle.open() as alone:
        assert is_right(alone.run(inputs(2))["y"], 2)
        assert alone.engine.threads == 1
    assert (handle.nbytes is None) == (place == "folder")
    assert "products" in repr(handle) or source != "proto"


def test_small_arrays_and_parameter_blocks_are_those_of_the_shared_memory():
    """A worker's program reads them there, whoever else does; a description of its steps is made when asked for."""
    bias = np.arange(64, dtype=np.float32)
    nodes = [make_node("Add", ["x", "bias"], ["h"]), make_node("Softmax", ["h"], ["y"])]
    ports = [make_tensor_value_info(name, TensorProto.FLOAT, [2, 64]) for name in "xy"]
    proto = make_model(make_graph(nodes, "small", ports[:1], ports[1:], [from_array(bias, "bias")]))
    with gp.onnx.load(proto, threads=1) as model:
        handle = gp.share(model)
    store = SealedStore.open(handle._store.name)
    with handle.open() as copy:
        executable = copy.specialise()
        small = [array for array in executable.form.constants.values() if array.nbytes < 2**16]
        [primitive] = [step.compiled.primitive for step in executable._steps]
        blocks = [call.params for call in primitive.program.calls]
        assert len(small) == 1
        assert len(blocks) >= 1
        for array in (*small, *blocks):
            assert 0 <= array.ctypes.data - store._start <= store.nbytes - array.nbytes
        assert "details" not in vars(primitive)
        assert len(primitive.details.kinds) == len(blocks)
        expected = np.exp(bias - 63) / np.exp(bias - 63).sum()
        np.testing.assert_allclose(copy.run({"x": np.zeros((2, 64), np.float32)})["y"][1], expected, rtol=1e-5)


def test_an_engine_can_be_given(tmp_path):
    with gp.onnx.load(save_products(tmp_path / "m.onnx"), threads=1) as model:
        handle = gp.share(model)
    with gp.Engine(threads=2, memory_limit="8MiB") as engine, handle.open(engine=engine) as copy:
        assert copy.engine is engine
        assert is_right(copy.run(inputs(0))["y"], 0)
        assert engine.budget.peak < PACKED_NBYTES
        copy.close()
        assert not engine.is_closed
    with gp.Engine(memory_limit=1000) as small, pytest.raises(gp.OutOfMemoryError):
        handle.open(engine=small)


def test_weights_kept_packed_alone_are_shared_too():
    with gp.onnx.load(make_products(), weights="packed") as model:
        handle = gp.share(model)
        assert is_right(model.run(inputs(0))["y"], 0)
        with handle.open() as copy:
            assert is_right(copy.run(inputs(0))["y"], 0)
            assert constants_of(copy) < 4096


def test_ranges_of_shapes(tmp_path):
    with gp.onnx.load(save_products(tmp_path / "m.onnx", "rows"), shapes={"rows": (1, 4)}) as model:
        handle = gp.share(model)
    with handle.open() as copy:
        for rows in (1, 3):
            given = {name: array[:rows] for name, array in inputs(0).items()}
            assert np.array_equal(copy.run(given)["y"].shape, (rows, 300))
        assert constants_of(copy) < 4096


def test_what_cannot_be_shared_is_refused(tmp_path):
    path = save_products(tmp_path / "m.onnx", "rows")
    with pytest.raises(gp.InvalidArgumentError, match=r"accepted: a graphpool\.Model; got: str"):
        gp.share("m.onnx")
    with gp.onnx.load(path) as model:
        with pytest.raises(gp.StateError, match="nothing of 'm' is compiled yet"):
            gp.share(model)
        model.run(inputs(0))
        with pytest.raises(gp.InvalidArgumentError, match="does not keep"):
            gp.share(model, store=PackedStore(tmp_path / "small", capacity_nbytes="100KiB"))
        (tmp_path / "file").touch()
        with pytest.raises(gp.InvalidArgumentError, match="a folder"):
            gp.share(model, store=tmp_path / "file")
        with pytest.raises(gp.InvalidArgumentError, match=r"store; accepted: a PackedStore.*got: 3"):
            gp.share(model, store=3)
        with gp.share(model) as handle, pytest.raises(gp.InvalidArgumentError, match="engine; accepted: an Engine"):
            handle.open(engine="cpu")
        assert is_right(model.run(inputs(0))["y"], 0)
    with pytest.raises(gp.StateError, match="closed"):
        gp.share(model)
    with gp.onnx.load(path, engine=(engine := gp.Engine(allocator=gp.memory.HostResource()))) as model:
        model.run(inputs(0))
        with pytest.raises(TypeError, match="allocator"):
            gp.share(model)
    engine.close()


def test_the_memory_goes_with_the_last_who_has_it(tmp_path):
    with gp.onnx.load(save_products(tmp_path / "m.onnx")) as model:
        text = pickle.dumps(gp.share(model))
        assert pickle.loads(text).open().close() is None  # the model has it, without the handle
    constant_tensor_cache("cpu").clear()
    handle = pickle.loads(text)
    with pytest.raises(gp.StateError, match="is gone"):
        handle.open()
    assert "SealedName" in repr(handle)


def test_a_folder_without_the_model_says_so(tmp_path):
    with gp.onnx.load(save_products(tmp_path / "m.onnx")) as model:
        handle = gp.share(model, store=tmp_path / "store")
    PackedStore(tmp_path / "store").clear()
    with pytest.raises(gp.StateError, match=r"'m' is not in .*share the model again"):
        handle.open()


def test_a_description_that_is_not_the_one_of_the_handle_is_never_loaded(tmp_path):
    with gp.onnx.load(save_products(tmp_path / "m.onnx")) as model:
        handle = gp.share(model, store=tmp_path / "store")
    key = handle._description
    PackedStore(tmp_path / "store").put(key, pickle.dumps(os.getcwd))  # whole, and under the right name
    with pytest.raises(gp.StateError, match="is not in"):
        handle.open()


# ---- files


def overwrite(path):
    about = path.stat()
    with path.open("r+b") as file:
        file.seek(-1000, os.SEEK_END)
        file.write(bytes(100))
    os.utime(path, ns=(about.st_atime_ns, about.st_mtime_ns))  # the size and the time of writing are as they were


CHANGES = {
    "overwritten": overwrite,
    "cut": lambda path: os.truncate(path, 1000),
    "emptied": lambda path: os.truncate(path, 0),
    "replaced": lambda path: (path.unlink(), save_products(path, 4)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("name", ["m.onnx", "w.bin"])
@pytest.mark.parametrize("make", [pickle.dumps, gp.share])
def test_a_file_that_was_changed_is_named(tmp_path, change, name, make):
    path = save_products(tmp_path / "m.onnx", external=name == "w.bin")
    with gp.onnx.load(path) as model:
        model.run(inputs(0))
        made = make(model)
    with pickle.loads(made) if make is pickle.dumps else made.open() as copy:
        assert is_right(copy.run(inputs(0))["y"], 0)
    constant_tensor_cache("cpu").clear()
    CHANGES[change](tmp_path / name)
    if name == "w.bin" and change == "replaced":
        (tmp_path / name).write_bytes(b"other")
    with pytest.raises(gp.StateError, match=rf"file '.*{name}' was changed since"):
        pickle.loads(made) if make is pickle.dumps else made.open()
    (tmp_path / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        pickle.loads(made) if make is pickle.dumps else made.open()


def test_a_file_that_nobody_has_written_is_not_read_again(tmp_path, monkeypatch):
    path = save_products(tmp_path / "m.onnx")
    monkeypatch.setattr(mapped_file, "_SETTLED_NS", 0)
    with gp.onnx.load(path) as model:
        data = pickle.dumps(model)
    with monkeypatch.context() as patch:
        patch.setattr(MappedFile, "_digest", lambda self: pytest.fail("the file is read"))
        pickle.loads(data).close()
    overwrite(path)
    with pytest.raises(gp.StateError, match="was changed since"):
        pickle.loads(data)


def test_the_same_content_in_another_file_will_do(tmp_path):
    path = save_products(tmp_path / "m.onnx")
    with gp.onnx.load(path) as model:
        data = pickle.dumps(model)
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    with pickle.loads(data) as copy:
        assert is_right(copy.run(inputs(0))["y"], 0)
    assert len(data) < 10_000


@pytest.mark.parametrize("event", ["replaced", "removed"])
def test_a_file_without_a_name_is_pickled_whole(tmp_path, event):
    path = save_products(tmp_path / "m.onnx")
    with gp.onnx.load(path) as model:
        model.run(inputs(0))
        path.unlink()
        if event == "replaced":
            path.write_bytes(b"another")
        handle, data = gp.share(model), pickle.dumps(model)
        assert len(data) > TABLE_NBYTES
        with handle.open() as copy:
            assert is_right(copy.run(inputs(0))["y"], 0)
            assert constants_of(copy) < 4096


# ---- threads and forks


@pytest.mark.native
def test_runs_go_on_while_a_model_is_shared(tmp_path):
    copies, is_done = [], threading.Event()

    def share_and_open():
        try:
            copies.extend(gp.share(model).open() for _ in range(5))
        finally:
            is_done.set()

    def work(thread):
        if thread == 0:
            share_and_open()
        while not is_done.is_set():
            assert is_right(model.run(inputs(thread))["y"], thread)

    with gp.onnx.load(save_products(tmp_path / "m.onnx"), threads=1) as model:
        run_threads(4, work)
    for copy in copies:
        assert is_right(copy.run(inputs(1))["y"], 1)
        copy.close()


@pytest.mark.native
def test_a_forked_process_has_the_handle(tmp_path):
    with gp.onnx.load(save_products(tmp_path / "m.onnx"), threads=1) as model:
        handle = gp.share(model)

        def child():
            with handle.open() as copy:
                assert is_right(copy.run(inputs(0))["y"], 0)
                assert SealedStore.open(handle._store.name) is handle._store
                assert pickle.loads(pickle.dumps(handle))._store.name.pid == os.getpid()
            assert is_right(model.run(inputs(1))["y"], 1)

        run_in_child(child)


@pytest.mark.parametrize("place", ["memory", "folder"])
def test_a_closed_handle_opens_nothing_and_what_it_opened_goes_on(tmp_path, place):
    with gp.onnx.load(make_products(), threads=1) as model:
        with gp.share(model, store=None if place == "memory" else tmp_path / "store") as handle:
            text = pickle.dumps(handle)
            copy = handle.open()
        handle.close()
        assert repr(handle).endswith(", closed>")
        for use in (handle.open, lambda: handle.nbytes, lambda: pickle.dumps(handle)):
            with pytest.raises(gp.StateError, match=r"handle of shared model .* is closed; share it again"):
                use()
        with copy:
            assert is_right(copy.run(inputs(0))["y"], 0)
        with pickle.loads(text) as other, other.open() as again:
            assert is_right(again.run(inputs(1))["y"], 1)
    if place == "memory":
        del model, copy, other, again
        with pytest.raises(gp.StateError, match="is gone"):
            pickle.loads(text).open()
