"""Memory: where it comes from, how much is needed, who may use which bytes when.

    _check.py        checks and errors that all share          _fork.py   what survives a fork
    _host.pyx        HostResource: the bottom of every stack   _stats.py  the counters' records
    _gate.pyx        sleeping until something changed, without a lost wake-up
    _budget.pyx      Budget: one bound in bytes over pools and caches, and the order of relief
    _arena.pyx       ArenaPool and Lease: arenas of one size, lock-free when warm
    planner.py       plan(): lifetimes to offsets; _greedy.pyx, the portfolio's passes
    plan_check.py    check_plan(): the independent judge       plan_csv.py  files

A lease is the only right to an arena. The package knows nothing of graphs, caches or kernels.
"""

from ._arena import ArenaPool, Lease
from ._budget import CONSTANTS, IDLE_ARENAS, IDLE_PRIMITIVES, Budget
from ._host import TRACE_DOMAIN, HostResource
from ._stats import ArenaStats, BudgetStats
from .plan_check import check_plan
from .plan_csv import read_csv, write_csv
from .planner import METHODS, BufferInfo, MemoryPlan, plan

__all__ = [
    "CONSTANTS",
    "IDLE_ARENAS",
    "IDLE_PRIMITIVES",
    "METHODS",
    "TRACE_DOMAIN",
    "ArenaPool",
    "ArenaStats",
    "Budget",
    "BudgetStats",
    "BufferInfo",
    "HostResource",
    "Lease",
    "MemoryPlan",
    "check_plan",
    "plan",
    "read_csv",
    "write_csv",
]
