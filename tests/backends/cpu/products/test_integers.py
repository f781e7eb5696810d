"""Quantised products accumulate exactly, whatever the number of terms."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cases.graphs import GraphBuilder
from tests.helpers.partitions import run_partitions, run_reference

IMAGE = {"strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1], "data_format": "NCX"}


def dequantized(g, shape, dtype, *, zps=(0,), scales=(1.0,), axis=0):
    own = {"qtype": "per_tensor"} if len(scales) == 1 else {"qtype": "per_channel", "axis": axis}
    return g.op("Dequantize", g.input(shape, dtype), dtype="f32", scales=list(scales), zps=list(zps), **own)


def large(g, seed=0):
    """Values near the upper end of their types, so that sums are as large as they get."""
    rng = np.random.default_rng(seed)
    low = {"u8": 200, "s8": 90}
    high = {"u8": 256, "s8": 128}
    return {
        lt.id: rng.integers(low[lt.dtype], high[lt.dtype], lt.shape).astype(lt.dtype.numpy) for lt in g.inputs
    }  # fmt: skip


def check_exact(build, engine):
    """Whether the graph's results are bit for bit those of the reference; returns the names of the steps."""
    g = GraphBuilder()
    last = build(g)
    [partition] = g.finish()
    values = large(g)
    wanted = run_reference(g.graph.ops, values)[last.id]
    np.testing.assert_array_equal(run_partitions([partition], values, engine)[last.id], wanted)
    with partition.compile(partition.input_ports, [last.replace(shape=wanted.shape)], engine) as compiled:
        return compiled.implementations


@pytest.mark.parametrize("k", [700, 5000])
@pytest.mark.parametrize(("a", "b"), [("u8", "s8"), ("s8", "s8"), ("u8", "u8"), ("s8", "u8")])
@pytest.mark.parametrize("zps", [(0, 0), (3, -5)])
def test_matmul(engine, k, a, b, zps):
    def build(g):
        left = dequantized(g, (3, k), a, zps=zps[:1], scales=(0.5,))
        return g.op("MatMul", left, dequantized(g, (k, 7), b, zps=(abs(zps[1]),) if b == "u8" else zps[1:]))

    names = check_exact(build, engine)
    assert not any("Dequantize" in name for name in names)


def test_matmul_with_a_scale_a_column_and_post_ops(engine):
    def build(g):
        scales = [2.0 ** -(n % 4) for n in range(6)]
        left = dequantized(g, (2, 5, 3000), "u8", zps=(7,), scales=(0.25,))
        right = dequantized(g, (6, 3000), "s8", scales=scales, zps=range(6), axis=0)
        y = g.op("ReLU", g.op("MatMul", left, right, transpose_b=True))
        return g.op("Quantize", y, dtype="u8", scales=[2.0**16], zps=[3])

    check_exact(build, engine)


@pytest.mark.parametrize("kind", ["Convolution", "ConvTranspose"])
@pytest.mark.parametrize("groups", [1, 2])
def test_convolution(engine, kind, groups):
    def build(g):
        shape = (6, 300 // groups, 3, 3) if kind == "Convolution" else (300, 6 // groups, 3, 3)
        scales, axis = [2.0 ** -(n % 4) for n in range(6)], 0 if kind == "Convolution" else 1
        src = dequantized(g, (1, 300, 5, 6), "u8", zps=(2,), scales=(0.5,))
        weights = dequantized(g, shape, "s8", scales=scales, zps=[1] * len(scales), axis=axis)
        own = IMAGE | {"groups": groups, "weights_format": "OIX" if kind == "Convolution" else "IOX"}
        return g.op(kind, src, weights, **own)

    check_exact(build, engine)


def test_depthwise_convolution_with_many_taps(engine):
    def build(g):
        src = dequantized(g, (1, 40, 40, 3), "u8")
        weights = dequantized(g, (25, 25, 1, 3), "s8", scales=(0.5, 1.0, 2.0), zps=(0, 0, 0), axis=3)
        own = IMAGE | {"groups": 3, "data_format": "NXC", "weights_format": "XIO"}
        return g.op("Convolution", src, weights, **own)

    check_exact(build, engine)


@pytest.mark.parametrize("case", ["scale along the sum", "far zero point", "read twice", "one operand"])
def test_what_is_multiplied_as_floats(engine, case):
    g = GraphBuilder()
    far = (2**20,) if case == "far zero point" else (0,)
    left = dequantized(g, (4, 32), "u8", zps=far)
    if case == "one operand":
        right = g.input((32, 5), "f32")
    else:
        along = [1.0, 2.0] * 16 if case == "scale along the sum" else (1.0,)
        right = dequantized(g, (32, 5), "s8", scales=along, zps=[0] * len(along), axis=0)
    y = g.op("MatMul", left, right)
    if case == "read twice":
        g.op("Exp", right)
    partitions = g.finish()
    values = {lt.id: np.ones(lt.shape, lt.dtype.numpy) for lt in g.inputs}
    wanted = run_reference(g.graph.ops, values)[y.id]
    np.testing.assert_allclose(run_partitions(partitions, values, engine)[y.id], wanted, rtol=1e-6)


def test_halves_round_to_even(engine):
    g = GraphBuilder()
    left, right = (dequantized(g, shape, "s8") for shape in ((1, 1), (1, 8)))
    y = g.op("Quantize", g.op("MatMul", left, right), dtype="s8", scales=[2.0], zps=[0])
    [partition] = g.finish()
    values = {0: np.ones((1, 1), np.int8), 2: np.arange(-4, 4, dtype=np.int8).reshape(1, 8)}
    values = dict(zip((lt.id for lt in g.inputs), values.values(), strict=True))
    assert run_partitions([partition], values, engine)[y.id].tolist() == [[-2, -2, -1, 0, 0, 0, 1, 2]]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_random_products(engine, data):
    m, k, n = (data.draw(st.integers(0, top)) for top in (9, 900, 40))
    types = [data.draw(st.sampled_from(["u8", "s8"])) for _ in range(2)]
    zps = [data.draw(st.integers(0, 100)) for _ in range(2)]
    per_channel = data.draw(st.booleans()) and n > 1

    def build(g):
        scales = [2.0 ** -(c % 5) for c in range(n)] if per_channel else [0.5]
        left = dequantized(g, (m, k), types[0], zps=zps[:1])
        right = dequantized(g, (k, n), types[1], scales=scales, zps=zps[1:] * len(scales), axis=1)
        return g.op("MatMul", left, right)

    check_exact(build, engine)


@pytest.mark.parametrize("form", ["IOX", "XOI"])
@pytest.mark.parametrize("kind", ["Dequantize", "Quantize"])
def test_a_scale_for_each_group_and_channel(engine, form, kind):
    """What ConvTranspose's weights have, also where no product follows."""
    shape, axis = ((4, 3, 2, 2), 1) if form == "IOX" else ((2, 2, 3, 4), 2)
    g = GraphBuilder()
    own = {"scales": [2.0**n for n in range(6)], "zps": list(range(6)), "qtype": "per_channel", "axis": axis}
    source, dtype = ("s8", "f32") if kind == "Dequantize" else ("f32", "s8")
    x = g.op(kind, g.input(shape, source), dtype=dtype, **own)
    [partition] = g.finish()
    values = {g.inputs[0].id: np.arange(48).reshape(shape).astype(g.inputs[0].dtype.numpy)}
    result = run_partitions([partition], values, engine)[x.id]
    np.testing.assert_array_equal(result, run_reference(g.graph.ops, values)[x.id])
    if kind == "Dequantize":  # scale 2 ** (3 group + channel), zero point likewise; groups are halves of the inputs
        index = (3, 1, 0, 1) if form == "IOX" else (0, 1, 1, 3)
        assert result[index] == (values[g.inputs[0].id][index] - 4) * 2.0**4
