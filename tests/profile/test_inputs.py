import numpy as np
import pytest

import graphpool as gp
from graphpool.profile import random_inputs
from graphpool.runtime import Model
from graphpool.runtime.model_port import ModelPort
from graphpool.typing import DataType
from tests.helpers.tower_model import towers


def test_a_path_is_no_model():
    for function in (gp.profile.footprint, gp.profile.profile_ops, gp.profile.explain):
        with pytest.raises(gp.InvalidArgumentError, match=r"model; accepted: a graphpool\.Model; got: str"):
            function("model.onnx")


def test_random_inputs_name_what_has_no_shape():
    ports = ModelPort("x", DataType.F32, (None, 4)), ModelPort("y", DataType.F32, (None, 4))
    with gp.Engine(threads=1) as engine, Model(ports[:1], ports[1:], towers, engine) as model:
        assert random_inputs(model, {"x": (3, 4)})["x"].shape == (3, 4)
        with pytest.raises(gp.InvalidArgumentError, match="'x' has no fixed shape") as caught:
            random_inputs(model)
    assert caught.value.input_name == "x"


@pytest.mark.parametrize("shape", [3, "3x4", (3, -4), (3, 4.0)])
def test_what_is_no_shape_is_named(shape):
    ports = ModelPort("x", DataType.F32, (None, 4)), ModelPort("y", DataType.F32, (None, 4))
    with gp.Engine(threads=1) as engine, Model(ports[:1], ports[1:], towers, engine) as model:
        assert random_inputs(model, {"x": np.array([3, 4])})["x"].shape == (3, 4)
        with pytest.raises(gp.InvalidArgumentError, match="shapes: input 'x'; accepted: a sequence of ints"):
            random_inputs(model, {"x": shape})
        with pytest.raises(gp.InvalidArgumentError, match="shapes; accepted: a mapping"):
            random_inputs(model, shape)


def test_wrong_arguments_of_profiles_are_named(model, inputs):
    with pytest.raises(gp.InvalidArgumentError, match="runs; accepted: an int of at least 1; got: 0"):
        gp.profile.explain(model, inputs, runs=0)
    with pytest.raises(gp.InvalidArgumentError, match="capacity; accepted: an int of at least 1; got: None"):
        gp.profile.trace(None)
    with pytest.raises(gp.InvalidArgumentError, match="beside; accepted: an instance of FootprintPicture"):
        gp.profile.footprint(model, inputs).html(beside="other.html")
