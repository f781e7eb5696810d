"""How near int8 GEMM and convolution come to what one core can do, and how far they leave float32 behind.

    python -m bench.bench_quantized [--seconds 0.3] [--isa avx2]    tables, with the ceilings measured in the same run
    pytest bench/bench_quantized.py --benchmark-only                the same as pytest-benchmark cases

u8 by s8 to u8, a scale for each column, bias, zero points; "residual" adds a u8 tensor behind a rounding of its own, as
residual blocks in the QDQ form of ONNX do. Batch 1, channels last, one thread; times are processor time, the least of
many calls. Layers are those of ResNet-50.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
import pytest

from bench.bench_conv import Layer
from bench.bench_conv import problem as f32_layer
from bench.bench_packed import aligned_empty, packed_product, total_nbytes
from bench.ceilings import best_time, dot_rate
from graphpool._kernels.conv.int8 import Int8ConvFormat
from graphpool._kernels.conv.problem import ConvProblem, ConvShape
from graphpool._kernels.core.call import KernelCall
from graphpool._kernels.gemm.packed import PackedFormat
from graphpool._kernels.gemm.post_ops import PostOps
from graphpool._kernels.gemm.problem import MatmulProblem
from graphpool._kernels.gemm.requant import Requant, Residual, Rounding

PRODUCTS = [
    (1, 768, 3072), (16, 768, 3072), (128, 768, 3072), (128, 3072, 768), (128, 768, 768), (1024, 1024, 1024),
]  # fmt: skip
"""(m, k, n)."""

LAYERS = [
    (Layer(224, 7, 2, 3, 64), False), (Layer(56, 1, 1, 64, 64), False), (Layer(56, 3, 1, 64, 64), False),
    (Layer(56, 1, 1, 64, 256), False), (Layer(56, 1, 1, 64, 256), True), (Layer(56, 3, 2, 128, 128), False),
    (Layer(28, 1, 1, 512, 128), False), (Layer(28, 3, 1, 128, 128), False), (Layer(14, 1, 1, 256, 1024), True),
    (Layer(14, 3, 1, 256, 256), False), (Layer(7, 1, 1, 2048, 512), False), (Layer(7, 3, 1, 512, 512), False),
]  # fmt: skip
"""With whether a residual is added."""

OUTER = Rounding("u8", 0.1, 3, rounds_first=True)
PLAIN = Requant(outer=OUTER)
BLOCK = Requant(inner=Rounding("u8", 0.1, 100, rounds_first=True), residual=Residual("u8", 0.1, 3), outer=OUTER)


def random_bytes(shape: tuple[int, ...]) -> Any:
    """Of u8, as they lie behind a ReLU: the largest value stands for 4.6 deviations."""
    return np.clip(np.rint(55 * np.random.default_rng(0).standard_normal(shape)), 0, 255).astype(np.uint8)


def random_weights(shape: tuple[int, ...], channel_axis: int) -> Any:
    """Of s8, normal, the largest of each channel 127. How fast bytes are without VNNI depends on the numbers."""
    weights = np.random.default_rng(1).standard_normal(shape)
    axes = tuple(axis for axis in range(len(shape)) if axis != channel_axis)
    return np.rint(weights / np.abs(weights).max(axes, keepdims=True) * 127).astype(np.int8)


def byte_product(shape: tuple[int, int, int], isa: str | None = None) -> tuple[KernelCall, tuple[Any, ...]]:
    """A matrix product to u8 and its arguments."""
    m, k, n = shape
    weights = PackedFormat(k, n, "s8", isa=isa)
    packed = aligned_empty(weights.nbytes)
    weights.pack((n, 1))(random_weights((k, n), 1), packed)
    problem = MatmulProblem((), m, n, k, (k, 1), (n,), "u8", zero_point=120)
    call = weights.matmul(problem, PostOps(bias=True, requant=PLAIN))
    scales, bias = np.full(n, 1e-4, np.float32), np.zeros(n, np.float32)
    return call, (random_bytes((m, k)), packed, scales, bias, np.empty((m, n), np.uint8))


def byte_layer(layer: Layer, residual: bool, isa: str | None = None) -> tuple[KernelCall, tuple[Any, ...]]:
    """A convolution to u8 and its arguments."""
    ic, oc, k, size, result = layer.ic, layer.oc, layer.kernel, layer.size, layer.result
    weights = Int8ConvFormat(ConvShape(ic, oc, (k, k)), isa=isa)
    packed = aligned_empty(weights.nbytes)
    weights.pack((0, k * k * ic, k * k, k, 1))(random_weights((oc, ic, k, k), 0), packed)
    dst_strides = (0, 1, result * oc, oc)
    problem = ConvProblem.make(
        1, weights.shape, (size, size), src_strides=(0, 1, size * ic, ic), dst_strides=dst_strides, src_dtype="u8",
        zero_point=3, strides=(layer.stride, layer.stride), pads_begin=(k // 2, k // 2), pads_end=(k // 2, k // 2),
    )  # fmt: skip
    post_ops = PostOps(
        bias=True, requant=BLOCK if residual else PLAIN, residual_strides=dst_strides if residual else None
    )
    call = weights.convolution(problem, post_ops)
    pixels = (result, result, oc)
    operands = [np.full(oc, 1e-4, np.float32), np.zeros(oc, np.float32), *([random_bytes(pixels)] if residual else [])]
    return call, (random_bytes((size, size, ic)), packed, *operands, np.empty(pixels, np.uint8))


def seconds_of(problem: tuple[KernelCall, tuple[Any, ...]], seconds: float) -> float:
    """Least processor time of a call."""
    call, args = problem
    return best_time(lambda: call(*args), seconds)


def print_row(name: str, operations: float, time: float, f32: float, peak: float) -> None:
    """One line of a table."""
    rate = operations / time
    print(f"| {name} | {time * 1e6:.1f} | {rate / 1e9:.0f} | {rate / peak:.0%} | {f32 / time:.2f} |", flush=True)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--isa")
    options = parser.parse_args()
    peak = dot_rate("s8", options.seconds, options.isa)
    assert peak is not None
    print(f"int8 dot products on registers: {peak / 1e9:.1f} Gop/s\n")
    header = "us | Gop/s | of peak | times as fast as f32 |\n|---|---:|---:|---:|---:|"
    print(f"| m x k x n | {header}")
    for shape in PRODUCTS:
        m, k, n = shape
        plain, [args] = packed_product(shape, isa=options.isa, bias=True)
        f32 = seconds_of((plain, args), options.seconds)
        time = seconds_of(byte_product(shape, options.isa), options.seconds)
        print_row(f"{m} x {k} x {n}", 2 * m * k * n, time, f32, peak)
    print(f"\n| layer | {header}")
    for layer, residual in LAYERS:
        f32 = seconds_of(f32_layer(layer, "packed", options.isa), options.seconds)
        time = seconds_of(byte_layer(layer, residual, options.isa), options.seconds)
        print_row(f"{layer}{' residual' if residual else ''}", layer.flops, time, f32, peak)


pytestmark = pytest.mark.benchmark(group="int8")


@pytest.mark.parametrize("shape", PRODUCTS, ids=str)
def test_product(benchmark: Any, shape: tuple[int, int, int]) -> None:
    """One call."""
    call, args = byte_product(shape)
    flops, nbytes = 2 * np.prod(shape).item(), total_nbytes(args)
    benchmark.extra_info.update(flops=flops, nbytes=nbytes, dtype="s8", isa=call.kernel.isa, threads=1)
    benchmark(call, *args)


@pytest.mark.parametrize(("layer", "residual"), LAYERS, ids=str)
def test_layer(benchmark: Any, layer: Layer, residual: bool) -> None:
    """One call."""
    call, args = byte_layer(layer, residual)
    nbytes = total_nbytes(args)
    benchmark.extra_info.update(flops=layer.flops, nbytes=nbytes, dtype="s8", isa=call.kernel.isa, threads=1)
    benchmark(call, *args)


if __name__ == "__main__":
    main()
