"""How many threads the process may use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from .. import config
from .cgroups import MEMBERSHIP, ROOT, group_folders

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
    quotas = [
        _read_v2(folder / "cpu.max") if version == 2 else _read_v1(folder)
        for version, folder in group_folders("cpu", root, membership)
    ]
    limits = [quota for quota in quotas if quota is not None]
    return min(limits) if limits else None


def _read_v2(file: Path) -> float | None:
    try:
        quota, period = file.read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _read_v1(folder: Path) -> float | None:
    try:
        quota = int((folder / "cpu.cfs_quota_us").read_text())
        return None if quota < 0 else quota / int((folder / "cpu.cfs_period_us").read_text())
    except (OSError, ValueError, ZeroDivisionError):
        return None
