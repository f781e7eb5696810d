"""How many threads the process may use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .. import config
from .cgroups import MEMBERSHIP, ROOT, group_folders, text_of

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["available_threads"]


def available_threads() -> int:
    """Threads that an engine uses by default.

    Returns
    -------
    count : int
        ``GRAPHPOOL_NUM_THREADS`` or ``OMP_NUM_THREADS`` when set; else the processors of the affinity mask, at most
        the quota of the process's cgroup (v1 or v2), at least 1.
    """
    configured: int | None = config.get("num_threads")
    if configured is not None:
        return configured
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, affinity if quota is None else min(affinity, int(quota)))


def _cgroup_quota(root: str | Path = ROOT, membership: str | Path = MEMBERSHIP) -> float | None:
    """Processors that the control groups grant, or None when they set no limit."""
    found = [
        _processors(text_of(f"{folder}/cpu.max") if version == 2 else _quota_and_period(folder))
        for version, folder in group_folders("cpu", root, membership)
    ]
    return min((quota for quota in found if quota is not None), default=None)


def _quota_and_period(folder: str) -> str:
    """Of a group of version 1, as version 2 has them in one file."""
    return " ".join(text_of(f"{folder}/cpu.cfs_{name}_us") for name in ("quota", "period"))


def _processors(text: str) -> float | None:
    try:
        quota, period = text.split()
        return None if quota == "max" or int(quota) < 0 else int(quota) / int(period)
    except (ValueError, ZeroDivisionError):
        return None
