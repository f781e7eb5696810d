"""What every policy promises, over random graphs of every family."""

import random
from collections import deque

import pytest

from graphpool.errors import ScheduleError
from graphpool.schedule import (
    DependencyGraph,
    asap,
    auto,
    fold,
    ios,
    list_schedule,
    nimble,
    replay,
    sequential,
    simulate,
    verify,
    wavefront,
)
from tests.cases.schedule_graphs import random_graph
from tests.helpers.schedule_programs import sync_indices, without

POLICIES = {
    "sequential": sequential,
    "wavefront": wavefront,
    "asap": asap,
    "nimble": nimble,
    "list2": list_schedule,
    "list4": lambda g: list_schedule(g, 4),
    "fold3": lambda g: fold(asap(g), 3),
    "ios": lambda g: ios(g, 3, max_states=48),
    "auto": auto,
}
CHEAP = [name for name in POLICIES if name != "auto"]


def _is_valid(schedule):
    try:
        verify(schedule)
    except ScheduleError:
        return False
    return True


@pytest.mark.parametrize("first", range(0, 2000, 250))
def test_random_graphs_are_covered_and_nothing_is_redundant(first):
    spare = 0
    for seed in range(first, first + 250):
        graph = random_graph(seed)
        for name in CHEAP:
            schedule = POLICIES[name](graph)
            verify(schedule)
            redundant = [index for index in sync_indices(schedule) if _is_valid(without(schedule, index))]
            if name == "wavefront":  # one barrier a wave, also where the streams happen to cover a wave's edges
                spare += len(redundant)
            else:
                assert not redundant, (seed, name)
    assert spare <= 2


@pytest.mark.parametrize("name", POLICIES)
def test_streams_hold_every_node_once_in_one_topological_order(name):
    for seed in range(40):
        graph = random_graph(seed)
        schedule = POLICIES[name](graph)
        assert sorted(v for nodes in schedule.streams for v in nodes) == list(graph.nodes)
        rank = {v: i for i, v in enumerate(schedule.order)}
        assert all(rank[u] < rank[v] for u, v in graph.edges)
        assert all(nodes == sorted(nodes, key=rank.__getitem__) for nodes in schedule.streams)


@pytest.mark.parametrize("name", POLICIES)
def test_simulated_time_is_between_the_critical_path_and_the_work(name):
    for seed in range(40):
        graph = random_graph(seed)
        makespan = simulate(POLICIES[name](graph)).makespan
        assert graph.critical_path * (1 - 1e-12) <= makespan <= graph.work * (1 + 1e-12)


@pytest.mark.parametrize("name", POLICIES)
def test_policies_are_deterministic(name):
    for seed in range(8):
        assert POLICIES[name](random_graph(seed)).instructions == POLICIES[name](random_graph(seed)).instructions


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("nodes", [0, 1, 3])
def test_graphs_without_edges(name, nodes):
    schedule = POLICIES[name](DependencyGraph([], num_nodes=nodes))
    verify(schedule)
    assert sorted(schedule.order) == list(range(nodes))


@pytest.mark.parametrize("name", POLICIES)
def test_pruned_nodes_do_not_run(name):
    graph = DependencyGraph([(0, 1), (4, 1), (1, 2), (1, 3)], atomic=[0, 4])
    schedule = POLICIES[name](graph)
    verify(schedule)
    assert sorted(schedule.order) == [1, 2, 3]


class _QueueDriver:
    """Streams are queues; ``drain`` runs their heads in a random order that the events allow."""

    def __init__(self):
        self.queues = []
        self.done = set()

    def create_stream(self):
        self.queues.append(deque())
        return len(self.queues) - 1

    def record_event(self, stream):
        event = object()
        self.queues[stream].append(("record", event))
        return event

    def wait_event(self, stream, event):
        self.queues[stream].append(("wait", event))

    def launch(self, stream, work):
        self.queues[stream].append(("work", lambda: work(stream)))

    def begin_capture(self, stream):
        raise AssertionError

    end_capture = begin_capture

    def drain(self, rng):
        while any(self.queues):
            heads = [q for q in self.queues if q and not (q[0][0] == "wait" and q[0][1] not in self.done)]
            kind, item = rng.choice(heads).popleft()
            if kind == "work":
                item()
            elif kind == "record":
                self.done.add(item)


def _run(graph, schedule, rng):
    values = {}

    def launch(nodes, _stream):
        for node in nodes:
            values[node] = hash((node, *(values[p] for p in graph.predecessors[node])))

    driver = _QueueDriver()
    replay(schedule, driver, launch)
    driver.drain(rng)
    return values


@pytest.mark.parametrize("name", POLICIES)
def test_any_interleaving_gives_the_sequential_values(name):
    rng = random.Random(name)
    for seed in range(10):
        graph = random_graph(seed)
        schedule = POLICIES[name](graph)
        expected = _run(graph, sequential(graph), rng)
        for _ in range(20):
            assert _run(graph, schedule, rng) == expected
