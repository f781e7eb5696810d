"""What does a warm constant cost, and a hit, an eviction, a name by content, a mapped weight?

    python -m pytest bench/bench_cache.py -o addopts= --import-mode=importlib

The bars: a warm constant under 50 ns, so that an execution does not notice it; a hit under 5 µs; eviction in constant
time (1,000 and 100,000 entries alike).
"""

from __future__ import annotations

import ctypes
import shutil
import subprocess

import numpy as np
import pytest

from graphpool.cache import ConstantBuffer, ConstantTensorCache, Item, LruCache, PackedKey, PackedStore, fingerprint
from graphpool.cache._handle import ConstantHandle
from graphpool.cache.identity import quick_fingerprint
from graphpool.cache.traces import replay

LOOPS = 100_000
LOOP_SOURCE = """
typedef void *(*acquire_t)(void *);
typedef void (*release_t)(void *);
long loop(acquire_t acquire, release_t release, void *handle, long count) {
    long seen = 0;
    for (long i = 0; i < count; i++)
        if (acquire(handle)) { seen++; release(handle); }
    return seen;
}
"""


pytestmark = pytest.mark.benchmark(group="caches")


@pytest.fixture
def warm():
    """A handle bound to a constant, and the cache that keeps it."""
    cache, handle = ConstantTensorCache(), ConstantHandle(("cpu", "k"))
    cache.get_or_add("cpu", "k", 64, lambda: ConstantBuffer(64, 64), handle=handle)
    return cache, handle


def c_functions(handle):
    """Addresses of `acquire` and `release`, as C code calls them."""
    capsule = ctypes.pythonapi.PyCapsule_GetPointer
    capsule.restype, capsule.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return (ctypes.c_void_p * 2).from_address(capsule(type(handle).__pyx_vtable__, None))


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_warm_constant_from_c(benchmark, warm, tmp_path):
    (tmp_path / "loop.c").write_text(LOOP_SOURCE)
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "loop.c", "-o", "loop.so"], cwd=tmp_path, check=True)
    loop = ctypes.CDLL(str(tmp_path / "loop.so")).loop
    loop.argtypes, loop.restype = [ctypes.c_void_p] * 3 + [ctypes.c_long], ctypes.c_long
    _, handle = warm
    acquire, release = c_functions(handle)
    assert benchmark(loop, acquire, release, id(handle), LOOPS) == LOOPS
    benchmark.extra_info["ns_per_use"] = round(benchmark.stats.stats.min / LOOPS * 1e9, 2)


def test_constant_cache_hit(benchmark, warm):
    cache, handle = warm
    benchmark(cache.get_or_add, "cpu", "k", 64, None, handle=handle)


def test_lru_hit(benchmark):
    cache = LruCache(10)
    cache.get_or_create("k", list)
    benchmark(cache.get_or_create, "k", list)


@pytest.mark.parametrize("entries", [1_000, 100_000])
def test_lru_miss_with_eviction(benchmark, entries):
    cache, keys = LruCache(entries), iter(range(10**12))
    for _ in range(entries):
        cache.get_or_create(next(keys), list)
    benchmark(lambda: cache.get_or_create(next(keys), list))
    benchmark.extra_info["evictions"] = cache.stats().evictions


@pytest.mark.parametrize("take", [fingerprint, quick_fingerprint])
def test_fingerprint(benchmark, take):
    data = np.random.default_rng(0).standard_normal(4 << 20, np.float32)
    benchmark(take, data)
    benchmark.extra_info["nbytes"] = data.nbytes


def test_first_mapping(benchmark, tmp_path):
    data = np.zeros(4 << 20, np.float32)
    key = PackedKey(fingerprint(data), "layout", "isa")
    PackedStore(tmp_path).put(key, data)
    benchmark(lambda: PackedStore(tmp_path).get(key))
    benchmark.extra_info["nbytes"] = data.nbytes


@pytest.mark.parametrize("policy", ["no_evict", "lru", "cost"])
def test_policy_in_a_full_cache(benchmark, policy):
    """Microseconds an access, in a loop over 126 weights of which half fit."""
    trace = [Item(i, 1 << 20, 1e-4) for i in range(126)] * 20
    benchmark(replay, trace, policy, 63 << 20)
    benchmark.extra_info["us_per_access"] = round(benchmark.stats.stats.min / len(trace) * 1e6, 2)
