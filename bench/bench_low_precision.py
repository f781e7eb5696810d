"""How much faster than float32 are products and convolutions in bf16, and products with weights of 8 and 4 bits?

    python -m bench.bench_low_precision [--seconds 0.3]    tables
    pytest bench/bench_low_precision.py --benchmark-only   the same as pytest-benchmark cases

Processor time of one thread as in `bench_packed`: the least of many calls, float32 in the same run. "Cold" products
walk through copies of their weights that no cache holds.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from bench.bench_packed import aligned_empty, packed_product, runner, seconds_of, total_nbytes
from graphpool._kernels.conv.bf16 import Bf16ConvFormat
from graphpool._kernels.conv.packed import F32ConvFormat
from graphpool._kernels.conv.problem import ConvProblem, ConvShape
from graphpool._kernels.core.call import KernelCall
from graphpool._kernels.gemm.compressed import BITS, CompressedFormat
from graphpool._kernels.gemm.problem import MatmulProblem

Arguments = list[tuple[Any, ...]]

PRODUCTS = [(1, 768, 3072), (16, 768, 3072), (128, 768, 3072), (128, 3072, 768), (1, 4096, 4096)]
"""(m, k, n) in bf16."""

ROWS = (1, 2, 4, 8, 16, 128)
"""Rows of products with weights of 4096 x 4096."""

SCHEMES = [("s8", None, False), ("u8", None, True), ("s4", 128, False), ("s4", 32, False), ("u4", 32, True)]
"""Type, rows of a scale, zero points."""

CONVOLUTIONS = [
    (3, 64, 224, 7, 2), (64, 64, 56, 1, 1), (64, 64, 56, 3, 1), (64, 256, 56, 1, 1), (128, 128, 28, 3, 1),
    (256, 256, 14, 3, 1), (1024, 256, 14, 1, 1), (512, 512, 7, 3, 1),
]  # fmt: skip
"""Channels, pixels along an edge, kernel, stride: of ResNet-50."""


def compressed_product(
    m: int, scheme: tuple[str, int | None, bool], copies: int = 1, *, int8: bool = False
) -> tuple[KernelCall, Arguments]:
    """A product with compressed weights of 4096 x 4096, and its arguments once for each copy of them."""
    k = n = 4096
    dtype, group, zeros = scheme
    weights = CompressedFormat(k, n, dtype, group=group, zero=None if zeros else 0)
    rng = np.random.default_rng(0)
    q = rng.integers(0, 256, k * n * BITS[dtype] // 8, np.uint8)
    scales, points = rng.random((weights.ngroups, n), np.float32), rng.integers(0, 16, (weights.ngroups, n), np.uint8)
    parts: list[tuple[KernelCall, Any, int]] = [
        (weights.pack("numbers", (n, 1)), q, weights.nbytes("numbers")),
        (weights.pack("scales", (n, 1)), scales, weights.nbytes("scales")),
    ]
    if zeros:
        parts.append((weights.pack("zeros", (n, 1), "u8"), points, weights.nbytes("zeros")))
    rows = [[aligned_empty(nbytes) for *_, nbytes in parts] for _ in range(copies)]
    for packed in rows:
        for (pack, source, _), place in zip(parts, packed, strict=True):
            pack(source, place)
    a, dst = rng.standard_normal((m, k), np.float32), np.empty((m, n), np.float32)
    call = weights.matmul(MatmulProblem((), m, n, k, (k, 1), (n,)), int8=int8)
    return call, [(a, *packed, dst) for packed in rows]


def convolution(shape: tuple[int, ...], dtype: str) -> tuple[KernelCall, Arguments]:
    """A convolution of one image, channels last: float32 (f32), bf16 weights on either (f32 as bf16, bf16)."""
    ic, oc, size, kernel, stride = shape
    out = -(-size // stride)
    total = (out - 1) * stride + kernel - size
    weights_shape = ConvShape(ic, oc, (kernel, kernel))
    problem = ConvProblem.make(
        1, weights_shape, (size, size), src_strides=(size * size * ic, 1, size * ic, ic),
        dst_strides=(out * out * oc, 1, out * oc, oc), strides=(stride,) * 2, pads_begin=(max(total, 0) // 2,) * 2,
        pads_end=(-(-max(total, 0) // 2),) * 2, src_dtype="bf16" if dtype == "bf16" else "f32",
    )  # fmt: skip
    rng = np.random.default_rng(0)
    x, w = rng.random((size, size, ic), np.float32), rng.random((oc, ic, kernel, kernel), np.float32)
    weights_format = (F32ConvFormat if dtype == "f32" else Bf16ConvFormat)(weights_shape)
    packed, dst = aligned_empty(weights_format.nbytes), np.empty((out, out, oc), np.float32)
    weights_format.pack((0, ic * kernel * kernel, kernel * kernel, kernel, 1))(w, packed)
    source = (x.view(np.uint32) >> 16).astype(np.uint16) if dtype == "bf16" else x
    return weights_format.convolution(problem), [(source, packed, dst)]


def print_products(seconds: float) -> None:
    """bf16 beside float32."""
    print("| m x k x n | f32 us | bf16 us | times |\n|---|---:|---:|---:|")
    for shape in PRODUCTS:
        f32, bf16 = (seconds_of(*packed_product(shape, dtype), seconds) for dtype in ("f32", "bf16"))
        print(f"| {' x '.join(map(str, shape))} | {f32 * 1e6:.0f} | {bf16 * 1e6:.0f} | {f32 / bf16:.2f} |", flush=True)


def print_compressed(seconds: float, copies: int, *, int8: bool = False) -> None:
    """Weights of 8 and 4 bits beside float32, by activations in float32 or 8 bits."""
    names = [f"{d} by {g or 'column'}{', zeros' * z}" for d, g, z in SCHEMES]
    title = f"m{', weights cold' * (copies > 1)}{', activations in 8 bits' * int8}"
    print(f"\n| {title} | f32 us | " + " | ".join(names) + " |")
    print("|---|---:|" + "---:|" * len(names))
    for m in ROWS if copies == 1 else ROWS[:3]:
        f32 = seconds_of(*packed_product((m, 4096, 4096), copies=copies), seconds)
        times = [
            seconds_of(*compressed_product(m, scheme, 4 * copies if copies > 1 else 1, int8=int8), seconds)
            for scheme in SCHEMES
        ]
        cells = [f"{t * 1e6:.0f} ({f32 / t:.2f} x)" for t in times]
        print(f"| {m} | {f32 * 1e6:.0f} | " + " | ".join(cells) + " |", flush=True)


def print_convolutions(seconds: float) -> None:
    """bf16 beside float32."""
    print("\n| convolution | f32 us | f32 as bf16 us | times | bf16 us | times |\n|---|---:|---:|---:|---:|---:|")
    for shape in CONVOLUTIONS:
        ic, oc, size, kernel, stride = shape
        f32, cast, bf16 = (seconds_of(*convolution(shape, d), seconds) for d in ("f32", "f32 as bf16", "bf16"))
        print(
            f"| {ic} to {oc}, {kernel}x{kernel} stride {stride}, {size}x{size} | {f32 * 1e6:.0f} | {cast * 1e6:.0f} | "
            f"{f32 / cast:.2f} | {bf16 * 1e6:.0f} | {f32 / bf16:.2f} |",
            flush=True,
        )


pytestmark = pytest.mark.benchmark(group="narrow weights")


@pytest.mark.parametrize("scheme", SCHEMES, ids=str)
@pytest.mark.parametrize("m", ROWS)
def test_compressed(benchmark: Any, m: int, scheme: tuple[str, int | None, bool]) -> None:
    call, arguments = compressed_product(m, scheme)
    nbytes = total_nbytes(arguments[0])
    benchmark.extra_info.update(isa=call.kernel.isa, threads=1, flops=2 * m * 4096**2, nbytes=nbytes)
    benchmark(runner(call, arguments))


@pytest.mark.parametrize("dtype", ["f32", "f32 as bf16", "bf16"])
@pytest.mark.parametrize("shape", CONVOLUTIONS, ids=str)
def test_convolution(benchmark: Any, shape: tuple[int, ...], dtype: str) -> None:
    call, arguments = convolution(shape, dtype)
    ic, oc, size, kernel, stride = shape
    flops = 2 * oc * ic * kernel**2 * (-(-size // stride)) ** 2
    benchmark.extra_info.update(isa=call.kernel.isa, threads=1, flops=flops, nbytes=total_nbytes(arguments[0]))
    benchmark.extra_info["dtype"] = "f32" if dtype == "f32" else "bf16"
    benchmark(runner(call, arguments))


def main() -> None:
    parser = argparse.ArgumentParser(description="Narrow types against float32, on one thread.")
    parser.add_argument("--seconds", type=float, default=0.3, help="time to spend on each figure")
    chosen = parser.parse_args()
    with threadpool_limits(1):
        print_products(chosen.seconds)
        for int8 in (False, True):
            print_compressed(chosen.seconds, 1, int8=int8)
            print_compressed(chosen.seconds, 2, int8=int8)
        print_convolutions(chosen.seconds)


if __name__ == "__main__":
    main()
