"""Concat whose operands are written straight into its result: results equal the reference, copies are gone."""

import numpy as np
import pytest

import graphpool as gp
from graphpool.backends.cpu.backend import lower
from graphpool.backends.cpu.place.streams import step_edges
from graphpool.runtime._program import FIRST_EXTERNAL
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.partitions import assert_close, run_partitions, run_reference

SAME = {"strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1]}


def conv(b, x, oc, data_format="NCX", *, is_constant=True):
    ic = b.graph_shape(x)[1 if data_format == "NCX" else -1]
    w = b.input((oc, ic, 3, 3), property="constant" if is_constant else "undef")
    return b.op("Convolution", x, w, **SAME, data_format=data_format, weights_format="OIX")


def pool(b, x, kind="MaxPool"):
    own = {"exclude_pad": False} if kind == "AvgPool" else {}
    geometry = {"strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "data_format": "NCX"}
    return b.op(kind, x, kernel=[3, 3], **geometry, **own)


def fire(b):
    """Two convolutions side by side, twice."""
    x = conv(b, b.input((2, 20, 6, 5)), 16)
    for _ in range(2):
        parts = [b.op("ReLU", conv(b, x, oc)) for oc in (24, 10)]
        x = conv(b, b.op("Concat", *parts, axis=1), 18)
    return x


def inception(b):
    """Parts of windows of all kinds, one with a residual, and a joined tensor as part of another."""
    x = conv(b, b.input((1, 20, 7, 6)), 20)
    inner = b.op("Concat", conv(b, x, 8), conv(b, x, 3), axis=1)
    w = b.input((20, 1, 3, 3), property="constant")
    depthwise = b.op("Convolution", x, w, **SAME, groups=20, data_format="NCX", weights_format="OIX")
    added = b.op("ReLU", b.op("Add", conv(b, x, 20), x))
    parts = [inner, pool(b, x), added, pool(b, x, "AvgPool"), depthwise, b.op("Sigmoid", x)]
    return conv(b, b.op("Concat", *parts, axis=1), 12)


def dense_chain(b):
    """Each joined tensor is part of the next, and read in between."""
    x = conv(b, b.input((1, 6, 6, 6)), 24)
    for _ in range(3):
        x = b.op("Concat", x, conv(b, b.op("ReLU", x), 12), axis=1)
    return conv(b, pool(b, x, "AvgPool"), 10)


def dense_block(b):
    """Each joined tensor holds all features so far: a view of the last one."""
    features = [conv(b, b.input((2, 6, 6, 6)), 24)]
    for _ in range(4):
        x = b.op("Concat", *features, axis=1) if len(features) > 1 else features[0]
        features.append(conv(b, b.op("ReLU", x), 12))
    return conv(b, b.op("Concat", *features, axis=1), 10)


def residual_of_a_part(b):
    """A part is added behind a convolution that reads it."""
    x = conv(b, b.input((1, 20, 6, 6)), 20)
    y = b.op("ReLU", b.op("Add", conv(b, x, 20), x))
    return conv(b, b.op("Concat", x, y, axis=1), 10)


def variable_weights(b):
    x = conv(b, b.input((1, 20, 6, 6)), 20, is_constant=False)
    parts = [conv(b, x, oc, is_constant=False) for oc in (6, 9)]
    return conv(b, b.op("Concat", *parts, axis=1), 7)


def channels_last(b):
    x = conv(b, b.input((2, 6, 6, 20)), 20, "NXC")
    return b.op("Concat", conv(b, x, 24, "NXC"), conv(b, x, 7, "NXC"), axis=-1)


def side_by_side(b):
    """Joined along width: the pixels of a part are not one run."""
    x = conv(b, b.input((2, 6, 6, 20)), 20, "NXC")
    return b.op("Concat", conv(b, x, 24, "NXC"), b.op("ReLU", conv(b, x, 24, "NXC")), axis=2)


def batches(b):
    x = b.op("SoftMax", b.input((3, 8)), axis=-1)
    return b.op("Concat", b.op("SoftMax", x, axis=0), b.op("LogSoftmax", x, axis=1), axis=0)


def columns(b):
    x = b.op("Exp", b.input((3, 8)))
    y = b.op("Tanh", b.input((3, 5)))
    return b.op("Concat", x, y, axis=-1)


def products(b):
    x = b.op("SoftMax", b.input((2, 3, 8)), axis=-1)
    parts = [b.op("MatMul", x, b.input((8, n), property="constant")) for n in (16, 5)]
    added = b.op("Add", b.op("MatMul", x, b.input((8, 8))), x)
    joined = b.op("Concat", *parts, b.op("ReLU", parts[1]), added, axis=-1)
    return b.op("MatMul", joined, b.input((34, 3), property="constant"))


IMAGES = ["fire", "inception", "dense_chain", "dense_block", "residual_of_a_part", "variable_weights"]
JOINED = [fire, inception, dense_chain, dense_block, residual_of_a_part, variable_weights, channels_last, side_by_side,
          batches, columns, products]  # fmt: skip


def needed_outside(b):
    """A part leaves the partition: it has a place of its own."""
    x = b.op("SoftMax", b.input((3, 8)), axis=-1)
    b.op("End", x, n=0)
    return b.op("Concat", x, b.op("SoftMax", x, axis=0), axis=-1)


def given(b):
    return b.op("Concat", b.input((3, 8)), b.op("Exp", b.input((3, 2))), axis=-1)


def twice(b):
    x = b.op("SoftMax", b.input((3, 8)), axis=-1)
    return b.op("Concat", x, x, b.op("Concat", x, x, axis=0), axis=0)


def views(b):
    x = b.op("SoftMax", b.input((4, 6)), axis=-1)
    return b.op("Concat", *[b.op("StaticTranspose", x, order=[1, 0]) for _ in range(2)], axis=1)


def flattened_part(b):
    """A part is also reshaped, which needs its rows side by side."""
    x = conv(b, b.input((1, 20, 4, 4)), 20)
    y = conv(b, x, 16)
    b.op("MatMul", b.op("StaticReshape", y, shape=[1, 256], special_zero=False), b.input((256, 3), property="constant"))
    return conv(b, b.op("Concat", x, y, axis=1), 8)


COPIED = [needed_outside, given, twice, views, flattened_part]


@pytest.fixture(scope="module")
def engine():
    with gp.Engine(threads=2) as engine:
        yield engine


def merged(build):
    builder = GraphBuilder()
    build(builder)
    return builder, builder.graph.merge_partitions([part for part in builder.finish() if part.is_supported])


@pytest.mark.parametrize("build", JOINED + COPIED, ids=lambda build: build.__name__)
def test_results_equal_the_reference(engine, build):
    builder, partition = merged(build)
    rng = np.random.default_rng(0)
    values = random_inputs(builder, rng, low=-0.2, high=0.2)
    expected = run_reference(partition.ops, values)
    actual = run_partitions([partition], values, engine)
    for port in partition.output_ports:
        assert_close(actual[port.id], expected[port.id], port.dtype, scale=16)


def lowered_names(build):
    builder, partition = merged(build)
    outputs = [lt.replace(shape=builder.graph_shape(lt)) for lt in partition.output_ports]
    return [step.name.split(":")[0] for step in lower(partition.ops, partition.input_ports, outputs).steps]


@pytest.mark.parametrize("build", JOINED, ids=lambda build: build.__name__)
def test_joining_costs_no_step(build):
    names = lowered_names(build)
    assert "any_concat" not in names
    borders = 2 if build.__name__ in IMAGES else 0  # channels first outside the partition
    weights = names.count("f32_conv_depthwise_packed") // 2  # of runs that keep no form
    assert names.count("any_copy") <= borders + weights


@pytest.mark.parametrize("build", COPIED, ids=lambda build: build.__name__)
def test_what_has_another_place_is_copied(build):
    assert {"any_concat", "any_copy"} & set(lowered_names(build))


def test_a_joined_tensor_takes_the_memory_of_its_parts_once():
    builder, partition = merged(dense_block)
    outputs = [lt.replace(shape=builder.graph_shape(lt)) for lt in partition.output_ports]
    steps = lower(partition.ops, partition.input_ports, outputs).steps
    due = [step for step in steps if step.guard is None or step.guard[1]]  # others fill temporaries with weights
    inside = {value.buffer.whole for step in due for value in step.args if value.buffer.base == 0}
    joined = 2 * (24 + 4 * 12) * 36 * 4
    assert sum(buffer.nbytes >= joined for buffer in inside) == 1


@pytest.mark.parametrize("schedule", ["wavefront", "ios"])
@pytest.mark.parametrize("build", [inception, dense_block], ids=lambda build: build.__name__)
def test_parts_are_written_on_several_streams(build, schedule):
    builder, partition = merged(build)
    rng = np.random.default_rng(1)
    values = random_inputs(builder, rng, low=-0.2, high=0.2)
    expected = run_reference(builder.graph.ops, values)
    outputs = [lt.replace(shape=builder.graph_shape(lt)) for lt in partition.output_ports]
    with (
        gp.Engine(threads=2) as engine,
        partition.compile(partition.input_ports, outputs, engine, schedule=schedule, streams=2) as compiled,
    ):
        tensors = [gp.Tensor(lt, engine, values[lt.id]) for lt in partition.input_ports]
        for _ in range(20):
            [result] = compiled.execute(gp.Stream(engine), tensors)
            assert_close(result.numpy(), expected[outputs[0].id], outputs[0].dtype, scale=16)


def test_what_is_appended_to_is_neither_read_nor_written():
    """Who reads the joined tensor waits for the new part, and not for those who have read the old one before."""
    b = GraphBuilder()
    past, x = b.input((2, 5, 16)), b.input((2, 3, 16))
    b.op("ReLU", past)
    joined = b.op("Concat", past, b.op("SoftMax", x, axis=-1), axis=1)
    b.op("SoftMax", joined, axis=1)
    whole = b.graph.merge_partitions(b.finish())
    strides = {past.id: (160, 16, 1), joined.id: (160, 16, 1)}
    inputs = [lt.replace(strides=strides.get(lt.id)) for lt in whole.input_ports]
    outputs = [lt.replace(shape=b.graph_shape(lt)) for lt in (*whole.output_ports, joined)]
    outputs = [lt.replace(strides=strides.get(lt.id)) for lt in outputs]
    steps = lower(whole.ops, inputs, outputs, appends={past.id: joined.id}).steps
    places = {lt.id: base for base, lt in enumerate([*inputs, *outputs], FIRST_EXTERNAL)}
    past_at, joined_at = (
        [[(arg.shape, arg.offset) for arg in step.args if arg.buffer.base == places[lt.id]] for step in steps]
        for lt in (past, joined)
    )
    assert past_at == [[((2, 5, 16), 0)], [], [], []]
    assert joined_at == [[], [], [((2, 3, 16), 80)], [((2, 8, 16), 0)]]
    assert step_edges(steps, len(inputs), len(outputs)) == [(1, 2), (2, 3)]
