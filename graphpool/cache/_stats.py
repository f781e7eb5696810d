"""The records that caches report."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CacheStats:
    """Counters of a cache at one instant.

    Attributes
    ----------
    hits, misses : int
        Lookups that found a value (also after waiting for its producer), and those that did not.
    evictions : int
        Entries that have left, for whatever reason.
    declined : int
        Newcomers that were not kept, because they did not fit.
    entries, nbytes : int
        What is held and being produced now. Unit of `nbytes`: bytes.
    capacity : int or None
        Most entries; None is no bound.
    capacity_nbytes : int or None
        Most bytes; None is no bound. Unit: bytes.
    """

    hits: int
    misses: int
    evictions: int
    declined: int
    entries: int
    nbytes: int
    capacity: int | None
    capacity_nbytes: int | None
