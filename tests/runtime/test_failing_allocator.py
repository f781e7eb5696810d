"""An allocator that fails at any one of its calls: what was begun is undone, and the next attempt works."""

import gc

import numpy as np
import pytest
from onnx import helper

import graphpool as gp
from graphpool.cache import constant_tensor_cache
from tests.helpers.caches import QuarantineResource
from tests.helpers.constant_jobs import Job, weights
from tests.helpers.onnx_models import make_model, random_array


class FailingResource(QuarantineResource):
    """Raises `error` at the call number `fails_at`."""

    def __init__(self, fails_at, error):
        super().__init__()
        self.fails_at, self.error = fails_at, error
        self.calls = 0

    def allocate(self, nbytes, alignment=64, stream=None):
        self.calls += 1
        if self.calls == self.fails_at:
            raise self.error("the test says so")
        return super().allocate(nbytes, alignment, stream)


def product(engine, **modes):
    w = weights()
    with Job(engine, **modes) as job:
        for _ in range(2):
            job.check(job.tensor(w), w)


W = random_array((24, 40)), random_array((40, 16))
NODES = [
    helper.make_node("MatMul", ["x", "w"], ["h"], name="first"),
    helper.make_node("Softmax", ["h"], ["s"], name="softmax"),
    helper.make_node("MatMul", ["s", "v"], ["y"], name="second"),
]
MODEL = make_model(NODES, {"x": random_array((3, 24))}, ["y"], {"w": W[0], "v": W[1]}).SerializeToString()


def loaded_model(engine, **modes):
    x = random_array((3, 24))
    h = np.exp(x @ W[0])
    with gp.onnx.load(MODEL, engine=engine, **modes) as model:
        for _ in range(2):
            found = model.run({"x": x})["y"]
            np.testing.assert_allclose(found, h / h.sum(axis=1, keepdims=True) @ W[1], rtol=1e-3, atol=1e-4)


def two_at_once(engine):
    """Reserved pools, leased twice."""
    x = gp.LogicalTensor(0, "f32", (64, 1000))
    y = gp.LogicalTensor(1, "f32", (64, 1000))
    partition = gp.Partition.from_op(gp.Op(0, "LogSoftmax", [x], [y], axis=1))
    with partition.compile([x], [y], engine) as first, partition.compile([x], [y], engine) as second:
        stream, source = gp.Stream(engine), gp.Tensor(x, engine, np.ones((64, 1000), np.float32))
        for compiled in (first, second):
            [found] = compiled.execute(stream, [source])
            np.testing.assert_allclose(found.numpy(), -np.log(1000), rtol=1e-5)


SCENARIOS = {
    "product": product,
    "product, no pool": lambda engine: product(engine, scratch="none"),
    "product, shared": lambda engine: product(engine, scratch="shared", weights="scoped"),
    "two at once": two_at_once,
    "model": loaded_model,
    "packed model": lambda engine: loaded_model(engine, weights="packed"),
    "cached model": lambda engine: loaded_model(engine, weights="cached"),
}

ERRORS = {"out of memory": gp.OutOfMemoryError, "another error": RuntimeError, "interrupt": KeyboardInterrupt}


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_any_one_allocation_fails(scenario, error):
    cache, number, has_ended = constant_tensor_cache("cpu"), 0, False
    while not has_ended:
        number += 1
        cache.clear()
        resource = FailingResource(number, ERRORS[error])
        with gp.Engine(threads=1, allocator=resource, memory_limit="64MiB") as engine:
            try:
                SCENARIOS[scenario](engine)
            except ERRORS[error]:
                pass
            has_ended = resource.calls < number
            resource.fails_at = 0
            gc.collect(1)
            assert engine.budget.holdings()["tensors"] == 0, number
            SCENARIOS[scenario](engine)
            gc.collect(1)
            assert engine.budget.holdings()["tensors"] == 0, number
        gc.collect(1)
        assert (engine.budget.in_use, resource.live_nbytes, len(cache)) == (0, 0, 0), number
    assert number > 1
