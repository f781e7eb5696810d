"""Images of f16 that convolutions hand on lie as f32 inside a partition; what others read stays as it is."""

import numpy as np
import pytest

import graphpool as gp
from graphpool.backends.cpu.layout.widths import find_wide
from graphpool.backends.cpu.match.groups import make_groups
from graphpool.graph.completion import complete_shapes
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.partitions import assert_close, run_partitions, run_reference

FORMAT = {"dilations": [1, 1], "weights_format": "OIX"}
ATTRS = {"data_format": "NCX", "strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1]}


def conv(b, x, oc, **attrs):
    w = b.input((oc, b.graph_shape(x)[1] // attrs.get("groups", 1), 3, 3), "f16", property="constant")
    bias = b.input((oc,), "f16", property="constant")
    return b.op("Convolution", x, w, bias, **ATTRS | FORMAT | attrs)


def image(b):
    return b.input((2, 20, 7, 6), "f16")


def residual_blocks(b):
    x = b.op("ReLU", conv(b, image(b), 20))
    for _ in range(2):
        x = b.op("ReLU", b.op("Add", conv(b, b.op("ReLU", conv(b, x, 20)), 20), x))
    return conv(b, b.op("MaxPool", x, kernel=[3, 3], **ATTRS), 8)


def separable(b):
    x = b.op("HardSwish", conv(b, conv(b, image(b), 20, groups=20), 24))
    gate = b.op("Sigmoid", b.op("ReduceMean", x, axes=[2, 3], keep_dims=True))
    return conv(b, b.op("Multiply", x, gate), 16)


def branches(b):
    x = b.op("AvgPool", conv(b, image(b), 24), kernel=[3, 3], exclude_pad=False, **ATTRS)
    return conv(b, b.op("Concat", conv(b, x, 10), x, conv(b, x, 20), axis=1), 8)


def normalised(b):
    numbers = [b.input((20,), property="constant") for _ in range(4)]
    x = b.op("BatchNormInference", conv(b, image(b), 20), *numbers, epsilon=1e-3, data_format="NCX")
    return conv(b, b.op("ReLU", x), 5)


def moved(b):
    x = conv(b, image(b), 20)
    rows = b.op("Gather", x, b.input((3,), "s64", property="constant"), axis=2)
    turned = b.op("StaticTranspose", conv(b, rows, 9), order=[0, 2, 3, 1])
    return b.op("Slice", turned, starts=[1], ends=[3], axes=[2], steps=[1])


def cast(b):
    return b.op("TypeCast", b.op("TypeCast", conv(b, image(b), 20), dtype="f32"), dtype="f16")


def rounded(b):
    return conv(b, cast(b), 8)


def make(build):
    """The partition of a graph, and inputs by id; indices are rows of an image."""
    b = GraphBuilder()
    build(b)
    partition = b.graph.merge_partitions(b.finish())
    values = random_inputs(b, np.random.default_rng(0), low=0.1, high=0.4)
    return partition, {i: value % 7 if value.dtype == np.int64 else value for i, value in values.items()}


def run(engine, build, values=()):
    """The result of a graph, and that of the reference; `values` are inputs beside random ones, by id."""
    partition, inputs = make(build)
    inputs |= values
    [port] = partition.output_ports
    found, expected = run_partitions([partition], inputs, engine), run_reference(partition.ops, inputs)
    return found[port.id], expected[port.id], port.dtype


@pytest.mark.parametrize("build", [residual_blocks, separable, branches, normalised, moved, rounded])
def test_equals_the_reference(engine, build):
    actual, expected, dtype = run(engine, build)
    assert_close(actual, expected, dtype, scale=4)


@pytest.mark.parametrize(
    ("build", "stays"),
    [
        (residual_blocks, []),
        (branches, []),
        (moved, ["Convolution", "Gather", "Convolution", "StaticTranspose"]),
        (rounded, ["Convolution"]),
    ],
)
def test_results_inside_are_wide_unless_they_are_rounded_or_moved(build, stays):
    partition, _ = make(build)
    shapes = complete_shapes(partition.ops, {t.id: t.shape for t in partition.input_ports}, trust_ops=False)
    outputs = {tensor.id for tensor in partition.output_ports}
    dtypes = {tensor.id: tensor.dtype for op in partition.ops for tensor in (*op.inputs, *op.outputs)}
    groups = make_groups(partition.ops, shapes, outputs, frozenset())
    wide = find_wide(partition.ops, groups, dtypes, outputs)
    narrow = [g.first.kind for g in groups if dtypes[g.result] is gp.DataType.F16 and g.result not in wide | outputs]
    assert narrow == stays


def test_a_cast_still_rounds(engine):
    def scaled(b):
        x, pads = cast(b), {"pads_begin": [0, 0], "pads_end": [0, 0]}
        w = b.input((20, 1, 1, 1), "f16", property="constant")
        return b.op("Convolution", x, w, **ATTRS | FORMAT | pads, groups=20)

    partition, values = make(scaled)
    values[partition.ops[-1].inputs[1].id][:] = 1
    np.testing.assert_array_equal(run(engine, scaled, values)[0], run(engine, cast, values)[0])
