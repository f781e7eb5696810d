import os
import threading

import pytest

from graphpool.fork import Locked, cached_property, guard_fork, reset_in_child
from tests.helpers.memory import run_in_child

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


class Noted:
    """Writes down which of its hooks are called."""

    def __init__(self, name, calls):
        self.name, self.calls = name, calls

    def _before_fork(self):
        self.calls.append(f"{self.name} before")

    def _after_fork_in_parent(self):
        self.calls.append(f"{self.name} in parent")

    def _reset_in_child(self):
        self.calls.append(f"{self.name} in child")


def test_a_lock_that_another_thread_holds_is_free_in_a_child():
    item, is_held, may_end = Locked(), threading.Event(), threading.Event()

    def hold():
        with item._lock:
            is_held.set()
            may_end.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()

    def work():
        assert item._lock.acquire(timeout=0)

    try:
        run_in_child(work)
        assert not item._lock.acquire(timeout=0)
    finally:
        may_end.set()
        thread.join()


def test_the_oldest_is_reset_first_and_what_is_gone_is_left_out():
    calls = []
    items = [Noted(str(k), calls) for k in range(20)]
    for item in reversed(items):
        reset_in_child(item)
    del items[3], item

    def work():
        assert calls == [f"{k} in child" for k in reversed(range(20)) if k != 3]

    run_in_child(work)
    assert calls == []


def test_what_is_guarded_is_called_on_all_sides_and_before_what_is_reset():
    calls = []
    guarded, other = Noted("guarded", calls), Noted("other", calls)
    reset_in_child(other)
    guard_fork(guarded)

    def work():
        assert calls == ["guarded before", "guarded in child", "other in child"]

    run_in_child(work)
    assert calls == ["guarded before", "guarded in parent"]


def test_a_child_forks_again():
    item = Locked()

    def work():
        run_in_child(lambda: item._lock.acquire(timeout=0))

    run_in_child(work)


def test_a_property_that_another_thread_computes_at_the_fork_works_in_the_child():
    entered, may_go = threading.Event(), threading.Event()

    class Slow:
        @cached_property
        def value(self):
            entered.set()
            assert may_go.wait(30)
            return 1

        @cached_property
        def other(self):
            return 2

    slow = Slow()
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert entered.wait(30)

    def works():
        may_go.set()
        assert (slow.other, slow.value, Slow().value) == (2, 1, 1)

    run_in_child(works)
    may_go.set()
    thread.join()
    assert slow.__dict__ == {"value": 1}
