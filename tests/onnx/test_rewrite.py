import itertools

import numpy as np
import pytest
from onnx import helper

import graphpool as gp
from graphpool.onnx.rewrite import rewrite
from graphpool.onnx.source import read_model
from tests.helpers.onnx_models import check_against_evaluator, make_model, random_array

X = random_array((4, 8))
CONSTANTS = {
    "half": 0.5, "one": 1.0, "three": 3.0, "root2": 2**0.5, "inverse": 0.5**0.5, "cubic": 0.044715,
    "scale": (2 / np.pi) ** 0.5,
}  # fmt: skip


class Chain:
    """Writes nodes whose outputs are named by number."""

    def __init__(self):
        self.nodes = []

    def __call__(self, kind, *inputs):
        self.nodes.append(helper.make_node(kind, inputs, [f"v{len(self.nodes)}"]))
        return self.nodes[-1].output[0]

    def model(self, result):
        self.nodes[-1].output[0] = "y"
        assert result == f"v{len(self.nodes) - 1}"
        constants = {key: np.float32(value) for key, value in CONSTANTS.items()}
        return make_model(self.nodes, {"x": X}, ["y"], constants)


def product(chain, factors, form):
    a, b, c = factors
    return chain("Mul", chain("Mul", a, b), c) if form == "left" else chain("Mul", a, chain("Mul", b, c))


def kinds(model):
    return [node.op_type for node in rewrite(read_model(model))]


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("form", ["left", "right"])
@pytest.mark.parametrize("scaling", ["Div", "Mul"])
def test_every_spelling_of_the_exact_form(order, form, scaling):
    chain = Chain()
    inner = chain("Div", "x", "root2") if scaling == "Div" else chain("Mul", "inverse", "x")
    gate = chain("Add", "one", chain("Erf", inner))
    model = chain.model(product(chain, [("x", "half", gate)[k] for k in order], form))
    assert kinds(model) == ["Gelu"]
    assert check_against_evaluator(model, {"x": X}) == 0


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
@pytest.mark.parametrize("cube", ["Pow", "Mul", "factored"])
def test_every_spelling_of_the_tanh_form(order, cube):
    chain = Chain()
    if cube == "factored":
        bracket = chain("Add", "one", chain("Mul", "cubic", chain("Mul", "x", "x")))
        inner = chain("Mul", chain("Mul", "x", "scale"), bracket)
    else:
        power = chain("Pow", "x", "three") if cube == "Pow" else chain("Mul", "x", chain("Mul", "x", "x"))
        inner = chain("Mul", chain("Add", "x", chain("Mul", power, "cubic")), "scale")
    gate = chain("Add", chain("Tanh", inner), "one")
    model = chain.model(product(chain, [("x", "half", gate)[k] for k in order], "left"))
    assert kinds(model) == ["Gelu"]
    assert check_against_evaluator(model, {"x": X}) == 0


def test_something_similar_is_left_alone():
    chain = Chain()
    gate = chain("Add", "one", chain("Erf", chain("Div", "x", "three")))
    model = chain.model(product(chain, ["x", "half", gate], "left"))
    assert "Gelu" not in kinds(model)
    check_against_evaluator(model, {"x": X})


def test_a_gate_that_others_read_too_is_kept_for_them():
    chain = Chain()
    gate = chain("Add", "one", chain("Erf", chain("Div", "x", "root2")))
    chain("Mul", chain("Mul", "x", gate), "half")
    chain.nodes[-1].output[0] = "y"
    model = make_model(chain.nodes, {"x": X}, ["y", gate], {k: np.float32(v) for k, v in CONSTANTS.items()})
    assert sorted(kinds(model)) == ["Add", "Div", "Erf", "Gelu"]
    check_against_evaluator(model, {"x": X})


def test_dead_nodes_go():
    nodes = [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("Det", ["x"], ["unread"])]
    model = make_model(nodes, {"x": random_array((3, 3))}, ["y"])
    with gp.onnx.load(model, fallback=False) as loaded:
        assert len(loaded.partitions) == 1


def test_scatter_runs_under_its_new_name():
    nodes = [helper.make_node("Scatter", ["x", "i", "u"], ["y"], axis=1)]
    infos = [helper.make_tensor_value_info(n, t, [1, s]) for n, t, s in (("x", 1, 5), ("i", 7, 2), ("u", 1, 2))]
    graph = helper.make_graph(nodes, "old", infos, [helper.make_tensor_value_info("y", 1, [1, 5])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 10)], ir_version=5)
    inputs = {
        "x": np.arange(5, dtype="float32")[None], "i": np.array([[1, 3]]), "u": np.array([[9, 8]], "float32")
    }  # fmt: skip
    with gp.onnx.load(model) as loaded:
        np.testing.assert_array_equal(loaded.run(inputs)["y"], [[0, 9, 2, 8, 4]])
