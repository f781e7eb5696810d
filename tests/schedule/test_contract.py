"""What every policy promises, over random graphs of every family."""

import random
from collections import deque

import pytest

from graphpool.errors import ScheduleError
from graphpool.schedule import (
    AddEvent,
    DependencyGraph,
    Run,
    SetStream,
    StreamBarrier,
    asap,
    auto,
    fold,
    ios,
    list_schedule,
    nimble,
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


@pytest.mark.parametrize("first", range(0, 500, 125))
def test_random_graphs_are_covered_and_nothing_is_redundant(first):
    spare = 0
    for seed in range(first, first + 125):
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


def _queues(schedule):
    """What each stream does, in order: work, records of events, waits for events."""
    queues, opening, current, barriers = {}, [], 0, 0

    def queue(stream):
        return queues.setdefault(stream, deque(opening))

    for item in schedule.instructions:
        if isinstance(item, SetStream):
            current = item.stream_id
        elif isinstance(item, Run):
            queue(current).append(("work", item.nodes))
        elif isinstance(item, StreamBarrier):
            opening = [("wait", (barriers, stream)) for stream in queues]
            for stream, held in queues.items():
                held.append(("record", (barriers, stream)))
                held.extend(opening)
            barriers += 1
        else:
            kind = "record" if isinstance(item, AddEvent) else "wait"
            queue(current if item.stream_id < 0 else item.stream_id).append((kind, item.event_id))
    return list(queues.values())


def _run(schedule, rng):
    """Values of the nodes, with the heads of the streams run in a random order that the events allow."""
    predecessors, values, done = schedule.graph.predecessors, {}, set()
    queues = _queues(schedule)
    while any(queues):
        kind, item = rng.choice([q for q in queues if q and not (q[0][0] == "wait" and q[0][1] not in done)]).popleft()
        if kind == "work":
            values.update((node, hash((node, *(values[p] for p in predecessors[node])))) for node in item)
        elif kind == "record":
            done.add(item)
    return values


@pytest.mark.parametrize("name", POLICIES)
def test_any_interleaving_gives_the_sequential_values(name):
    rng = random.Random(name)
    for seed in range(10):
        graph = random_graph(seed)
        schedule = POLICIES[name](graph)
        expected = _run(sequential(graph), rng)
        for _ in range(20):
            assert _run(schedule, rng) == expected
