"""Loading takes a time that is linear in the nodes, whatever they look like: counted in steps of the interpreter."""

import sys

import numpy as np
import pytest

import graphpool as gp

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

SHAPE = (2, 4)


def model(nodes, weights=()):
    ports = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE)] for name in "xy"]
    graph = helper.make_graph(nodes, "g", *ports, initializer=list(weights))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString()


def in_a_row(count, make):
    """A model of nodes one behind another: `make` gives op and inputs from the number and the value before."""
    names = ["x", *(f"t{k}" for k in range(count - 1)), "y"]
    return [helper.make_node(*make(k, names[k], names), [names[k + 1]]) for k in range(count)]


def chain(count):
    return model(in_a_row(count, lambda k, before, names: ("Neg", [before])))


def alternating(count):
    kinds = "Softmax", "Neg", "Floor"
    return model(in_a_row(count, lambda k, before, names: (kinds[k % 3], [before])))


def shared(count):
    """One tensor that all nodes read."""
    nodes = in_a_row(count, lambda k, before, names: ("Mul", [before, "e"]))
    return model([helper.make_node("Exp", ["x"], ["e"]), *nodes])


def far_back(count):
    return model(in_a_row(count, lambda k, before, names: ("Add", [before, names[max(0, k - 8)]])))


def diamonds(count):
    nodes, value = [], "x"
    for k in range(count // 3):
        nodes += [helper.make_node(kind, [value], [f"{kind}{k}"]) for kind in ("Exp", "Neg")]
        value = "y" if k == count // 3 - 1 else f"s{k}"
        nodes.append(helper.make_node("Add", [f"Exp{k}", f"Neg{k}"], [value]))
    return model(nodes)


def wide(count):
    nodes = [helper.make_node("Softmax", ["x"], [f"t{k}"]) for k in range(count)]
    return model([*nodes, helper.make_node("Sum", [f"t{k}" for k in range(count)], ["y"])])


def residual(count):
    """Blocks of two products, each with a shortcut around it."""
    nodes, value = [], "x"
    for k in range(count // 4):
        end = "y" if k == count // 4 - 1 else f"d{k}"
        nodes += [
            helper.make_node("MatMul", [value, "w"], [f"a{k}"]), helper.make_node("Relu", [f"a{k}"], [f"b{k}"]),
            helper.make_node("MatMul", [f"b{k}", "w"], [f"c{k}"]), helper.make_node("Add", [f"c{k}", value], [end]),
        ]  # fmt: skip
        value = end
    return model(nodes, [numpy_helper.from_array(np.zeros((4, 4), np.float32), "w")])


SHAPES = [chain, alternating, shared, far_back, diamonds, wide, residual]


def steps_of_load(data):
    """Lines that loading takes, a turn of a loop within a line counted as one."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        loaded = gp.onnx.load(data, threads=2)
    finally:
        sys.settrace(before)
    loaded.close()
    return count


@pytest.mark.parametrize("make", SHAPES)
def test_loading_is_linear_in_the_nodes(make):
    gp.onnx.load(make(8), threads=2).close()  # imports
    few, many = steps_of_load(make(150)), steps_of_load(make(600))
    assert many < 6 * few


def test_more_operands_than_one_program_has_room_for():
    data = wide(5000)
    with gp.onnx.load(data, threads=2) as loaded:
        x = np.ones(SHAPE, np.float32)
        np.testing.assert_allclose(loaded.run({"x": x})["y"], np.full(SHAPE, 1250.0), rtol=1e-5)


def test_more_forms_of_constants_than_one_program_has_room_for():
    with gp.onnx.load(residual(9000), threads=2) as loaded:
        x = np.arange(8, dtype=np.float32).reshape(SHAPE)
        np.testing.assert_array_equal(loaded.run({"x": x})["y"], x)
