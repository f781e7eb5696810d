"""All interleavings of how threads share the steps of a run; the steps are those of ``run_thread``, one for one."""

import pytest

from tests.helpers.interleave import BLOCKED, DONE, explore


def ranges(ntasks, ngroups):
    """First tasks of the groups, and the end."""
    groups = min(ngroups, ntasks)
    return [ntasks * min(group, groups) // groups for group in range(ngroups + 1)]


def replaced(values, at, value):
    return (*values[:at], value, *values[at + 1 :])


def thread(ntasks, ngroups=1, own=0, piece=1, *, opens_early=False, counts_all=False):
    """A thread of a run whose steps have these numbers of tasks."""

    def start(s, me):
        me["step"], me["visited"] = s["step"], 0
        return DONE if s["step"] == len(ntasks) else "look"

    def look(s, me):
        if me["visited"] == ngroups:
            return "wait"
        me["group"] = (own + me["visited"]) % ngroups
        step, begin = me["place"] = s["places"][me["group"]]
        if step == me["step"] and begin < ranges(ntasks[step], ngroups)[me["group"] + 1]:
            return "take"
        me["visited"] += 1
        return "look"

    def wait(s, me):
        return BLOCKED if s["step"] == me["step"] else "start"

    def take(s, me):
        if s["places"][me["group"]] != me["place"]:
            return "start"
        step, begin = me["place"]
        me["n"] = min(piece, ranges(ntasks[step], ngroups)[me["group"] + 1] - begin)
        s["places"] = replaced(s["places"], me["group"], (step, begin + me["n"]))
        return "call"

    def call(s, me):
        step, begin = me["place"]
        tasks = {(step, task) for task in range(begin, begin + me["n"])}
        before = {(k, task) for k in range(step) for task in range(ntasks[k])}
        assert not tasks & s["ran"], "a task ran twice"
        assert before <= s["ran"], "a step began before the one ahead of it was done"
        s["ran"] = s["ran"] | tasks
        return "count"

    def count(s, me):
        group, firsts = me["group"], ranges(ntasks[me["step"]], ngroups)
        s["done"] = replaced(s["done"], group, s["done"][group] + me["n"])
        return "finish" if s["done"][group] == firsts[group + 1] - firsts[group] else "start"

    def finish(s, me):
        s["nfinished"] += 1
        if s["nfinished"] != (ngroups if counts_all else min(ngroups, ntasks[me["step"]])):
            return "start"
        me["next"] = me["step"] + 1
        return "open" if opens_early else "reset"

    def reset(s, me):
        s["nfinished"], me["opened"] = 0, 0
        return "start" if opens_early else "place" if me["next"] < len(ntasks) else "open"

    def place(s, me):
        group, me["opened"] = me["opened"], me["opened"] + 1
        s["done"] = replaced(s["done"], group, 0)
        s["places"] = replaced(s["places"], group, (me["next"], ranges(ntasks[me["next"]], ngroups)[group]))
        return "place" if me["opened"] < ngroups else "open"

    def open_next(s, me):
        s["step"] = me["next"]
        if opens_early and s["step"] < len(ntasks):
            s["done"] = (0,) * ngroups
            s["places"] = tuple((s["step"], first) for first in ranges(ntasks[s["step"]], ngroups)[:-1])
        return "reset" if opens_early else "start"

    return {"start": start, "look": look, "wait": wait, "take": take, "call": call, "count": count, "finish": finish,
            "reset": reset, "place": place, "open": open_next}  # fmt: skip


def begin(ntasks, ngroups=1):
    return {
        "step": 0, "nfinished": 0, "ran": frozenset(), "done": (0,) * ngroups,
        "places": tuple((0, first) for first in ranges(ntasks[0], ngroups)[:-1]),
    }  # fmt: skip


def all_done(ntasks):
    tasks = frozenset((k, task) for k, n in enumerate(ntasks) for task in range(n))

    def invariant(s):
        return "the run ended with work left" if s["step"] == len(ntasks) and s["ran"] != tasks else None

    return invariant


@pytest.mark.parametrize(("ntasks", "piece"), [((2,), 1), ((2, 2), 1), ((3, 2), 2), ((2, 1, 2), 1)])
@pytest.mark.parametrize("nthreads", [1, 2])
def test_every_task_runs_once_and_steps_in_order(ntasks, piece, nthreads):
    assert explore(begin(ntasks), [thread(ntasks, piece=piece)] * nthreads, all_done(ntasks)) == set()


@pytest.mark.parametrize("ntasks", [(2,), (3, 2), (2, 1, 3), (1, 2)])
@pytest.mark.parametrize("owners", [(0,), (1,), (0, 1), (0, 0)])
def test_groups_take_the_tasks_of_others(ntasks, owners):
    threads = [thread(ntasks, 2, own) for own in owners]
    assert explore(begin(ntasks, 2), threads, all_done(ntasks)) == set()


def test_three_threads_share_two_steps():
    assert explore(begin((2, 1)), [thread((2, 1))] * 3, all_done((2, 1))) == set()


def test_opening_a_step_before_the_count_is_reset_goes_wrong():
    threads = [thread((2, 2), opens_early=True)] * 2
    assert explore(begin((2, 2)), threads, all_done((2, 2))) != set()


def test_waiting_for_groups_without_tasks_goes_wrong():
    threads = [thread((1,), 2, counts_all=True)] * 2
    assert explore(begin((1,), 2), threads, all_done((1,))) == {"deadlock"}
