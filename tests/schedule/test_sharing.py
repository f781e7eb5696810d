import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool.errors import InvalidArgumentError
from graphpool.schedule import (
    DependencyGraph,
    asap,
    fold,
    ios,
    list_schedule,
    nimble,
    sequential,
    simulate,
    wavefront,
)
from graphpool.schedule.ordering import conflicts, happens_before
from tests.cases.schedule_graphs import fork_join, random_graph

POLICIES = [wavefront, asap, nimble, list_schedule, sequential]


def uses_of(graph):
    """One buffer a node, read by its consumers, and one that the sources share."""
    return [*((v, *graph.successors[v]) for v in graph.nodes), [v for v in graph.nodes if not graph.predecessors[v]]]


def _are_apart(masks, i, j):
    assert masks[i] >> j & 1 == masks[j] >> i & 1
    return bool(masks[i] >> j & 1)


@pytest.mark.parametrize("policy", POLICIES)
def test_sharing_means_every_use_before_every_use(policy):
    for seed in range(40):
        graph = random_graph(seed)
        schedule = policy(graph)
        relation = happens_before(schedule)
        uses = uses_of(graph)
        masks = conflicts(schedule, uses)
        for i, one in enumerate(uses):
            assert not _are_apart(masks, i, i)
            for j, other in enumerate(uses[:i]):
                forth = all(relation(a, b) for a in one for b in other)
                back = all(relation(b, a) for a in one for b in other)
                assert _are_apart(masks, i, j) == (not forth and not back)


def test_large_graphs_on_two_streams():
    """Thousands of pairs that may run at once: the answer must not take a look at each."""
    count = 4000
    graph = DependencyGraph([(v, v + 2) for v in range(count - 2)])
    schedule = fold(asap(graph), 2)
    masks = conflicts(schedule, uses_of(graph)[:-1])
    position = {v: place for nodes in schedule.streams for place, v in enumerate(nodes)}
    stream = {v: s for s, nodes in enumerate(schedule.streams) for v in nodes}
    assert len(schedule.streams) == 2
    assert all(masks[v].bit_count() >= count // 2 for v in range(count))
    for v, w in [(0, 2), (0, 4), (10, 11), (10, 2000), (11, 2001), (3998, 3999)]:
        apart = stream[v] != stream[w] or abs(position[v] - position[w]) < 2
        assert _are_apart(masks, v, w) == apart


def _first_fit(sizes, apart):
    """Offsets by falling size, lowest place that no conflicting buffer covers."""
    offsets = {}
    for i in sorted(range(len(sizes)), key=lambda b: -sizes[b]):
        taken = sorted((offsets[j], offsets[j] + sizes[j]) for j in offsets if apart[i] >> j & 1)
        place = 0
        for lower, upper in taken:
            if place + sizes[i] <= lower:
                break
            place = max(place, upper)
        offsets[i] = place
    return offsets


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(POLICIES))
def test_bytes_survive_in_any_timing(seed, policy):
    """Plays a random timing on one arena: each writer stamps its bytes, each reader looks at them when it ends."""
    rng = random.Random(seed)
    graph = random_graph(seed)
    schedule = policy(graph)
    uses = [(v, *graph.successors[v]) for v in graph.nodes]
    sizes = [rng.randint(1, 100) for _ in uses]
    offsets = _first_fit(sizes, conflicts(schedule, uses))
    arena = [-1] * max(offsets[v] + size for v, size in enumerate(sizes))
    run = simulate(schedule, [rng.choice((0.1, 1, 10)) * rng.random() + 0.01 for _ in uses])

    def stamp(v):
        arena[offsets[v] : offsets[v] + sizes[v]] = [v] * sizes[v]

    def check(v):
        assert set(arena[offsets[v] : offsets[v] + sizes[v]]) == {v}

    moments = [(run.end[v], 0, v) for v in graph.nodes] + [(run.start[v], 1, v) for v in graph.nodes]
    for _, starts, node in sorted(moments):  # at one instant ends come first: what ends then may free what starts then
        if starts:
            stamp(node)
        else:
            for buffer in (node, *graph.predecessors[node]):
                check(buffer)


def test_a_chain_on_one_stream():
    chain = DependencyGraph([(0, 1), (1, 2)])
    assert conflicts(sequential(chain), [(0,), (0, 1), (1, 2), (2,)]) == [0b0010, 0b0101, 0b1010, 0b0100]


def test_streams_side_by_side_may_not_share():
    graph = DependencyGraph([(0, 1), (2, 3)])
    assert conflicts(sequential(graph), [(0, 1), (2, 3)]) == [0, 0]
    assert conflicts(list_schedule(graph), [(0, 1), (2, 3)]) == [0b10, 0b01]


def test_merged_calls_run_at_once():
    graph = fork_join(2, 1)
    schedule = ios(graph, 2, merge=lambda nodes: 0.1)
    assert schedule.merged_costs
    relation = happens_before(schedule)
    assert not relation(1, 2)
    assert not relation(2, 1)
    assert relation(0, 1)
    assert conflicts(schedule, [(1, 3), (2, 3), (1,), (2,)]) == [0b1110, 0b1101, 0b1011, 0b0111]


def test_unused_buffers_conflict_with_nothing():
    assert conflicts(sequential(DependencyGraph([], num_nodes=1)), [(), (0,), (), (0,)]) == [0, 0b1000, 0, 0b0010]


def test_unknown_users():
    with pytest.raises(InvalidArgumentError, match="node 9") as caught:
        conflicts(sequential(fork_join(2, 1)), [(0,), (0, 9)])
    assert (caught.value.buffer, caught.value.node) == (1, 9)
