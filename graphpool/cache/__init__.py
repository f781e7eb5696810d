"""Caches, each bounded and safe at any moment.

    lru.py           LruCache: bounded in entries and bytes           _check.py  _callbacks.py  _fork.py  _stats.py
    _flight.py       single flight: one produces, the others wait     what all caches share

Nothing here knows of graphs, memory pools or kernels.
"""

from ._stats import CacheStats
from .lru import LruCache

__all__ = ["CacheStats", "LruCache"]
