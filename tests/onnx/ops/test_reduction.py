import numpy as np
import pytest
from onnx import helper

import graphpool as gp
from tests.helpers.onnx_models import check_against_evaluator, node_model, random_array

X = np.abs(random_array((3, 4, 5))) + 0.1
KINDS = ["ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
         "ReduceLogSum", "ReduceLogSumExp"]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axes", [[1], [-1, 0], None])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_axes_as_an_input(kind, axes, keepdims):
    inputs = [X] if axes is None else [X, np.array(axes, "int64")]
    assert check_against_evaluator(*node_model(kind, inputs, keepdims=keepdims)) == 0


@pytest.mark.parametrize("kind", KINDS)
def test_axes_as_an_attribute(kind):
    assert check_against_evaluator(*node_model(kind, [X], opset=11, axes=[0, 2])) == 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("axes", [[1], [-1, 0], None])
def test_f64(kind, axes):
    x = X.astype("float64") - 0.5 * (kind in ("ReduceL1", "ReduceL2", "ReduceMean"))
    inputs = [x] if axes is None else [x, np.array(axes, "int64")]
    assert check_against_evaluator(*node_model(kind, inputs, keepdims=1)) == 0


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_a_mean_of_integers_is_cut_off_towards_zero(dtype):
    x = np.random.default_rng(0).integers(-100, 100, (3, 4, 5)).astype(dtype)
    assert check_against_evaluator(*node_model("ReduceMean", [x, np.array([0, 2], "int64")], keepdims=0)) == 0


def test_a_mean_of_f64_over_an_extent_that_varies_takes_one_compilation():
    model = node_model("ReduceMean", [X.astype("float64")], opset=13, axes=[0, 2])[0]
    for axis, dim in enumerate(model.graph.input[0].type.tensor_type.shape.dim):
        dim.dim_param = f"n{axis}"
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    for axis in range(3):
        model.graph.output[0].type.tensor_type.shape.dim.add().dim_param = f"m{axis}"
    with gp.onnx.load(model, fallback=False) as loaded:
        for shape in ((3, 4, 5), (7, 2, 9), (2, 6, 3)):
            x = random_array(shape).astype("float64")
            found = loaded.run({model.graph.input[0].name: x})[model.graph.output[0].name]
            np.testing.assert_allclose(found, x.mean((0, 2), keepdims=True), rtol=1e-12)
        assert loaded.stats().compilations == 1


def test_no_axes_may_mean_no_reduction():
    model = node_model("ReduceSum", [X, np.array([], "int64")], constants={1}, noop_with_empty_axes=1)
    assert check_against_evaluator(*model) == 0


@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", "ReduceL2"])
def test_a_reduction_of_nothing(kind):
    inputs = [np.zeros((2, 0, 4), "float32"), np.array([1], "int64")]
    assert check_against_evaluator(*node_model(kind, inputs)) == 0


@pytest.mark.parametrize("kind", ["ReduceMax", "ReduceMin"])
def test_extremes_of_truth_values(kind):
    assert check_against_evaluator(*node_model(kind, [X > 1, np.array([1], "int64")])) == 0


def test_a_sum_of_exponentials_does_not_overflow():
    assert check_against_evaluator(*node_model("ReduceLogSumExp", [X * 200])) == 0


@pytest.mark.parametrize("kind", ["ReduceLogSum", "ReduceLogSumExp"])
@pytest.mark.parametrize("constants", [(), (0,)])
def test_logarithms_of_integers_lose_their_fraction(kind, constants):
    x = np.array([[1, 2, 9], [40, 5, 3]])
    wanted = np.log((x if kind == "ReduceLogSum" else np.exp(x)).sum(1)).astype("int64")
    inputs = {} if constants else {"x0": x}
    model = node_model("Identity", [x], constants=constants)[0]
    model.graph.node[0].op_type = kind
    model.graph.node[0].attribute.extend([helper.make_attribute("axes", [1]), helper.make_attribute("keepdims", 0)])
    model.opset_import[0].version = 13
    with gp.onnx.load(model, fallback=False) as loaded:
        np.testing.assert_array_equal(loaded.run(inputs)["y0"], wanted)
