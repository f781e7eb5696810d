"""Sessions: states that stay between runs, as if they had been passed by hand."""

import gc
import os
import pickle
import threading

import numpy as np
import pytest

import graphpool as gp
from graphpool.runtime.model import Model
from graphpool.runtime.model_form import ModelForm
from graphpool.runtime.model_port import ModelPort
from graphpool.typing import DataType

onnx = pytest.importorskip("onnx")

from tests.cases.session_models import PAIRS, capacity_of  # noqa: E402
from tests.helpers.memory import run_threads  # noqa: E402

ATTENTION, STATES = PAIRS["attention"]


@pytest.fixture
def engine():
    with gp.Engine("cpu", threads=2) as engine:
        yield engine


@pytest.fixture
def model(engine):
    with ATTENTION.load(engine) as model:
        yield model


@pytest.fixture
def session(model):
    with model.session(STATES, {"p": 24, "b": 3}) as session:
        yield session


class ByHand:
    """A model of which the states are passed by hand."""

    def __init__(self, model, pairs, case, batch=1):
        self.model, self.pairs = model, pairs
        sizes = {"p": 0, "b": batch}
        shapes = {name: [sizes.get(dim, dim) for dim in dims] for name, (_, *dims) in case.inputs.items()}
        self.states = {name: np.zeros(shapes[name], np.float32) for name in pairs.values()}

    def run(self, inputs):
        found = self.model.run({**inputs, **self.states})
        self.states = {source: found.pop(result) for result, source in self.pairs.items()}
        return found


def chunks(case, pairs, count, batch=1, seed=0):
    """Inputs of runs that follow one another, without the states."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        arrays = case.arrays({**case.draw(rng), "b": batch}, rng)
        yield {name: array for name, array in arrays.items() if name not in pairs.values()}


def words(count, seed=0, batch=1):
    rng = np.random.default_rng(seed)
    return [{"x": rng.standard_normal((batch, 1, 32)).astype(np.float32)} for _ in range(count)]


def check(found, wanted):
    assert found.keys() == wanted.keys()
    for name in wanted:
        np.testing.assert_array_equal(found[name], wanted[name], err_msg=name)


# ---- the same as by hand


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("schedule", ["sequential", "wavefront"])
def test_runs_are_those_with_states_passed_by_hand(engine, name, batch, schedule):
    """A batch of 2 leaves gaps in buffers for 3."""
    case, pairs = PAIRS[name]
    with case.load(engine, schedule=schedule) as model, model.session(pairs, capacity_of(case, 64)) as session:
        for seed in range(3):
            hand = ByHand(model, pairs, case, batch)
            for inputs in chunks(case, pairs, 5, batch, seed):
                check(session.run(inputs), hand.run(inputs))
                check(session.save(), hand.states)
                assert session.shapes == {key: state.shape for key, state in hand.states.items()}
            session.reset()


def test_a_cache_is_appended_to(engine, model, session):
    """No step reads or writes what is there already."""
    for inputs in words(4):
        session.run(inputs)
    forms = [form for form in model._forms.cache.forms() if form.shape_of("keys")[2] == 4]
    assert [form.appended for form in forms] == [{"keys", "values"}]
    steps = [name for compiled in forms[0].compiled for name in compiled.implementations]
    assert not [name for name in steps if "concat" in name]
    copied = [step for compiled in forms[0].compiled for step in compiled.program.describe() if "copy" in step[0]]
    assert len(copied) == 2
    buffers = {array.__array_interface__["data"][0] for array in session._buffers._sides[0].values()}
    session.run(words(1)[0])
    assert buffers == {array.__array_interface__["data"][0] for array in session._buffers._sides[0].values()}
    assert not session._buffers._sides[1]


def test_repeated_heads_are_compiled_once_for_all_lengths(engine):
    """Nor is what is repeated copied before."""
    case, pairs = PAIRS["grouped"]
    with case.load(engine) as model, model.session(pairs, {"p": 64}) as session:
        for inputs in words(20):
            session.run(inputs)
        assert model.stats().compilations <= 3
        [compiled] = model._forms.cache.forms()[-1].compiled
        names = [name.split(":")[0] for name in compiled.implementations]
        assert names.count("f32_attention") == 1
        assert names.count("any_copy") == 3  # two new parts, the result


def test_states_are_found_by_name():
    def ports(*names, dtype=DataType.F32):
        return [ModelPort(name, dtype, ("batch", 2)) for name in names]

    inputs = ports("x", "past.0.key", "past_key_values.0.value", "past_1", "past_key_self_2", "past_3", "passed")
    outputs = ports("y", "present.0.key", "present.0.value", "present_1", "present_key_self_2", "present_4")
    outputs += ports("present_3", dtype=DataType.F16)
    with gp.Engine("cpu") as engine, Model(inputs, outputs, lambda *_: None, engine) as model:
        assert model.states == {
            "present.0.key": "past.0.key", "present.0.value": "past_key_values.0.value", "present_1": "past_1",
            "present_key_self_2": "past_key_self_2",
        }  # fmt: skip


def test_capacities_share_what_was_compiled(model):
    with model.session(STATES, {"p": 24, "b": 3}) as small:
        for inputs in words(4):
            small.run(inputs)
        compilations, forms = model.stats().compilations, model.stats().forms
        with model.session(STATES, {"past_k": (2, 4, 100, 8), "past_v": [2, 4, 100, 8]}) as large:
            hand = ByHand(model, STATES, ATTENTION)
            found = [large.run(inputs) for inputs in words(4)]
            assert model.stats().compilations == compilations
            assert model.stats().forms > forms
            for inputs, result in zip(words(4), found, strict=True):
                check(result, hand.run(inputs))


def test_results_may_have_a_place(session):
    [inputs] = words(1)
    place = np.empty((1, 1, 32), np.float32)
    assert session.run(inputs, {"z": place})["z"] is place
    other = session.fork()
    other.reset()
    np.testing.assert_array_equal(other.run(inputs)["z"], place)
    with pytest.raises(gp.InvalidArgumentError, match="unknown output 'keys'"):
        session.run(inputs, {"keys": place})
    assert session.length == 1


def test_models_of_fixed_sizes(engine):
    """States that do not grow need no capacity."""
    case, pairs = PAIRS["recurrent"]
    with case.load(engine, {"b": 2}) as model, model.session(pairs) as session:
        assert session.length == 0
        hand = ByHand(model, pairs, case, 2)
        for inputs in chunks(case, pairs, 4, 2):
            check(session.run(inputs), hand.run(inputs))


@pytest.mark.parametrize("name", PAIRS)
def test_axes_without_names_grow_where_a_run_makes_them_longer(engine, name):
    case, pairs = PAIRS[name]
    proto, most = case.proto(), {"b": 2, "p": 40}
    for dim in [dim for port in proto.graph.input for dim in port.type.tensor_type.shape.dim]:
        dim.ClearField("dim_param")
    shapes = {state: tuple([most.get(dim, dim) for dim in case.inputs[state][1:]]) for state in pairs.values()}
    with gp.onnx.load(proto.SerializeToString(), engine=engine) as model, model.session(pairs, shapes) as session:
        for turn in range(2):
            hand = ByHand(model, pairs, case, 2)
            for inputs in chunks(case, pairs, 3, 2, turn):
                check(session.run(inputs), hand.run(inputs))
                assert session.shapes == {state: array.shape for state, array in hand.states.items()}
            check(session.save(), hand.states)
            session.reset()


# ---- states


def test_truncated_positions_are_forgotten(model, session):
    first, second, other = words(5), words(5, 1), words(5, 2)
    for inputs in [*first, *second]:
        session.run(inputs)
    session.truncate(5)
    assert session.length == 5
    hand = ByHand(model, STATES, ATTENTION)
    for inputs in first:
        hand.run(inputs)
    for inputs in other:
        check(session.run(inputs), hand.run(inputs))
    check(session.save(), hand.states)
    for wrong in (11, -1, 2.0, None):
        with pytest.raises(gp.InvalidArgumentError, match=r"length; accepted: 0 \.\. 10"):
            session.truncate(wrong)
    session.truncate(0)
    assert session.length == 0
    assert session.shapes == {}
    check(session.run(words(1, 3, batch=2)[0]), ByHand(model, STATES, ATTENTION, 2).run(words(1, 3, batch=2)[0]))


def test_sessions_without_positions_are_truncated_to_none(session):
    for _ in range(2):
        session.truncate(0)
        assert session.length == 0
        assert session.shapes == {}
        session.run(words(1)[0])


def test_what_does_not_grow_is_not_truncated(engine):
    case, pairs = PAIRS["mixed"]
    with case.load(engine) as model, model.session(pairs, capacity_of(case)) as session:
        session.run(next(chunks(case, pairs, 1)))
        with pytest.raises(gp.StateError, match="state 'h' has no positions"):
            session.truncate(0)
        session.reset()
        assert session.shapes == {}


@pytest.mark.parametrize("name", PAIRS)
def test_forks_go_their_own_ways(engine, name):
    case, pairs = PAIRS[name]
    with case.load(engine) as model, model.session(pairs, capacity_of(case, 64)) as session:
        runs = list(chunks(case, pairs, 9))
        hands = [ByHand(model, pairs, case) for _ in range(3)]
        for inputs in runs[:3]:
            session.run(inputs)
        sessions = [session, session.fork(), session.fork()]
        for hand in hands:
            for inputs in runs[:3]:
                hand.run(inputs)
        for turn in range(2):
            for number in (1, 0, 2) if turn else (2, 1, 0):
                inputs = runs[3 + number + 3 * turn]
                check(sessions[number].run(inputs), hands[number].run(inputs))
            for one, hand in zip(sessions, hands, strict=True):
                check(one.save(), hand.states)


def test_forks_share_memory_until_they_run(engine, model, session):
    gc.collect()
    for inputs in words(3):
        session.run(inputs)
    model.trim()
    before, own = engine.budget.in_use, session.nbytes
    forks = [session.fork() for _ in range(4)]
    assert engine.budget.in_use == before
    for fork in forks:
        fork.truncate(2)
        fork.reset()
    assert engine.budget.in_use == before
    assert model._forms.sessions.nbytes == own
    forks = [session.fork() for _ in range(4)]
    for number, inputs in enumerate(words(4)):
        forks[number].run(inputs)
        model.trim()
        assert model._forms.sessions.nbytes == (2 + number) * own
    del forks
    gc.collect()
    assert model._forms.sessions.nbytes == own


def test_the_last_of_forks_needs_no_copy(model, session):
    session.run(words(1)[0])
    fork = session.fork()
    buffers = fork._buffers
    session.close()
    fork.run(words(1)[0])
    assert fork._buffers is buffers


def test_states_are_saved_and_restored(model, session):
    first, second = words(3), words(3, 1)
    for inputs in first:
        session.run(inputs)
    saved = pickle.loads(pickle.dumps(session.save()))
    wanted = [session.run(inputs) for inputs in second]
    with model.session(STATES, {"p": 6}) as other:
        other.restore(saved)
        assert other.length == 3
        for inputs, result in zip(second, wanted, strict=True):
            check(other.run(inputs), result)
    fork = session.fork()
    fork.restore(saved)
    check(fork.run(second[0]), wanted[0])
    assert session.length == 6
    session.restore({})
    assert session.length == 0
    assert session.save() == {}


def test_what_cannot_be_restored_changes_nothing(model, session):
    session.run(words(1)[0])
    states = session.save()
    k, v = states["past_k"], states["past_v"]
    for wrong, error, text in [
        ({"past_k": k}, gp.InvalidArgumentError, "input 'past_v' is missing"),
        ({"past_k": k, "past_v": v, "x": k}, gp.InvalidArgumentError, "unknown input 'x'"),
        ({"past_k": k.astype(np.float64), "past_v": v}, gp.InvalidDataTypeError, "input 'past_k': data type"),
        ({"past_k": k[:, :3], "past_v": v}, gp.InvalidShapeError, "input 'past_k': dimension 1 is 3"),
        ({"past_k": np.repeat(k, 2, 2), "past_v": v}, gp.InvalidShapeError, r"state 'past_v': p \(dimension 2\)"),
        ({"past_k": np.repeat(k, 25, 2), "past_v": v}, gp.StateError, "state 'past_k' has no room left: p"),
        ([1], gp.InvalidArgumentError, "inputs; accepted: a mapping"),
    ]:
        with pytest.raises(error, match=text):
            session.restore(wrong)
        check(session.save(), states)


# ---- what is refused


def test_a_session_is_full(model, session):
    inputs = words(25)
    for k, one in enumerate(inputs[:24]):
        session.run(one)
        if k == 2:
            compilations = model.stats().compilations
    states = session.save()
    with pytest.raises(gp.StateError, match=r"no room left: p \(dimension 2\); accepted: at most 24; got: 25; reset"):
        session.run(inputs[24])
    check(session.save(), states)
    assert model.stats().compilations == compilations
    session.truncate(23)
    session.run(inputs[23])
    check(session.save(), states)


def test_a_first_run_without_room_is_compiled_for_once(model):
    session = model.session(STATES, {"p": 4})
    session.restore({name: np.zeros((1, 4, 4, 8), np.float32) for name in STATES.values()})
    compilations = model.stats().compilations
    for _ in range(3):
        with pytest.raises(gp.StateError, match=r"no room left: p \(dimension 2\); accepted: at most 4; got: 5; reset"):
            session.run(words(1)[0])
        assert model.stats().compilations == compilations + 1
    assert session.length == 4


def test_another_batch_needs_a_reset(session):
    session.run(words(1, batch=2)[0])
    with pytest.raises(gp.StateError, match=r"state 'past_k': b \(dimension 0\); accepted: 2; got: 1; reset"):
        session.run(words(1)[0])
    session.reset()
    session.run(words(1)[0])
    session.reset()
    with pytest.raises(gp.StateError, match="accepted: at most 3; got: 4; make a session with a larger capacity"):
        session.run(words(1, batch=4)[0])
    assert session.length == 0


def test_inputs_are_checked(session):
    [inputs] = words(1)
    for wrong, text in [
        ({}, "input 'x' is missing; accepted: inputs \\['x'\\]"),
        ({**inputs, "past_k": inputs["x"]}, "input 'past_k' is a state of the session"),
        ({**inputs, "w": inputs["x"]}, "unknown input 'w'"),
        ([], "inputs; accepted: a mapping"),
        ({"x": inputs["x"].astype(np.float64)}, "input 'x': data type"),
    ]:
        with pytest.raises(gp.InvalidArgumentError, match=text):
            session.run(wrong)
    assert session.length == 0


def test_states_beyond_all_memory_are_refused_as_such(model):
    with pytest.raises(gp.OutOfMemoryError, match="address space"):
        model.session(STATES, {"p": 2**62})


@pytest.mark.parametrize(
    ("state", "capacity", "text"),
    [
        (None, {}, "no outputs and inputs are named present"),
        ({"k": "past_k"}, {"p": 2}, "state: unknown output 'k'; accepted: outputs"),
        ({"keys": "k"}, {"p": 2}, "state: unknown input 'k'; accepted: inputs"),
        ({"keys": "past_k", "values": "past_k"}, {"p": 2}, "input 'past_k' has two outputs"),
        (STATES, {}, "no capacity for 'p' of input 'past_k'; capacity={'p': positions}"),
        (STATES, {"p": 2, "q": 2}, "unknown 'q'; accepted: dimensions .*'b', 'p'.*, or states .*'past_k', 'past_v'"),
        (STATES, {"p": 0}, "capacity of 'p'; accepted: an int of at least 1; got: 0"),
        (STATES, {"p": True}, "capacity of 'p'"),
        (STATES, {"p": (2, 3)}, "capacity of 'p'"),
        (STATES, {"past_k": 5}, "capacity of 'past_k'; accepted: a shape; got: 5"),
        (STATES, {"past_k": (1, 4, 2), "p": 2}, "capacity of 'past_k'; accepted: f32 .b, 4, p, 8."),
        (STATES, {"past_k": (1, 5, 2, 8), "p": 2}, "capacity of 'past_k'"),
    ],
)
def test_sessions_that_cannot_be(model, state, capacity, text):
    with pytest.raises(gp.InvalidArgumentError, match=text):
        model.session(state, capacity)


def test_outputs_that_cannot_be_inputs(engine):
    ports = [ModelPort("x", DataType.F32, ("n", 4)), ModelPort("t", None, None)], [
        ModelPort("y", DataType.F32, None), ModelPort("u", DataType.S32, None)
    ]  # fmt: skip

    def specialise(shapes, contents):
        graph = gp.Graph("cpu")
        x, y = gp.LogicalTensor(0, "f32", shapes["x"]), gp.LogicalTensor(1, "f32", (shapes["x"][0], 5))
        graph.add_op(gp.Op(0, "Wildcard", [x], [y]))
        graph.finalize()
        return ModelForm(graph, {}, {"x": 0, "t": 2}, {"y": 1, "u": 1}, {0: lambda inputs, outputs: [np.ones((2, 5))]})

    with Model(*ports, specialise, engine) as model:
        for pair in ({"u": "x"}, {"y": "t"}):
            with pytest.raises(gp.InvalidDataTypeError, match="cannot be input"):
                model.session(pair)
        with model.session({"y": "x"}, {"n": 2}) as session:
            with pytest.raises(gp.InvalidShapeError, match="output 'y' cannot be input 'x' of the next run"):
                session.run({"t": None})
            assert session.length == 0


def test_closed_sessions(engine):
    with ATTENTION.load(engine) as model:
        before = engine.budget.in_use
        session = model.session(STATES, {"p": 8})
        assert engine.budget.in_use - before >= session.nbytes == 2 * 4 * 8 * 8 * 4
        session.run(words(1)[0])
        fork = session.fork()
        session.close()
        session.close()
        assert session.is_closed
        assert session.nbytes == 0
        assert "closed" in repr(session)
        for use in (session.reset, session.fork, session.save, lambda: session.run({}), session.predict_peak):
            with pytest.raises(gp.StateError, match=r"the session of \w+ is closed"):
                use()
        assert "length 1" in repr(fork)
    with pytest.raises(gp.StateError, match="closed"):
        fork.run(words(1)[0])
    with pytest.raises(gp.StateError, match="closed"):
        model.session(STATES, {"p": 8})
    with pytest.raises(TypeError, match=r"pickle session\.save"):
        pickle.dumps(fork)
    gc.collect()
    assert engine.budget.in_use == 0


# ---- runs that fail, threads, processes


class Gate:
    """A model whose host function waits and fails on demand: total' = total + x, twice."""

    def __init__(self, engine):
        self.fails, self.entered, self.opened = False, threading.Event(), threading.Event()
        self.opened.set()
        ports = [ModelPort("x", DataType.F32, ("n",)), ModelPort("total", DataType.F32, ("n",))], [
            ModelPort("y", DataType.F32, ("n",)), ModelPort("new", DataType.F32, ("n",))
        ]  # fmt: skip
        self.model = Model(*ports, self._specialise, engine, name="gate")

    def _specialise(self, shapes, contents):
        graph = gp.Graph("cpu")
        x, total, new, y = (gp.LogicalTensor(k, "f32", shapes["x"]) for k in range(4))
        graph.add_op(gp.Op(0, "Add", [x, total], [new]))
        graph.add_op(gp.Op(1, "Wildcard", [new], [y]))
        graph.finalize()
        return ModelForm(graph, {}, {"x": 0, "total": 1}, {"y": 3, "new": 2}, {1: self._wait})

    def _wait(self, inputs, outputs):
        self.entered.set()
        assert self.opened.wait(30)
        if self.fails:
            raise RuntimeError("as the test wants it")
        return [inputs[0] * 2]


def test_a_run_that_fails_leaves_the_states(engine):
    gate, x = Gate(engine), {"x": np.ones(4, np.float32)}
    with gate.model, gate.model.session({"new": "total"}, {"n": 4}) as session:
        session.run(x)
        gate.fails = True
        for _ in range(3):
            with pytest.raises(gp.BackendError, match="as the test wants it"):
                session.run(x)
        gate.fails = False
        assert gate.model.stats().runs == 1
        assert session.save()["total"].tolist() == [1] * 4
        assert session.run(x)["y"].tolist() == [4] * 4


def test_one_thread_at_a_time(engine):
    gate, x = Gate(engine), {"x": np.ones(4, np.float32)}
    with gate.model, gate.model.session({"new": "total"}, {"n": 4}) as session:
        gate.opened.clear()
        gate.entered.clear()
        results = []
        thread = threading.Thread(target=lambda: results.append(session.run(x)["y"].tolist()))
        thread.start()
        assert gate.entered.wait(30)
        for use in (lambda: session.run(x), session.fork, session.reset, session.save, lambda: session.truncate(0)):
            with pytest.raises(gp.StateError, match="a session of gate is in use"):
                use()
        session.close()
        with pytest.raises(gp.StateError, match=r"closed|in use"):
            session.run(x)
        gate.opened.set()
        thread.join()
        assert results == [[2] * 4]
        assert session.nbytes == 0
        assert gate.model._forms.sessions.nbytes == 0


def test_many_sessions_in_many_threads(model):
    runs = {seed: words(12, seed) for seed in range(6)}
    wanted = {}
    for seed, inputs in runs.items():
        hand = ByHand(model, STATES, ATTENTION)
        wanted[seed] = [hand.run(one) for one in inputs]

    def work(seed):
        for _ in range(2):
            with model.session(STATES, {"p": 24}) as session:
                for number, inputs in enumerate(runs[seed]):
                    check(session.run(inputs), wanted[seed][number])
                    if number == 6:
                        fork = session.fork()
                check(fork.run(runs[seed][7]), wanted[seed][7])

    run_threads(len(runs), work)


def test_a_forked_process_goes_on(model, session):
    inputs = words(3)
    session.run(inputs[0])
    fork = session.fork()
    wanted = [fork.run(one)["z"] for one in inputs[1:]]
    session._in_use.acquire()  # as by a thread that is not in the child
    child = os.fork()
    if child == 0:
        ok = all(np.array_equal(session.run(one)["z"], w) for one, w in zip(inputs[1:], wanted, strict=True))
        os._exit(0 if ok else 1)
    session._in_use.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert session.length == 1


# ---- memory


def test_memory_grows_by_the_states_alone(engine):
    """In buffers that are there from the beginning: later runs take none."""
    with ATTENTION.load(engine) as model:
        with model.session(STATES, {"p": 400}) as session:
            assert session.nbytes == 2 * 4 * 400 * 8 * 4
            seen = []
            for inputs in words(300):
                session.run(inputs)
                seen.append(engine.budget.in_use - model.stats().arena_nbytes)
            assert max(seen[40:]) - min(seen[40:]) == 0
            with_states = engine.budget.in_use
            nbytes = session.nbytes
        assert engine.budget.in_use == with_states - nbytes


def test_predictions_hold(engine):
    [inputs] = words(1)
    shapes = {"x": (1, 1, 32)}
    with ATTENTION.load(engine) as model:
        with model.session(STATES, {"p": 400}) as session:
            predicted = session.predict_peak(shapes, length=399)
            assert predicted > session.nbytes
            assert session.length == 0
            fork = session.fork()
            assert session.predict_peak(shapes, length=399) == predicted
            fork.run(inputs)
            assert session.predict_peak(shapes, length=399) == predicted + session.nbytes
            plain = {**shapes, "past_k": (1, 4, 7, 8), "past_v": (1, 4, 7, 8)}
            both = model.predict_peak(plain)
            states = session.nbytes + fork.nbytes
        fork.close()
        assert model.predict_peak(plain) == both - states
        with pytest.raises(gp.InvalidArgumentError, match="input 'x' is not static"):
            model.session(STATES, {"p": 4}).predict_peak()
        with pytest.raises(gp.StateError, match="no room left"):
            model.session(STATES, {"p": 4}).predict_peak(shapes, length=5)
    saved = {name: np.zeros((1, 4, 399, 8), np.float32) for name in STATES.values()}
    with gp.Engine("cpu", threads=2, memory_limit=predicted) as engine, ATTENTION.load(engine) as model:
        session = model.session(STATES, {"p": 400})
        session.restore(saved)
        session.run(inputs)
        assert engine.budget.peak <= predicted


def test_a_limit_refuses_sessions():
    """Before anything is allocated, and with the limit that would do."""
    with gp.Engine("cpu", threads=2, memory_limit=2**20) as engine, ATTENTION.load(engine) as model:
        before = engine.budget.in_use
        with pytest.raises(gp.OutOfMemoryError, match="state of model") as caught:
            model.session(STATES, {"p": 2**14})
        assert engine.budget.in_use == before
        assert caught.value.smallest_limit == before + 2 * 4 * 2**14 * 8 * 4
        session = model.session(STATES, {"p": 1400})
        session.run(words(1)[0])
        forks = [session.fork() for _ in range(2)]
        forks[0].run(words(1)[0])
        with pytest.raises(gp.OutOfMemoryError, match="state of model"):
            forks[1].run(words(1)[0])
        assert [fork.length for fork in forks] == [2, 1]
        forks[0].close()
        forks[1].run(words(1)[0])


def test_a_limit_for_the_states_alone_refuses_too():
    """Where the shapes of all other inputs are known, so is what a run takes."""
    case, pairs = PAIRS["mixed"]
    fixed = {**case.inputs, "x": ("f", 1, 1, 8), "h": ("f", 1, 8), "past_x": ("f", 1, "p", 8)}
    case = type(case)(case.nodes, fixed, case.outputs, case.constants, {"p": (0, 20)})
    nbytes = 1000 * 8 * 4 + 2 * 8 * 4
    with gp.Engine("cpu", threads=2, memory_limit=nbytes + 64) as engine, case.load(engine) as model:
        with pytest.raises(gp.OutOfMemoryError) as caught:
            model.session(pairs, {"p": 1000})
        assert engine.budget.in_use == 0
        limit = caught.value.smallest_limit
        assert limit > nbytes + 64
    with gp.Engine("cpu", threads=2, memory_limit=limit) as engine, case.load(engine) as model:
        session = model.session(pairs, {"p": 1000})
        for inputs in chunks(case, pairs, 3):
            session.run(inputs)


def test_sessions_that_nobody_holds_give_their_memory_back(engine, model):
    session = model.session(STATES, {"p": 8})
    session.run(words(1)[0])
    nbytes, before = session.nbytes, engine.budget.in_use
    del session
    gc.collect()
    assert engine.budget.in_use == before - nbytes
