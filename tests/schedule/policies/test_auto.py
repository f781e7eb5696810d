import random

import pytest

from graphpool.errors import InvalidArgumentError
from graphpool.schedule import DependencyGraph, asap, auto, fold, simulate, verify, wavefront
from graphpool.schedule.simulation import least_makespan
from tests.cases.schedule_graphs import block, fork_join, random_graph

CHAIN = DependencyGraph([(0, 1), (1, 2)])

POLICIES = "sequential", "list", "wavefront", "asap", "nimble", "ios"


def test_never_slower_than_any_candidate_nor_sequential():
    for seed in range(60):
        graph = random_graph(seed)
        schedule = auto(graph, 2, event_cost=0.3)
        verify(schedule)
        makespan = simulate(schedule, event_cost=0.3).makespan
        candidates = schedule.details["candidates"]
        assert makespan == min(candidates.values())
        tried = tuple(candidates)
        assert tried == POLICIES[: len(tried)]
        assert len(tried) == len(POLICIES) or makespan == pytest.approx(least_makespan(graph, 2))
        assert len(schedule.stream_ids) <= 2


def test_no_schedule_beats_the_least_makespan():
    for seed in range(60):
        graph = random_graph(seed)
        rng = random.Random(seed)
        machine = {"threads": 3, "speedups": [rng.uniform(1, 4) for _ in range(graph.num_nodes)]}
        for streams in (1, 2, 3):
            schedule = auto(graph, streams)
            assert simulate(schedule).makespan >= least_makespan(graph, streams) * (1 - 1e-9)
            assert simulate(schedule, **machine).makespan >= least_makespan(graph, streams, **machine) * (1 - 1e-9)


def test_policies_are_tried_while_one_could_gain_enough():
    for seed in range(60):
        graph = random_graph(seed)
        candidates = auto(graph, 2, min_gain=0.1).details["candidates"]
        best = min(candidates.values())
        is_over = best - least_makespan(graph, 2) <= 0.1 * candidates["sequential"]
        assert is_over or len(candidates) == len(POLICIES)


def test_a_chain_stays_on_one_stream():
    assert auto(CHAIN).policy == "auto:sequential"


def test_dear_events_keep_everything_on_one_stream():
    assert auto(fork_join(4, 2), 2).policy != "auto:sequential"
    assert auto(fork_join(4, 2), 2, event_cost=100).policy == "auto:sequential"


def test_a_small_gain_is_not_worth_it():
    graph = fork_join(2, 1, (10, 1, 1, 10))  # 22 on one stream, 21 on two
    assert auto(graph).policy != "auto:sequential"
    assert auto(graph, min_gain=0.1).policy == "auto:sequential"
    assert auto(graph, min_gain=0.04).policy != "auto:sequential"


def test_bandwidth_that_one_stream_uses_up_leaves_nothing_for_two():
    graph = DependencyGraph([], [1, 1], num_nodes=2)
    assert auto(graph, nbytes=[8, 8], bandwidth=8).policy == "auto:sequential"
    assert auto(graph, nbytes=[8, 8], bandwidth=16).policy != "auto:sequential"


def test_one_stream_has_one_candidate():
    assert set(auto(block("E"), 1).details["candidates"]) == {"sequential"}


@pytest.mark.parametrize("gain", [-0.1, 1.1, float("nan"), "x", None])
def test_bad_gains(gain):
    with pytest.raises(InvalidArgumentError, match="min_gain"):
        auto(CHAIN, min_gain=gain)


def test_bad_event_cost():
    with pytest.raises(InvalidArgumentError, match="event_cost"):
        auto(CHAIN, event_cost=-1)


@pytest.mark.parametrize("policy", [asap, wavefront])
@pytest.mark.parametrize("streams", [1, 2, 3])
def test_fold_keeps_the_order_and_the_edges(policy, streams):
    for seed in range(40):
        schedule = policy(random_graph(seed))
        folded = fold(schedule, streams)
        verify(folded)
        assert folded.order == schedule.order
        assert len(folded.stream_ids) <= streams
        if len(schedule.stream_ids) <= streams:
            assert folded is schedule
