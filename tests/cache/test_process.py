import json
import os
import subprocess
import sys

import numpy as np
import pytest

from graphpool import cache as caches
from graphpool.cache import UNLIMITED_MB, ConstantBuffer
from graphpool.cache.policies import LruPolicy
from graphpool.errors import BackendError, InvalidArgumentError
from tests.helpers.memory import run_threads


@pytest.fixture(autouse=True)
def restored():
    caches.primitive_cache().clear()  # other tests compile
    yield
    for cache in (caches.primitive_cache(), caches.compiled_partition_cache()):
        cache.clear()
    caches.set_primitive_cache_capacity(1024)
    caches.set_compiled_partition_cache_capacity(1024)
    for kind in ("cpu", "gpu"):
        caches.set_constant_tensor_cache_capacity(kind, None, policy="no_evict")


def add(cache, key, nbytes=8):
    memory = bytearray(nbytes)
    return cache.get_or_add("cpu", key, nbytes, lambda: ConstantBuffer(1, nbytes, owner=memory))


LRU_CACHES = [
    (
        caches.primitive_cache,
        caches.set_primitive_cache_capacity,
        caches.get_primitive_cache_capacity,
    ),
    (
        caches.compiled_partition_cache,
        caches.set_compiled_partition_cache_capacity,
        caches.get_compiled_partition_cache_capacity,
    ),
]


@pytest.mark.parametrize(("cache", "set_capacity", "get_capacity"), LRU_CACHES)
def test_capacities_of_primitives_and_partitions(cache, set_capacity, get_capacity):
    assert get_capacity() == 1024
    set_capacity(18)
    assert get_capacity() == 18
    for key in range(12):
        cache().get_or_create(key, list)
    set_capacity(13)
    assert len(cache()) == 12
    set_capacity(10)
    assert len(cache()) == 10
    set_capacity(0)
    assert len(cache()) == 0
    for bad in (-1, None, True, "4"):
        with pytest.raises(InvalidArgumentError):
            set_capacity(bad)
    assert get_capacity() == 0


@pytest.mark.parametrize(("cache", "set_capacity", "get_capacity"), LRU_CACHES)
def test_bytes_bound_them_as_well(cache, set_capacity, get_capacity):
    set_capacity(10, nbytes="1KiB")
    for key in range(4):
        cache().get_or_create(key, list, nbytes=400)
    assert (len(cache()), cache().nbytes, cache().capacity_nbytes) == (2, 800, 1024)


def test_sixteen_threads_two_kinds_four_batches():
    cache = caches.compiled_partition_cache()
    run_threads(16, lambda i: [cache.get_or_create((kind, batch), list) for kind in "ab" for batch in (1, 2, 4, 8)])
    assert len(cache) == 8
    caches.set_compiled_partition_cache_capacity(2)
    assert len(cache) == 2


def test_there_is_one_of_each():
    assert caches.primitive_cache() is caches.primitive_cache()
    assert caches.primitive_cache() is not caches.compiled_partition_cache()
    assert len({id(cache) for cache in run_threads(8, lambda i: caches.constant_tensor_cache("gpu", 3))}) == 1


# ---- constants


def test_constants_are_unlimited_at_first():
    assert caches.get_constant_tensor_cache_capacity("cpu") == UNLIMITED_MB
    assert caches.constant_tensor_cache("cpu").capacity_nbytes is None
    assert caches.get_constant_tensor_cache()


def test_capacity_reads_back_in_megabytes_and_saturates():
    caches.set_constant_tensor_cache_capacity("cpu", 1024)
    assert caches.get_constant_tensor_cache_capacity("cpu") == 1024
    assert caches.constant_tensor_cache("cpu").capacity_nbytes == 1024 * 2**20
    caches.set_constant_tensor_cache_capacity("cpu", 2**64 - 1)
    assert caches.get_constant_tensor_cache_capacity("cpu") == (2**64 - 1) // 2**20


def test_numpy_integers_are_counts():
    caches.set_primitive_cache_capacity(np.int64(18))
    assert caches.get_primitive_cache_capacity() == 18
    caches.set_constant_tensor_cache_capacity("cpu", np.int64(1024))
    assert caches.get_constant_tensor_cache_capacity("cpu") == 1024


def test_a_size_with_a_unit_is_no_count_of_megabytes():
    with pytest.raises(InvalidArgumentError, match="resize of the cache takes sizes with units"):
        caches.set_constant_tensor_cache_capacity("cpu", "512MiB")


def test_the_old_flag_means_default_or_zero():
    caches.set_constant_tensor_cache(0)
    assert not caches.get_constant_tensor_cache()
    assert [caches.get_constant_tensor_cache_capacity(kind) for kind in ("cpu", "gpu")] == [0, 0]
    caches.set_constant_tensor_cache_capacity("gpu", 1)
    assert caches.get_constant_tensor_cache()
    caches.set_constant_tensor_cache(True)
    assert [caches.get_constant_tensor_cache_capacity(kind) for kind in ("cpu", "gpu")] == [UNLIMITED_MB] * 2
    for bad in (-1, 2, None, "1", 1.0):
        with pytest.raises(InvalidArgumentError):
            caches.set_constant_tensor_cache(bad)
    assert caches.get_constant_tensor_cache()


def test_setting_a_kind_flushes_and_holds_for_all_its_devices():
    old, other = caches.constant_tensor_cache("gpu", 0), caches.constant_tensor_cache("cpu")
    add(old, "k")
    add(other, "k")
    caches.set_constant_tensor_cache_capacity("gpu", 5)
    assert (len(old), len(other)) == (0, 1)
    later = caches.constant_tensor_cache("gpu", 7)
    assert later.capacity_nbytes == old.capacity_nbytes == 5 * 2**20
    assert caches.get_constant_tensor_cache_capacity("gpu", 7) == 5


def test_one_device_can_differ():
    caches.set_constant_tensor_cache_capacity("gpu", 5)
    mine = LruPolicy()
    caches.set_constant_tensor_cache_capacity("gpu", 6, index=1, policy=mine)
    assert [caches.get_constant_tensor_cache_capacity("gpu", i) for i in (0, 1)] == [5, 6]
    assert caches.constant_tensor_cache("gpu", 1).policy is mine


def test_a_policy_stays_until_another_is_set():
    caches.set_constant_tensor_cache_capacity("cpu", 5, policy="COST")
    caches.set_constant_tensor_cache_capacity("cpu", 6)
    assert caches.constant_tensor_cache("cpu").policy.name == "cost"


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("tpu", 1), {}),
        (("cpu", -1), {}),
        (("cpu", 1.5), {}),
        (("cpu", True), {}),
        (("cpu", 1), {"index": -1}),
        (("cpu", 1), {"policy": "unknown"}),
        (("cpu", 1), {"policy": LruPolicy()}),
        (("cpu", 1), {"policy": int, "index": 0}),
    ],
)
def test_bad_settings_change_nothing(arguments, options):
    add(caches.constant_tensor_cache("cpu"), "k")
    with pytest.raises(InvalidArgumentError):
        caches.set_constant_tensor_cache_capacity(*arguments, **options)
    assert len(caches.constant_tensor_cache("cpu")) == 1
    assert caches.get_constant_tensor_cache_capacity("cpu") == UNLIMITED_MB


@pytest.mark.native
def test_a_factory_serves_every_device_and_those_to_come():
    class Mine(LruPolicy):
        name = "mine"

    first = caches.constant_tensor_cache("cpu")
    caches.set_constant_tensor_cache_capacity("cpu", None, policy=Mine)
    second = caches.constant_tensor_cache("cpu", 7)
    assert (first.policy.name, second.policy.name) == ("mine", "mine")
    assert first.policy is not second.policy

    def hopeless():
        raise ZeroDivisionError("no luck")

    with pytest.raises(BackendError, match="hopeless"):
        caches.set_constant_tensor_cache_capacity("cpu", 3, policy=hopeless)
    assert (first.policy.name, first.capacity_nbytes) == ("mine", None)


# ---- environment


SCRIPT = """
import json, os, sys
from graphpool import cache as caches
from graphpool.errors import InvalidArgumentError
def read():
    cpu = caches.constant_tensor_cache("cpu")
    return [caches.get_constant_tensor_cache_capacity("cpu"), caches.get_constant_tensor_cache_capacity("gpu"),
            cpu.policy.name, caches.get_primitive_cache_capacity(), caches.get_compiled_partition_cache_capacity()]
try:
    first = read()
except InvalidArgumentError as error:
    print(json.dumps(str(error)))
    sys.exit()
os.environ["ONEDNN_GRAPH_CONSTANT_TENSOR_CACHE_CAPACITY"] = "cpu:1"
assert read() == first
caches.set_constant_tensor_cache(1)
assert read() == first
caches.set_constant_tensor_cache_capacity("cpu", 77)
assert caches.get_constant_tensor_cache_capacity("cpu") == 77
print(json.dumps(first))
"""
CONSTANTS = "CONSTANT_TENSOR_CACHE_CAPACITY"


def in_process(**variables):
    """What the script prints in a process with these environment variables."""
    environment = {k: v for k, v in os.environ.items() if "CACHE_CAPACITY" not in k} | variables
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, [UNLIMITED_MB, UNLIMITED_MB, "no_evict", 1024, 1024]),
        (
            {f"ONEDNN_GRAPH_{CONSTANTS}": "cpu:10240;gpu:2048", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "5"},
            [10240, 2048, "no_evict", 5, 1024],
        ),
        (
            {f"GRAPHPOOL_{CONSTANTS}": "cpu:0:LRU;", "GRAPHPOOL_COMPILED_PARTITION_CACHE_CAPACITY": "0"},
            [0, UNLIMITED_MB, "lru", 1024, 0],
        ),
        (
            {f"GRAPHPOOL_{CONSTANTS}": "gpu:3", f"ONEDNN_GRAPH_{CONSTANTS}": "gpu:4"},
            [UNLIMITED_MB, 3, "no_evict", 1024, 1024],
        ),
    ],
)
def test_variables_are_read_once_and_functions_beat_them(variables, expected):
    assert in_process(**variables) == expected


@pytest.mark.parametrize("text", ["cpu", "cpu:", "cpu:-1", "cpu:1:", "tpu:1", "cpu:1;cpu:2", "cpu:1:lru:x", "cpu:1.5"])
def test_a_malformed_variable_is_refused_with_the_right_form(text):
    message = in_process(**{f"ONEDNN_GRAPH_{CONSTANTS}": text})
    assert f"ONEDNN_GRAPH_{CONSTANTS}" in message
    assert "cpu:10240;gpu:2048:lru" in message
    assert text in message


def test_an_unknown_policy_in_the_variable_is_refused():
    assert "no policy is named 'best'" in in_process(**{f"GRAPHPOOL_{CONSTANTS}": "cpu:1:best"})
