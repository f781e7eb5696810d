"""Indices outside their axis: whoever waits for the work is told, and no result of it is read before."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp
from tests.backends.cpu.emit.test_extensions import BY_INDEX
from tests.cases.graphs import GraphBuilder
from tests.helpers.cuda_engine import upload

TABLE = np.arange(10, dtype=np.float32).reshape(5, 2)
MESSAGE = r"op '{}' \({}\): an index, or a length, that was computed or given.*got: one outside its axis"


def outside(name, kind):
    return pytest.raises(gp.InvalidArgumentError, match=MESSAGE.format(name, kind))


class Looked:
    """An op that looks at indices, compiled, with good and bad ones on the device."""

    def __init__(self, engine, kind="Gather", dtype="s64"):
        front, behind, attrs, indices, wrong = BY_INDEX[kind]
        good = np.array(indices).astype(gp.DataType(dtype).numpy)
        bad = good.copy()
        bad.flat[1] = wrong
        builder = GraphBuilder(graph=gp.Graph("gpu"))
        arrays = [*front, good, *behind]
        ports = [builder.input(array.shape, gp.DataType.parse(array.dtype).value) for array in arrays]
        result = builder.op(kind, *ports, **attrs)
        [partition] = builder.finish()
        assert partition.backend_name == "cuda"
        self.compiled = partition.compile(ports, [result], engine)
        tensors = [upload(lt, engine, array) for lt, array in zip(ports, arrays, strict=True)]
        self.good = tensors
        self.bad = [*tensors[: len(front)], upload(ports[len(front)], engine, bad), *tensors[len(front) + 1 :]]

    def run(self, stream, tensors):
        [result] = self.compiled.execute(stream, tensors)
        return result


@pytest.mark.parametrize("dtype", ["s32", "s64"])
@pytest.mark.parametrize("kind", BY_INDEX)
def test_kinds(driver, gpu, kind, dtype):
    looked = Looked(gpu, kind, dtype)
    with gp.Stream(gpu) as stream:
        expected = looked.run(stream, looked.good).numpy()
        for seed in range(2):
            driver.seed(seed)
            result = looked.run(stream, looked.bad)
            with outside(".*", kind):
                result.numpy()
            with outside(".*", kind):
                stream.wait()
            stream.wait()  # told once
            np.testing.assert_array_equal(looked.run(stream, looked.good).numpy(), expected)


def test_each_way_to_wait_tells(gpu):
    looked = Looked(gpu)
    stream = gp.Stream(gpu)
    looked.run(stream, looked.bad)
    event = stream.record()
    looked.run(stream, looked.good)
    with outside(".*", "Gather"):
        event.wait()
    stream.wait()
    looked.run(stream, looked.bad)
    with outside(".*", "Gather"):
        stream.close()
    assert stream.is_closed
    stream.close()


def test_nothing_is_read_before_a_wait_has_told(gpu):
    """Not even what another stream wrote, whose work may have read what is wrong."""
    looked = Looked(gpu)
    with gp.Stream(gpu) as one, gp.Stream(gpu) as other:
        fine = looked.run(other, looked.good)
        looked.run(one, looked.bad)
        other.wait()
        for read in (fine.numpy, fine.numpy, lambda: fine.__dlpack__(), lambda: fine.__cuda_array_interface__):
            with outside(".*", "Gather"):
                read()
        with outside(".*", "Gather"):
            one.wait()
        fine.numpy()


def test_runs_without_a_reader_take_no_more_words(driver, gpu):
    looked = Looked(gpu)
    with gp.Stream(gpu) as stream:
        looked.run(stream, looked.good)
        stream.wait()
        before = driver.live()
        for _ in range(20):
            looked.run(stream, looked.good)
            stream.wait()
        assert len(driver.live()) <= len(before) + 1  # the results of the last run


def test_an_engine_tells_when_it_closes(driver, twins):
    engine = gp.Engine("gpu")
    looked = Looked(engine)
    stream = gp.Stream(engine)
    looked.run(stream, looked.bad)
    with outside(".*", "Gather"):
        engine.close()
    assert engine.is_closed
    assert stream.is_closed
    engine.close()


# ---- models


def model_of(nodes, outputs):
    """A model of nodes on `mask` (2, n) that looks up rows of `rows`."""
    made = [helper.make_node(op, ins, outs, name=name) for op, ins, outs, name in nodes]
    graph = helper.make_graph(
        made,
        "test",
        [helper.make_tensor_value_info("mask", TensorProto.INT64, [2, "n"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(np.array(1), "axis"), numpy_helper.from_array(TABLE, "rows")],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


COUNTED = [("CumSum", ["mask", "axis"], ["places"], "count"), ("Gather", ["rows", "places"], ["found"], "positions")]


def negated(width=1):
    """Rows at counted positions, on so many branches beside one another."""
    nodes = [COUNTED[0]]
    for k in range(width):
        nodes += [
            ("Gather", ["rows", "places"], [f"found{k}"], "positions"),
            ("Softmax", [f"found{k}"], [f"soft{k}"], f"soft{k}"),
            ("Neg", [f"soft{k}"], [f"y{k}"], f"neg{k}"),
        ]
    return model_of(nodes, [f"y{k}" for k in range(width)])


def masks(length):
    return {"mask": np.ones((2, length), np.int64)}


@pytest.mark.parametrize("options", [{}, {"schedule": "wavefront", "streams": 3}], ids=["one stream", "three streams"])
def test_models(driver, gpu, options):
    source = negated(3)
    with gp.onnx.load(source) as model:
        expected = model.run(masks(4))
    with gp.onnx.load(source, engine=gpu, **options) as model:
        for seed in range(3):
            driver.seed(seed)
            with outside("positions", "Gather") as caught:
                model.run(masks(5))
            assert caught.value.node == "positions"
            found = model.run(masks(4))  # another form
            for name, array in expected.items():
                np.testing.assert_allclose(found[name], array, rtol=1e-6)
            ones = model.run({"mask": np.array([[1, 0, 0, 0, 1], [0, 0, 0, 0, 0]])})  # the same graph as before
            assert all(np.isfinite(array).all() for array in ones.values())


def test_the_host_does_not_compute_with_what_is_wrong(gpu):
    """A step of the host behind the launches does not run."""
    statistics = [(f"given{k}", np.ones(5, np.float32)) for k in range(4)]
    nodes = [*COUNTED, ("Transpose", ["found"], ["turned"], "turn")]
    source = model_of([*nodes, ("Neg", ["turned"], ["y"], "neg")], ["y"])
    graph = source.graph
    graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in statistics)
    hosted = helper.make_node(
        "BatchNormalization", ["y", *[name for name, _ in statistics]], ["z", "mean", "variance"], training_mode=1
    )
    graph.node.append(hosted)
    graph.output.append(helper.make_tensor_value_info("z", TensorProto.FLOAT, None))
    with gp.onnx.load(source, engine=gpu) as model:
        for _ in range(2):
            with outside("positions", "Gather"):
                model.run(masks(5))
