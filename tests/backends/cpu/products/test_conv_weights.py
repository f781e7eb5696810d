"""Convolutions with constant weights: in the form that the cache keeps, and plain where it keeps none."""

import numpy as np
import pytest

import graphpool as gp
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.partitions import assert_close, check_graph, run_partitions, run_reference

PADS = {"strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1]}

pytestmark = pytest.mark.usefixtures("stand_in")


@pytest.fixture
def engine():
    with gp.Engine() as engine:
        yield engine


def convolution(
    b, ic=20, oc=33, kernel=(3, 3), groups=1, batch=1, size=(9, 8), data_format="NXC", weights_format="XIO",
    dtype="f32", bias=False, property="constant", behind=lambda b, weights: weights, **attrs,
):  # fmt: skip
    """A Convolution of an input; where both formats have channels last no layout needs to be chosen."""
    spatial = tuple(size[: len(kernel)])
    shape = (batch, *spatial, ic) if data_format == "NXC" else (batch, ic, *spatial)
    own = {"XIO": (*kernel, ic // groups, oc), "OIX": (oc, ic // groups, *kernel)}[weights_format]
    operands = [b.input(shape, dtype), behind(b, b.input(own, dtype, property=property))]
    operands += [b.input((oc,), dtype, property="constant")] if bias else []
    ndim = len(kernel)
    given = {name: values[:1] * ndim for name, values in PADS.items()} | attrs
    return b.op(
        "Convolution", *operands, groups=groups, data_format=data_format, weights_format=weights_format, **given
    )


def batch_norm(b, x, data_format="NXC", constant=True):
    shape = b.graph_shape(x)
    channels = (shape[-1 if data_format == "NXC" else 1],)
    kind = "constant" if constant else "variable"
    params = [b.input(channels, property=kind) for _ in range(4)]
    return b.op("BatchNormInference", x, *params, epsilon=0.1, data_format=data_format)


def constant(b, x, data_format="NXC", **options):
    """A number for each channel of an image."""
    channels = b.graph_shape(x)[-1 if data_format == "NXC" else 1]
    shape = (channels,) if data_format == "NXC" else (channels, *[1] * (len(b.graph_shape(x)) - 2))
    return b.input(**{"shape": shape, "property": "constant"} | options)


def arithmetic(b, x, kinds, data_format="NXC", **options):
    """Ops with constants one behind another; those with a prime have the constant first."""
    for kind in kinds.split():
        operands = [x, constant(b, x, data_format, **options)]
        attrs = {"data_format": data_format} if kind == "BiasAdd" else {}
        x = b.op(kind.strip("'"), *(operands[::-1] if "'" in kind else operands), **attrs)
    return x


def like(b, x):
    return b.input(b.graph_shape(x), x.dtype)


TAILS = {
    "nothing": lambda b, y: y,
    "relu": lambda b, y: b.op("ReLU", y),
    "clamp": lambda b, y: b.op("Clamp", y, min=0.0, max=6.0),
    "residual, relu": lambda b, y: b.op("ReLU", b.op("Add", y, like(b, y))),
    "channels": lambda b, y: b.op("Add", y, b.input((b.graph_shape(y)[-1],))),
    "columns, not channels": lambda b, y: b.op("Add", y, b.input((b.graph_shape(y)[-2], 1))),
    "bias add": lambda b, y: b.op("BiasAdd", y, b.input((b.graph_shape(y)[-1],)), data_format="NXC"),
    "swish": lambda b, y: b.op("Multiply", y, b.op("Sigmoid", y)),
    "hard swish, residual": lambda b, y: b.op("Add", b.op("HardSwish", y), like(b, y)),
    "norm": batch_norm,
    "norm, residual, relu": lambda b, y: b.op("ReLU", b.op("Add", batch_norm(b, y), like(b, y))),
    "norm, sigmoid": lambda b, y: b.op("Sigmoid", batch_norm(b, y)),
    "norm of variables": lambda b, y: batch_norm(b, y, constant=False),
    "arithmetic": lambda b, y: arithmetic(b, y, "Multiply Add"),
    "turned arithmetic, relu": lambda b, y: b.op("ReLU", arithmetic(b, y, "Multiply' Subtract'")),
    "norm, arithmetic": lambda b, y: arithmetic(b, batch_norm(b, y), "Divide Subtract BiasAdd"),
    "norm, norm, residual": lambda b, y: b.op("Add", batch_norm(b, batch_norm(b, y)), like(b, y)),
    "shift, scale": lambda b, y: arithmetic(b, y, "Add Multiply"),
    "arithmetic of variables": lambda b, y: arithmetic(b, y, "Multiply Add", property="variable"),
    "arithmetic of one number": lambda b, y: arithmetic(b, y, "Multiply Subtract'", shape=()),
    "arithmetic of columns": lambda b, y: arithmetic(b, y, "Multiply", shape=(b.graph_shape(y)[-2], 1)),
    "divisor": lambda b, y: arithmetic(b, y, "Divide'"),
    "scale twice": lambda b, y: b.op("Multiply", y, b.op("Multiply", y, constant(b, y))),
    "relu, norm": lambda b, y: batch_norm(b, b.op("ReLU", y)),
}
KINDS = {
    "dense": {},
    "Winograd": {"ic": 32, "oc": 36, "size": (16, 17)},
    "few channels": {"ic": 3, "oc": 20},
    "depthwise": {"ic": 20, "oc": 20, "groups": 20},
    "grouped": {"ic": 20, "oc": 34, "groups": 2},
}


SINGLE = {
    "short": {"kernel": (3,), "size": (50,)},
    "long": {"kernel": (256,), "size": (900,)},
    "image": {"kernel": (3, 3), "size": (16, 17)},
    "large window": {"kernel": (16, 16), "size": (40, 40)},
    "strided": {"kernel": (5, 3), "size": (16, 17), "strides": [2, 1], "dilations": [1, 2]},
}


@pytest.mark.parametrize("property", ["constant", "variable"])
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("tail", ["nothing", "residual, relu", "norm"])
@pytest.mark.parametrize("kind", SINGLE)
def test_a_single_channel_is_walked_along_its_rows(engine, kind, tail, data_format, property):
    builder, options = GraphBuilder(), {"data_format": data_format, "property": property}
    y = convolution(builder, ic=1, oc=1, bias=True, **SINGLE[kind], **options)
    batch_norm(builder, y, data_format) if tail == "norm" else TAILS[tail](builder, y)
    [partition] = check_graph(builder, engine, np.random.default_rng(0), scale=16, low=0.1, high=1.0)
    outputs = [lt.replace(shape=builder.graph_shape(lt)) for lt in partition.output_ports]
    with partition.compile(partition.input_ports, outputs, engine) as compiled:
        names = [name.partition(":")[0] for name in compiled.implementations]
    assert [name for name in names if "conv" in name] == ["f32_conv_depthwise"]


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_post_ops(engine, kind, bias, tail):
    builder = GraphBuilder()
    TAILS[tail](builder, convolution(builder, bias=bias, **KINDS[kind]))
    check_graph(builder, engine, np.random.default_rng(0), scale=16, low=0.1, high=1.0)


GEOMETRY = {
    "strided": {"strides": [2, 2]},
    "dilated": {"dilations": [2, 2]},
    "same": {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    "pointwise": {"kernel": (1, 1), "pads_begin": [0, 0], "pads_end": [0, 0]},
    "1d": {"kernel": (3,)},
    "3d": {"kernel": (2, 3, 2), "size": (4, 5, 6)},
    "batch": {"batch": 3},
    "empty batch": {"batch": 0},
}


@pytest.mark.parametrize("geometry", GEOMETRY)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("data_format", "weights_format"), [("NXC", "OIX"), ("NCX", "OIX"), ("NCX", "XIO")])
def test_geometry_and_formats(engine, kind, geometry, data_format, weights_format):
    builder = GraphBuilder()
    more = KINDS[kind] | GEOMETRY[geometry]
    y = convolution(builder, bias=True, data_format=data_format, weights_format=weights_format, **more)
    builder.op("ReLU", y)
    check_graph(builder, engine, np.random.default_rng(0), low=-0.5, high=0.5)


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
def test_half_types(engine, kind, dtype, data_format):
    builder = GraphBuilder()
    builder.op("ReLU", convolution(builder, dtype=dtype, bias=True, data_format=data_format, **KINDS[kind]))
    check_graph(builder, engine, np.random.default_rng(0), scale=2)


def test_minimal_filtering_is_chosen_where_it_gains(engine):
    cases = [("latency", (16, 17), True), ("latency", (3, 3), False), ("memory", (16, 17), False)]
    for prefer, size, expected in cases:
        builder = GraphBuilder(gp.Graph(prefer=prefer))
        convolution(builder, ic=32, oc=36, size=size)
        [partition] = builder.finish()
        with partition.compile(partition.input_ports, partition.output_ports, engine) as compiled:
            assert any("winograd" in name for name in compiled.implementations) is expected


def test_weights_that_change_stay_plain(engine):
    builder = GraphBuilder()
    convolution(builder, property="variable")
    check_graph(builder, engine, np.random.default_rng(0), scale=16)
    [partition] = builder.graph.get_partitions()
    with partition.compile(partition.input_ports, partition.output_ports, engine) as compiled:
        assert not any("packed" in name for name in compiled.implementations)


def test_a_norm_of_constants_becomes_part_of_the_weights(engine):
    builder = GraphBuilder()
    builder.op("ReLU", batch_norm(builder, convolution(builder)))
    partitions = builder.finish()
    merged = builder.graph.merge_partitions(partitions)
    with merged.compile(merged.input_ports, merged.output_ports, engine) as compiled:
        [name] = {name for name in compiled.implementations if "packed" in name}
        assert name.endswith("eltwise(BatchNormInference+ReLU)")


@pytest.mark.parametrize(
    ("tail", "nsources"),
    [("Multiply", 2), ("bias Multiply", 3), ("bias Add Subtract", 4), ("bias", 1), ("Multiply Add", 3),
     ("Add Divide", 3), ("Subtract'", 2), ("Multiply Add Multiply' Subtract", 5), ("Add", 1), ("Add'", 1),
     ("Subtract BiasAdd", 1)],
)  # fmt: skip
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_arithmetic_of_constants_becomes_part_of_the_weights(tail, nsources, data_format, engine):
    builder = GraphBuilder()
    weights_format = "OIX" if data_format == "NCX" else "XIO"
    formats = {"data_format": data_format, "weights_format": weights_format}
    y = convolution(builder, size=(12, 12), bias=tail.startswith("bias"), **formats)
    tail = tail.removeprefix("bias")
    if data_format == "NCX" and "BiasAdd" in tail:
        tail = "Subtract Add"
    builder.op("ReLU", arithmetic(builder, y, tail, data_format))
    check_graph(builder, engine, np.random.default_rng(0), scale=64, low=0.25)
    [partition] = builder.graph.get_partitions()
    with partition.compile(partition.input_ports, partition.output_ports, engine) as compiled:
        assert [len(part.sources) for part in compiled.primitive.constant_parts] == [nsources]


QUANTISED = {
    "per_tensor": lambda count: {"qtype": "per_tensor", "scales": [0.01], "zps": [3]},
    "per_channel": lambda count: {
        "qtype": "per_channel", "axis": 3, "scales": [0.01 + 0.001 * k for k in range(count)], "zps": [*range(count)],
    },
    "given": lambda count: {"qtype": "per_tensor"},
}  # fmt: skip


@pytest.mark.parametrize("prefer", ["latency", "memory"])
@pytest.mark.parametrize("tail", ["nothing", "norm, residual, relu", "swish"])
@pytest.mark.parametrize("scheme", QUANTISED)
@pytest.mark.parametrize("kind", KINDS)
def test_weights_of_8_bits_are_dequantised_where_they_are_packed(engine, kind, scheme, tail, prefer):
    """As in models whose activations have 16 bits; in each run where memory is preferred."""
    builder = GraphBuilder(gp.Graph(prefer=prefer))
    oc = KINDS[kind].get("oc", 33)

    def quantised(b, weights):
        integers = b.input(b.graph_shape(weights), "s8", property="constant")
        numbers = [b.input((1,), property="constant")] if scheme == "given" else []
        return b.op("DynamicDequantize" if numbers else "Dequantize", integers, *numbers, dtype="f32",
                    **QUANTISED[scheme](oc))  # fmt: skip

    TAILS[tail](builder, convolution(builder, bias=True, behind=quantised, **KINDS[kind]))
    whole = builder.graph.merge_partitions(builder.finish())
    values = random_inputs(builder, np.random.default_rng(0), low=0.1, high=1.0)
    [result] = whole.output_ports
    actual = run_partitions([whole], values, engine, scale=64)[result.id]
    assert_close(actual, run_reference(builder.graph.ops, values)[result.id], result.dtype, scale=64)
    outputs = [lt.replace(shape=builder.graph_shape(lt)) for lt in whole.output_ports]
    with whole.compile(whole.input_ports, outputs, engine) as compiled:
        assert bool(compiled.primitive.constant_parts) is (prefer == "latency")


def test_one_weight_of_two_convolutions(engine):
    builder = GraphBuilder()
    x, w = builder.input((1, 6, 6, 20)), builder.input((3, 3, 20, 20), property="constant")
    attrs = PADS | {"groups": 1, "data_format": "NXC", "weights_format": "XIO"}
    builder.op("Convolution", builder.op("Convolution", x, w, **attrs), w, **attrs | {"dilations": [2, 1]})
    check_graph(builder, engine, np.random.default_rng(0), scale=200, low=-0.3, high=0.3)
