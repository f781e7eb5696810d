"""Random graphs: partitions cover, order and stay acyclic, and the CPU backend equals the reference."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphpool as gp
from graphpool.typing import DataType
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.guard_pages import GuardedResource
from tests.helpers.partitions import cover_is_valid, run_partitions, run_reference

EPSILON = {DataType.F32: 2e-6, DataType.BF16: 2**-7, DataType.F16: 2**-10}
UNARY = {
    "Abs": {}, "ReLU": {}, "Sigmoid": {}, "Tanh": {}, "HardSwish": {}, "GELU": {}, "Mish": {}, "SoftPlus": {},
    "Elu": {"alpha": 0.5}, "LeakyReLU": {"alpha": 0.1}, "Clamp": {"min": -1.5, "max": 1.25},
    "HardSigmoid": {"alpha": 0.2, "beta": 0.5},
}  # fmt: skip
BINARY = ("Add", "Subtract", "Multiply", "Maximum", "Minimum")
SHAPES = ((4, 6), (1, 6), (6,), (2, 1, 6), (2, 4, 6))


@pytest.fixture(scope="module")
def engine():
    with gp.Engine(threads=1, allocator=GuardedResource()) as engine:
        yield engine


@st.composite
def graphs(draw):
    """A builder with up to 14 ops on tensors whose last axis is 6 or 1."""
    builder = GraphBuilder()
    dtype = draw(st.sampled_from(["f32", "f32", "bf16", "f16"]))
    live = [
        (builder.input(shape, dtype), shape)
        for shape in draw(st.lists(st.sampled_from(SHAPES), min_size=1, max_size=3))
    ]
    for _ in range(draw(st.integers(1, 14))):
        live.append(
            draw(st.sampled_from([_unary, _unary, _binary, _binary, _matmul, _softmax, _norm, _reduce, _move]))(
                draw, builder, live
            )
        )
    return builder


def _unary(draw, builder, live):
    x, shape = draw(st.sampled_from(live))
    kind = draw(st.sampled_from(sorted(UNARY)))
    return builder.op(kind, x, **UNARY[kind]), shape


def _binary(draw, builder, live):
    (a, a_shape), (b, b_shape) = draw(st.sampled_from(live)), draw(st.sampled_from(live))
    try:
        shape = np.broadcast_shapes(a_shape, b_shape)
    except ValueError:
        b, shape = a, a_shape
    return builder.op(draw(st.sampled_from(BINARY)), a, b), shape


def _matmul(draw, builder, live):
    x, shape = draw(st.sampled_from([item for item in live if item[1][-1] == 6]))
    weights = builder.input((6, 6), x.dtype, property="constant")
    bias = [builder.input((6,), x.dtype)] if draw(st.booleans()) else []
    y = builder.op("MatMul", x, weights, *bias, transpose_b=draw(st.booleans()))
    return builder.op("Tanh", y), shape


def _softmax(draw, builder, live):
    x, shape = draw(st.sampled_from(live))
    kind = draw(st.sampled_from(["SoftMax", "LogSoftmax"]))
    return builder.op(kind, x, axis=draw(st.integers(-len(shape), len(shape) - 1))), shape


def _norm(draw, builder, live):
    x, shape = draw(st.sampled_from(live))
    kind = draw(st.sampled_from(["LayerNorm", "RMSNorm"]))
    own = {"keep_stats": False} if kind == "LayerNorm" else {}
    return builder.op(kind, x, epsilon=0.5, begin_norm_axis=-1, **own), shape


def _reduce(draw, builder, live):
    x, shape = draw(st.sampled_from(live))
    axis = draw(st.integers(-len(shape), len(shape) - 1)) % len(shape)
    kind = draw(st.sampled_from(["ReduceMax", "ReduceMean", "ReduceMin"]))
    y = builder.op(kind, x, axes=[axis], keep_dims=True)
    return y, (*shape[:axis], 1, *shape[axis + 1 :])


def _move(draw, builder, live):
    x, shape = draw(st.sampled_from(live))
    if draw(st.booleans()):
        y = builder.op("Concat", x, x, axis=0)
        z = builder.op("StaticReshape", y, shape=[2, *shape], special_zero=False)
        return builder.op("ReduceMean", z, axes=[0], keep_dims=False), shape
    order = list(reversed(range(len(shape))))
    y = builder.op("StaticTranspose", x, order=order)
    y = builder.op("Sigmoid", y) if draw(st.booleans()) else y
    return builder.op("StaticTranspose", y, order=order), shape


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs(), st.integers(0, 2**31))
def test_partitions_equal_the_reference(engine, builder, seed):
    """Every tensor that crosses a border agrees within the rounding of as many ops as lie behind it."""
    rng = np.random.default_rng(seed)
    partitions = builder.finish()
    assert cover_is_valid(builder.graph, partitions)
    assert cover_is_valid(builder.graph, builder.graph.get_partitions("debug"))
    assert all(partition.is_supported for partition in partitions)
    values = random_inputs(builder, rng)
    expected = run_reference(builder.graph.ops, values)
    actual = run_partitions(partitions, values, engine)
    for partition in partitions:
        for port in partition.output_ports:
            a, e = (results[port.id].astype(np.float64) for results in (actual, expected))
            bound = EPSILON[port.dtype] * (builder.ops + 8) * max(1.0, np.abs(e).max(initial=0.0))
            np.testing.assert_allclose(a, e, rtol=0, atol=bound)
