"""What was measured on this machine, for the process and on disk: steps, whole programs, stages."""

from __future__ import annotations

import platform
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from .. import config
from .._kernels.core._dispatch import isas
from ..cache.identity import digest_of_text
from ..schedule.latency import LatencyCache

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["cost_key", "has_costs", "program_key", "stage_key", "stage_latencies", "step_costs"]


@cache
def step_costs() -> LatencyCache:
    """Measured costs of steps and programs in this process; starts from the file of ``GRAPHPOOL_STEP_COSTS``."""
    return LatencyCache(config.get("step_costs"), machine=_machine())


@cache
def stage_latencies() -> LatencyCache:
    """Measured latencies of stages, by `stage_key`; starts from the file beside that of the steps."""
    from pathlib import Path

    path = config.get("step_costs")
    return LatencyCache(None if path is None else Path(path).with_suffix(".stages.json"), machine=_machine())


def has_costs() -> bool:
    """Whether anything was measured on which schedules depend, in this process or in a file."""
    caches = step_costs, stage_latencies
    return config.get("step_costs") is not None or any(one.cache_info().currsize and one().version for one in caches)


def cost_key(signature: str, threads: int) -> str:
    """Under which `step_costs` knows what a step takes on so many threads."""
    return LatencyCache.key([[signature, f"{threads} threads"]])


def program_key(signature: str, policy: str, streams: int, threads: int) -> str:
    """Under which `step_costs` knows what a whole program takes on the streams of a policy."""
    return LatencyCache.key([[signature, policy, f"{streams} streams", f"{threads} threads"]])


def stage_key(streams: Iterable[Sequence[str]], threads: int) -> str:
    """Under which `stage_latencies` knows what steps take that run side by side on so many threads.

    Steps go by digests of their signatures: searches make a key for each of many thousand stages.
    """
    rows = sorted([" ".join([_digest(signature) for signature in stream]) for stream in streams])
    return f"{threads} threads: {' | '.join(rows)}"


@lru_cache(maxsize=65536)
def _digest(signature: str) -> str:
    return digest_of_text(signature.encode()).hex()[:24]


def _machine() -> str:
    """What latencies depend on beside the work: the processor and the instruction set in use."""
    return f"{platform.machine()} {_processor()} {isas()[-1]}"


def _processor() -> str:
    """The processor's name, where the system tells it."""
    from pathlib import Path

    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
