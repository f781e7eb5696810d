"""Compiled forms in a store: a process that finds them is like the one that compiled them, byte for byte."""

import os
import pickle
import re
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from onnx.backend.test.case.node import collect_testcases

import graphpool as gp
from graphpool import mapped_file
from graphpool.cache import PackedStore, set_packed_store
from graphpool.demo import model_path
from graphpool.onnx import stored_model
from graphpool.runtime import form_record
from tests.cases.many_models import ChainModel
from tests.helpers.onnx_models import make_model, random_array
from tests.helpers.stored_models import as_another_process, load_and_run, programs_in, random_feeds, without_store

X = random_array((3, 64))


@pytest.fixture(autouse=True, params=["store", "programs"])
def folder(request, tmp_path, monkeypatch):
    """That of the store of the process: a packed store, or the folder of programs without weights."""
    monkeypatch.setattr(mapped_file, "_SETTLED_NS", -1)
    folder = tmp_path / request.param
    as_another_process(folder)
    yield folder
    without_store()


with_weights = pytest.mark.parametrize("folder", ["store"], indirect=True)


@pytest.fixture
def path(tmp_path):
    """A model of two products, with its weights in its file."""
    return save(tmp_path / "model.onnx")


def save(path, seed=0, **options):
    nodes = [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "v"], ["y"])]
    weights = {"w": random_array((64, 96), seed=seed), "v": random_array((96, 32), seed=seed)}
    onnx.save(make_model(nodes, {"x": X}, ["y"], weights, shapes={"x": ["rows", 64]}), path, **options)
    return path


def check_alike(path, requests, folder, **options):
    """Compare a process that compiles with one that finds the forms; how many files there are."""
    first, _ = load_and_run(path, requests, **options)
    stored = len(programs_in(folder))
    as_another_process(folder)
    second, was_read = load_and_run(path, requests, **options)
    assert second == first
    assert was_read == (not stored)
    return stored


def result_of(path, x=X, **options):
    with gp.onnx.load(path, threads=1, **options) as model:
        return model.run({"x": x})["y"]


# ---- alike


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", ["digits_cnn", "digits_transformer"])
def test_models_of_the_demonstration(name, threads, folder):
    path = model_path(name)
    with gp.onnx.load(path, threads=1) as model:
        requests = [random_feeds(model, {"batch": size}) for size in (2, 5, 1)]
    for other in programs_in(folder):
        other.unlink()
    as_another_process(folder)
    assert check_alike(path, requests, folder, threads=threads) == 1


OPTIONS = [
    {"schedule": "wavefront", "threads": 2}, {"schedule": "sequential"}, {"weights": "cached"}, {"prefer": "memory"},
    {"fpmath": "any"}, {"memory_limit": "64MiB"}, {"shapes": {"rows": (1, 8)}}, {"shapes": {"rows": 3}},
    {"fallback": False},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_each_set_of_options_has_forms_of_its_own(path, options, folder):
    requests = [{"x": random_array((3, 64), seed=1)}]
    load_and_run(path, requests)
    assert len(programs_in(folder)) == 1
    as_another_process(folder)
    first, was_read = load_and_run(path, requests, **options)
    assert was_read
    assert len(programs_in(folder)) == 2
    as_another_process(folder)
    second, was_read = load_and_run(path, requests, **options)
    assert not was_read
    assert second == first


def test_declared_shapes_keep_their_promise(path, folder):
    peaks = []
    for _ in range(2):
        as_another_process(folder)
        with gp.onnx.load(path, threads=1, shapes={"rows": (1, 40)}) as model:
            peaks.append((int(model.predict_peak()), dict(model.predict_peak().shapes)))
            found = [model.run({"x": random_array((rows, 64))})["y"].tobytes() for rows in (40, 1, 7)]
    assert peaks[0] == peaks[1]
    without_store()
    with gp.onnx.load(path, threads=1) as model:
        wanted = [model.run({"x": random_array((rows, 64))})["y"].tobytes() for rows in (40, 1, 7)]
    assert found == wanted


@pytest.mark.parametrize("is_fixed", [False, True])
def test_steps_of_the_host(is_fixed, tmp_path, folder):
    """Maps, and categories of which an unknown one is an error: before, between and behind programs."""
    onehot = {"domain": "ai.onnx.ml", "cats_strings": ["a", "b", "c"], "zeros": 0}
    nodes = [
        helper.make_node("OneHotEncoder", ["t"], ["o"], name="places", **onehot),
        helper.make_node("Reshape", ["o", "to"], ["f"]),
        helper.make_node("Add", ["f", "x"], ["h"]),
        helper.make_node("Softmax", ["h"], ["s"]),
        helper.make_node("ZipMap", ["s"], ["maps"], domain="ai.onnx.ml", classlabels_int64s=[3, 5, 7]),
        helper.make_node("MatMul", ["h", "w"], ["y"]),
    ]
    feeds = {"t": np.array([["a"], ["c"], ["b"]], object), "x": random_array((3, 3))}
    rows = 3 if is_fixed else "rows"
    ports = [
        helper.make_tensor_value_info("t", TensorProto.STRING, [rows, 1]),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 3]),
    ]
    constants = {"to": np.array([-1, 3]), "w": random_array((3, 40))}
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in constants.items()]
    outputs = [onnx.ValueInfoProto(name=name) for name in ("maps", "y")]
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    graph = helper.make_graph(nodes, "g", ports, outputs, tensors)
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    requests = [feeds] if is_fixed else [feeds, {name: value[:2] for name, value in feeds.items()}]
    assert check_alike(path, requests, folder, threads=1) == 1
    messages = []
    for _ in range(2):
        without_store() if messages else as_another_process(folder)
        with gp.onnx.load(path, threads=1) as model, pytest.raises(gp.GraphpoolError) as caught:
            model.run(feeds | {"t": np.array([["a"], ["z"], ["b"]], object)})
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


def test_numbers_that_decide_shapes(tmp_path, folder):
    nodes = [helper.make_node("Reshape", ["x", "to"], ["h"]), helper.make_node("Softmax", ["h"], ["y"])]
    inputs = {"x": random_array((4, 6)), "to": np.array([2, 12])}
    path = tmp_path / "model.onnx"
    onnx.save(make_model(nodes, inputs, ["y"], shapes={"x": ["rows", 6]}), path)
    requests = [
        {"x": random_array((rows, 6)), "to": np.array(to)} for rows, to in ((4, [2, 12]), (4, [3, -1]), (5, [30, 1]))
    ]
    assert check_alike(path, requests, folder) == 1


def with_warnings_off(function, *args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function(*args, **options)


CASES = with_warnings_off(lambda: sorted(collect_testcases(None), key=lambda case: case.name))[::40]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_nodes_of_the_suite(case, tmp_path, folder):
    path = tmp_path / "node.onnx"
    path.write_bytes(case.model.SerializeToString())
    feeds = dict(zip([port.name for port in case.model.graph.input], case.data_sets[0][0], strict=True))
    try:
        with_warnings_off(load_and_run, path, [feeds], describes=False)
    except gp.GraphpoolError as refused:
        as_another_process(folder)
        with pytest.raises(type(refused), match=re.escape(str(refused))):
            with_warnings_off(load_and_run, path, [feeds])
    else:
        as_another_process(folder)
        with_warnings_off(check_alike, path, [feeds], folder)


@pytest.mark.parametrize("seed", range(8))
def test_random_models_and_shapes(seed, tmp_path, folder):
    rng = np.random.default_rng(seed)
    layers, width, threads = (int(rng.integers(*span)) for span in ((1, 5), (1, 70), (1, 3)))
    chain = ChainModel(layers, width, seed)
    requests = [{"h0": chain.request(int(rows))} for rows in rng.integers(1, 40, rng.integers(1, 5))]
    check_alike(chain.write(tmp_path), requests, folder, threads=threads)


# ---- which forms are found


def test_a_form_for_other_sizes_serves(path, folder):
    result_of(path, random_array((40, 64)))
    as_another_process(folder)
    with gp.onnx.load(path, threads=1) as model:
        found = model.run({"x": random_array((44, 64))})["y"]
        assert model._forms.specialise._real is None
    without_store()
    assert found.tobytes() == result_of(path, random_array((44, 64))).tobytes()


def test_models_of_one_structure_have_their_own_weights(tmp_path, folder):
    paths = [save(tmp_path / f"model{seed}.onnx", seed) for seed in (0, 1)]
    first = [result_of(path).tobytes() for path in paths]
    assert len(programs_in(folder)) == 2
    as_another_process(folder)
    assert [result_of(path).tobytes() for path in paths] == first
    assert first[0] != first[1]


def test_equal_constants_are_counted_one_by_one(tmp_path, folder):
    """Constants that are computed, of one content, lie in memory as often as the importer makes them."""
    shape = np.array([64, 64])
    nodes = [helper.make_node("ConstantOfShape", ["shape"], [name]) for name in "wv"]
    nodes += [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "v"], ["g"])]
    nodes += [helper.make_node("Add", ["g", "s"], ["y"])]
    path = tmp_path / "filled.onnx"
    constants = {"shape": shape, "s": random_array((64,))}
    onnx.save(make_model(nodes, {"x": X}, ["y"], constants, shapes={"x": ["rows", 64]}), path)
    assert check_alike(path, [{"x": X}, {"x": X[:1]}], folder, threads=1) == 1


@with_weights
def test_a_copy_under_another_name_is_the_same_model(path, folder):
    first = result_of(path)
    as_another_process(folder)
    copy = path.with_name("copy.onnx")
    copy.write_bytes(path.read_bytes())
    with gp.onnx.load(copy, threads=1) as model:
        assert model.name == "copy"
        assert np.array_equal(model.run({"x": X})["y"], first)
        assert model._forms.specialise._real is None


def test_weights_in_another_file(tmp_path, folder):
    path = save(tmp_path / "model.onnx", save_as_external_data=True, location="weights.bin", size_threshold=0)
    assert check_alike(path, [{"x": X}], folder) == 1
    beside = tmp_path / "weights.bin"
    data = np.frombuffer(beside.read_bytes(), np.float32) * 2
    beside.unlink()
    beside.write_bytes(data.tobytes())
    as_another_process(folder)
    found = result_of(path)
    without_store()
    assert found.tobytes() == result_of(path).tobytes()


@pytest.mark.parametrize("what", ["other build", "other costs", "planner", "backend", "bytes", "copy", "packed"])
def test_what_cannot_be_shared_is_compiled(what, path, folder, monkeypatch):
    wanted = result_of(path).tobytes()
    as_another_process(folder)
    options, engine, source = {}, gp.Engine("cpu", threads=1), path
    if what == "other build":
        monkeypatch.setattr(stored_model, "build_name", lambda: "other")
    elif what == "other costs":
        monkeypatch.setattr("graphpool.runtime.stored_forms.has_costs", lambda: True)
    elif what == "planner":
        engine = gp.Engine("cpu", threads=1, planner=in_order)
    elif what == "backend":
        monkeypatch.setattr("graphpool.runtime.stored_forms.are_own_backends", lambda kind: False)
    elif what == "bytes":
        source = path.read_bytes()
    else:
        options = {"mapping": "copy"} if what == "copy" else {"weights": "packed"}
    with engine, gp.onnx.load(source, engine=engine, **options) as model:
        assert model.run({"x": X})["y"].tobytes() == wanted
        assert getattr(model._forms.specialise, "_real", True) is not None


def in_order(buffers, alignment):
    """Each buffer behind the one before."""
    offsets, end = {}, 0
    for buffer in buffers:
        offsets[buffer.id] = end
        end += -(-buffer.size // alignment) * alignment
    return offsets


def test_a_folder_that_others_may_write_to_has_none(path, folder):
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)
    as_another_process(folder)
    result_of(path)
    assert not programs_in(folder)


def test_sessions_compile_forms_of_their_own(tmp_path, folder):
    nodes = [
        helper.make_node("Concat", ["past", "x"], ["present"], axis=0),
        helper.make_node("ReduceSum", ["present"], ["y"]),
    ]
    feeds = {"past": random_array((2, 4)), "x": random_array((1, 4))}
    path = tmp_path / "state.onnx"
    onnx.save(make_model(nodes, feeds, ["present", "y"], shapes={"past": ["old", 4], "x": ["new", 4]}), path)
    found = []
    for _ in range(2):
        as_another_process(folder)
        with gp.onnx.load(path, threads=1) as model:
            alone = model.run(feeds)["present"].tobytes()
            with model.session({"present": "past"}, {"old": 5}) as session:
                found.append((alone, [session.run({"x": feeds["x"]})["y"].tobytes() for _ in range(3)]))
    assert found[0] == found[1]


# ---- errors


def test_wrong_inputs_are_refused_alike(path, folder):
    def messages():
        with gp.onnx.load(path, threads=1) as model:
            model.run({"x": X})
            for feeds in ({}, {"x": X[:, :5]}, {"x": X.astype(np.float64)}, {"z": X}, {"x": "text"}):
                with pytest.raises(gp.GraphpoolError) as caught:
                    model.run(feeds)
                yield type(caught.value), str(caught.value)
            with pytest.raises(gp.InvalidArgumentError) as caught:
                model.read_weight("nothing")
            yield type(caught.value), str(caught.value)
            yield model.read_weight("w").tobytes()

    first = list(messages())
    as_another_process(folder)
    assert list(messages()) == first


def test_too_small_a_limit_is_refused_alike(path, folder):
    def message():
        with pytest.raises(gp.OutOfMemoryError) as caught, gp.onnx.load(path, threads=1, memory_limit=1000) as model:
            model.run({"x": X})
        return str(caught.value), caught.value.smallest_limit

    with gp.onnx.load(path, threads=1, memory_limit=1000):  # so that there is something to find
        pass
    first = message()
    as_another_process(folder)
    assert message() == first


def test_forms_serve_under_other_limits(path, folder):
    """As ``memory_limit="auto"`` gives them, which differ from process to process."""
    wanted = load_and_run(path, [{"x": X}], memory_limit="64MiB")[0]
    as_another_process(folder)
    found, was_read = load_and_run(path, [{"x": X}], memory_limit="63MiB")
    assert (found, was_read) == (wanted, False)
    without_store()
    with pytest.raises(gp.OutOfMemoryError) as compiled:
        load_and_run(path, [{"x": X}], memory_limit="30KiB")
    as_another_process(folder)
    with pytest.raises(gp.OutOfMemoryError) as read:
        load_and_run(path, [{"x": X}], memory_limit="30KiB")
    least = read.value.smallest_limit
    assert least <= compiled.value.smallest_limit
    as_another_process(folder)
    assert load_and_run(path, [{"x": X}], describes=False, memory_limit=least)[1] is False


def test_a_file_that_is_replaced_is_another_model(path, folder):
    first = result_of(path)
    as_another_process(folder)
    with gp.onnx.load(path, threads=1) as model:
        other = save(path.with_name("other.onnx"), seed=7)
        other.replace(path)
        assert np.array_equal(model.run({"x": X})["y"], first)
        assert len(model.partitions) == 2  # made of the file that was there
        assert np.array_equal(model.read_weight("w"), random_array((64, 96)))
    assert not np.array_equal(result_of(path), first)


# ---- damage


DAMAGE = [
    lambda data: data[:100], lambda data: data[:-1], lambda data: b"", lambda data: bytes(len(data)),
    lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
]  # fmt: skip


@with_weights
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_a_miss_with_one_warning(damage, path, folder):
    first = result_of(path)
    [program] = programs_in(folder)
    whole = program.read_bytes()
    program.write_bytes(damage(whole))
    as_another_process(folder)
    with pytest.warns(gp.PerformanceWarning, match="compiled program .* is damaged and will be compiled again") as told:
        assert np.array_equal(result_of(path), first)
    assert len(told) == 1
    as_another_process(folder)
    assert load_and_run(path, [{"x": X}], describes=False, threads=1)[1] is False


class Evil:
    """What must not be made."""

    def __reduce__(self):
        return os.system, ("true",)


@pytest.mark.parametrize("thing", [os.system, eval, Evil(), subprocess.Popen, np.zeros(3)])
def test_no_other_class_is_read_or_written(thing):
    text = pickle.dumps(thing)
    with pytest.raises(pickle.UnpicklingError, match="no part of a compiled form"):
        form_record.load_record(np.array([1, len(text)], np.int64).tobytes() + text)
    with pytest.raises(form_record.UnwritableError):
        form_record.dump_record([thing])


def test_a_record_of_something_else_is_a_miss(path, folder, monkeypatch):
    monkeypatch.setattr(stored_model, "dump_record", lambda record: form_record.dump_record((1, 2)))
    first = result_of(path)
    monkeypatch.undo()
    monkeypatch.setattr(mapped_file, "_SETTLED_NS", -1)
    as_another_process(folder)
    assert np.array_equal(result_of(path), first)


@with_weights
def test_a_full_store_keeps_nothing(path, folder):
    set_packed_store(PackedStore(folder, capacity_nbytes=6000))
    result_of(path)
    assert not programs_in(folder)


# ---- processes


SCRIPT = """
import sys, numpy as np, graphpool as gp, graphpool.onnx
from graphpool import mapped_file
mapped_file._SETTLED_NS = -1
with gp.onnx.load(sys.argv[1], threads=1) as model:
    result = model.run({"x": np.load(sys.argv[2])})["y"]
    found = model._forms.specialise._real is None
print(result.tobytes().hex(), found, "graphpool.onnx.source" in sys.modules)
"""


def start(path, folder, **environment):
    x = path.with_name("x.npy")
    np.save(x, X)
    name = "PROGRAM_FOLDER" if folder.name == "programs" else "PACKED_STORE"
    env = os.environ | {f"GRAPHPOOL_{name}": str(folder)} | environment
    return subprocess.Popen([sys.executable, "-c", SCRIPT, path, x], env=env, stdout=subprocess.PIPE, text=True)


def test_other_processes_find_it_without_the_importer(path, folder):
    first, was_found, _ = start(path, folder).communicate()[0].split()
    assert was_found == "False"
    assert start(path, folder).communicate()[0].split() == [first, "True", "False"]
    capped = start(path, folder, GRAPHPOOL_MAX_ISA="generic").communicate()[0].split()
    assert capped[1:] == ["False", "True"]
    assert start(path, folder, GRAPHPOOL_MAX_ISA="generic").communicate()[0].split() == [capped[0], "True", "False"]
    assert len(programs_in(folder)) == 2


def test_processes_that_start_together(path, folder):
    results = [process.communicate()[0].split() for process in [start(path, folder) for _ in range(3)]]
    assert len({result[0] for result in results}) == 1
    assert len(programs_in(folder)) == 1
    assert not list(folder.glob("*.writing"))
    assert start(path, folder).communicate()[0].split()[1:] == ["True", "False"]


@with_weights
@pytest.mark.native
@pytest.mark.parametrize("settled_ns", [-1, 2**62])
def test_plain_weights_of_a_stored_form_are_not_in_memory(settled_ns, tmp_path, folder, monkeypatch):
    """Nor are they read again where a file is too young for digests of its parts to be kept."""
    monkeypatch.setattr(mapped_file, "_SETTLED_NS", settled_ns)
    side = 1024
    weight = np.random.default_rng(0).standard_normal((side, side), np.float32)
    ports = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, side]) for name in "xy"]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    graph = helper.make_graph(nodes, "g", ports[:1], ports[1:], [onnx.numpy_helper.from_array(weight, "w")])
    path = tmp_path / "large.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    gp.onnx.load(path, threads=1).close()
    as_another_process(folder)
    with gp.onnx.load(path, threads=1) as model:
        assert model._forms.specialise._real is None
        assert model.engine.process_report().mapped_nbytes >= 2 * weight.nbytes
        assert present_nbytes(path) <= weight.nbytes // 4


def present_nbytes(path):
    """How much of a file the process has in memory."""
    found, is_path = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            is_path = line.endswith(str(path))
        elif is_path and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


# ---- handles


WORKER = """
import pickle, sys
import numpy as np
with pickle.loads(bytes.fromhex(sys.argv[1])).open() as model:
    results = [model.run({"x": np.load(path)})["y"].tobytes().hex() for path in sys.argv[2:]]
    print(*results, model._forms.specialise._real is None, "graphpool.onnx.source" in sys.modules)
"""


@pytest.mark.parametrize("source", ["file", "bytes"])
@pytest.mark.parametrize("place", ["folder", "memory"])
def test_workers_find_what_was_compiled(source, place, path, folder):
    without_store()
    xs = [random_array((rows, 64)) for rows in (40, 41, 1)]
    names = [str(path.with_name(f"x{k}.npy")) for k in range(3)]
    for x, name in zip(xs, names, strict=True):
        np.save(name, x)
    with gp.onnx.load(path if source == "file" else path.read_bytes(), threads=1) as model:
        wanted = [model.run({"x": x})["y"].tobytes().hex() for x in xs[:1]]
        handle = gp.share(model, store=folder if place == "folder" else None)
        wanted += [model.run({"x": x})["y"].tobytes().hex() for x in xs[1:]]
        text = pickle.dumps(handle)
        found = [worker(text, names[:count]) for count in (1, 3)]
    assert found[0] == [wanted[0], "True", "False"]  # nothing was compiled, nor the importer imported
    assert found[1] == [*wanted, "False", "True"]  # one row asks for another compilation


def worker(text, names):
    command = [sys.executable, "-c", WORKER, text.hex(), *names]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_an_engine_unlike_the_shared_one_compiles(path, folder):
    without_store()
    with gp.onnx.load(path, threads=1) as model:
        first = model.run({"x": X})["y"]
        handle = gp.share(model)
        with handle.open() as own:
            assert np.array_equal(own.run({"x": X})["y"], first)
            assert own._forms.specialise._real is None
            assert own.predict_peak({"x": X.shape}) == model.predict_peak({"x": X.shape})
        with gp.Engine(threads=2) as engine, handle.open(engine=engine) as other:
            assert np.array_equal(other.run({"x": X})["y"], first)
            assert other._forms.specialise._real is not None
