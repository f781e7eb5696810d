"""What benchmarks share under pytest: figures that follow from the least time and from what a benchmark counted.

A benchmark puts into ``benchmark.extra_info`` what one call does: `flops` (operations, a multiply-add is two), `nbytes`
(read and written at least), `threads` (1 unless it says so) and `dtype` (of the products: f32, bf16 or s8; f32 unless
it says so). Behind it this adds `gflop_per_s`, `gb_per_s` and `share_of_ceiling`: the time that this processor needs at
least, for its operations or for its bytes, whichever takes longer, by the time that was measured. Inputs are
counted whole, and operations on padding too: a gather, or a convolution that skips them, may have a share above 1.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from bench.ceilings import dot_rate, read_rate

SMALLEST_LOG2, LARGEST_LOG2 = 18, 26
"""Reading fewer bytes is over before the clock can tell; reading more goes at the rate of memory."""


@cache
def operations_per_s(dtype: str) -> float | None:
    """The ceiling of one core, measured once; None where there is no C compiler or no such instruction."""
    return dot_rate(dtype) if shutil.which("cc") else None


@cache
def bytes_per_s(log2_nbytes: int) -> float | None:
    """The same for reading as many bytes again and again."""
    return read_rate(1 << log2_nbytes, seconds=0.1) if shutil.which("cc") else None


def figures(counted: dict[str, Any], seconds: float) -> dict[str, float]:
    """What follows from counts and the time of one call; nothing from what was not counted."""
    flops, nbytes, found = counted.get("flops", 0), counted.get("nbytes", 0), {}
    threads, least_s = counted.get("threads", 1), []
    if flops:
        found["gflop_per_s"] = flops / seconds / 1e9
        rate = operations_per_s(counted.get("dtype", "f32"))
        least_s += [flops / rate / threads] if rate else []
    if nbytes:
        found["gb_per_s"] = nbytes / seconds / 1e9
        rate = bytes_per_s(min(max(nbytes.bit_length(), SMALLEST_LOG2), LARGEST_LOG2))
        least_s += [nbytes / rate / threads] if rate else []
    if least_s and len(least_s) == bool(flops) + bool(nbytes):
        found["share_of_ceiling"] = max(least_s) / seconds
    return {name: float(f"{value:.4g}") for name, value in found.items()}


@pytest.fixture(autouse=True)
def derived_figures(request: pytest.FixtureRequest) -> Iterator[None]:
    """Add them behind each benchmark that ran."""
    if "benchmark" not in request.fixturenames:
        yield
        return
    benchmark = request.getfixturevalue("benchmark")
    yield
    if benchmark.stats is not None:
        benchmark.extra_info.update(figures(benchmark.extra_info, benchmark.stats.stats.min))
