"""Nodes that stand before those that they read: sorted, in graphs of every kind, with the lists that belong to them."""

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import graphpool as gp
from graphpool.onnx.node_order import sort_nodes
from graphpool.onnx.proto import as_own

OPSETS = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 2)]


def info(name, kind=TensorProto.FLOAT, shape=("n",)):
    return helper.make_tensor_value_info(name, kind, shape)


def chain_nodes():
    """``y = exp(-x) * (|x| + exp(-x))``"""
    return [
        helper.make_node("Neg", ["x"], ["a"]),
        helper.make_node("Exp", ["a"], ["b"]),
        helper.make_node("Abs", ["x"], ["c"]),
        helper.make_node("Add", ["b", "c"], ["d"]),
        helper.make_node("Mul", ["d", "b"], ["y"]),
    ]


def expected(x):
    return np.exp(-x) * (np.abs(x) + np.exp(-x))


def model_of(nodes, inputs, outputs, **fields):
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    return helper.make_model(graph, opset_imports=OPSETS, ir_version=9, **fields)


def run(model, **arrays):
    with gp.onnx.load(model.SerializeToString(), fallback=False) as loaded:
        return loaded.run(arrays)


X = np.array([-1.5, 0.0, 2.0], np.float32)


@pytest.mark.parametrize("number", range(8))
def test_nodes_in_any_order(number):
    nodes = [chain_nodes()[k] for k in np.random.default_rng(number).permutation(5)]
    found = run(model_of(nodes, [info("x")], [info("y")]), x=X)
    np.testing.assert_allclose(found["y"], expected(X), rtol=1e-6)


def test_a_branch_out_of_order_and_its_node_before_what_it_captures():
    branch = helper.make_graph(chain_nodes()[::-1], "then", [], [info("y")])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["z"])], "else", [], [info("z")])
    nodes = [
        helper.make_node("If", ["big"], ["out"], then_branch=branch, else_branch=other),
        helper.make_node("Identity", ["given"], ["x"]),
    ]
    model = model_of(nodes, [info("given"), info("big", TensorProto.BOOL, [])], [info("out")])
    np.testing.assert_allclose(run(model, given=X, big=np.array(True))["out"], expected(X), rtol=1e-6)
    np.testing.assert_array_equal(run(model, given=X, big=np.array(False))["out"], -X)


def test_a_function_out_of_order():
    function = helper.make_function("own", "Chain", ["x"], ["y"], chain_nodes()[::-1], OPSETS[:1])
    nodes = [helper.make_node("Neg", ["z"], ["y"]), helper.make_node("Chain", ["x"], ["z"], domain="own")]
    model = model_of(nodes, [info("x")], [info("y")], functions=[function])
    model.opset_import.append(helper.make_opsetid("own", 1))
    np.testing.assert_allclose(run(model, x=X)["y"], -expected(X), rtol=1e-6)


@pytest.mark.parametrize("order", [[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2]])
def test_long_lists_stay_with_their_nodes(order):
    """The places of lists are known by numbers of nodes, which Constants that become initialisers change too."""
    one = onnx.numpy_helper.from_array(np.array([1], np.int64))

    def encoder(source, target, factor):
        attributes = {"keys_int64s": list(range(2000)), "values_int64s": [factor * k for k in range(2000)]}
        return helper.make_node("LabelEncoder", [source], [target], domain="ai.onnx.ml", **attributes)

    nodes = [
        helper.make_node("Constant", [], ["one"], value=one),
        helper.make_node("Add", ["x", "one"], ["a"]),
        encoder("a", "b", 3),
        encoder("a", "c", 7),
    ]
    outputs = [info("b", TensorProto.INT64), info("c", TensorProto.INT64)]
    model = model_of([nodes[k] for k in order], [info("x", TensorProto.INT64)], outputs)
    found = run(model, x=np.array([0, 4, 1500]))
    np.testing.assert_array_equal(found["b"], [3, 15, 4503])
    np.testing.assert_array_equal(found["c"], [7, 35, 10507])


def test_a_circle_is_refused():
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Neg", ["a"], ["b"])]
    with pytest.raises(gp.InvalidArgumentError, match="topologically sorted"):
        run(model_of(nodes, [info("x")], [info("a")]), x=X)


def test_nodes_in_order_keep_it():
    nodes = chain_nodes()
    model = as_own(model_of([nodes[2], nodes[0], nodes[1], *nodes[3:]], [info("x")], [info("y")]))
    assert sort_nodes(model) == [0, 1, 2, 3, 4]
    assert [node.op_type for node in model.graph.node] == ["Abs", "Neg", "Exp", "Add", "Mul"]
