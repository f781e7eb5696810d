"""Convolutions of groups of few channels: regions behind them run apart, what kernels do in registers does not."""

import numpy as np
import pytest

from graphpool.backends.cpu.match.groups import make_groups
from graphpool.graph.completion import complete_shapes
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.partitions import assert_close, run_partitions, run_reference


def convolved(groups, channels, out_channels, data_format="NCX", nspatial=2):
    """A builder, and the result of a convolution with kernels of 3."""
    builder = GraphBuilder()
    spatial, ones = (7, 5, 4)[:nspatial], [1] * nspatial
    shape = (2, channels, *spatial) if data_format == "NCX" else (2, *spatial, channels)
    image = builder.input(shape)
    weights = builder.input((out_channels, channels // groups, *[3] * nspatial), property="constant")
    attrs = {"strides": ones, "dilations": ones, "pads_begin": ones, "pads_end": ones, "groups": groups}
    layout = {"data_format": data_format, "weights_format": "OIX"}
    return builder, builder.op("Convolution", image, weights, **attrs, **layout)


def swish(builder, x):
    return builder.op("Multiply", x, builder.op("Sigmoid", x))


def kinds(builder, **options):
    """Of the ops of each group."""
    builder.finish()
    ops = [op for op in builder.graph.ops if op.kind != "End"]
    shapes = complete_shapes(ops, {lt.id: lt.shape for lt in builder.inputs}, trust_ops=False)
    read = {tensor.id for op in ops for tensor in op.inputs}
    outputs = {tensor.id for op in ops for tensor in op.outputs} - read
    groups = make_groups(ops, shapes, outputs, **options)
    return [[op.kind for op in (*([group.anchor] if hasattr(group, "anchor") else ()), *group.ops)] for group in groups]


SWISH = ["Sigmoid", "Multiply"]


@pytest.mark.parametrize(
    ("groups", "channels", "out_channels", "is_apart"),
    [(8, 32, 32, True), (2, 64, 126, True), (16, 16, 32, True), (16, 32, 16, True), (2, 64, 128, False),
     (1, 8, 8, False), (16, 16, 16, False)],
)  # fmt: skip
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_a_region_stands_behind_wide_groups_and_depthwise_ones_alone(
    groups, channels, out_channels, is_apart, data_format
):
    builder, y = convolved(groups, channels, out_channels, data_format)
    swish(builder, y)
    assert kinds(builder) == ([["Convolution"], SWISH] if is_apart else [["Convolution", *SWISH]])


def test_what_registers_hold_stays_behind_the_convolution():
    builder, y = convolved(8, 32, 32)
    y = builder.op("BiasAdd", y, builder.input((32,), property="constant"), data_format="NCX")
    swish(builder, builder.op("ReLU", builder.op("Add", y, builder.input((2, 32, 7, 5)))))
    assert kinds(builder) == [["Convolution", "BiasAdd", "Add", "ReLU"], SWISH]


def test_kernels_of_other_processors_take_all():
    builder, y = convolved(8, 32, 32)
    swish(builder, y)
    assert kinds(builder, attentions=lambda _: False) == [["Convolution", *SWISH]]


@pytest.mark.parametrize(("groups", "channels", "out_channels"), [(8, 32, 32), (16, 16, 32), (3, 6, 9), (4, 4, 12)])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("nspatial", [1, 2, 3])
def test_results(engine, groups, channels, out_channels, data_format, nspatial):
    builder, y = convolved(groups, channels, out_channels, data_format, nspatial)
    builder.op("Add", swish(builder, builder.op("ReLU", y)), y)
    merged = builder.graph.merge_partitions(builder.finish())
    values = random_inputs(builder, np.random.default_rng(0), low=-0.5, high=0.5)
    expected, actual = run_reference(builder.graph.ops, values), run_partitions([merged], values, engine)
    for port in merged.output_ports:
        assert_close(actual[port.id], expected[port.id], port.dtype, scale=16)
