"""All interleavings of the team's protocol in a model: the steps are those of ``gp_team.h``, one for one.

Each protocol is also broken on purpose, and the checker must find what goes wrong.
"""

import pytest

from tests.helpers.interleave import BLOCKED, DONE, explore


def sleeper(announces_late=False):
    """`gp_wait_while`: returns once the word has changed."""

    def start(s, me):
        return DONE if s["word"] else ("lock" if announces_late else "announce")

    def announce(s, me):
        s["sleepers"] += 1
        return "wait" if announces_late else "lock"

    def lock(s, me):
        if s["mutex"]:
            return BLOCKED
        s["mutex"] = True
        return "look"

    def look(s, me):
        if s["word"]:
            s["mutex"] = False
            return DONE
        return "announce" if announces_late else "wait"

    def wait(s, me):
        s["mutex"] = False
        s["asleep"] += 1
        return "asleep"

    def asleep(s, me):
        if not s["woken"]:
            return BLOCKED
        s["woken"] -= 1
        return "lock"

    return {"start": start, "announce": announce, "lock": lock, "look": look, "wait": wait, "asleep": asleep}


def changer(looks_first=False):
    """Changes the word, then `gp_gate_notify`."""

    def change(s, me):
        s["word"] = True
        return "decide" if looks_first else "look"

    def look(s, me):
        me["found"] = s["sleepers"] > 0
        return "change" if looks_first else "decide"

    def decide(s, me):
        return "lock" if me["found"] else DONE

    def lock(s, me):
        if s["mutex"]:
            return BLOCKED
        s["mutex"] = True
        return "broadcast"

    def broadcast(s, me):
        s["woken"] += s["asleep"]
        s["asleep"] = 0
        s["mutex"] = False
        return DONE

    first = look if looks_first else change
    return {"start": first, "change": change, "look": look, "decide": decide, "lock": lock, "broadcast": broadcast}


GATE = {"word": False, "sleepers": 0, "mutex": False, "asleep": 0, "woken": 0}


@pytest.mark.parametrize("sleepers", [1, 2, 3])
def test_no_wake_up_is_lost(sleepers):
    assert explore(GATE, [changer(), *[sleeper()] * sleepers]) == set()


def test_a_sleeper_must_announce_itself_before_its_last_look():
    assert "deadlock" in explore(GATE, [changer(), sleeper(announces_late=True)])


def test_a_changer_must_change_before_it_looks_for_sleepers():
    assert "deadlock" in explore(GATE, [changer(looks_first=True), sleeper()])


def order(number):
    return f"order of thread {number}"


def ran(number):
    return f"last region of thread {number}"


def owner(nthreads, regions, waits=True, takes_back=True):
    """`gp_team_run`, `regions` times, then the end: offer, do thread 0's part, call off or wait."""

    def start(s, me):
        me["i"], me["ended"] = 1, 0
        s["region"] = 1
        return "offer"

    def offer(s, me):
        s[order(me["i"])] = "offered"
        me["i"] += 1
        return "offer" if me["i"] <= nthreads else "work"

    def work(s, me):
        me["i"] = 1
        return "call_off"

    def call_off(s, me):
        if s[order(me["i"])] == "offered" and takes_back:
            s[order(me["i"])] = "idle"
        return "wait" if waits else "next"

    def wait(s, me):
        return BLOCKED if s[order(me["i"])] == "running" else "next"

    def following(s, me):
        me["i"] += 1
        if me["i"] <= nthreads:
            return "call_off"
        me["i"], me["ended"] = 1, me["ended"] + 1
        s["region"] = 0 if me["ended"] == regions else me["ended"] + 1
        return "stop" if me["ended"] == regions else "offer"

    def stop(s, me):
        s[order(me["i"])] = "stopped"
        me["i"] += 1
        return "stop" if me["i"] <= nthreads else DONE

    return {"start": start, "offer": offer, "work": work, "call_off": call_off, "wait": wait, "next": following,
            "stop": stop}  # fmt: skip


def helper(number, claims=True):
    """`gp_thread_main`: wait for an order, claim it, read the region, run, be idle."""

    def start(s, me):
        me.clear()
        if s[order(number)] == "idle":
            return BLOCKED
        return DONE if s[order(number)] == "stopped" else "claim"

    def claim(s, me):
        if claims and s[order(number)] != "offered":
            return "start"
        s[order(number)] = "running"
        return "enter"

    def enter(s, me):
        me["region"] = s["region"]
        return "run"

    def run(s, me):
        assert me["region"] == s["region"] != 0, "a thread ran in a region that had ended"
        assert s[ran(number)] < me["region"], "a thread ran twice in one region"
        s[ran(number)] = me["region"]
        return "leave"

    def leave(s, me):
        s[order(number)] = "idle"
        return "start"

    return {"start": start, "claim": claim, "enter": enter, "run": run, "leave": leave}


def check(nthreads, owner, **how):
    helpers = range(1, nthreads + 1)
    state = {"region": 0} | {order(i): "idle" for i in helpers} | {ran(i): 0 for i in helpers}
    return explore(state, [owner, *[helper(i, **how) for i in helpers]])


@pytest.mark.parametrize(("nthreads", "regions"), [(1, 1), (1, 3), (2, 2)])
def test_regions_end_with_nobody_inside(nthreads, regions):
    assert check(nthreads, owner(nthreads, regions)) == set()


def test_a_region_that_waits_for_nobody_goes_wrong():
    assert "a thread ran in a region that had ended" in check(1, owner(1, 2, waits=False))


def test_an_order_that_is_not_claimed_atomically_goes_wrong():
    assert check(1, owner(1, 2), claims=False)


def test_an_order_that_is_not_called_off_goes_wrong():
    assert check(1, owner(1, 2, takes_back=False))
