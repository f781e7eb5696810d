"""Streams whose calls groups of threads share, in every interleaving of a few small runs."""

import pytest

from tests.helpers.interleave import BLOCKED, DONE, explore
from tests.runtime.test_program_model import ranges, replaced

NGROUPS = 2


def thread(streams, own, *, resets_late=False, looks_late=False, awaits_own=False):
    """A thread of group `own`: `streams` have for each of their calls its tasks and what it waits for.

    Wrong variants: finished ranges are counted anew behind the opening of a call, what changes is looked at behind the
    streams instead of before them, and who waits looks at the changes of its own group alone.
    """

    def go(me, label):
        """On from here, and back to the first label when that is done."""
        me["then"] = label
        return "tick"

    def start(s, me):
        me["seen"], me["visited"], me["nended"], me["summed"] = 0, 0, 0, 0
        return "visit" if looks_late else "sum"

    def add_up(s, me):
        me["seen"] += s["ticks"][me["summed"]] if me["summed"] == own or not awaits_own else 0
        me["summed"] += 1
        return "sum" if me["summed"] < NGROUPS else "wait" if looks_late else "visit"

    def visit(s, me):
        if me["visited"] == len(streams):
            if me["nended"] == len(streams):
                return DONE
            return "sum" if looks_late else "wait"
        stream = me["stream"] = (own + me["visited"]) % len(streams)
        me["k"], state = s["places"][stream]
        if me["k"] == len(streams[stream]):
            me["nended"] += 1
        elif state == "open":
            me["looked"] = 0
            return "look"
        elif state == "parked" and is_ready(s, me):
            return "claim"
        me["visited"] += 1
        return "visit"

    def is_ready(s, me):
        return all(s["counts"][other] >= count for other, count in streams[me["stream"]][me["k"]][1])

    def wait(s, me):
        now = s["ticks"][own] if awaits_own else sum(s["ticks"])
        return BLOCKED if now == me["seen"] else "start"

    def claim(s, me):
        if s["places"][me["stream"]] != (me["k"], "parked"):
            me["visited"] += 1
            return "visit"
        s["places"] = replaced(s["places"], me["stream"], (me["k"], "taken"))
        return "advance"

    def advance(s, me):
        calls, stream = streams[me["stream"]], me["stream"]
        if me["k"] == len(calls):
            s["places"] = replaced(s["places"], stream, (me["k"], "parked"))
            return go(me, "start")
        if not is_ready(s, me):
            s["places"] = replaced(s["places"], stream, (me["k"], "parked"))
            return "start"
        if calls[me["k"]][0] == 1:
            run(s, me, 0)
            return "close"
        me["opened"] = 0
        return "range"

    def run(s, me, task):
        stream, k = me["stream"], me["k"]
        assert s["counts"][stream] == k, "a call ran before the one before it had ended"
        assert is_ready(s, me), "a call ran before what it waits for"
        assert (stream, k, task) not in s["ran"], "a task ran twice"
        s["ran"] |= {(stream, k, task)}

    def set_range(s, me):
        stream, group = me["stream"], me["opened"]
        if group == 0 and not resets_late:
            s["nfinished"] = replaced(s["nfinished"], stream, 0)
        firsts = ranges(streams[stream][me["k"]][0], NGROUPS)
        s["done"] = replaced(s["done"], stream * NGROUPS + group, 0)
        s["taken"] = replaced(s["taken"], stream * NGROUPS + group, (me["k"], firsts[group]))
        me["opened"] += 1
        return "range" if me["opened"] < NGROUPS else "publish"

    def publish(s, me):
        s["places"] = replaced(s["places"], me["stream"], (me["k"], "open"))
        return "reset" if resets_late else go(me, "start")

    def reset(s, me):
        s["nfinished"] = replaced(s["nfinished"], me["stream"], 0)
        return go(me, "start")

    def look(s, me):
        if me["looked"] == NGROUPS:
            me["visited"] += 1
            return "visit"
        me["group"] = (own + me["looked"]) % NGROUPS
        me["looked"] += 1
        me["at"] = s["taken"][me["stream"] * NGROUPS + me["group"]]
        end = ranges(streams[me["stream"]][me["k"]][0], NGROUPS)[me["group"] + 1]
        return "take" if me["at"][0] == me["k"] and me["at"][1] < end else "look"

    def take(s, me):
        at = me["stream"] * NGROUPS + me["group"]
        if s["taken"][at] != me["at"]:
            return "start"
        s["taken"] = replaced(s["taken"], at, (me["k"], me["at"][1] + 1))
        return "call"

    def call(s, me):
        run(s, me, me["at"][1])
        return "count"

    def count(s, me):
        at, firsts = me["stream"] * NGROUPS + me["group"], ranges(streams[me["stream"]][me["k"]][0], NGROUPS)
        s["done"] = replaced(s["done"], at, s["done"][at] + 1)
        return "finish" if s["done"][at] == firsts[me["group"] + 1] - firsts[me["group"]] else "start"

    def finish(s, me):
        stream = me["stream"]
        s["nfinished"] = replaced(s["nfinished"], stream, s["nfinished"][stream] + 1)
        return "close" if s["nfinished"][stream] == min(NGROUPS, streams[stream][me["k"]][0]) else "start"

    def close(s, me):
        s["counts"] = replaced(s["counts"], me["stream"], me["k"] + 1)
        me["k"] += 1
        return go(me, "advance")

    def tick(s, me):
        s["ticks"] = replaced(s["ticks"], own, s["ticks"][own] + 1)
        return me["then"]

    return {"start": start, "sum": add_up, "visit": visit, "wait": wait, "claim": claim, "advance": advance,
            "range": set_range, "publish": publish, "reset": reset, "look": look, "take": take, "call": call,
            "count": count, "finish": finish, "close": close, "tick": tick}  # fmt: skip


def begin(streams):
    n = len(streams)
    return {
        "places": ((0, "parked"),) * n, "counts": (0,) * n, "nfinished": (0,) * n, "ticks": (0,) * NGROUPS,
        "taken": ((-1, 0),) * (n * NGROUPS), "done": (0,) * (n * NGROUPS), "ran": frozenset(),
    }  # fmt: skip


def all_done(streams):
    tasks = {(s, k, task) for s, calls in enumerate(streams) for k, (n, _) in enumerate(calls) for task in range(n)}

    def invariant(s):
        ended = all(k == len(calls) for (k, _), calls in zip(s["places"], streams, strict=True))
        return "the run ended with work left" if ended and s["ran"] != tasks else None

    return invariant


def found(streams, owners, **wrong):
    return explore(begin(streams), [thread(streams, own, **wrong) for own in owners], all_done(streams))


ALONE = [[(2, []), (3, [])]]
CROSSED = [[(2, []), (1, [(1, 1)])], [(1, [(0, 1)])]]
BESIDE = [[(2, [])], [(1, [(0, 1)])]]


@pytest.mark.parametrize(
    ("streams", "owners"),
    [(ALONE, (0,)), (ALONE, (0, 1)), (ALONE, (1, 1)), (CROSSED, (0,)), (BESIDE, (0, 1))],
)
def test_every_task_runs_once_and_calls_in_order(streams, owners):
    assert found(streams, owners) == set()


def test_counting_finished_ranges_anew_behind_the_opening_goes_wrong():
    assert found(ALONE, (0, 1), resets_late=True) != set()


def test_looking_for_changes_behind_the_streams_goes_wrong():
    assert "deadlock" in found(BESIDE, (0, 1), looks_late=True)


def test_waiting_for_changes_of_the_own_group_alone_goes_wrong():
    assert "deadlock" in found(BESIDE, (0, 1), awaits_own=True)
