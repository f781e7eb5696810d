import random

import pytest

from graphpool.errors import InvalidArgumentError
from graphpool.schedule import DependencyGraph, Run, ios, sequential, simulate, verify, wavefront
from graphpool.schedule.policies.stages import split_blocks
from tests.cases.schedule_graphs import block, fork_join, gnp, random_graph, stacked
from tests.helpers.schedule_programs import components, longest_first, reachable, staged_optimum


def test_states_and_transitions_of_inception_e():
    details = ios(block("E"), 2).details
    assert (details["states"], details["transitions"]) == (180, 5040)


def test_sequences_of_stages_of_inception_e():
    graph = block("E")
    [whole] = split_blocks(graph, 20, 8192)
    ways = [1]
    for index, state in enumerate(whole.ideals[1:], 1):
        ways.append(sum(ways[i] for i in range(index) if not whole.ideals[i] & ~state))
    assert ways[-1] == 4_410_136
    value, states, transitions, count = staged_optimum(graph, lambda groups: longest_first(graph, groups, 2))
    assert (value, states, transitions, count) == (6, 180, 5040, 4_410_136)


@pytest.mark.parametrize("streams", [1, 2, 3])
def test_equals_the_exhaustive_optimum(streams):
    for seed in range(25):
        rng = random.Random(seed)
        n = rng.randint(1, 7)
        graph = DependencyGraph(gnp(n, 0.3, rng), [rng.randint(1, 9) for _ in range(n)])
        expected = staged_optimum(graph, lambda groups, g=graph: longest_first(g, groups, streams))[0]
        assert ios(graph, streams).details["latency"] == pytest.approx(expected)


def _stage_sum(graph, streams, stages):
    return sum(longest_first(graph, components(graph, frozenset(stage)), streams) for stage in stages)


def _greedy_stages(graph):
    done, stages = set(), []
    while len(done) < len(graph):
        stages.append([v for v in graph.nodes if v not in done and done.issuperset(graph.predecessors[v])])
        done.update(stages[-1])
    return stages


def _waves(graph):
    stages = [[]]
    for item in wavefront(graph).instructions:
        if isinstance(item, Run):
            stages[-1].append(item.node)
        elif not hasattr(item, "stream_id"):
            stages.append([])
    return stages


@pytest.mark.parametrize("streams", [2, 3])
def test_never_worse_than_sequential_greedy_and_wavefront(streams):
    for seed in range(120):
        graph = random_graph(seed)
        if len(split_blocks(graph, 20, 1024)) > len(split_blocks(graph, 62, 2**20)):
            continue  # chopped blocks are another search
        schedule = ios(graph, streams, max_states=1024)
        latency = schedule.details["latency"] * (1 - 1e-9)
        assert latency <= graph.work
        assert latency <= _stage_sum(graph, streams, _greedy_stages(graph))
        assert latency <= _stage_sum(graph, streams, _waves(graph))
        assert simulate(schedule).makespan <= schedule.details["latency"] * (1 + 1e-9)


def test_stages_are_streams_in_order_on_no_more_streams():
    for seed in range(40):
        graph = random_graph(seed)
        schedule = ios(graph, 2, max_states=128)
        stages = schedule.details["stages"]
        assert max(map(len, stages), default=0) <= 2
        assert [v for streams in stages for stream in streams for v in stream] == list(schedule.order)
        verify(schedule)


class _Profiler:
    """A made-up machine on which running side by side costs a little, that counts what it is asked."""

    def __init__(self, graph):
        self.graph = graph
        self.seen = []

    def __call__(self, streams):
        self.seen.append(streams)
        loads = [sum(self.graph.costs[v] for v in stream) for stream in streams]
        return max(loads) * (1 + 0.2 * (len(streams) - 1))


def test_each_ending_is_measured_once():
    graph = block("E")
    profiler = _Profiler(graph)
    details = ios(graph, 3, latency=profiler).details
    assert len(profiler.seen) == details["endings"]
    assert details["endings"] < details["transitions"]


def test_costs_of_company_are_seen():
    graph = DependencyGraph([], [1, 1], num_nodes=2)
    assert ios(graph, 2, latency=lambda streams: [1, 3][len(streams) - 1]).details["stages"] == [((0,),), ((1,),)]
    assert ios(graph, 2, latency=lambda streams: [1, 1.5][len(streams) - 1]).details["stages"] == [((0,), (1,))]


def test_convolutions_of_one_image_are_merged_where_that_is_faster():
    graph = fork_join(3, 1, (1, 4, 4, 4, 1))
    schedule = ios(graph, 2, merge=lambda nodes: 5.0 if set(nodes) <= {1, 2, 3} else None)
    assert Run(1, (2, 3)) in schedule.instructions
    assert schedule.details["latency"] == 7
    assert schedule.merged_costs == {(1, 2, 3): 5.0}
    assert simulate(schedule).makespan == 7
    verify(schedule)
    slow = ios(graph, 2, merge=lambda nodes: 100.0)
    assert not slow.merged_costs
    assert slow.details["latency"] == 10


def test_blocks_end_where_every_path_passes():
    graph = DependencyGraph(stacked(3, 3, 1))
    blocks = split_blocks(graph, 20, 8192)
    reach = reachable(list(graph.edges), graph.num_nodes)
    ends = [b.nodes[-1] for b in blocks]
    cuts = [v for v in graph.nodes if all(u == v or u in reach[v] or v in reach[u] for u in graph.nodes)]
    assert sorted(ends) == cuts
    assert tuple(v for b in blocks for v in b.nodes) == graph.order


def test_cuts_equal_the_comparable_nodes_of_random_graphs():
    for seed in range(100):
        graph = random_graph(seed)
        reach = reachable(list(graph.edges), graph.num_nodes)
        cuts = {v for v in graph.nodes if all(u == v or u in reach[v] or v in reach[u] for u in graph.nodes)}
        ends = {b.nodes[-1] for b in split_blocks(graph, 62, 2**20)}
        assert ends - {graph.order[-1]} == cuts - {graph.order[-1]}


def test_wide_graphs_are_chopped_and_stay_quick():
    graph = DependencyGraph([], num_nodes=60)
    schedule = ios(graph, 4, max_states=64)
    verify(schedule)
    assert schedule.details["blocks"] == 16
    assert schedule.details["states"] <= 64 * 16
    assert simulate(schedule).makespan < simulate(sequential(graph)).makespan


@pytest.mark.parametrize("value", [0, -1, 1.5, "3"])
def test_the_limit_must_be_a_count(value):
    with pytest.raises(InvalidArgumentError, match="max_states") as caught:
        ios(block("A"), 2, max_states=value)
    assert caught.value.fields["max_states"] == value


@pytest.mark.parametrize("bad", [-1, float("nan"), float("inf"), None, "fast"])
def test_bad_latencies(bad):
    with pytest.raises(InvalidArgumentError, match="latency"):
        ios(block("A"), 2, latency=lambda streams: bad)
    if bad is not None:
        with pytest.raises(InvalidArgumentError, match="merged"):
            ios(fork_join(2, 1), 2, merge=lambda nodes: bad)


def test_nodes_that_cost_nothing_are_scheduled():
    graph = DependencyGraph([(0, k) for k in range(1, 6)], [0.0] * 6)
    schedule = ios(graph, streams=2)
    verify(schedule)
    assert sorted(node for nodes in schedule.streams for node in nodes) == list(range(6))
