import pytest

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


def test_a_diagonal_is_left_to_the_host():
    assert check_against_evaluator(*node_model("Einsum", [random_array((3, 3))], equation="ii->i")) == 1
