import numpy as np
import pytest

from tests.helpers.onnx_models import check_against_evaluator, node_model, random_array


@pytest.mark.parametrize("shapes", [
    ((3, 4), (4, 5)), ((2, 3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)),
    ((2, 1, 3, 4), (5, 4, 2)),
])  # fmt: skip
@pytest.mark.parametrize("is_constant", [True, False])
def test_matmul(shapes, is_constant):
    a, b = (random_array(shape, seed=k) for k, shape in enumerate(shapes))
    assert check_against_evaluator(*node_model("MatMul", [a, b], constants={1} if is_constant else ())) == 0


@pytest.mark.parametrize("attributes", [{}, {"alpha": 0.5}, {"beta": 2.0}, {"alpha": 2.0, "beta": 0.0}])
@pytest.mark.parametrize("addend", [None, (5,), (3, 1), (3, 5), ()])
@pytest.mark.parametrize("transposed", [(0, 0), (1, 0), (0, 1), (1, 1)])
def test_gemm(attributes, addend, transposed):
    a = random_array((4, 3) if transposed[0] else (3, 4))
    b = random_array((5, 4) if transposed[1] else (4, 5), seed=1)
    inputs = [a, b] if addend is None else [a, b, random_array(addend, seed=2)]
    model = node_model("Gemm", inputs, constants={1, 2}, transA=transposed[0], transB=transposed[1], **attributes)
    assert check_against_evaluator(*model) == 0


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("shapes", [
    ((3, 4), (4, 5)), ((4,), (2, 4, 5)), ((2, 3, 4), (4,)), ((4,), (4,)), ((3, 0), (0, 5)), ((2, 1, 3, 4), (5, 4, 2)),
])  # fmt: skip
def test_integers_wrap_around(dtype, shapes):
    a, b = (np.random.default_rng(k).integers(0, 2**31, shape).astype(dtype) for k, shape in enumerate(shapes))
    assert check_against_evaluator(*node_model("MatMul", [a, b])) == 0


def test_many_products_of_integers_are_left_to_the_host():
    a, b = np.ones((200, 200), np.int64), np.ones((200, 200), np.int64)
    assert check_against_evaluator(*node_model("MatMul", [a, b])) == 1


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (2, 3, 3, 3), (2, 4, 4)])
def test_determinants(dtype, shape):
    assert check_against_evaluator(*node_model("Det", [random_array(shape, dtype)])) == 0
