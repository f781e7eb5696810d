"""Transposed convolutions with constant weights, phase by phase, and without the form: both equal the reference."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphpool as gp
from graphpool.backends.cpu.backend import lower
from graphpool.backends.cpu.products.transposed import _Axis
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.partitions import assert_close, run_partitions, run_reference


@pytest.fixture(scope="module")
def engine():
    with gp.Engine(threads=2) as engine:
        yield engine


def conv_transpose(b, x, oc, kernel, *, groups=1, bias=False, data_format="NXC", weights_format="IOX", **attrs):
    ndim = len(kernel)
    channels = b.graph_shape(x)[-1 if data_format == "NXC" else 1]
    sizes = {"I": channels, "O": oc // groups}
    letters = weights_format.replace("X", "")
    shape = [sizes[letter] for letter in letters]
    shape = (*shape, *kernel) if weights_format.endswith("X") else (*kernel, *shape)
    inputs = [b.input(shape, property="constant")] + ([b.input((oc,), property="constant")] if bias else [])
    own = {"strides": [1] * ndim, "pads_begin": [0] * ndim, "pads_end": [0] * ndim, "dilations": [1] * ndim} | attrs
    more = {"groups": groups, "data_format": data_format, "weights_format": weights_format}
    return b.op("ConvTranspose", x, *inputs, **own, **more)


def run(engine, build):
    """Compare the graph with the reference; returns the names of its steps."""
    builder = GraphBuilder()
    build(builder)
    partition = builder.graph.merge_partitions(builder.finish())
    rng = np.random.default_rng(0)
    values = random_inputs(builder, rng, low=-0.5, high=0.5)
    for op in builder.graph.ops:  # variances are positive
        if op.kind == "BatchNormInference":
            values[op.inputs[4].id] = np.abs(values[op.inputs[4].id]) + 0.5
    expected = run_reference(partition.ops, values)
    actual = run_partitions([partition], values, engine)
    for port in partition.output_ports:
        assert_close(actual[port.id], expected[port.id], port.dtype, scale=16)
    outputs = [lt.replace(shape=builder.graph_shape(lt)) for lt in partition.output_ports]
    return [step.name.split(":")[0] for step in lower(partition.ops, partition.input_ports, outputs).steps]


@pytest.mark.parametrize("prefer", ["latency", "memory"])
@pytest.mark.parametrize("is_bytes", [False, True])
def test_weights_of_8_bits_are_dequantised_where_they_are_packed(engine, is_bytes, prefer):
    """Beside activations of bytes too, since no kernel multiplies these; in each run where memory is preferred."""
    b = GraphBuilder(gp.Graph(prefer=prefer))
    x = b.input((2, 5, 6, 20), "u8" if is_bytes else "f32")
    if is_bytes:
        x = b.op("Dequantize", x, dtype="f32", qtype="per_tensor", scales=[0.02], zps=[120])
    integers, scales = b.input((20, 33, 4, 4), "s8", property="constant"), [0.01 + 0.001 * k for k in range(33)]
    w = b.op("Dequantize", integers, dtype="f32", qtype="per_channel", axis=1, scales=scales, zps=[0] * 33)
    attrs = {"strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1], "groups": 1}
    b.op("ReLU", b.op("ConvTranspose", x, w, data_format="NXC", weights_format="IOX", **attrs))
    whole = b.graph.merge_partitions(b.finish())
    values, [result] = random_inputs(b, np.random.default_rng(0)), whole.output_ports
    actual = run_partitions([whole], values, engine)[result.id]
    assert_close(actual, run_reference(b.graph.ops, values)[result.id], result.dtype, scale=64)
    outputs = [lt.replace(shape=b.graph_shape(lt)) for lt in whole.output_ports]
    with whole.compile(whole.input_ports, outputs, engine) as compiled:
        assert bool(compiled.primitive.constant_parts) is (prefer == "latency")


GEOMETRIES = {
    "k2s2": ((2, 5, 6, 20), 24, (2, 2), {"strides": [2, 2]}),
    "k4s2p1": ((1, 5, 7, 20), 33, (4, 4), {"strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1]}),
    "k3s2 output padding": ((1, 4, 5, 20), 16, (3, 3), {
        "strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1], "output_padding": [1, 1]}),
    "k3s1p1": ((2, 6, 5, 20), 17, (3, 3), {"pads_begin": [1, 1], "pads_end": [1, 1]}),
    "k5s3": ((1, 4, 3, 18), 16, (5, 5), {"strides": [3, 3], "pads_begin": [2, 0], "pads_end": [1, 2]}),
    "dilated": ((1, 6, 5, 20), 16, (3, 3), {"strides": [2, 3], "dilations": [3, 2]}),
    "dilated by the stride": ((1, 4, 4, 20), 16, (4, 4), {"strides": [3, 3], "dilations": [2, 4]}),
    "grouped": ((1, 5, 4, 40), 60, (4, 4), {"strides": [2, 2], "groups": 2, "pads_begin": [1, 1]}),
    "depthwise": ((2, 5, 4, 24), 24, (4, 4), {"strides": [2, 2], "groups": 24, "pads_begin": [1, 1]}),
    "few channels": ((1, 5, 9, 3), 5, (4, 4), {"strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1]}),
    "one pixel": ((1, 1, 1, 40), 20, (4, 4), {"strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1]}),
    "1d": ((2, 9, 20), 12, (16,), {"strides": [8], "pads_begin": [4], "pads_end": [4]}),
    "3d": ((1, 3, 4, 3, 20), 18, (3, 2, 4), {"strides": [2, 1, 2], "pads_begin": [1, 0, 1], "pads_end": [0, 0, 1]}),
    "3d images": ((2, 3, 3, 3, 20), 18, (2, 2, 2), {"strides": [2, 2, 2]}),
}  # fmt: skip


@pytest.mark.parametrize("name", GEOMETRIES)
@pytest.mark.parametrize("weights_format", ["IOX", "XOI"])
def test_geometry(engine, name, weights_format):
    shape, oc, kernel, attrs = GEOMETRIES[name]

    def build(b):
        y = conv_transpose(b, b.input(shape), oc, kernel, bias=True, weights_format=weights_format, **attrs)
        b.op("ReLU", y)

    names = run(engine, build)
    kinds = {"f32_conv_depthwise_packed"} if name == "depthwise" else {"f32_conv_packed"}
    assert set(names) == {"f32_conv_simd_im2col"} | kinds or set(names) == {"f32_conv_blas_im2col"} | kinds
    strides = attrs.get("strides", [1])
    assert names.count(*kinds) == np.prod(strides)


@pytest.mark.parametrize("shape", [(2, 3, 390, 3), (1, 2, 2, 390, 3), (2, 3, 4, 5, 3)], ids=str)
@pytest.mark.parametrize("strides", [(2, 2), (2, 1), (1, 2)])
def test_few_channels_whose_results_no_line_walks(engine, shape, strides):
    ndim = len(shape) - 2
    run(engine, lambda b: conv_transpose(b, b.input(shape), 5, (3,) * ndim, strides=[*strides, 1][:ndim]))


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("later", [(), ("ReLU",), ("Add", "Sigmoid")], ids=str)
def test_results_that_meet_no_tap_of_both_formats(engine, data_format, bias, later):
    def build(b):
        x = b.input((2, 24, 5, 4) if data_format == "NCX" else (2, 5, 4, 24))
        y = conv_transpose(b, x, 20, (1, 2), bias=bias, strides=[2, 3], data_format=data_format)
        append(b, y, later, data_format)

    run(engine, build)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_geometry(engine, data):
    ndim = data.draw(st.integers(1, 3))
    draw = lambda low, high: [data.draw(st.integers(low, high)) for _ in range(ndim)]  # noqa: E731
    groups, ic, oc = (data.draw(st.integers(1, 2)), *(data.draw(st.sampled_from([1, 3, 20])) for _ in range(2)))
    src, kernel, strides, dilations = draw(1, 6), draw(1, 5), draw(1, 4), draw(1, 3)
    begin, end = draw(0, 2), draw(0, 2)
    extra = [data.draw(st.integers(0, max(s, d) - 1)) for s, d in zip(strides, dilations, strict=True)]
    reach = zip(src, kernel, strides, dilations, begin, end, extra, strict=True)
    if min(s * (n - 1) + d * (k - 1) + 1 - b - e + x for n, k, s, d, b, e, x in reach) < 1:
        begin = end = [0] * ndim
    attrs = {"strides": strides, "dilations": dilations, "pads_begin": begin, "pads_end": end,
             "output_padding": extra, "groups": groups}  # fmt: skip
    run(engine, lambda b: conv_transpose(b, b.input((2, *src, groups * ic)), groups * oc, kernel, bias=True, **attrs))


def decoder(b, *later, data_format="NXC", groups=1):
    """A transposed convolution of 24 channels with post-ops."""
    x = b.input((2, 5, 4, 24) if data_format == "NXC" else (2, 24, 5, 4))
    attrs = {"strides": [2, 2], "pads_begin": [1, 1], "pads_end": [1, 1], "data_format": data_format, "groups": groups}
    return append(b, conv_transpose(b, x, 24, (4, 4), bias=True, **attrs), later, data_format)


def append(b, y, later, data_format):
    """Post-ops of those kinds behind an image."""
    for kind in later:
        if kind == "BatchNormInference":
            channels = b.graph_shape(y)[-1 if data_format == "NXC" else 1]
            y = b.op(kind, y, *(b.input((channels,), property="constant") for _ in range(4)), epsilon=1e-5,
                     data_format=data_format)  # fmt: skip
        elif kind == "Add":
            y = b.op(kind, y, b.input(b.graph_shape(y)))
        else:
            y = b.op(kind, y)
    return y


CHAINS = [
    ("ReLU",), ("Add", "ReLU"), ("BatchNormInference", "ReLU"), ("BatchNormInference", "Add"), ("Sigmoid",),
    ("BatchNormInference", "Tanh"), ("Add", "Sigmoid", "Add"),
]  # fmt: skip


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("later", CHAINS, ids="+".join)
def test_post_ops(engine, later, groups):
    names = run(engine, lambda b: decoder(b, *later, groups=groups))
    has_region = len(set(later) - {"ReLU", "Add"} - ({"BatchNormInference"} if groups == 1 else set())) > 0
    assert names[-1] == ("f32_eltwise" if has_region else "f32_conv_packed")


def test_inside_a_region_of_images(engine):
    """A skip connection as in U-Net: joined without a copy."""

    def build(b):
        attrs = {"data_format": "NCX", "strides": [2, 2]}
        x = conv_transpose(b, b.input((1, 40, 4, 4)), 20, (2, 2), **attrs)
        other = b.op("ReLU", conv_transpose(b, b.input((1, 40, 4, 4)), 20, (2, 2), **attrs))
        conv_transpose(b, b.op("Concat", x, other, axis=1), 8, (2, 2), **attrs)

    names = run(engine, build)
    assert "any_concat" not in names
    assert names.count("any_copy") <= 3


@pytest.mark.parametrize(
    ("kernel", "attrs", "phases"),
    [
        ((1, 1), {"strides": [2, 2]}, 1),
        ((2, 3), {"strides": [3, 2], "pads_begin": [1, 0]}, 4),
        ((3, 2), {"strides": [4, 5], "groups": 2, "output_padding": [3, 4]}, 6),
        ((2, 2), {"strides": [4, 4], "dilations": [2, 2], "pads_begin": [1, 1], "pads_end": [0, 1]}, 4),
    ],
)
@pytest.mark.parametrize("later", ["", "ReLU", "Sigmoid"])
def test_results_that_meet_no_tap_are_the_bias(engine, kernel, attrs, phases, later):
    def build(b):
        y = conv_transpose(b, b.input((2, 3, 4, 20)), 16, kernel, bias=True, **attrs)
        if later:
            b.op(later, y)

    assert run(engine, build).count("f32_conv_packed") == phases


@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize(
    ("channels", "kernel"), [(1, "f32_conv_overlap"), (4, "f32_conv_overlap"), (5, "f32_conv_packed")]
)
def test_few_channels_are_summed_where_windows_overlap(engine, channels, kernel, data_format):
    shape = (2, 20, 6, 5) if data_format == "NCX" else (2, 6, 5, 20)

    def build(b):
        b.op("Sigmoid", conv_transpose(b, b.input(shape), channels, (3, 2), data_format=data_format, strides=[2, 2]))

    assert kernel in run(engine, build)


@pytest.mark.parametrize("weights_format", ["IOX", "XOI"])
@pytest.mark.parametrize("later", CHAINS, ids="+".join)
def test_post_ops_behind_sums_of_few_channels(engine, later, weights_format):
    def build(b):
        x = b.input((2, 30, 9))
        attrs = {"strides": [3], "dilations": [2], "pads_begin": [1], "pads_end": [2]}
        value = conv_transpose(b, x, 2, (4,), bias=True, data_format="NCX", weights_format=weights_format, **attrs)
        append(b, value, later, "NCX")

    run(engine, build)


def test_volumes_of_a_batch_whose_axes_no_stride_joins_keep_the_plain_kernel(engine):
    attrs = {"strides": [2, 3, 2], "pads_begin": [0, 1, 1], "pads_end": [0, 0, 1]}
    names = run(engine, lambda b: conv_transpose(b, b.input((2, 2, 4, 4, 4)), 6, (3, 4, 2), bias=True, **attrs))
    assert "f32_conv_packed" not in names


@pytest.mark.parametrize(
    ("sizes", "geometry"), [((5, 10, 2), (2, 1, 0)), ((5, 10, 4), (2, 1, 1)), ((7, 40, 9), (5, 3, 4))]
)
def test_phases_take_every_pair_of_result_and_tap_once(sizes, geometry):
    src, dst, kernel = sizes
    stride, dilation, pad = geometry
    met = set()
    for start in range(stride):
        axis = _Axis.find(start, sizes, stride, dilation, pad)
        for j in range(axis.count):
            for m in range(axis.taps):
                tap = axis.first + (axis.taps - 1 - m) * axis.step
                i = j - axis.begin + m * axis.dilation
                if 0 <= i < src:
                    met.add((start + j * stride, tap, i))
    wanted = {(i * stride + k * dilation - pad, k, i) for i in range(src) for k in range(kernel)}
    assert met == {item for item in wanted if 0 <= item[0] < dst}


@pytest.mark.parametrize(("ic", "oc", "groups"), [(1, 2, 1), (3, 16, 1), (16, 40, 1), (8, 8, 8)])
@pytest.mark.parametrize("size", [(0,), (3, 0), (0, 2, 3)])
@pytest.mark.parametrize("stride", [1, 2])
def test_an_image_without_pixels_gives_the_bias(engine, size, ic, oc, groups, stride):
    """Windows reach beyond the source, so that there are results."""

    def build(b):
        x = b.input((2, *size, ic))
        conv_transpose(b, x, oc, [3] * len(size), groups=groups, bias=True, strides=[stride] * len(size))

    run(engine, build)
