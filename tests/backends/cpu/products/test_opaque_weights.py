"""Weights that the user packs: option 2 of the seed "constant block weight", for every format of the kernels."""

import hashlib
import itertools

import numpy as np
import pytest

import graphpool as gp
from graphpool import config
from graphpool._kernels.core import _dispatch
from graphpool._kernels.gemm.packed import HAS_BF16
from graphpool.backends.cpu.layout.opaque import VERSION
from graphpool.cache import constant_tensor_cache
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_array

ISAS = _dispatch.isas()


@pytest.fixture(params=sorted({ISAS[0], ISAS[len(ISAS) // 2], ISAS[-1]}))
def isa(request, monkeypatch):
    """Some instruction sets in turn as the best one: of other widths, with and without integer products."""
    monkeypatch.setitem(config._values, "max_isa", request.param)
    return request.param


def graph(**options):
    return GraphBuilder(gp.Graph("cpu", **options))


def reorder(engine, tensor, target):
    """The tensor in the layout of another one."""
    target = target.replace(id=tensor.lt.id + 1)
    partition = gp.Partition.from_op(gp.Op(0, "Reorder", [tensor.lt], [target]))
    with partition.compile([tensor.lt], [target], engine) as compiled:
        result = gp.Tensor(target, engine)
        result.raw()[:] = 0x5A
        compiled.execute(gp.Stream(engine), [tensor], [result])
    content = result.raw() if target.layout == "opaque" or target.dtype.bits < 8 else result.numpy()
    return gp.Tensor(target.replace(id=tensor.lt.id), engine, content.copy())


def activity():
    """What tells that the constant tensor cache was asked."""
    stats = constant_tensor_cache("cpu").stats()
    return stats.hits, stats.misses, stats.entries, stats.nbytes, stats.declined


class Run:
    """One partition, executed with its weights as they are, by way of the cache, and packed by the user.

    `free` are the weights whose layout is queried.
    """

    def __init__(self, builder, engine, *free, seed=0, **ranges):
        self.engine, self.stream = engine, gp.Stream(engine)
        [self.partition] = builder.finish()
        rng = np.random.default_rng(seed)
        self.free = [lt.id for lt in free]
        self.inputs = list(self.partition.input_ports)
        self.outputs = [lt.replace(shape=builder.graph_shape(lt)) for lt in self.partition.output_ports]
        self.tensors = {lt.id: gp.Tensor(lt, engine, random_array(lt, rng, **ranges)) for lt in self.inputs}
        with self.partition.compile(self.inputs, self.outputs, engine) as compiled:
            self.cached = self.execute(compiled, self.tensors)
        self.asked = [lt.replace(layout="any") if lt.id in self.free else lt for lt in self.inputs]

    def execute(self, compiled, tensors):
        results = compiled.execute(self.stream, [tensors[lt.id] for lt in compiled.inputs])
        return [np.array(result.raw()) for result in results]

    def pack(self):
        """Query, pack and execute without the cache; what was queried."""
        constant_tensor_cache("cpu").clear()
        before = activity()
        with self.partition.compile(self.asked, self.outputs, self.engine) as compiled:
            self.wanted = {key: compiled.query_logical_tensor(key) for key in self.free}
            packed = {key: reorder(self.engine, self.tensors[key], self.wanted[key]) for key in self.free}
            assert not compiled.primitive.constant_parts  # which the cache would keep
            self.results = self.execute(compiled, self.tensors | packed)
            self.packed = packed
        assert activity() == before
        given = [self.wanted.get(lt.id, lt) for lt in self.inputs]
        with self.partition.compile(given, self.outputs, self.engine) as compiled:  # the id alone says as much
            for again, result in zip(self.execute(compiled, self.tensors | packed), self.results, strict=True):
                assert again.tobytes() == result.tobytes()
        assert activity() == before
        return [self.wanted[key] for key in self.free]

    def check(self, *, is_exact=True):
        """Bits as by way of the cache, and the plain weights back bit for bit."""
        wanted = self.pack()
        assert [lt.layout.value for lt in wanted] == ["opaque"] * len(self.free)
        for cached, result in zip(self.cached, self.results, strict=True):
            assert cached.tobytes() == result.tobytes()
        if is_exact:
            self.check_inverse()
        return wanted

    def check_inverse(self):
        for key, packed in self.packed.items():
            plain = self.tensors[key]
            np.testing.assert_array_equal(reorder(self.engine, packed, plain.lt).raw(), plain.raw())
            copied = reorder(self.engine, packed, packed.lt)
            np.testing.assert_array_equal(copied.raw(), packed.raw())


def convolution(
    builder,
    x=(2, 24, 9, 8),
    w=(32, 24, 3, 3),
    dtype="f32",
    formats=("NCX", "OIX"),
    *,
    kind="Convolution",
    tail=None,
    **a,
):
    """A convolution of shapes as NCX and OIX say; its weights and its result."""
    turn = lambda s, first: (s[0], *s[2:], s[1]) if first else s  # noqa: E731
    images, weights = turn(x, formats[0] == "NXC"), w if formats[1].endswith("X") else (*w[2:], w[1], w[0])
    ndim = len(x) - 2
    attrs = {"strides": [1] * ndim, "pads_begin": [1] * ndim, "pads_end": [1] * ndim, "dilations": [1] * ndim} | a
    source = builder.input(images, dtype)
    lt = builder.input(weights, dtype, property="constant")
    y = builder.op(kind, source, lt, data_format=formats[0], weights_format=formats[1], **attrs)
    if tail is not None:
        tail(builder, y)
    return lt


CONVOLUTIONS = {
    "direct": {},
    "channels last, XIO": {"formats": ("NXC", "XIO")},
    "few channels": {"x": (1, 3, 20, 20), "w": (16, 3, 7, 7), "strides": [2, 2]},
    "1x1": {"w": (40, 24, 1, 1), "pads_begin": [0, 0], "pads_end": [0, 0], "formats": ("NXC", "OIX")},
    "odd channels": {"w": (19, 24, 3, 3)},
    "groups": {"w": (32, 6, 3, 3), "groups": 4},
    "depthwise": {"w": (24, 1, 3, 3), "groups": 24},
    "dilated": {"dilations": [1, 2], "pads_begin": [2, 2], "pads_end": [2, 2]},
    "few channels, dilated": {"x": (1, 3, 20, 20), "w": (16, 3, 3, 3), "dilations": [2, 2], "formats": ("NXC", "OIX")},
    "1-D": {"x": (2, 24, 40), "w": (32, 24, 3)},
    "3-D": {"x": (1, 16, 5, 6, 7), "w": (16, 16, 3, 3, 3)},
    "one pixel": {"x": (1, 24, 1, 1), "w": (32, 24, 1, 1), "pads_begin": [0, 0], "pads_end": [0, 0]},
}
TAILS = {
    "alone": None,
    "bias, relu": lambda b, y: b.op("ReLU", b.op("BiasAdd", y, b.input((32,), property="constant"), data_format="NCX")),
    "residual": lambda b, y: b.op("ReLU", b.op("Add", y, b.input(b.graph_shape(y)))),
    "gelu": lambda b, y: b.op("GELU", y),
}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(engine, isa, case, dtype):
    builder = graph()
    Run(builder, engine, convolution(builder, dtype=dtype, **CONVOLUTIONS[case])).check()


@pytest.mark.parametrize("case", ["direct", "depthwise"])
def test_convolutions_of_f16(engine, case):
    builder = graph()
    Run(builder, engine, convolution(builder, dtype="f16", **CONVOLUTIONS[case])).check()


def test_random_convolutions(engine):
    rng, ran = np.random.default_rng(7), 0
    for _ in range(60):
        groups = int(rng.choice([1, 1, 1, 2, 4]))
        ic, oc, k = groups * int(rng.integers(1, 20)), groups * int(rng.integers(1, 40)), int(rng.integers(1, 5))
        depthwise = rng.random() < 0.2
        groups, oc = (ic, ic) if depthwise else (groups, oc)
        pads = {name: [int(rng.integers(0, k)) for _ in range(2)] for name in ("pads_begin", "pads_end")}
        attrs = pads | {name: [int(x) for x in rng.integers(1, 3, 2)] for name in ("strides", "dilations")}
        builder = graph(prefer=str(rng.choice(["memory", "latency"])))
        weights = convolution(
            builder, (int(rng.integers(1, 3)), ic, 14, 13), (oc, ic // groups, k, k),
            str(rng.choice(["f32", "bf16"])), (str(rng.choice(["NXC", "NCX"])), str(rng.choice(["OIX", "XIO"]))),
            groups=groups, tail=TAILS["gelu"], **attrs,
        )  # fmt: skip
        run = Run(builder, engine, weights)
        [wanted] = run.pack()
        for cached, result in zip(run.cached, run.results, strict=True):
            assert cached.tobytes() == result.tobytes()
        if wanted.layout == "opaque":
            ran += 1
            run.check_inverse()
    assert ran > 30


@pytest.mark.parametrize("tail", TAILS)
def test_post_ops_of_convolutions(engine, tail):
    builder = graph()
    Run(builder, engine, convolution(builder, tail=TAILS[tail])).check()


TRANSPOSED = {
    "stride 2": {"strides": [2, 2]},
    "stride 2, groups": {"strides": [2, 2], "w": (16, 24, 4, 4), "groups": 2},
    "depthwise": {"strides": [2, 2], "w": (1, 24, 3, 3), "groups": 24},
    "strides 3, 1": {"strides": [3, 1], "pads_begin": [0, 0]},
    "dilated": {"strides": [2, 2], "dilations": [3, 1]},
    "1-D": {"x": (1, 24, 11), "w": (32, 24, 5), "strides": [2]},
    "channels last": {"strides": [2, 2], "formats": ("NXC", "XOI")},
}


@pytest.mark.parametrize("case", TRANSPOSED)
def test_transposed_convolutions(engine, isa, case):
    options = {"formats": ("NCX", "OIX")} | TRANSPOSED[case]
    (data, weights), w = options["formats"], options.pop("w", (32, 24, 3, 3))
    groups = options.get("groups", 1)
    options["formats"] = data, {"OIX": "IOX"}.get(weights, weights)
    builder = graph()
    w = (24, w[0], *w[2:]) if weights == "OIX" else (w[1] // groups, w[0], *w[2:])
    w = w if weights == "OIX" else (24, 32, *w[2:])
    Run(builder, engine, convolution(builder, w=w, kind="ConvTranspose", **options)).check()


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("case", ["stride 2", "dilated"])
@pytest.mark.parametrize(("pixels", "most"), [((14, 14), 2.12), ((5, 5), 4.24)])
def test_transposed_weights_are_kept_in_their_type_where_images_are_large(engine, isa, case, dtype, pixels, most):
    builder = graph()
    options = TRANSPOSED[case] | {"w": (24, 32, 3, 3), "formats": ("NCX", "IOX"), "kind": "ConvTranspose"}
    [wanted] = Run(builder, engine, convolution(builder, (1, 24, *pixels), dtype=dtype, **options)).check()
    assert most / 2 < wanted.nbytes / np.prod(wanted.shape) <= most


@pytest.mark.parametrize(
    "case", [{"w": (64, 64, 3, 3), "x": (1, 64, 28, 28)}, {"w": (64, 64, 3, 3), "x": (1, 64, 14, 14)}]
)
def test_winograd_has_no_inverse(engine, isa, case):
    builder = graph(prefer="latency")
    run = Run(builder, engine, convolution(builder, **case))
    [wanted] = run.check(is_exact=False)
    if wanted.nbytes < 1.7 * 4 * 64 * 64 * 9:
        pytest.fail("not Winograd")
    [packed] = run.packed.values()
    with pytest.raises(gp.UnsupportedError, match=r"unpacking f32 weights.*winograd.*keep the plain weights"):
        reorder(engine, packed, wanted.replace(layout="strided"))


def test_a_layout_that_was_given_is_read_whatever_this_compilation_would_choose(engine):
    """Weights packed for one batch serve others, for which Winograd has another tile or is not worth it."""
    builder = graph(prefer="latency")
    weights = convolution(builder, (1, 64, 28, 28), (64, 64, 3, 3))
    run = Run(builder, engine, weights)
    [wanted] = run.check(is_exact=False)
    x, small = run.inputs[0], run.inputs[0].replace(shape=(1, 64, 3, 3))
    assert x.id != weights.id
    out = run.outputs[0].replace(shape=(1, 64, 3, 3))
    data = np.random.default_rng(0).standard_normal(small.shape, np.float32)
    with run.partition.compile([small, wanted], [out], engine) as compiled:
        [y] = compiled.execute(run.stream, [gp.Tensor(small, engine, data), run.packed[wanted.id]])
    with run.partition.compile([small, weights], [out], engine) as compiled:
        [expected] = compiled.execute(run.stream, [gp.Tensor(small, engine, data), run.tensors[wanted.id]])
    np.testing.assert_allclose(y.numpy(), expected.numpy(), rtol=1e-3, atol=1e-3)


def test_rounded_weights_have_no_inverse(engine):
    builder = graph(fpmath="bf16")
    run = Run(builder, engine, convolution(builder))
    [wanted] = run.check(is_exact=False)
    if ISAS[-1] in HAS_BF16:
        with pytest.raises(gp.UnsupportedError, match=r"unpacking f32 weights.*bf16 panels"):
            reorder(engine, run.packed[wanted.id], wanted.replace(layout="strided"))
        strict = graph()
        weights = convolution(strict)
        [partition] = strict.finish()
        with pytest.raises(gp.UnsupportedError, match=r"packed weights; accepted: f32 panels.*; got: bf16 panels"):
            partition.compile([partition.input_ports[0], wanted.replace(id=weights.id)], run.outputs, engine)


def test_what_the_cached_way_folds_stays_a_post_op(engine):
    builder = graph()

    def norm(builder, y):
        numbers = [builder.input((32,), property="constant") for _ in range(4)]
        builder.op("ReLU", builder.op("BatchNormInference", y, *numbers, epsilon=1e-3, data_format="NCX"))

    run = Run(builder, engine, convolution(builder, tail=norm), low=0.5, high=1.5)
    run.pack()
    run.check_inverse()
    for cached, result in zip(run.cached, run.results, strict=True):
        np.testing.assert_allclose(result.view(np.float32), cached.view(np.float32), rtol=1e-4, atol=1e-3)


# ---- weights of 8 and 4 bits


def quantized_convolution(builder, x, w, dtypes, zps, channels=None, **attrs):
    source, weights = builder.input(x, dtypes[0]), builder.input(w, dtypes[1], property="constant")
    count = channels or 1
    scales = {"scales": [0.02] * count} | ({"qtype": "per_channel", "axis": 0} if channels else {})
    a = builder.op("Dequantize", source, dtype="f32", scales=[0.05], zps=[zps[0]])
    b = builder.op("Dequantize", weights, dtype="f32", zps=[zps[1]] * count, **scales)
    ndim = len(x) - 2
    defaults = {"strides": [1] * ndim, "pads_begin": [1] * ndim, "pads_end": [1] * ndim, "dilations": [1] * ndim}
    y = builder.op("Convolution", a, b, weights_format="OIX", **({"data_format": "NCX"} | defaults | attrs))
    builder.op("Quantize", y, dtype=dtypes[0], scales=[0.3], zps=[zps[0]])
    return weights


@pytest.mark.parametrize(("dtypes", "zeros"), [(("u8", "s8"), (3, 0)), (("s8", "s8"), (0, 0)), (("u8", "u8"), (3, 2))])
@pytest.mark.parametrize("case", [
    ((1, 24, 9, 9), (32, 24, 3, 3), {}), ((1, 3, 20, 20), (17, 3, 5, 5), {"strides": [2, 2]}),
    ((1, 24, 9, 9), (32, 6, 3, 3), {"groups": 4}), ((1, 24, 9, 9), (24, 1, 3, 3), {"groups": 24}),
    ((1, 9, 9, 24), (40, 24, 1, 1), {"data_format": "NXC"}),
], ids=["direct", "few channels", "groups", "depthwise", "1x1"])  # fmt: skip
def test_int8_convolutions(engine, isa, dtypes, zeros, case):
    builder = graph()
    x, w, attrs = case
    Run(builder, engine, quantized_convolution(builder, x, w, dtypes, zeros, channels=w[0], **attrs)).check()


@pytest.mark.parametrize("zero_points", [[0, 0, 0, 0], [3, 3, 3, 3], [0, 1, -2, 100]])
@pytest.mark.parametrize("dtype", ["s8", "u8"])
def test_depthwise_bytes_are_kept_as_they_are(engine, isa, dtype, zero_points):
    builder = graph()
    source, weights = builder.input((1, 4, 9, 9), "u8"), builder.input((4, 1, 3, 3), dtype, property="constant")
    zero_points = np.maximum(zero_points, 0 if dtype == "u8" else -128).tolist()
    a = builder.op("Dequantize", source, dtype="f32", scales=[0.05], zps=[0])
    b = builder.op("Dequantize", weights, dtype="f32", scales=[0.1] * 4, zps=zero_points, qtype="per_channel", axis=0)
    builder.op("Convolution", a, b, data_format="NCX", weights_format="OIX", groups=4, strides=[1, 1], dilations=[1, 1],
               pads_begin=[0, 0], pads_end=[0, 0])  # fmt: skip
    [wanted] = Run(builder, engine, weights).check()
    assert wanted.nbytes == 36


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_depthwise_floats_are_kept_in_their_type(engine, isa, dtype):
    builder = graph()
    [wanted] = Run(builder, engine, convolution(builder, dtype=dtype, **CONVOLUTIONS["depthwise"])).check()
    assert wanted.nbytes == 2 * np.prod(wanted.shape)


@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize(("m", "k", "n"), [(1, 24, 40), (7, 33, 19), (5, 20000, 8)])
def test_products(engine, isa, transpose_b, dtype, m, k, n):
    builder = graph()
    x = builder.input((m, k), dtype)
    w = builder.input((n, k) if transpose_b else (k, n), dtype, property="constant")
    builder.op("ReLU", builder.op("MatMul", x, w, transpose_b=transpose_b))
    Run(builder, engine, w).check()


@pytest.mark.parametrize(("dtypes", "zero"), [(("u8", "s8"), 0), (("s8", "u8"), 5)])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_int8_products(engine, isa, dtypes, transpose_b, zero):
    builder = graph()
    x = builder.input((7, 33), dtypes[0])
    w = builder.input((19, 33) if transpose_b else (33, 19), dtypes[1], property="constant")
    a = builder.op("Dequantize", x, dtype="f32", scales=[0.05], zps=[3])
    b = builder.op("Dequantize", w, dtype="f32", scales=[0.02], zps=[zero])
    builder.op("MatMul", a, b, transpose_b=transpose_b)
    Run(builder, engine, w).check()


@pytest.mark.parametrize("dtype", ["s8", "u8"])
@pytest.mark.parametrize("transpose_b", [False, True])
@pytest.mark.parametrize("channels", [False, True])
def test_compressed_weights_with_scales_of_the_op(engine, isa, dtype, transpose_b, channels):
    builder = graph()
    k, n = 40, 35
    x, w = builder.input((3, k)), builder.input((n, k) if transpose_b else (k, n), dtype, property="constant")
    options = {"qtype": "per_channel", "axis": 0 if transpose_b else 1} if channels else {}
    count = n if channels else 1
    b = builder.op("Dequantize", w, dtype="f32", scales=[0.5 + i / 64 for i in range(count)],
                   zps=[i % 3 for i in range(count)], **options)  # fmt: skip
    builder.op("MatMul", x, b, transpose_b=transpose_b)
    Run(builder, engine, w).check()


@pytest.mark.parametrize("dtype", ["s8", "u4", "s4"])
@pytest.mark.parametrize(("scale_dtype", "has_zeros"), [("f32", False), ("f32", True), ("f16", True)])
@pytest.mark.parametrize("transpose_b", [False, True])
def test_compressed_weights_in_groups(engine, isa, dtype, scale_dtype, transpose_b, has_zeros):
    builder, free = compressed_in_groups(dtype, scale_dtype, has_zeros, transpose_b)
    Run(builder, engine, *free).check()


def compressed_in_groups(dtype, scale_dtype, has_zeros, transpose_b):
    """A product, and its weights, scales and perhaps zero points."""
    builder = graph()
    k, n, group = 64, 34, 16
    turn = lambda *shape: shape[::-1] if transpose_b else shape  # noqa: E731
    x, w = builder.input((3, k), scale_dtype), builder.input(turn(k, n), dtype, property="constant")
    free = [w, builder.input(turn(k // group, n), scale_dtype, property="constant")]
    if has_zeros:
        free.append(builder.input(turn(k // group, n), dtype, property="constant"))
    b = builder.op("DynamicDequantize", *free, dtype=scale_dtype, qtype="per_group", group_shape=list(turn(group, 1)))
    builder.op("MatMul", x, b, transpose_b=transpose_b)
    return builder, free


# ---- sizes, and what is left plain


@pytest.mark.parametrize("case", ["direct", "channels last, XIO", "groups", "depthwise", "dilated", "1-D", "3-D"])
def test_sizes_are_those_of_plain_weights(engine, isa, case):
    builder = graph()
    weights = convolution(
        builder, **(CONVOLUTIONS[case] | ({"groups": 2, "w": (32, 12, 3, 3)} if case == "groups" else {}))
    )
    [wanted] = Run(builder, engine, weights).check()
    assert wanted.nbytes <= 1.06 * weights.nbytes


@pytest.mark.parametrize("dtype", ["s8", "u4"])
def test_sizes_of_compressed_weights(engine, isa, dtype):
    builder = graph()
    w = builder.input((256, 64), dtype, property="constant")
    scales = builder.input((4, 64), property="constant")
    b = builder.op("DynamicDequantize", w, scales, dtype="f32", qtype="per_group", group_shape=[64, 1])
    builder.op("MatMul", builder.input((3, 256)), b)
    wanted = Run(builder, engine, w, scales).check()
    assert sum(lt.nbytes for lt in wanted) <= 1.06 * (w.nbytes + scales.nbytes)


def test_constants_that_nobody_packs_stay_dense(engine):
    x, c, y = (
        gp.LogicalTensor(0, "f32", (5, 7)),
        gp.LogicalTensor(1, "f32", (5, 7), property="constant"),
        gp.LogicalTensor(2, "f32", (5, 7)),
    )
    free = c.replace(layout="any")
    with gp.Partition.from_op(gp.Op(0, "Add", [x, free], [y])).compile([x, free], [y], engine) as compiled:
        assert compiled.query_logical_tensor(1) == c


def test_weights_of_two_readers_stay_dense(engine):
    w, y = gp.LogicalTensor(0, "f32", (5, 5), layout="any", property="constant"), gp.LogicalTensor(1, "f32", (5, 5))
    with gp.Partition.from_op(gp.Op(0, "MatMul", [w, w], [y])).compile([w], [y], engine) as compiled:
        assert compiled.query_logical_tensor(0).is_dense


# ---- other processors and versions

DIGESTS = {
    "generic": "6efe230e560baa8c",
    "avx2": "10569d5a0dc6af10",
    "avx2_vnni": "a63779a9d9f329c3",
    "avx512": "5bd1a2f813c12e31",
    "avx512_bf16": "1c099cdff37c8908",
    "avx512_amx": "1c099cdff37c8908",
}
"""Of all packed weights below, version 4, but Winograd's, which compilers round in their ways.

Where they change, so must `VERSION` of ``layout/opaque.py``: users have kept such bytes.
"""


@pytest.mark.parametrize("isa", [isa for isa in ISAS if isa in DIGESTS])
def test_packed_bytes_are_those_of_the_version(engine, monkeypatch, isa):
    monkeypatch.setitem(config._values, "max_isa", isa)
    assert VERSION == 4
    packed = []
    for case, dtype in itertools.product(["direct", "few channels", "groups", "depthwise", "dilated"], ["f32", "bf16"]):
        builder = graph()
        packed.append((builder, convolution(builder, dtype=dtype, **CONVOLUTIONS[case])))
    builder = graph()
    packed.append(
        (builder, convolution(builder, w=(24, 32, 3, 3), kind="ConvTranspose", strides=[2, 2], formats=("NCX", "IOX")))
    )
    for w, groups in (((32, 24, 3, 3), 1), ((24, 1, 3, 3), 24)):
        builder = graph()
        packed.append((builder, quantized_convolution(builder, (1, 24, 9, 9), w, ("u8", "s8"), (0, 0), groups=groups)))
    for dtype in ("f32", "bf16", "s8"):
        builder = graph()
        x, w = builder.input((3, 33), dtype), builder.input((33, 19), dtype, property="constant")
        operands = [
            builder.op("Dequantize", lt, dtype="f32", scales=[0.1], zps=[0]) if dtype == "s8" else lt for lt in (x, w)
        ]
        builder.op("MatMul", *operands)
        packed.append((builder, w))
    found = hashlib.sha256()
    for builder, *free in packed:
        run = Run(builder, engine, *free)
        run.pack()
        for tensor in run.packed.values():
            found.update(tensor.raw().tobytes())
    builder, free = compressed_in_groups("u4", "f32", True, False)
    run = Run(builder, engine, *free)
    run.pack()
    for tensor in run.packed.values():
        found.update(tensor.raw().tobytes())
    assert found.hexdigest()[:16] == DIGESTS[isa]


@pytest.mark.parametrize(("made", "read"), list(itertools.permutations(ISAS, 2)))
def test_weights_of_another_instruction_set_are_refused_by_name(engine, monkeypatch, made, read):
    monkeypatch.setitem(config._values, "max_isa", made)
    builder = graph()
    run = Run(builder, engine, convolution(builder))
    [wanted] = run.check()
    monkeypatch.setitem(config._values, "max_isa", read)
    what = rf"another instruction set; accepted: {read}; got: {made}; Reorder it .*GRAPHPOOL_MAX_ISA={made}"
    with pytest.raises(gp.InvalidArgumentError, match=what):
        wanted.nbytes  # noqa: B018
    with pytest.raises(gp.InvalidArgumentError, match=what):
        gp.Partition.from_op(run.partition.ops[0]).compile([run.inputs[0], wanted], run.outputs, engine)
