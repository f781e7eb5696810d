"""Reshapes in front of results: what they read is written where the result lies."""

import numpy as np
import pytest

import graphpool as gp
from graphpool.backends.cpu.backend import lower
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.partitions import assert_close, run_partitions, run_reference


def reshape(b, x, *shape):
    return b.op("StaticReshape", x, shape=list(shape), special_zero=False)


def rows(b):
    reshape(b, b.op("SoftMax", b.input((6, 8)), axis=-1), 4, 12)


def twice(b):
    reshape(b, reshape(b, b.op("SoftMax", b.input((6, 8)), axis=-1), 48), 3, 4, 4)


def joined(b):
    parts = [b.op("SoftMax", b.input((3, n)), axis=-1) for n in (5, 3)]
    reshape(b, b.op("Concat", *parts, axis=-1), 24)


def read_elsewhere(b):
    x = b.op("SoftMax", b.input((6, 8)), axis=-1)
    reshape(b, x, 48)
    b.op("ReduceSum", x, axes=[0], keep_dims=False)


def turned(b):
    reshape(b, b.op("StaticTranspose", b.input((4, 5, 6)), order=[2, 0, 1]), 24, 5)


def spread(b):
    reshape(b, b.op("Expand", b.input((4, 5, 1), "u8"), shape=[4, 5, 3]), 4, 15)


def given(b):
    reshape(b, b.input((4, 6)), 24)


def needed_outside(b):
    x = b.op("SoftMax", b.input((6, 8)), axis=-1)
    b.op("End", x, n=0)
    reshape(b, x, 48)


def two_results(b):
    x = b.op("SoftMax", b.input((6, 8)), axis=-1)
    reshape(b, x, 48)
    reshape(b, x, 8, 6)


WRITTEN, COPIED = [rows, twice, joined, read_elsewhere], [turned, spread, given, needed_outside, two_results]


@pytest.mark.parametrize("build", WRITTEN + COPIED, ids=lambda build: build.__name__)
def test_what_is_reshaped_is_written_where_the_result_lies(build):
    builder = GraphBuilder()
    build(builder)
    partition = builder.graph.merge_partitions([part for part in builder.finish() if part.is_supported])
    values = random_inputs(builder, np.random.default_rng(0), low=-2, high=2)
    expected = run_reference(partition.ops, values)
    with gp.Engine(threads=2) as engine:
        actual = run_partitions([partition], values, engine)
    for port in partition.output_ports:
        assert_close(actual[port.id], expected[port.id], port.dtype, scale=16)
    outputs = [lt.replace(shape=builder.graph_shape(lt)) for lt in partition.output_ports]
    names = [step.name.split(":")[0] for step in lower(partition.ops, partition.input_ports, outputs).steps]
    assert names.count("any_copy") == (build in COPIED)


@pytest.mark.parametrize("strides", [(12, 1), (1, 4), (16, 1)])
def test_a_result_with_strides_of_its_own(strides):
    builder = GraphBuilder()
    rows(builder)
    [partition] = builder.finish()
    [port] = partition.output_ports
    values = random_inputs(builder, np.random.default_rng(0), low=-2, high=2)
    expected = run_reference(partition.ops, values)[port.id]
    result = port.replace(shape=(4, 12), strides=strides)
    with gp.Engine(threads=2) as engine, partition.compile(partition.input_ports, [result], engine) as compiled:
        tensors = [gp.Tensor(lt, engine, values[lt.id]) for lt in partition.input_ports]
        [found] = compiled.execute(gp.Stream(engine), tensors)
        assert_close(found.numpy(), expected, port.dtype, scale=16)
