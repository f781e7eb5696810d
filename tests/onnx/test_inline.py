import numpy as np
import pytest
from onnx import TensorProto, helper

import graphpool as gp
from graphpool.onnx.inline import function_nodes
from graphpool.onnx.node import Node
from tests.helpers.onnx_models import check_against_evaluator, make_model, node_model, random_array

X = random_array((3, 5, 4))
LABELS = np.random.default_rng(1).integers(0, 5, (3, 4))


def types_of(*arrays):
    return [helper.make_tensor_type_proto(helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for a in arrays]


def test_a_function_becomes_nodes_with_its_attributes_and_names():
    node = helper.make_node("MeanVarianceNormalization", ["a"], ["b"], axes=[0, 2])
    nodes = function_nodes(Node(node), types_of(X), {"": 21})
    assert nodes[-1].output == ("b",)
    assert {name for inner in nodes for name in inner.input} >= {"a"}
    assert "MeanVarianceNormalization" not in {inner.op_type for inner in nodes}


def test_an_input_in_the_middle_may_be_left_out():
    node = helper.make_node("Clip", ["a", "", "c"], ["b"])
    types = types_of(X, np.array(1.0, "float32"))
    nodes = function_nodes(Node(node), [types[0], None, types[1]], {"": 21})
    computed = {name for inner in nodes for name in inner.output}
    assert {name for inner in nodes for name in inner.input} - computed == {"a", "c"}


@pytest.mark.parametrize(("kind", "domain"), [("Conv", ""), ("Unheard", ""), ("Gelu", "of.somebody")])
def test_a_primitive_op_has_no_nodes(kind, domain):
    node = Node(helper.make_node(kind, ["a"], ["b"], domain=domain))
    assert function_nodes(node, types_of(X), {"": 21}) is None


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("attributes", [{}, {"ignore_index": 2}])
@pytest.mark.parametrize("weights", [None, np.array([1, 2, 0.5, 3, 1], "float32")])
def test_losses_run_without_a_host(reduction, attributes, weights):
    inputs = [X, LABELS] + ([] if weights is None else [weights])
    for kind in ("NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"):
        assert check_against_evaluator(*node_model(kind, inputs, reduction=reduction, **attributes)) == 0


def test_a_function_with_a_part_that_we_lack_stays_whole():
    """Bernoulli is made of random numbers, which the host draws."""
    node = helper.make_node("Bernoulli", ["x"], ["y"], seed=1.0)
    info, result = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy")
    graph = helper.make_graph([node], "g", [info], [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with gp.onnx.load(model) as loaded:
        loaded.run({"x": np.array([0, 1, 1, 0], "float32")})
        assert [partition.is_supported for partition in loaded.partitions] == [False]
    with gp.onnx.load(model, fallback=False) as loaded:
        assert loaded.run({"x": np.ones(4, "float32")})["y"].tolist() == [1, 1, 1, 1]


def test_weights_in_a_function_are_folded_once_for_all_shapes():
    weights = np.array([1, 2, 0.5, 3, 1], "float32")
    node = helper.make_node("NegativeLogLikelihoodLoss", ["x", "t", "w"], ["y"], reduction="sum")
    given = {"x": X, "t": LABELS}
    model = make_model([node], given, ["y"], {"w": weights}, shapes={"x": ["n", 5, 4], "t": ["n", 4]})
    with gp.onnx.load(model) as loaded:
        full = loaded.run(given)["y"]
        parts = [loaded.run({"x": X[k : k + 1], "t": LABELS[k : k + 1]})["y"] for k in range(3)]
    np.testing.assert_allclose(sum(parts), full, rtol=1e-5)
