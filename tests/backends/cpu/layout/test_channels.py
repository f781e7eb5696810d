"""Regions of images that lie channels last inside a partition whose tensors lie channels first outside."""

import numpy as np
import pytest

from graphpool.backends.cpu.layout.channels import choose_channels_last
from graphpool.backends.cpu.match.groups import make_groups
from graphpool.graph.completion import complete_shapes
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.partitions import assert_close, run_partitions, run_reference

ATTRS = {"data_format": "NCX", "strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1]}


def conv(b, x, oc, k=3, **attrs):
    ic = b.graph_shape(x)[1] // attrs.get("groups", 1)
    w = b.input((oc, ic, k, k), property="constant")
    pads = {"pads_begin": [k // 2] * 2, "pads_end": [k // 2] * 2}
    return b.op("Convolution", x, w, **ATTRS | {"dilations": [1, 1], "weights_format": "OIX"} | pads | attrs)


def pool(b, x, kind="MaxPool", k=3, **attrs):
    own = {"exclude_pad": False} if kind == "AvgPool" else {}
    return b.op(kind, x, kernel=[k, k], **ATTRS | own | attrs)


def residual_block(b):
    x = b.op("ReLU", conv(b, b.input((2, 24, 7, 6)), 24))
    return b.op("ReLU", b.op("Add", conv(b, b.op("ReLU", conv(b, x, 24)), 24), x))


def branches(b):
    x = pool(b, conv(b, b.input((1, 3, 12, 11)), 24, strides=[2, 2]))
    y = b.op("Concat", conv(b, x, 10, 1), conv(b, x, 20), pool(b, x, "AvgPool"), axis=1)
    return conv(b, b.op("ReLU", y), 8)


def squeeze_and_excite(b):
    x = conv(b, b.input((1, 24, 6, 6)), 24, groups=24)
    mean = b.op("ReduceMean", x, axes=[2, 3], keep_dims=True)
    gate = b.op("HardSigmoid", conv(b, mean, 24, 1), alpha=0.2, beta=0.5)
    return conv(b, b.op("Multiply", x, gate), 16)


def classifier(b):
    x = pool(b, conv(b, b.input((2, 20, 8, 8)), 32), "AvgPool")
    flat = b.op("StaticReshape", x, shape=[2, -1], special_zero=False)
    return b.op("MatMul", flat, b.input((2048, 10), property="constant"))


def upsampled(b):
    x = conv(b, b.input((1, 20, 6, 6)), 20)
    y = b.op("Interpolate", x, mode="bilinear", scales=[2.0, 2.0], data_format="NCX")
    return b.op("Sigmoid", conv(b, y, 5))


def moved(b):
    x = b.op("StaticTranspose", b.input((1, 9, 9, 20)), order=[0, 3, 1, 2])
    return b.op("StaticTranspose", conv(b, x, 20), order=[0, 2, 3, 1])


def normalised(b):
    x = conv(b, b.input((2, 24, 6, 6)), 24)
    y = b.op("GroupNorm", x, b.input((24,)), b.input((24,)), groups=3, data_format="NCX", keep_stats=False)
    return conv(b, b.op("Multiply", y, b.op("Sigmoid", y)), 24)


def one_dimensional(b):
    x, w = b.input((2, 20, 30)), b.input((24, 20, 5), property="constant")
    y = b.op("Convolution", x, w, strides=[1], pads_begin=[2], pads_end=[2], dilations=[1], data_format="NCX",
             weights_format="OIX")  # fmt: skip
    return b.op("Tanh", y)


def transposed(b):
    x = conv(b, b.input((1, 20, 5, 5)), 20)
    w = b.input((20, 12, 2, 2), property="constant")
    y = b.op("ConvTranspose", x, w, data_format="NCX", weights_format="IOX", strides=[2, 2], pads_begin=[0, 0],
             pads_end=[0, 0], dilations=[1, 1])  # fmt: skip
    return conv(b, b.op("ReLU", y), 12)


def two_users(b):
    x = conv(b, b.input((1, 20, 6, 6)), 20)
    b.op("SoftMax", x, axis=1)
    b.op("Exp", x)
    return conv(b, x, 20)


GRAPHS = [residual_block, branches, squeeze_and_excite, classifier, upsampled, moved, normalised, one_dimensional,
          transposed, two_users]  # fmt: skip


@pytest.mark.parametrize("build", GRAPHS)
def test_one_partition_of_the_whole_graph_equals_the_reference(engine, build):
    builder = GraphBuilder()
    build(builder)
    merged = builder.graph.merge_partitions(builder.finish())
    rng = np.random.default_rng(0)
    values = random_inputs(builder, rng, low=-0.5, high=0.5)
    expected = run_reference(builder.graph.ops, values)
    actual = run_partitions([merged], values, engine)
    for port in merged.output_ports:
        assert_close(actual[port.id], expected[port.id], port.dtype, scale=16)


def chosen(builder):
    """Kinds of the first ops of the groups whose results lie channels last, and of the others."""
    ops = [op for op in builder.graph.ops if op.kind != "End"]
    shapes = complete_shapes(ops, {lt.id: lt.shape for lt in builder.inputs}, trust_ops=False)
    read = {tensor.id for op in ops for tensor in op.inputs}
    outputs = {tensor.id for op in ops for tensor in op.outputs} - read
    groups = make_groups(ops, shapes, outputs)
    last = choose_channels_last(groups, shapes, outputs)
    return [(group.first.kind, group.result in last) for group in groups]


def test_a_region_is_turned_round_as_a_whole():
    builder = GraphBuilder()
    branches(builder)
    builder.finish()
    assert all(is_last for _, is_last in chosen(builder))


def test_what_is_no_image_stays_row_major():
    builder = GraphBuilder()
    classifier(builder)
    builder.finish()
    assert chosen(builder) == [("Convolution", True), ("AvgPool", True), ("StaticReshape", False), ("MatMul", False)]


def test_a_lone_pointwise_convolution_is_not_worth_its_copies():
    builder = GraphBuilder()
    conv(builder, builder.input((1, 64, 20, 20)), 64, 1)
    builder.finish()
    assert chosen(builder) == [("Convolution", False)]


def test_elementwise_ops_alone_keep_their_layout():
    builder = GraphBuilder()
    builder.op("Exp", builder.input((1, 8, 9, 9)))
    builder.finish()
    assert chosen(builder) == [("Exp", False)]
