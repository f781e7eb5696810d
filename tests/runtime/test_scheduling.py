import pickle

import numpy as np
import pytest

import graphpool as gp
from graphpool import config
from graphpool.runtime._streams import MAX_STREAMS
from graphpool.runtime.costs import cost_key, program_key, step_costs
from graphpool.runtime.machine import MEMORY_BANDWIDTH
from graphpool.runtime.scheduling import POLICIES, ScheduleOptions, make_schedule, parse_options
from graphpool.schedule import simulate, verify
from tests.cases.schedule_graphs import fork_join, random_graph
from tests.helpers.tower_model import tower_model


@pytest.fixture
def variable(monkeypatch):
    def put(text):
        monkeypatch.setenv("GRAPHPOOL_STREAM_SCHEDULE", text)
        monkeypatch.delitem(config._values, "stream_schedule", raising=False)

    yield put
    config._values.pop("stream_schedule", None)


def test_arguments_beat_the_variable_and_the_variable_beats_the_default(variable, monkeypatch):
    monkeypatch.delenv("GRAPHPOOL_STREAM_SCHEDULE", raising=False)
    config._values.pop("stream_schedule", None)
    assert parse_options(None, None) == ScheduleOptions("auto", 2)
    variable("list:4")
    assert parse_options(None, None) == ScheduleOptions("list", 4)
    assert parse_options("ios", 3) == ScheduleOptions("ios", 3)
    variable("nimble")
    assert parse_options(None, None) == ScheduleOptions("nimble", 2)


@pytest.mark.parametrize(
    "text", ["best", "list:0", "list:-1", "list:x", "list:", "list:2,3", "list:2:3", "list 2", ":2", "LIST"]
)
def test_a_malformed_variable_is_refused(variable, text):
    variable(text)
    with pytest.raises(gp.InvalidArgumentError, match="GRAPHPOOL_STREAM_SCHEDULE"):
        parse_options(None, None)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("seed", range(10))
def test_schedules_are_valid_and_keep_to_the_threads(policy, seed):
    graph = random_graph(seed)
    for streams, threads in ((1, 4), (2, 2), (4, 3), (3, 8)):
        schedule = make_schedule(graph, ScheduleOptions(policy, streams), threads, [1.0] * graph.num_nodes)
        verify(schedule)
        assert len(schedule.stream_ids) <= min(streams, threads)


def test_there_are_no_more_streams_than_programs_take():
    graph = fork_join(100, 1)
    for policy in POLICIES:
        schedule = make_schedule(graph, ScheduleOptions(policy, 100), 128, [1.0] * graph.num_nodes)
        assert len(schedule.stream_ids) <= MAX_STREAMS
    assert ScheduleOptions("list", 100).streams_on(128) == MAX_STREAMS


def test_auto_takes_streams_where_threads_cannot_help():
    graph = fork_join(4, 4, (1e-4,) * 18)
    options = ScheduleOptions("auto", 4)
    assert len(make_schedule(graph, options, 4, [1.0] * 18).stream_ids) == 4
    assert len(make_schedule(graph, options, 4, [4.0] * 18).stream_ids) == 1
    assert len(make_schedule(graph, options, 1, [1.0] * 18).stream_ids) == 1


def test_auto_keeps_to_one_stream_where_main_memory_is_what_takes_time():
    graph = fork_join(4, 4, (1e-3,) * 18)
    options, alone = ScheduleOptions("auto", 4), [1.0] * 18
    assert len(make_schedule(graph, options, 4, alone, traffic=[0.0] * 18).stream_ids) == 4
    assert len(make_schedule(graph, options, 4, alone, traffic=[1e-3 * MEMORY_BANDWIDTH] * 18).stream_ids) == 1


def test_auto_keeps_to_one_stream_when_waiting_costs_more_than_it_gains():
    graph = fork_join(2, 1, (1e-8,) * 4)
    assert len(make_schedule(graph, ScheduleOptions("auto", 2), 2, [1.0] * 4).stream_ids) == 1


@pytest.mark.parametrize("seed", range(30))
def test_auto_is_never_simulated_to_be_slower_than_one_stream(seed):
    graph = random_graph(seed)
    graph = graph.with_costs([cost * 1e-5 for cost in graph.costs])
    speedups = [1.0 + v % 3 / 2 for v in range(graph.num_nodes)]
    schedule = make_schedule(graph, ScheduleOptions("auto", 2), 2, speedups)
    alone = sum(cost / speedup for cost, speedup in zip(graph.costs, speedups, strict=True))
    simulated = simulate(schedule, event_cost=1e-6, threads=2, speedups=speedups).makespan
    assert simulated <= alone * (1 + 1e-9)


def test_new_costs_make_new_programs():
    options = ScheduleOptions("auto", 2)
    before = options.key
    step_costs().put(cost_key("a step that nobody has", 1), 1e-6)
    assert options.key != before
    assert step_costs().get(cost_key("a step that nobody has", 1)) == 1e-6
    assert ScheduleOptions("auto", 1).key == ScheduleOptions().key == ()


def test_measured_programs_decide_for_auto_whatever_the_simulation_says():
    graph = fork_join(4, 4, (1e-4,) * 18)
    options, speedups = ScheduleOptions("auto", 2), [1.0] * 18

    def measure(**seconds):
        for policy, value in seconds.items():
            step_costs().put(program_key("a program", policy, 2, 2), value)
        return make_schedule(graph, options, 2, speedups, "a program")

    assert len(measure().stream_ids) == 2  # nothing was measured, and two streams promise much
    slower = measure(sequential=1.0, list=1.1, ios=0.99)
    assert (slower.policy, len(slower.stream_ids)) == ("auto:sequential", 1)
    faster = measure(ios=0.9)
    assert (faster.policy, len(faster.stream_ids)) == ("auto:ios", 2)
    assert faster.details["candidates"] == {"sequential": 1.0, "list": 1.1, "ios": 0.9}
    assert make_schedule(graph, options, 2, speedups, "another").policy != "auto:ios"


def test_a_model_s_pickle_keeps_its_schedule():
    with gp.Engine(threads=2) as engine, tower_model(engine, schedule="nimble", streams=2) as model:
        copy = pickle.loads(pickle.dumps(model))
    with copy.engine, copy:
        assert copy.options == ScheduleOptions("nimble", 2)
        assert copy.run({"x": np.ones((96, 64), np.float32)})["z"].shape == (96, 192)
        assert copy.stats().streams == 2
