import gc
import os
import random
import threading

import numpy as np
import pytest

from graphpool.cache import ConstantBuffer, ConstantTensorCache
from graphpool.cache._entry import Outcome
from graphpool.cache._flight import _waiting
from graphpool.cache._handle import ConstantHandle
from graphpool.cache.policies import LruPolicy
from graphpool.errors import BackendError, InvalidArgumentError, OutOfMemoryError, StateError
from tests.helpers.caches import TIMEOUT_S, Gate, QuarantineResource, in_thread, wait_until
from tests.helpers.memory import run_threads

BACKEND = "cpu"


def make(nbytes, resource=None):
    return ConstantBuffer.allocate(resource or QuarantineResource(), nbytes)


def add(cache, key, nbytes, **options):
    return cache.get_or_add(BACKEND, key, nbytes, lambda: make(nbytes), **options)


def is_hit(cache, key, nbytes=1):
    """Whether the look-up hits; a reservation that it makes is given up."""
    with cache.lookup_or_reserve(BACKEND, key, nbytes) as reservation:
        return reservation.outcome is Outcome.HIT


# ---- asserted of oneDNN's constant tensor cache


def test_capacity_reads_back():
    cache = ConstantTensorCache()
    assert cache.capacity_nbytes is None
    cache.set_capacity(11)
    assert cache.capacity_nbytes == 11


def test_capacity_zero_declines():
    cache = ConstantTensorCache(0)
    assert add(cache, "k", 1) is None
    assert cache.lookup_or_reserve(BACKEND, "k", 1).outcome is Outcome.DECLINED
    assert (len(cache), cache.stats().declined) == (0, 2)


def test_size_zero_declines():
    assert ConstantTensorCache().lookup_or_reserve(BACKEND, "k", 0).outcome is Outcome.DECLINED


def test_keys_differ_by_backend_and_by_backend_key():
    cache = ConstantTensorCache()
    found = {id(cache.get_or_add(backend, key, 1, lambda: make(1))) for backend in (1, 2) for key in (1, 2)}
    assert len(cache) == 4
    assert len(found) >= 1
    assert cache.keys() == [(1, 1), (1, 2), (2, 1), (2, 2)]


def test_keys_with_equal_hashes_are_told_apart():
    cache = ConstantTensorCache()
    one, two = add(cache, -1, 8), add(cache, -2, 8)  # hash(-1) == hash(-2)
    assert hash(-1) == hash(-2)
    assert one is not two
    assert add(cache, -1, 8) is one


def test_nothing_is_evicted_when_full():
    cache = ConstantTensorCache(5)
    first = add(cache, "key1", 1)
    assert add(cache, "key1", 1) is first
    add(cache, "key2", 2)
    assert cache.nbytes == 3
    assert add(cache, "key3", 3) is None
    assert cache.nbytes == 3
    assert is_hit(cache, "key1")
    assert cache.lookup_or_reserve(BACKEND, "key3", 3).outcome is Outcome.DECLINED


def test_the_same_key_is_shared_and_another_is_not():
    cache = ConstantTensorCache("1GiB")
    add(cache, ("weight 1", "layout"), 64)
    before = cache.nbytes
    add(cache, ("weight 1", "layout"), 64)
    assert cache.nbytes == before
    add(cache, ("weight 2", "layout"), 64)
    assert cache.nbytes == 2 * before


def test_disabling_keeps_what_is_held_and_produces_nothing():
    cache = ConstantTensorCache("1GiB")
    held, handle = add(cache, "k", 64), ConstantHandle((BACKEND, "k"))
    add(cache, "k", 64, handle=handle)
    np.frombuffer(held, np.uint8)
    assert handle.try_acquire() == held.address
    cache.set_capacity(0)
    assert (len(cache), cache.nbytes, handle.is_valid) == (0, 0, False)
    assert bytes(held) == bytes(64)
    assert cache.get_or_add(BACKEND, "k", 64, lambda: pytest.fail("produced")) is None
    handle.give_back()


# ---- reservations


def test_the_caller_learns_before_packing():
    cache = ConstantTensorCache(100)
    with cache.lookup_or_reserve(BACKEND, "k", 60) as reservation:
        assert (reservation.outcome, reservation.buffer, cache.nbytes) == (Outcome.PRODUCE, None, 60)
        assert cache.lookup_or_reserve(BACKEND, "other", 60).outcome is Outcome.DECLINED
        buffer = reservation.fulfil(make(60))
    again = cache.lookup_or_reserve(BACKEND, "k", 60)
    assert (again.outcome, again.buffer) == (Outcome.HIT, buffer)
    assert buffer.is_frozen


def test_a_reservation_ends_once():
    reservation = ConstantTensorCache().lookup_or_reserve(BACKEND, "k", 8)
    reservation.fulfil(make(8))
    with pytest.raises(StateError):
        reservation.fulfil(make(8))
    with pytest.raises(StateError):
        reservation.fail(OSError())


def test_a_block_that_does_not_fulfil_leaves_nothing():
    cache = ConstantTensorCache()
    with cache.lookup_or_reserve(BACKEND, "k", 8):
        pass
    with pytest.raises(ZeroDivisionError), cache.lookup_or_reserve(BACKEND, "k", 8):
        1 / 0  # noqa: B018
    assert (len(cache), cache.nbytes) == (0, 0)


def test_a_forgotten_reservation_wakes_those_who_wait():
    cache = ConstantTensorCache()
    reservation = cache.lookup_or_reserve(BACKEND, "k", 8)
    waiter = in_thread(add, cache, "k", 8)
    wait_until(lambda: len(_waiting) == 1)
    del reservation
    gc.collect()
    with pytest.raises(StateError, match="given up"):
        waiter.result(TIMEOUT_S)
    assert len(cache) == 0


@pytest.mark.parametrize("product", [lambda: None, lambda: b"bytes", lambda: make(9)])
def test_a_wrong_product_is_refused(product):
    cache = ConstantTensorCache()
    with pytest.raises(InvalidArgumentError):
        cache.get_or_add(BACKEND, "k", 8, product)
    assert (len(cache), cache.nbytes) == (0, 0)


@pytest.mark.parametrize("nbytes", [-1, 1.5, None])
def test_a_wrong_size_is_refused(nbytes):
    cache = ConstantTensorCache()
    with pytest.raises(InvalidArgumentError):
        add(cache, "k", nbytes)
    assert len(cache) == 0


def test_the_handle_of_another_key_is_refused():
    cache = ConstantTensorCache()
    with pytest.raises(InvalidArgumentError, match="another entry"):
        add(cache, "k", 8, handle=ConstantHandle((BACKEND, "other")))
    assert len(cache) == 0


def test_the_cache_allocates_from_a_resource():
    cache, resource = ConstantTensorCache(), QuarantineResource()

    def fill(buffer):
        np.frombuffer(buffer, np.uint8)[:] = 3

    buffer = cache.get_or_add(BACKEND, "k", 100, fill, resource=resource)
    assert bytes(buffer) == b"\3" * 100
    assert resource.live_nbytes == 100
    cache.clear()
    assert resource.live_nbytes == 100
    del buffer
    assert resource.live_nbytes == 0


def test_what_each_resource_holds_is_told_apart():
    cache, mine, other = ConstantTensorCache(), QuarantineResource(), QuarantineResource()
    for key, nbytes, resource in (("a", 10, mine), ("b", 20, mine), ("c", 40, other)):
        cache.get_or_add(BACKEND, key, nbytes, lambda buffer: None, resource=resource)
    assert (cache.nbytes_of(mine), cache.nbytes_of(other)) == (30, 40)
    assert cache.idle(mine) == {(BACKEND, "a"): 10, (BACKEND, "b"): 20}
    assert cache.unbound(other) == {(BACKEND, "c")}
    cache.remove_if_exist(BACKEND, "a")
    assert cache.reclaim(100, resource=mine) == 20
    assert (cache.nbytes_of(mine), cache.idle(mine), cache.nbytes_of(other)) == (0, {}, 40)
    cache.retire(other)
    assert (len(cache), cache.nbytes_of(other)) == (0, 0)


def test_a_resource_without_memory_leaves_no_entry():
    class Empty:
        def allocate(self, nbytes, alignment=64, stream=None):
            raise OutOfMemoryError("none left")

        def deallocate(self, address, nbytes, alignment=64, stream=None):
            raise AssertionError

    cache = ConstantTensorCache()
    with pytest.raises(OutOfMemoryError):
        cache.get_or_add(BACKEND, "k", 100, lambda buffer: None, resource=Empty())
    assert (len(cache), cache.nbytes) == (0, 0)


# ---- single flight


def test_one_thread_produces_and_the_others_wait():
    cache, gate = ConstantTensorCache(), Gate(make(8))
    threads = [in_thread(cache.get_or_add, BACKEND, "k", 8, gate) for _ in range(8)]
    assert gate.entered.wait(TIMEOUT_S)
    wait_until(lambda: len(_waiting) == 7)
    assert cache.nbytes == 8  # waits for nobody
    assert add(cache, "other", 8) is not None
    gate.open()
    assert {id(t.result(TIMEOUT_S)) for t in threads} == {id(gate.value)}
    assert gate.calls == 1


def test_a_failing_producer_wakes_those_who_wait_and_leaves_no_entry():
    cache, gate = ConstantTensorCache(10), Gate(error=OSError("no"))
    threads = [in_thread(cache.get_or_add, BACKEND, "k", 8, gate) for _ in range(4)]
    assert gate.entered.wait(TIMEOUT_S)
    wait_until(lambda: len(_waiting) == 3)
    gate.open()
    for thread in threads:
        with pytest.raises(OSError, match="no"):
            thread.result(TIMEOUT_S)
    assert (len(cache), cache.nbytes) == (0, 0)
    assert add(cache, "k", 8) is not None


def test_a_producer_may_produce_another_key_but_not_its_own():
    cache = ConstantTensorCache()
    cache.get_or_add(BACKEND, "outer", 8, lambda: make(add(cache, "inner", 8).nbytes))
    assert len(cache) == 2
    with pytest.raises(StateError, match="itself"):
        cache.get_or_add(BACKEND, "loop", 8, lambda: add(cache, "loop", 8))
    assert len(cache) == 2


FLUSHES = {
    "clear": lambda cache: cache.clear(),
    "disable": lambda cache: cache.set_capacity(0),
    "same capacity": lambda cache: cache.set_capacity(100),
    "grow": lambda cache: cache.set_capacity(1000),
    "remove": lambda cache: cache.remove_if_exist(BACKEND, "k"),
    "shrink": lambda cache: cache.resize(79),
}


@pytest.mark.parametrize("flush", FLUSHES)
def test_a_flush_during_production_lets_it_end_and_keeps_nothing(flush):
    cache, gate, left = ConstantTensorCache(100), Gate(make(80)), []
    cache.on_evict(lambda key, buffer: left.append((key, buffer)))
    handle = ConstantHandle((BACKEND, "k"))
    producer = in_thread(cache.get_or_add, BACKEND, "k", 80, gate, handle=handle)
    assert gate.entered.wait(TIMEOUT_S)
    waiter = in_thread(cache.get_or_add, BACKEND, "k", 80, lambda: pytest.fail("produced twice"))
    wait_until(lambda: len(_waiting) == 1)
    FLUSHES[flush](cache)
    assert (len(cache), cache.nbytes, left) == (0, 0, [])
    gate.open()
    assert producer.result(TIMEOUT_S) is waiter.result(TIMEOUT_S) is gate.value
    assert (len(cache), handle.is_valid) == (0, False)
    assert left == [((BACKEND, "k"), gate.value)]


def test_growing_during_production_keeps_it():
    cache, gate = ConstantTensorCache(100), Gate(make(80))
    producer = in_thread(cache.get_or_add, BACKEND, "k", 80, gate)
    assert gate.entered.wait(TIMEOUT_S)
    cache.resize(200)
    gate.open()
    producer.result(TIMEOUT_S)
    assert (len(cache), cache.nbytes) == (1, 80)


# ---- leaving


def test_setting_a_capacity_flushes_and_resizing_does_not():
    cache = ConstantTensorCache(100)
    for key in "abc":
        add(cache, key, 30)
    cache.resize(200)
    assert len(cache) == 3
    cache.resize(60)
    assert cache.keys() == [(BACKEND, "b"), (BACKEND, "c")]
    cache.resize(None)
    assert (len(cache), cache.capacity_nbytes) == (2, None)
    cache.set_capacity(None)
    assert len(cache) == 0


def test_a_bad_capacity_or_policy_changes_nothing():
    cache = ConstantTensorCache(100)
    add(cache, "a", 30)
    for bad in [(-1, None), ("much", None), (10, "unknown"), (10, object())]:
        with pytest.raises(InvalidArgumentError):
            cache.set_capacity(bad[0], policy=bad[1])
    assert (len(cache), cache.capacity_nbytes, cache.policy.name) == (1, 100, "no_evict")


def test_eviction_notifies_handles_then_callbacks_once():
    cache, resource, left = ConstantTensorCache(100, policy="lru"), QuarantineResource(), []
    handle = ConstantHandle((BACKEND, "a"))
    cache.on_evict(lambda key, buffer: left.append((key, handle.is_valid)))
    cache.get_or_add(BACKEND, "a", 60, lambda: make(60, resource), handle=handle)
    assert handle.is_valid
    add(cache, "b", 60)
    assert left == [((BACKEND, "a"), False)]
    assert resource.live_nbytes == 0
    assert not cache.remove_if_exist(BACKEND, "a")
    assert cache.remove_if_exist(BACKEND, "b")
    assert len(left) == 2


def test_an_evicted_buffer_lives_until_its_last_user_ends():
    cache, resource = ConstantTensorCache(100), QuarantineResource()
    handle = ConstantHandle((BACKEND, "a"))
    cache.get_or_add(BACKEND, "a", 60, lambda: make(60, resource), handle=handle)
    handle.try_acquire()
    cache.clear()
    assert (cache.nbytes, resource.live_nbytes) == (0, 60)
    newer = add(cache, "a", 60, handle=handle)
    assert newer is not None
    assert not handle.is_valid  # a user of the old one still runs
    handle.give_back()
    assert resource.live_nbytes == 0
    assert add(cache, "a", 60, handle=handle) is newer
    assert handle.try_acquire() == newer.address


def test_uses_through_handles_count_for_the_policy():
    cache = ConstantTensorCache(100, policy="lru")
    handle = ConstantHandle((BACKEND, "a"))
    add(cache, "a", 40, handle=handle)
    add(cache, "b", 40)
    handle.try_acquire()
    handle.give_back()
    add(cache, "c", 40)
    assert cache.keys() == [(BACKEND, "a"), (BACKEND, "c")]


def test_what_was_hit_and_left_is_freed_at_once():
    cache, resource = ConstantTensorCache(policy="lru"), QuarantineResource()
    for _ in range(3):
        cache.get_or_add(BACKEND, "a", 40, lambda: make(40, resource))
    cache.clear()
    assert resource.live_nbytes == 0


def test_reclaim_spares_what_is_in_use():
    cache = ConstantTensorCache()
    handle = ConstantHandle((BACKEND, "a"))
    add(cache, "a", 40, handle=handle)
    add(cache, "b", 40)
    add(cache, "c", 40)
    handle.try_acquire()
    assert cache.reclaim(41) == 80
    assert cache.keys() == [(BACKEND, "a")]
    assert cache.reclaim(1) == 0
    handle.give_back()
    assert cache.reclaim(1) == 40


def test_a_policy_that_fails_leaves_the_cache_whole(monkeypatch):
    class Broken:
        name = "broken"

        def __getattr__(self, name):
            raise AttributeError(name)

        def on_insert(self, item):
            raise OSError("insert")

        def on_hit(self, key, count):
            raise OSError("hit")

        def on_remove(self, key):
            raise OSError("remove")

        def victims(self):
            return ["no such key"]

        def admits(self, item, victims):
            return True

    reported = []
    monkeypatch.setattr("sys.unraisablehook", lambda report: reported.append(str(report.exc_value)))
    cache = ConstantTensorCache(100, policy=Broken())
    buffer = add(cache, "a", 60)
    assert add(cache, "a", 60) is buffer
    with pytest.raises(BackendError, match="policy broken names"):
        add(cache, "b", 60)
    cache.clear()
    assert (len(cache), cache.nbytes) == (0, 0)
    assert reported == ["insert", "hit", "remove"]


@pytest.mark.parametrize("leave", ["clear", "room", "remove", "resource"])
def test_an_entry_that_somebody_takes_off_in_the_middle_leaves_once(leave):
    """So may a finaliser, wherever the interpreter lets it strike; the lock is re-entrant for it."""

    class Striking(LruPolicy):
        def on_hit(self, key, count):
            super().on_hit(key, count)
            cache.remove_if_exist(*key)

    cache, resource, evicted = ConstantTensorCache(100, policy=Striking()), QuarantineResource(), []
    cache.on_evict(lambda key, buffer: evicted.append(key))
    cache.get_or_add(BACKEND, "a", 60, lambda buffer: None, resource=resource)
    assert cache.find((BACKEND, "a"), 60) is not None
    left = {
        "clear": cache.clear,
        "room": lambda: add(cache, "b", 60),
        "remove": lambda: cache.remove_if_unused(BACKEND, "a"),
        "resource": lambda: cache.retire(resource),
    }
    left[leave]()
    assert evicted == [(BACKEND, "a")]
    assert cache.nbytes == 60 * len(cache)
    assert resource.live_nbytes == 0


def test_of_two_users_that_end_at_once_the_second_is_the_last():
    """Both handles exist until both have asked, as where two threads close what shares a constant."""
    cache, resource = ConstantTensorCache(), QuarantineResource()
    handles = [ConstantHandle((BACKEND, "a")) for _ in range(2)]
    for handle in handles:
        cache.get_or_add(BACKEND, "a", 60, lambda buffer: None, resource=resource, handle=handle)
    assert handles[0].try_acquire()
    assert not cache.remove_if_unused(BACKEND, "a", last=handles[0])
    assert [handle.is_valid for handle in handles] == [False, True]
    assert cache.remove_if_unused(BACKEND, "a", last=handles[1])
    assert (len(cache), handles[1].is_valid, resource.live_nbytes) == (0, False, 60)
    handles[0].give_back()
    assert resource.live_nbytes == 0


# ---- all at once


@pytest.mark.parametrize("policy", ["no_evict", "lru", "cost"])
def test_sixteen_threads_do_everything(policy):
    cache, resource = ConstantTensorCache(4000, policy=policy), QuarantineResource()
    handles = [ConstantHandle((BACKEND, k)) for k in range(8)]
    left, over, fails = [], [], []
    cache.on_evict(lambda key, buffer: left.append(key))

    def produce(key, random_):
        if random_.random() < 0.1:
            raise OSError
        buffer = make(500 + key, resource)
        np.frombuffer(buffer, np.uint8)[:] = key
        return buffer

    def use(key, random_):
        handle = handles[key]
        address = handle.try_acquire()
        try:
            buffer = (
                ConstantBuffer(address, 500 + key)
                if address
                else cache.get_or_add(BACKEND, key, 500 + key, lambda: produce(key, random_), handle=handle)
            )
            if buffer is not None and not (np.frombuffer(buffer, np.uint8) == key).all():
                fails.append(key)
        except OSError:
            pass
        finally:
            if address:
                handle.give_back()

    def work(i):
        random_ = random.Random(i)
        for _ in range(150):
            match random_.randrange(24):
                case 0:
                    cache.set_capacity(random_.choice([0, 4000]))
                case 1:
                    cache.clear()
                case 2:
                    cache.resize(random_.randrange(4000))
                case 3 | 4:
                    cache.remove_if_exist(BACKEND, random_.randrange(8))
                case 5:
                    cache.reclaim(1000)
                case _:
                    use(random_.randrange(8), random_)
            stats = cache.stats()
            if stats.nbytes > stats.capacity_nbytes:
                over.append(stats)

    run_threads(16, work)
    assert not fails
    assert not over
    cache.clear()
    assert (len(cache), cache.nbytes, len(left)) == (0, 0, cache.stats().evictions)
    assert [handle.users for handle in handles] == [0] * 8
    gc.collect()
    assert resource.live_nbytes == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_produces_what_another_thread_was_producing():
    cache, gate = ConstantTensorCache(100), Gate(make(60))
    add(cache, "a", 30)
    thread = in_thread(cache.get_or_add, BACKEND, "b", 60, gate)
    assert gate.entered.wait(TIMEOUT_S)
    pid = os.fork()
    if pid == 0:
        good = cache.nbytes == 30 and is_hit(cache, "a") and add(cache, "b", 60) is not None and cache.nbytes == 90
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    gate.open()
    assert thread.result(TIMEOUT_S) is gate.value


def test_an_interrupted_callback_leaves_no_production():
    def interrupt(key, buffer):
        raise KeyboardInterrupt

    cache = ConstantTensorCache(10, policy="lru")
    end = cache.on_evict(interrupt)
    add(cache, "a", 8)
    with pytest.raises(KeyboardInterrupt):
        add(cache, "b", 8)
    gc.collect()
    assert (len(cache), cache.nbytes) == (0, 0)
    end()
    assert add(cache, "b", 8) is not None


def test_callbacks_and_producers_run_without_the_lock():
    cache = ConstantTensorCache(10, policy="lru")
    checked = threading.Event()

    def probe(*_):
        assert in_thread(cache.stats).result(TIMEOUT_S).entries <= 1
        checked.set()
        return make(8)

    cache.on_evict(probe)
    cache.get_or_add(BACKEND, "a", 8, probe)
    add(cache, "b", 8)
    assert checked.is_set()


@pytest.mark.parametrize(
    "use",
    [
        lambda cache: cache.get_or_add("cpu", [], 8, lambda: None), lambda cache: cache.lookup_or_reserve("cpu", [], 8),
        lambda cache: cache.remove_if_exist("cpu", []), lambda cache: cache.remove_if_unused([], 1),
    ],
)  # fmt: skip
def test_a_key_without_a_hash_is_refused(use):
    with pytest.raises(InvalidArgumentError, match="key; accepted: a hashable name"):
        use(ConstantTensorCache(64))
