"""Caches, each bounded and safe at any moment.

    process.py       the caches of this process and their capacities: what users set
      lru.py           LruCache: primitives and compiled partitions, bounded in entries and bytes
      _recency.pyx     its order: entries by key, from the one used longest ago to the one used last
      constants.py     ConstantTensorCache: constants of one device, bounded in bytes; _entry.py: what it hands out
    _hits.pyx        its entries, and what a hit runs
    _handle.pyx      ConstantBuffer and ConstantHandle: the memory of a constant, and its use without a look-up
    _flight.py       single flight: one produces, the others wait
    policies.py      who leaves a full constant cache, by recency or cost, and how that is asked
    traces.py        a simulator of policies; several at several capacities, plotted
    identity.py      names of contents; _quick.pyx: a digest at the speed of memory, for those inside a process
    packed_folder.py PackedStore: packed weights in files that processes share; _packed_file.py: one file;
                     _digest_file.py: what the parts of a mapped file are named by; _checked_files.py: which files
                     were found undamaged
    program_folder.py  ProgramFolder: compiled programs alone, in a folder that nobody named
    sealed_store.py  SealedStore: packed weights in anonymous memory that processes share
    _bounded.py      what both share: a bound in bytes, counters, callbacks; _check.py

Nothing here knows of graphs, memory pools or kernels.
"""

from typing import TYPE_CHECKING

from .._lazy import lazy_names
from ._bounded import CacheStats
from ._handle import ConstantBuffer
from .constants import ConstantTensorCache
from .identity import PackedKey, fingerprint
from .lru import LruCache
from .policies import Item, Policy
from .process import (
    UNLIMITED_MB,
    compiled_partition_cache,
    constant_tensor_cache,
    get_compiled_partition_cache_capacity,
    get_constant_tensor_cache,
    get_constant_tensor_cache_capacity,
    get_primitive_cache_capacity,
    packed_store,
    primitive_cache,
    program_store,
    set_compiled_partition_cache_capacity,
    set_constant_tensor_cache,
    set_constant_tensor_cache_capacity,
    set_packed_store,
    set_primitive_cache_capacity,
    set_program_folder,
)

if TYPE_CHECKING:
    from .packed_folder import PackedStore
    from .traces import write_trace

__getattr__, __dir__ = lazy_names(__name__, {"PackedStore": "packed_folder", "write_trace": "traces"})

__all__ = [
    "UNLIMITED_MB",
    "CacheStats",
    "ConstantBuffer",
    "ConstantTensorCache",
    "Item",
    "LruCache",
    "PackedKey",
    "PackedStore",
    "Policy",
    "compiled_partition_cache",
    "constant_tensor_cache",
    "fingerprint",
    "get_compiled_partition_cache_capacity",
    "get_constant_tensor_cache",
    "get_constant_tensor_cache_capacity",
    "get_primitive_cache_capacity",
    "packed_store",
    "primitive_cache",
    "program_store",
    "set_compiled_partition_cache_capacity",
    "set_constant_tensor_cache",
    "set_constant_tensor_cache_capacity",
    "set_packed_store",
    "set_primitive_cache_capacity",
    "set_program_folder",
    "write_trace",
]
