"""Inception V3 on two streams: the same bytes as on one, in at most half as much memory again."""

import importlib.util
import sys
from pathlib import Path

import pytest

import graphpool as gp
from graphpool.profile import random_inputs
from graphpool.runtime.scheduling import POLICIES

PEERS = Path(__file__).resolve().parents[3] / "shared" / "peers" / "models.py"


@pytest.fixture(scope="module")
def inception():
    pytest.importorskip("onnx")
    if not PEERS.exists():
        pytest.skip(f"there is no {PEERS}, which describes the network")
    spec = importlib.util.spec_from_file_location("peer_models", PEERS)
    module = sys.modules["peer_models"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
        net, _ = module.inception_v3()
        return net.model()
    finally:
        del sys.modules["peer_models"]


@pytest.fixture(scope="module")
def expected(inception):
    with gp.onnx.load(inception, threads=1, schedule="sequential") as model:
        return model.run(random_inputs(model))["logits"].tobytes()


@pytest.mark.parametrize("policy", POLICIES)
def test_two_streams(inception, expected, policy):
    with gp.onnx.load(inception, threads=2, schedule=policy, streams=2) as model:
        inputs = random_inputs(model)
        assert model.run(inputs)["logits"].tobytes() == expected
        stats = model.stats()
        assert stats.largest_arena_nbytes <= 1.5 * stats.sequential_arena_nbytes
        if policy not in ("sequential", "auto"):
            assert stats.streams == 2
