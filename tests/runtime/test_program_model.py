"""All interleavings of how threads share the steps of a run; the steps are those of ``run_thread``, one for one."""

import pytest

from tests.helpers.interleave import BLOCKED, DONE, explore


def thread(ntasks, piece=1, *, opens_early=False):
    """A thread of a run whose steps have these numbers of tasks."""

    def start(s, me):
        me["place"] = s["place"]
        step, begin = me["place"]
        if step == len(ntasks):
            return DONE
        if begin == ntasks[step]:
            return "wait"
        return "take"

    def wait(s, me):
        return BLOCKED if s["place"] == me["place"] else "start"

    def take(s, me):
        if s["place"] != me["place"]:
            return "start"
        step, begin = me["place"]
        me["n"] = min(piece, ntasks[step] - begin)
        s["place"] = (step, begin + me["n"])
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
        s["done"] += me["n"]
        if s["done"] < ntasks[me["place"][0]]:
            return "start"
        return "open" if opens_early else "reset"

    def reset(s, me):
        s["done"] = 0
        return "start" if opens_early else "open"

    def open_next(s, me):
        s["place"] = (me["place"][0] + 1, 0)
        return "reset" if opens_early else "start"

    return {"start": start, "wait": wait, "take": take, "call": call, "count": count, "reset": reset,
            "open": open_next}  # fmt: skip


def all_done(ntasks):
    tasks = frozenset((k, task) for k, n in enumerate(ntasks) for task in range(n))

    def invariant(s):
        return "the run ended with work left" if s["place"][0] == len(ntasks) and s["ran"] != tasks else None

    return invariant


BEGIN = {"place": (0, 0), "done": 0, "ran": frozenset()}


@pytest.mark.parametrize(("ntasks", "piece"), [((2,), 1), ((2, 2), 1), ((3, 2), 2), ((2, 1, 2), 1)])
@pytest.mark.parametrize("nthreads", [1, 2])
def test_every_task_runs_once_and_steps_in_order(ntasks, piece, nthreads):
    assert explore(BEGIN, [thread(ntasks, piece)] * nthreads, all_done(ntasks)) == set()


def test_three_threads_share_two_steps():
    assert explore(BEGIN, [thread((2, 2))] * 3, all_done((2, 2))) == set()


def test_opening_a_step_before_the_count_is_reset_goes_wrong():
    assert explore(BEGIN, [thread((2, 2), opens_early=True)] * 2, all_done((2, 2)))
