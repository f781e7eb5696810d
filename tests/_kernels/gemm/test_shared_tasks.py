"""Products whose tasks are made for a number of threads: other tasks, the same bits."""

import math

import ml_dtypes
import numpy as np
import pytest

from graphpool._kernels.conv.bf16 import Bf16ConvFormat
from graphpool._kernels.conv.depthwise import DepthwiseFormat
from graphpool._kernels.conv.int8 import Int8ConvFormat
from graphpool._kernels.conv.packed import F32ConvFormat
from graphpool._kernels.conv.problem import ConvProblem, ConvShape
from graphpool._kernels.conv.winograd import WinogradFormat
from graphpool._kernels.core import _dispatch
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from graphpool._kernels.gemm.compressed import BITS, CompressedFormat
from graphpool._kernels.gemm.packed import PackedFormat
from graphpool._kernels.gemm.post_ops import PostOps
from graphpool._kernels.gemm.problem import MatmulProblem, shared_part
from graphpool._sizes import Trace, hint_of
from graphpool.typing import dense_strides

THREADS = 1, 2, 3, 16, 64
NUMPY = {"f32": np.float32, "bf16": ml_dtypes.bfloat16, "s8": np.int8, "u8": np.uint8}

CONVOLUTIONS = {  # format, type of the source, batch, ic, oc, kernel, height and width
    "few pixels": (F32ConvFormat, "f32", 1, 96, 160, (1, 1), (7, 7)),
    "few columns": (F32ConvFormat, "f32", 1, 40, 33, (3, 3), (20, 19)),
    "staged": (F32ConvFormat, "f32", 1, 3, 24, (3, 3), (40, 41)),
    "one row": (F32ConvFormat, "f32", 3, 32, 48, (5,), (150,)),
    "tiles": (WinogradFormat, "f32", 1, 32, 64, (3, 3), (30, 30)),
    "tiles, columns": (WinogradFormat, "f32", 1, 32, 192, (3, 3), (16, 15)),
    "bf16": (Bf16ConvFormat, "bf16", 1, 64, 48, (3, 3), (14, 14)),
    "depthwise": (DepthwiseFormat, "f32", 1, 600, 600, (3, 3), (5, 7)),
    "bytes": (Int8ConvFormat, "u8", 1, 64, 96, (3, 3), (14, 15)),
    "bytes in place": (Int8ConvFormat, "u8", 2, 64, 96, (1, 1), (14, 15)),
}
PRODUCTS = {  # type of the weights, rows, columns, k
    "f32": ("f32", 128, 768, 64),
    "one row": ("f32", 1, 768, 900),
    "few columns": ("f32", 200, 40, 256),
    "bf16": ("bf16", 260, 300, 64),
    "s8": ("s8", 260, 300, 64),
}


def numbers(shape, dtype):
    rng = np.random.default_rng(math.prod(shape))
    if dtype in ("s8", "u8"):
        return rng.integers(0, 127, shape).astype(NUMPY[dtype])
    return rng.standard_normal(shape).astype(NUMPY[dtype])


def results(build, arguments, shape):
    """Tasks and bits for every number of threads."""
    ntasks, bits = [], set()
    for threads in THREADS:
        call, dst = build(threads), np.full(shape, np.nan, np.float32)
        assert call(*arguments, dst) == 0
        ntasks.append(call.ntasks)
        bits.add(dst.tobytes())
    return ntasks, bits


@pytest.mark.parametrize("isa", _dispatch.isas())
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions_give_the_same_bits(case, isa):
    kind, dtype, batch, ic, oc, kernel, spatial = CONVOLUTIONS[case]
    groups = ic if kind is DepthwiseFormat else 1
    weights = kind(ConvShape(ic, oc, kernel, groups=groups), isa=isa)
    w = numbers((oc, ic // groups, *kernel), "s8" if dtype == "u8" else "f32")
    panels = np.zeros(weights.nbytes, np.uint8)
    weights.pack((w[0].size, *dense_strides(w.shape)))(w, panels)
    pads = [size // 2 for size in kernel]
    image = [(batch, *spatial, channels) for channels in (ic, oc)]
    strides = [(s[0], s[-1], *s[1:-1]) for s in map(dense_strides, image)]
    scales = [np.full(oc, 0.01, np.float32)] if dtype == "u8" else []

    def build(threads):
        return weights.convolution(
            ConvProblem.make(
                batch, weights.shape, spatial, src_strides=strides[0], dst_strides=strides[1], pads_begin=pads,
                pads_end=pads, src_dtype=dtype, threads=threads,
            )
        )  # fmt: skip

    ntasks, bits = results(build, [numbers(image[0], dtype), panels, *scales], image[1])
    assert len(bits) == 1
    assert ntasks[-1] > ntasks[0]


@pytest.mark.parametrize(
    ("side", "oc", "threads", "ntasks"),
    [(8, 192, 1, 1), (8, 192, 2, 2), (8, 192, 3, 3), (8, 192, 6, 6), (8, 256, 2, 2), (8, 32, 1, 1)],
)
def test_threads_share_the_columns_of_few_tiles(side, oc, threads, ntasks):
    weights = WinogradFormat(ConvShape(32, oc, (3, 3)))
    strides = [(side * side * channels, 1, side * channels, channels) for channels in (32, oc)]
    problem = ConvProblem.make(
        1, weights.shape, (side, side), src_strides=strides[0], dst_strides=strides[1], pads_begin=(1, 1),
        pads_end=(1, 1), threads=threads,
    )  # fmt: skip
    assert weights.convolution(problem).ntasks == ntasks


@pytest.mark.parametrize("isa", _dispatch.isas())
@pytest.mark.parametrize("case", PRODUCTS)
def test_products_give_the_same_bits(case, isa):
    dtype, m, n, k = PRODUCTS[case]
    weights = PackedFormat(k, n, dtype, isa=isa)
    b = numbers((k, n), dtype)
    panels = np.zeros(weights.nbytes, np.uint8)
    weights.pack((n, 1))(b, panels)
    a_dtype = "u8" if dtype == "s8" else dtype
    scales = [np.full(n, 0.01, np.float32)] if dtype == "s8" else []

    def build(threads):
        return weights.matmul(MatmulProblem((), m, n, k, (k, 1), (n,), a_dtype, threads=threads))

    ntasks, bits = results(build, [numbers((m, k), a_dtype), panels, *scales], (m, n))
    assert len(bits) == 1
    assert ntasks[-1] > ntasks[0]


def gelu(shape):
    """An epilogue that needs no scratch."""
    builder = EltwiseBuilder(shape)
    builder.store(0, "f32", None, builder.unary("gelu_erf", builder.acc()))
    return PostOps(epilogue=builder.epilogue(), dst_needs_scratch=False)


@pytest.mark.parametrize("isa", _dispatch.isas())
def test_rows_of_an_epilogue_are_long_where_threads_have_enough_tasks(isa):
    m, n, k = 288, 256, 96
    products, convolutions = PackedFormat(k, n, isa=isa), F32ConvFormat(ConvShape(k, n, (1,)), isa=isa)
    a, b = numbers((m, k), "f32"), numbers((k, n), "f32")
    panels, weights = np.zeros(products.nbytes, np.uint8), np.zeros(convolutions.nbytes, np.uint8)
    products.pack((n, 1))(b, panels)
    convolutions.pack((0, 1, n, 1))(b, weights)

    def multiply(threads):
        return products.matmul(MatmulProblem((), m, n, k, (k, 1), (n,), threads=threads), gelu((m, n)))

    def convolve(threads):
        strides = [(m * channels, 1, channels) for channels in (k, n)]
        problem = ConvProblem.make(
            1, convolutions.shape, (m,), src_strides=strides[0], dst_strides=strides[1], threads=threads
        )
        return convolutions.convolution(problem, gelu((1, m, n)))

    for build, packed in ((multiply, panels), (convolve, weights)):
        ntasks, bits = results(build, [a, packed], (m, n))
        assert len(bits) == 1
        assert ntasks[0] == 3, "96 rows of all columns each"
        assert ntasks[1] > 3


@pytest.mark.parametrize("isa", _dispatch.isas())
@pytest.mark.parametrize(
    ("dtype", "m", "n", "int8"), [("u8", 1, 1500, True), ("u4", 3, 1500, False), ("s8", 30, 300, False)]
)
def test_products_with_compressed_weights_give_the_same_bits(dtype, m, n, int8, isa):
    k = 256
    weights = CompressedFormat(k, n, dtype, group=32, isa=isa)
    plain = {"numbers": numbers((k, n * BITS[dtype] // 8), "u8"), "scales": numbers((k // 32, n), "f32")}
    packed = [np.zeros(weights.nbytes(part), np.uint8) for part in plain]
    for (part, values), to in zip(plain.items(), packed, strict=True):
        weights.pack(part, (n, 1))(values, to)

    def build(threads):
        return weights.matmul(MatmulProblem((), m, n, k, (k, 1), (n,), threads=threads), int8=int8)

    ntasks, bits = results(build, [numbers((m, k), "f32"), *packed], (m, n))
    assert len(bits) == 1
    assert ntasks[-1] > ntasks[0]


def test_shared_part():
    def one_task(_):
        return 1, 1

    assert shared_part(1, 90, 90, one_task, 0, 6, 90) == 90
    assert shared_part(4, 96, 96, one_task, 0, 6, 96) == 24
    assert shared_part(4, 96, 96, lambda _: (4, 1), 0, 6, 96) == 96, "all threads have as much"
    assert shared_part(4, 96, 96, one_task, 10**6, 6, 96) == 96, "what a task takes anyway is all"
    assert shared_part(4, 72, 12, one_task, 0, 6, 72) == 18, "six tasks would take two rounds"
    assert shared_part(4, 72, 12, one_task, 0, 6, 12) == 6
    assert shared_part(2, 196, 40, one_task, 12, 1, 40) == 33, "five tasks would take as many rounds as six"


@pytest.mark.parametrize(
    ("threads", "extent", "count", "ntasks"),
    [
        (1, 96, 1, 1),
        (2, 96, 1, 2),
        (2, 288, 1, 4),
        (2, 288, 2, 6),
        (3, 384, 1, 6),
        (16, 96, 1, 8),
        (2, 6, 1, 1),
        (2, 0, 1, 0),
    ],
)
def test_sizes_that_vary_fill_the_rounds_of_all_threads_without_a_decision(threads, extent, count, ntasks):
    trace = Trace()
    size = trace.symbol(extent)
    part = shared_part(threads, size, 96, lambda _: (count, 1), 12, 6, 96)
    assert hint_of(-(-size // part) * count) == ntasks
    assert all(condition.endswith("!= 0") for condition in trace.conditions()), "divisors alone, whatever is best"
