"""Loops that are left to the host give what they give when they are unrolled, and what their definition says."""

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import graphpool as gp


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
def test_scan_on_the_host_is_scan_unrolled(name):
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
    with gp.onnx.load(model) as unrolled, gp.onnx.load(model, limits=gp.Limits(unrolled_nodes=1)) as host:
        expected, found = unrolled.run(feeds), host.run(feeds)
    for key in expected:
        np.testing.assert_allclose(found[key], expected[key], rtol=1e-6, err_msg=key)


def test_nodes_inside_a_loop_on_the_host_are_our_own_ops():
    """Their sizes are known at the run only; ONNX's evaluator gathers of at most 64 entries."""
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
