import contextlib
import os
import random
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpool.cache import LruCache
from graphpool.cache._flight import _waiting
from graphpool.errors import InvalidArgumentError, StateError
from tests.helpers.caches import TIMEOUT_S, Gate, in_thread, wait_until
from tests.helpers.memory import run_threads


def fill(cache, keys, nbytes=0):
    for key in keys:
        cache.get_or_create(key, lambda key=key: f"value {key}", nbytes=nbytes)


def test_hit_returns_the_value_that_was_produced_once():
    cache, calls = LruCache(2), []
    for _ in range(3):
        assert cache.get_or_create("a", lambda: calls.append(1) or "x") == "x"
    assert calls == [1]
    assert (cache.stats().hits, cache.stats().misses) == (2, 1)


def test_the_least_recently_used_entry_leaves_first():
    cache = LruCache(3)
    fill(cache, "abc")
    assert cache.get("a") == "value a"
    fill(cache, "d")
    assert cache.keys() == ["c", "a", "d"]


@pytest.mark.parametrize(("size", "capacity"), [(4, 2), (5, 2), (12, 10), (12, 13), (22, 0), (1, 1), (6, 3), (7, 3)])
def test_shrinking_keeps_the_newest(size, capacity):
    cache = LruCache(100)
    fill(cache, range(size))
    cache.resize(capacity)
    assert cache.keys() == list(range(size))[max(size - capacity, 0) :][:capacity]
    assert cache.capacity == capacity


def test_bytes_are_bounded_and_charged_at_reservation():
    cache = LruCache(10, capacity_nbytes=100)
    fill(cache, "ab", nbytes=40)
    seen = []
    cache.get_or_create("c", lambda: seen.append((cache.nbytes, cache.keys())) or 1, nbytes=60)
    assert seen == [(100, ["b"])]
    assert cache.nbytes == 100
    assert cache.keys() == ["b", "c"]


def test_what_can_never_fit_is_produced_for_its_caller_and_evicts_nothing():
    cache = LruCache(10, capacity_nbytes=100)
    fill(cache, "ab", nbytes=40)
    assert cache.get_or_create("big", lambda: 7, nbytes=101) == 7
    assert cache.keys() == ["a", "b"]
    assert cache.stats().declined == 1


def test_zero_disables():
    cache = LruCache(0)
    fill(cache, "aa")
    assert (len(cache), cache.stats().misses, cache.stats().declined) == (0, 2, 2)
    cache.resize(1)
    fill(cache, "aa")
    assert (len(cache), cache.stats().hits) == (1, 1)


def test_keys_with_equal_hashes_are_told_apart():
    class Key:
        def __init__(self, name):
            self.name = name

        def __hash__(self):
            return 1

        def __eq__(self, other):
            return self.name == other.name

    cache = LruCache(10)
    for name in "abab":
        assert cache.get_or_create(Key(name), lambda name=name: name) == name
    assert len(cache) == 2


@pytest.mark.parametrize("bad", [-1, True, 1.5, None, "3"])
def test_a_capacity_that_is_no_count_is_refused(bad):
    cache = LruCache(2)
    fill(cache, "ab")
    with pytest.raises(InvalidArgumentError, match="count of entries"):
        cache.resize(bad)
    with pytest.raises(InvalidArgumentError):
        LruCache(bad)
    assert cache.keys() == ["a", "b"]


@pytest.mark.parametrize("bad", [-1, 1.5, True, None])
def test_a_size_that_is_no_size_is_refused(bad):
    cache = LruCache(2)
    with pytest.raises(InvalidArgumentError):
        cache.get_or_create("a", list, nbytes=bad)
    assert len(cache) == 0


def test_recharge_corrects_the_charge():
    cache = LruCache(10, capacity_nbytes=100)
    fill(cache, "abc", nbytes=30)
    value = cache.get("a")
    assert cache.recharge("a", value, 50)
    assert cache.nbytes == 80
    assert cache.keys()[-1] == "a"
    assert not cache.recharge("a", value, 101)
    assert cache.keys() == ["c"]
    assert not cache.recharge("unknown", value, 1)
    assert cache.nbytes == 30


def test_recharge_leaves_an_entry_alone_that_others_have_put_there_meanwhile():
    cache = LruCache(0)
    mine = cache.get_or_create("a", object)
    cache.resize(1)
    theirs = cache.get_or_create("a", object, nbytes=7)
    assert not cache.recharge("a", mine, 50)
    assert cache.nbytes == 7
    assert cache.recharge("a", theirs, 9)


def test_reclaim_gives_up_the_oldest():
    cache = LruCache(10)
    fill(cache, "abcd", nbytes=30)
    assert cache.reclaim(31) == 60
    assert cache.keys() == ["c", "d"]
    assert cache.reclaim(1000) == 60
    assert cache.nbytes == 0


# ---- callbacks


def test_every_entry_that_leaves_is_told_once_outside_the_lock():
    cache, left = LruCache(2), []

    def note(key, value):
        assert in_thread(cache.stats).result(TIMEOUT_S).capacity is not None  # the lock is free
        left.append((key, value))

    cache.on_evict(note)
    fill(cache, "abc")
    assert left == [("a", "value a")]
    assert cache.remove("b")
    assert not cache.remove("b")
    cache.clear()
    assert left == [(key, f"value {key}") for key in "abc"]
    assert cache.stats().evictions == 3


def test_callbacks_run_before_the_newcomer_is_produced():
    cache, order = LruCache(1), []
    cache.on_evict(lambda key, value: order.append(f"evict {key}"))
    fill(cache, "a")
    cache.get_or_create("b", lambda: order.append("produce b"))
    assert order == ["evict a", "produce b"]


def test_an_unsubscribed_callback_is_not_called():
    cache, left = LruCache(1), []
    end = cache.on_evict(lambda key, value: left.append(key))
    fill(cache, "ab")
    end()
    end()
    fill(cache, "c")
    assert left == ["a"]


def test_a_callback_that_raises_stops_nothing(monkeypatch):
    cache, left, reported = LruCache(1), [], []
    monkeypatch.setattr("sys.unraisablehook", lambda report: reported.append(report.exc_value))
    cache.on_evict(lambda key, value: 1 / 0)
    cache.on_evict(lambda key, value: left.append(key))
    fill(cache, "ab")
    assert left == ["a"]
    assert cache.keys() == ["b"]
    assert isinstance(reported[0], ZeroDivisionError)


def test_an_interrupted_callback_leaves_no_production():
    def interrupt(key, value):
        raise KeyboardInterrupt

    cache = LruCache(1)
    end = cache.on_evict(interrupt)
    fill(cache, "a")
    with pytest.raises(KeyboardInterrupt):
        fill(cache, "b")
    assert (len(cache), cache.nbytes) == (0, 0)
    end()
    fill(cache, "b")
    assert cache.keys() == ["b"]


def test_a_callback_may_use_the_cache():
    cache = LruCache(1)
    cache.on_evict(lambda key, value: key < 5 and fill(cache, [key + 10]))
    fill(cache, [1, 2])
    assert len(cache) == 1


# ---- single flight


def test_one_thread_produces_and_the_others_wait():
    cache, gate = LruCache(10), Gate("x")
    threads = [in_thread(cache.get_or_create, "a", gate) for _ in range(8)]
    assert gate.entered.wait(TIMEOUT_S)
    wait_until(lambda: len(_waiting) == 7)
    gate.open()
    assert [t.result(TIMEOUT_S) for t in threads] == ["x"] * 8
    assert gate.calls == 1
    assert (cache.stats().hits, cache.stats().misses) == (7, 1)


def test_a_failing_producer_wakes_those_who_wait_and_leaves_no_entry():
    cache, gate = LruCache(10, capacity_nbytes=100), Gate(error=OSError("no"))
    threads = [in_thread(cache.get_or_create, "a", gate, nbytes=60) for _ in range(4)]
    assert gate.entered.wait(TIMEOUT_S)
    wait_until(lambda: len(_waiting) == 3)
    gate.open()
    for thread in threads:
        with pytest.raises(OSError, match="no"):
            thread.result(TIMEOUT_S)
    assert (len(cache), cache.nbytes) == (0, 0)
    assert cache.get_or_create("a", lambda: 1, nbytes=60) == 1


def test_an_interrupted_producer_hands_over_to_one_who_waits():
    cache, gate = LruCache(10), Gate(error=KeyboardInterrupt())
    first = in_thread(cache.get_or_create, "a", gate)
    assert gate.entered.wait(TIMEOUT_S)
    second = in_thread(cache.get_or_create, "a", lambda: "mine")
    wait_until(lambda: len(_waiting) == 1)
    gate.open()
    with pytest.raises(KeyboardInterrupt):
        first.result(TIMEOUT_S)
    assert second.result(TIMEOUT_S) == "mine"


def test_a_producer_may_produce_another_key():
    cache = LruCache(10)
    assert cache.get_or_create("a", lambda: cache.get_or_create("b", lambda: 1) + 1) == 2
    assert cache.keys() == ["b", "a"]


def test_a_producer_that_asks_for_its_own_key_is_refused():
    cache = LruCache(10)
    with pytest.raises(StateError, match="asks for 'a' itself"):
        cache.get_or_create("a", lambda: cache.get_or_create("a", lambda: 1))
    assert len(cache) == 0


def test_threads_that_produce_for_one_another_in_a_circle_are_refused():
    cache = LruCache(10)
    both = threading.Barrier(2)

    def produce(other):
        both.wait(TIMEOUT_S)
        return cache.get_or_create(other, lambda: "never")

    threads = [in_thread(cache.get_or_create, k, lambda o=o: produce(o)) for k, o in ("ab", "ba")]
    for thread in threads:
        with pytest.raises(StateError):
            thread.result(TIMEOUT_S)
    assert len(cache) == 0


def test_a_circle_through_two_caches_is_refused():
    left, right = LruCache(4), LruCache(4)
    both = threading.Barrier(2)

    def cross(other):
        both.wait(TIMEOUT_S)
        return other.get_or_create("k", lambda: "never")

    one = in_thread(left.get_or_create, "k", lambda: cross(right))
    two = in_thread(right.get_or_create, "k", lambda: cross(left))
    for thread in (one, two):
        with pytest.raises(StateError):
            thread.result(TIMEOUT_S)


@pytest.mark.parametrize("flush", ["clear", "remove", "resize"])
def test_a_production_that_is_flushed_ends_and_is_not_kept(flush):
    cache, gate, left = LruCache(2, capacity_nbytes=100), Gate("x"), []
    cache.on_evict(lambda key, value: left.append((key, value)))
    thread = in_thread(cache.get_or_create, "a", gate, nbytes=80)
    assert gate.entered.wait(TIMEOUT_S)
    assert (len(cache), cache.nbytes) == (1, 80)
    {"clear": cache.clear, "remove": lambda: cache.remove("a"), "resize": lambda: cache.resize(2, nbytes=79)}[flush]()
    assert (len(cache), cache.nbytes) == (0, 0)
    assert cache.get_or_create("a", lambda: "newer", nbytes=10) == "newer"
    gate.open()
    assert thread.result(TIMEOUT_S) == "x"
    assert cache.get("a") == "newer"
    assert left == [("a", "x")]


def test_productions_under_way_are_not_evicted_for_newcomers():
    cache, gate = LruCache(1), Gate("x")
    thread = in_thread(cache.get_or_create, "a", gate)
    assert gate.entered.wait(TIMEOUT_S)
    assert cache.get_or_create("b", lambda: 1) == 1
    gate.open()
    thread.result(TIMEOUT_S)
    assert cache.keys() == ["a"]


# ---- asserted of oneDNN's primitive cache


def test_thirty_distinct_in_a_cache_of_twenty_two():
    cache = LruCache(22)
    fill(cache, range(30))
    assert len(cache) == 22


def test_distinct_keys_in_parallel_and_again():
    cache = LruCache(1024)
    for _ in range(2):
        run_threads(12, lambda i: cache.get_or_create(i, lambda: object()))
        assert len(cache) == 12
    assert cache.stats().misses == 12


def test_nested_creation_in_parallel_does_not_deadlock():
    cache = LruCache(1024)
    run_threads(
        16, lambda i: cache.get_or_create(("outer", i % 4), lambda: cache.get_or_create(("inner", i % 2), list))
    )
    assert len(cache) == 6


@pytest.mark.parametrize("seed", range(3))
def test_bounds_hold_at_every_instant_under_stress(seed):
    cache = LruCache(8, capacity_nbytes=1000)
    left, produced, broken = [], [], []
    cache.on_evict(lambda key, value: left.append(value))

    def check():
        stats = cache.stats()
        if stats.entries > stats.capacity or stats.nbytes > stats.capacity_nbytes:
            broken.append(stats)

    def produce(random_):
        value = object()
        check()
        if random_.random() < 0.1:
            raise OSError
        produced.append(value)
        return value

    def work(i):
        random_ = random.Random(seed * 100 + i)
        for _ in range(200):
            match random_.randrange(20):
                case 0:
                    cache.clear()
                case 1:
                    cache.remove(random_.randrange(20))
                case 2:
                    cache.resize(random_.randrange(10), nbytes=random_.randrange(1000, 2000))
                case _:
                    with contextlib.suppress(OSError):
                        nbytes = random_.randrange(400)
                        cache.get_or_create(random_.randrange(20), lambda: produce(random_), nbytes=nbytes)
            check()

    run_threads(16, work)
    assert not broken
    cache.clear()
    assert (len(cache), cache.nbytes) == (0, 0)
    assert len(left) == len(set(left)) == cache.stats().evictions
    assert set(left) <= set(produced)


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(0, 60)), max_size=60), st.integers(0, 4))
def test_agrees_with_a_model(accesses, capacity):
    cache = LruCache(capacity, capacity_nbytes=100)
    model = []  # (key, nbytes), oldest first
    for key, nbytes in accesses:
        cache.get_or_create(key, lambda: None, nbytes=nbytes)
        known = [item for item in model if item[0] == key]
        model = [item for item in model if item[0] != key] + (known or [(key, nbytes)] * (capacity > 0))
        while len(model) > capacity or sum(n for _, n in model) > 100:
            model.pop(0)
        assert cache.keys() == [k for k, _ in model]
        assert cache.nbytes == sum(n for _, n in model)


# ---- fork


def in_child(function):
    """Whether ``function()`` is true in a forked child."""
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if function() else 1)
        finally:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_produces_what_another_thread_was_producing():
    cache, gate = LruCache(10), Gate("parent")
    fill(cache, "a", nbytes=5)
    thread = in_thread(cache.get_or_create, "b", gate, nbytes=7)
    assert gate.entered.wait(TIMEOUT_S)
    assert in_child(
        lambda: cache.nbytes == 5 and cache.get_or_create("b", lambda: "child") == "child" and len(cache) == 2
    )
    gate.open()
    assert thread.result(TIMEOUT_S) == "parent"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_waits_for_the_lock():
    cache, stop = LruCache(4, capacity_nbytes=100), threading.Event()

    def churn():
        i = 0
        while not stop.is_set():
            i += 1
            cache.get_or_create(i % 7, list, nbytes=i % 50)

    threads = [in_thread(churn) for _ in range(3)]

    def is_sound():
        fill(cache, "x", nbytes=1)
        return cache.get("x") == "value x" and cache.nbytes <= 100 and len(cache) <= 4

    try:
        assert all(in_child(is_sound) for _ in range(10))
    finally:
        stop.set()
    for thread in threads:
        thread.result(TIMEOUT_S)


@pytest.mark.parametrize(
    "use",
    [
        lambda cache: cache.get([]), lambda cache: cache.get_or_create([], list), lambda cache: cache.remove([]),
        lambda cache: cache.node([]), lambda cache: [] in cache,
    ],
)  # fmt: skip
def test_a_key_without_a_hash_is_refused_and_changes_nothing(use):
    cache = LruCache(2)
    cache.get_or_create(1, lambda: "one")
    with pytest.raises(InvalidArgumentError, match=r"key; accepted: a hashable name; got: \[\]"):
        use(cache)
    assert cache.keys() == [1]
