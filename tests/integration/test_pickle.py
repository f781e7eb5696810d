"""Compiled partitions and models pickle, and work in another process; copies of handles are the handles."""

import copy as shallow
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import graphpool as gp
from graphpool import demo
from graphpool.cache import compiled_partition_cache
from tests.runtime.test_model import make_model

ROOT = Path(__file__).parents[2]

CHILD = """
import pickle, sys
import numpy as np
folder = sys.argv[1]
with open(folder + "/pickle", "rb") as file, np.load(folder + "/data.npz") as data:
    buffers = [data[f"buffer{k}"].data for k in range(len([name for name in data.files if name.startswith("buffer")]))]
    loaded = pickle.loads(file.read(), buffers=buffers)
    given = {name.removeprefix("in."): data[name] for name in data.files if name.startswith("in.")}
    np.save(folder + "/out.npy", __import__("child").use(loaded, given))
"""


def in_another_process(tmp_path, value, given, use):
    """What ``use(copy, given)`` gives where `value` was loaded from a pickle with its buffers out of band."""
    buffers = []
    data = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    (tmp_path / "pickle").write_bytes(data)
    (tmp_path / "child.py").write_text(use)
    arrays = {f"buffer{k}": np.frombuffer(buffer.raw(), np.uint8) for k, buffer in enumerate(buffers)}
    np.savez(tmp_path / "data.npz", **arrays, **{f"in.{name}": array for name, array in given.items()})
    command = [sys.executable, "-W", "error", "-c", CHILD, str(tmp_path)]
    own = {name: value for name, value in os.environ.items() if name.startswith("GRAPHPOOL_")}
    environment = own | {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": ""}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return np.load(tmp_path / "out.npy"), len(data), sum(buffer.raw().nbytes for buffer in buffers)


RUN_MODEL = """
def use(model, given):
    with model:
        result = next(iter(model.run(given).values()))
    assert model.engine.is_closed and model.engine.budget.in_use == result.nbytes
    return result
"""


@pytest.mark.parametrize("name", demo.MODELS)
def test_a_model_of_bytes_with_its_weights_out_of_band(tmp_path, name):
    images, _ = demo.test_images()
    with gp.onnx.load(Path(demo.model_path(name)).read_bytes()) as model:
        expected = model.run({"image": images[:3]})["probabilities"]
        weights = model.stats().constants_nbytes
        actual, inband, outofband = in_another_process(tmp_path, model, {"image": images[:3]}, RUN_MODEL)
    np.testing.assert_array_equal(actual, expected)
    assert outofband >= weights * 0.9
    assert inband < outofband / 2


@pytest.mark.parametrize("name", demo.MODELS)
def test_a_model_of_a_file_without_its_weights(tmp_path, name):
    images, _ = demo.test_images()
    with gp.onnx.load(demo.model_path(name)) as model:
        expected = model.run({"image": images[:3]})["probabilities"]
        large = sum(c.nbytes for c in model._forms.specialise.constants.values() if c.nbytes >= 1024)
        actual, inband, outofband = in_another_process(tmp_path, model, {"image": images[:3]}, RUN_MODEL)
    np.testing.assert_array_equal(actual, expected)
    assert inband + outofband < Path(demo.model_path(name)).stat().st_size - large / 2


RUN_PARTITION = """
import graphpool as gp
def use(compiled, given):
    engine = compiled.engine
    assert (engine.threads, engine.memory_limit, compiled.scratch) == (1, 2**20, "shared")
    tensors = [gp.Tensor(lt, engine, given[str(lt.id)]) for lt in compiled.inputs]
    [y] = compiled.execute(gp.Stream(engine), tensors)
    result = y.numpy().copy()
    del y, tensors
    compiled.close()
    engine.close()
    return result
"""


@pytest.mark.parametrize("kind", ["MatMul", "Divide"])
def test_a_compiled_partition(tmp_path, kind):
    rng = np.random.default_rng(0)
    x, w, y = (gp.LogicalTensor(k + 5, "f32", (8, 8)) for k in range(3))
    given = {"5": rng.standard_normal((8, 8)).astype(np.float32), "6": rng.random((8, 8), np.float32) + 1}
    partition = gp.Partition.from_op(gp.Op(3, kind, [x, w], [y], name="layer"))
    with gp.Engine(threads=1, memory_limit="1MiB") as engine:
        with partition.compile([w, x], [y], engine, scratch="shared") as compiled:
            tensors = [gp.Tensor(lt, engine, given[str(lt.id)]) for lt in compiled.inputs]
            expected = compiled.execute(gp.Stream(engine), tensors)[0].numpy().copy()
            actual, _, _ = in_another_process(tmp_path, compiled, given, RUN_PARTITION)
        with pytest.raises(gp.StateError, match="pickle it while it is open"):
            pickle.dumps(compiled)
    np.testing.assert_array_equal(actual, expected)


def test_what_is_loaded_attaches_to_the_caches():
    x, y = gp.LogicalTensor(0, "f32", (4, 4)), gp.LogicalTensor(1, "f32", (4, 4))
    original = gp.Partition.from_op(gp.Op(0, "ReLU", [x], [y]))
    with gp.Engine(threads=1) as engine, original.compile([x], [y], engine) as compiled:
        data = pickle.dumps([compiled, original, engine])
        before = compiled_partition_cache().stats()
        copy, partition, other = pickle.loads(data)
        assert copy.primitive is compiled.primitive
        assert compiled_partition_cache().stats().hits == before.hits + 1
        assert copy.partition is partition
        assert partition.id != original.id
        assert partition.structure.content == original.structure.content
        assert copy.engine is other is not engine
        copy.close()
        other.close()


def test_a_model_keeps_the_engine_that_was_pickled_with_it():
    """And is compiled again, for the shapes that it meets."""
    with gp.onnx.load(demo.model_path("digits_cnn"), memory_limit="8MiB") as model:
        copy, engine = pickle.loads(pickle.dumps((model, model.engine)))
    images, _ = demo.test_images()
    with copy:
        assert copy.engine is engine
        assert engine.memory_limit == 8 << 20
        assert copy.run({"image": images[:2]})["probabilities"].shape == (2, 10)
        assert copy.stats().misses == 1
    assert engine.is_closed
    with pytest.raises(gp.StateError, match="closed"):
        pickle.dumps(copy)


def test_what_has_no_meaning_elsewhere_is_refused():
    with gp.Engine(allocator=gp.memory.HostResource()) as engine, pytest.raises(TypeError, match="allocator"):
        pickle.dumps(engine)
    with gp.Engine() as engine, make_model(engine, capacity=2) as model:
        copy = pickle.loads(pickle.dumps(model))
        assert copy.engine is not engine
        copy.close()
        copy.engine.close()


def test_a_copy_is_the_same_object():
    """oneDNN Graph: all objects but logical tensors behave like shared pointers."""
    x, y = gp.LogicalTensor(0, "f32", (2,)), gp.LogicalTensor(1, "f32", (2,))
    graph = gp.Graph()
    graph.add_op(gp.Op(0, "ReLU", [x], [y]))
    graph.finalize()
    [partition] = graph.get_partitions()
    loose = gp.LogicalTensor(0, "f32", (gp.UNKNOWN_DIM,))
    with gp.Engine() as engine, gp.Stream(engine) as stream:
        dynamic = partition.compile([loose], [gp.LogicalTensor(1, "f32")], engine)
        lifetimes = gp.memory.OffsetLifetimeManager()
        for value in (
            *(graph, partition, engine, stream, stream.record(), gp.Tensor(x, engine), dynamic),
            *(partition.compile([x], [y], engine), lifetimes, gp.memory.MemoryManagerCached(lifetimes)),
            *(gp.memory.StatisticsResource(gp.memory.HostResource()), gp.cache.primitive_cache()),
            gp.cache.constant_tensor_cache("cpu"),
        ):
            assert shallow.copy(value) is value
        dynamic.close()
