"""How near products with packed weights come to what one core can do.

    python -m bench.bench_packed [--seconds 0.3] [--isa avx2]    a table, with ceilings measured in the same run
    pytest bench/bench_packed.py --benchmark-only                the same products as pytest-benchmark cases

Times are processor time of one thread, the least of many calls, less what an empty call costs: other work on the
machine can only add to them, through the caches and the memory that it shares. Kernels that run longer than a slice of
the scheduler are timed in parts that run one after the other, and the least times of the parts added up; NumPy has no
parts. A product that reads its weights from memory ("cold") walks through copies that no cache holds. One thread.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from bench.ceilings import best_time, best_times, dot_rate, read_rate
from graphpool._kernels.core import (
    _blas,  # noqa: F401 - BLAS is loaded first: limits of threads then hold for it
    _dispatch,
)
from graphpool._kernels.core.call import KernelCall
from graphpool._kernels.eltwise.eltwise import EltwiseBuilder
from graphpool._kernels.gemm.matmul import matmul
from graphpool._kernels.gemm.packed import PackedFormat
from graphpool._kernels.gemm.post_ops import PostOps
from graphpool._kernels.gemm.problem import MatmulProblem

SHAPES = [
    *((m, 768, 3072) for m in (1, 2, 3, 4, 8, 16, 64, 168)),
    *((m, 3072, 768) for m in (1, 4, 16, 128)),
    (1, 768, 768), (16, 768, 768), (128, 1024, 1024), (1024, 1024, 1024), (2048, 2048, 2048),
    (16, 64, 64), (256, 256, 256), (1, 2048, 1000), (64, 8192, 1024),
]  # fmt: skip
"""(m, k, n)."""

COLD = [(1, 768, 3072), (4, 768, 3072), (16, 768, 3072), (64, 768, 3072)]
COLD_NBYTES = 192 << 20
DTYPES = ("f32", "bf16", "s8")
PART_S = 1e-3


def operands(shape: tuple[int, int, int], dtype: str = "f32") -> tuple[Any, Any]:
    """Activations, and weights as they are before packing."""
    m, k, n = shape
    rng = np.random.default_rng(0)
    if dtype == "s8":
        return rng.integers(0, 256, (m, k)).astype(np.uint8), rng.integers(-128, 128, (k, n)).astype(np.int8)
    return rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)


def aligned_empty(nbytes: int) -> Any:
    """Bytes that begin on a cache line, as packed weights should: vectors that straddle two lines are slow."""
    room = np.empty(nbytes + 63, np.uint8)
    first = -room.ctypes.data % 64
    return room[first : first + nbytes]


def total_nbytes(arrays: Iterable[Any]) -> int:
    """Bytes of all of them: what a call reads and writes at least."""
    return sum(array.nbytes for array in arrays)


def packed_product(
    shape: tuple[int, int, int], dtype: str = "f32", isa: str | None = None, copies: int = 1, **options: Any
) -> tuple[KernelCall, list[tuple[Any, ...]]]:
    """A product and its arguments, once for each copy of the weights."""
    m, k, n = shape
    a, b = operands(shape, dtype)
    layout = PackedFormat(k, n, dtype, batch=copies, isa=isa)
    weights = aligned_empty(layout.nbytes).reshape(copies, layout.pitch)
    b_dtype = "s8" if dtype == "s8" else "f32"
    layout.pack((n, 1), batch_shape=(copies,), batch_strides=(0,), b_dtype=b_dtype)(b, weights)
    problem = MatmulProblem((), m, n, k, (k, 1), (n,), "u8" if dtype == "s8" else "f32")
    call = replace(layout, batch=1).matmul(problem, PostOps(**options))
    extra = [np.ones(n, np.float32)] * ((dtype == "s8") + bool(options.get("bias")))
    dst = np.empty((m, n), np.float32)
    return call, [(a, one, *extra, dst) for one in weights]


def plain_product(shape: tuple[int, int, int], impl: str, isa: str | None = None) -> tuple[KernelCall, Any]:
    """The same by the builder that takes weights as they are."""
    m, k, n = shape
    call = matmul(MatmulProblem((), m, n, k, (k, 1), (n,)), (n, 1), impl=impl, isa=isa)
    return call, (*operands(shape), np.empty((m, n), np.float32))


def runner(call: KernelCall, arguments: list[tuple[Any, ...]], begin: int = 0, end: int | None = None) -> Any:
    """A function that runs the tasks [begin, end) on the next arguments in turn."""
    last, turn = call.ntasks if end is None else end, [0]

    def run() -> None:
        turn[0] = (turn[0] + 1) % len(arguments)
        _dispatch.call(call.kernel, call.params, arguments[turn[0]], begin, last, call.scratch_nbytes)

    return run


def seconds_of(call: KernelCall, arguments: list[tuple[Any, ...]], seconds: float) -> float:
    """Time of a product without the door: the sum of the least times of its parts of about a millisecond."""
    whole = best_time(runner(call, arguments), seconds / 4)
    parts = min(max(round(whole / PART_S), 1), call.ntasks)
    cuts = [call.ntasks * part // parts for part in range(parts + 1)]
    runs = [runner(call, arguments, begin, end) for begin, end in itertools.pairwise(cuts)]
    door = best_time(runner(call, arguments, 0, 0), 0.02)
    return sum(best_times(runs, seconds)) - parts * door


def numpy_seconds(shape: tuple[int, int, int], seconds: float) -> float:
    """Time of ``np.matmul`` on one thread."""
    a, b = operands(shape)
    dst = np.empty((shape[0], shape[2]), np.float32)
    with threadpool_limits(1):
        return best_time(lambda: np.matmul(a, b, out=dst), seconds)


def print_f32(seconds: float, isa: str | None) -> None:
    """The table of f32: time, share of the FMA peak, and for few rows share of the read bandwidth."""
    peak = dot_rate("f32", seconds, isa)
    assert peak is not None
    print(f"f32 FMA on registers: {peak / 1e9:.1f} GFLOP/s\n")
    print("| m x k x n | packed us | GFLOP/s | of peak | B GB/s | of reading | simd us | blas us | numpy us |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    for shape in SHAPES:
        m, k, n = shape
        t = seconds_of(*packed_product(shape, isa=isa), seconds)
        reading = f"{4 * k * n / t / read_rate(4 * k * n, seconds=seconds):.0%}" if m <= 3 else ""
        others = [
            seconds_of(call, [args], seconds) for call, args in (plain_product(shape, i, isa) for i in ("simd", "blas"))
        ]
        row = [t * 1e6, 2 * m * k * n / t / 1e9]
        print(
            f"| {m} x {k} x {n} | {row[0]:.1f} | {row[1]:.1f} | {2 * m * k * n / t / peak:.1%} | "
            f"{4 * k * n / t / 1e9:.1f} | {reading} | {others[0] * 1e6:.1f} | {others[1] * 1e6:.1f} | "
            f"{numpy_seconds(shape, seconds) * 1e6:.1f} |",
            flush=True,
        )


def print_cold(seconds: float, isa: str | None) -> None:
    """Weights from memory."""
    print("\n| m x k x n, weights cold | packed us | GFLOP/s | B GB/s | of reading |")
    print("|---|---:|---:|---:|---:|")
    for shape in COLD:
        m, k, n = shape
        copies = COLD_NBYTES // (4 * k * n)
        t = seconds_of(*packed_product(shape, isa=isa, copies=copies), 3 * seconds)
        rate = read_rate(4 * k * n, copies=copies, seconds=3 * seconds)
        print(
            f"| {m} x {k} x {n} | {t * 1e6:.1f} | {2 * m * k * n / t / 1e9:.1f} | {4 * k * n / t / 1e9:.1f} | "
            f"{4 * k * n / t / rate:.0%} |",
            flush=True,
        )


def print_narrow(seconds: float, isa: str | None) -> None:
    """bf16 and 8-bit integers beside f32."""
    peaks = {dtype: dot_rate(dtype, seconds, isa) for dtype in DTYPES}
    print("\n| m x k x n | " + " | ".join(f"{d} us | of peak" for d in DTYPES) + " |")
    print("|---|" + "---:|" * 6)
    for shape in SHAPES[:-3]:
        m, k, n = shape
        cells = []
        for dtype, peak in peaks.items():
            t = seconds_of(*packed_product(shape, dtype, isa), seconds)
            cells += [f"{t * 1e6:.1f}", f"{2 * m * k * n / t / peak:.0%}" if peak else ""]
        print(f"| {m} x {k} x {n} | " + " | ".join(cells) + " |", flush=True)


def post_ops(m: int, n: int) -> dict[str, tuple[dict[str, Any], list[Any]]]:
    """What may happen to sums, as (options, arguments between the weights and dst)."""
    row, whole = np.ones(n, np.float32), np.ones((m, n), np.float32)
    builder = EltwiseBuilder((m, n))
    builder.store(0, "f32", None, builder.unary("gelu_erf", builder.acc()))
    gelu = {"epilogue": builder.epilogue(), "dst_needs_scratch": False}
    return {
        "nothing": ({}, []),
        "bias": ({"bias": True}, [row]),
        "bias, ReLU": ({"bias": True, "clamp": (0, np.inf)}, [row]),
        "bias, residual, ReLU": ({"bias": True, "clamp": (0, np.inf), "residual_strides": (n,)}, [row, whole]),
        "bias, GELU (epilogue)": ({"bias": True, **gelu}, [row]),
    }


def print_post_ops(seconds: float, isa: str | None) -> None:
    """What post-operations add."""
    k, n = 768, 3072
    print("\n| post-ops of m x 768 x 3072, us | m = 1 | m = 16 | m = 128 |")
    print("|---|---:|---:|---:|")
    rows: dict[str, list[str]] = {}
    for m in (1, 16, 128):
        _, [(a, weights, dst)] = packed_product((m, k, n), isa=isa)
        for name, (options, extra) in post_ops(m, n).items():
            problem = MatmulProblem((), m, n, k, (k, 1), (n,))
            call = PackedFormat(k, n, isa=isa).matmul(problem, PostOps(**options))
            t = seconds_of(call, [(a, weights, *extra, dst)], seconds)
            rows.setdefault(name, []).append(f"{t * 1e6:.1f}")
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")


def print_packing(seconds: float, isa: str | None) -> None:
    """What packing costs, once."""
    k, n = 768, 3072
    print("\n| packing 768 x 3072 | us | read + written GB/s |")
    print("|---|---:|---:|")
    for dtype in DTYPES:
        layout, (_, b) = PackedFormat(k, n, dtype, isa=isa), operands((1, k, n), dtype)
        room = aligned_empty(layout.nbytes)
        for name, strides in (("by rows", (n, 1)), ("transposed", (1, k))):
            call = layout.pack(strides, b_dtype="s8" if dtype == "s8" else "f32")
            t = seconds_of(call, [(b, room)], seconds)
            print(f"| {dtype} {name} | {t * 1e6:.0f} | {(b.nbytes + layout.nbytes) / t / 1e9:.1f} |")


pytestmark = pytest.mark.benchmark(group="products")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_packed(benchmark: Any, shape: tuple[int, int, int], dtype: str) -> None:
    call, arguments = packed_product(shape, dtype, bias=True, clamp=(0, np.inf))
    m, k, n = shape
    nbytes = total_nbytes(arguments[0])
    benchmark.extra_info.update(isa=call.kernel.isa, threads=1, dtype=dtype, flops=2 * m * k * n, nbytes=nbytes)
    benchmark(runner(call, arguments))


@pytest.mark.parametrize("impl", ["simd", "blas"])
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_plain(benchmark: Any, shape: tuple[int, int, int], impl: str) -> None:
    call, arguments = plain_product(shape, impl)
    m, k, n = shape
    benchmark.extra_info.update(isa=call.kernel.isa, threads=1, flops=2 * m * k * n, nbytes=total_nbytes(arguments))
    with threadpool_limits(1):
        benchmark(runner(call, [arguments]))


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "x".join(map(str, shape)))
def test_numpy(benchmark: Any, shape: tuple[int, int, int]) -> None:
    a, b = operands(shape)
    (m, k, n), dst = shape, np.empty((shape[0], shape[2]), np.float32)
    benchmark.extra_info.update(threads=1, flops=2 * m * k * n, nbytes=total_nbytes((a, b, dst)))
    with threadpool_limits(1):
        benchmark(np.matmul, a, b, out=dst)


def main() -> None:
    parser = argparse.ArgumentParser(description="Products with packed weights against the ceilings of one core.")
    parser.add_argument("--seconds", type=float, default=0.3, help="time to spend on each figure")
    parser.add_argument("--isa", choices=_dispatch.isas(), help="instruction set (default: the best)")
    chosen = parser.parse_args()
    print(f"instruction set: {chosen.isa or _dispatch.isas()[-1]}")
    with threadpool_limits(1):
        for part in (print_f32, print_cold, print_narrow, print_post_ops, print_packing):
            part(chosen.seconds, chosen.isa)


if __name__ == "__main__":
    main()
