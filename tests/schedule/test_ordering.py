import pytest

from graphpool.schedule import asap, nimble, sequential, wavefront
from graphpool.schedule.ordering import happens_before
from tests.cases.schedule_graphs import random_graph
from tests.helpers.schedule_programs import reachable


def test_one_stream_orders_every_pair():
    graph = random_graph(3)
    relation = happens_before(sequential(graph))
    order = {node: place for place, node in enumerate(sequential(graph).order)}
    assert all(relation(u, v) == (order[u] < order[v]) for u in graph.nodes for v in graph.nodes)


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
    relation = happens_before(wavefront(graph))
    assert all(relation(u, v) for u in graph.nodes for v in reach[u])
    assert sum(relation(u, v) for u in graph.nodes for v in graph.nodes) > sum(map(len, reach))


def test_common_predecessors():
    graph = random_graph(1)
    relation = happens_before(sequential(graph))
    first, second, third = graph.order[:3]
    assert relation.all_before([second, third]) == 1 << first == relation.all_before([second])
    assert relation.all_before([]) == -1
