import random
from statistics import mean

import pytest

from graphpool.errors import InvalidArgumentError
from graphpool.schedule import DependencyGraph, auto, fold, ios, list_schedule, sequential, simulate
from tests.cases.schedule_graphs import (
    BLOCK_COSTS,
    COST_KINDS,
    block,
    draw_costs,
    gnp,
    layered,
    random_graph,
    series_parallel,
    stacked,
    watts_strogatz,
)
from tests.helpers.schedule_programs import optimal_makespan

# name, costs?: nodes, edges, work, critical path, makespans on 2, 3 and 4 streams
GOLDEN_MAKESPANS = {
    ("G1", False): (7, 6, 7, 4, (4, 4, 4)),
    ("G2", False): (10, 10, 10, 5, (6, 5, 5)),
    ("G3", False): (10, 11, 10, 6, (6, 6, 6)),
    ("A", False): (9, 8, 9, 4, (5, 4, 4)),
    ("A", True): (9, 8, 3148, 1847, (1847, 1847, 1847)),
    ("C", False): (12, 11, 12, 6, (7, 6, 6)),
    ("E", False): (11, 12, 11, 4, (6, 5, 4)),
    ("E", True): (11, 12, 3232, 1642, (1642, 1642, 1642)),
}


@pytest.mark.parametrize("key", GOLDEN_MAKESPANS)
def test_golden_makespans(key):
    name, weighted = key
    graph = block(name, BLOCK_COSTS[name] if weighted else None)
    nodes, edges, work, path, makespans = GOLDEN_MAKESPANS[key]
    assert (len(graph), len(graph.edges), graph.work, graph.critical_path) == (nodes, edges, work, path)
    for streams, makespan in zip((2, 3, 4), makespans, strict=True):
        assert simulate(list_schedule(graph, streams)).makespan == makespan
        assert simulate(ios(graph, streams)).makespan == ios(graph, streams).details["latency"] == makespan
        assert simulate(auto(graph, streams)).makespan == makespan
        assert optimal_makespan(graph, streams, graph.work) == makespan


def _ratios(graphs, streams):
    for graph in graphs:
        makespan = simulate(list_schedule(graph, streams)).makespan
        optimum = optimal_makespan(graph, streams, makespan)
        assert makespan <= (2 - 1 / streams) * optimum * (1 + 1e-9)
        yield makespan / optimum if optimum else 1.0


def _small(family, seed, kind):
    rng = random.Random(seed)
    edges = {
        "layered": lambda: layered(3, 3, 0.4, rng),
        "sp": lambda: series_parallel(2, rng),
        "stacked": lambda: stacked(2, 3, 2),
        "inception": lambda: list(block("ACE"[seed % 3]).edges),
        "gnp": lambda: gnp(9, 0.25, rng),
    }[family]()
    n = 1 + max(max(edge) for edge in edges)
    return DependencyGraph(edges, draw_costs(kind, n, rng), num_nodes=n)


@pytest.mark.parametrize("streams", [2, 3, 4])
@pytest.mark.parametrize(
    ("family", "most"), [("layered", 1.15), ("sp", 1.15), ("stacked", 1.15), ("inception", 1.15), ("gnp", 1.25)]
)
def test_close_to_the_optimum_of_small_graphs(family, most, streams):
    ratios = list(_ratios([_small(family, seed, kind) for seed in range(5) for kind in COST_KINDS], streams))
    assert mean(ratios) <= 1.04
    assert max(ratios) <= most


@pytest.mark.parametrize("streams", [2, 4])
def test_close_to_the_bound_of_large_graphs(streams):
    rng = random.Random(0)
    families = [
        block("E").edges,
        stacked(3, 4, 3, even=True),
        layered(8, 6, 0.3, rng),
        watts_strogatz(32, 4, 0.75, rng),
    ]
    for edges in (*families, series_parallel(5, rng)):
        graph = DependencyGraph(edges)
        bound = max(graph.critical_path, graph.work / streams)
        assert simulate(list_schedule(graph, streams)).makespan <= 1.125 * bound


def test_waits_are_saved_by_staying_with_the_producer():
    chains = DependencyGraph([(0, 2), (1, 3), (2, 4), (3, 5)])
    assert list_schedule(chains, 2).num_waits == 0


def test_one_stream_needs_nothing():
    for seed in range(20):
        for schedule in (list_schedule(random_graph(seed), 1), sequential(random_graph(seed))):
            assert len(schedule.stream_ids) <= 1
            assert schedule.num_waits == schedule.num_events == schedule.num_barriers == 0


def test_no_more_streams_than_asked_for():
    for seed in range(30):
        assert len(list_schedule(random_graph(seed), 3).stream_ids) <= 3
    assert len(list_schedule(DependencyGraph([], num_nodes=2), 100).stream_ids) == 2


@pytest.mark.parametrize("streams", [0, -1, 1.5, "2", None, True])
@pytest.mark.parametrize("policy", [list_schedule, ios, auto, lambda g, k: fold(sequential(g), k)])
def test_streams_must_be_a_count(policy, streams):
    with pytest.raises(InvalidArgumentError, match="streams") as caught:
        policy(DependencyGraph([(0, 1)]), streams)
    assert caught.value.streams is streams
