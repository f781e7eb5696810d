"""Single ops on what lies at the edges: no elements, rank 0 to 6, broadcast, permuted and padded layouts, NaN, Inf."""

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import graphpool as gp
from tests.cases.graphs import GraphBuilder
from tests.cases.workloads import UNARY_ATTRS
from tests.helpers.partitions import assert_close, run_reference

FLOATS = ["f32", "bf16", "f16"]
BINARY = ["Add", "Subtract", "Multiply", "Divide", "Maximum", "Minimum", "SquaredDifference"]
SPECIAL = [np.nan, np.inf, -np.inf, 0.0, -0.0]
REDUCTIONS = ["ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"]


dims = st.integers(0, 4)
sizes = st.integers(1, 4)
shapes = st.lists(dims, max_size=6)


@st.composite
def broadcast_pair(draw):
    """Two shapes that broadcast to one."""
    whole = draw(shapes)
    pair = []
    for _ in range(2):
        cut = draw(st.integers(0, len(whole)))
        pair.append([1 if draw(st.booleans()) else dim for dim in whole[cut:]])
    return pair


def lay_out(draw, shape):
    """Strides in elements: axes in some order, with a gap behind some."""
    strides, step = [0] * len(shape), 1
    for axis in draw(st.permutations(range(len(shape)))):
        strides[axis] = step
        step *= max(shape[axis], 1) + draw(st.integers(0, 2))
    return tuple(strides)


def place(array, strides):
    """The content with these strides, in memory that holds something else between."""
    room = np.full(1 + sum((n - 1) * s for n, s in zip(array.shape, strides, strict=True) if n), 77, array.dtype)
    view = np.lib.stride_tricks.as_strided(room, array.shape, [s * array.itemsize for s in strides])
    if array.size:
        view[...] = array
    return view


def content(draw, lt, rng, *, special=False, low=-2.0):
    array = np.asarray(rng.uniform(low, 2.0, lt.shape))
    if special and array.size:
        flat = array.reshape(-1)
        for value in draw(st.lists(st.sampled_from(SPECIAL), max_size=4)):
            flat[draw(st.integers(0, flat.size - 1))] = value
    return array.astype(lt.dtype.numpy)


def check(engine, data, builder, *, special=False, low=-2.0, scale=16.0, given=None):
    """Run a builder's only partition with layouts of its own, and compare with the reference."""
    [partition] = builder.finish()
    assert partition.backend_name == "cpu"
    rng = np.random.default_rng(data.draw(st.integers(0, 99)))
    values = {
        lt.id: (given or {}).get(lt.id, content(data.draw, lt, rng, special=special, low=low)) for lt in builder.inputs
    }
    with np.errstate(all="ignore"):
        expected = run_reference(builder.graph.ops, values)
    inputs = [lt.replace(strides=lay_out(data.draw, lt.shape)) for lt in partition.input_ports]
    outputs = [
        lt.replace(shape=expected[lt.id].shape, strides=lay_out(data.draw, expected[lt.id].shape))
        for lt in partition.output_ports
    ]
    with partition.compile(inputs, outputs, engine) as compiled:
        tensors = [gp.Tensor(lt, engine, place(values[lt.id], lt.strides)) for lt in inputs]
        results = [gp.Tensor(compiled.query_logical_tensor(lt.id), engine) for lt in outputs]
        compiled.execute(gp.Stream(engine), tensors, results)
    for lt, result in zip(outputs, results, strict=True):
        with np.errstate(all="ignore"):
            assert_close(np.array(result.numpy()), expected[lt.id], lt.dtype, scale=scale)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(UNARY_ATTRS)), dtype=st.sampled_from(FLOATS), shape=shapes)
def test_unary(engine, data, kind, dtype, shape):
    g = GraphBuilder()
    g.op(kind, g.input(shape, dtype), **UNARY_ATTRS[kind])
    check(engine, data, g, special=kind != "Pow", low=0.1 if kind in ("Log", "Sqrt", "Pow") else -2.0)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), kind=st.sampled_from(BINARY), dtype=st.sampled_from(FLOATS), pair=broadcast_pair())
def test_binary(engine, data, kind, dtype, pair):
    g = GraphBuilder()
    g.op(kind, g.input(pair[0], dtype), g.input(pair[1], dtype))
    check(engine, data, g, special=True)


@settings(max_examples=60, deadline=None)
@given(data=st.data(), pair=broadcast_pair())
def test_conditions(engine, data, pair):
    g = GraphBuilder()
    a, b = g.input(pair[0]), g.input(pair[1])
    g.op("Select", g.op("GreaterEqual", a, b, dtype="boolean"), a, b, dtype="f32")
    check(engine, data, g)


@settings(max_examples=100, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(FLOATS), a=st.booleans(), b=st.booleans())
def test_matmul(engine, data, dtype, a, b):
    m, k, n = (data.draw(st.integers(0, 9)) for _ in range(3))
    batch = data.draw(broadcast_pair().filter(lambda pair: max(map(len, pair)) < 5))
    g = GraphBuilder()
    left, right = [*batch[0], *((k, m) if a else (m, k))], [*batch[1], *((n, k) if b else (k, n))]
    g.op("MatMul", g.input(left, dtype), g.input(right, dtype), transpose_a=a, transpose_b=b)
    check(engine, data, g, special=dtype == "f32")


@settings(max_examples=80, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(FLOATS), spatial=st.integers(1, 3), last=st.booleans())
def test_windows(engine, data, dtype, spatial, last):
    kind = data.draw(st.sampled_from(["Convolution", "ConvTranspose", "AvgPool", "MaxPool"]))
    image, kernel = [data.draw(st.integers(3, 5)) for _ in range(spatial)], [data.draw(sizes) for _ in range(spatial)]
    batch, channels, out = data.draw(dims), data.draw(sizes), data.draw(sizes)
    ones = [1] * spatial
    own = {"strides": [data.draw(st.integers(1, 2)) for _ in ones], "pads_begin": ones, "pads_end": ones,
           "data_format": "NXC" if last else "NCX"}  # fmt: skip
    g = GraphBuilder()
    x = g.input([batch, *image, channels] if last else [batch, channels, *image], dtype)
    if kind in ("AvgPool", "MaxPool"):
        kernel = [min(size, 3) + 1 for size in kernel]
        g.op(kind, x, kernel=kernel, **own, **({"exclude_pad": True} if kind == "AvgPool" else {}))
    else:
        form = {"weights_format": "OIX" if kind == "Convolution" else "IOX"}
        pair = (out, channels) if kind == "Convolution" else (channels, out)
        g.op(kind, x, g.input([*pair, *kernel], dtype), dilations=ones, **own, **form)
    check(engine, data, g)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(FLOATS), shape=st.lists(dims, min_size=1, max_size=6))
def test_norms(engine, data, dtype, shape):
    kind = data.draw(st.sampled_from(["LayerNorm", "RMSNorm", "SoftMax", "LogSoftmax"]))
    axis = data.draw(st.integers(-len(shape), len(shape) - 1))
    g = GraphBuilder()
    x = g.input(shape, dtype)
    if kind in ("SoftMax", "LogSoftmax"):
        g.op(kind, x, axis=axis)
    else:
        normal = shape[axis % len(shape) :]
        params = [g.input(normal[data.draw(st.integers(0, len(normal))) :]) for _ in range(1 + (kind == "LayerNorm"))]
        own = {"keep_stats": False} if kind == "LayerNorm" else {}
        g.op(kind, x, *params, begin_norm_axis=axis, **own)
    check(engine, data, g, special=kind == "SoftMax" and dtype == "f32")


@settings(max_examples=40, deadline=None)
@given(data=st.data(), shape=st.lists(dims, min_size=2, max_size=5))
def test_statistics(engine, data, shape):
    """Statistics over no elements are results too."""
    kind = data.draw(st.sampled_from(["LayerNorm", "SoftMax", "BatchNormForwardTraining"]))
    g = GraphBuilder()
    x = g.input(shape)
    if kind == "SoftMax":
        g.op(kind, x, n=2, dtype=["f32"] * 2, axis=data.draw(st.integers(0, len(shape) - 1)))
    elif kind == "LayerNorm":
        g.op(kind, x, n=3, dtype=["f32"] * 3, keep_stats=True, use_affine=False)
    else:
        moments = [g.input(shape[-1:]) for _ in range(2)]
        g.op(kind, x, *moments, n=5, dtype=["f32"] * 5, epsilon=0.5)
    check(engine, data, g)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(FLOATS), kind=st.sampled_from(REDUCTIONS))
def test_reductions(engine, data, dtype, kind):
    least = 1 if kind in ("ReduceMax", "ReduceMin") else 0
    shape = data.draw(st.lists(st.integers(least, 4), min_size=1, max_size=6))
    axes = data.draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    g = GraphBuilder()
    g.op(kind, g.input(shape, dtype), axes=axes, keep_dims=data.draw(st.booleans()))
    check(engine, data, g, special=dtype == "f32" and kind != "ReduceL2")


@settings(max_examples=80, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(FLOATS), shape=st.lists(dims, min_size=1, max_size=6))
def test_moves(engine, data, dtype, shape):
    kind = data.draw(st.sampled_from(["StaticTranspose", "StaticReshape", "Reorder", "Concat"]))
    g = GraphBuilder()
    x = g.input(shape, dtype)
    if kind == "StaticTranspose":
        g.op(kind, x, order=data.draw(st.permutations(range(len(shape)))))
    elif kind == "StaticReshape":
        g.op(
            kind,
            x,
            shape=data.draw(st.sampled_from([[math.prod(shape)], [1, math.prod(shape), 1]])),
            special_zero=False,
        )
    elif kind == "Concat":
        axis = data.draw(st.integers(0, len(shape) - 1))
        other = [data.draw(dims) if k == axis else dim for k, dim in enumerate(shape)]
        g.op(kind, x, g.input(other, dtype), axis=axis)
    else:
        g.op(kind, x)
    check(engine, data, g, special=True)


@settings(max_examples=80, deadline=None)
@given(data=st.data(), dtype=st.sampled_from(["u8", "s8"]), shape=st.lists(dims, min_size=1, max_size=6))
def test_quantisation(engine, data, dtype, shape):
    kind = data.draw(st.sampled_from(["Quantize", "Dequantize", "DynamicQuantize", "DynamicDequantize"]))
    axis = data.draw(st.integers(0, len(shape) - 1))
    count = shape[axis] if data.draw(st.booleans()) and shape[axis] else 1
    own = {"qtype": "per_channel" if count == shape[axis] else "per_tensor", "axis": axis}
    source, result = ("f32", dtype) if "Quant" in kind else (dtype, "f32")
    g = GraphBuilder()
    x, given = g.input(shape, source), {}
    if source == dtype:
        given[x.id] = np.random.default_rng(0).integers(0, 127, shape).astype(x.dtype.numpy)
    if kind.startswith("Dynamic"):
        scales, zps = g.input((count,)), g.input((count,), "s32")
        given |= {scales.id: np.full(count, 0.5, np.float32), zps.id: np.full(count, 3, np.int32)}
        g.op(kind, x, scales, zps, dtype=result, **own)
    else:
        g.op(kind, x, dtype=result, scales=[0.5 + k for k in range(count)], zps=list(range(count)), **own)
    check(engine, data, g, given=given, low=-300.0, scale=1.0)


def test_a_scalar_of_every_kind_of_layout(engine):
    g = GraphBuilder()
    g.op("Multiply", g.op("Exp", g.input(())), g.input(()))
    [partition] = g.finish()
    values = {lt.id: np.asarray(0.5, np.float32) for lt in g.inputs}
    expected = run_reference(g.graph.ops, values)
    [out] = partition.output_ports
    with partition.compile(partition.input_ports, [out.replace(shape=())], engine) as compiled:
        result = gp.Tensor(compiled.query_logical_tensor(out.id), engine)
        compiled.execute(gp.Stream(engine), [gp.Tensor(lt, engine, values[lt.id]) for lt in g.inputs], [result])
    assert_close(np.array(result.numpy()), expected[out.id], out.dtype)
