import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphpool.schedule import (
    AddEvent,
    DependencyGraph,
    Run,
    Schedule,
    SetStream,
    WaitEvent,
    list_schedule,
    simulate,
    verify,
)
from graphpool.schedule.policies.emit import emit
from tests.cases.schedule_graphs import gnp, series_parallel, watts_strogatz
from tests.helpers.schedule_programs import reachable


def _cross_edges(graph, order, stream_of):
    """Cross-stream edges of the transitive reduction of data edges and program order, by definition."""
    last, edges = {}, set(graph.edges)
    for node in order:
        if stream_of[node] in last:
            edges.add((last[stream_of[node]], node))
        last[stream_of[node]] = node
    kept = [e for e in edges if e[1] not in reachable([o for o in edges if o != e], graph.num_nodes)[e[0]]]
    return {(u, v) for u, v in kept if stream_of[u] != stream_of[v]}


def _wait_edges(schedule):
    added, edges, waiting, node = {}, set(), [], None
    for item in schedule.instructions:
        if isinstance(item, Run):
            edges |= {(source, item.node) for source in waiting}
            waiting, node = [], item.node
        elif isinstance(item, AddEvent):
            added[item.event_id] = node
        elif isinstance(item, WaitEvent):
            waiting.append(added[item.event_id])
    return edges


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 4), st.sampled_from([0.1, 0.3, 0.7]))
def test_waits_are_the_cross_edges_of_the_reduction(seed, n, streams, p):
    rng = random.Random(seed)
    graph = DependencyGraph(gnp(n, p, rng), num_nodes=n)
    order = list(graph.order)
    stream_of = {v: rng.randrange(streams) for v in order}
    schedule = Schedule(graph, emit(graph, [(v,) for v in order], [stream_of[v] for v in order]))
    verify(schedule)
    expected = _cross_edges(graph, order, stream_of)
    assert _wait_edges(schedule) == expected
    assert schedule.num_waits == len(expected)
    assert schedule.num_events == len({u for u, _ in expected})


FAMILIES = {
    "gnp": lambda rng: gnp(30, 0.12, rng),
    "ws": lambda rng: watts_strogatz(32, 4, 0.75, rng),
    "sp": lambda rng: series_parallel(5, rng),
}


def _lowest_stream(graph, start, end):
    """The same start times with each node on the lowest stream that is idle, whatever it reads."""
    busy_until, stream_of = [0.0, 0.0], {}
    for node in sorted(graph.nodes, key=lambda v: (start[v], v)):
        stream = min(s for s in range(2) if busy_until[s] <= start[node])
        busy_until[stream], stream_of[node] = end[node], stream
    return stream_of


@pytest.mark.parametrize("family", FAMILIES)
def test_two_streams_need_at_most_three_fifths_of_the_cross_edges(family):
    rng = random.Random(family)
    waits, cross = 0, 0
    for _ in range(20):
        graph = DependencyGraph(FAMILIES[family](rng))
        schedule = list_schedule(graph, 2)
        result = simulate(schedule)
        stream_of = _lowest_stream(graph, result.start, result.end)
        waits += schedule.num_waits
        cross += sum(stream_of[u] != stream_of[v] for u, v in graph.reduced_edges)
    assert waits <= 0.6 * cross


def test_events_are_numbered_in_issue_order_and_shared():
    graph = DependencyGraph([(0, 1), (0, 2), (1, 3), (2, 3)])
    program = emit(graph, [(0,), (1,), (2,), (3,)], [0, 1, 2, 0])
    s = [SetStream(0, stream) for stream in range(3)]
    assert program == (
        s[0], Run(0), AddEvent(0),
        s[1], WaitEvent(0), Run(1), AddEvent(1),
        s[2], WaitEvent(0), Run(2), AddEvent(2),
        s[0], WaitEvent(1), WaitEvent(2), Run(3),
    )  # fmt: skip


def test_a_merged_call_waits_for_what_any_of_its_nodes_reads():
    graph = DependencyGraph([(0, 2), (1, 3)])
    schedule = Schedule(graph, emit(graph, [(0,), (1,), (2, 3)], [0, 1, 0]))
    verify(schedule)
    assert schedule.instructions[-2:] == (WaitEvent(0), Run(2, (3,)))
