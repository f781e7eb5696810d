"""Who waits for memory: in which order, until when, for what; and that nobody waits for ever."""

import itertools
import random
import subprocess
import sys
import threading
import time
from functools import partial

import numpy as np
import onnx
import pytest
from onnx import helper

import graphpool as gp
from graphpool.memory import Budget
from graphpool.runtime import model_memory
from graphpool.runtime.group_room import NO_GROUPS, GroupRoom
from graphpool.runtime.memory_queue import MemoryQueue
from tests.helpers.interleave import BLOCKED, DONE, explore
from tests.helpers.memory import TIMEOUT_S, Worker, run_in_child, run_threads
from tests.helpers.onnx_models import make_model, random_array

KIB = 2**10


class Jobs:
    """A queue on a budget, and jobs that charge it."""

    def __init__(self, limit, on_pressure="wait", timeout_s=TIMEOUT_S, room=NO_GROUPS):
        self.budget = Budget(limit)
        self.queue = MemoryQueue(self.budget, on_pressure, timeout_s, room)
        self.order = []

    def work(self, nbytes, name="", during=lambda: None, keeps=False):
        """Take memory, do something, give it back; say so."""

        def work():
            self.budget.charge(nbytes, holder=name)
            try:
                self.order.append(name)
                during()
            finally:
                if not keeps:
                    self.budget.uncharge(nbytes)
            return name

        return work

    def run(self, nbytes, name="", during=lambda: None):
        return self.queue.run(self.work(nbytes, name, during), lambda: 0)

    def load(self, nbytes, name=""):
        return self.queue.load(self.work(nbytes, name, keeps=True))

    def await_line(self, n):
        """Return once so many jobs wait."""
        deadline_s = time.monotonic() + TIMEOUT_S
        while len(self.queue._line) < n:
            assert time.monotonic() < deadline_s, "nobody waits"
            time.sleep(0.001)

    def check_idle(self):
        jobs = self.queue._jobs
        assert (self.budget.in_use, jobs.count, self.queue._line, jobs.alone) == (0, 0, [], None)


def test_a_run_waits_until_users_let_go():
    jobs = Jobs(100)
    jobs.load(70)
    waiting = Worker(jobs.run, 50, "waiting")
    jobs.await_line(1)
    assert jobs.run(30, "small") == "small"  # what fits goes on
    jobs.budget.uncharge(70)
    assert waiting.result() == "waiting"
    jobs.check_idle()


def test_what_never_fits_is_refused_at_once_with_the_least_limit_of_an_idle_engine():
    jobs = Jobs(100)
    jobs.load(70)
    for job in (jobs.run, jobs.load):
        with pytest.raises(gp.OutOfMemoryError, match="idle engine") as caught:
            job(101)
        assert caught.value.smallest_limit == 101
        assert not isinstance(caught.value, TimeoutError)
    jobs.budget.uncharge(70)
    with pytest.raises(gp.OutOfMemoryError) as caught:
        jobs.run(101)
    assert caught.value.smallest_limit == 101
    jobs.check_idle()


@pytest.mark.parametrize("too_much", [5, 60])
def test_what_others_were_giving_back_does_not_count_for_ever(too_much):
    jobs, tries = Jobs(100, timeout_s=TIMEOUT_S), []
    jobs.load(10)

    def work():
        tries.append(None)
        if len(tries) <= 2:  # what is kept by others is 10 before and after, and was more meanwhile
            raise gp.OutOfMemoryError("no room", requested=80, in_use=30, limit=100, resource="budget",
                                      smallest_limit=100 + too_much)  # fmt: skip
        return jobs.work(80, "done")()

    begin_s = time.monotonic()
    assert jobs.queue.load(work) == "done"
    assert time.monotonic() - begin_s < TIMEOUT_S / 2
    jobs.budget.uncharge(10)
    jobs.check_idle()


def test_what_a_model_holds_itself_counts_as_needed():
    jobs = Jobs(100)
    jobs.load(70)
    with pytest.raises(gp.OutOfMemoryError) as caught:
        jobs.queue.run(jobs.work(50), lambda: 70)
    assert caught.value.smallest_limit == 120


def test_the_deadline_ends_the_waiting():
    jobs = Jobs(100, timeout_s=0.05)
    jobs.load(70)
    for job in (jobs.run, jobs.load):
        with pytest.raises(gp.MemoryTimeoutError) as caught:
            job(50)
        assert isinstance(caught.value, TimeoutError)
        assert (caught.value.requested, caught.value.in_use, caught.value.smallest_limit) == (50, 70, 50)
    jobs.budget.uncharge(70)
    assert jobs.run(50, "after") == "after"
    jobs.check_idle()


class Idle:
    """What an engine could give up: so many MiB, which a control group counts."""

    def __init__(self, folder, budget, mib):
        self.file, self.mib = folder / "memory.current", mib
        self.file.write_text(str(mib << 20))
        budget.charge(mib << 20)
        self.budget = budget
        budget.register(self, stage=0)

    def reclaim(self, nbytes):
        given = min(-(-nbytes >> 20), self.mib)
        self.mib -= given
        self.file.write_text(str(self.mib << 20))
        self.budget.uncharge(given << 20)
        return given << 20


@pytest.mark.parametrize("on_pressure", ["refuse", "wait"])
def test_what_is_idle_is_given_up_before_a_group_refuses(tmp_path, on_pressure):
    (tmp_path / "memory.max").write_text(str(116 << 20))  # 16 are left for what nobody counts
    room = GroupRoom([(2, tmp_path, "memory.max")], list)
    jobs = Jobs("1GiB", on_pressure, room=room)
    idle = Idle(tmp_path, jobs.budget, 80)

    def work(mib):
        room.check(mib << 20, "a job")
        return mib

    assert (jobs.queue.run(work, lambda: 0, (30,)), idle.mib) == (30, 50)
    with pytest.raises(gp.OutOfMemoryError, match=r"memory\.max \(asked by a job\)") as caught:
        jobs.queue.run(work, lambda: 0, (101,))
    assert (caught.value.requested, caught.value.limit, idle.mib) == (101 << 20, 100 << 20, 50)
    assert not isinstance(caught.value, TimeoutError)  # it never fits
    jobs.budget.uncharge(50 << 20)
    jobs.check_idle()


def test_what_waits_for_a_group_holds_up_no_other_run(tmp_path):
    (tmp_path / "memory.max").write_text(str(116 << 20))
    (tmp_path / "memory.current").write_text(str(60 << 20))
    room = GroupRoom([(2, tmp_path, "memory.max")], list)
    jobs = Jobs("1GiB", room=room)

    def work(mib):
        room.check(mib << 20, "a job")
        return mib

    waiting = Worker(jobs.queue.run, work, lambda: 0, (50,))
    jobs.await_line(1)
    assert jobs.queue.run(work, lambda: 0, (40,)) == 40
    (tmp_path / "new").write_text(str(50 << 20))
    (tmp_path / "new").replace(tmp_path / "memory.current")
    assert waiting.result() == 50
    jobs.check_idle()


def test_who_comes_first_is_served_first_and_runs_before_loads():
    jobs = Jobs(100)
    jobs.load(90, "held")
    waiting = []
    for k, (job, name) in enumerate([(jobs.load, "load"), (jobs.run, "first"), (jobs.run, "second")]):
        waiting.append(Worker(job, 60, name))
        jobs.await_line(k + 1)
    jobs.budget.uncharge(90)
    assert [worker.result() for worker in waiting] == ["load", "first", "second"]
    assert jobs.order == ["held", "first", "second", "load"]


def test_a_load_that_fits_waits_behind_one_that_does_not():
    jobs = Jobs(100)
    jobs.load(50)
    large = Worker(jobs.load, 80, "large")
    jobs.await_line(1)
    small = Worker(jobs.load, 20, "small")
    jobs.await_line(2)
    jobs.budget.uncharge(50)
    assert (large.result(), small.result()) == ("large", "small")
    assert jobs.order[1:] == ["large", "small"]


def test_a_run_that_may_fit_passes_one_that_does_not():
    """Else the first might wait for a model whose last run stands behind it."""
    jobs = Jobs(100)
    jobs.load(60)
    large = Worker(jobs.run, 80, "large")
    jobs.await_line(1)
    gate = threading.Event()
    beside = Worker(jobs.run, 30, "beside", gate.wait)
    while "beside" not in jobs.order:
        time.sleep(0.001)
    small = Worker(jobs.run, 35, "small")  # fails beside the other, fits alone
    jobs.await_line(2)
    gate.set()
    assert (beside.result(), small.result()) == ("beside", "small")
    jobs.budget.uncharge(60)
    assert large.result() == "large"
    jobs.check_idle()


@pytest.mark.parametrize("policy", ["refuse", "wait"])
def test_runs_that_fit_one_by_one_all_run(policy):
    """Each takes its memory in two steps, so that two of them stand in each other's way."""
    jobs = Jobs(100, policy)

    def run(k):
        def work():
            jobs.budget.charge(40)
            try:
                time.sleep(0)
                jobs.budget.charge(40)
                jobs.budget.uncharge(40)
            finally:
                jobs.budget.uncharge(40)

        for _ in range(10):
            jobs.queue.run(work, lambda: 0)

    run_threads(6, run)
    jobs.check_idle()


def test_refusals_are_not_waited_for_by_default():
    jobs = Jobs(100, "refuse")
    jobs.load(70)
    with pytest.raises(gp.OutOfMemoryError) as caught:
        jobs.run(50)
    assert caught.value.smallest_limit == 120  # what is in use stays in use
    with pytest.raises(gp.OutOfMemoryError):
        jobs.load(50)


def test_a_job_within_a_job_is_part_of_it():
    jobs = Jobs(100)
    inner = []

    def outer():
        inner.append(jobs.run(10, "inner"))
        with pytest.raises(gp.OutOfMemoryError):
            jobs.run(1000)

    jobs.run(50, "outer", outer)
    assert inner == ["inner"]
    jobs.check_idle()


def test_other_errors_pass_and_leave_the_queue_idle():
    jobs = Jobs(100)
    for job in (jobs.queue.load, lambda work: jobs.queue.run(work, lambda: 0)):
        with pytest.raises(ZeroDivisionError):
            job(lambda: 1 // 0)
    jobs.check_idle()


def test_a_forked_child_waits_for_nobody_of_its_parent():
    jobs = Jobs(100)
    jobs.load(70)
    gate = threading.Event()
    running = Worker(jobs.run, 10, "running", gate.wait)
    waiting = Worker(jobs.run, 90, "waiting")
    jobs.await_line(1)

    def child():
        jobs.budget.uncharge(70)
        assert jobs.run(20, "child") == "child"

    run_in_child(child)
    gate.set()
    jobs.budget.uncharge(70)
    assert (running.result(), waiting.result()) == ("running", "waiting")


@pytest.mark.parametrize("options", [{"on_pressure": "hope"}, {"pressure_timeout_s": -1}, {"pressure_timeout_s": "1"}])
def test_what_the_engine_does_not_accept_is_named(options):
    with pytest.raises(gp.InvalidArgumentError, match=next(iter(options))):
        gp.Engine(**options)


INTERRUPTED = """
import os, signal, threading
signal.signal(signal.SIGINT, signal.default_int_handler)
from graphpool.memory import Budget
from graphpool.runtime.memory_queue import MemoryQueue
budget = Budget(100)
queue = MemoryQueue(budget, "wait", 600.0)
budget.charge(70)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    queue.run(lambda: budget.charge(50), lambda: 0)
except KeyboardInterrupt:
    budget.uncharge(70)
    queue.run(lambda: budget.charge(50), lambda: 0)
    print(budget.in_use, queue._line, queue._jobs.count, queue._jobs.alone)
"""


@pytest.mark.native
def test_control_c_ends_the_waiting():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.stdout == "50 [] 0 None\n", done.stderr


# ---- forced interleavings: another job at each look of a job that waits


@pytest.mark.parametrize(
    ("first", "second", "strikes"), list(itertools.product(["run", "load"], ["run", "load"], range(4))), ids=str
)
def test_a_job_that_strikes_between_two_looks_loses_nothing(first, second, strikes):
    """At the look number `strikes` of the first job another thread begins one, and memory comes back right after."""
    jobs, looks, started = Jobs(100), itertools.count(), []
    jobs.load(60)
    real = jobs.queue._is_turn

    def look(*arguments):
        if next(looks) == strikes:
            started.append(Worker(getattr(jobs, second), 70, "second"))
            started[0].join(0.02)
            jobs.budget.uncharge(60)
        return real(*arguments)

    jobs.queue._is_turn = look
    assert getattr(jobs, first)(70, "first") == "first"
    if first == "load":
        jobs.budget.uncharge(70)
    if strikes < next(looks):
        assert started[0].result() == "second"
        jobs.budget.uncharge(70 * (second == "load"))
    assert (jobs.queue._jobs.count, jobs.queue._line, jobs.queue._jobs.alone) == (0, [], None)


def waiting_thread(need, looks_before_announcing=False):
    """`Budget.wait_until` around a trial, and the end of a job, as atomic steps; the flag breaks it on purpose."""

    def start(s, me):
        if s["in_use"] + need <= 2:
            s["in_use"] += need
            return "work"
        return "read" if looks_before_announcing else "announce"

    def announce(s, me):
        s["sleepers"] += 1
        return "read"

    def read(s, me):
        me["epoch"] = s["epoch"]
        return "look"

    def look(s, me):
        if s["in_use"] + need <= 2:
            s["in_use"] += need
            return "leave"
        return "late" if looks_before_announcing and not me.get("late") else "sleep"

    def late(s, me):
        s["sleepers"] += 1
        me["late"] = True
        return "sleep"

    def sleep(s, me):
        return BLOCKED if s["epoch"] == me["epoch"] else "read"

    def leave(s, me):
        s["sleepers"] -= 1
        return "work"

    def work(s, me):
        s["in_use"] -= need
        return "wake"

    def wake(s, me):
        if s["sleepers"]:
            s["epoch"] += 1
        return DONE

    steps = (start, announce, read, look, late, sleep, leave, work, wake)
    return {step.__name__: step for step in steps}


@pytest.mark.parametrize("needs", [(2, 2), (1, 2), (2, 2, 1), (2, 1, 1)])
def test_no_wake_up_is_lost_in_any_interleaving(needs):
    def invariant(s):
        return "too much in use" if s["in_use"] > 2 else None

    shared = {"in_use": 0, "sleepers": 0, "epoch": 0}
    assert explore(shared, [waiting_thread(need) for need in needs], invariant) == set()


def test_the_checker_finds_a_wake_up_that_is_lost():
    shared = {"in_use": 0, "sleepers": 0, "epoch": 0}
    assert "deadlock" in explore(shared, [waiting_thread(2, True), waiting_thread(2, True)])


# ---- models


def chain(width, depth, seed, rows=4):
    """A model of a few products, as bytes, and its input; the file says how many rows, or a name."""
    names = [f"h{k}" for k in range(depth + 1)]
    weights = {f"w{k}": random_array((width, width), seed=seed + k) for k in range(depth)}
    nodes = [helper.make_node("MatMul", [names[k], f"w{k}"], [names[k + 1]]) for k in range(depth)]
    x = random_array((4, width), seed=seed)
    shapes = {"h0": (rows, width)}
    return make_model(nodes, {"h0": x}, names[-1:], weights, shapes=shapes).SerializeToString(), x


def expected(model, x):
    with gp.onnx.load(model) as loaded:
        return next(iter(loaded.run({"h0": x}).values()))


def test_loads_by_many_threads_wait_for_one_another():
    """Sixteen threads load ten models in turn, where hardly more than the largest fits."""
    cases = [chain(32 + 16 * (k % 5), 1 + k % 3, k) for k in range(10)]
    wanted = [expected(*case) for case in cases]
    peaks = []
    for model, _ in cases:
        with gp.Engine(threads=1) as engine, gp.onnx.load(model, engine=engine) as loaded:
            peaks.append(max(engine.budget.peak, loaded.predict_peak()))
    options = {"threads": 1, "memory_limit": int(1.05 * max(peaks)), "on_pressure": "wait"}
    with gp.Engine(**options, pressure_timeout_s=TIMEOUT_S) as engine:

        def serve(i):
            rng = random.Random(i)
            for number in rng.sample(range(10), 5):
                model, x = cases[number]
                with gp.onnx.load(model, engine=engine) as loaded:
                    for _ in range(2):
                        result = next(iter(loaded.run({"h0": x}).values()))
                    np.testing.assert_allclose(result, wanted[number], rtol=1e-4, atol=1e-4)
                del result

        run_threads(16, serve)
        assert engine.budget.peak <= options["memory_limit"]


def test_loads_of_open_shapes_wait_for_the_first_runs_of_one_another(monkeypatch):
    """Several would fit when they are loaded, and only one when it runs: none waits for another one for ever."""
    monkeypatch.setattr(model_memory, "FIRST_RUN_S", TIMEOUT_S)
    cases = [chain(64 + 16 * k, 2, k, "rows") for k in range(4)]
    cases = [(model, np.tile(x, (64, 1))) for model, x in cases]
    wanted = [expected(*case) for case in cases]
    with gp.onnx.load(cases[-1][0], threads=1) as largest:
        limit = int(1.3 * largest.predict_peak({"h0": cases[-1][1]}))
    options = {"memory_limit": limit, "on_pressure": "wait", "pressure_timeout_s": TIMEOUT_S}
    with gp.Engine(threads=1, **options) as engine:

        def serve(i):
            for number in random.Random(i).choices(range(4), k=6):
                model, x = cases[number]
                with gp.onnx.load(model, engine=engine) as loaded:
                    result = next(iter(loaded.run({"h0": x}).values()))
                np.testing.assert_allclose(result, wanted[number], rtol=1e-4, atol=1e-4)
                del result

        run_threads(6, serve)
        assert engine.budget.peak <= limit


@pytest.mark.parametrize("source", [bytes, bytearray, onnx.load_model_from_string])
def test_a_model_of_open_shapes_counts_from_its_load_on(source):
    (model, x), nbytes = chain(64, 3, 0, "rows"), 3 * 64 * 64 * 4
    with pytest.raises(gp.OutOfMemoryError, match="weights of") as caught:
        gp.onnx.load(source(model), memory_limit=nbytes - 1)
    assert caught.value.smallest_limit == nbytes
    with gp.onnx.load(source(model), memory_limit=nbytes) as loaded:
        assert loaded.engine.budget.in_use == nbytes
    with gp.Engine(threads=1) as engine, gp.onnx.load(source(model), engine=engine) as loaded:
        for undo in (loaded.respecialise, loaded.close):
            loaded.run({"h0": x})
            assert engine.budget.in_use > nbytes
            undo()
            loaded.trim()
            engine.trim()
            assert engine.budget.in_use == nbytes * (not loaded.is_closed)


def test_a_load_of_open_shapes_waits_until_open_models_can_run_beside_it():
    (first, x), (second, _) = chain(64, 2, 0, "rows"), chain(112, 2, 9, "rows")
    x = np.tile(x, (64, 1))
    with gp.onnx.load(first, threads=1) as model:
        peak = model.predict_peak({"h0": x})
    options = {"memory_limit": peak, "on_pressure": "wait", "pressure_timeout_s": TIMEOUT_S}
    with gp.Engine(threads=1, **options) as engine:
        model = gp.onnx.load(first, engine=engine)
        model.run({"h0": x})
        waiting = Worker(partial(gp.onnx.load, second, engine=engine))
        deadline_s = time.monotonic() + TIMEOUT_S
        while not engine.queue._line and time.monotonic() < deadline_s:
            time.sleep(0.001)
        model.run({"h0": x})  # for which that leaves no room
        assert waiting.is_alive()
        model.close()
        waiting.result().close()


def test_the_least_limit_that_is_named_works_on_an_idle_engine():
    (large, x), (other, _) = chain(96, 3, 0), chain(64, 2, 50)
    with gp.Engine(threads=1) as engine, gp.onnx.load(large, engine=engine):
        limit = engine.budget.in_use // 2
    with gp.Engine(threads=1, memory_limit=limit, on_pressure="wait") as engine, gp.onnx.load(other, engine=engine):
        with pytest.raises(gp.OutOfMemoryError, match="idle engine") as caught:
            gp.onnx.load(large, engine=engine)
        assert not isinstance(caught.value, gp.MemoryTimeoutError)
    least = caught.value.smallest_limit
    with gp.Engine(threads=1, memory_limit=least) as engine, gp.onnx.load(large, engine=engine) as model:
        model.run({"h0": x})


def test_a_run_waits_for_results_that_are_held():
    nodes = [helper.make_node("Tile", ["x", "n"], ["y"])]
    x = np.ones((1, 64 * KIB), np.float32)
    model = make_model(nodes, {"x": x}, ["y"], {"n": np.array([8, 1])})
    options = {"memory_limit": "3MiB", "on_pressure": "wait", "pressure_timeout_s": TIMEOUT_S}
    with gp.Engine(threads=1, **options) as engine, gp.onnx.load(model, engine=engine) as loaded:
        held = loaded.run({"x": x})
        waiting = Worker(loaded.run, {"x": x})
        deadline_s = time.monotonic() + TIMEOUT_S
        while not engine.queue._line and time.monotonic() < deadline_s:
            time.sleep(0.001)
        assert waiting.is_alive()
        del held
        assert waiting.result()["y"].shape == (8, 64 * KIB)


def test_a_run_whose_results_never_fit_shuts_out_no_other_model():
    sizes = make_model([helper.make_node("ConstantOfShape", ["s"], ["y"])], {"s": np.array([2, 3])}, ["y"])
    (other, x) = chain(8, 2, 0)
    options = {"memory_limit": "1MiB", "on_pressure": "wait", "pressure_timeout_s": TIMEOUT_S}
    with gp.Engine(threads=1, **options) as engine, gp.onnx.load(sizes, engine=engine) as first:
        first.run({"s": np.array([2, 3])})
        with pytest.raises(gp.OutOfMemoryError, match="results"):
            first.run({"s": np.array([KIB, KIB])})
        with gp.onnx.load(other, engine=engine) as second:
            assert second.run({"h0": x}).keys()


def test_a_pickled_engine_waits_as_the_first_one_does():
    import pickle

    with gp.Engine(on_pressure="wait", pressure_timeout_s=2.5) as engine, pickle.loads(pickle.dumps(engine)) as other:
        assert (other.on_pressure, other.pressure_timeout_s) == ("wait", 2.5)


@pytest.mark.parametrize("held", [0, 30])
def test_what_never_fits_is_no_timeout_where_nobody_holds_anything(held):
    """A job without time to wait, which comes to what it is refused in two steps."""
    jobs = Jobs(100, timeout_s=0)
    jobs.budget.charge(held, holder="somebody")

    def work():
        jobs.budget.charge(50, holder="first")
        try:
            jobs.budget.charge(80, holder="second")
        finally:
            jobs.budget.uncharge(50)

    with pytest.raises(gp.OutOfMemoryError) as caught:
        jobs.queue.run(work, lambda: 0)
    assert isinstance(caught.value, gp.MemoryTimeoutError) == bool(held)
    assert ("does not fit an idle engine" in str(caught.value)) == (not held)
    assert caught.value.smallest_limit == 130
