import gc
import os
import threading

import numpy as np
import pytest

import graphpool as gp
from graphpool.memory import HostResource, StatisticsResource
from graphpool.runtime.model import Model
from graphpool.runtime.model_form import ModelForm
from graphpool.runtime.model_port import ModelPort
from graphpool.typing import DataType
from tests.helpers.memory import run_threads

W = np.arange(12, dtype=np.float32).reshape(4, 3)


def specialise(shapes, contents):
    """relu(x W) * 2 by a host function, + x W again: three partitions, two of them native."""
    rows = shapes["x"][0]
    x = gp.LogicalTensor(0, "f32", (rows, 4))
    w = gp.LogicalTensor(1, "f32", (4, 3), property="constant")
    h, r, d, y = (gp.LogicalTensor(k, "f32", (rows, 3)) for k in (2, 3, 4, 5))
    graph = gp.Graph("cpu")
    graph.add_op(gp.Op(0, "MatMul", [x, w], [h]))
    graph.add_op(gp.Op(1, "ReLU", [h], [r]))
    graph.add_op(gp.Op(2, "Wildcard", [r], [d], "twice"))
    graph.add_op(gp.Op(3, "Add", [d, h], [y]))
    graph.finalize()
    return ModelForm(graph, {1: W}, {"x": 0}, {"y": 5}, {2: twice})


def twice(inputs, outputs):
    return [np.multiply(inputs[0], 2, out=outputs[0])]


def expected(x):
    h = x @ W
    return np.maximum(h, 0) * 2 + h


def make_model(engine, **options):
    inputs = [ModelPort("x", DataType.F32, ("rows", 4))]
    return Model(inputs, [ModelPort("y", DataType.F32, ("rows", 3))], specialise, engine, **options)


@pytest.fixture
def engine():
    with gp.Engine("cpu", allocator=StatisticsResource(HostResource())) as engine:
        yield engine


@pytest.fixture
def model(engine):
    with make_model(engine) as model:
        yield model


def batch(rows, seed=0):
    return np.random.default_rng(seed).standard_normal((rows, 4)).astype(np.float32)


def test_native_and_host_partitions_give_the_result(model):
    x = batch(5)
    results = model.run({"x": x})
    assert list(results) == ["y"]
    np.testing.assert_allclose(results["y"], expected(x), rtol=1e-5, atol=1e-5)
    assert [p.is_supported for p in model.partitions].count(False) == 1


def test_results_are_fresh_arrays(model):
    first = model.run({"x": batch(5)})["y"]
    kept = first.copy()
    model.run({"x": batch(5, 1)})
    np.testing.assert_array_equal(first, kept)
    assert first.flags.writeable


def test_large_results_that_are_kept_stay_what_they_were(model):
    kept = []

    def work(seed):
        for step in range(20):
            x = batch(8192, seed * 100 + step)
            y = model.run({"x": x})["y"]
            if step % 3:
                kept.append((x, y[1:]))
            else:
                np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-5)

    run_threads(4, work)
    assert all(np.allclose(y, expected(x)[1:], rtol=1e-5, atol=1e-5) for x, y in kept)


def test_runs_side_by_side_that_need_no_arena_do_not_share_what_they_write(engine):
    """Arenas without bytes all have one address."""

    def specialise(shapes, contents):
        graph = gp.Graph("cpu")
        x, y = (gp.LogicalTensor(k, "f32", shapes["x"]) for k in range(2))
        graph.add_op(gp.Op(0, "ReLU", [x], [y]))
        graph.finalize()
        return ModelForm(graph, {}, {"x": 0}, {"y": 1}, {})

    ports = ModelPort("x", DataType.F32, (64, 4)), ModelPort("y", DataType.F32, (64, 4))
    with Model(ports[:1], ports[1:], specialise, engine) as model:
        assert model.specialise().arena_nbytes == 0

        def work(seed):
            x = batch(64, seed)
            for _ in range(1000):
                np.testing.assert_array_equal(model.run({"x": x})["y"], np.maximum(x, 0))

        run_threads(8, work)


@pytest.mark.parametrize("change", ["read-only", "transposed", "strided", "dlpack", "unaligned", "memoryview"])
def test_every_kind_of_input(model, change):
    x = batch(5)
    given = {
        "read-only": x.copy(), "transposed": np.asfortranarray(x), "strided": np.repeat(x, 2, axis=1)[:, ::2],
        "dlpack": OnlyDLPack(x), "unaligned": unaligned(x), "memoryview": memoryview(x),
    }[change]  # fmt: skip
    if change == "read-only":
        given.flags.writeable = False
    before = x.copy()
    np.testing.assert_allclose(model.run({"x": given})["y"], expected(x), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("make", [np.asfortranarray, lambda x: np.broadcast_to(x[:1], x.shape)])
def test_a_copy_of_an_input_is_counted_while_it_runs(engine, model, make):
    x = make(batch(5000))
    predicted = model.predict_peak({"x": x})
    assert predicted == model.predict_peak({"x": x.shape}) + x.nbytes
    kept = engine.budget.in_use
    y = model.run({"x": x})["y"]
    assert engine.budget.peak == predicted
    np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-5)
    del y
    model.trim()
    assert engine.budget.in_use <= kept


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_a_copy_of_an_input_that_does_not_fit_is_refused_and_the_smallest_limit_does(share):
    x = np.asfortranarray(batch(5000))
    with gp.Engine("cpu") as engine, make_model(engine) as model:
        limit = int(model.predict_peak({"x": x}) * share)
    with gp.Engine("cpu", memory_limit=limit) as engine, make_model(engine) as model:
        with pytest.raises(gp.OutOfMemoryError) as foretold:
            model.predict_peak({"x": x})
        with pytest.raises(gp.OutOfMemoryError) as refused:
            model.run({"x": x})
    least = refused.value.fields["smallest_limit"]
    assert foretold.value.fields["smallest_limit"] == least
    with gp.Engine("cpu", memory_limit=least) as engine, make_model(engine) as model:
        np.testing.assert_allclose(model.run({"x": x})["y"], expected(x), rtol=1e-5, atol=1e-5)
    with (
        gp.Engine("cpu", memory_limit=least - 1) as engine,
        make_model(engine) as model,
        pytest.raises(gp.OutOfMemoryError),
    ):
        model.run({"x": x})


class OnlyDLPack:
    """An array of another library."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


def unaligned(array):
    raw = np.empty(array.nbytes + 1, np.uint8)[1:]
    raw[:] = array.view(np.uint8).reshape(-1)
    return raw.view(array.dtype).reshape(array.shape)


def test_missing_and_unknown_inputs_are_named(model):
    with pytest.raises(
        gp.InvalidArgumentError, match=r"input 'x' is missing; accepted: inputs \['x'\]; got: \['z'\]"
    ) as e:
        model.run({"z": batch(5)})
    assert e.value.input_name == "x"
    with pytest.raises(gp.InvalidArgumentError, match="unknown input 'z'"):
        model.run({"x": batch(5), "z": batch(5)})
    with pytest.raises(gp.InvalidArgumentError, match=r"a mapping with the keys \['x'\]; got: list"):
        model.run([batch(5)])


def test_a_wrong_type_is_named(model):
    with pytest.raises(
        gp.InvalidDataTypeError, match=r"input 'x': data type; accepted: float32; got: float64; convert"
    ):
        model.run({"x": batch(5).astype(np.float64)})
    with pytest.raises(gp.InvalidArgumentError, match=r"input 'x'; accepted: an array of f32 \[rows, 4\].*got: list"):
        model.run({"x": [[1.0, 2.0, 3.0, 4.0]]})


def test_a_wrong_shape_names_input_and_dimension(model):
    with pytest.raises(
        gp.InvalidShapeError, match=r"input 'x': dimension 1 is 5; accepted: 4.*got: shape \(2, 5\)"
    ) as e:
        model.run({"x": np.zeros((2, 5), np.float32)})
    assert (e.value.input_name, e.value.dim) == ("x", 1)
    with pytest.raises(gp.InvalidShapeError, match=r"input 'x': rank 1; accepted: f32 \[rows, 4\]"):
        model.run({"x": np.zeros(4, np.float32)})


def test_nothing_was_run_after_a_refusal(model):
    for bad in (np.zeros(4, np.float32), batch(5).astype(int)):
        with pytest.raises(gp.InvalidArgumentError):
            model.run({"x": bad})
    assert model.stats().runs == 0


def test_forms_are_found_again_and_the_least_recent_one_goes(engine):
    with make_model(engine, capacity=2) as model:
        for rows in (1, 2, 1, 3, 1, 2):
            x = batch(rows)
            np.testing.assert_allclose(model.run({"x": x})["y"], expected(x), rtol=1e-5, atol=1e-5)
        stats = model.stats()
    assert (stats.hits, stats.misses, stats.evictions, stats.forms, stats.runs) == (2, 4, 2, 2, 6)


def test_an_evicted_form_gives_its_memory_back(engine):
    with make_model(engine, capacity=1) as model:
        for rows in (1000, 10):
            model.run({"x": batch(rows)})
        stats = model.stats()
        assert engine.stats().current_nbytes == stats.arena_nbytes + stats.cached_nbytes
        assert stats.arena_nbytes < 1000 * 3 * 4


def test_the_prediction_is_what_the_engine_hands_out(engine, model):
    predicted = model.predict_peak({"x": (100, 4)})
    assert engine.stats().current_nbytes == model.stats().cached_nbytes > 0
    y = model.run({"x": batch(100)})["y"]
    stats = model.stats()
    assert engine.stats().peak_nbytes == stats.arena_nbytes + stats.cached_nbytes
    assert predicted == engine.budget.peak
    kept = stats.arena_nbytes + stats.constants_nbytes + stats.cached_nbytes + stats.programs_nbytes
    host = y.nbytes + 1024  # reserved for the host function
    assert predicted == kept + y.nbytes + host
    assert model.predict_peak({"x": (100, 4)}, outputs=False) == kept + host
    assert stats.constants_nbytes == W.nbytes


def test_a_prediction_needs_the_shapes(model):
    with pytest.raises(gp.InvalidArgumentError, match=r"input 'x' is not static \(f32 \[rows, 4\]\); give its shape"):
        model.predict_peak()
    with pytest.raises(gp.InvalidShapeError, match="dimension 1 is 5"):
        model.predict_peak({"x": (3, 5)})
    with pytest.raises(gp.InvalidArgumentError, match="unknown input 'z'"):
        model.predict_peak({"z": (3, 5)})


def test_threads_run_one_model_side_by_side(model):
    def work(seed):
        for k in range(40):
            x = batch(1 + (seed + k) % 3 * 50, seed * 100 + k)
            np.testing.assert_allclose(model.run({"x": x})["y"], expected(x), rtol=1e-4, atol=1e-4)

    run_threads(8, work)
    stats = model.stats()
    assert (stats.runs, stats.misses, stats.forms) == (320, 3, 3)


def test_closing_while_others_run_lets_them_finish(engine):
    entered, go_on = threading.Event(), threading.Event()

    def slow(inputs, outputs):
        entered.set()
        assert go_on.wait(10)
        return twice(inputs, outputs)

    def specialise_slowly(shapes, contents):
        form = specialise(shapes, contents)
        return ModelForm(form.graph, form.constants, form.inputs, form.outputs, {2: slow})

    inputs = [ModelPort("x", DataType.F32, ("rows", 4))]
    model = Model(inputs, [ModelPort("y", DataType.F32, None)], specialise_slowly, engine)
    results = []
    thread = threading.Thread(target=lambda: results.append(model.run({"x": batch(5)})["y"]))
    thread.start()
    assert entered.wait(10)
    model.close()
    go_on.set()
    thread.join()
    np.testing.assert_allclose(results[0], expected(batch(5)), rtol=1e-5, atol=1e-5)
    assert engine.stats().current_nbytes == 0


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_runs_though_a_thread_held_the_locks(model):
    x = batch(5)
    model.run({"x": x})
    children = []

    def fork():
        children.append(os.fork())
        if children[0] == 0:
            for rows in (5, 6):
                good = np.allclose(model.run({"x": batch(rows)})["y"], expected(batch(rows)), atol=1e-4)
                if not good:
                    os._exit(1)
            os._exit(0)

    model._forms.cache.exclusively(fork)
    assert os.waitpid(children[0], 0)[1] == 0


def test_a_closed_model_refuses(engine):
    model = make_model(engine)
    model.run({"x": batch(5)})
    model.close()
    model.close()
    assert model.is_closed
    assert engine.stats().current_nbytes == 0
    with pytest.raises(gp.StateError, match=r"model is closed; load the model again"):
        model.run({"x": batch(5)})
    with pytest.raises(gp.StateError, match="closed"):
        _ = model.partitions


def test_closing_the_engine_closes_the_model():
    engine = gp.Engine("cpu")
    model = make_model(engine)
    engine.close()
    assert model.is_closed


def test_an_open_model_that_is_collected_warns(engine):
    with pytest.warns(ResourceWarning, match="never closed"):
        make_model(engine).__del__()


def test_idle_memory_can_be_given_back(engine, model):
    x = batch(100)
    model.run({"x": x})
    assert model.trim() > 0
    assert engine.stats().current_nbytes == model.stats().cached_nbytes
    np.testing.assert_allclose(model.run({"x": x})["y"], expected(x), rtol=1e-5, atol=1e-5)


def test_a_limit_is_held_and_named():
    with gp.Engine("cpu", memory_limit="8KiB") as engine, make_model(engine) as model:
        with pytest.raises(gp.OutOfMemoryError):
            model.run({"x": batch(10_000)})
        x = batch(2)
        np.testing.assert_allclose(model.run({"x": x})["y"], expected(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"memory_limit": "1MiB"}])
def test_a_result_that_the_system_has_no_memory_for(monkeypatch, options):
    def empty(shape, dtype):
        raise MemoryError

    with gp.Engine("cpu", **options) as engine, make_model(engine) as model:
        x = batch(100)
        y = model.run({"x": x})["y"]
        with monkeypatch.context() as patched:
            patched.setattr(np, "empty", empty)
            with pytest.raises(gp.OutOfMemoryError, match="results of model"):
                model.run({"x": x})
        np.testing.assert_array_equal(model.run({"x": x})["y"], y)


def test_a_failing_host_function_is_named_and_the_model_lives_on(engine):
    broken = True

    def fragile(inputs, outputs):
        if broken:
            raise ZeroDivisionError("no")
        return twice(inputs, outputs)

    def specialise_fragile(shapes, contents):
        form = specialise(shapes, contents)
        return ModelForm(form.graph, form.constants, form.inputs, form.outputs, {2: fragile})

    inputs = [ModelPort("x", DataType.F32, ("rows", 4))]
    with Model(inputs, [ModelPort("y", DataType.F32, None)], specialise_fragile, engine) as model:
        with pytest.raises(gp.BackendError, match="the host function of twice failed; got: ZeroDivisionError: no"):
            model.run({"x": batch(5)})
        broken = False
        np.testing.assert_allclose(model.run({"x": batch(5)})["y"], expected(batch(5)), rtol=1e-5, atol=1e-5)


def test_a_failing_specialisation_leaves_nothing(engine):
    def fail(shapes, contents):
        raise gp.UnsupportedError("not today")

    inputs = [ModelPort("x", DataType.F32, ("rows", 4))]
    with Model(inputs, [], fail, engine) as model:
        with pytest.raises(gp.UnsupportedError, match="not today"):
            model.run({"x": batch(5)})
        assert model.stats().forms == 0


def test_repr_shows_ports_and_state(engine):
    model = make_model(engine, name="tiny")
    assert repr(model) == "Model('tiny', (x: f32 [rows, 4]) -> (y: f32 [rows, 3]))"
    model.close()
    assert repr(model).endswith(", closed)")


def test_capacity_is_checked(engine):
    with pytest.raises(gp.InvalidArgumentError, match="capacity; accepted: an int of at least 1; got: 0"):
        make_model(engine, capacity=0)


# ---- arrays of the caller for the results


def test_results_go_where_the_caller_wants_them(model):
    x, y = batch(5), np.full((5, 3), np.nan, np.float32)
    for _ in range(2):
        y[:] = np.nan
        assert model.run({"x": x}, {"y": y})["y"] is y
        np.testing.assert_allclose(y, expected(x), rtol=1e-5, atol=1e-5)
    assert model.run({"x": x})["y"] is not y


@pytest.mark.parametrize(
    ("y", "error", "match"),
    [
        (np.empty((5, 4), np.float32), gp.InvalidShapeError, r"output 'y': shape; accepted: \(5, 3\)"),
        (np.empty((5, 3), np.float64), gp.InvalidDataTypeError, "output 'y': data type; accepted: float32"),
        (np.empty((3, 5), np.float32).T, gp.InvalidArgumentError, "writable, C-contiguous"),
        ([0.0], gp.InvalidArgumentError, "writable, C-contiguous"),
    ],
)
def test_an_array_that_does_not_fit_an_output_is_refused(model, y, error, match):
    with pytest.raises(error, match=match):
        model.run({"x": batch(5)}, {"y": y})
    assert model.stats().runs <= 1


def test_outputs_have_known_names_and_memory_of_their_own(model):
    with pytest.raises(gp.InvalidArgumentError, match="unknown output 'z'"):
        model.run({"x": batch(5)}, {"z": np.empty((5, 3), np.float32)})
    memory = np.zeros(32, np.float32)
    with pytest.raises(gp.InvalidArgumentError, match="output 'y' shares memory with input 'x'"):
        model.run({"x": memory[:20].reshape(5, 4)}, {"y": memory[10:25].reshape(5, 3)})


def test_an_output_under_two_names_fills_both_arrays(engine):
    def form(shapes, contents):
        x, y = gp.LogicalTensor(0, "f32", (4,)), gp.LogicalTensor(1, "f32", (4,))
        graph = gp.Graph("cpu")
        graph.add_op(gp.Op(0, "ReLU", [x], [y]))
        graph.finalize()
        return ModelForm(graph, {}, {"x": 0}, {"y": 1, "z": 1, "x": 0}, {})

    ports = [ModelPort(name, DataType.F32, (4,)) for name in "yzx"]
    x = np.array([-1, 2, -3, 4], np.float32)
    with Model([ports[2]], ports, form, engine) as model:
        mine = {name: np.empty(4, np.float32) for name in "yzx"}
        model.run({"x": x}, mine)
        for name, values in (("y", np.maximum(x, 0)), ("z", np.maximum(x, 0)), ("x", x)):
            np.testing.assert_array_equal(mine[name], values)
        found = model.run({"x": x}, {"y": mine["y"]})
        assert found["z"] is not mine["y"]
        np.testing.assert_array_equal(found["z"], np.maximum(x, 0))


def test_a_model_on_a_closed_engine_is_refused_without_a_warning():
    engine = gp.Engine()
    engine.close()
    with pytest.raises(gp.StateError, match="is closed"):
        Model([], [], lambda shapes, contents: None, engine)
    gc.collect()
