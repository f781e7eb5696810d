import numpy as np
import pytest

import graphpool as gp
from tests.helpers.onnx_models import check_against_evaluator, node_model, random_array

SIZES = dict(zip("abcijkn", (2, 3, 4, 5, 6, 7, 3), strict=True))


@pytest.mark.parametrize("equation", [
    "ij->ji", "ij->j", "ijk->ki", "ij,jk->ik", "ij,jk", "aij,ajk->aik", "abij,abkj->abik", "ai,bi->ab", "i,j->ij",
    "aij,bjk->baik", "ij,jk,kn->in", "ai,ai->a", "aibj,bk->kaij", "a,b,c->cba", "ijk,ijk->",
])  # fmt: skip
def test_labels(equation):
    terms = equation.partition("->")[0].split(",")
    operands = [random_array([SIZES[label] for label in term], seed=k) for k, term in enumerate(terms)]
    assert check_against_evaluator(*node_model("Einsum", operands, equation=equation)) == 0


@pytest.mark.parametrize("equation", ["...ij,...jk->...ik", "...ij->...ji", "...ij,jk->...ik", "...i->..."])
def test_an_ellipsis(equation):
    terms = equation.partition("->")[0].split(",")
    operands = [
        random_array([2, 3] * ("..." in term) + [SIZES[label] for label in term.replace("...", "")], seed=k)
        for k, term in enumerate(terms)
    ]
    assert check_against_evaluator(*node_model("Einsum", operands, equation=equation)) == 0


def test_doubles_are_exact():
    operands = [random_array((3, 4), "float64"), random_array((4, 5), "float64", seed=1)]
    model, inputs = node_model("Einsum", operands, equation="ij,jk->ik")
    check_against_evaluator(model, inputs)


@pytest.mark.parametrize("equation", ["ii->i", "ii", "iji->ij", "iijj->ij", "iii->i", "aij,jjk->ik", "iki->"])
def test_diagonals(equation):
    terms = equation.partition("->")[0].split(",")
    operands = [random_array([SIZES[label] for label in term], seed=k) for k, term in enumerate(terms)]
    assert check_against_evaluator(*node_model("Einsum", operands, equation=equation)) == 0


def test_an_empty_diagonal():
    assert check_against_evaluator(*node_model("Einsum", [np.zeros((0, 0), "float32")], equation="ii->i")) == 0


def test_a_diagonal_of_a_matrix_that_is_not_square():
    model, _ = node_model("Einsum", [random_array((3, 3))], equation="ii->i")
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 4
    with pytest.raises(gp.GraphpoolError, match="the_Einsum"), gp.onnx.load(model) as loaded:
        loaded.run({"x0": random_array((3, 4))})
