import itertools
import random

import pytest

from graphpool.errors import ScheduleError
from graphpool.schedule import (
    AddEvent,
    DependencyGraph,
    Run,
    Schedule,
    SetStream,
    StreamBarrier,
    WaitEvent,
    asap,
    nimble,
    verify,
    wavefront,
)
from graphpool.schedule.ordering import happens_before
from tests.cases.schedule_graphs import GOLDEN, parse, random_graph
from tests.helpers.schedule_programs import sync_indices, without, without_event

PAIR = DependencyGraph([(0, 1)], names=["head", "tail"])
S = SetStream


def schedule(*instructions, graph=PAIR):
    return Schedule(graph, instructions)


@pytest.mark.parametrize("events", [(0,), (1,), (0, 1)])
def test_dropped_events_of_the_simple_graph(events):
    with pytest.raises(ScheduleError, match="no path covers"):
        verify(without_event(asap(parse(GOLDEN["simple"])), *events))


@pytest.mark.parametrize("events", [(0,), (1,), (2,), (3,), (4,), (0, 1, 2, 3, 4)])
def test_dropped_events_of_the_stacked_graph(events):
    with pytest.raises(ScheduleError, match="no path covers"):
        verify(without_event(asap(parse(GOLDEN["stacked"])), *events))


@pytest.mark.parametrize("name", GOLDEN)
def test_every_subset_of_dropped_barriers_fails(name):
    valid = wavefront(parse(GOLDEN[name]))
    barriers = sync_indices(valid)
    assert barriers
    for size in range(1, len(barriers) + 1):
        for chosen in itertools.combinations(barriers, size):
            with pytest.raises(ScheduleError):
                verify(without(valid, *chosen))


def test_a_barrier_holds_streams_that_open_later():
    chain = DependencyGraph([(0, 1), (1, 2)])
    program = [S(0, 0), Run(0), Run(1), StreamBarrier(), S(0, 5), Run(2)]
    verify(schedule(*program, graph=chain))
    with pytest.raises(ScheduleError, match="1 -> 2") as caught:
        verify(schedule(*(i for i in program if i != StreamBarrier()), graph=chain))
    assert caught.value.edge == (1, 2)
    assert caught.value.streams == (0, 5)


def test_the_uncovered_edge_is_named():
    with pytest.raises(ScheduleError, match="head -> tail") as caught:
        verify(schedule(S(0, 1), Run(0), S(0, 2), Run(1)))
    assert caught.value.edge == (0, 1)


def test_waits_and_events_on_named_streams():
    verify(schedule(S(0, 1), Run(0), S(0, 2), AddEvent(0, 1), WaitEvent(0, 3), S(0, 3), Run(1)))
    with pytest.raises(ScheduleError, match="no path"):
        verify(schedule(S(0, 1), Run(0), S(0, 2), AddEvent(0, 1), WaitEvent(0), S(0, 3), Run(1)))


def test_an_event_carries_what_its_stream_waited_for():
    program = [S(0, 0), Run(0), AddEvent(0), S(0, 1), WaitEvent(0), AddEvent(1), S(0, 2), WaitEvent(1), Run(1)]
    verify(schedule(*program))


def test_an_event_added_before_the_producer_covers_nothing():
    with pytest.raises(ScheduleError, match="no path"):
        verify(schedule(S(0, 0), AddEvent(0), Run(0), S(0, 1), WaitEvent(0), Run(1)))


def test_the_consumer_issued_first_is_not_covered_on_one_stream():
    with pytest.raises(ScheduleError, match="no path"):
        verify(schedule(Run(1), Run(0)))


def test_merged_nodes_do_not_cover_one_another():
    with pytest.raises(ScheduleError, match="no path"):
        verify(schedule(Run(0, (1,))))


@pytest.mark.parametrize(
    ("instructions", "message", "field"),
    [
        ([Run(0), Run(0), Run(1)], r"node 0 \(head\) runs twice", {"node": 0}),
        ([Run(0), Run(1, (0,))], "runs twice", {"node": 0}),
        ([Run(0)], r"node 1 \(tail\) never runs", {"node": 1, "missing": (1,)}),
        ([Run(0), Run(1), Run(2)], "node 2 runs but is no node", {"node": 2}),
        ([Run(0), WaitEvent(7), Run(1)], "event 7, which was never added", {"event_id": 7, "index": 1}),
        ([WaitEvent(7), AddEvent(7), Run(0), Run(1)], "never added", {"event_id": 7, "index": 0}),
        ([AddEvent(1), Run(0), AddEvent(1), Run(1)], "event 1 is added twice", {"event_id": 1, "index": 2}),
        ([S(0, -1), Run(0), Run(1)], r"instructions\[0\].stream_id", {"stream_id": -1, "index": 0}),
        ([S(0, "x"), Run(0), Run(1)], "stream_id", {"stream_id": "x"}),
        ([S(0, True), Run(0), Run(1)], "stream_id", {"stream_id": True}),
        ([AddEvent(0, -2), Run(0), Run(1)], "stream_id", {"stream_id": -2}),
        ([AddEvent(-3), Run(0), Run(1)], "event_id", {"event_id": -3}),
        ([WaitEvent(None), Run(0), Run(1)], "event_id", {"event_id": None}),
    ],
)
def test_malformed_programs(instructions, message, field):
    with pytest.raises(ScheduleError, match=message) as caught:
        verify(schedule(*instructions))
    for name, value in field.items():
        assert caught.value.fields[name] == value


def _naive_order(program, nodes):
    """Happens-before by fixed point over instructions: an independent reading of what they mean."""
    edges, last, current, added, barrier = set(), {}, 0, {}, None
    for index, item in enumerate(program.instructions):
        if isinstance(item, SetStream):
            current = item.stream_id
            continue
        if isinstance(item, StreamBarrier):
            edges |= {(i, index) for i in range(index)}
            barrier, last = index, {}
            continue
        edges |= {(i, index) for i in (last.get(current), barrier) if i is not None}
        if isinstance(item, WaitEvent):
            edges.add((added[item.event_id], index))
        elif isinstance(item, AddEvent):
            added[item.event_id] = index
        last[current] = index
    size = len(program.instructions)
    before = [{u for u, v in edges if v == index} for index in range(size)]
    for index in range(size):
        before[index] |= {w for u in before[index] for w in before[u]}
    where = {i.node: index for index, i in enumerate(program.instructions) if isinstance(i, Run)}
    return {(u, v) for u in nodes for v in nodes if where[u] in before[where[v]]}


@pytest.mark.parametrize("policy", [wavefront, asap, nimble])
def test_agrees_with_a_second_reading_of_mutated_programs(policy):
    rng = random.Random(1)
    for seed in range(60):
        graph = random_graph(seed)
        valid = policy(graph)
        sync = sync_indices(valid)
        mutated = without(valid, *rng.sample(sync, min(len(sync), rng.randint(0, 2))))
        ordered = _naive_order(mutated, graph.nodes)
        relation = happens_before(mutated)
        assert {(u, v) for u in graph.nodes for v in graph.nodes if relation(u, v)} == ordered
        if all(edge in ordered for edge in graph.edges):
            verify(mutated)
        else:
            with pytest.raises(ScheduleError) as caught:
                verify(mutated)
            assert caught.value.edge not in ordered
