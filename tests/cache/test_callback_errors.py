"""What user-written callables of caches, pools and allocators raise, without the hook that pytest installs."""

import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.native

PROLOGUE = """
import numpy as np
import graphpool as gp
from graphpool.cache import ConstantBuffer, ConstantTensorCache, LruCache, constant_tensor_cache
from graphpool.memory import Budget, CallbackResource
from graphpool.memory import ArenaPool, FailureCallbackResource, HostResource, LimitingResource
from tests.helpers.constant_jobs import Job, weights
from tests.helpers.policies import BrokenPolicy
"""


def in_child(code):
    """What the code writes to standard output and to standard error, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-c", PROLOGUE + textwrap.dedent(code)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_a_callback_of_a_cache_that_raises_is_reported_by_its_name():
    out, err = in_child("""
        cache, left = LruCache(1), []
        def fails(key, value):
            raise OSError("no disk")
        cache.on_evict(fails)
        cache.on_evict(lambda key, value: left.append(key))
        for key in "ab":
            cache.get_or_create(key, lambda: key)
        print(left, cache.keys())
    """)
    assert out == "['a'] ['b']\n"
    assert "fails" in err
    assert "OSError: no disk" in err


@pytest.mark.parametrize("method", ["on_insert", "on_hit", "on_remove"])
def test_a_policy_that_fails_when_told_something_does_not_fail_executions(method):
    out, err = in_child(f"""
        cache = constant_tensor_cache("cpu")
        cache.set_capacity(None, policy=BrokenPolicy({method!r}))
        w = weights()
        with gp.Engine() as engine, Job(engine) as job:
            for _ in range(3):
                job.check(job.tensor(w.copy()), w)
            cache.clear()
            job.check(job.tensor(w), w)
        cache.clear()
        print(len(cache), cache.nbytes)
    """)
    assert out == "0 0\n"
    assert f"ZeroDivisionError: {method}" in err
    assert "TypeError" not in err


@pytest.mark.parametrize("method", ["victims", "admits"])
def test_a_policy_that_fails_when_asked_is_named_by_a_typed_error(method):
    out, _ = in_child(f"""
        cache = constant_tensor_cache("cpu")
        with gp.Engine() as engine, Job(engine) as job:
            first, second = weights(), weights(9)
            job.check(job.tensor(first), first)
            cache.set_capacity(cache.nbytes, policy=BrokenPolicy({method!r}))
            kept = job.tensor(first)
            job.check(kept, first)
            try:
                job.check(job.tensor(second), second)
            except gp.BackendError as error:
                print(error, type(error.__cause__).__name__)
            job.check(kept, first)
            print(len(cache))
            cache.set_capacity(None, policy="no_evict")
            job.check(job.tensor(second), second)
            print(len(cache))
    """)
    assert out == f"policy broken failed; got: ZeroDivisionError('{method}') ZeroDivisionError\n1\n1\n"


def test_memory_pressure_and_another_bound_are_met_whatever_a_policy_does():
    out, err = in_child("""
        cache = ConstantTensorCache(policy=BrokenPolicy("victims"))
        def make():
            data = np.zeros(40, np.uint8)
            return ConstantBuffer(data.ctypes.data, 40, owner=data)
        for key in range(5):
            cache.get_or_add("test", key, 40, make)
        print(cache.reclaim(50), len(cache))
        cache.resize(80)
        print(len(cache), cache.nbytes)
    """)
    assert out == "80 3\n2 80\n"
    assert err.count("ZeroDivisionError: victims\n") == 2


def test_a_users_malloc_that_raises_is_named_and_leaves_pool_and_budget_as_they_were():
    out, _ = in_child("""
        host, budget, wrong = HostResource(), Budget(10_000), [OSError("no disk")]
        def malloc(nbytes, alignment):
            if wrong:
                raise wrong[0]
            return host.allocate(nbytes, alignment)
        resource = CallbackResource(malloc, lambda address: host.deallocate(address, 1000))
        with ArenaPool(resource, 1000, budget=budget) as pool:
            for error in (OSError("no disk"), MemoryError()):
                wrong[0] = error
                try:
                    pool.lease()
                except (gp.BackendError, gp.OutOfMemoryError) as error:
                    print(type(error).__name__, type(error.__cause__).__name__, pool.stats().arenas, budget.in_use)
            wrong.clear()
            with pool.lease():
                print(budget.in_use)
        print(budget.in_use, host.count)
    """)
    assert out == "BackendError OSError 0 0\nOutOfMemoryError MemoryError 0 0\n1000\n0 0\n"


def test_a_users_free_that_raises_is_reported_and_stops_no_close():
    out, err = in_child("""
        host, budget = HostResource(), Budget(10_000)
        def free(address):
            host.deallocate(address, 1000)
            raise OSError("no disk")
        resource = CallbackResource(host.allocate, free)
        pool = ArenaPool(resource, 1000, budget=budget)
        pool.reserve(3)
        last = pool.lease()
        pool.close()
        print(budget.in_use, host.count)
        last.release()
        print(budget.in_use, host.count, pool.stats().faults)
        address = resource.allocate(1000)
        try:
            resource.deallocate(address, 1000)
        except gp.BackendError as error:
            print(type(error.__cause__).__name__)
    """)
    assert out == "1000 1\n0 0 0\nOSError\n"
    assert err.count("OSError('no disk')") == 3


def test_a_failure_callback_that_raises_is_named():
    out, _ = in_child("""
        limited = LimitingResource(HostResource(), 100)
        resource = FailureCallbackResource(limited, lambda nbytes: 1 / 0)
        try:
            resource.allocate(101)
        except gp.BackendError as error:
            print(type(error.__cause__).__name__, limited.budget.in_use)
    """)
    assert out == "ZeroDivisionError 0\n"
