from graphpool.schedule import DependencyGraph, StreamBarrier, wavefront
from tests.cases.schedule_graphs import random_graph
from tests.helpers.schedule_programs import reachable


def _reference_partition(graph):
    """Waves as RAF's description puts them: walk while there is one consumer that waits for this node alone."""
    succ = {v: [w for u, w in graph.reduced_edges if u == v] for v in graph.nodes}
    need = {v: sum(w == v for _, w in graph.reduced_edges) for v in graph.nodes}
    placed, waves = set(), []
    while len(placed) < len(graph):
        wave = []
        for first in [v for v in graph.nodes if not need[v] and v not in placed]:
            chain = [first]
            if len(succ[first]) == 1:
                node = succ[first][0]
                while len(succ[node]) == 1 and need[node] == 1:
                    chain.append(node)
                    node = succ[node][0]
                if need[node] == 1:
                    chain.append(node)
            wave.append(tuple(chain))
        for chain in wave:
            placed |= set(chain)
            for node in chain:
                for consumer in succ[node]:
                    need[consumer] -= 1
        waves.append(set(wave))
    return waves


def _partition(schedule):
    waves, current = [[]], None
    for item in schedule.instructions:
        if isinstance(item, StreamBarrier):
            waves.append([])
        elif hasattr(item, "node"):
            current.append(item.node)
        else:
            current = []
            waves[-1].append(current)
    return [{tuple(chain) for chain in wave} for wave in waves]


def test_partition_equals_the_reference():
    for seed in range(200):
        graph = random_graph(seed)
        schedule = wavefront(graph)
        waves = _partition(schedule)
        assert waves == _reference_partition(graph)
        assert schedule.num_barriers == len(waves) - 1 == schedule.details["waves"] - 1
        assert schedule.num_events == schedule.num_waits == 0
        assert len(schedule.stream_ids) == max(map(len, waves))


def test_chains_of_a_wave_are_independent():
    for seed in range(100):
        graph = random_graph(seed)
        reach = reachable(list(graph.edges), graph.num_nodes)
        for wave in _partition(wavefront(graph)):
            for chain in wave:
                others = {v for other in wave if other != chain for v in other}
                assert not any(reach[v] & others for v in chain)


def test_a_shortcut_does_not_split_a_chain():
    assert wavefront(DependencyGraph([(0, 1), (0, 2), (1, 2)])).streams == [[0, 1, 2]]
