"""int8 GEMM and convolution: the reference's results bit for bit, nothing but bytes in memory."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import graphpool as gp
from graphpool.cache import constant_tensor_cache
from tests.cases.graphs import GraphBuilder
from tests.helpers.partitions import run_partitions, run_reference

WINDOW = {"strides": [1, 1], "pads_begin": [1, 1], "pads_end": [1, 1], "dilations": [1, 1]}


def dequantize(g, x, scale=0.5, zp=0, **more):
    scales = scale if isinstance(scale, list) else [scale]
    return g.op("Dequantize", x, dtype="f32", scales=scales, zps=[zp] * len(scales), **more)


def quantize(g, x, scale=0.5, zp=0, dtype="u8", **more):
    return g.op("Quantize", x, dtype=dtype, scales=[scale], zps=[zp], **more)


def weights(g, shape, axis, *, dtype="s8", zp=0):
    """Constant weights with a scale, and perhaps a zero point, for each index of an axis."""
    scales = [2.0 ** -(n % 4 + 3) for n in range(shape[axis])]
    zps = [(n * 37 + 5) % 128 for n in range(shape[axis])] if zp == "each" else [zp] * shape[axis]
    own = {"scales": scales, "zps": zps, "qtype": "per_channel", "axis": axis}
    return g.op("Dequantize", g.input(shape, dtype, property="constant"), dtype="f32", **own)


def convolution(g, x, oc, *, kernel=3, groups=1, bias=False, data_format="NCX", zp=0, dtype="s8", **attrs):
    shape = g.graph_shape(x)
    ic = shape[1 if data_format == "NCX" else -1]
    w = weights(g, (oc, ic // groups, kernel, kernel), 0, dtype=dtype, zp=zp)
    operands = [x, w, *([g.input((oc,), property="constant")] if bias else [])]
    pads = {} if kernel > 1 else {"pads_begin": [0, 0], "pads_end": [0, 0]}
    own = WINDOW | pads | {"groups": groups, "data_format": data_format, "weights_format": "OIX"} | attrs
    return g.op("Convolution", *operands, **own)


def there_and_back(g, x, scale=0.5, zp=128, **more):
    return dequantize(g, quantize(g, x, scale, zp, **more), scale, zp)


def check(build, engine, *, partitions=None):
    """Whether the graph's results are the reference's, bit for bit; returns the names of the steps.

    Numbers are such that no float is rounded. `partitions`: compile what the graph falls apart into as one.
    """
    g = GraphBuilder()
    build(g)
    found = g.finish()
    assert partitions is None or len(found) == partitions
    merged = g.graph.merge_partitions(found)
    rng = np.random.default_rng(0)
    values = {lt.id: content(lt, rng) for lt in g.inputs}
    wanted = run_reference(g.graph.ops, values)
    results = run_partitions([merged], values, engine)
    for port in merged.output_ports:
        np.testing.assert_array_equal(results[port.id], wanted[port.id])
    inputs = [lt.replace(shape=values[lt.id].shape) for lt in merged.input_ports]
    outputs = [lt.replace(shape=wanted[lt.id].shape) for lt in merged.output_ports]
    with merged.compile(inputs, outputs, engine) as compiled:
        return [name for name in compiled.implementations if "im2col" not in name and "matmul_blas" not in name]


def content(lt, rng):
    if lt.dtype.value == "f32":
        return rng.integers(-8, 8, lt.shape).astype(np.float32) / 8
    low, high = {"u8": (0, 256), "s8": (-128, 128)}[lt.dtype.value]
    return rng.integers(low, high, lt.shape).astype(lt.dtype.numpy)


def kept(names):
    """The steps that run while the cache keeps the weights; each stands twice, for runs that fill a temporary too."""
    found = [name for name in names if name.startswith("s8_") and "_pack:" not in name]
    assert found[::2] == found[1::2]
    return found[::2]


MATMULS = {
    "plain": lambda g, y: y,
    "bias": lambda g, y: g.op("Add", y, g.input((40,), property="constant")),
    "requantised": lambda g, y: quantize(g, y, 0.25, 3),
    "rounds first": lambda g, y: quantize(g, y, 0.25, 3, rounds_first=True),
    "relu, s8": lambda g, y: quantize(g, g.op("ReLU", y), 2.0, -3, "s8"),
    "clamp": lambda g, y: g.op("Clamp", y, min=-3.0, max=5.0),
    "there and back": lambda g, y: there_and_back(g, y, 0.5, 128),
    "bias behind": lambda g, y: quantize(g, g.op("Add", there_and_back(g, y), g.input((40,))), 0.5, 7),
    "residual": lambda g, y: quantize(g, g.op("Add", y, dequantize(g, g.input((2, 9, 40), "s8"), 0.25, 5)), 1.0, 9),
    "f32 residual": lambda g, y: g.op("ReLU", g.op("Add", there_and_back(g, y), g.input((2, 9, 40)))),
    "table": lambda g, y: g.op("Abs", there_and_back(g, y)),
    "scale a column": lambda g, y: g.op(
        "Quantize", y, dtype="u8", scales=[2.0 ** (n % 3) for n in range(40)], qtype="per_channel", axis=2
    ),
}


@pytest.mark.parametrize("tail", MATMULS)
@pytest.mark.parametrize("a", ["u8", "s8"])
def test_matmul(engine, tail, a):
    def build(g):
        left = dequantize(g, g.input((2, 9, 33), a), 0.5, 11)
        MATMULS[tail](g, g.op("MatMul", left, weights(g, (33, 40), 1)))

    assert len(kept(check(build, engine))) == 1


def dynamic(g, shape, dtype, *, has_zero=True):
    """An input of bytes whose scale and zero point are inputs too."""
    numbers = [g.input((1,)), *([g.input((1,), dtype)] if has_zero else [])]
    return g.op("DynamicDequantize", g.input(shape, dtype), *numbers, dtype="f32")


@pytest.mark.parametrize("tail", MATMULS)
@pytest.mark.parametrize("a", ["u8", "s8"])
@pytest.mark.parametrize("has_zero", [True, False])
def test_numbers_of_the_activations_that_the_run_gives(engine, tail, a, has_zero):
    def build(g):
        MATMULS[tail](g, g.op("MatMul", dynamic(g, (2, 9, 33), a, has_zero=has_zero), weights(g, (33, 40), 1)))

    assert len(kept(check(build, engine))) == 1


@pytest.mark.parametrize(("ic", "groups"), [(20, 1), (24, 2), (24, 24)])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
def test_images_whose_numbers_the_run_gives(engine, ic, groups, data_format):
    def build(g):
        shape = (2, ic, 7, 6) if data_format == "NCX" else (2, 7, 6, ic)
        y = convolution(g, dynamic(g, shape, "u8"), 24, groups=groups, bias=True, data_format=data_format)
        quantize(g, g.op("ReLU", y), 2.0, 9)

    assert len(kept(check(build, engine))) == 1


def test_the_same_for_any_number_of_threads_whatever_the_cache_keeps():
    g = GraphBuilder()
    x, scale, zero = g.op("DynamicQuantizeLinear", g.input((70, 333)), dtype=["u8", "f32", "u8"], n=3)
    left = g.op("DynamicDequantize", x, scale, zero, dtype="f32")
    g.op("GELU", g.op("Add", g.op("MatMul", left, weights(g, (333, 400), 1)), g.input((400,))), mode="gelu_erf")
    merged, rng = g.graph.merge_partitions(g.finish()), np.random.default_rng(0)
    values = {lt.id: rng.normal(size=lt.shape).astype("f4") if lt.dtype.value == "f32" else content(lt, rng)
              for lt in g.inputs}  # fmt: skip
    cache, found = constant_tensor_cache("cpu"), []
    try:
        for capacity in (None, 0):
            cache.set_capacity(capacity)
            for threads in (1, 2, 3):
                with gp.Engine(threads=threads) as own:
                    found.append(run_partitions([merged], values, own)[merged.output_ports[0].id])
    finally:
        cache.set_capacity(None)
    for other in found[1:]:
        np.testing.assert_array_equal(found[0], other)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize(
    ("dtype", "zp"), [("s8", 0), ("s8", -7), ("u8", 128), ("u8", 3), ("s8", "each"), ("u8", "each")]
)
def test_zero_points_of_weights(engine, transpose, dtype, zp):
    def build(g):
        left = dequantize(g, g.input((9, 33), "u8"), 0.5, 200)
        shape, axis = ((40, 33), 0) if transpose else ((33, 40), 1)
        w = weights(g, shape, axis, dtype=dtype, zp=zp)
        quantize(g, g.op("MatMul", left, w, transpose_b=transpose), 0.5, 100)

    assert len(kept(check(build, engine))) == 1


@pytest.mark.parametrize("case", ["deep", "far zero point", "numbers of the run"])
def test_what_bytes_cannot_do_is_done_in_f32(engine, case):
    def build(g):
        k = 2**15 + 4 if case == "deep" else 12
        far = 300 if case == "far zero point" else 0
        left = dequantize(g, g.input((2, k), "u8"), 0.5, far)
        own = {"scales": [0.5, 0.25], "qtype": "per_channel", "axis": 1}
        w = g.op("Dequantize", g.input((k, 2), "s8", property="constant"), dtype="f32", **own)
        right = dynamic(g, (k, 2), "s8") if case == "numbers of the run" else w
        quantize(g, g.op("MatMul", left, right), 2.0**16, 100)

    assert kept(check(build, engine)) == []


def without_constants(names):
    """The products of bytes among steps none of which depends on what the cache keeps."""
    return [name for name in names if name.startswith("s8_matmul")]


SECOND_OPERANDS = {
    "one matrix": ((2, 3, 9, 33), (33, 40)),
    "a batch": ((2, 3, 9, 33), (2, 3, 33, 40)),
    "shared by heads": ((2, 3, 9, 33), (2, 1, 33, 40)),
    "shared by the batch": ((2, 3, 9, 33), (3, 33, 40)),
    "rows that share": ((5, 1, 33), (5, 33, 40)),
    "the first is shared": ((9, 33), (4, 33, 40)),
    "a vector": ((9, 33), (33,)),
}


@pytest.mark.parametrize("case", SECOND_OPERANDS)
@pytest.mark.parametrize(
    ("types", "zps"), [("u8 u8", (0, 0)), ("u8 u8", (255, 255)), ("u8 u8", (7, 128)), ("u8 s8", (200, -128)),
                       ("s8 s8", (-128, 127)), ("s8 u8", (127, 3))],
)  # fmt: skip
@pytest.mark.parametrize("kind", ["variable", "constant"])
def test_products_of_two_computed_operands(engine, case, types, zps, kind):
    a, b = types.split()

    def build(g):
        left, right = SECOND_OPERANDS[case]
        y = g.op(
            "MatMul",
            dequantize(g, g.input(left, a), 0.5, zps[0]),
            dequantize(g, g.input(right, b, property=kind), 0.25, zps[1]),
        )
        quantize(g, y, 512.0, 100)

    names = check(build, engine)
    assert len(without_constants(names) if kind == "variable" else kept(names)) == 1


@pytest.mark.parametrize("zp", ["each", -7])
def test_zero_points_and_scales_of_columns_that_are_computed(engine, zp):
    def build(g):
        zps = [(n * 37) % 256 - 128 for n in range(40)] if zp == "each" else [zp] * 40
        scales = [2.0 ** -(n % 4) for n in range(40)]
        own = {"scales": scales, "zps": zps, "qtype": "per_channel", "axis": 2}
        right = g.op("Dequantize", g.input((3, 33, 40), "s8"), dtype="f32", **own)
        g.op("MatMul", dequantize(g, g.input((3, 9, 33), "u8"), 0.5, 200), right)

    assert len(without_constants(check(build, engine))) == 1


def attention_of_bytes(g, batch, words, heads, depth):
    """Attention between Quantize and Dequantize ops, as ONNX Runtime's static quantisation writes it."""
    hidden, perm = heads * depth, [0, 2, 1, 3]

    def operand(order, zp):
        y = g.op("MatMul", dequantize(g, x, 0.125, 120), weights(g, (hidden, hidden), 1))
        y = g.op("Add", there_and_back(g, y, 2.0, 100), g.input((hidden,), property="constant"))
        y = g.op("StaticReshape", y, shape=[batch, words, heads, depth], special_zero=False)
        return there_and_back(g, g.op("StaticTranspose", y, order=order), 2.0, zp)

    x = g.input((batch, words, hidden), "u8")
    q, k, v = operand(perm, 128), operand([0, 2, 3, 1], 93), operand(perm, 140)
    scores = g.op("Add", there_and_back(g, g.op("MatMul", q, k), 64.0, 128), g.input((batch, 1, 1, words)))
    y = there_and_back(g, g.op("MatMul", there_and_back(g, scores, 32.0, 90), v), 256.0, 128)
    y = g.op("StaticReshape", g.op("StaticTranspose", y, order=perm), shape=[batch, words, hidden], special_zero=False)
    quantize(g, y, 256.0, 128)


def test_attention_of_bytes_is_multiplied_as_bytes(engine):
    names = check(lambda g: attention_of_bytes(g, 2, 13, 3, 20), engine)
    assert len(without_constants(names)) == 2 * 3 + 2  # the projections stand twice
    # heads are read where projections wrote them: nothing between is stored as floats
    assert sum(name.endswith("eltwise(Quantize+Dequantize+Add+Quantize)") for name in names) == 2 * 3 + 1  # the scores
    assert not [
        name for name in names if name.startswith(("f32_matmul", "f32_eltwise")) and name.endswith("(Quantize)")
    ]


CONVOLUTIONS = {
    "plain": {},
    "strided": {"strides": [2, 2]},
    "dilated": {"dilations": [2, 2]},
    "1x1": {"kernel": 1, "data_format": "NXC"},
    "grouped": {"groups": 2},
    "bias": {"bias": True},
    "unsigned weights": {"dtype": "u8", "zp": 128},
    "zero point": {"dtype": "u8", "zp": 3, "bias": True},
    "zero points": {"dtype": "u8", "zp": "each", "bias": True},
    "zero points, 1x1": {"zp": "each", "kernel": 1, "data_format": "NXC"},
    "zero points, grouped": {"zp": "each", "groups": 2},
    "depthwise": {"groups": 16, "oc": 16},
    "depthwise, zero point": {"groups": 16, "oc": 16, "dtype": "u8", "zp": 100, "bias": True},
    "depthwise, zero points": {"groups": 16, "oc": 16, "dtype": "u8", "zp": "each", "bias": True},
    "channels last": {"data_format": "NXC"},
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("dtype", ["u8", "s8"])
def test_convolution(engine, case, dtype):
    def build(g):
        shape = (2, 9, 8, 16) if "data_format" in CONVOLUTIONS[case] else (2, 16, 9, 8)
        x = dequantize(g, g.input(shape, dtype), 0.5, 11)
        own = {"oc": 34} | CONVOLUTIONS[case]
        quantize(g, g.op("ReLU", convolution(g, x, **own)), 0.25, 3)

    assert len(kept(check(build, engine, partitions=1))) == 1


def bottleneck(g, x, channels):
    """A block of a residual network in the QDQ form: x is quantised, and so is what it returns."""
    y = quantize(g, g.op("ReLU", convolution(g, dequantize(g, x, 0.5, 3), 16, kernel=1, bias=True)), 0.5, 3)
    y = quantize(g, convolution(g, dequantize(g, y, 0.5, 3), 16), 4.0, 100, rounds_first=True)
    y = there_and_back(g, convolution(g, dequantize(g, y, 4.0, 100), channels, kernel=1), 2.0, 128)
    return quantize(g, g.op("ReLU", g.op("Add", y, dequantize(g, x, 0.5, 3))), 2.0, 3)


def test_images_between_convolutions_are_bytes(engine):
    def build(g):
        x = quantize(g, convolution(g, dequantize(g, g.input((1, 3, 24, 24), "u8"), 0.5, 3), 24), 0.5, 3)
        pool = {"kernel": [3, 3], "rounding_type": "floor"} | {k: v for k, v in WINDOW.items() if k != "dilations"}
        x = quantize(g, g.op("MaxPool", dequantize(g, x, 0.5, 3), data_format="NCX", **pool), 0.5, 3)
        x = bottleneck(g, bottleneck(g, x, 24), 24)
        quantize(g, convolution(g, dequantize(g, x, 2.0, 3), 24, strides=[2, 2]), 8.0, 128)

    names = check(build, engine)
    assert len(kept(names)) == 8
    assert sum("x8_max_pool" in name for name in names) == 1


def test_convolutions_write_bytes_into_the_images_that_they_are_joined_to(engine):
    def build(g):
        x = quantize(g, g.op("ReLU", convolution(g, dequantize(g, g.input((1, 16, 9, 8), "u8")), 20)), 0.5, 3)
        parts = [
            there_and_back(g, convolution(g, dequantize(g, x, 0.5, 3), oc, kernel=kernel), 2.0, 128)
            for oc, kernel in ((24, 1), (16, 3))
        ]
        joined = quantize(g, g.op("Concat", *parts, axis=1), 4.0, 120)
        quantize(g, convolution(g, dequantize(g, joined, 4.0, 120), 20), 16.0, 128)

    names = check(build, engine)
    assert len(kept(names)) == 4
    assert not any("eltwise:" in name and "Quantize" in name for name in names)


@pytest.mark.parametrize("case", ["joined twice read", "a scale a channel"])
def test_a_quantize_that_stays_behind_its_concat(engine, case):
    def build(g):
        x = g.op("Concat", dequantize(g, g.input((1, 4, 6), "u8")), dequantize(g, g.input((1, 8, 6), "u8")), axis=1)
        if case == "a scale a channel":
            scales = [0.5 * (n + 1) for n in range(12)]
            g.op("Quantize", x, dtype="u8", scales=scales, qtype="per_channel", axis=1)
        else:
            g.op("Abs", x)
            quantize(g, x, 1.0, 3)

    check(build, engine)


def test_a_dequantize_that_others_read_too_is_taken_in_by_each(engine):
    def build(g):
        x = dequantize(g, g.input((4, 12), "u8"), 0.5, 3)
        y = g.op("MatMul", x, weights(g, (12, 12), 1))
        quantize(g, g.op("Add", y, x), 2.0, 100)
        g.op("StaticReshape", x, shape=[12, 4], special_zero=False)

    assert len(kept(check(build, engine))) == 1


@pytest.mark.parametrize("kind", ["AvgPool", "MaxPool"])
@pytest.mark.parametrize("data_format", ["NCX", "NXC"])
@pytest.mark.parametrize("exclude_pad", [False, True])
def test_pools_of_bytes(engine, kind, data_format, exclude_pad):
    def build(g):
        shape = (1, 20, 8, 8) if data_format == "NCX" else (1, 8, 8, 20)
        own = {
            "kernel": [2, 2],
            "strides": [2, 2],
            "pads_begin": [1, 1],
            "pads_end": [1, 1],
            "data_format": data_format,
        }
        own |= {"exclude_pad": exclude_pad} if kind == "AvgPool" else {}
        quantize(g, g.op(kind, dequantize(g, g.input(shape, "s8"), 0.5, 5), **own), 0.25, 7)

    names = check(build, engine, partitions=1)
    assert any("x8_" in name for name in names) == (data_format == "NXC")


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_random_convolutions(engine, data):
    kernel, groups = data.draw(st.sampled_from([1, 2, 3])), data.draw(st.sampled_from([1, 2]))
    ic, oc, size = (data.draw(st.integers(1, top)) for top in (9, 20, 12))
    strides = [data.draw(st.integers(1, 2)) for _ in range(2)]
    zp, dtype = data.draw(st.integers(0, 127)), data.draw(st.sampled_from(["u8", "s8"]))

    def build(g):
        x = dequantize(g, g.input((2, groups * ic, size + 2, size + 3), dtype), 0.5, zp)
        y = convolution(g, x, groups * oc, kernel=kernel, groups=groups, bias=True, strides=strides)
        quantize(g, y, 0.5, zp, dtype)

    check(build, engine)
