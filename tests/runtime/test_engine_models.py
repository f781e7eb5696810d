"""Several models in one budget: what they hold, in which order they give it up, and that they come back."""

import math
import os
import pickle
import threading
from copy import copy as shallow_copy

import numpy as np
import pytest

import graphpool as gp

onnx = pytest.importorskip("onnx")

from graphpool.runtime import model_forms  # noqa: E402
from graphpool.runtime._form_cache import FormCache  # noqa: E402
from graphpool.runtime.memory_queue import MemoryQueue  # noqa: E402
from graphpool.runtime.model_forms import ModelForms  # noqa: E402
from graphpool.runtime.variable_forms import VariableForms  # noqa: E402
from tests.cases.many_models import ChainModel, draw_models, draw_requests, limit_for  # noqa: E402
from tests.cases.session_models import PAIRS  # noqa: E402
from tests.helpers.caches import closed_at_most, in_thread  # noqa: E402
from tests.helpers.memory import run_in_child, run_threads  # noqa: E402

ALL = 1 << 40
"""More bytes than any engine here has."""

SMALL, OTHER = ChainModel(3, 48, 1), ChainModel(3, 48, 2)


class Clock:
    """Of costs: each look at it is `step_s` later."""

    def __init__(self, step_s=1e-3):
        self.now_s, self.step_s = 0.0, step_s

    def __call__(self):
        self.now_s += self.step_s
        return self.now_s


class Cache(FormCache):
    """One of which tests replace the methods that runs call."""

    def enter(self, key, make, given=()):
        return super().enter(key, make, given)

    def leave(self, use, runs=0):
        super().leave(use, runs)

    def take_idle(self, others, keep):
        return super().take_idle(others, keep)


@pytest.fixture
def engine(monkeypatch):
    monkeypatch.setattr(model_forms, "FormCache", Cache)
    with gp.Engine(threads=1) as engine:
        engine.model_memory.cost_clock = Clock()
        yield engine


def load(case, folder, engine, **options):
    return gp.onnx.load(case.write(folder), engine=engine, **options)


def test_waiting_is_no_cost():
    with gp.Engine(threads=1) as engine:
        clock = engine.model_memory.cost_clock
        begin = clock()
        threading.Event().wait(0.2)
        assert clock() - begin < 0.1


@pytest.fixture
def pair(engine, tmp_path):
    with load(SMALL, tmp_path, engine) as first, load(OTHER, tmp_path, engine) as second:
        SMALL.check(first)
        OTHER.check(second)
        yield first, second


def usage_of(model):
    return next(usage for usage in model.engine.models() if usage.name == model.name)


def give_up(engine, nbytes=ALL):
    """As under pressure."""
    return engine.model_memory.reclaim(nbytes)


# ---- what each holds


def test_usage_adds_up_to_what_the_budget_counts(pair, engine):
    usages = engine.models()
    assert [usage.name for usage in usages] == [model.name for model in pair]
    assert all(min(u.packed_nbytes, u.programs_nbytes, u.forms_nbytes, u.arenas_nbytes) > 0 for u in usages)
    assert sum(usage.nbytes for usage in usages) == engine.budget.in_use
    assert not any(usage.is_busy or usage.is_pinned for usage in usages)
    OTHER.check(pair[1])
    SMALL.check(pair[0])
    assert [usage.name for usage in engine.models()] == [pair[1].name, pair[0].name]
    pair[0].close()
    assert [usage.name for usage in engine.models()] == [pair[1].name]


def test_states_of_sessions_are_told_and_stay(engine):
    model_case, states = PAIRS["attention"]
    rng = np.random.default_rng(0)
    most = {"p": 24, "b": 1}
    with model_case.load(engine) as model, model.session(states, most) as session, model.session(states, most) as calm:
        given = [port.name for port in model.inputs if port.name not in set(states.values())]
        for _ in range(6):
            arrays = model_case.arrays({"b": 1, "l": 2, "p": 0}, rng)
            inputs = {name: arrays[name] for name in given}
            expected = calm.run(inputs)
            give_up(engine)
            found = session.run(inputs)
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array)
        assert model.stats().compilations > 6
        assert usage_of(model).states_nbytes == session.nbytes + calm.nbytes > 0


# ---- what is given up comes back


def test_a_model_gives_up_all_and_comes_back(pair, engine):
    first, _ = pair
    states = usage_of(first)
    give_up(engine)
    assert engine.budget.in_use == 0
    assert usage_of(first).nbytes == 0
    for _ in range(3):
        SMALL.check(first)
    assert usage_of(first).packed_nbytes == states.packed_nbytes
    assert first.stats().compilations == 2


def test_all_that_could_be_given_up_counts_as_reclaimable(pair, engine):
    assert engine.budget.reclaimable == engine.budget.in_use
    pair[0].pin()
    assert engine.budget.reclaimable == engine.budget.in_use - usage_of(pair[0]).nbytes


def test_programs_of_several_idle_models_are_given_up_together(engine):
    port = onnx.helper.make_tensor_value_info
    ends = [port(name, onnx.TensorProto.FLOAT, [4, 8]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", ends[:1], ends[1:])
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    inputs = {"x": np.ones((4, 8), np.float32)}
    with gp.onnx.load(proto, engine=engine) as first, gp.onnx.load(proto, engine=engine) as second:
        first.run(inputs)
        second.run(inputs)
        assert engine.budget.reclaimable == engine.budget.in_use > 0
        give_up(engine)
        assert engine.budget.in_use == 0
        first.pin()
        first.run(inputs)
        kept = engine.budget.in_use
        second.run(inputs)
        give_up(engine)
        assert engine.budget.in_use == kept


def test_constants_in_memory_stay_charged_while_no_form_has_them(engine):
    with gp.onnx.load(SMALL.serialized(), engine=engine) as model:
        SMALL.check(model)
        held = usage_of(model).constants_nbytes
        assert held == sum(weight.nbytes for weight in SMALL.weights)
        give_up(engine)
        assert engine.budget.in_use == usage_of(model).constants_nbytes == held
        SMALL.check(model)
        assert usage_of(model).constants_nbytes == held
        give_up(engine)
        model.close()
        assert engine.budget.in_use == 0


def test_packed_weights_without_another_copy_stay(engine):
    with gp.onnx.load(SMALL.serialized(), engine=engine, weights="packed") as model:
        SMALL.check(model)
        packed = usage_of(model).packed_nbytes
        assert usage_of(model).constants_nbytes == 0
        give_up(engine)
        SMALL.check(model)
        assert usage_of(model).packed_nbytes == packed > 0
        np.testing.assert_array_equal(model.read_weight("w0"), SMALL.weights[0])
    assert engine.budget.in_use == 0


def test_a_file_changed_in_place_is_refused_when_its_model_comes_back(engine, tmp_path):
    path = SMALL.write(tmp_path)
    with gp.onnx.load(path, engine=engine) as model:
        SMALL.check(model)
        give_up(engine)
        with path.open("r+b") as file:
            file.write(b"\0")
        os.utime(path, (0, 0))
        with pytest.raises(gp.StateError, match="changed"):
            model.run({"h0": SMALL.request()})


def test_a_file_replaced_by_another_is_not_read(engine, tmp_path):
    path = SMALL.write(tmp_path)
    with gp.onnx.load(path, engine=engine) as model:
        SMALL.check(model)
        give_up(engine)
        path.unlink()
        SMALL.check(model)


def test_declared_shapes_come_back(engine, tmp_path):
    with load(SMALL, tmp_path, engine, shapes={"rows": (1, 8)}) as model:
        peak = model.predict_peak()
        SMALL.check(model, 8)
        give_up(engine)
        SMALL.check(model, 5)
        assert model.predict_peak() == peak


# ---- the order


def costs(engine, cases, folder, steps_s):
    """Models whose compilation costs what the clock says."""
    clock = engine.model_memory.cost_clock
    models = []
    for case, clock.step_s in zip(cases, steps_s, strict=True):
        models.append(load(case, folder, engine))
        case.check(models[-1])
    clock.step_s = 0.0
    return models


def holders_of_programs(models):
    return [usage_of(model).programs_nbytes > 0 for model in models]


@pytest.mark.parametrize("cheap", [0, 1])
def test_what_is_cheap_to_have_again_goes_first(engine, tmp_path, cheap):
    models = costs(engine, [SMALL, OTHER], tmp_path, [10.0 ** (i != cheap) for i in (0, 1)])
    while all(holders_of_programs(models)):
        assert give_up(engine, 1) > 0
    assert holders_of_programs(models) == [i != cheap for i in (0, 1)]
    for model in models:
        model.close()


def test_what_is_used_seldom_goes_first(pair, engine):
    for _ in range(20):
        OTHER.check(pair[1])
    while all(usage_of(model).packed_nbytes for model in pair):
        assert give_up(engine, 1) > 0
    assert [usage_of(model).packed_nbytes > 0 for model in pair] == [False, True]


def test_what_was_used_often_goes_in_the_end(pair, engine):
    for _ in range(20):
        SMALL.check(pair[0])
    for _ in range(100):
        OTHER.check(pair[1])
    while all(usage_of(model).packed_nbytes for model in pair):
        assert give_up(engine, 1) > 0
    assert usage_of(pair[1]).packed_nbytes > 0


def test_priority_counts_like_use(pair, engine):
    pair[0].priority = 100
    while all(usage_of(model).packed_nbytes for model in pair):
        assert give_up(engine, 1) > 0
    assert usage_of(pair[0]).packed_nbytes > 0
    assert (pair[0].priority, usage_of(pair[0]).priority) == (100, 100)


@pytest.mark.parametrize("priority", [0, -1, math.inf, math.nan, "high", None, True])
def test_no_priority(pair, tmp_path, engine, priority):
    with pytest.raises(gp.InvalidArgumentError, match="priority"):
        pair[0].priority = priority
    with pytest.raises(gp.InvalidArgumentError, match="priority"):
        load(SMALL, tmp_path, engine, priority=priority)


def test_a_pinned_model_keeps_all(pair, engine):
    first, second = pair
    first.pin()
    before = usage_of(first)
    give_up(engine)
    engine.constants.reclaim(ALL)
    engine.trim()
    assert usage_of(first).nbytes == before.nbytes == engine.budget.in_use
    assert (before.is_pinned, first.is_pinned, second.is_pinned) == (True, True, False)
    first.unpin()
    give_up(engine)
    assert engine.budget.in_use == 0


def test_a_pinned_model_gives_up_its_own_for_its_own_runs(engine, tmp_path):
    """Else a limit that suffices for one run would not suffice for the next one of another shape."""
    with load(SMALL, tmp_path, engine) as model:
        model.pin()
        limit = model.predict_peak({"h0": (3, 48)})
        engine.budget.resize(limit + 4096)
        for rows in (*range(1, 4), *range(1, 4)) * 4:
            SMALL.check(model, rows)


def test_pickles_keep_the_priority(engine, tmp_path):
    with load(SMALL, tmp_path, engine, priority=3) as model, pickle.loads(pickle.dumps(model)) as copy:
        assert copy.priority == 3
        copy.engine.close()


def test_a_copy_leaves_the_engine_to_the_model(tmp_path):
    with gp.onnx.load(SMALL.write(tmp_path), threads=1) as model:
        with shallow_copy(model) as copied:
            assert copied.engine is model.engine
            SMALL.check(copied, 2)
        SMALL.check(model, 3)


# ---- under a limit


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    cases = draw_models(20, 3)
    paths = [case.write(folder) for case in cases]
    return cases, paths, limit_for(paths, 4)


def test_twenty_models_in_the_memory_of_four(many):
    cases, paths, limit = many
    with gp.Engine(threads=1, memory_limit=limit) as engine:
        engine.model_memory.cost_clock = Clock()
        models = [gp.onnx.load(path, engine=engine) for path in paths]
        trace = draw_requests(len(models), 200, 1)
        for i in trace:
            cases[i].check(models[i])
        stats = engine.budget.stats()
        assert (stats.refusals, stats.peak <= limit) == (0, True)
        compiled = sum(model.stats().compilations for model in models)
        assert compiled < len(trace) / 2
        often = max(set(trace), key=trace.count)
        assert usage_of(models[often]).packed_nbytes == sum(weight.nbytes for weight in cases[often].weights)


def test_threads_that_run_many_models_at_a_limit(many):
    """Room for one run in each thread beside what is pinned; everything else comes and goes."""
    cases, paths, limit = many
    with gp.Engine(threads=1, memory_limit=limit) as engine:
        models = [gp.onnx.load(path, engine=engine) for path in paths]

        def serve(thread):
            for number, i in enumerate(draw_requests(len(models), 60, thread)):
                cases[i].check(models[i], 1 + (thread + number) % 3)
                if number % 20 == 10:
                    models[i].respecialise()

        run_threads(4, serve)
        assert engine.budget.peak <= limit
        for model in models:
            model.close()
        assert engine.budget.in_use == 0


def test_a_newcomer_that_is_worth_less_displaces_no_packed_weights(engine, tmp_path):
    pair = costs(engine, [SMALL, OTHER], tmp_path, [1e-3, 1e-3])
    engine.model_memory.cost_clock.step_s = 1e-3
    for _ in range(30):
        for case, model in zip((SMALL, OTHER), pair, strict=True):
            case.check(model)
    engine.budget.resize(engine.budget.in_use + 13_500)  # its program, not its weights
    case = ChainModel(3, 48, 7)
    with load(case, tmp_path, engine) as model:
        case.check(model)
        assert usage_of(model).packed_nbytes < sum(weight.nbytes for weight in case.weights)
        assert all(usage_of(other).packed_nbytes == 3 * 48 * 48 * 4 for other in pair)
        for _ in range(200):
            case.check(model)
        assert usage_of(model).packed_nbytes == sum(weight.nbytes for weight in case.weights)
    for other in pair:
        other.close()


# ---- forced interleavings


def struck(monkeypatch, owner, name, event, after=False):
    """Let an event strike in another thread when a method is next called, before it or after."""
    real, armed = getattr(owner, name), [True]

    def hooked(*arguments, **options):
        if not after and armed and armed.pop():
            in_thread(event).result()
        found = real(*arguments, **options)
        if after and armed and armed.pop():
            in_thread(event).result()
        return found

    monkeypatch.setattr(owner, name, hooked)


POINTS = [(MemoryQueue, "run"), (Cache, "enter"), (Cache, "leave"), (ModelForms, "_make"), (ModelForms, "_form_for"),
          (ModelForms, "_compile"), (VariableForms, "_add"), (VariableForms, "_resized")]  # fmt: skip


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("owner", "name"), POINTS)
@pytest.mark.parametrize("is_warm", [False, True])
def test_what_is_given_up_while_a_run_starts(monkeypatch, pair, engine, owner, name, after, is_warm):
    if not is_warm:
        give_up(engine)
    with monkeypatch.context() as patched:
        struck(patched, owner, name, lambda: give_up(engine), after)
        SMALL.check(pair[0])
    SMALL.check(pair[0])
    give_up(engine)
    assert engine.budget.in_use == 0


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(("owner", "name"), POINTS)
def test_closed_while_it_comes_back(monkeypatch, pair, engine, owner, name, after):
    give_up(engine)
    with monkeypatch.context() as patched:
        struck(patched, owner, name, pair[0].close, after)
        with closed_at_most():
            SMALL.check(pair[0])
    OTHER.check(pair[1])
    pair[1].close()
    assert engine.budget.in_use == 0


WHILE_GIVING = [(Cache, "take_idle", "close"), (Cache, "take_idle", "run"), (VariableForms, "take", "close"),
                (Cache, "take_idle", "respecialise"), (VariableForms, "take", "respecialise")]  # fmt: skip


@pytest.mark.parametrize(("owner", "name", "event"), WHILE_GIVING)
@pytest.mark.parametrize("after", [False, True])
def test_what_happens_while_a_model_gives_up(monkeypatch, pair, engine, owner, name, after, event):
    events = {"close": pair[0].close, "run": lambda: SMALL.check(pair[0]), "respecialise": pair[0].respecialise}
    with monkeypatch.context() as patched:
        struck(patched, owner, name, events[event], after)
        give_up(engine)
    OTHER.check(pair[1])
    if event != "close":
        SMALL.check(pair[0])
    for model in pair:
        model.close()
    assert engine.budget.in_use == 0


def test_given_up_while_another_thread_loads(monkeypatch, pair, engine, tmp_path):
    begun, go_on = threading.Event(), threading.Event()
    compile_form = ModelForms._compile

    def slow(model, *arguments, **options):
        if model.memory.name == "chain9":
            begun.set()
            assert go_on.wait(60)
        return compile_form(model, *arguments, **options)

    monkeypatch.setattr(ModelForms, "_compile", slow)
    case = ChainModel(2, 32, 9)
    with load(case, tmp_path, engine) as model:
        running = in_thread(case.check, model)
        assert begun.wait(60)
        assert usage_of(model).is_busy
        give_up(engine)
        go_on.set()
        running.result(60)
        SMALL.check(pair[0])


def test_a_forked_child_gives_up_and_comes_back(pair, engine):
    def works():
        give_up(engine)
        SMALL.check(pair[0])

    run_in_child(works)
    SMALL.check(pair[0])
