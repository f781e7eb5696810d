"""A model on two streams, and its inputs."""

import pytest

import graphpool as gp
from graphpool.profile import random_inputs
from tests.helpers.tower_model import tower_model


@pytest.fixture
def model():
    with gp.Engine(threads=2) as engine, tower_model(engine, schedule="list", streams=2) as model:
        yield model


@pytest.fixture
def inputs(model):
    return random_inputs(model)
