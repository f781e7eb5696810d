import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from graphpool.errors import InvalidArgumentError
from graphpool.schedule import (
    BufferUses,
    DependencyGraph,
    asap,
    conflicts,
    happens_before,
    ios,
    list_schedule,
    nimble,
    planner_input,
    sequential,
    simulate,
    stream_scratch,
    wavefront,
)
from tests.cases.schedule_graphs import fork_join, random_graph

POLICIES = [wavefront, asap, nimble, list_schedule, sequential]


def outputs_of(graph, rng):
    """One buffer a node, read by its consumers; results of sinks are kept; and one input read by the sources."""
    buffers = [
        BufferUses(rng.randint(1, 100), v, graph.successors[v], kept=not graph.successors[v]) for v in graph.nodes
    ]
    sources = tuple(v for v in graph.nodes if not graph.predecessors[v])
    return [*buffers, BufferUses(7, None, sources)]


@pytest.mark.parametrize("policy", POLICIES)
def test_sharing_means_every_use_before_every_use(policy):
    for seed in range(40):
        graph = random_graph(seed)
        schedule = policy(graph)
        relation = happens_before(schedule)
        buffers = outputs_of(graph, random.Random(seed))
        apart = conflicts(schedule, buffers)
        for i, one in enumerate(buffers):
            for j, other in enumerate(buffers[:i]):
                forth = not one.kept and other.writer is not None
                forth = forth and all(relation(a, b) for a in one.nodes for b in other.nodes)
                back = not other.kept and one.writer is not None
                back = back and all(relation(b, a) for a in one.nodes for b in other.nodes)
                assert ((i, j) in apart) == ((j, i) in apart) == (not forth and not back)


def _first_fit(sizes, apart):
    """Offsets by falling size, lowest place that no conflicting buffer covers."""
    offsets = {}
    for i in sorted(range(len(sizes)), key=lambda b: -sizes[b]):
        taken = sorted((offsets[j], offsets[j] + sizes[j]) for j in offsets if (i, j) in apart)
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
    buffers = outputs_of(graph, rng)
    given_input = planner_input(schedule, buffers)
    offsets = _first_fit(given_input.nbytes, given_input.conflicts)
    arena = [-1] * max(offsets[i] + b.nbytes for i, b in enumerate(buffers))
    run = simulate(schedule, [rng.choice((0.1, 1, 10)) * rng.random() + 0.01 for _ in range(graph.num_nodes)])
    writes = {b.writer: i for i, b in enumerate(buffers) if b.writer is not None}
    entry = len(buffers) - 1

    def stamp(index):
        arena[offsets[index] : offsets[index] + buffers[index].nbytes] = [index] * buffers[index].nbytes

    def check(index):
        assert set(arena[offsets[index] : offsets[index] + buffers[index].nbytes]) == {index}

    stamp(entry)
    moments = [(run.end[v], 0, v) for v in graph.nodes] + [(run.start[v], 1, v) for v in graph.nodes]
    for _, starts, node in sorted(moments):  # at one instant ends come first: what ends then may free what starts then
        if starts:
            stamp(writes[node])
        else:
            for index, buffer in enumerate(buffers):
                if node in buffer.readers:
                    check(index)
            check(writes[node])
    for index, buffer in enumerate(buffers):
        if buffer.kept:
            check(index)


@pytest.mark.parametrize("policy", POLICIES)
def test_lifetimes_cover_every_conflict_and_are_exact_on_one_stream(policy):
    for seed in range(40):
        graph = random_graph(seed)
        schedule = policy(graph)
        found = planner_input(schedule, outputs_of(graph, random.Random(seed)))
        assert found.exact == (len(schedule.stream_ids) <= 1)
        for i, (lower, upper) in enumerate(found.lifetimes):
            assert 0 <= lower < upper
            for j, (other_lower, other_upper) in enumerate(found.lifetimes[:i]):
                meet = lower < other_upper and other_lower < upper
                if found.exact:
                    assert meet == ((i, j) in found.conflicts)
                else:
                    assert meet or (i, j) not in found.conflicts


def test_lifetimes_of_a_chain():
    chain = DependencyGraph([(0, 1), (1, 2)])
    buffers = [BufferUses(4, None, (0,)), BufferUses(4, 0, (1,)), BufferUses(4, 1, (2,)), BufferUses(4, 2, kept=True)]
    found = planner_input(sequential(chain), buffers)
    assert found.lifetimes == ((0, 1), (0, 2), (1, 3), (2, 3))
    assert list(found.conflicts.pairs()) == [(0, 1), (1, 2), (2, 3)]
    assert len(found.conflicts) == 3
    assert found.nbytes == (4, 4, 4, 4)


def test_streams_side_by_side_may_not_share():
    graph = DependencyGraph([(0, 1), (2, 3)])
    buffers = [BufferUses(8, 0, (1,)), BufferUses(8, 2, (3,))]
    assert len(conflicts(sequential(graph), buffers)) == 0
    assert list(conflicts(list_schedule(graph), buffers).pairs()) == [(0, 1)]


def test_only_the_last_reader_may_overwrite():
    graph = DependencyGraph([(0, 1), (0, 2)])
    buffers = [BufferUses(8, 0, (1, 2)), BufferUses(8, 1, kept=True), BufferUses(8, 2, kept=True)]
    pairs = [(0, 1), (0, 2)]
    in_order = sequential(graph)  # 0, 1, 2: the last reader is 2
    assert in_order.order == (0, 1, 2)
    assert list(conflicts(in_order, buffers).pairs()) == [(0, 1), (0, 2), (1, 2)]
    assert list(conflicts(in_order, buffers, pairs).pairs()) == [(0, 1), (1, 2)]
    assert list(conflicts(list_schedule(graph), buffers, pairs).pairs()) == [(0, 1), (0, 2), (1, 2)]
    assert not planner_input(in_order, buffers, pairs).exact


def test_a_kept_buffer_is_not_overwritten():
    chain = DependencyGraph([(0, 1)])
    buffers = [BufferUses(8, 0, (1,), kept=True), BufferUses(8, 1, kept=True)]
    assert (0, 1) in conflicts(sequential(chain), buffers, [(0, 1)])


def test_merged_calls_run_at_once():
    graph = fork_join(2, 1)
    schedule = ios(graph, 2, merge=lambda nodes: 0.1)
    assert schedule.merged_costs
    relation = happens_before(schedule)
    assert not relation(1, 2)
    assert not relation(2, 1)
    assert relation(0, 1)
    buffers = [BufferUses(1, 1, (3,)), BufferUses(1, 2, (3,))]
    assert (0, 1) in conflicts(schedule, buffers)


def test_empty_and_unused_buffers_conflict_with_nothing():
    graph = DependencyGraph([], num_nodes=1)
    buffers = [BufferUses(0, 0), BufferUses(9, None), BufferUses(9, 0, kept=True), BufferUses(9, None, kept=True)]
    assert list(conflicts(sequential(graph), buffers).pairs()) == [(2, 3)]


def test_scratch_is_the_most_that_a_call_of_the_stream_needs():
    graph = fork_join(2, 2)
    schedule = list_schedule(graph)
    nbytes = [5, 10, 20, 40, 30, 1]
    found = stream_scratch(schedule, nbytes)
    assert found == {s: max(nbytes[v] for v in nodes) for s, nodes in enumerate(schedule.streams)}
    assert len(found) <= 2
    assert stream_scratch(sequential(graph), nbytes) == {0: 40}
    with pytest.raises(InvalidArgumentError, match="nbytes"):
        stream_scratch(schedule, [-1] * 6)


@pytest.mark.parametrize("nbytes", [-1, 1.5, "8", None])
def test_bad_sizes(nbytes):
    with pytest.raises(InvalidArgumentError, match="buffer 0") as caught:
        conflicts(sequential(fork_join(2, 1)), [BufferUses(nbytes, 0)])
    assert caught.value.buffer == 0


def test_unknown_users():
    with pytest.raises(InvalidArgumentError, match="node 9") as caught:
        conflicts(sequential(fork_join(2, 1)), [BufferUses(1, 0), BufferUses(1, 0, (9,))])
    assert (caught.value.buffer, caught.value.node) == (1, 9)


@pytest.mark.parametrize("pair", [(0,), (0, 0), (0, 5), (-1, 1), (1, 0), (0, 2)])
def test_bad_inplace_pairs(pair):
    buffers = [BufferUses(1, 0, (1,)), BufferUses(1, 1), BufferUses(1, 2)]
    with pytest.raises(InvalidArgumentError) as caught:
        conflicts(sequential(DependencyGraph([(0, 1)], num_nodes=3)), buffers, [pair])
    assert caught.value.pair == pair
