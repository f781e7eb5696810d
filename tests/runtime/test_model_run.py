"""What a run of a known shape costs in Python calls, which arrays it takes as they are, and what it counts."""

import pickle
import sys
import types

import numpy as np
import pytest

import graphpool as gp
from graphpool.runtime._counters import Jobs, UseClock, UseCount
from graphpool.runtime._model_run import InputPorts
from graphpool.runtime.model_form import ModelForm
from graphpool.runtime.model_port import ModelPort
from tests.helpers.caches import in_thread
from tests.helpers.memory import run_threads

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
MOST_CALLS = 10
"""Of Python functions, and of built-in ones that these call, in a run of a known shape."""


def rectify():
    """The graph of the model that runs here."""
    x, y = gp.LogicalTensor(0, "f32", (4, 3)), gp.LogicalTensor(1, "f32", (4, 3))
    graph = gp.Graph("cpu")
    graph.add_op(gp.Op(0, "ReLU", [x], [y]))
    graph.finalize()
    return graph


@pytest.fixture
def model():
    port = {name: ModelPort(name, gp.DataType.F32, ("n", 3)) for name in "xy"}
    form = ModelForm(rectify(), {}, {"x": 0}, {"y": 1}, {})
    engine = gp.Engine("cpu", threads=1)
    with gp.Model([port["x"]], [port["y"]], lambda shapes, deciding: form, engine, owns_engine=True) as made:
        yield made


@pytest.mark.parametrize("into_arrays", [False, True])
def test_a_run_of_a_known_shape_takes_few_python_calls(model, into_arrays):
    inputs, outputs = {"x": X}, {"y": np.empty_like(X)} if into_arrays else None
    for _ in range(5):
        model.run(inputs, outputs)
    calls = []
    sys.setprofile(lambda frame, event, argument: calls.append(event) if event.endswith("call") else None)
    try:
        found = model.run(inputs, outputs)
    finally:
        sys.setprofile(None)
    np.testing.assert_array_equal(found["y"], np.maximum(X, 0))
    assert len(calls) <= MOST_CALLS + 1  # and the call that ends it


class Subclass(np.ndarray):
    """Arrays of another type."""


GIVEN = {
    "columns first": np.asfortranarray(X),
    "with gaps": np.repeat(X, 2, axis=1)[:, ::2],
    "backwards": X[::-1][::-1],
    "of another type object": np.frombuffer(X.tobytes(), np.dtype("=f4")).reshape(X.shape),
    "unpickled": pickle.loads(pickle.dumps(X)),
    "unaligned": np.frombuffer(b"\0" + X.tobytes(), np.uint8)[1:].view(np.float32).reshape(X.shape),
    "a subclass": X.view(Subclass),
    "read-only": np.frombuffer(X.tobytes(), np.float32).reshape(X.shape),
}


@pytest.mark.parametrize("kind", GIVEN)
def test_arrays_of_any_form_give_the_same_results(model, kind):
    for inputs in ({"x": GIVEN[kind]}, types.MappingProxyType({"x": GIVEN[kind]})):
        np.testing.assert_array_equal(model.run(inputs)["y"], np.maximum(X, 0))


def test_ports_take_what_fits_and_copy_nothing():
    ports = InputPorts([ModelPort("x", gp.DataType.F32, (None, 3)), ModelPort("k", gp.DataType.S64, None)])
    given = {"k": np.arange(3), "x": X}
    taken = ports.take(given)
    assert list(taken) == ["x", "k"]
    assert all(taken[name] is given[name] for name in given)
    for wrong, error in [
        ({"x": X}, gp.InvalidArgumentError),
        ({"x": X, "other": X}, gp.InvalidArgumentError),
        ({"x": None, "k": X}, gp.InvalidArgumentError),
        ({"x": X, "k": X}, gp.InvalidDataTypeError),
        ({"x": X[:, :2], "k": np.arange(3)}, gp.InvalidShapeError),
        ({"x": X[0], "k": np.arange(3)}, gp.InvalidShapeError),
    ]:
        with pytest.raises(error):
            ports.take(wrong)


def test_ports_take_texts_and_unpickled_arrays_as_they_are():
    ports = InputPorts([ModelPort("t", None, (None, 2), True), ModelPort("x", gp.DataType.F32, (4, 3))])
    given = {"t": np.array([["a", np.str_("b")], ["", "ü"]], object), "x": pickle.loads(pickle.dumps(X))}
    assert given["x"].dtype is not X.dtype
    assert all(taken is given[name] for name, taken in ports.take(given).items())
    assert ports.take(given | {"t": [["a", "b"]]})["t"].tolist() == [["a", "b"]]
    assert ports.take(given | {"t": given["t"].T})["t"].tolist() == given["t"].T.tolist()
    for wrong, error in [
        ({"t": np.array([["a", 1]], object)}, gp.InvalidDataTypeError),
        ({"t": np.empty((3, 2), object)}, gp.InvalidDataTypeError),
        ({"t": given["t"][:, :1]}, gp.InvalidShapeError),
        ({"x": X.astype(">f4")}, gp.InvalidDataTypeError),
    ]:
        with pytest.raises(error):
            ports.take(given | wrong)


def test_results_do_not_go_where_inputs_or_others_are(model):
    memory = np.zeros((8, 3), np.float32)
    memory[:4] = X
    np.testing.assert_array_equal(model.run({"x": memory[:4]}, {"y": memory[4:]})["y"], np.maximum(X, 0))
    for place in (memory[:4], memory[1:5], memory[3:7]):
        with pytest.raises(gp.InvalidArgumentError, match="output 'y' shares memory with input 'x'"):
            model.run({"x": memory[:4]}, {"y": place})


def test_one_job_a_thread_and_none_beside_who_is_alone():
    jobs, me, other = Jobs(), object(), object()
    assert (jobs.begin(len), jobs.is_here, jobs.own_nbytes) == (1, True, len)
    assert in_thread(jobs.begin, len).result() == 0  # beside this one
    assert in_thread(jobs.begin, len, me).result() == -1
    assert jobs.alone is me
    assert in_thread(jobs.begin, len).result() == -1
    jobs.end()
    assert (jobs.is_here, jobs.alone is me, jobs.count) == (False, True, 1)
    jobs.end(other)
    assert jobs.alone is me
    jobs.forget()
    assert jobs.begin(len, me) == 3
    jobs.end(me)
    assert (jobs.alone, jobs.count) == (None, 0)


def test_uses_are_timed_by_uses_of_all():
    clock = UseClock()
    one, other = UseCount(clock, [1, 2]), UseCount(clock, [1, 2])
    assert one.last_s is None
    for _ in range(50):
        one.touch()
        other.touch()
        other.touch()
    assert (clock.now, one.uses, other.uses, one.last) == (150, 50, 100, 148)
    assert one.interval == pytest.approx(3, abs=0.1)
    assert other.interval == pytest.approx(1.5, abs=0.6)
    assert one.last_s is not None


def test_threads_find_arenas_and_results_of_their_own(model):
    correct = []

    def work(number):
        x = np.full((4, 3), number, np.float32)
        correct.extend([(model.run({"x": x})["y"] == number).all() for _ in range(500)])

    run_threads(6, work)
    assert len(correct) == model.stats().runs == 3000
    assert all(correct)
    assert model.engine.budget.in_use == model.stats().programs_nbytes
