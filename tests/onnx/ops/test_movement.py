import numpy as np
import pytest

from tests.helpers.onnx_models import check_against_evaluator, node_model, random_array

X = random_array((2, 3, 4, 1))


def ints(*values):
    return np.array(values, "int64")


@pytest.mark.parametrize("shape", [(6, 4), (0, -1), (-1,), (2, 0, 2, 2), (1, 2, 3, 4, 1)])
@pytest.mark.parametrize("is_constant", [True, False])
def test_reshape(shape, is_constant):
    model = node_model("Reshape", [X, ints(*shape)], constants={1} if is_constant else ())
    assert check_against_evaluator(*model) == 0


@pytest.mark.parametrize("axis", [0, 1, -1, 4])
def test_flatten(axis):
    assert check_against_evaluator(*node_model("Flatten", [X], axis=axis)) == 0


def test_squeeze_and_unsqueeze():
    assert check_against_evaluator(*node_model("Squeeze", [X])) == 0
    assert check_against_evaluator(*node_model("Squeeze", [X, ints(-1)])) == 0
    assert check_against_evaluator(*node_model("Unsqueeze", [X, ints(0, -1)])) == 0
    assert check_against_evaluator(*node_model("Unsqueeze", [X], opset=11, axes=[1])) == 0


@pytest.mark.parametrize("attributes", [{}, {"perm": [0, 2, 1, 3]}])
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_transpose(attributes, dtype):
    check_against_evaluator(*node_model("Transpose", [X.astype(dtype)], **attributes))


@pytest.mark.parametrize("axis", [1, -2])
def test_concat(axis):
    assert check_against_evaluator(*node_model("Concat", [X, X * 2, X + 1], axis=axis)) == 0


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_to_space_and_back(mode):
    assert (
        check_against_evaluator(*node_model("DepthToSpace", [random_array((2, 8, 3, 2))], blocksize=2, mode=mode)) == 0
    )
    assert check_against_evaluator(*node_model("SpaceToDepth", [random_array((2, 3, 4, 6))], blocksize=2)) == 0
