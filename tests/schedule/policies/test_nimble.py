import itertools
import random
from statistics import mean

import pytest

from graphpool.schedule import DependencyGraph, asap, nimble
from tests.cases.schedule_graphs import block, gnp, layered, random_graph, series_parallel, stacked, watts_strogatz
from tests.helpers.schedule_programs import reachable


def _matching(pairs):
    """Size of a maximum matching, by augmenting paths."""
    taken = {}
    options = {}
    for u, v in pairs:
        options.setdefault(u, []).append(v)

    def augment(u, seen):
        for v in options[u]:
            if v not in seen:
                seen.add(v)
                if v not in taken or augment(taken[v], seen):
                    taken[v] = u
                    return True
        return False

    return sum(augment(u, set()) for u in options)


def _width(graph):
    """Largest set of independent nodes (Dilworth: nodes less a matching of the closure)."""
    reach = reachable(list(graph.edges), graph.num_nodes)
    return len(graph) - _matching([(u, v) for u in graph.nodes for v in sorted(reach[u])])


def test_waits_are_the_edges_that_no_matching_covers():
    for seed in range(200):
        graph = random_graph(seed)
        schedule = nimble(graph)
        matched = _matching(graph.reduced_edges)
        assert schedule.details["matched"] == matched
        assert schedule.num_waits == len(graph.reduced_edges) - matched
        assert schedule.num_waits <= asap(graph).num_waits


def test_independent_nodes_have_streams_of_their_own():
    for seed in range(100):
        graph = random_graph(seed)
        reach = reachable(list(graph.edges), graph.num_nodes)
        for policy in (nimble, asap):
            for nodes in policy(graph).streams:
                assert all(v in reach[u] for u, v in itertools.pairwise(nodes))


FAMILIES = {
    "layered": lambda rng: layered(8, 6, 0.3, rng),
    "gnp": lambda rng: gnp(30, 0.12, rng),
    "ws": lambda rng: watts_strogatz(32, 4, 0.75, rng),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_streams_are_between_the_width_and_those_of_asap_on_average(family):
    rng = random.Random(family)
    graphs = [DependencyGraph(FAMILIES[family](rng)) for _ in range(40)]
    greedy, maximum = [asap(g) for g in graphs], [nimble(g) for g in graphs]
    widths = [_width(g) for g in graphs]
    assert all(width <= len(s.stream_ids) for width, s in zip(widths, maximum, strict=True))
    assert all(width <= len(s.stream_ids) for width, s in zip(widths, greedy, strict=True))
    assert mean(len(s.stream_ids) for s in maximum) <= mean(len(s.stream_ids) for s in greedy)
    assert mean(s.num_waits for s in maximum) < mean(s.num_waits for s in greedy)


def test_structured_graphs_need_no_more_streams_than_their_width():
    rng = random.Random(0)
    graphs = [DependencyGraph(series_parallel(4, rng)) for _ in range(20)]
    graphs += [DependencyGraph(stacked(3, 4, 3)), *(block(name) for name in "ACE")]
    for graph in graphs:
        assert len(nimble(graph).stream_ids) == _width(graph)
