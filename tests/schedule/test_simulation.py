import itertools
import math
import random

import pytest

from graphpool.errors import InvalidArgumentError, ScheduleError
from graphpool.schedule import (
    DependencyGraph,
    Run,
    Schedule,
    SetStream,
    StreamBarrier,
    asap,
    list_schedule,
    nimble,
    sequential,
    simulate,
    wavefront,
)
from graphpool.schedule.simulation import roofline_cost
from tests.cases.schedule_graphs import block, fork_join, random_graph

FORK = fork_join(2, 1, (1, 3, 5, 2))


def test_start_end_and_streams_of_a_fork_join():
    result = simulate(list_schedule(FORK))
    assert result.start == {0: 0, 1: 1, 2: 1, 3: 6}
    assert result.end == {0: 1, 1: 4, 2: 6, 3: 8}
    assert result.makespan == 8
    assert result.streams == {0: [((0,), 0, 1), ((2,), 1, 6), ((3,), 6, 8)], 1: [((1,), 1, 4)]}
    assert result.busy == {0: 8, 1: 3}
    assert "makespan=8, 2 streams, 69% busy" in repr(result)


def test_costs_replace_those_of_the_graph():
    assert simulate(sequential(FORK), [1, 1, 1, 1]).makespan == 4


def test_an_event_costs_where_streams_meet_only():
    assert simulate(sequential(FORK), event_cost=10).makespan == 11
    result = simulate(list_schedule(FORK), event_cost=0.5)
    assert result.start == {0: 0, 1: 1.5, 2: 1, 3: 6}
    assert simulate(list_schedule(FORK), event_cost=10).makespan == 26  # 1 + 10 + 3 + 10 + 2


def test_a_barrier_costs_once_and_nothing_on_one_stream():
    graph = DependencyGraph([(0, 2), (1, 2)], [4, 1, 1])
    two = [SetStream(0, 0), Run(0), SetStream(0, 1), Run(1), StreamBarrier(), SetStream(0, 0), Run(2)]
    assert simulate(Schedule(graph, two), event_cost=0.25).makespan == 5.25
    one = [Run(0), Run(1), StreamBarrier(), Run(2)]
    assert simulate(Schedule(graph, one), event_cost=0.25).makespan == 6


@pytest.mark.parametrize("policy", [asap, nimble])
def test_streams_to_spare_give_the_critical_path(policy):
    for seed in range(300):
        graph = random_graph(seed)
        rng = random.Random(seed)
        whole = graph.with_costs([rng.randint(0, 10) for _ in range(graph.num_nodes)])
        assert simulate(policy(whole)).makespan == whole.critical_path


def test_nothing_overlaps_on_a_stream_and_producers_end_first():
    for seed in range(60):
        graph = random_graph(seed)
        result = simulate(list_schedule(graph, 3), event_cost=0.1)
        for calls in result.streams.values():
            assert all(a[2] <= b[1] for a, b in itertools.pairwise(calls))
        assert all(result.end[u] <= result.start[v] for u, v in graph.edges)


def test_bandwidth_slows_calls_that_share_it():
    graph = DependencyGraph([], [1, 1], num_nodes=2)
    schedule = list_schedule(graph)
    assert simulate(schedule, nbytes=[10, 10], bandwidth=20).makespan == 1
    assert simulate(schedule, nbytes=[10, 10], bandwidth=10).makespan == pytest.approx(2)
    assert simulate(schedule, nbytes=[10, 0], bandwidth=10).makespan == pytest.approx(1)
    assert simulate(schedule, nbytes=[10, 0], bandwidth=5).end == pytest.approx({0: 2, 1: 1})


def test_bandwidth_that_is_freed_is_used():
    graph = DependencyGraph([], [1, 3], num_nodes=2)  # both want 10 bytes a unit, together they get 10
    result = simulate(list_schedule(graph), nbytes=[10, 30], bandwidth=10)
    assert result.end == pytest.approx({0: 2, 1: 4})  # half speed until 2, then 2 of 3 units left alone


def test_shares_go_to_those_who_need_them():
    graph = DependencyGraph([], [1, 1, 1], num_nodes=3)  # demands 2, 9, 9 of 12: shares 2, 5, 5
    result = simulate(list_schedule(graph, 3), nbytes=[2, 9, 9], bandwidth=12)
    assert result.end[0] == pytest.approx(1)
    assert result.end[1] == result.end[2] == pytest.approx(1 + (1 - 5 / 9) / (6 / 9))


def test_bandwidth_conserves_bytes():
    for seed in range(40):
        graph = random_graph(seed)
        rng = random.Random(seed)
        nbytes = [rng.randint(0, 50) for _ in range(graph.num_nodes)]
        for policy in (asap, wavefront, list_schedule):
            free, shared = simulate(policy(graph)), simulate(policy(graph), nbytes=nbytes, bandwidth=10)
            assert shared.makespan >= max(free.makespan, sum(nbytes) / 10) * (1 - 1e-9)
            assert all(shared.end[v] - shared.start[v] >= graph.costs[v] * (1 - 1e-9) for v in graph.nodes)


def test_roofline_takes_the_slower_of_computing_and_moving():
    assert roofline_cost(100, 1, peak_flops=10, bandwidth=1) == 10
    assert roofline_cost(100, 50, peak_flops=10, bandwidth=1) == 50
    assert roofline_cost(0, 0, peak_flops=1, bandwidth=1) == 0


@pytest.mark.parametrize("kwargs", [{"flops": -1}, {"nbytes": math.nan}, {"peak_flops": 0}, {"bandwidth": math.inf}])
def test_bad_machines(kwargs):
    with pytest.raises(InvalidArgumentError, match=next(iter(kwargs))):
        roofline_cost(**{"flops": 1, "nbytes": 1, "peak_flops": 1, "bandwidth": 1, **kwargs})


@pytest.mark.parametrize(
    "kwargs",
    [
        {"costs": [1]},
        {"costs": [1, -1, 1, 1]},
        {"event_cost": -1},
        {"event_cost": math.nan},
        {"event_cost": "x"},
        {"bandwidth": 3},
        {"nbytes": [1, 1, 1, 1]},
        {"nbytes": [1, 1, 1, 1], "bandwidth": 0},
        {"nbytes": [1, 1, 1], "bandwidth": 1},
    ],
)
def test_bad_arguments(kwargs):
    with pytest.raises(InvalidArgumentError):
        simulate(sequential(FORK), **kwargs)


def test_a_malformed_program_is_not_simulated():
    with pytest.raises(ScheduleError, match="never runs"):
        simulate(Schedule(FORK, (Run(0),)))


def test_an_empty_graph_takes_no_time():
    assert simulate(sequential(DependencyGraph([]))).makespan == 0


@pytest.mark.parametrize("name", ["A", "E"])
def test_sequential_takes_the_work(name):
    graph = block(name)
    assert simulate(sequential(graph)).makespan == graph.work


def test_idle_threads_help_the_calls_that_run():
    """Two threads: the longer branch goes twice as fast once the shorter one has ended, and so do fork and join."""
    result = simulate(list_schedule(FORK), threads=2, speedups=[2, 2, 2, 2])
    assert result.end == {0: 0.5, 1: 3.5, 2: 4.5, 3: 5.5}


def test_what_gains_nothing_by_helpers_gets_none():
    plain = simulate(list_schedule(FORK))
    assert simulate(list_schedule(FORK), threads=2, speedups=[1, 1, 1, 1]) == plain
    one = simulate(sequential(FORK), threads=4, speedups=[4, 1, 1, 1])
    assert one.makespan == 0.25 + 3 + 5 + 2


def test_spare_threads_are_dealt_out_among_those_that_gain():
    """Four threads for two branches: two each, so that each runs at 1 + (4 - 1) * 1 / 3 times its speed."""
    result = simulate(list_schedule(fork_join(2, 1, (0, 2, 2, 0))), threads=4, speedups=[4, 4, 4, 4])
    assert result.makespan == pytest.approx(1)


def test_helpers_and_bandwidth_together():
    """Both calls move what the bandwidth allows at single speed; helpers cannot make them faster."""
    schedule = list_schedule(fork_join(2, 1, (0, 2, 2, 0)))
    arguments = {"nbytes": [0, 4, 4, 0], "bandwidth": 4.0}
    assert simulate(schedule, **arguments).makespan == 2
    assert simulate(schedule, **arguments, threads=4, speedups=[4] * 4).makespan == pytest.approx(2)


@pytest.mark.parametrize("seed", range(20))
def test_helpers_never_slow_down_and_never_beat_all_threads(seed):
    graph = random_graph(seed)
    schedule, speedups = list_schedule(graph, 2), [1 + v % 4 for v in range(graph.num_nodes)]
    helped = simulate(schedule, threads=4, speedups=speedups).makespan
    assert helped <= simulate(schedule).makespan * (1 + 1e-9)
    assert helped >= graph.work / 4 * (1 - 1e-9)


@pytest.mark.parametrize("arguments", [{"threads": 2}, {"speedups": [1] * 4}])
def test_threads_and_speedups_go_together(arguments):
    with pytest.raises(InvalidArgumentError, match="go together"):
        simulate(list_schedule(FORK), **arguments)


@pytest.mark.parametrize("threads", [1, 0, 2.5])
def test_each_stream_needs_a_thread(threads):
    with pytest.raises(InvalidArgumentError, match="threads out of range"):
        simulate(list_schedule(FORK), threads=threads, speedups=[1] * 4)
