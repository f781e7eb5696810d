"""How near convolutions with packed weights come to what one core can do, and what Winograd saves.

    python -m bench.bench_conv [--seconds 0.3] [--isa avx2]    a table, with the FMA ceiling measured in the same run
    pytest bench/bench_conv.py --benchmark-only                the same layers as pytest-benchmark cases

Channels last, batch 1, bias and ReLU, one thread; times are processor time, the least of many calls. Layers are those
of ResNet-50 and VGG-16, and depthwise ones of MobileNetV2.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from bench.bench_packed import aligned_empty, total_nbytes
from bench.ceilings import best_time, dot_rate
from graphpool._kernels.conv.depthwise import DepthwiseFormat
from graphpool._kernels.conv.packed import F32ConvFormat
from graphpool._kernels.conv.problem import ConvFormat, ConvProblem, ConvShape
from graphpool._kernels.conv.winograd import WinogradFormat
from graphpool._kernels.core.call import KernelCall
from graphpool._kernels.gemm.post_ops import PostOps


@dataclass(frozen=True)
class Layer:
    """A square convolution: pixels along an axis, kernel, stride, channels; depthwise where `depthwise` is set."""

    size: int
    kernel: int
    stride: int
    ic: int
    oc: int
    depthwise: bool = False

    @property
    def result(self) -> int:
        """Pixels of the result along an axis."""
        return (self.size + 2 * (self.kernel // 2) - self.kernel) // self.stride + 1

    @property
    def flops(self) -> int:
        """Operations of the direct way, those on padding included."""
        terms = self.kernel**2 * (1 if self.depthwise else self.ic)
        return 2 * self.result**2 * self.oc * terms

    def __str__(self) -> str:
        kind = "depthwise " if self.depthwise else ""
        return f"{kind}{self.size}x{self.size} k{self.kernel} s{self.stride} {self.ic}->{self.oc}"


LAYERS = [
    Layer(224, 7, 2, 3, 64), Layer(56, 1, 1, 64, 256), Layer(56, 3, 1, 64, 64), Layer(56, 3, 2, 128, 128),
    Layer(28, 3, 1, 128, 128), Layer(28, 1, 1, 512, 128), Layer(14, 3, 1, 256, 256), Layer(14, 1, 1, 1024, 256),
    Layer(7, 3, 1, 512, 512), Layer(7, 1, 1, 512, 2048), Layer(224, 3, 1, 64, 64), Layer(56, 3, 1, 256, 256),
    Layer(112, 3, 1, 32, 32, True), Layer(56, 3, 1, 144, 144, True), Layer(14, 3, 1, 384, 384, True),
]  # fmt: skip


def problem(layer: Layer, kind: str, isa: str | None = None) -> tuple[KernelCall, tuple[Any, ...]]:
    """A convolution of one kind ("packed", "winograd_2x2", "winograd_4x4" or "depthwise") and its arguments."""
    rng = np.random.default_rng(0)
    ic, oc, k, size, result = layer.ic, layer.oc, layer.kernel, layer.size, layer.result
    groups = ic if layer.depthwise else 1
    src = rng.standard_normal((size, size, ic), np.float32)
    weights = rng.standard_normal((oc, ic // groups, k, k), np.float32)
    dst, bias = np.empty((result, result, oc), np.float32), np.zeros(oc, np.float32)
    shape = ConvShape(ic, oc, (k, k), groups)
    make: dict[str, Callable[[], ConvFormat]] = {
        "packed": lambda: F32ConvFormat(shape, isa=isa),
        "winograd_2x2": lambda: WinogradFormat(shape, 2, isa=isa),
        "winograd_4x4": lambda: WinogradFormat(shape, 4, isa=isa),
        "depthwise": lambda: DepthwiseFormat(shape, isa=isa),
    }
    weights_format = make[kind]()
    packed = aligned_empty(weights_format.nbytes)
    weights_format.pack((ic // groups * k * k, ic // groups * k * k, k * k, k, 1))(weights, packed)
    asked = ConvProblem.make(
        1, shape, (size, size), src_strides=(0, 1, size * ic, ic), dst_strides=(0, 1, result * oc, oc),
        strides=(layer.stride, layer.stride), pads_begin=(k // 2, k // 2), pads_end=(k // 2, k // 2),
    )  # fmt: skip
    call = weights_format.convolution(asked, PostOps(bias=True, clamp=(0, np.inf)))
    return call, (src, packed, bias, dst)


def kinds(layer: Layer) -> list[str]:
    """What can compute the layer."""
    if layer.depthwise:
        return ["depthwise"]
    return ["packed", *(["winograd_2x2", "winograd_4x4"] if (layer.kernel, layer.stride) == (3, 1) else [])]


def seconds_of(layer: Layer, kind: str, seconds: float, isa: str | None) -> float:
    """Least processor time of a call."""
    call, args = problem(layer, kind, isa)
    return best_time(lambda: call(*args), seconds)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--isa")
    options = parser.parse_args()
    peak = dot_rate("f32", options.seconds, options.isa)
    assert peak is not None
    print(f"f32 FMA on registers: {peak / 1e9:.1f} GFLOP/s\n")
    print("| layer | direct us | GFLOP/s | of peak | F(2x2, 3x3) us | F(4x4, 3x3) us |")
    print("|---|---:|---:|---:|---:|---:|")
    for layer in LAYERS:
        times = {kind: seconds_of(layer, kind, options.seconds, options.isa) for kind in kinds(layer)}
        direct = times.get("packed") or times["depthwise"]
        minimal = [f"{times[kind] * 1e6:.0f}" if kind in times else "" for kind in ("winograd_2x2", "winograd_4x4")]
        print(
            f"| {layer} | {direct * 1e6:.0f} | {layer.flops / direct / 1e9:.1f} | {layer.flops / direct / peak:.0%} | "
            f"{minimal[0]} | {minimal[1]} |",
            flush=True,
        )


pytestmark = pytest.mark.benchmark(group="convolutions")


@pytest.mark.parametrize(("layer", "kind"), [(layer, kind) for layer in LAYERS for kind in kinds(layer)], ids=str)
def test_layer(benchmark: Any, layer: Layer, kind: str) -> None:
    """One call."""
    call, args = problem(layer, kind)
    benchmark.extra_info.update(flops=layer.flops, nbytes=total_nbytes(args), isa=call.kernel.isa, threads=1)
    benchmark(call, *args)


if __name__ == "__main__":
    main()
