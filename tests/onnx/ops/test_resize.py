import numpy as np
import pytest

from tests.helpers.onnx_models import check_against_evaluator, node_model, random_array

X = random_array((1, 2, 4, 6))
EMPTY = np.array([], "float32")


def resize(scales=None, sizes=None, **attributes):
    inputs = [X, EMPTY, EMPTY if scales is None else np.array(scales, "float32")]
    if sizes is not None:
        inputs = [X, None, None, np.array(sizes, "int64")]
    return node_model("Resize", inputs, constants={1, 2, 3}, opset=19, **attributes)


@pytest.mark.parametrize("size", [{"scales": [1, 1, 2, 3]}, {"sizes": [1, 2, 8, 9]}, {"scales": [1, 1, 0.5, 0.5]}])
def test_linear(size):
    assert check_against_evaluator(*resize(mode="linear", **size)) == 0


def test_aligned_corners():
    coordinates = {"coordinate_transformation_mode": "align_corners"}
    assert check_against_evaluator(*resize(mode="linear", sizes=[1, 2, 7, 11], **coordinates)) == 0


@pytest.mark.parametrize(("attributes", "hosted"), [
    ({}, 0),
    ({"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}, 0),
    ({"coordinate_transformation_mode": "asymmetric", "nearest_mode": "ceil"}, 1),
])  # fmt: skip
def test_nearest(attributes, hosted):
    assert check_against_evaluator(*resize(scales=[1, 1, 2, 3], mode="nearest", **attributes)) == hosted


def test_ties_between_two_elements_are_left_to_the_host():
    assert check_against_evaluator(*resize(scales=[1, 1, 0.5, 0.5], mode="nearest")) == 1


def test_cubic_is_left_to_the_host():
    assert check_against_evaluator(*resize(scales=[1, 1, 2, 2], mode="cubic")) == 1


def test_upsample():
    scales = np.array([1, 1, 2, 3], "float32")
    assert check_against_evaluator(*node_model("Upsample", [X, scales], constants={1}, opset=9)) == 0
