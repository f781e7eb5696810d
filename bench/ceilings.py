"""What one core can do at most: multiply-adds on registers, and reading as many bytes as a problem has.

The loops are C, compiled for this very processor when a benchmark asks for them; nothing of graphpool is in them.
"""

from __future__ import annotations

import ctypes
import math
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import numpy as np

__all__ = ["best_time", "best_times", "cpu_time", "dot_rate", "read_rate"]

_SOURCE = r"""
#include <string.h>
#ifdef __AVX512F__
#define LANES 16
#define CHAINS 24
#elif defined(__AVX__)
#define LANES 8
#define CHAINS 12
#else
#define LANES 4
#define CHAINS 12
#endif
typedef float vec __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

int lanes(void) { return LANES * CHAINS; }

float f32(long steps)
{
    vec a, b, acc[CHAINS];
    for (int i = 0; i < LANES; i++) { a[i] = 0.999f; b[i] = 1e-3f; }
#pragma GCC unroll 24
    for (int c = 0; c < CHAINS; c++) acc[c] = b * (float)c;
    for (long n = 0; n < steps; n++)
#pragma GCC unroll 24
        for (int c = 0; c < CHAINS; c++) acc[c] = acc[c] * a + b;
#pragma GCC unroll 24
    for (int c = 1; c < CHAINS; c++) acc[0] += acc[c];
    return acc[0][0];
}

/* Constant indices after unrolling, or accumulators would live in memory. */
#define DOT(name, instruction)                                                                                         \
    float name(long steps)                                                                                             \
    {                                                                                                                  \
        vec a, acc[CHAINS];                                                                                            \
        memset(&a, 3, sizeof a);                                                                                       \
        _Pragma("GCC unroll 24") for (int c = 0; c < CHAINS; c++) acc[c] = (vec){0};                                   \
        for (long n = 0; n < steps; n++)                                                                               \
            _Pragma("GCC unroll 24") for (int c = 0; c < CHAINS; c++)                                                  \
                __asm__ volatile(instruction " %1,%1,%0" : "+v"(acc[c]) : "v"(a));                                     \
        _Pragma("GCC unroll 24") for (int c = 1; c < CHAINS; c++) acc[0] += acc[c];                                    \
        return acc[0][0];                                                                                              \
    }
#ifdef __AVX512BF16__
DOT(bf16, "vdpbf16ps")
#endif
#ifdef __AVX512VNNI__
DOT(s8, "vpdpbusd")
#elif defined(__AVXVNNI__)
DOT(s8, "%{vex%} vpdpbusd")
#elif defined(__AVX2__) && !defined(__AVX512F__)
/* Without that instruction: of two words that follow each other, products are added in s16, then widened. */
float s8(long steps)
{
    vec a, one, first, second, acc[CHAINS];
    memset(&a, 1, sizeof a);
    memset(&one, 1, sizeof one);
    _Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++) acc[c] = (vec){0};
    for (long n = 0; n < steps; n += 2)
        _Pragma("GCC unroll 12") for (int c = 0; c < CHAINS; c++)
            __asm__ volatile("vpmaddubsw %3,%3,%1\n\tvpmaddubsw %3,%3,%2\n\tvpaddw %2,%1,%1\n\t"
                             "vpmaddwd %4,%1,%1\n\tvpaddd %1,%0,%0"
                             : "+x"(acc[c]), "=&x"(first), "=&x"(second)
                             : "x"(a), "x"(one));
    _Pragma("GCC unroll 12") for (int c = 1; c < CHAINS; c++) acc[0] += acc[c];
    return acc[0][0];
}
#endif

float read_all(const float *from, long n)
{
    vec sum[8];
    memset(sum, 0, sizeof sum);
    for (long i = 0; i + 8 * LANES <= n; i += 8 * LANES)
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) sum[j] += *(const vec *)(from + i + j * LANES);
    for (int j = 1; j < 8; j++) sum[0] += sum[j];
    return sum[0][0];
}
"""

_TERMS = {"f32": 1, "bf16": 2, "s8": 4}


_FLAGS = {"avx2": ["-mavx2", "-mfma"], "avx2_vnni": ["-mavx2", "-mfma", "-mavxvnni"]}
"""For which instruction sets there are ceilings of their own; those of the processor otherwise."""


@cache
def _library(isa: str | None = None) -> ctypes.CDLL:
    """The compiled loops; the file is gone once it is loaded."""
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "ceilings.c"), Path(folder, "ceilings.so")
        source.write_text(_SOURCE)
        own = _FLAGS.get(isa or "", ["-march=native"])
        flags = ["-O3", *own, "-ffp-contract=fast", "-shared", "-fPIC"]
        subprocess.run(["cc", *flags, "-o", library, source], check=True)
        loaded = ctypes.CDLL(str(library))
    for name in ("f32", "bf16", "s8"):
        if hasattr(loaded, name):
            getattr(loaded, name).argtypes = [ctypes.c_long]
    loaded.read_all.argtypes = [ctypes.c_void_p, ctypes.c_long]
    return loaded


def cpu_time() -> float:
    """Processor time of this thread. Unit: seconds."""
    return time.thread_time_ns() * 1e-9


def best_times(works: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """The least processor time of each of `works`, run in turn for `seconds`, at least five times. Unit: seconds."""
    best, end, rounds = [math.inf] * len(works), time.monotonic() + seconds, 0
    while rounds < 5 or time.monotonic() < end:
        for number, work in enumerate(works):
            start = cpu_time()
            work()
            best[number] = min(best[number], cpu_time() - start)
        rounds += 1
    return best


def best_time(work: Callable[[], object], seconds: float) -> float:
    """`best_times` of one."""
    return best_times([work], seconds)[0]


def dot_rate(dtype: str, seconds: float = 0.3, isa: str | None = None) -> float | None:
    """Operations per second (a multiply-add is two) of f32 FMA, or of dot products of bf16 or bytes (None: no such).

    Of the processor, or of what one has that ends with an instruction set of `_FLAGS`.
    """
    library, steps = _library(isa), 100_000
    if not hasattr(library, dtype):
        return None
    loop = getattr(library, dtype)
    took = best_time(lambda: loop(steps), seconds) - best_time(lambda: loop(0), 0.02)
    return float(2 * _TERMS[dtype] * library.lanes() * steps / took)


def read_rate(nbytes: int, *, copies: int = 1, seconds: float = 0.3) -> float:
    """Bytes per second of reading `nbytes` again and again, or as many in each of `copies` places in turn."""
    library, room = _library(), np.ones((copies, max(nbytes // 4, 1)), np.float32)
    turn = [0]

    def read(length: int) -> None:
        turn[0] = (turn[0] + 1) % copies
        library.read_all(room[turn[0]].ctypes.data, length)

    return nbytes / (best_time(lambda: read(room.shape[1]), seconds) - best_time(lambda: read(0), 0.02))
