"""All interleavings of the lease protocol in a model, and of the RFC's snippet, whose faults the checker must find.

The steps of the pool's model are the atomic operations of ``_slots.pyx``, ``_arena.pyx`` and ``_gate.pyx``, one by one.
"""

import pytest

from tests.helpers.interleave import BLOCKED, DONE, explore


def pool_thread(max_arenas, looks_before_announcing=False, notifies_before_release=False):
    """One thread that acquires an arena and releases it; the flags break the protocol on purpose."""

    def take(s, me):
        free = [i for i, state in enumerate(s["slots"]) if state == "free"]
        if not free:
            return False
        s["slots"] = tuple("leased" if i == free[0] else state for i, state in enumerate(s["slots"]))
        me["slot"] = free[0]
        return True

    def start(s, me):
        """acquire_fast: refused while others queue."""
        if s["waiters"] == 0 and take(s, me):
            return "use"
        return "early_look" if looks_before_announcing else "announce"

    def early_look(s, me):
        me["epoch"] = s["epoch"]
        return "use" if take(s, me) else "early_announce"

    def early_announce(s, me):
        s["waiters"] += 1
        return "sleep"

    def announce(s, me):
        s["waiters"] += 1
        me["queued"] = True
        return "read_epoch"

    def read_epoch(s, me):
        me["epoch"] = s["epoch"]
        return "look"

    def look(s, me):
        return "leave" if take(s, me) else "count"

    def count(s, me):
        """Counted before the slow allocation."""
        if s["arenas"] == max_arenas:
            return "sleep"
        s["arenas"] += 1
        return "create"

    def create(s, me):
        s["slots"] += ("leased",)
        me["slot"] = len(s["slots"]) - 1
        return "leave"

    def sleep(s, me):
        return BLOCKED if s["epoch"] == me["epoch"] else "read_epoch"

    def leave(s, me):
        s["waiters"] -= 1
        return "leave_notify"

    def leave_notify(s, me):
        if s["waiters"]:
            s["epoch"] += 1
        return "use"

    def use(s, me):
        assert me["slot"] not in s["in_use"], "two threads in one arena"
        s["in_use"] += (me["slot"],)
        return "stop"

    def stop(s, me):
        s["in_use"] = tuple(slot for slot in s["in_use"] if slot != me["slot"])
        return "notify" if notifies_before_release else "give"

    def give(s, me):
        s["slots"] = tuple("free" if i == me["slot"] else state for i, state in enumerate(s["slots"]))
        return DONE if notifies_before_release else "notify"

    def notify(s, me):
        if s["waiters"]:
            s["epoch"] += 1
        return "give" if notifies_before_release else DONE

    return {name: step for name, step in locals().items() if callable(step) and name != "take"}


def check_pool(n, max_arenas, **faults):
    shared = {"slots": (), "arenas": 0, "epoch": 0, "waiters": 0, "in_use": ()}
    return explore(
        shared,
        [pool_thread(max_arenas, **faults)] * n,
        lambda s: "too many arenas" if len(s["slots"]) > max_arenas else None,
    )


@pytest.mark.parametrize(("n", "max_arenas"), [(1, 1), (2, 1), (2, 2), (3, 1), (3, 2)])
def test_no_interleaving_of_the_pool_goes_wrong(n, max_arenas):
    assert check_pool(n, max_arenas) == set()


def test_looking_before_announcing_loses_a_wake_up():
    assert check_pool(2, 1, looks_before_announcing=True) == {"deadlock"}


def test_notifying_before_releasing_loses_a_wake_up():
    assert check_pool(2, 1, notifies_before_release=True) == {"deadlock"}


def budget_thread(nbytes, limit, adds_first):
    """One thread that charges and uncharges; `adds_first` is the limit of RMM's adaptor."""

    def start(s, me):
        if not adds_first:
            fits = s["in_use"] + nbytes <= limit
            s["in_use"] += nbytes if fits else 0
            return "hold" if fits else DONE
        s["in_use"] += nbytes
        return "check"

    def check(s, me):
        return "hold" if s["in_use"] <= limit else "undo"

    def undo(s, me):
        s["in_use"] -= nbytes
        assert nbytes > limit, "a request that fits alone was refused"
        return DONE

    def hold(s, me):
        s["in_use"] -= nbytes
        return DONE

    return {"start": start, "check": check, "undo": undo, "hold": hold}


@pytest.mark.parametrize(
    ("adds_first", "wrong"),
    [(False, set()), (True, {"limit passed", "a request that fits alone was refused"})],
)
def test_the_limit_holds_at_every_instant(adds_first, wrong):
    threads = [budget_thread(nbytes, 10, adds_first) for nbytes in (10**6, 6)]
    found = explore({"in_use": 0}, threads, lambda s: "limit passed" if s["in_use"] > 10 else None)
    if adds_first:
        found |= explore({"in_use": 0}, threads)
    assert found == wrong


def rfc_thread():
    """One thread in the RFC's ``reserve_pools(allocator, 1)``: its steps as published."""

    def start(s, me):
        me["retry"] = False
        return "check_empty"

    def check_empty(s, me):
        if s["free"] == 0:
            assert not me["retry"], "the retry found no pool: another thread took it"
            return "create"
        return "wait"

    def create(s, me):
        s["pools"] += 1
        return "register"

    def register(s, me):
        s["free"] += 1
        s["semaphore"] = s["free"]
        me["retry"] = True
        return "check_empty"

    def wait(s, me):
        if s["semaphore"] == 0:
            return BLOCKED
        s["semaphore"] -= 1
        return "pop"

    def pop(s, me):
        assert s["free"] > 0, "popped an empty list"
        s["free"] -= 1
        return DONE

    return {
        "start": start,
        "check_empty": check_empty,
        "create": create,
        "register": register,
        "wait": wait,
        "pop": pop,
    }


@pytest.mark.parametrize(
    ("n", "free", "wrong"),
    [
        (1, 0, set()),
        (2, 0, {"the retry found no pool: another thread took it"}),
        (2, 1, {"deadlock"}),
    ],
)
def test_the_checker_finds_the_faults_of_the_rfc(n, free, wrong):
    shared = {"free": free, "semaphore": free, "pools": free}
    assert wrong <= explore(shared, [rfc_thread()] * n)


def test_the_rfc_creates_a_pool_for_each_thread_that_sees_none():
    found = explore(
        {"free": 0, "semaphore": 0, "pools": 0},
        [rfc_thread()] * 2,
        lambda s: "two pools where one was free to come" if s["pools"] > 1 else None,
    )
    assert "two pools where one was free to come" in found


def retiring_thread(closes, faults):
    """`_retire` of one idle arena, for `trim` or for `close`, which says first that the pool is closed."""

    def start(s, me):
        me["takes_reserved"] = False
        s["closed"] = s["closed"] or closes
        return "lower" if closes else "look"

    def lower(s, me):
        s["floor"] = 0
        return "look"

    def look(s, me):
        return "claim" if s["slot"] == "free" else "end"

    def claim(s, me):
        if s["slot"] != "free":
            return "look"
        s["slot"] = "retiring"
        return "read_floor" if "floor before announcing" in faults else "announce"

    def announce(s, me):
        s["retiring"] += 1
        me["left"] = s["arenas"] - s["retiring"]
        return "decide" if "floor before announcing" in faults else "read_floor"

    def read_floor(s, me):
        me["floor"] = 0 if me["takes_reserved"] else s["floor"]
        return "announce" if "floor before announcing" in faults else "decide"

    def decide(s, me):
        return "withdraw" if me["left"] < me["floor"] else "free"

    def withdraw(s, me):
        s["retiring"] -= 1
        return "restore"

    def restore(s, me):
        s["slot"] = "free"
        return "end" if "nobody looks again" in faults else "look_again"

    def look_again(s, me):
        if not s["closed"]:
            return "end"
        me["takes_reserved"] = True
        return "look"

    def free(s, me):
        s["slot"], s["arenas"] = "empty", s["arenas"] - 1
        return "freed"

    def freed(s, me):
        s["retiring"] -= 1
        return "look"

    def end(s, me):
        s["ended"] += 1
        return DONE

    return {name: step for name, step in locals().items() if callable(step)}


def reserving_thread():
    """`reserve_warm`: raises the floor, then looks whether there are arenas enough."""

    def start(s, me):
        return "end" if s["closed"] else "raise_floor"

    def raise_floor(s, me):
        s["floor"] += 1
        return "look"

    def look(s, me):
        if s["arenas"] - s["retiring"] < s["floor"]:
            return "lower"
        s["reserved"] += 1
        return "end"

    def lower(s, me):
        s["floor"] -= 1
        return "end"

    def end(s, me):
        s["ended"] += 1
        return DONE

    return {name: step for name, step in locals().items() if callable(step)}


def check_closing(*faults):
    def invariant(s):
        if s["ended"] < 3:
            return None
        if s["closes"]:
            return "an arena is left in a closed pool" if s["arenas"] else None
        return "more reserved than there is" if s["reserved"] > s["arenas"] else None

    found = set()
    for closes in (True, False):
        shared = {"slot": "free", "arenas": 1, "retiring": 0, "floor": 0, "closed": False, "reserved": 0, "ended": 0}
        threads = [retiring_thread(closes, faults), retiring_thread(False, faults), reserving_thread()]
        found |= explore({**shared, "closes": closes}, threads, invariant)
    return found


def test_a_closed_pool_keeps_no_arena_whoever_reserves_or_trims_meanwhile():
    assert check_closing() == set()


def test_a_reservation_that_meets_close_would_keep_an_arena():
    assert check_closing("nobody looks again") == {"an arena is left in a closed pool"}


def test_trim_that_looks_before_it_announces_would_take_what_is_reserved():
    assert check_closing("floor before announcing") == {"more reserved than there is"}
