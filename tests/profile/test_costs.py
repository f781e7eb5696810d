import numpy as np
import onnx
import pytest

import graphpool as gp
from graphpool.profile import profile_ops
from graphpool.runtime.costs import cost_key, step_costs
from tests.helpers.onnx_models import make_model
from tests.helpers.tower_model import tower_model


def test_profile_ops_measures_each_distinct_step_and_lets_schedules_know(model, inputs):
    before = model.run(inputs)["z"]
    version = step_costs().version
    profile = profile_ops(model, repeats=2)
    assert sorted(op.kind for op in profile.ops) == ["Concat", "SoftMax"]
    for op in profile.ops:
        assert set(op.seconds) == {1, 2}
        assert all(step_costs().get(cost_key(op.signature, threads)) == s for threads, s in op.seconds.items())
    assert step_costs().version > version
    assert model.stats().forms == 0  # the next run is compiled by the new costs
    np.testing.assert_array_equal(model.run(inputs)["z"], before)
    [compiled] = model.specialise(inputs).compiled
    measured = {op.kind: op.seconds[1] for op in profile.ops}
    graph = compiled.primitive.details.schedule.graph
    assert all(cost == measured[name.split()[1]] for name, cost in zip(graph.names, graph.costs, strict=True))
    assert "us on 2" in str(profile)


def test_costs_name_the_nodes_that_they_are_of():
    nodes = [
        onnx.helper.make_node("Softmax", ["x"], ["a"], "first"),
        onnx.helper.make_node("Softmax", ["a"], ["b"], "second"),
        onnx.helper.make_node("Transpose", ["b"], ["y"], "turned", perm=[1, 0]),
    ]
    graph = make_model(nodes, {"x": np.zeros((64, 64), np.float32)}, ["y"])
    with gp.onnx.load(graph.SerializeToString(), threads=1) as model:
        profile = profile_ops(model, repeats=2)
    softmax = next(op for op in profile.ops if op.kind == "SoftMax")
    assert softmax.ops[0] == "first"
    assert {name for op in profile.ops for name in op.ops} == {"first", "second", "turned"}
    lines = str(profile).splitlines()
    assert all(any(op.ops[0] in line for line in lines) for op in profile.ops)
    assert any(line.endswith("first (+1)") for line in lines) == (len(softmax.ops) == 2)


def test_measured_costs_come_back_from_disk(model, inputs, tmp_path, monkeypatch):
    from graphpool.schedule.latency import LatencyCache

    store = LatencyCache(tmp_path / "costs.json")
    monkeypatch.setattr("graphpool.profile.costs.step_costs", lambda: store)
    profile = profile_ops(model, repeats=1, threads=1)
    again = LatencyCache(tmp_path / "costs.json")
    assert all(again.get(cost_key(op.signature, 1)) == op.seconds[1] for op in profile.ops)


@pytest.mark.parametrize("arguments", [{"threads": 0}, {"repeats": 0}, {"repeats": True}, {"threads": "two"}])
def test_profile_ops_refuses_what_is_no_count(model, arguments):
    with pytest.raises(gp.InvalidArgumentError, match=next(iter(arguments))):
        profile_ops(model, **arguments)


def test_auto_takes_what_was_measured_to_be_fastest(inputs):
    with gp.Engine(threads=2) as engine, tower_model(engine, schedule="auto", streams=2) as model:
        expected = model.run(inputs)["z"]
        profile_ops(model, repeats=2)
        np.testing.assert_array_equal(model.run(inputs)["z"], expected)
        [compiled] = model.specialise(inputs).compiled
        measured = compiled.schedule.details["candidates"]
        assert set(measured) == {"sequential", "wavefront", "asap", "nimble", "list", "ios"}
        choice = compiled.schedule.policy.removeprefix("auto:")
        assert measured[choice] <= measured["sequential"]
        assert choice == "sequential" or measured[choice] == min(measured.values())
        assert (compiled.program.streams is None) == (len(compiled.schedule.streams) == 1)  # ios may want one too


def test_profile_ops_measures_at_given_sizes_what_serves_others_too():
    """Each step that the next run takes at these sizes is scheduled by what was measured."""
    nodes = [
        onnx.helper.make_node("Softmax", ["x"], ["a"]),
        onnx.helper.make_node("Softmax", ["x"], ["b"], axis=0),
        onnx.helper.make_node("Concat", ["a", "b"], ["y"], axis=1),
    ]
    x = np.random.default_rng(0).standard_normal((40, 700), np.float32)
    source = make_model(nodes, {"x": x}, ["y"], shapes={"x": ["rows", "columns"]})
    with gp.Engine(threads=2) as engine, gp.onnx.load(source, engine=engine, schedule="list", streams=2) as model:
        expected = [model.run({"x": part})["y"] for part in (x, x[:13])]
        profile = profile_ops(model, {"x": x}, repeats=2)
        [compiled] = model.specialise({"x": x}).compiled
        graph = compiled.primitive.details.schedule.graph
        assert len(graph.costs) == 3
        assert set(graph.costs) <= {op.seconds[1] for op in profile.ops}
        for part, y in zip((x, x[:13]), expected, strict=True):
            np.testing.assert_array_equal(model.run({"x": part})["y"], y)
