"""Matrix products by cuBLASLt: calls that a recording library checks and computes, memory, and what it does not do."""

import gc

import numpy as np
import pytest

import graphpool as gp
from graphpool import demo
from graphpool.runtime.cuda import cublas_lt
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.cublas_lt import RecordingLibrary
from tests.helpers.cuda_engine import run_partitions, upload
from tests.helpers.partitions import assert_close, run_reference


@pytest.fixture
def library(twins, monkeypatch):
    made = RecordingLibrary()
    monkeypatch.setattr(cublas_lt, "find_library", lambda: made)
    yield made
    gc.collect()
    assert made.live == {}


@pytest.fixture
def engine(library, driver):
    with gp.Engine("gpu") as engine:
        yield engine
        gc.collect()
        assert (engine.stats().current_nbytes, engine.budget.in_use) == (0, 0)


def product(a, b, dtype="f32", result=None, bias=False, behind=(), **turned):
    """A product with ops behind it, and inputs."""
    g = GraphBuilder(graph=gp.Graph("gpu"))
    inputs = [g.input(a, dtype), g.input(b, dtype)]
    if bias:
        inputs.append(g.input((b[-2 if turned.get("transpose_b") else -1],), dtype))
    y = g.op("MatMul", *inputs, **turned)
    for kind in behind:
        y = g.op(kind, y)
    if result is not None:
        y = g.op("TypeCast", y, dtype=result)
    return g, y, random_inputs(g, np.random.default_rng(len(a) + len(b)))


def check(engine, g, y, values):
    expected = run_reference(g.graph.ops, values)[y.id]
    partition = g.graph.merge_partitions(g.finish())
    found = run_partitions([partition], values, engine)
    assert_close(found[y.id], expected, gp.DataType.parse(y.dtype), scale=4)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("transpose_a", [False, True])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_operands_as_they_lie(driver, library, engine, dtype, transpose_a, transpose_b):
    driver.seed(len(dtype))
    a, b = (2, 5, 70), (2, 70, 33)
    turned = {"transpose_a": transpose_a, "transpose_b": transpose_b}
    shapes = (2, 70, 5) if transpose_a else a, (2, 33, 70) if transpose_b else b
    check(engine, *product(*shapes, dtype, **turned))
    assert library.calls == [(2, 33, 5, 70, (dtype, dtype), 16)]


@pytest.mark.parametrize(
    ("a", "b", "batch"),
    [((3, 4), (4, 5), 1), ((2, 3, 4, 5), (2, 3, 5, 6), 6), ((2, 3, 4), (4, 5), 2), ((4,), (4, 5), 1), ((3, 4), (4,), 1),
     ((1, 4), (4, 5), 1), ((3, 1), (1, 5), 1), ((2, 3, 4), (1, 4, 1), 2)],
    ids=str,
)  # fmt: skip
def test_shapes(library, engine, a, b, batch):
    check(engine, *product(a, b))
    assert [call.batch for call in library.calls] == [batch]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    "form", [{"bias": True}, {"behind": ["ReLU", "Abs"]}, {"bias": True, "result": "f16"}], ids=str
)
def test_what_is_behind_a_product_is_a_launch_of_its_own(library, engine, dtype, form):
    check(engine, *product((3, 6, 9), (9, 4), dtype, **form))
    [call] = library.calls
    assert call.dtypes == (dtype, "f32")  # sums are not rounded in between


def convolution(data_format, weights_format, taps=1, **windows):
    """One of 4 channels to 6 over two images, with a bias and an op behind it, and inputs."""
    g = GraphBuilder(graph=gp.Graph("gpu"))
    x = g.input((2, 4, 5, 3) if data_format == "NCX" else (2, 5, 3, 4))
    w = g.input((6, 4, taps, 1) if weights_format == "OIX" else (taps, 1, 4, 6))
    bias = g.input((6,))
    windows = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1]} | windows
    y = g.op("Convolution", x, w, bias, data_format=data_format, weights_format=weights_format, **windows)
    return g, g.op("ReLU", y), random_inputs(g, np.random.default_rng(taps))


@pytest.mark.parametrize("weights_format", ["OIX", "XIO"])
@pytest.mark.parametrize(("data_format", "sizes"), [("NCX", (2, 15, 6, 4)), ("NXC", (1, 6, 30, 4))])
def test_convolutions_of_single_pixels(library, engine, data_format, sizes, weights_format):
    check(engine, *convolution(data_format, weights_format))
    assert [call[:4] for call in library.calls] == [sizes]


@pytest.mark.parametrize("windows", [{"taps": 2}, {"strides": [2, 1]}, {"pads_begin": [1, 0]}], ids=str)
def test_other_convolutions_are_our_own(library, engine, windows):
    check(engine, *convolution("NCX", "OIX", **windows))
    assert library.calls == []


@pytest.mark.parametrize("shapes", [((2, 1, 3, 4), (2, 5, 4, 3)), ((2, 0, 4), (4, 5)), ((2, 3, 0), (0, 5))], ids=str)
def test_other_products_are_our_own(library, engine, shapes):
    check(engine, *product(*shapes))
    assert library.calls == []


def test_our_own_products_where_the_library_has_no_algorithm(library, engine):
    library.refuses = True
    check(engine, *product((3, 4), (4, 5)))
    assert library.calls == []


def test_our_own_products_where_the_library_does_not_take_the_device(library):
    library.fails = True
    with gp.Engine("gpu") as engine:
        check(engine, *product((3, 4), (4, 5)))
        gc.collect()


def test_failure_of_a_call_is_told(library, engine):
    g, y, values = product((3, 4), (4, 5))
    [partition] = g.finish()
    compiled = partition.compile(partition.input_ports, [y.replace(shape=(3, 5))], engine)
    inputs = [upload(lt, engine, values[lt.id]) for lt in compiled.inputs]
    with gp.Stream(engine) as stream:
        library.fails = True
        with pytest.raises(gp.BackendError, match="cublasLtMatmul failed; got: no product"):
            compiled.execute(stream, inputs)
        library.fails = False
        [result] = compiled.execute(stream, inputs)
        assert_close(result.numpy(), run_reference(g.graph.ops, values)[y.id], gp.DataType.F32)
        del result


class Shifted:
    """The memory of a tensor from its second element on."""

    def __init__(self, tensor, shape):
        address, is_readonly = tensor.__cuda_array_interface__["data"]
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__ | {
            "data": (address + 4, is_readonly), "shape": shape, "strides": None,
        }  # fmt: skip


def test_addresses_that_are_not_aligned_have_an_algorithm_of_their_own(library, engine):
    g, y, values = product((3, 4), (4, 5))
    [partition] = g.finish()
    compiled = partition.compile(partition.input_ports, [y.replace(shape=(3, 5))], engine)
    x, w = compiled.inputs
    whole = upload(gp.LogicalTensor(9, "f32", (13,)), engine, np.append(np.float32(0), values[x.id]))
    inputs = [gp.Tensor(x, engine, Shifted(whole, (3, 4))), upload(w, engine, values[w.id])]
    with gp.Stream(engine) as stream:
        [result] = compiled.execute(stream, inputs)
        assert_close(result.numpy(), run_reference(g.graph.ops, values)[y.id], gp.DataType.F32)
        del result
    assert [call.alignment for call in library.calls] == [4]


@pytest.mark.parametrize("seed", range(3))
def test_model(driver, library, seed):
    """Captured once, workspaces among the temporaries: memory as predicted, to the byte, and refused with less."""
    driver.seed(seed)
    path, inputs = demo.model_path("digits_transformer"), {"image": demo.test_images()[0][:2]}
    streams = {"schedule": "wavefront", "streams": 2}
    with gp.onnx.load(path) as model:
        expected = model.run(inputs)["probabilities"]
    with gp.Engine("gpu") as engine, gp.onnx.load(path, engine=engine, **streams) as model:
        predicted = model.predict_peak(inputs)
        np.testing.assert_allclose(model.run(inputs)["probabilities"], expected, rtol=1e-4, atol=1e-5)
        count = len(library.calls)
        assert count > 5
        np.testing.assert_allclose(model.run(inputs)["probabilities"], expected, rtol=1e-4, atol=1e-5)
        assert (len(library.calls), engine.budget.peak) == (count, predicted)
    with gp.Engine("gpu", memory_limit=predicted - 1) as engine, gp.onnx.load(path, engine=engine, **streams) as model:
        with pytest.raises(gp.OutOfMemoryError) as caught:
            model.run(inputs)
        assert (caught.value.smallest_limit, len(library.calls)) == (predicted, count)
        del caught
