"""Memory: where it comes from, how much is needed, who may use which bytes when.

    group.py         MemoryGroup, TensorAllocator: what a function holds
    managers.py      MemoryManagerOnDemand, MemoryManagerCached, PoolManager
    lifetime.py      BlobLifetimeManager, OffsetLifetimeManager: layouts from the order of uses
    planner.py       plan(): lifetimes to offsets; _greedy.pyx its passes, _search.pyx the exact search
                     plan_conflicts(): what must lie apart to offsets, for programs on several streams
                     read_csv(), write_csv(): buffers in files
    plan_check.py    check_plan(): the independent judge    user_planner.py: what a planner of the user's has to be
    _arena.pyx       ArenaPool: arenas of one size, lock-free when warm; a resource too
    _slots.pyx       their states    _lease.pyx the right to one    _wait_queue.pyx who waits for one
    _budget.pyx      Budget: one bound in bytes over pools and caches, and the order of relief
    _arrays.pyx      ArrayAllocator: NumPy arrays that a budget counts until they are gone
    adaptors.py      resources that limit, count, track, log, retry, or call back to the user
    snapshot.py      SnapshotResource: what was allocated when, for PyTorch's memory viewer
    _host.pyx        HostResource: the bottom of every stack
    _gate.pyx        sleeping until something changed, without a lost wake-up
    cuda/            memory of GPUs; imported on demand only
    _check.py, _stats.py   shared checks and errors, records

A lease is the only right to an arena. The package knows nothing of graphs, caches or kernels.
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names

if TYPE_CHECKING:
    from ._arena import ArenaPool
    from ._budget import Budget
    from ._host import CONSTANTS_TRACE_DOMAIN, TRACE_DOMAIN, HostResource
    from ._stats import AllocationStats, ArenaStats, BudgetStats
    from .adaptors import (
        CallbackResource,
        FailureCallbackResource,
        LimitingResource,
        LoggingResource,
        StatisticsResource,
        TrackingResource,
    )
    from .group import MemoryGroup, TensorAllocator
    from .lifetime import BlobLifetimeManager, OffsetLifetimeManager
    from .managers import MemoryManagerCached, MemoryManagerOnDemand, PoolManager
    from .plan_check import check_plan
    from .planner import BufferInfo, MemoryPlan, plan, read_csv, write_csv
    from .snapshot import SnapshotResource
    from .user_planner import Planner

_HOMES = {
    "ArenaPool": "_arena",
    "Budget": "_budget",
    **dict.fromkeys(["CONSTANTS_TRACE_DOMAIN", "TRACE_DOMAIN", "HostResource"], "_host"),
    **dict.fromkeys(["AllocationStats", "ArenaStats", "BudgetStats"], "_stats"),
    **dict.fromkeys(
        ["CallbackResource", "FailureCallbackResource", "LimitingResource", "LoggingResource", "StatisticsResource",
         "TrackingResource"], "adaptors",
    ),
    **dict.fromkeys(["MemoryGroup", "TensorAllocator"], "group"),
    **dict.fromkeys(["BlobLifetimeManager", "OffsetLifetimeManager"], "lifetime"),
    **dict.fromkeys(["MemoryManagerCached", "MemoryManagerOnDemand", "PoolManager"], "managers"),
    "check_plan": "plan_check",
    **dict.fromkeys(["BufferInfo", "MemoryPlan", "plan", "read_csv", "write_csv"], "planner"),
    "SnapshotResource": "snapshot",
    "Planner": "user_planner",
}  # fmt: skip
__getattr__, __dir__ = lazy_names(__name__, _HOMES)

__all__ = [
    "CONSTANTS_TRACE_DOMAIN",
    "TRACE_DOMAIN",
    "AllocationStats",
    "ArenaPool",
    "ArenaStats",
    "BlobLifetimeManager",
    "Budget",
    "BudgetStats",
    "BufferInfo",
    "CallbackResource",
    "FailureCallbackResource",
    "HostResource",
    "LimitingResource",
    "LoggingResource",
    "MemoryGroup",
    "MemoryManagerCached",
    "MemoryManagerOnDemand",
    "MemoryPlan",
    "OffsetLifetimeManager",
    "Planner",
    "PoolManager",
    "SnapshotResource",
    "StatisticsResource",
    "TensorAllocator",
    "TrackingResource",
    "check_plan",
    "plan",
    "read_csv",
    "write_csv",
]
