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
    return [node.op_type for node in rewrite(read_model(model))[0]]


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


NORM_CONSTANTS = {
    "eps": 1e-3, "two": 2.0, "gamma": random_array((8,), seed=1), "beta": random_array((8,), seed=2), "six": 6.0,
    "axes": np.array([-1]), "zero": 0.0, "sixth": 1 / 6, "half": 0.5, "three": 3.0, "one": 1.0,
}  # fmt: skip


def norm_model(chain):
    chain.nodes[-1].output[0] = "y"
    constants = {k: v if k == "axes" else np.asarray(v, "float32") for k, v in NORM_CONSTANTS.items()}
    return make_model(chain.nodes, {"x": X}, ["y"], constants)


def spread(chain, x, square, root):
    """1 / sqrt(mean of squares + eps), in one of its spellings; what it is to be multiplied or divided by."""
    squares = chain("Mul", x, x) if square == "Mul" else chain("Pow", x, "two")
    total = chain("Add", chain("ReduceMean", squares, "axes"), "eps")
    if root == "Reciprocal":
        return "Mul", chain("Reciprocal", chain("Sqrt", total))
    return ("Div", chain("Sqrt", total)) if root == "Div" else ("Mul", chain("Div", "one", chain("Sqrt", total)))


@pytest.mark.parametrize("square", ["Mul", "Pow"])
@pytest.mark.parametrize("root", ["Div", "Reciprocal", "one"])
@pytest.mark.parametrize("is_shared", [True, False])
def test_layer_normalisation(square, root, is_shared):
    chain = Chain()
    centred = chain("Sub", "x", chain("ReduceMean", "x", "axes"))
    other = centred if is_shared else chain("Sub", "x", chain("ReduceMean", "x", "axes"))
    kind, scale = spread(chain, other, square, root)
    chain("Add", "beta", chain("Mul", chain(kind, centred, scale), "gamma"))
    model = norm_model(chain)
    assert kinds(model) == ["LayerNormalization"]
    assert check_against_evaluator(model, {"x": X}) == 0


@pytest.mark.parametrize("root", ["Div", "Reciprocal", "one"])
def test_rms_normalisation(root):
    chain = Chain()
    kind, scale = spread(chain, "x", "Pow", root)
    chain("Mul", "gamma", chain(kind, "x", scale))
    model = norm_model(chain)
    assert kinds(model) == ["RMSNormalization"]
    assert check_against_evaluator(model, {"x": X}) == 0


def test_a_mean_over_another_axis_is_no_layer_normalisation():
    chain = Chain()
    kind, scale = spread(chain, chain("Sub", "x", chain("ReduceMean", "x", "zeros")), "Pow", "Div")
    chain("Mul", chain(kind, "x", scale), "gamma")
    chain.nodes[-1].output[0] = "y"
    constants = {k: v if k == "axes" else np.asarray(v, "float32") for k, v in NORM_CONSTANTS.items()}
    model = make_model(chain.nodes, {"x": X}, ["y"], constants | {"zeros": np.array([0])})
    assert not {"LayerNormalization", "RMSNormalization"} & set(kinds(model))
    check_against_evaluator(model, {"x": X})


@pytest.mark.parametrize("spelling", ["Clip", "HardSigmoid"])
def test_hard_swish(spelling):
    chain = Chain()
    if spelling == "Clip":
        chain("Mul", chain("Mul", "x", chain("Clip", chain("Add", "x", "three"), "zero", "six")), "sixth")
    else:
        gate = chain("HardSigmoid", "x")
        chain.nodes[-1].attribute.extend([helper.make_attribute("alpha", 1 / 6), helper.make_attribute("beta", 0.5)])
        chain("Mul", gate, "x")
    model = norm_model(chain)
    assert kinds(model) == ["HardSwish"]
    assert check_against_evaluator(model, {"x": X}) == 0


def test_mish():
    chain = Chain()
    chain("Mul", "x", chain("Tanh", chain("Softplus", "x")))
    assert kinds(norm_model(chain)) == ["Mish"]


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
