"""The machine that schedules reckon with until `profile_ops` has measured: guesses, for servers from 2020 on.

Nothing depends on them but where steps are placed; results do not. Kernels keep the figures by which they choose
between their own variants beside them, with the processor on which those were measured.
"""

from __future__ import annotations

__all__ = [
    "CACHED_NBYTES",
    "EVENT_COST_S",
    "MEMORY_BANDWIDTH",
    "SHARED_STEP_S",
    "STEP_S",
    "THREAD_BANDWIDTH",
    "THREAD_FLOPS",
]

MEMORY_BANDWIDTH = 20e9
"""What all threads together get of main memory: two channels. Unit: bytes a second."""

THREAD_BANDWIDTH = 8e9
"""What one thread moves. Unit: bytes a second."""

THREAD_FLOPS = {
    "generic": 10e9,
    "avx2": 60e9,
    "avx2_vnni": 60e9,
    "avx512": 100e9,
    "avx512_bf16": 100e9,
    "avx512_amx": 100e9,
    "neon": 25e9,
    "neon_dotprod": 25e9,
}
"""Operations a second of one thread, by instruction set."""

CACHED_NBYTES = 8 << 20
"""What a step touches is taken to lie in a cache up to this size. Unit: bytes."""

STEP_S = 0.2e-6
"""An empty step. Unit: seconds."""

SHARED_STEP_S = 1e-6
"""What sharing a step among threads adds. Unit: seconds."""

EVENT_COST_S = 1e-6
"""From the end of a step to the start of one on another stream: what a spinning thread takes to see it."""
