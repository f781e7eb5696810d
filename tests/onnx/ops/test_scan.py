import numpy as np
import pytest

import graphpool as gp
from tests.helpers.onnx_models import check_against_evaluator, node_model, random_array

X = random_array((3, 4, 5))


def ints(*values):
    return np.array(values, "int64")


@pytest.mark.parametrize("kind", ["ArgMax", "ArgMin"])
@pytest.mark.parametrize("attributes", [{}, {"axis": 1, "keepdims": 0}, {"axis": -1, "select_last_index": 1}])
def test_place_of_an_extreme(kind, attributes):
    assert check_against_evaluator(*node_model(kind, [np.round(X)], **attributes)) == 0


@pytest.mark.parametrize("attributes", [{}, {"exclusive": 1}, {"reverse": 1}, {"exclusive": 1, "reverse": 1}])
@pytest.mark.parametrize("dtype", ["float32", "int32", "float64"])
def test_running_sum(attributes, dtype):
    x = np.round(X * 4).astype(dtype)
    assert check_against_evaluator(*node_model("CumSum", [x, np.array(1)], constants={1}, **attributes)) == 0


@pytest.mark.parametrize("largest", [0, 1])
@pytest.mark.parametrize("axis", [0, -1])
def test_largest_elements(largest, axis):
    model = node_model("TopK", [X, ints(3)], noutputs=2, constants={1}, axis=axis, largest=largest)
    assert check_against_evaluator(*model) == 0


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_hardmax(axis):
    assert check_against_evaluator(*node_model("Hardmax", [np.round(X)], axis=axis)) == 0


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("constants", [(), (0,)])
def test_hardmax_of_old_opsets_takes_all_dimensions_from_the_axis_on(axis, constants):
    model, inputs = node_model("Hardmax", [X], constants=constants, opset=11, axis=axis)
    rows = X.reshape(int(np.prod(X.shape[:axis])), -1)
    wanted = (rows == rows.max(1, keepdims=True)).reshape(X.shape).astype("float32")
    with gp.onnx.load(model, fallback=False) as loaded:
        np.testing.assert_array_equal(loaded.run(inputs)["y0"], wanted)


def test_hardmax_of_nothing():
    model, inputs = node_model("Hardmax", [np.zeros((2, 0, 3), "float32")], opset=13, axis=0)
    with gp.onnx.load(model, fallback=False) as loaded:
        assert loaded.run(inputs)["y0"].shape == (2, 0, 3)
