import json
import re
from itertools import pairwise

import numpy as np
import pytest
from onnx import TensorProto, helper

import graphpool as gp
from graphpool.profile import footprint, trace, tracing
from graphpool.profile.picture import picture_run
from tests.cases.two_programs import INPUTS, two_programs
from tests.helpers.onnx_models import make_model
from tests.helpers.tower_model import share_always


def test_a_trace_has_one_track_a_stream(model, inputs, tmp_path):
    share_always(model, inputs)
    with trace() as recorded:
        for _ in range(3):
            model.run(inputs)
    recorded.save(tmp_path / "t.json")
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert {e["args"]["name"] for e in events if e["name"] == "thread_name"} == {"stream 0", "stream 1"}
    slices = [e for e in events if e["ph"] == "X"]
    assert {e["name"] for e in slices} == {"SoftMax", "Concat", "double"}
    assert {e["tid"] for e in slices} == {0, 1}
    assert min(e["ts"] for e in slices) == 0
    for track in (0, 1):  # what one stream does never overlaps
        spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in slices if e["tid"] == track)
        assert all(a[1] <= b[0] + 1e-3 for a, b in pairwise(spans))


def test_a_counter_tells_the_bytes_of_the_arena_in_use(model, inputs):
    form = model.specialise(inputs)
    with trace() as once:
        model.run(inputs)
    by_program = [e["args"]["bytes"] for e in once.events() if e["ph"] == "C"]
    peak = picture_run(form, once, (model.name, ""), 0, 0).needed_nbytes  # other runs overlap in other ways
    assert max(by_program) <= max(e["args"]["bytes"] for e in once.events() if e["ph"] == "C") == peak
    with trace() as recorded:
        for _ in range(3):
            model.run(inputs)
    recorded.name_ops(form)
    by_model = [e for e in recorded.events() if e["ph"] == "C"]
    assert {(e["name"], e["pid"]) for e in by_model} == {("arena in use", 0)}
    assert sum(e["args"]["bytes"] == 0 for e in by_model) >= 3  # between runs nothing is


def test_counters_of_two_programs_count_what_lies_between_them():
    with gp.Engine(threads=2) as engine, gp.onnx.load(two_programs(), engine=engine) as loaded:
        needed = footprint(loaded, INPUTS).needed_nbytes
        with trace() as recorded:
            loaded.run(INPUTS)
        alone = max(recorded.footprint(run).peak_nbytes for run in range(len(recorded.runs())))
        recorded.name_ops(loaded.specialise(INPUTS))
        counted = [e["args"]["bytes"] for e in recorded.events() if e["ph"] == "C"]
    assert alone < max(counted) == needed
    assert counted[-1] == 0


def test_runs_are_traced_whole_however_many_pieces_they_have(model, inputs, monkeypatch):
    share_always(model, inputs)
    monkeypatch.setattr(tracing, "_PIECES", 1)
    monkeypatch.setattr(tracing, "trace", lambda capacity: trace(max(capacity // 8, 1)))
    recorded = tracing.trace_runs(model, inputs, 3)
    assert recorded.dropped == 0
    assert [len(steps) for steps in recorded.runs()] == [7, 7, 7]


def test_steps_and_runs(model, inputs):
    with trace() as recorded:
        for _ in range(2):
            model.run(inputs)
    assert [len(steps) for steps in recorded.runs()] == [7, 7]
    assert recorded.runs(program=-5) == []
    host = [step for step in recorded.steps if step.program == 0]
    assert [(step.name, step.kind) for step in host] == [("double", "host function")] * 2
    assert {step.kind for step in recorded.runs()[0]} == {"SoftMax", "Concat"}
    assert all("f32_softmax" in step.name for step in recorded.steps if step.kind == "SoftMax")
    assert repr(recorded) == "Trace(2 runs, 16 steps)"


def test_a_trace_is_read_after_its_block(model, inputs):
    recorded = trace()
    assert repr(recorded) == "Trace(not begun)"
    with recorded:
        assert repr(recorded) == "Trace(on)"
        with pytest.raises(gp.StateError, match="has not ended"):
            _ = recorded.steps
        with pytest.raises(gp.StateError, match="on already"), trace():
            pass
    assert recorded.steps == ()
    assert recorded.events() == []
    with pytest.raises(gp.StateError, match="has ended"), recorded:
        pass
    with pytest.raises(gp.InvalidArgumentError, match="run -1 was not traced"):
        recorded.plot()


def test_the_block_s_error_ends_the_trace(model, inputs):
    recorded = trace()
    with pytest.raises(ZeroDivisionError):
        _fail(recorded, model, inputs)
    assert len(recorded.steps) == 8


def _fail(recorded, model, inputs):
    with recorded:
        model.run(inputs)
        raise ZeroDivisionError


def test_plot_has_a_row_a_stream(model, inputs):
    pytest.importorskip("matplotlib")
    share_always(model, inputs)
    with trace() as recorded:
        model.run(inputs)
        model.run(inputs)
    [axes] = recorded.plot().axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["stream 0", "stream 1"]
    assert re.fullmatch(r"run 2 of 2: [\d.]+ [µm]s", axes.get_title())
    assert re.fullmatch(r"time since the first step \([µm]s\)", axes.get_xlabel())


def test_steps_have_the_names_of_the_ops_that_they_compute():
    rng = np.random.default_rng(0)
    weights = {f"w{k}": rng.standard_normal((8, 8), np.float32) for k in range(3)}
    nodes = [
        node
        for k in range(3)
        for node in (
            helper.make_node("MatMul", [f"x{k}", f"w{k}"], [f"m{k}"], f"product {k}"),
            helper.make_node("BitCast", [f"m{k}"], [f"x{k + 1}"], f"cast {k}", to=TensorProto.FLOAT),  # on the host
        )
    ]
    x = {"x0": rng.standard_normal((4, 8), np.float32)}
    with gp.onnx.load(make_model(nodes, x, ["x3"], weights, opset=26), threads=1) as loaded:
        loaded.run(x)
        with trace() as recorded:
            loaded.run(x)
            loaded.run(x)
        recorded.name_ops(loaded.specialise())
    computed = [step for step in recorded.steps if step.program]
    assert len({step.program for step in computed}) == 1  # which three partitions share
    assert [step.op for step in computed] == [f"product {k}" for k in range(3)] * 2
    names = {event["name"] for event in recorded.events() if event["ph"] == "X"}
    assert names == {f"{what} {k}" for what in ("product", "cast") for k in range(3)}


def test_host_functions_have_the_names_and_ops_of_their_nodes():
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "in_front"),
        helper.make_node("Unique", ["r"], ["u"], "kinds", axis=0),
        helper.make_node("Neg", ["u"], ["y"], "behind"),
    ]
    x = np.array([[3, -1], [3, 2], [3, -1]], np.float32)
    with gp.onnx.load(make_model(nodes, {"x": x}, ["y"]).SerializeToString(), threads=1) as model:
        model.run({"x": x})
        with trace() as recorded:
            model.run({"x": x})
        for _ in range(2):
            recorded.name_ops(model.specialise({"x": x}))
    [host] = [step for step in recorded.steps if step.program == 0]
    assert (host.op, host.kind, host.name) == ("kinds", "Unique", "host function")
    assert {step.op for step in recorded.steps} == {"in_front", "kinds", "behind"}
    [event] = [event for event in recorded.events() if event["name"] == "kinds"]
    assert event["args"]["kind"] == "Unique"
