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
