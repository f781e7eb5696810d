"""Loops, scans and branches whose course only a run tells: models of their own, whose trips cost no Python."""

import os
import pickle
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp
from graphpool.runtime.loop import Loop

node = helper.make_node
NUMBER = [helper.make_tensor_value_info("i", TensorProto.INT64, []), helper.make_tensor_value_info("go", 9, [])]
SAME = node("Identity", ["go"], ["again"])
AGAIN = helper.make_tensor_value_info("again", TensorProto.BOOL, [])
TRIPS = (0, 1, 7, 300)


def info(name, shape=None, dtype=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, dtype, shape)


def make(nodes, inputs, outputs, initialisers=None):
    constants = [numpy_helper.from_array(np.asarray(value), name) for name, value in (initialisers or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, [info(*output) for output in outputs.items()], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def loop(shape, *, condition="", least=99.0):
    """Adds 1 to a state of a shape until its first element reaches `least`; gives squares and first elements."""
    nodes = [
        helper.make_node("Add", ["a", "one"], ["next"]),
        helper.make_node("Mul", ["next", "next"], ["square"]),
        helper.make_node("ReduceMax", ["next"], ["first"], keepdims=0),
        helper.make_node("Less", ["first", "least"], ["going"]),
    ]
    inside = [info("number", [], TensorProto.INT64), info("before", [], TensorProto.BOOL), info("a", shape)]
    outside = [info("going", [], TensorProto.BOOL), info("next", shape), info("square", shape), info("first", [])]
    constants = {"one": np.float32(1), "least": np.float32(least)}
    body = helper.make_graph(
        nodes, "body", inside, outside, [numpy_helper.from_array(np.asarray(v), k) for k, v in constants.items()]
    )
    inputs = [info("n", [], TensorProto.INT64), info("x", shape)]
    inputs += [info(condition, [], TensorProto.BOOL)] if condition else []
    node = helper.make_node("Loop", ["n", condition, "x"], ["y", "squares", "firsts"], body=body)
    return make([node], inputs, {"y": shape, "squares": ("k", *shape), "firsts": ("k",)})


@pytest.mark.parametrize(("rows", "inner"), [(0, 4), (3, 4), (0, "w"), (2, "w")])
def test_a_loop_over_rows_of_which_there_may_be_none(rows, inner):
    """As in ONNX Runtime, results without a row have the sizes that are known without a trip, and 0 for others."""
    body = [node("Gather", ["x", "i"], ["row"], axis=0), node("Relu", ["row"], ["r"]), SAME]
    if inner == "w":
        body.insert(2, node("Concat", ["r", "more"], ["s"], axis=0))
    graph = helper.make_graph(body, "body", NUMBER, [AGAIN, info("s" if inner == "w" else "r")])
    nodes = [node("Shape", ["x"], ["sizes"]), node("Gather", ["sizes", "first"], ["n"]),
             node("Loop", ["n", ""], ["y"], body=graph)]  # fmt: skip
    model = make(nodes, [info("x", ["n", 4]), info("more", ["m"])], {"y": None}, {"first": np.int64(0)})
    x = np.random.default_rng(0).standard_normal((rows, 4)).astype(np.float32)
    with gp.onnx.load(model, fallback=False) as loaded:
        result = loaded.run({"x": x, "more": np.ones(2, np.float32)})["y"]
    if rows == 0:
        assert result.shape == (0, 0 if inner == "w" else 4)
    else:
        added = np.ones((rows, 2 if inner == "w" else 0), np.float32)
        np.testing.assert_array_equal(result, np.concatenate([np.maximum(x, 0), added], axis=1))


@pytest.mark.parametrize("shape", [(), (1,), (2, 3)])
@pytest.mark.parametrize("count", [0, 1, 4])
@pytest.mark.parametrize("condition", ["", "c"])
def test_loop(shape, count, condition):
    x = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    feeds = {"n": np.array(count), "x": x} | ({condition: np.array(True)} if condition else {})
    limits = gp.Limits(unrolled_nodes=1)
    with gp.onnx.load(loop(shape, condition=condition, least=x.max() + 3), limits=limits) as model:
        results = model.run(feeds)
    steps = min(count, 3)
    squares = [(x + k) ** 2 for k in range(1, steps + 1)]
    np.testing.assert_array_equal(results["y"], x + steps)
    np.testing.assert_array_equal(results["squares"], np.array(squares).reshape(steps, *shape))
    np.testing.assert_array_equal(results["firsts"], x.max() + 1 + np.arange(steps, dtype=np.float32))


def test_a_loop_that_must_not_begin():
    with gp.onnx.load(loop((2,), condition="c"), limits=gp.Limits(unrolled_nodes=1)) as model:
        results = model.run({"n": np.array(4), "x": np.ones(2, np.float32), "c": np.array(False)})
    np.testing.assert_array_equal(results["y"], [1, 1])
    assert results["squares"].shape == (0, 2)


SCANS = {
    "plain": {},
    "backwards": {"scan_input_directions": [1, 0], "scan_output_directions": [1]},
    "axes": {"scan_input_axes": [1, -1], "scan_output_axes": [1]},
    "last axis": {"scan_input_axes": [0, 0], "scan_output_axes": [-1], "scan_output_directions": [1]},
}


@pytest.mark.parametrize("name", SCANS)
def test_a_scan_that_runs_is_a_scan_unrolled(name):
    nodes = [
        helper.make_node("Mul", ["a", "b"], ["product"]),
        helper.make_node("Add", ["state", "product"], ["sum"]),
        helper.make_node("Add", ["sum", "outer"], ["given"]),
    ]
    inside, outside = [info("state", [3]), info("a", [3]), info("b", [3])], [info("sum", [3]), info("given", [3])]
    body = helper.make_graph(nodes, "body", inside, outside)
    node = helper.make_node("Scan", ["s", "x", "z"], ["y", "rows"], body=body, num_scan_inputs=2, **SCANS[name])
    shapes = {"s": (3,), "x": (3, 3), "z": (3, 3), "outer": (3,)}
    model = make([node], [info(key, shape) for key, shape in shapes.items()], {"y": (3,), "rows": (3, 3)})
    rng = np.random.default_rng(0)
    feeds = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}
    with gp.onnx.load(model) as unrolled, gp.onnx.load(model, limits=gp.Limits(unrolled_nodes=1)) as run:
        expected, found = unrolled.run(feeds), run.run(feeds)
    for key in expected:
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-6, err_msg=key)


def test_nodes_inside_a_loop_are_our_own_ops():
    """ONNX's evaluator gathers of at most 64 entries."""
    data = np.random.default_rng(0).standard_normal((80, 3)).astype(np.float32)
    places = np.random.default_rng(1).integers(0, 80, (5, 3))
    nodes = [
        helper.make_node("GatherElements", ["data", "places"], ["found"]),
        helper.make_node("Add", ["a", "found"], ["next"]),
        helper.make_node("Identity", ["before"], ["going"]),
    ]
    inside = [info("number", [], TensorProto.INT64), info("before", [], TensorProto.BOOL), info("a", [5, 3])]
    body = helper.make_graph(nodes, "body", inside, [info("going", [], TensorProto.BOOL), info("next", [5, 3])])
    node = helper.make_node("Loop", ["n", "", "x"], ["y"], body=body)
    inputs = [info("n", [], TensorProto.INT64), info("x", [5, 3]), info("data", [80, 3])]
    model = make([node], [*inputs, info("places", [5, 3], TensorProto.INT64)], {"y": [5, 3]})
    x = np.zeros((5, 3), np.float32)
    with gp.onnx.load(model, limits=gp.Limits(unrolled_nodes=1)) as loaded:
        found = loaded.run({"n": np.array(2), "x": x, "data": data, "places": places})["y"]
    np.testing.assert_array_equal(found, 2 * np.take_along_axis(data, places, 0))


# ---- bodies


def body_of(nodes, inputs, outputs, checks=None):
    """A body whose condition is `checks`, or goes on as it is."""
    if checks is None:
        return helper.make_graph([*nodes, SAME], "body", [*NUMBER, *inputs], [AGAIN, *outputs])
    return helper.make_graph(nodes, "body", [*NUMBER, *inputs], [info(checks, [], TensorProto.BOOL), *outputs])


def run_loop(body, inputs, outputs, extra, constants=None, condition=""):
    """A model of one Loop over the inputs with these shapes, which reads `extra` too."""
    count = [info("n", [], TensorProto.INT64)]
    loop_node = node("Loop", ["n", condition, *inputs], list(outputs), "round", body=body)
    states = [info(name, *described) for name, described in (*inputs.items(), *extra.items())]
    return make([loop_node], count + states, outputs, constants)


def gated(shape=("a", 3), is_ended=False):
    """s becomes tanh(s @ w + x), and its squares are shown; with `is_ended` until its largest element is large."""
    nodes = [
        node("MatMul", ["s", "w"], ["p"]), node("Add", ["p", "x"], ["q"]), node("Tanh", ["q"], ["t"]),
        node("Mul", ["t", "t"], ["row"]),
    ]  # fmt: skip
    if is_ended:
        nodes += [node("ReduceMax", ["t"], ["top"], keepdims=0), node("Less", ["top", "least"], ["more"])]
    body = body_of(nodes, [info("s", shape)], [info("t", shape), info("row", shape)], "more" if is_ended else None)
    constants = {"w": np.eye(3, dtype=np.float32) * 0.5} | ({"least": np.float32(0.9)} if is_ended else {})
    outputs = {"y": shape, "rows": (None, *shape)}
    return run_loop(body, {"x0": (shape,)}, outputs, {"x": (shape,)}, constants)


def gated_by_hand(feeds, is_ended=False):
    state, rows = feeds["x0"], []
    for _ in range(int(feeds["n"])):
        state = np.tanh(state * np.float32(0.5) + feeds["x"])
        rows.append(state * state)
        if is_ended and state.max() >= 0.9:
            break
    return state, np.array(rows, np.float32).reshape(len(rows), *(state.shape if rows else (0, 3)))


def floats(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def placed(model):
    """What runs a model's last form and those inside it."""
    forms = model._forms.last().with_inner()
    return [names[0] for form in forms for names in form.implementations if names]


@pytest.mark.parametrize("is_ended", [False, True])
def test_any_trip_count_and_shape_takes_one_compilation(is_ended):
    with gp.onnx.load(gated(is_ended=is_ended), fallback=False) as model:
        for width in (2, 5, 31):
            for trips in TRIPS:
                x = floats(width, 3, seed=width) + np.float32(0.3)
                feeds = {"n": np.array(trips), "x0": floats(width, 3), "x": x}
                results, (state, rows) = model.run(feeds), gated_by_hand(feeds, is_ended)
                np.testing.assert_allclose(results["y"], state, rtol=1e-5, atol=1e-6)
                np.testing.assert_allclose(results["rows"], rows, rtol=1e-5, atol=1e-6)
        assert model.stats().compilations == 1
        assert placed(model)[0] == "loop"
        assert model._forms.last().form.inner[0].open_model().stats().compilations == 1


def test_states_may_be_exchanged_kept_and_given_twice():
    shape = [2]
    nodes = [
        node("Identity", ["b"], ["a2"]), node("Add", ["a", "kept"], ["b2"]), node("Identity", ["kept"], ["kept2"]),
        node("Identity", ["b2"], ["row"]), node("Identity", ["a"], ["old"]),
    ]  # fmt: skip
    states = [info(name, shape) for name in ("a", "b", "kept")]
    given = [info(name, shape) for name in ("a2", "b2", "kept2", "row", "old")]
    outputs = dict.fromkeys(("ya", "yb", "yk"), shape) | dict.fromkeys(("rows", "olds"), (None, 2))
    inputs = dict.fromkeys(("a0", "b0", "k0"), (shape,))
    with gp.onnx.load(run_loop(body_of(nodes, states, given), inputs, outputs, {}), fallback=False) as model:
        for trips in TRIPS:
            a, b, kept = (floats(2, seed=seed) for seed in range(3))
            results = model.run({"n": np.array(trips), "a0": a, "b0": b, "k0": kept})
            rows, olds = [], []
            for _ in range(trips):
                olds.append(a)
                a, b = b, a + kept
                rows.append(b)
            wanted = [a, b, kept, np.array(rows).reshape(-1, 2), np.array(olds).reshape(-1, 2)]
            for found, value in zip(results.values(), wanted, strict=True):
                np.testing.assert_allclose(found, value, rtol=1e-6)


def growing():
    """s becomes s and x behind it; sums are shown."""
    nodes = [node("Concat", ["s", "x"], ["t"], axis=0), node("ReduceSum", ["t"], ["row"], keepdims=0)]
    body = body_of(nodes, [info("s", [None])], [info("t", [None]), info("row", [])])
    return run_loop(body, {"x0": ([None],)}, {"y": [None], "rows": [None]}, {"x": ([2],)})


def check_growing(model, trips):
    results = model.run({"n": np.array(trips), "x0": np.ones(3, np.float32), "x": np.ones(2, np.float32)})
    np.testing.assert_array_equal(results["y"], np.ones(3 + 2 * trips))
    np.testing.assert_array_equal(results["rows"], 3 + 2 * np.arange(1, trips + 1))


def test_states_that_grow():
    with gp.onnx.load(growing(), fallback=False) as model:
        for trips in (0, 1, 7, 40):
            check_growing(model, trips)


@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("lead", [1, 2])
def test_states_that_grow_where_they_are(lead, axis):
    """Along the first axis that has elements, or not; one grows by the other as it was, and by its own last element."""
    nodes = [
        node("Concat", ["a", "x"], ["a2"], axis=axis), node("Slice", ["a2", "last", "end", "axis"], ["tail"]),
        node("Concat", ["b", "a", "tail"], ["b2"], axis=axis), node("Identity", ["a"], ["old2"]),
        node("ReduceSum", ["b"], ["row"], keepdims=0), node("Identity", ["a2"], ["same2"]),
    ]  # fmt: skip
    names, shape = ("a", "b", "old", "same"), [None, None, None]
    body = body_of(
        nodes, [info(name, shape) for name in names], [*(info(f"{name}2", shape) for name in names), info("row", [])]
    )
    outputs = {f"y{name}": shape for name in names} | {"rows": [None]}
    inputs = {f"{name}0": (shape,) for name in names}
    constants = {"last": np.array([-1]), "end": np.array([2**31]), "axis": np.array([axis])}
    with gp.onnx.load(run_loop(body, inputs, outputs, {"x": (shape,)}, constants), fallback=False) as model:
        for trips, size, more in ((0, 2, 1), (1, 0, 1), (5, 3, 2), (9, 1, 1), (3, 1, 0), (12, 4, 3)):
            sizes = [lead, 3, 3]
            sizes[axis] = size
            if axis == 0:
                sizes[0] = size
            a, b = floats(*sizes, seed=1), floats(*sizes, seed=2)
            sizes[axis] = more
            x = floats(*sizes, seed=3)
            if more == size == 0:
                continue
            results = model.run({"n": np.array(trips), "a0": a, "b0": b, "old0": b, "same0": a, "x": x})
            old, same, rows = b, a, []
            for _ in range(trips):
                rows.append(b.sum())
                grown = np.concatenate([a, x], axis)
                tail = np.take(grown, range(max(grown.shape[axis] - 1, 0), grown.shape[axis]), axis)
                old, b, a = a, np.concatenate([b, a, tail], axis), grown
                same = a
            for name, wanted in {"a": a, "b": b, "old": old, "same": same}.items():
                np.testing.assert_array_equal(results[f"y{name}"], wanted, err_msg=name)
            np.testing.assert_allclose(results["rows"], np.array(rows, np.float32), rtol=1e-4, atol=1e-4)


def test_a_state_that_grows_has_one_buffer():
    nodes = [node("Concat", ["s", "x"], ["t"], axis=0)]
    body = body_of(nodes, [info("s", [None])], [info("t", [None])])
    model = run_loop(body, {"x0": ([None],)}, {"y": [None]}, {"x": ([2],)})
    state, x = np.ones(2**18, np.float32), np.ones(2, np.float32)
    with gp.onnx.load(model, fallback=False) as loaded:
        loaded.run({"n": np.array(8), "x0": state[:8], "x": x})
        before = loaded.engine.budget.in_use
        loaded.engine.budget.reset_peak()
        loaded.run({"n": np.array(8), "x0": state, "x": x})
        assert loaded.engine.budget.peak - before < 3.5 * state.nbytes  # twice itself, and the result


@pytest.mark.parametrize("way", ["trim", "reclaim"])
def test_programs_of_a_loop_at_rest_are_given_back(way):
    with gp.onnx.load(growing(), fallback=False) as model:
        check_growing(model, 40)
        forms = model._forms.last().form.inner[0].open_model()._forms
        idle_nbytes, before = sum(form.open_nbytes for form in forms.variable), model.engine.budget.in_use
        assert idle_nbytes > 0
        if way == "trim":
            assert model.trim() >= idle_nbytes
        else:
            [give_up] = [c.give_up for c in forms.memory.candidates(0) if c.give_up.__name__ == "close_open"]
            assert give_up(1) == idle_nbytes
        assert not any(form.open_nbytes for form in forms.variable)
        assert before - model.engine.budget.in_use >= idle_nbytes
        compilations = forms.variable.compilations
        check_growing(model, 40)
        assert forms.variable.compilations == compilations


def test_slices_by_the_number_of_the_trip():
    nodes = [
        node("Unsqueeze", ["i", "zero"], ["first"]), node("Add", ["first", "one"], ["last"]),
        node("Slice", ["x", "first", "last", "zero"], ["part"]), node("Add", ["s", "part"], ["t"]),
    ]  # fmt: skip
    body = body_of(nodes, [info("s", [1, 3])], [info("t", [1, 3])])
    constants = {"zero": np.array([0]), "one": np.array([1])}
    model = run_loop(body, {"x0": ([1, 3],)}, {"y": [1, 3]}, {"x": (["k", 3],)}, constants)
    with gp.onnx.load(model, fallback=False) as loaded:
        x = floats(30, 3)
        for trips in (0, 1, 7, 30):
            found = loaded.run({"n": np.array(trips), "x0": np.zeros((1, 3), np.float32), "x": x})["y"]
            np.testing.assert_allclose(found, x[:trips].sum(0, keepdims=True), rtol=1e-5, atol=1e-5)


def test_slices_that_contents_tell_have_forms_that_stay():
    nodes = [
        node("Neg", ["i"], ["down"]), node("Neg", ["down"], ["number"]),
        node("Gather", ["starts", "number"], ["first"]), node("Unsqueeze", ["first", "zero"], ["begin"]),
        node("Gather", ["ends", "number"], ["last"]), node("Unsqueeze", ["last", "zero"], ["end"]),
        node("Slice", ["x", "begin", "end", "zero"], ["part"]),
        node("ReduceSum", ["part", "zero"], ["row"], keepdims=0),
    ]  # fmt: skip
    body = body_of(nodes, [], [info("row", [3])])
    extra = {"x": (["k", 3],), "starts": (["bags"], TensorProto.INT64), "ends": (["bags"], TensorProto.INT64)}
    model = run_loop(body, {}, {"rows": ["bags", 3]}, extra, {"zero": np.array([0])})
    x, bounds = floats(120, 3), np.arange(0, 121, 3)
    given = {"n": np.array(40), "x": x, "starts": bounds[:-1], "ends": bounds[1:]}
    with gp.onnx.load(model, fallback=False) as loaded:
        misses = []
        for _ in range(2):
            found = loaded.run(given)["rows"]
            np.testing.assert_allclose(found, x.reshape(40, 3, 3).sum(1), rtol=1e-5, atol=1e-5)
            trip = loaded._forms.last().form.inner[0].open_model()
            misses.append(trip._forms.last().form.inner[-1].open_model().stats().misses)
        assert misses[1] == misses[0] >= 40


def test_loops_in_loops():
    inner = helper.make_graph(
        [node("Mul", ["t", "x"], ["u"]), node("Identity", ["go_"], ["again_"])], "inner",
        [info("j", [], TensorProto.INT64), info("go_", [], TensorProto.BOOL), info("t", [3])],
        [info("again_", [], TensorProto.BOOL), info("u", [3])],
    )  # fmt: skip
    nodes = [node("Loop", ["i", "", "s"], ["r"], body=inner), node("Add", ["r", "x"], ["v"])]
    body = body_of(nodes, [info("s", [3])], [info("v", [3])])
    with gp.onnx.load(run_loop(body, {"x0": ([3],)}, {"y": [3]}, {"x": ([3],)}), fallback=False) as model:
        for trips in (0, 1, 12):
            x, wanted = np.float32([0.5, -0.9, 1]), floats(3)
            found = model.run({"n": np.array(trips), "x0": wanted, "x": x})["y"]
            for number in range(trips):
                wanted = wanted * x**number + x
            np.testing.assert_allclose(found, wanted, rtol=1e-5)
        assert placed(model)[:2] == ["loop", "loop"]


def test_loops_nested_deeply_load_in_time():
    """Bodies are walked where they stand, and again when they are compiled: not twice as often a level."""
    body = None
    for depth in reversed(range(12)):
        names = [f"{name}{depth}" for name in ("i", "go", "s", "again", "r")]
        inner = node("Sin", [names[2]], [names[4]])
        if body is not None:
            inner = node("Loop", ["n", "", names[2]], [names[4]], body=body)
        inputs = [info(names[0], [], TensorProto.INT64), info(names[1], [], TensorProto.BOOL), info(names[2], [2])]
        outputs = [info(names[3], [], TensorProto.BOOL), info(names[4], [2])]
        body = helper.make_graph([inner, node("Identity", [names[1]], [names[3]])], "body", inputs, outputs)
    limits = gp.Limits(nodes=1000)
    with gp.onnx.load(run_loop(body, {"x0": ([2],)}, {"y": [2]}, {}), fallback=False, limits=limits) as model:
        x = floats(2)
        np.testing.assert_allclose(model.run({"n": np.array(1), "x0": x})["y"], np.sin(x), rtol=1e-6)


def test_a_branch_is_compiled_when_it_is_taken():
    graphs = {
        "then_branch": helper.make_graph([node("Concat", ["x", "x"], ["r"], axis=0)], "then", [], [info("r", [None])]),
        "else_branch": helper.make_graph([node("Neg", ["x"], ["r"])], "else", [], [info("r", [None])]),
    }
    nodes = [
        node("ReduceSum", ["x"], ["sum"], keepdims=0), node("Less", ["sum", "zero"], ["less"]),
        node("If", ["less"], ["z"], **graphs), node("Relu", ["z"], ["y"]),
    ]  # fmt: skip
    model = make(nodes, [info("x", ["a"])], {"y": [None]}, {"zero": np.float32(0)})
    with gp.onnx.load(model, fallback=False) as loaded:
        for count in (3, 8):
            loaded.run({"x": np.ones(count, np.float32)})
        branches = loaded._forms.last().form.inner[0]
        assert branches._models[1] is None
        for x in (-np.ones(4, np.float32), np.ones(2, np.float32), -np.ones(2, np.float32)):
            wanted = np.concatenate([x, x]) if x.sum() < 0 else -x
            np.testing.assert_array_equal(loaded.run({"x": x})["y"], np.maximum(wanted, 0))
        assert loaded.stats().compilations == 1


def test_a_body_may_have_nodes_of_the_host():
    nodes = [node("Det", ["s"], ["d"]), node("Div", ["s", "d"], ["t"]), node("Add", ["t", "x"], ["u"])]
    body = body_of(nodes, [info("s", [5, 5])], [info("u", [5, 5])])
    model = run_loop(body, {"x0": ([5, 5],)}, {"y": [5, 5]}, {"x": ([5, 5],)})
    with pytest.raises(gp.UnsupportedError, match=r"'round' \(Loop\).*Det"):
        gp.onnx.load(model, fallback=False).run({})
    with gp.onnx.load(model) as loaded:
        wanted, x = floats(5, 5), np.eye(5, dtype=np.float32)
        found = loaded.run({"n": np.array(5), "x0": wanted, "x": x})["y"]
        for _ in range(5):
            wanted = wanted / np.linalg.det(wanted) + x
        np.testing.assert_allclose(found, wanted, rtol=1e-3)
        assert any(form.fallbacks for form in loaded._forms.last().with_inner()[1:])


# ---- loops within trips


@pytest.fixture
def calls(monkeypatch):
    """What calls of loops there were from Python."""
    found, call = [], Loop.__call__

    def note(self, inputs, outputs):
        found.append(self.label)
        return call(self, inputs, outputs)

    monkeypatch.setattr(Loop, "__call__", note)
    return found


UNWRITTEN = gp.Limits(unrolled_nodes=1)


def inner_body(nodes, states, extra=(), check="again_"):
    """A body of an inner loop: `states` are names and what they become, `extra` are rows, all of shape [a, 3]."""
    shape = ["a", 3]
    outside = [info(name, shape) for name in (*states.values(), *extra)]
    inside = [info("j", [], TensorProto.INT64), info("go_", [], TensorProto.BOOL), *(info(n, shape) for n in states)]
    nodes = [*nodes, *([node("Identity", ["go_"], ["again_"])] if check == "again_" else [])]
    return helper.make_graph(nodes, "inner", inside, [info(check, [], TensorProto.BOOL), *outside])


@pytest.mark.parametrize("is_branch", [False, True])
def test_a_loop_within_trips_is_no_call(calls, is_branch):
    """States are exchanged, kept and made anew; as many trips as the outer trip has its number."""
    nodes = [node("Mul", ["p", "x"], ["p2"]), node("Add", ["q", "r"], ["p3"]), node("Identity", ["p2"], ["q2"])]
    inner = node("Loop", ["i", "", "s", "t", "x"], ["s2", "t2", "kept"], "inner",
                 body=inner_body(nodes, {"p": "p3", "q": "q2", "r": "r"}))  # fmt: skip
    steps = [inner, node("Add", ["kept", "s2"], ["s3"])]
    if is_branch:
        shape = ["a", 3]
        outputs = [info(name, shape) for name in ("s3", "t2")]
        others = [node("Identity", ["s"], ["s4"]), node("Identity", ["t"], ["t4"])]
        graphs = {
            "then_branch": helper.make_graph(steps, "then", [], outputs),
            "else_branch": helper.make_graph(others, "else", [], [info(name, shape) for name in ("s4", "t4")]),
        }
        steps = [
            node("Mod", ["i", "two"], ["odd"]), node("Cast", ["odd"], ["is_odd"], to=TensorProto.BOOL),
            node("If", ["is_odd"], ["s5", "t5"], **graphs),
        ]  # fmt: skip
    s, t = ("s5", "t5") if is_branch else ("s3", "t2")
    shape = ["a", 3]
    body = body_of(steps, [info("s", shape), info("t", shape)], [info(s, shape), info(t, shape)])
    model = run_loop(
        body, {"s0": (shape,), "t0": (shape,)}, {"y": shape, "z": shape}, {"x": (shape,)}, {"two": np.array(2)}
    )
    with gp.onnx.load(model, fallback=False, limits=UNWRITTEN) as loaded:
        for trips, size in ((0, 2), (1, 1), (2, 5), (7, 4), (6, 0), (9, 1)):
            s, t, x = floats(size, 3, seed=1), floats(size, 3, seed=2), floats(size, 3, seed=3) / 2
            calls.clear()
            results = loaded.run({"n": np.array(trips), "s0": s, "t0": t, "x": x})
            for number in range(trips):
                if is_branch and number % 2 == 0:
                    continue
                for _ in range(number):
                    s, t = t + x, s * x
                s = x + s
            np.testing.assert_allclose(results["y"], s, rtol=1e-4, atol=1e-5)
            np.testing.assert_allclose(results["z"], t, rtol=1e-4, atol=1e-5)
            assert calls.count("inner") == 0 or size == 0


@pytest.mark.parametrize("turned", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_rows_of_a_scan_within_trips(calls, turned):
    """Each outer trip scans what the one before has given."""
    shape = ["a", 3]
    nodes = [node("Add", ["sum", "row"], ["sum2"]), node("Mul", ["sum2", "x"], ["given"])]
    graph = helper.make_graph(
        nodes, "scan", [info("sum", [3]), info("row", [3])], [info("sum2", [3]), info("given", [3])]
    )
    inner = node("Scan", ["start", "s"], ["last", "rows"], "inner", body=graph, num_scan_inputs=1,
                 scan_input_directions=[turned[0]], scan_output_directions=[turned[1]])  # fmt: skip
    body = body_of([inner, node("Add", ["rows", "last"], ["s2"])], [info("s", shape)], [info("s2", shape)])
    model = run_loop(body, {"s0": (shape,)}, {"y": shape}, {"x": ([3],), "start": ([3],)})
    with gp.onnx.load(model, fallback=False, limits=UNWRITTEN) as loaded:
        for trips, size in ((0, 2), (1, 1), (3, 5), (4, 1), (2, 0), (5, 4)):
            s, x, start = floats(size, 3, seed=1), floats(3, seed=2) / 4, floats(3, seed=3)
            calls.clear()
            found = loaded.run({"n": np.array(trips), "s0": s, "x": x, "start": start})["y"]
            for _ in range(trips):
                total, rows = start, []
                for row in s[::-1] if turned[0] else s:
                    total = total + row
                    rows.append(total * x)
                s = np.array(rows[::-1] if turned[1] else rows, np.float32).reshape(size, 3) + total
            np.testing.assert_allclose(found, s, rtol=1e-4, atol=1e-5)
            assert calls.count("inner") == 0 or size == 0


def test_a_loop_within_trips_ends_by_itself(calls):
    """Until its largest element is large, or at once where its condition says so; a third one is within it."""
    third = inner_body([node("Mul", ["u", "half"], ["u2"])], {"u": "u2"})
    nodes = [
        node("Add", ["p", "x"], ["p2"]), node("Loop", ["two", "", "p2"], ["p3"], "third", body=third),
        node("ReduceMax", ["p2"], ["top"], keepdims=0), node("Less", ["top", "least"], ["more"]),
    ]  # fmt: skip
    inner = node("Loop", ["", "begins", "s"], ["s2"], "inner", body=inner_body(nodes, {"p": "p3"}, check="more"))
    shape = ["a", 3]
    steps = [node("ReduceMax", ["s"], ["most"], keepdims=0), node("Less", ["most", "one"], ["begins"]), inner]
    body = body_of([*steps, node("Mul", ["s2", "y"], ["s3"])], [info("s", shape)], [info("s3", shape)])
    constants = {"half": np.float32(0.5), "two": np.array(2), "least": np.float32(2), "one": np.float32(1)}
    model = run_loop(body, {"s0": (shape,)}, {"z": shape}, {"x": (shape,), "y": (shape,)}, constants)
    with gp.onnx.load(model, fallback=False, limits=UNWRITTEN) as loaded:
        for trips, size in ((0, 2), (1, 1), (3, 5), (20, 2), (25, 1)):
            s, x, y = floats(size, 3, seed=1), 1.7 + 0 * floats(size, 3), 1 + floats(size, 3, seed=size) / 4
            calls.clear()
            found = loaded.run({"n": np.array(trips), "s0": s, "x": x, "y": y})["z"]
            for _ in range(trips):
                goes_on = s.max() < 1
                while goes_on:
                    p = s + x
                    s, goes_on = p / 4, p.max() < 2
                s = s * y
            np.testing.assert_allclose(found, s, rtol=1e-4, atol=1e-5)
            assert not {"inner", "third"}.intersection(calls)


def test_a_loop_within_trips_that_never_ends_is_stopped():
    shape = ["a", 3]
    inner = node("Loop", ["", "", "s"], ["s2"], "inner", body=inner_body([node("Neg", ["p"], ["p2"])], {"p": "p2"}))
    body = body_of([inner], [info("s", shape)], [info("s2", shape)])
    limits = gp.Limits(unrolled_nodes=1, host_steps=10**6)
    model = run_loop(body, {"s0": (shape,)}, {"y": shape}, {})
    with gp.onnx.load(model, fallback=False, limits=limits) as loaded, pytest.raises(gp.LimitError, match="inner"):
        loaded.run({"n": np.array(2), "s0": floats(1, 3)})


# ---- threads, memory, life


def test_threads_run_one_loop_side_by_side():
    def check(seed):
        feeds = {"n": np.array(50 + seed), "x0": floats(4, 3, seed=seed), "x": floats(4, 3, seed=seed + 99)}
        for _ in range(20):
            results, (state, rows) = model.run(feeds), gated_by_hand(feeds)
            np.testing.assert_allclose(results["y"], state, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(results["rows"], rows, rtol=1e-5, atol=1e-6)

    with gp.onnx.load(gated(), threads=2) as model, ThreadPoolExecutor(4) as pool:
        list(pool.map(check, range(8)))


def scan_of(width):
    body = helper.make_graph(
        [node("MatMul", ["s", "w"], ["p"]), node("Add", ["p", "e"], ["t"]), node("Tanh", ["t"], ["u"])], "body",
        [info("s", [1, width]), info("e", [1, width])], [info("t", [1, width]), info("u", [1, width])],
    )  # fmt: skip
    scanning = node("Scan", ["x0", "x"], ["y", "rows"], "round", body=body, num_scan_inputs=1)
    inputs = [info("x0", [1, width]), info("x", ["steps", 1, width])]
    weights = {"w": np.eye(width, dtype=np.float32)}
    return make([scanning], inputs, {"y": [1, width], "rows": ["steps", 1, width]}, weights)


def test_the_predicted_peak_is_a_limit_that_does():
    model, feeds = scan_of(64), {"x0": floats(1, 64), "x": floats(500, 1, 64)}
    with gp.onnx.load(model, threads=1) as loaded:
        peak = loaded.predict_peak({name: value.shape for name, value in feeds.items()})
        wanted = loaded.run(feeds)
        assert loaded.engine.budget.peak <= peak
    with gp.onnx.load(model, threads=1, memory_limit=int(peak)) as loaded:
        for name, found in loaded.run(feeds).items():
            np.testing.assert_array_equal(found, wanted[name])


def test_the_limit_of_one_run_does_for_many_threads():
    def check(_):
        outputs = {name: np.empty_like(value) for name, value in wanted.items()}
        for _ in range(20):
            model.run(feeds, outputs)
            np.testing.assert_array_equal(outputs["rows"], wanted["rows"])

    feeds = {"x0": floats(1, 64), "x": floats(500, 1, 64)}
    with gp.onnx.load(scan_of(64), threads=2) as model:
        peak = model.predict_peak({name: value.shape for name, value in feeds.items()})
        wanted = model.run(feeds)
    with gp.onnx.load(scan_of(64), threads=2, memory_limit=int(peak)) as model, ThreadPoolExecutor(4) as pool:
        list(pool.map(check, range(4)))


def test_the_peak_of_a_range_counts_the_body():
    with gp.onnx.load(scan_of(64), threads=1, shapes={"steps": (1, 500)}) as model:
        peak = model.predict_peak()
        for steps in (1, 30, 500, 2):
            model.run({"x0": floats(1, 64), "x": floats(steps, 1, 64)})
        assert model.engine.budget.peak <= peak


def test_rows_without_end_are_refused_by_the_limit():
    with gp.onnx.load(gated([100, 3]), threads=1, memory_limit="16MiB") as model:
        x = floats(100, 3)
        with pytest.raises(gp.OutOfMemoryError, match="loop 'round'"):
            model.run({"n": np.array(2**60), "x0": x, "x": x})
        feeds = {"n": np.array(20), "x0": x, "x": x}
        np.testing.assert_allclose(model.run(feeds)["y"], gated_by_hand(feeds)[0], rtol=1e-5, atol=1e-6)


def test_a_loop_gives_all_its_memory_back():
    with gp.Engine("cpu", threads=1) as engine:
        before = engine.budget.in_use
        with gp.onnx.load(gated(), engine=engine) as model:
            feeds = {"n": np.array(3000), "x0": floats(4, 3), "x": floats(4, 3)}
            model.run(feeds)
            held = engine.budget.in_use
            for _ in range(3):
                model.run(feeds)
            assert engine.budget.in_use == held
        assert engine.budget.in_use == before


def test_an_endless_loop_can_be_interrupted():
    body = body_of([node("Sin", ["s"], ["t"])], [info("s", [64])], [info("t", [64])])
    limits = gp.Limits(host_steps=2**62)
    with gp.onnx.load(run_loop(body, {"x0": ([64],)}, {"y": [64]}, {}), limits=limits) as model:
        feeds = {"n": np.array(2**62), "x0": floats(64)}
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        timer.start()
        begin = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            model.run(feeds)
        assert time.monotonic() - begin < 10
        np.testing.assert_array_equal(model.run(feeds | {"n": np.array(0)})["y"], feeds["x0"])


def test_scans_of_other_lengths_are_refused_with_the_node():
    body = helper.make_graph(
        [node("Mul", ["a", "b"], ["c"])], "body", [info("a", [2]), info("b", [2])], [info("c", [2])]
    )
    scanning = node("Scan", ["x", "z"], ["y"], "round", body=body, num_scan_inputs=2)
    model = make([scanning], [info("x", ["m", 2]), info("z", ["k", 2])], {"y": [None, 2]})
    with gp.onnx.load(model) as loaded:
        for count in (4, 900):
            found = loaded.run({"x": floats(count, 2), "z": floats(count, 2)})["y"]
            np.testing.assert_array_equal(found, floats(count, 2) ** 2)
        with pytest.raises(gp.GraphpoolError, match="round"):
            loaded.run({"x": floats(5, 2), "z": floats(4, 2)})


def test_a_model_with_a_loop_can_be_pickled():
    feeds = {"n": np.array(9), "x0": floats(4, 3), "x": floats(4, 3)}
    with gp.onnx.load(gated()) as model:
        wanted = model.run(feeds)
        with pickle.loads(pickle.dumps(model)) as again:
            found = again.run(feeds)
    np.testing.assert_array_equal(found["rows"], wanted["rows"])


def test_a_state_of_a_session_may_come_from_a_loop():
    body = body_of([node("Add", ["s", "x"], ["t"])], [info("s", [3])], [info("t", [3])])
    with gp.onnx.load(run_loop(body, {"x0": ([3],)}, {"y": [3]}, {"x": ([3],)}), fallback=False) as model:
        session, total = model.session({"y": "x0"}), np.zeros(3, np.float32)
        for trips in (3, 0, 5):
            session.run({"n": np.array(trips), "x": np.ones(3, np.float32)})
            total += trips
        np.testing.assert_array_equal(session.save()["x0"], total)
        session.close()
