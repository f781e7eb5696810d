import numpy as np
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

import graphpool as gp
from tests.helpers.onnx_models import assert_close, check_against_evaluator, node_model, random_array

X = random_array((2, 4, 9, 8))


@pytest.mark.parametrize("attributes", [
    {}, {"pads": [1, 0, 2, 1]}, {"strides": [2, 1]}, {"dilations": [2, 2], "pads": [2, 2, 2, 2]}, {"group": 2},
    {"group": 4}, {"auto_pad": "SAME_UPPER"}, {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, {"auto_pad": "VALID"},
])  # fmt: skip
@pytest.mark.parametrize("has_bias", [True, False])
def test_conv(attributes, has_bias):
    weights = random_array((8, 4 // attributes.get("group", 1), 3, 3), seed=1)
    inputs = [X, weights, random_array((8,), seed=2)] if has_bias else [X, weights]
    assert check_against_evaluator(*node_model("Conv", inputs, constants={1, 2}, **attributes)) == 0


@pytest.mark.parametrize("spatial", [1, 3])
def test_conv_in_other_dimensions(spatial):
    x, weights = random_array((2, 3) + (6,) * spatial), random_array((4, 3) + (3,) * spatial, seed=1)
    assert check_against_evaluator(*node_model("Conv", [x, weights], pads=[1] * 2 * spatial)) == 0


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "MaxPool", "AveragePool"])
def test_four_spatial_axes_go_to_the_reference_backend(kind):
    x, weights = random_array((1, 2, 3, 3, 3, 3)), random_array((2, 2, 2, 2, 2, 2), seed=1)
    is_pool = kind.endswith("Pool")
    model = node_model(kind, [x] if is_pool else [x, weights], **({"kernel_shape": [2] * 4} if is_pool else {}))
    assert check_against_evaluator(*model) > 0


@pytest.mark.parametrize("attributes", [
    {}, {"strides": [2, 3]}, {"pads": [1, 1, 0, 1]}, {"strides": [2, 2], "output_padding": [1, 1]},
    {"dilations": [2, 1]},
])  # fmt: skip
def test_conv_transpose(attributes):
    weights = random_array((4, 3, 3, 3), seed=1)
    assert check_against_evaluator(*node_model("ConvTranspose", [X, weights], **attributes)) == 0


def transpose_by_evaluator(x, weights, **attributes):
    model, inputs = node_model("ConvTranspose", [x, weights], **attributes)
    return ReferenceEvaluator(model).run(None, inputs)[0]


def test_groups_of_a_transposed_convolution_are_separate_ones():
    weights = random_array((4, 3, 3, 3), seed=1)
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], group=2)
    halves = [transpose_by_evaluator(X[:, k : k + 2], weights[k : k + 2]) for k in (0, 2)]
    assert_close(run_node(node, {"x": X, "w": weights}, 6), np.concatenate(halves, 1))


@pytest.mark.parametrize(("auto_pad", "pads"), [("NOTSET", [1, 1, 0, 0]), ("SAME_UPPER", [0, 0, 1, 1])])
def test_a_transposed_convolution_is_padded_to_a_wanted_shape(auto_pad, pads):
    weights = random_array((4, 3, 3, 3), seed=1)
    attributes = {"auto_pad": auto_pad, "output_shape": [18, 16], "strides": [2, 2]}
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    wanted = transpose_by_evaluator(X, weights, strides=[2, 2], pads=pads)
    assert_close(run_node(node, {"x": X, "w": weights}, 3), wanted)


def run_node(node, inputs, channels):
    """The node on graphpool alone: the evaluator fails on it."""
    infos = [helper.make_tensor_value_info(key, 1, value.shape) for key, value in inputs.items()]
    result = helper.make_tensor_value_info("y", 1, [2, channels, None, None])
    graph = helper.make_graph([node], "node", infos, [result])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    with gp.onnx.load(model, fallback=False) as loaded:
        return loaded.run(inputs)["y"]


@pytest.mark.parametrize("attributes", [{}, {"strides": [2, 1]}, {"dilations": [1, 2]}, {"pads": [1, 0, 0, 2]}])
def test_columns_become_an_image(attributes):
    image, block = (6, 7), (2, 3)
    strides, dilations = attributes.get("strides", [1, 1]), attributes.get("dilations", [1, 1])
    pads = attributes.get("pads", [0] * 4)
    counts = [
        (image[k] + pads[k] + pads[k + 2] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1 for k in range(2)
    ]
    columns = random_array((2, 3 * 6, int(np.prod(counts))))
    inputs = [columns, np.array(image, "int64"), np.array(block, "int64")]
    assert check_against_evaluator(*node_model("Col2Im", inputs, **attributes)) == 0
