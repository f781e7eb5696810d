"""Caches, each bounded and safe at any moment.

    lru.py           LruCache: bounded in entries and bytes           _check.py  _callbacks.py  _fork.py  _stats.py
    constants.py     ConstantTensorCache: constants of one device     what all caches share
    _handle.pyx      ConstantBuffer and ConstantHandle: the memory of a constant, and its use without a look-up
    _flight.py       single flight: one produces, the others wait
    policies.py      who leaves a full constant cache; cost_policy.py, replay.py: the simulator of policies

Nothing here knows of graphs, memory pools or kernels.
"""

from ._handle import ConstantBuffer, ConstantHandle
from ._stats import CacheStats
from .constants import ConstantTensorCache, Outcome, Reservation
from .lru import LruCache
from .policies import Item, Policy

__all__ = [
    "CacheStats",
    "ConstantBuffer",
    "ConstantHandle",
    "ConstantTensorCache",
    "Item",
    "LruCache",
    "Outcome",
    "Policy",
    "Reservation",
]
