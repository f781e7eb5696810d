"""Engines of kind gpu: tensors, streams, events, partitions, memory and errors."""

import gc
import itertools
import threading

import numpy as np
import pytest
from cuda.core import Device
from cuda.core.utils import StridedMemoryView

import graphpool as gp
from graphpool.runtime.partition_runs import merge_neighbours
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.cuda_engine import run_partitions, upload
from tests.helpers.partitions import run_reference

WIDTHS = (12, 40, 24, 10)


def mlp(batch=5):
    """A perceptron of three layers as one partition, its inputs, and what the reference computes of them."""
    g = GraphBuilder(graph=gp.Graph("gpu"))
    x = g.input((batch, WIDTHS[0]))
    for n_in, n_out in itertools.pairwise(WIDTHS):
        weights, bias = g.input((n_in, n_out), property="constant"), g.input((n_out,), property="constant")
        x = g.op("MatMul", x, weights, bias)
        x = g.op("ReLU", x) if n_out != WIDTHS[-1] else g.op("SoftMax", x, axis=-1)
    rng = np.random.default_rng(batch)
    values = {lt.id: rng.standard_normal(lt.shape).astype(np.float32) for lt in g.inputs}
    [partition] = merge_neighbours(g.graph, g.finish())
    return partition, values, run_reference(g.graph.ops, values)[x.id]


class Loaded:
    """A compiled perceptron with its tensors on the device."""

    def __init__(self, engine, batch=5):
        self.partition, self.values, self.expected = mlp(batch)
        [port] = self.partition.output_ports
        output = port.replace(shape=self.expected.shape)
        self.compiled = self.partition.compile(self.partition.input_ports, [output], engine)
        self.inputs = [upload(lt, engine, self.values[lt.id]) for lt in self.partition.input_ports]

    def check(self, tensor):
        np.testing.assert_allclose(tensor.numpy(), self.expected, rtol=2e-5, atol=2e-6)


# ---- tensors


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "f64", "s32", "s64", "u8", "boolean"])
@pytest.mark.parametrize("shape", [(3, 5, 7), (), (0, 4), (1 << 19,)])
def test_content_goes_there_and_back(gpu, dtype, shape):
    lt = gp.LogicalTensor(0, dtype, shape)
    content = np.random.default_rng(0).integers(0, 2, shape).astype(lt.dtype.numpy)
    tensor = upload(lt, gpu, content)
    np.testing.assert_array_equal(tensor.numpy(), content)
    assert tensor.numpy().base is not tensor


def test_content_is_copied_to_other_strides_without_gaps(gpu):
    content = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = gp.Tensor(gp.LogicalTensor(0, "f32", (3, 4), strides=(1, 3)), gpu)
    tensor.fill(content)
    np.testing.assert_array_equal(tensor.numpy(), content)
    with pytest.raises(gp.UnsupportedError, match="accepted: strides without gaps"):
        gp.Tensor(gp.LogicalTensor(0, "f32", (3, 4), strides=(8, 1)), gpu).fill(content)


def test_arrays_of_the_host_are_not_copied_unasked(gpu):
    with pytest.raises(gp.InvalidArgumentError, match="got: ndarray; make the tensor without data and fill"):
        gp.Tensor(gp.LogicalTensor(0, "f32", (3,)), gpu, np.zeros(3, np.float32))
    with pytest.raises(gp.InvalidArgumentError, match="got: list"):
        gp.Tensor(gp.LogicalTensor(0, "f32", (3,)), gpu, [1.0, 2.0, 3.0])


class Interface:
    """An object of another library that has `__cuda_array_interface__` alone."""

    def __init__(self, tensor):
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__


@pytest.mark.parametrize("give", [lambda tensor: tensor, Interface])
def test_memory_is_shared_without_copies(gpu, give):
    content = np.arange(6, dtype=np.float32).reshape(2, 3)
    own = upload(gp.LogicalTensor(0, "f32", (2, 3)), gpu, content)
    copies = gpu.device.copies.uploads, gpu.device.copies.downloads
    other = gp.Tensor(gp.LogicalTensor(7, "f32", (2, 3)), gpu, give(own))
    assert (other.data_ptr, other.nbytes) == (own.data_ptr, own.nbytes)
    assert (gpu.device.copies.uploads, gpu.device.copies.downloads) == copies
    address = own.data_ptr
    if give is not Interface:  # which keeps nothing alive
        del own
        gc.collect()
    assert other.data_ptr == address
    np.testing.assert_array_equal(other.numpy(), content)
    with pytest.raises(gp.InvalidShapeError, match="dimension 1"):
        gp.Tensor(gp.LogicalTensor(7, "f32", (2, 4)), gpu, give(other))
    with pytest.raises(gp.InvalidDataTypeError, match="accepted: s32"):
        gp.Tensor(gp.LogicalTensor(7, "s32", (2, 3)), gpu, give(other))


def test_tensor_is_a_view_for_others(gpu):
    tensor = upload(gp.LogicalTensor(0, "f32", (4, 2), strides=(1, 4)), gpu, np.ones((4, 2), np.float32))
    assert tensor.__dlpack_device__() == (2, 0)
    view = StridedMemoryView.from_dlpack(tensor, stream_ptr=-1)
    assert (view.ptr, view.shape, view.strides, view.device_id) == (tensor.data_ptr, (4, 2), (1, 4), 0)
    assert tensor.__cuda_array_interface__["strides"] == (4, 16)
    with gp.Engine("cpu") as engine:
        assert not hasattr(gp.Tensor(gp.LogicalTensor(0, "f32", (2,)), engine), "__cuda_array_interface__")
        assert not hasattr(gp.Stream(engine), "__cuda_stream__")


# ---- partitions on streams


@pytest.mark.parametrize("seed", range(5))
def test_perceptron(driver, gpu, seed):
    driver.seed(seed)
    loaded = Loaded(gpu)
    with gp.Stream(gpu) as stream:
        [result] = loaded.compiled.execute(stream, loaded.inputs)
        loaded.check(result)


@pytest.mark.parametrize("seed", range(5))
def test_temporaries_of_a_stream_serve_all_its_work(driver, gpu, seed):
    driver.seed(seed)
    small, large = Loaded(gpu, 3), Loaded(gpu, 70)
    with gp.Stream(gpu) as stream:
        results = [(one, one.compiled.execute(stream, one.inputs)[0]) for one in (small, large, small, large)]
        assert stream.queue.arena_nbytes == large.compiled.scratchpad_nbytes > small.compiled.scratchpad_nbytes > 0
        for one, result in results:
            one.check(result)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("is_ordered", [True, pytest.param(False, marks=pytest.mark.planted)])
def test_events_order_streams(driver, gpu, seed, is_ordered):
    """The second stream reads what the first has written, behind its event; without it the driver finds that."""
    driver.seed(seed)
    g = GraphBuilder(graph=gp.Graph("gpu"))
    x = g.input((64,))
    y = g.op("Exp", x)
    g.op("ReLU", y)
    first = gp.Partition.from_op(g.graph.ops[0], "gpu").compile([x], [y.replace(shape=(64,))], gpu)
    second = gp.Partition.from_op(g.graph.ops[1], "gpu").compile(
        [y.replace(shape=(64,))], [g.tensors[2].replace(shape=(64,))], gpu
    )
    source = upload(x, gpu, np.zeros(64, np.float32))
    with gp.Stream(gpu) as a, gp.Stream(gpu) as b:
        [middle] = first.execute(a, [source])
        event = a.record()
        if is_ordered:
            b.wait_event(event)
        [result] = second.execute(b, [middle])
        event.wait()
        assert event.is_done
        b.wait()
        assert ("use without order" in driver.kinds()) == (not is_ordered)
        if is_ordered:
            np.testing.assert_array_equal(result.numpy(), np.ones(64, np.float32))


def test_work_goes_to_the_users_stream(gpu):
    device = Device(0)
    device.set_current()
    own = device.create_stream()
    loaded = Loaded(gpu)
    with gp.Stream(gpu, own) as stream:
        assert stream.__cuda_stream__() == (0, int(own.handle))
        [result] = loaded.compiled.execute(stream, loaded.inputs)
        loaded.check(result)
    own.close()
    with pytest.raises(gp.InvalidArgumentError, match="stream; accepted"):
        gp.Stream(gpu, "mine")


@pytest.mark.parametrize("seed", range(3))
def test_memory_of_dropped_tensors_is_held_until_the_work_is_done(driver, gpu, seed):
    driver.seed(seed)
    loaded = Loaded(gpu)
    with gp.Stream(gpu) as stream:
        for _ in range(4):
            copies = [upload(lt, gpu, loaded.values[lt.id]) for lt in loaded.partition.input_ports]
            results = loaded.compiled.execute(stream, copies)
            del copies, results
            gc.collect()
        held = gpu.stats().current_nbytes
        stream.wait()
        gc.collect()
        assert gpu.stats().current_nbytes < held


def test_streams_that_nobody_closes_leave_nothing(gpu):
    loaded = Loaded(gpu)
    stream = gp.Stream(gpu)
    results = loaded.compiled.execute(stream, loaded.inputs)
    del stream, results
    gc.collect()
    assert gpu.stats().current_nbytes == sum(tensor.nbytes for tensor in loaded.inputs)


def test_threads_share_a_stream(driver, gpu):
    loaded = Loaded(gpu)
    errors = []
    with gp.Stream(gpu) as stream:

        def work():
            try:
                for _ in range(3):
                    loaded.check(loaded.compiled.execute(stream, loaded.inputs)[0])
            except BaseException as error:  # told by the main thread
                errors.append(error)

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert errors == []


# ---- memory


def test_predicted_is_measured(driver, gpu):
    loaded = Loaded(gpu)
    before = gpu.stats().current_nbytes
    out = gp.Tensor(loaded.compiled.outputs[0], gpu)
    with gp.Stream(gpu) as stream:
        loaded.compiled.execute(stream, loaded.inputs, [out])
        stream.wait()
        assert gpu.stats().peak_nbytes == before + out.nbytes + loaded.compiled.predict_peak()
        assert gpu.budget.in_use == gpu.stats().current_nbytes
        count, live = gpu.stats().total_count, driver.live()
        for _ in range(3):
            loaded.compiled.execute(stream, loaded.inputs, [out])
            stream.wait()
        assert (gpu.stats().total_count, driver.live()) == (count, live)  # warm runs make nothing in the driver
        with gp.Stream(gpu) as other:
            other.wait_event(stream.record())
            loaded.compiled.execute(other, loaded.inputs, [out])
        del out


def test_limit_refuses_before_anything_runs(driver, twins):
    def run(limit):
        with gp.Engine("gpu", memory_limit=limit) as engine:
            loaded = Loaded(engine)
            out = gp.Tensor(loaded.compiled.outputs[0], engine)
            with gp.Stream(engine) as stream:
                loaded.compiled.execute(stream, loaded.inputs, [out])
                loaded.check(out)
            return engine.budget.peak

    needed = run(None)
    assert run(needed) == needed
    with pytest.raises(gp.OutOfMemoryError) as caught:
        run(needed - 1)
    assert caught.value.smallest_limit == needed
    del caught


# ---- the host's part


def test_ops_without_a_kernel_are_computed_by_the_host(gpu):
    g = GraphBuilder(graph=gp.Graph("gpu"))
    x = g.input((4, 6))
    moments = [g.input((6,)) for _ in range(2)]
    attrs = {"epsilon": 1e-3, "data_format": "NXC"}
    y, *_ = g.op("BatchNormForwardTraining", g.op("ReLU", x), *moments, n=5, **attrs)
    z = g.op("Exp", y)
    values = random_inputs(g, np.random.default_rng(0))
    partitions = g.finish()
    assert [partition.backend_name for partition in partitions] == ["cuda", "host", "cuda"]
    before = gpu.device.copies.uploads, gpu.device.copies.downloads
    found = run_partitions(partitions, values, gpu)
    np.testing.assert_allclose(found[z.id], run_reference(g.graph.ops, values)[z.id], rtol=1e-5)
    # one for each input and for reading each result; those of the host's partition
    assert gpu.device.copies.uploads - before[0] == len(values) + 5
    assert gpu.device.copies.downloads - before[1] == len(found) + 3


@pytest.mark.parametrize("dtype", ["s32", "s64", "f64"])
def test_numbers_that_f32_does_not_hold_are_moved_as_they_are(gpu, dtype):
    g = GraphBuilder(graph=gp.Graph("gpu"))
    x = g.input((2, 3), dtype)
    g.op("StaticTranspose", x, order=[1, 0])
    g.finish()
    content = np.array([[2**24 + 1, 1, 2], [3, 4, -(2**31)]], x.dtype.numpy)
    [partition] = g.graph.get_partitions()
    [result] = run_partitions([partition], {x.id: content}, gpu).values()
    assert partition.backend_name == "cuda"
    np.testing.assert_array_equal(result, content.T)


def test_ops_in_place(driver, gpu):
    g = GraphBuilder(graph=gp.Graph("gpu"))
    x = g.input((70,))
    g.op("ReLU", x)
    [partition] = g.finish()
    compiled = partition.compile([x], partition.output_ports, gpu)
    [pair] = compiled.inplace_ports
    content = np.linspace(-1, 1, 70, dtype=np.float32)
    source = upload(x, gpu, content)
    result = gp.Tensor(compiled.outputs[0], gpu, source)
    with gp.Stream(gpu) as stream:
        compiled.execute(stream, [source], [result])
        np.testing.assert_array_equal(source.numpy(), np.maximum(content, 0))
    assert pair == (source.lt.id, result.lt.id)


# ---- errors


def test_what_does_not_fit_is_refused(gpu):
    loaded = Loaded(gpu)
    with gp.Stream(gpu) as stream, gp.Engine("gpu") as other:
        with pytest.raises(gp.InvalidArgumentError, match="no input tensor with id"):
            loaded.compiled.execute(stream, loaded.inputs[:-1])
        other_shape = gp.Tensor(loaded.inputs[0].lt.replace(shape=(6, 12)), gpu)
        with pytest.raises(gp.InvalidShapeError, match="is not what was compiled"):
            loaded.compiled.execute(stream, [other_shape, *loaded.inputs[1:]])
        with gp.Stream(other) as elsewhere, pytest.raises(gp.StateError, match="stream belongs to"):
            loaded.compiled.execute(elsewhere, loaded.inputs)
        stray = upload(loaded.inputs[0].lt, other, loaded.values[loaded.inputs[0].lt.id])
        with pytest.raises(gp.StateError, match="belongs to"):
            loaded.compiled.execute(stream, [stray, *loaded.inputs[1:]])
        loaded.compiled.close()
        with pytest.raises(gp.StateError, match="closed"):
            loaded.compiled.execute(stream, loaded.inputs)
        del stray
