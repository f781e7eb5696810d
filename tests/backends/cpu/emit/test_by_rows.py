"""Reductions: post-ops in the kernel where it hands over long rows, else a step of their own; pools of all pixels."""

import numpy as np
import pytest

import graphpool as gp
from graphpool.backends.cpu.backend import lower
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.partitions import assert_close, run_partitions, run_reference

EXTREMES = {"ReduceMax": {"axes": [2], "keep_dims": True}, "ReduceSum": {"axes": [3], "keep_dims": False}}
CASES = [
    ("SoftMax", (64, 900), (0, 1), ["softmax"]),
    ("SoftMax", (900, 20), (0, 1), ["softmax", "eltwise"]),
    ("SoftMax", (2, 30, 40, 4), (0, 3, 1, 2), ["copy", "softmax", "eltwise"]),  # four columns side by side
    ("SoftMax", (2, 60, 4, 60), (0, 2, 3, 1), ["softmax", "eltwise"]),  # columns, whose results have gaps
    ("LogSoftmax", (2, 60, 4, 60), (0, 2, 3, 1), ["softmax", "eltwise"]),
    ("ReduceMax", (2, 3, 40, 50), (0, 1, 2, 3), ["reduce"]),
    ("ReduceMax", (2, 30, 40, 40), (0, 3, 1, 2), ["reduce", "eltwise"]),
    ("ReduceSum", (2, 90, 50, 40), (0, 2, 3, 1), ["reduce", "eltwise"]),
]


def checked_steps(b, threads):
    """The steps of a graph as one partition, whose results are held against the reference."""
    partition = b.graph.merge_partitions(b.finish())
    values = random_inputs(b, np.random.default_rng(0))
    expected = run_reference(partition.ops, values)
    with gp.Engine(threads=threads) as engine:
        actual = run_partitions([partition], values, engine)
    [port] = partition.output_ports
    assert_close(actual[port.id], expected[port.id], port.dtype, scale=16)
    return lower(partition.ops, partition.input_ports, [port.replace(shape=b.graph_shape(port))]).steps


@pytest.mark.parametrize(("kind", "shape", "order", "wanted"), CASES)
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_program_is_in_the_kernel_where_its_rows_are_long(kind, shape, order, wanted, dtype):
    b = GraphBuilder()
    x = b.input(shape, dtype)
    x = x if order == tuple(range(len(shape))) else b.op("StaticTranspose", x, order=list(order))
    y = b.op(kind, x, **EXTREMES.get(kind, {"axis": -1}))
    y = b.op("Multiply", y, b.input((1,), dtype))
    b.op("Abs", y)
    steps = checked_steps(b, 2)
    names = [step.name.split(":")[0].split("_", 1)[1] for step in steps]
    if dtype == "f32":
        assert names == wanted


@pytest.mark.parametrize("kind", ["MaxPool", "AvgPool"])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize(("pads", "wanted"), [(0, "f32_reduce"), (1, "pool")])
def test_a_pool_of_one_window_is_a_reduction(kind, data_format, pads, wanted):
    b = GraphBuilder()
    x = b.input((2, 20, 7, 5) if data_format == "NCX" else (2, 7, 5, 20))
    attrs = {
        "kernel": [7 + 2 * pads, 5 + 2 * pads],
        "strides": [2, 2],
        "pads_begin": [pads] * 2,
        "pads_end": [pads] * 2,
    }
    attrs |= {"exclude_pad": True} if kind == "AvgPool" else {}
    b.op("ReLU", b.op(kind, x, data_format=data_format, **attrs))
    steps = checked_steps(b, 1)
    assert wanted in steps[0].name
