import numpy as np
import pytest

from tests.helpers.onnx_models import check_against_evaluator, node_model, random_array

X = random_array((3, 4, 5)) * 4


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
@pytest.mark.parametrize("is_constant", [True, False])
@pytest.mark.parametrize("per_channel", [True, False])
def test_quantize_and_dequantize(dtype, is_constant, per_channel):
    shape = (4,) if per_channel else ()
    scale = np.abs(random_array(shape, seed=1)).astype("float32") + np.float32(0.05)
    point = random_array(shape, dtype, seed=2)
    constants = {1, 2} if is_constant else ()
    assert check_against_evaluator(*node_model("QuantizeLinear", [X, scale, point], constants=constants, axis=1)) == 0
    q = random_array((3, 4, 5), dtype, seed=3)
    assert check_against_evaluator(*node_model("DequantizeLinear", [q, scale, point], constants=constants, axis=1)) == 0


def test_the_zero_point_may_be_left_out():
    assert check_against_evaluator(*node_model("QuantizeLinear", [np.abs(X), np.float32(0.1)], constants={1})) == 0


def test_a_quantised_weight_is_not_folded():
    q = random_array((6, 5), "int8")
    model, _ = node_model("DequantizeLinear", [q, np.float32(0.5)], constants={0, 1})
    assert check_against_evaluator(model, {}) == 0


def test_blocks_are_left_to_the_host():
    scale = np.abs(random_array((3, 2, 5), seed=1)) + 0.1
    model = node_model("QuantizeLinear", [X, scale, np.zeros((3, 2, 5), "int8")], axis=1, block_size=2)
    assert check_against_evaluator(*model) == 1
