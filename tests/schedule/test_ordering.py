import pytest

from graphpool.schedule import asap, happens_before, nimble, sequential, wavefront
from tests.cases.schedule_graphs import random_graph
from tests.helpers.schedule_programs import reachable


def test_one_stream_orders_every_pair():
    graph = random_graph(3)
    relation = happens_before(sequential(graph))
    n = len(graph)
    assert relation.pairs == n * (n - 1) // 2
    assert f"{n} nodes" in repr(relation)


@pytest.mark.parametrize("policy", [asap, nimble])
def test_streams_to_spare_order_what_the_data_orders_and_no_more(policy):
    for seed in range(80):
        graph = random_graph(seed)
        relation = happens_before(policy(graph))
        reach = reachable(list(graph.edges), graph.num_nodes)
        assert all(relation(u, v) == (v in reach[u]) for u in graph.nodes for v in graph.nodes)


def test_barriers_order_more_than_the_data():
    graph = random_graph(1)
    reach = reachable(list(graph.edges), graph.num_nodes)
    assert happens_before(wavefront(graph)).pairs >= sum(map(len, reach))


def test_common_predecessors():
    graph = random_graph(1)
    relation = happens_before(sequential(graph))
    first, second, third = graph.order[:3]
    assert relation.all_before([second, third]) == 1 << first == relation.before(second)
    assert relation.all_before([]) == -1
