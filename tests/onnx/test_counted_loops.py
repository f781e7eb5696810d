"""Sizes that follow from states of loops that count trips, or stay as they are."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp
from graphpool.runtime.open_trips import OpenTrips
from tests.onnx.test_loops import AGAIN, NUMBER, SAME, UNWRITTEN, body_of, floats, info, make, node, run_loop

INT64, REAL = TensorProto.INT64, TensorProto.FLOAT


def counted(first, nodes, dtype=INT64, counter="i2"):
    """Row `c` of x is added to a state, where c begins as `first` and becomes what the nodes make of it."""
    constants = {
        "c0": np.array(first, helper.tensor_dtype_to_np_dtype(dtype)), "zero": np.array([0]), "one": np.array([1]),
        "step": np.float32(1), "two": np.array(2),
    }  # fmt: skip
    body_nodes = [
        *nodes, node("Cast", ["c"], ["c64"], to=INT64), node("Reshape", ["c64", "one"], ["from"]),
        node("Cast", [counter], ["n64"], to=INT64), node("Reshape", ["n64", "one"], ["to"]),
        node("Shape", ["x"], ["shape"]), node("Gather", ["shape", "zero"], ["rows"], axis=0),
        node("Min", ["rows", "to"], ["end"]), node("Slice", ["x", "from", "end", "zero"], ["part"]),
        node("ReduceSum", ["part", "zero"], ["sum"], keepdims=0), node("Add", ["s", "sum"], ["t"]),
    ]  # fmt: skip
    inputs, outputs = [info("c", [], dtype), info("s", [3])], [info(counter, [], dtype), info("t", [3])]
    loop_node = node("Loop", ["n", "", "c0", "x0"], ["last", "y"], body=body_of(body_nodes, inputs, outputs))
    ports = [info("n", [], INT64), info("x0", [3]), info("x", ["k", 3])]
    model = make([loop_node], ports, {"last": [], "y": [3]}, constants)
    model.graph.output[0].type.tensor_type.elem_type = dtype
    return model


def as_real(dtype=INT64):
    """One is added as a float32."""
    return [
        node("Cast", ["c"], ["r"], to=REAL),
        node("Add", ["r", "step"], ["r2"]),
        node("Cast", ["r2"], ["i2"], to=dtype),
    ]


BY_ONE = [node("Squeeze", ["one"], ["by"]), node("Add", ["c", "by"], ["i2"])]
UP = [BY_ONE[0], node("Add", ["c", "by"], ["up"])]
BY_TWO = [node("Add", ["c", "two"], ["i2"])]
DOWN = [BY_ONE[0], node("Sub", ["c", "by"], ["i2"])]
BY_DATA = [
    *UP, node("Cast", ["s"], ["s64"], to=INT64), node("ReduceMax", ["s64"], ["top"], keepdims=0),
    node("Max", ["up", "top"], ["i2"]),
]  # fmt: skip


@pytest.mark.parametrize(("first", "nodes", "dtype", "step"), [
    (0, BY_ONE, INT64, 1), (3, BY_ONE, INT64, 1), (-2, BY_ONE, INT64, 1), (0, as_real(), INT64, 1),
    (4, as_real(TensorProto.INT32), TensorProto.INT32, 1), (0, BY_TWO, INT64, 2), (-3, BY_TWO, INT64, 2),
    (90, DOWN, INT64, -1), (25, DOWN, INT64, -1),
])  # fmt: skip
def test_slices_by_a_state_that_counts_trips(first, nodes, dtype, step, runs):
    x = floats(40, 3)
    with gp.onnx.load(counted(first, nodes, dtype), fallback=False, limits=UNWRITTEN) as model:
        for trips in (0, 1, 7, 30, 60):
            before = len(runs)
            found = model.run({"n": np.array(trips), "x0": np.zeros(3, np.float32), "x": x})
            assert len(runs) - before <= 5  # of the model, and where a decision comes out otherwise
            assert found["last"] == first + step * trips
            counts = range(first, first + step * trips, step)
            wanted = sum((x[slice(c, min(40, c + step))].sum(0) for c in counts), np.zeros(3))
            np.testing.assert_allclose(found["y"], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("first", "nodes", "after"), [
    (0, [node("Mul", ["c", "two"], ["i2"])], lambda c, s: 2 * c),
    (1, [node("Mul", ["c", "c"], ["sq"]), node("Add", ["sq", "two"], ["i2"])], lambda c, s: c * c + 2),
    (2**24 - 3, as_real(), lambda c, s: int(np.float32(c) + np.float32(1))),  # which ends at 2**24
    (0, [*UP, node("Mod", ["up", "two"], ["i2"])], lambda c, s: (c + 1) % 2),
    (0, BY_DATA, lambda c, s: max(c + 1, int(s.astype(np.int64).max()))),
])  # fmt: skip
def test_states_that_do_not_count_trips(first, nodes, after):
    x = 3 * np.abs(floats(40, 3))
    with gp.onnx.load(counted(first, nodes), fallback=False, limits=UNWRITTEN) as model:
        found = model.run({"n": np.array(6), "x0": np.zeros(3, np.float32), "x": x})
    count, state = first, np.zeros(3, np.float32)
    for _ in range(6):
        end = after(count, state)
        count, state = end, state + x[slice(count, min(40, end))].sum(0, dtype=np.float32)
    assert found["last"] == count
    np.testing.assert_allclose(found["y"], state, rtol=1e-5)


GROWING = [node("Concat", ["s", "row"], ["more"], axis=0), node("Mul", ["more", "half"], ["t"])]
SUMMING = [
    node("Unsqueeze", ["i", "zero"], ["from"]), node("Slice", ["x", "from", "end", "zero"], ["rest"]),
    node("ReduceSum", ["rest", "zero"], ["sum"]), node("Add", ["s", "sum"], ["t"]),
]  # fmt: skip


@pytest.mark.parametrize("nodes", [GROWING, SUMMING], ids=["growing", "summing"])
def test_all_trips_are_set_up_at_once(monkeypatch, nodes):
    """Neither a state of one row, nor trip 0, needs a form of its own, and states that grow have room to."""
    shape = [None if nodes is GROWING else 1, 4]
    body = body_of(nodes, [info("s", shape)], [info("t", shape)])
    constants = {"zero": np.array([0]), "end": np.array([2**31]), "half": np.float32(0.5)}
    outer = {"row" if nodes is GROWING else "x": (["k", 4],)}
    model = run_loop(body, {"x0": (shape,)}, {"y": shape}, outer, constants)
    begun, run = [], OpenTrips.run
    monkeypatch.setattr(OpenTrips, "run", lambda self, *given: begun.append(1) or run(self, *given))
    x = floats(1 if nodes is GROWING else 20, 4)
    with gp.onnx.load(model, fallback=False) as loaded:
        for trips in (1, 2, 7, 10):
            wanted = start = np.ones((1, 4), np.float32)
            found = loaded.run({"n": np.array(trips), "x0": start, next(iter(outer)): x})["y"]
            for trip in range(trips):
                grown = np.concatenate([wanted, x]) * np.float32(0.5) if nodes is GROWING else None
                wanted = wanted + x[trip:].sum(0) if grown is None else grown
            np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
        assert len(begun) == 4
        assert loaded._forms.last().form.inner[0].open_model().stats().compilations == 1


@pytest.mark.parametrize("way", ["loop", "scan"])
def test_what_is_known_of_states_that_no_trip_changes(way):
    """TensorFlow hands on what stays as states, steps of slices among them, which have to be known before the run."""
    is_loop = way == "loop"
    nodes = [
        node("Slice", ["table", "zero", "end", "zero", "steps"], ["part"]), node("Add", ["s", "part"], ["t"]),
        node("Identity", ["table"], ["table2"]),
    ]  # fmt: skip
    kept = [info("steps", [1], TensorProto.INT64), info("table", [6])]
    states, given = [kept[0], info("s", [3]), kept[1]], [kept[0], info("t", [3]), info("table2", [6])]
    constants = {"zero": np.array([0]), "end": np.array([6])}
    rows = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    if is_loop:
        body = helper.make_graph([SAME, *nodes], "body", [*NUMBER, *states], [AGAIN, *given], rows)
        loop_ = node("Loop", ["n", "", "two", "s0", "given"], ["steps1", "y", "table1"], body=body)
        first = info("n", [], TensorProto.INT64)
    else:
        body = helper.make_graph(nodes, "body", [*states, info("row", [])], given, rows)
        loop_ = node("Scan", ["two", "s0", "given", "n"], ["steps1", "y", "table1"], body=body, num_scan_inputs=1)
        first = info("n", ["k"])
    outputs = [info("y", [3]), info("steps1", [1], TensorProto.INT64), info("table1", [6])]
    graph = helper.make_graph([loop_], "g", [first, info("s0", [3]), info("given", [6])], outputs,
                              [numpy_helper.from_array(np.array([2]), "two")])  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    s, table = floats(3), floats(6, seed=1)
    with gp.onnx.load(model, fallback=False, limits=gp.Limits(unrolled_nodes=1)) as loaded:
        for trips in (0, 1, 5) if is_loop else (1, 5):
            n = np.array(trips) if is_loop else np.zeros(trips, np.float32)
            results = loaded.run({"n": n, "s0": s, "given": table})
            np.testing.assert_allclose(results["y"], s + trips * table[::2], rtol=1e-6)
            np.testing.assert_array_equal(results["steps1"], [2])
            np.testing.assert_array_equal(results["table1"], table)
