"""Partitions compiled for unknown dimensions: executions take tensors of any sizes."""

import gc
import pickle

import numpy as np
import pytest

import graphpool as gp
from tests.helpers.memory import run_threads

U = gp.UNKNOWN_DIM
SIZES = [(1, 5, 4), (2, 7, 9), (0, 3, 3), (3, 1, 1), (2, 40, 33), (1, 5, 4), (4, 12, 5)]


@pytest.fixture
def engine():
    with gp.Engine("cpu", threads=2) as engine:
        yield engine


def convolutions():
    """Ports and ops of a region with temporaries: two convolutions, an activation, a sum; image sizes are unknown."""
    x = gp.LogicalTensor(0, "f32", (U, 3, U, U))
    weights = [gp.LogicalTensor(1, "f32", (8, 3, 3, 3), property="constant")]
    weights += [gp.LogicalTensor(2, "f32", (8, 8, 1, 1), property="constant")]
    a, b, c, y = (gp.LogicalTensor(k, "f32") for k in range(3, 7))
    window = {"strides": [1, 1], "dilations": [1, 1], "data_format": "NCX", "weights_format": "OIX"}
    graph = gp.Graph()
    graph.add_op(gp.Op(0, "Convolution", [x, weights[0]], [a], pads_begin=[1, 1], pads_end=[1, 1], **window))
    graph.add_op(gp.Op(1, "ReLU", [a], [b]))
    graph.add_op(gp.Op(2, "Convolution", [b, weights[1]], [c], pads_begin=[0, 0], pads_end=[0, 0], **window))
    graph.add_op(gp.Op(3, "Add", [c, b], [y]))
    graph.finalize()
    return graph.get_partitions(), x, weights, y


def softmax(kind="SoftMax"):
    x, y = gp.LogicalTensor(0, "f32", (U, U)), gp.LogicalTensor(1, "f32")
    graph = gp.Graph()
    graph.add_op(gp.Op(0, kind, [x], [y], axis=-1))
    graph.finalize()
    [partition] = graph.get_partitions()
    return partition, x, y


class Job:
    """The first partition of `convolutions`, compiled, and what a partition of fixed shapes gives."""

    def __init__(self, engine, **modes):
        partitions, x, weights, _ = convolutions()
        self.engine, self.partition, self.modes = engine, partitions[0], modes
        rng = np.random.default_rng(0)
        arrays = [rng.standard_normal(w.shape).astype(np.float32) for w in weights]
        made = {w.id: gp.Tensor(w, engine, array) for w, array in zip(weights, arrays, strict=True)}
        self.weights = [made[port.id] for port in self.partition.input_ports if port.id in made]
        self.x = x
        self.inputs = [x, *(t.lt for t in self.weights)]
        self.compiled = self.partition.compile(self.inputs, self.partition.output_ports, engine, **modes)

    def tensors(self, size, seed=0):
        n, h, w = size
        array = np.random.default_rng(seed).standard_normal((n, 3, h, w)).astype(np.float32)
        return [gp.Tensor(self.x.replace(shape=array.shape), self.engine, array), *self.weights]

    def wanted(self, tensors):
        modes = self.modes | {"scratch": "none"}
        inputs = [t.lt for t in tensors]
        fixed = self.partition.compile(inputs, self.partition.output_ports, self.engine, **modes)
        with fixed, gp.Stream(self.engine) as stream:
            return [t.numpy().copy() for t in fixed.execute(stream, tensors)]


def check(found, wanted):
    for tensor, array in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)


@pytest.mark.parametrize("scratch", ["primitive", "shared", "none", "caller"])
def test_sizes_of_all_sorts_give_what_fixed_partitions_give(engine, scratch):
    job = Job(engine, scratch=scratch)
    assert isinstance(job.compiled, gp.DynamicPartition)
    with job.compiled as compiled, gp.Stream(engine) as stream:
        for size in SIZES:
            tensors = job.tensors(size)
            needed = compiled.specialise(tensors).scratchpad_nbytes
            pad = None
            if scratch == "caller":
                pad = gp.Tensor(gp.LogicalTensor(99, "u8", (max(needed, 1),)), engine)
            check(compiled.execute(stream, tensors, scratchpad=pad), job.wanted(tensors))
        assert 1 < compiled.compilations < len(set(SIZES))
        assert len(compiled.respecialisations) == compiled.compilations - 1


def test_outputs_may_be_given_and_inputs_come_in_any_order(engine):
    job = Job(engine)
    with job.compiled as compiled, gp.Stream(engine) as stream:
        tensors = job.tensors((2, 7, 9))
        settled = compiled.specialise([t.lt for t in tensors])
        outputs = [gp.Tensor(settled.query_logical_tensor(port.id), engine) for port in job.partition.output_ports]
        found = compiled.execute(stream, tensors[::-1], outputs)
        assert found is outputs
        check(outputs, job.wanted(tensors))
        small = [gp.Tensor(t.lt.replace(shape=(1, *t.lt.shape[1:])), engine) for t in outputs]
        with pytest.raises(gp.InvalidShapeError, match="is not what was compiled"):
            compiled.execute(stream, tensors, small)


@pytest.mark.parametrize("shape", [(2, 4, 5, 5), (2, 3, 5), (3,)])
def test_what_does_not_fit_is_refused_by_name(engine, shape):
    job = Job(engine)
    with job.compiled as compiled, gp.Stream(engine) as stream:
        wrong = gp.Tensor(job.x.replace(shape=shape), engine)
        with pytest.raises(gp.InvalidShapeError, match=r"input tensor 0; accepted: .*\(\?, 3, \?, \?\)"):
            compiled.execute(stream, [wrong, *job.weights])
        for call in (compiled.specialise, lambda junk: compiled.execute(stream, junk)):
            with pytest.raises(gp.InvalidArgumentError, match="tensors; accepted: a sequence of Tensors; got: 5"):
                call(5)
        with pytest.raises(gp.InvalidArgumentError, match="no input tensor with id 0"):
            compiled.execute(stream, job.weights)
        for what in (job.x, 3, None):
            with pytest.raises(gp.InvalidArgumentError, match="inputs; accepted: Tensors, or LogicalTensors of known"):
                compiled.specialise([what])
        assert compiled.compilations == 0


def test_arguments_are_checked_at_compilation(engine):
    partition, x, y = softmax()
    for wrong in ({"scratch": "pool"}, {"weights": "packed"}, {"schedule": "best"}, {"streams": 0}):
        with pytest.raises(gp.InvalidArgumentError, match=next(iter(wrong))):
            partition.compile([x], [y], engine, **wrong)
    with pytest.raises(gp.InvalidShapeError, match="a known rank"):
        partition.compile([x.replace(shape=None)], [y], engine)


def test_the_reference_backend_takes_any_sizes_too(engine, monkeypatch):
    partition, x, y = softmax()
    [reference] = [b for b in gp.graph.backend.backends_for("cpu") if b.name == "reference"]
    monkeypatch.setattr(partition, "_backend", reference)
    with partition.compile([x], [y], engine) as compiled, gp.Stream(engine) as stream:
        for shape in ((2, 3), (5, 1), (0, 4)):
            array = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
            [out] = compiled.execute(stream, [gp.Tensor(x.replace(shape=shape), engine, array)])
            shifted = np.exp(array - array.max(axis=1, keepdims=True))
            np.testing.assert_allclose(out.numpy(), shifted / shifted.sum(axis=1, keepdims=True), rtol=1e-6)


def test_nothing_is_left_in_the_budget(engine):
    job = Job(engine, weights="scoped")
    before = engine.budget.in_use
    with job.compiled as compiled, gp.Stream(engine) as stream:
        for k in range(3, 60):  # more than are kept
            compiled.execute(stream, job.tensors((1, k, k)))
    gp.cache.primitive_cache().clear()
    engine.trim()
    gc.collect()
    after = engine.budget.in_use
    assert after == before
    with pytest.raises(gp.StateError, match="is closed"), gp.Stream(engine) as stream:
        compiled.execute(stream, job.tensors((1, 3, 3)))
    compiled.close()


def test_a_limit_refuses_a_size_and_leaves_the_others(engine):
    with gp.Engine("cpu", threads=1, memory_limit="4MiB") as small:
        job = Job(small)
        with job.compiled as compiled, gp.Stream(small) as stream:
            tensors = job.tensors((1, 20, 20))
            first = [t.numpy().copy() for t in compiled.execute(stream, tensors)]
            with pytest.raises(gp.OutOfMemoryError):
                compiled.specialise([job.x.replace(shape=(1, 3, 4000, 4000)), *(t.lt for t in job.weights)])
            check(compiled.execute(stream, tensors), first)


def test_threads_side_by_side(engine):
    job = Job(engine)
    sizes = [(1 + k % 3, 4 + k, 30 - k) for k in range(20)]
    jobs = [(tensors, job.wanted(tensors)) for tensors in map(job.tensors, sizes)]

    def work(number):
        rng = np.random.default_rng(number)
        with gp.Stream(engine) as stream:
            for _ in range(60):
                tensors, wanted = jobs[rng.integers(len(jobs))]
                check(job.compiled.execute(stream, tensors), wanted)

    with job.compiled:
        run_threads(6, work)


def test_a_pickle_compiles_anew():
    engine = gp.Engine("cpu", threads=1)
    partition, x, y = softmax()
    with engine, partition.compile([x], [y], engine) as compiled:
        data = pickle.dumps(compiled)
    with pytest.raises(gp.StateError, match="is closed"):
        pickle.dumps(compiled)
    copy = pickle.loads(data)
    with copy.engine, copy, gp.Stream(copy.engine) as stream:
        array = np.zeros((3, 4), np.float32)
        [out] = copy.execute(stream, [gp.Tensor(x.replace(shape=(3, 4)), copy.engine, array)])
        np.testing.assert_array_equal(out.numpy(), np.full((3, 4), 0.25, np.float32))


def test_one_that_was_not_closed_is_told(engine):
    job = Job(engine)
    with gp.Stream(engine) as stream:
        job.compiled.execute(stream, job.tensors((1, 4, 4)))
    compiled = [job.compiled]
    del job.compiled
    with pytest.warns(ResourceWarning, match="was not closed"):
        compiled.clear()
