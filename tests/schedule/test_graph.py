import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpool.errors import InvalidArgumentError, InvalidGraphError
from graphpool.schedule import DependencyGraph
from tests.cases.schedule_graphs import BLOCKS, GOLDEN, block, gnp, parse
from tests.helpers.schedule_programs import reachable


def test_edge_counts_of_the_shortcut_graph():
    graph = DependencyGraph([(0, 1), (0, 2), (1, 2), (2, 3)])  # y, z, tuple, concatenation
    assert (len(graph.edges), len(graph.reduced_edges)) == (4, 3)


@pytest.mark.parametrize(("name", "size"), [("simple", (8, 7)), ("branch", (12, 12)), ("stacked", (12, 13))])
def test_sizes_of_the_golden_graphs(name, size):
    graph = parse(GOLDEN[name])
    assert (len(graph), len(graph.edges)) == size


@given(st.integers(0, 10**6), st.integers(1, 14), st.sampled_from([0.1, 0.3, 0.6]))
def test_reduction_keeps_reachability_and_no_edge_can_go(seed, n, p):
    graph = DependencyGraph(gnp(n, p, random.Random(seed)), num_nodes=n)
    reach = reachable(list(graph.edges), n)
    assert reachable(list(graph.reduced_edges), n) == reach
    for edge in graph.reduced_edges:
        rest = [other for other in graph.reduced_edges if other != edge]
        assert edge[1] not in reachable(rest, n)[edge[0]]
    assert [{v for v in range(n) if bits >> v & 1} for bits in graph.descendants()] == reach


@given(st.integers(0, 10**6), st.integers(1, 14))
def test_tails_are_heaviest_paths(seed, n):
    rng = random.Random(seed)
    graph = DependencyGraph(gnp(n, 0.3, rng), [rng.randint(0, 9) for _ in range(n)])

    def tail(v):
        return graph.costs[v] + max(map(tail, graph.successors[v]), default=0)

    assert graph.tails() == [tail(v) for v in range(n)]
    assert graph.critical_path == max(graph.tails())


def test_order_visits_arguments_first_and_in_order():
    graph = DependencyGraph([(3, 4), (1, 4), (0, 3), (2, 1)])
    assert graph.order == (0, 3, 2, 1, 4)


def test_argument_order_and_repeated_arguments():
    graph = DependencyGraph([(2, 3), (0, 3), (2, 3), (1, 3)])
    assert graph.predecessors[3] == (2, 0, 1)
    assert len(graph.edges) == 3


def test_counts_costs_and_names():
    graph = DependencyGraph(np.array([[0, 1]]), [2, 3, 4], names=["a", "b", "c"])
    assert (len(graph), graph.num_nodes, graph.work, graph.critical_path) == (3, 3, 9, 5)
    assert "3 nodes, 1 edges, work=9, critical_path=5" in repr(graph)
    twin = graph.with_costs([1, 1, 1])
    assert (twin.work, graph.work, twin.edges) == (3, 9, graph.edges)
    assert len(DependencyGraph([])) == 0


def test_a_long_chain_does_not_recurse():
    n = 20_000
    assert DependencyGraph([(v, v + 1) for v in range(n)]).critical_path == n + 1


@pytest.mark.parametrize("cut", [None, (7, 8)])
def test_cycles_are_named(cut):
    edges = [(0, 1), (1, 2), (2, 3), (3, 1)] + ([cut] if cut else [(3, 4)])
    with pytest.raises(InvalidGraphError, match="cycle") as caught:
        DependencyGraph(edges)
    cycle = caught.value.cycle
    assert sorted(cycle) == [1, 2, 3]
    assert all((u, v) in edges for u, v in zip(cycle, (*cycle[1:], cycle[0]), strict=True))


def test_self_loops_are_named():
    with pytest.raises(InvalidGraphError, match="node 3 depends on itself") as caught:
        DependencyGraph([(0, 1), (3, 3)])
    assert caught.value.cycle == (3,)


@pytest.mark.parametrize("cost", [-1, float("nan"), float("inf"), "x", None, 1j])
def test_bad_costs(cost):
    with pytest.raises(InvalidArgumentError, match=r"costs\[1\]") as caught:
        DependencyGraph([(0, 1)], [1, cost])
    assert caught.value.node == 1
    with pytest.raises(InvalidArgumentError, match=r"costs\[1\]"):
        DependencyGraph([(0, 1)]).with_costs([1, cost])


@pytest.mark.parametrize(
    ("edges", "kwargs"),
    [
        ([(0, 2)], {"costs": [1, 1]}),
        ([(0, 2)], {"num_nodes": 2}),
        ([(-1, 0)], {}),
    ],
)
def test_unknown_nodes(edges, kwargs):
    with pytest.raises(InvalidArgumentError, match="no node of the graph") as caught:
        DependencyGraph(edges, **kwargs)
    assert caught.value.node in (2, -1)


@pytest.mark.parametrize(
    ("edges", "kwargs"),
    [
        ([(0,)], {}),
        ([3], {}),
        ([(0, 1.5)], {}),
        ([("a", "b")], {}),
        ([], {"num_nodes": -1}),
        ([], {"num_nodes": 2.0}),
        ([(0, 1)], {"costs": [1], "num_nodes": 2}),
        ([(0, 1)], {"names": ["a"]}),
        ([(0, 1)], {"names": 3}),
        ([(0, 1)], {"costs": 3}),
        ([(0, 1)], {"costs": [np.ones(2), 1]}),
        (None, {}),
        ([(0, 2**63)], {}),
        ([], {"num_nodes": 2**24 + 1}),
    ],
)
def test_malformed_arguments(edges, kwargs):
    with pytest.raises(InvalidArgumentError):
        DependencyGraph(edges, **kwargs)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_have_no_redundant_edges(name):
    graph = block(name)
    assert graph.edges == graph.reduced_edges
