"""Convolutions of one image as one call: the same bytes as separate ones, whoever reads them and in what form."""

import random

import numpy as np
import pytest

import graphpool as gp
from graphpool.backends.cpu.backend import lower
from graphpool.backends.cpu.place.merging import fused_steps
from graphpool.backends.cpu.place.streams import step_signature
from graphpool.runtime.costs import stage_key, stage_latencies
from graphpool.runtime.scheduling import POLICIES
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.partitions import check_plain

POINT = {"strides": [1, 1], "pads_begin": [0, 0], "pads_end": [0, 0], "dilations": [1, 1]}
SQUARE = POINT | {"pads_begin": [1, 1], "pads_end": [1, 1]}


def convolve(b, x, outputs, kernel=(1, 1), bias=True, data_format="NCX", dtype="f32", **attrs):
    channels = b.graph_shape(x)[1 if data_format == "NCX" else -1]
    operands = [x, b.input((outputs, channels // attrs.get("groups", 1), *kernel), dtype, property="constant")]
    operands += [b.input((outputs,), property="constant")] if bias else []
    given = (POINT if kernel == (1, 1) else SQUARE) | attrs
    return b.op("Convolution", *operands, data_format=data_format, weights_format="OIX", **given)


def norm(b, x):
    channels = (b.graph_shape(x)[1],)
    params = [b.input(channels, property="constant") for _ in range(4)]
    return b.op("BatchNormInference", x, *params, epsilon=0.1, data_format="NCX")


def lowered(build, merge, threads=1):
    builder = GraphBuilder()
    build(builder)
    whole = builder.graph.merge_partitions(builder.finish())
    outputs = [lt.replace(shape=builder.graph_shape(lt)) for lt in whole.output_ports]
    plain = lower(whole.ops, whole.input_ports, outputs, threads=threads)
    if not merge:
        return plain
    return lower(whole.ops, whole.input_ports, outputs, merges=plain.horizontal_fusions, threads=threads)


def teach(plain, joint, most_threads, *, gain):
    """Make the joint calls known to take that share less (or more, below 0) than separate ones."""
    for ids in plain.horizontal_fusions:
        separate, [merged] = fused_steps(plain, ids), fused_steps(joint, ids)
        for threads in {1, most_threads}:
            for step in separate:
                stage_latencies().put(stage_key([[step_signature(step)]], threads), 1.0)
            stage_latencies().put(stage_key([[step_signature(merged)]], threads), len(separate) * (1 - gain))


def run(build, engine, gain=None, rng=None, **options):
    """The outputs of the whole graph, and the names of its steps, after its fusions were measured."""
    if gain is not None:
        plain, joint = (lowered(build, merge, engine.threads) for merge in (False, True))
        teach(plain, joint, engine.threads, gain=gain)
    builder = GraphBuilder()
    build(builder)
    whole = builder.graph.merge_partitions(builder.finish())
    values = random_inputs(builder, np.random.default_rng(0), low=0.1, high=1.0)
    outputs = [lt.replace(shape=None) for lt in whole.output_ports]
    stream = gp.Stream(engine)
    with whole.compile(whole.input_ports, outputs, engine, **options) as compiled:
        tensors = [gp.Tensor(lt, engine, values[lt.id]) for lt in whole.input_ports]
        results = [np.array(t.numpy()) for t in compiled.execute(stream, tensors)]
        check_plain(compiled, stream, tensors, compiled.execute(stream, tensors))
        return results, [name for name in compiled.implementations if name.endswith("convolutions")]


def towers(b):
    """Inception's way to begin: narrow convolutions of one image, with more behind some of them."""
    x = b.op("ReLU", convolve(b, b.input((2, 3, 9, 11)), 24, (3, 3)))
    heads = [b.op("ReLU", convolve(b, x, n)) for n in (8, 33, 17)]
    wide = b.op("ReLU", convolve(b, heads[1], 20, (3, 3)))
    deep = convolve(b, heads[2], 17, (3, 3), groups=17)
    b.op("Concat", heads[0], wide, deep, axis=1)


def outputs_and_pools(b):
    """Slices that leave the partition, are pooled, reduced, added and multiplied."""
    x = b.op("ReLU", convolve(b, b.input((1, 18, 12, 10)), 32, (3, 3)))
    a, c, d, e, _ = (b.op("Clamp", norm(b, convolve(b, x, n, bias=n > 5)), min=0.0, max=6.0) for n in (5, 32, 6, 32, 7))
    b.op("AvgPool", a, kernel=[3, 3], strides=[2, 2], pads_begin=[0, 0], pads_end=[0, 0], exclude_pad=True,
         data_format="NCX")  # fmt: skip
    b.op("Multiply", b.op("Add", c, e), b.op("Sigmoid", c))
    b.op("ReduceMean", d, axes=[2, 3], keep_dims=True)


def squares(b):
    """3x3 windows, by Winograd where there are pixels and channels enough."""
    x = b.op("ReLU", convolve(b, b.input((1, 3, 20, 20)), 48, (3, 3)))
    b.op("Concat", *(b.op("ReLU", convolve(b, x, n, (3, 3), bias=False)) for n in (40, 64)), axis=1)


def bias_adds(b):
    """Biases that are ops of their own, and weights in half types."""
    x = b.op("ReLU", convolve(b, b.input((1, 20, 7, 7)), 20, (3, 3)))
    for n in (4, 12):
        y = b.op("Convolution", x, b.input((n, 20, 1, 1), property="constant"), data_format="NCX",
                 weights_format="OIX", **POINT)  # fmt: skip
        y = b.op("BiasAdd", y, b.input((n,), property="constant"), data_format="NCX")
        b.op("ReLU", b.op("Add", convolve(b, b.op("ReLU", y), n), y))


GRAPHS = {"towers": towers, "outputs and pools": outputs_and_pools, "squares": squares, "bias adds": bias_adds}


@pytest.mark.parametrize("prefer_streams", [1, 2])
@pytest.mark.parametrize("name", GRAPHS)
def test_one_call_gives_the_bytes_of_separate_ones(name, prefer_streams):
    with gp.Engine(threads=prefer_streams) as engine:
        options = {"schedule": "ios", "streams": prefer_streams}
        separate, none = run(GRAPHS[name], engine, gain=-0.5, **options)
        joint, merged = run(GRAPHS[name], engine, gain=0.9, **options)
    assert not none
    assert merged
    assert [a.tobytes() for a in joint] == [a.tobytes() for a in separate]


def random_network(seed):
    """Convolutions that read any earlier image of their size, with all kinds of ops behind and between them."""

    def build(b):
        rng = random.Random(seed)
        data_format = rng.choice(["NCX", "NCX", "NXC"])
        last = data_format == "NXC"
        size = rng.choice([(5, 7), (8, 8), (14, 9)])
        batch = rng.choice([1, 1, 3])
        channels = rng.choice([3, 17, 32])
        images = [b.input((batch, *size, channels) if last else (batch, channels, *size))]
        images.append(b.op("ReLU", convolve(b, images[0], 33, (3, 3), data_format=data_format)))

        def fan(x):
            """Convolutions of one image, alike or not."""
            kernel, bias, tail = rng.choice([(1, 1), (1, 1), (3, 3)]), rng.random() < 0.7, rng.choice(["", "ReLU"])
            for _ in range(rng.choice([1, 2, 2, 3])):
                y = convolve(b, x, rng.choice([1, 4, 16, 33, 40]), kernel, bias=bias, data_format=data_format)
                images.append(b.op(tail, y) if tail else b.op("Clamp", y, min=0.0, max=1.0))
            return images[-1]

        def join(x):
            other = rng.choice(images)
            same = b.graph_shape(other) == b.graph_shape(x)
            axis = 3 if last else 1
            return b.op("Add", x, other) if same else b.op("Concat", x, other, axis=axis)

        for _ in range(rng.randint(3, 9)):
            x = rng.choice(images[-4:])
            kinds = [fan, fan, fan, join, lambda x: b.op("Sigmoid", x), lambda x: b.op("Multiply", x, x)]
            images.append(rng.choice(kinds)(x))

    return build


@pytest.mark.parametrize("seed", range(40))
def test_random_networks_give_the_same_bytes_with_and_without(seed):
    build, threads = random_network(seed), 1 + seed % 3
    with gp.Engine(threads=threads) as engine:
        options = {"schedule": POLICIES[seed % len(POLICIES)], "streams": threads}
        separate, _ = run(build, engine, gain=-0.5, **options)
        joint, _ = run(build, engine, gain=0.9, **options)
    assert [a.tobytes() for a in joint] == [a.tobytes() for a in separate]


def test_random_networks_have_horizontal_fusions():
    assert sum(len(lowered(random_network(seed), merge=False).horizontal_fusions) for seed in range(40)) > 30


def test_siblings_are_those_that_one_kernel_computes():
    def build(b):
        def conv(x, n, *kernel, **attrs):
            return convolve(b, x, n, *kernel, data_format="NXC", **attrs)

        x, other = b.input((1, 6, 6, 8)), b.input((1, 6, 6, 8))
        for n in (4, 5):
            b.op("ReLU", conv(x, n))  # ops 0 and 2
        for n in (4, 6):
            conv(x, n)  # ops 4 and 5
        conv(x, 4, bias=False)
        b.op("ReLU", conv(other, 4))
        b.op("ReLU", conv(x, 4, strides=[2, 2]))
        b.op("ReLU", conv(x, 4, (3, 3)))
        b.op("ReLU", conv(x, 8, groups=2))
        b.op("Convolution", x, b.input((4, 8, 1, 1)), data_format="NXC", weights_format="OIX", **POINT)
        b.op("Sigmoid", conv(x, 4))
        b.op("Add", conv(x, 4), b.input((1, 6, 6, 4)))

    assert sorted(lowered(build, merge=False).horizontal_fusions) == [(0, 2), (4, 5)]


def test_nothing_is_merged_before_it_was_measured_to_gain(engine):
    assert run(towers, engine)[1] == []
    assert run(towers, engine, gain=0.01)[1] == []  # below what a measurement can tell
    assert run(towers, engine, gain=0.5)[1] != []


def test_the_slices_of_a_joint_result_share_one_buffer():
    plain, joint = lowered(towers, merge=False), lowered(towers, merge=True)
    [ids] = joint.horizontal_fusions
    assert len(fused_steps(plain, ids)) == 3
    [step] = fused_steps(joint, ids)
    assert step.args[3].shape == (2, 58, 9, 11)
    readers = [s for s in joint.steps for value in s.args if value.buffer is step.args[3].buffer and s is not step]
    assert len({id(s) for s in readers}) >= 4  # three plain steps, and those that read
    assert not any(s.call.kernel.name == "any_copy" and s.args[0].buffer is step.args[3].buffer and len(ids) == 1
                   for s in joint.steps)  # fmt: skip
