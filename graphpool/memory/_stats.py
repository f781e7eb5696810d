"""The counters that pools, budgets and resources report."""

from __future__ import annotations

from graphpool._dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ArenaStats:
    """A pool at one moment. While other threads work, the counts may be of slightly different moments.

    Attributes
    ----------
    arenas, free, leased : int
        In existence (also those being created or freed), idle, in use.
    reserved : int
        Arenas that `trim` leaves.
    nbytes, peak_nbytes : int
        Memory of all arenas now, and at most. Unit: bytes.
    created, leases, waits : int
        Since the pool was made: arenas created, leases given, acquires that had to sleep.
    faults : int
        Releases of what was not leased.
    """

    arenas: int
    free: int
    leased: int
    reserved: int
    nbytes: int
    peak_nbytes: int
    created: int
    leases: int
    waits: int
    faults: int


@dataclass(frozen=True, slots=True)
class BudgetStats:
    """A budget at one moment.

    Attributes
    ----------
    limit, in_use, peak : int
        Unit: bytes.
    reclaims, refusals : int
        Times that holders were asked to give memory back, and requests refused in the end.
    """

    limit: int
    in_use: int
    peak: int
    reclaims: int
    refusals: int


@dataclass(frozen=True, slots=True)
class AllocationStats:
    """What went through a `StatisticsResource`.

    Attributes
    ----------
    current_nbytes, peak_nbytes, total_nbytes : int
        Live, most ever live, sum of all requests. Unit: bytes.
    current_count, peak_count, total_count : int
        The same of allocations.
    """

    current_nbytes: int = 0
    peak_nbytes: int = 0
    total_nbytes: int = 0
    current_count: int = 0
    peak_count: int = 0
    total_count: int = 0
