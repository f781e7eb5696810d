"""Stages measured as wholes: which are, what comes of it, and that nothing is measured twice."""

import time

import numpy as np
import pytest

import graphpool as gp
from graphpool.profile import profile_ops
from graphpool.profile.costs import measure_stages
from graphpool.runtime.costs import stage_latencies
from graphpool.runtime.scheduling import SEQUENTIAL, ScheduleOptions
from tests.helpers.tower_model import tower_model

FAR_S = 1e9
IOS = ScheduleOptions("ios", 2)


@pytest.fixture
def compiled(model, inputs):
    [compiled] = model.specialise(inputs).compiled
    return compiled


def test_the_best_sequence_holds_only_stages_that_were_measured(compiled):
    count = measure_stages(compiled, IOS, 2, 2, FAR_S)
    assert count == len(stage_latencies()) > 0
    assert measure_stages(compiled, IOS, 2, 2, FAR_S) == 0  # all that matters is known


def test_nothing_is_begun_behind_the_deadline(compiled):
    assert measure_stages(compiled, IOS, 2, 2, time.monotonic()) == 0
    assert len(stage_latencies()) == 0


def test_stages_are_of_no_interest_to_one_stream(compiled):
    for options, threads in ((SEQUENTIAL, 2), (IOS, 1), (ScheduleOptions("list", 2), 2)):
        assert measure_stages(compiled, options, threads, 2, FAR_S) == 0


def test_profile_ops_measures_the_stages_of_ios(inputs):
    with gp.Engine(threads=2) as engine, tower_model(engine, schedule="ios", streams=2) as model:
        expected = model.run(inputs)["z"]
        profile_ops(model, repeats=2)
        assert len(stage_latencies()) > 0
        np.testing.assert_array_equal(model.run(inputs)["z"], expected)
        version = stage_latencies().version
        profile_ops(model, repeats=2, timeout_s=0)
        assert stage_latencies().version == version


def test_measured_stages_come_back_from_disk(compiled, tmp_path, monkeypatch):
    from graphpool import config

    monkeypatch.setitem(config._values, "step_costs", str(tmp_path / "costs.json"))
    stage_latencies.cache_clear()
    measure_stages(compiled, IOS, 2, 2, FAR_S)
    stage_latencies().save()
    assert [path.name for path in tmp_path.iterdir()] == ["costs.stages.json"]
    stage_latencies.cache_clear()
    assert len(stage_latencies()) > 0
    assert measure_stages(compiled, IOS, 2, 2, FAR_S) == 0


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), float("inf"), "1"])
def test_a_timeout_is_a_time(model, timeout_s):
    with pytest.raises(gp.InvalidArgumentError, match="timeout_s"):
        profile_ops(model, timeout_s=timeout_s)
