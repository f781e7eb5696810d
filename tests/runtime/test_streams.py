"""Streams of calls that only take time: what runs, in which order, when one fails, and what is refused."""

import itertools
import random

import pytest

import graphpool as gp
from graphpool._kernels.core._team import Team
from graphpool.runtime._streams import MAX_STREAMS, StreamLists
from graphpool.schedule import (
    AddEvent,
    DependencyGraph,
    Run,
    Schedule,
    SetStream,
    StreamBarrier,
    WaitEvent,
    asap,
    ios,
    list_schedule,
    nimble,
    wavefront,
)
from graphpool.schedule.control import stream_lists
from tests.cases.schedule_graphs import fork_join, random_graph
from tests.helpers.memory import run_in_child, run_threads

POLICIES = (wavefront, asap, nimble, lambda graph: list_schedule(graph, 3), lambda graph: ios(graph, 3, max_states=64))


@pytest.fixture
def team():
    made = Team(4)
    yield made
    made.close()


def link(schedule, rng=None):
    """The lists of a schedule with one to four tasks a call, and the number of each node."""
    number = {node: k for k, node in enumerate(schedule.order)}
    return StreamLists(
        [
            [(number[call.nodes[0]], rng.randint(1, 4) if rng else 1, call.waits, call.is_event) for call in calls]
            for calls in stream_lists(schedule)
        ]
    ), number


def random_topological(graph, rng):
    """A schedule that only has to be valid: any order, any stream, an event at every edge, some barriers."""
    need = {v: len(graph.predecessors[v]) for v in graph.nodes}
    ready = [v for v in graph.nodes if not need[v]]
    program, streams = [], rng.randint(1, 6)
    while ready:
        node = ready.pop(rng.randrange(len(ready)))
        program.append(SetStream(0, rng.randrange(streams)))
        program += [WaitEvent(producer) for producer in graph.predecessors[node]]
        program += [Run(node), AddEvent(node)]
        if rng.random() < 0.1:
            program.append(StreamBarrier())
        for consumer in graph.successors[node]:
            need[consumer] -= 1
            if not need[consumer]:
                ready.append(consumer)
    return Schedule(graph, program)


def check(graph, schedule, team, rng, spin):
    lists, number = link(schedule, rng)
    times = lists.rehearse(team, [rng.choice([0, 0, 500, 20_000]) for _ in graph.nodes], spin=spin)
    assert all(0 < start <= end for start, end in times)
    assert all(times[number[u]][1] <= times[number[v]][0] for u, v in graph.edges)


@pytest.mark.parametrize("seed", range(60))
def test_every_edge_is_respected_whatever_takes_how_long(team, seed):
    rng = random.Random(seed)
    graph = random_graph(seed)
    for policy in POLICIES:
        check(graph, policy(graph), team, rng, spin=seed % 2 == 0)
    check(graph, random_topological(graph, rng), team, rng, spin=True)


def test_more_streams_than_threads_end_too():
    rng = random.Random(1)
    graph = fork_join(40, 3)
    for threads in (2, 3):
        team = Team(threads)
        schedule = wavefront(graph)
        assert len(schedule.stream_ids) == 40
        check(graph, schedule, team, rng, spin=False)
        team.close()


def test_nobody_waits_for_a_thread_that_is_late(team):
    """Stream 1 is taken over by the caller's thread when no other thread is there in time."""
    graph = DependencyGraph([(0, 1), (1, 2), (2, 3)])
    program = [SetStream(0, 1), Run(0), AddEvent(0), SetStream(0, 0), WaitEvent(0), Run(1), AddEvent(1)]
    program += [SetStream(0, 1), WaitEvent(1), Run(2), AddEvent(2), SetStream(0, 0), WaitEvent(2), Run(3)]
    lists, _ = link(Schedule(graph, program))
    for _ in range(200):
        times = lists.rehearse(team, [0] * 4)
        assert all(a[1] <= b[0] for a, b in itertools.pairwise(times))


def test_a_failing_call_stops_all_streams_once(team):
    graph = fork_join(4, 5)
    for schedule in (list_schedule(graph, 4), wavefront(graph)):
        lists, number = link(schedule)
        for node in (0, 7, graph.num_nodes - 1):
            with pytest.raises(gp.BackendError, match=f"call {number[node]} failed") as caught:
                lists.rehearse(team, [1000] * len(graph), failing=number[node])
            assert caught.value.call == number[node]
        lists.rehearse(team, [0] * len(graph))  # and the team goes on


def test_threads_with_teams_of_their_own_do_not_disturb_one_another():
    graph = fork_join(3, 6)
    lists, number = link(list_schedule(graph, 3))

    def work(i):
        team = Team(3)
        for _ in range(50):
            times = lists.rehearse(team, [i * 1000] * len(graph))
            assert all(times[number[u]][1] <= times[number[v]][0] for u, v in graph.edges)
        team.close()

    run_threads(4, work)


def test_a_forked_child_runs_its_own(team):
    lists, _ = link(list_schedule(fork_join(3, 3), 3))
    lists.rehearse(team, [1000] * lists.ncalls)
    run_in_child(lambda: lists.rehearse(team, [1000] * lists.ncalls))


def test_a_busy_team_is_reported(team):
    lists, _ = link(list_schedule(fork_join(2, 2), 2))
    outcomes = []

    def work(_):
        for _ in range(20):
            try:
                lists.rehearse(team, [200_000] * lists.ncalls)
                outcomes.append("ran")
            except gp.StateError:
                outcomes.append("busy")

    run_threads(2, work)
    assert len(outcomes) == 40
    assert "ran" in outcomes


def test_what_it_says_of_itself(team):
    lists = StreamLists([[(0, 1, [], True), (2, 1, [(1, 1)], False)], [(1, 1, [(0, 1)], True)]])
    assert (lists.nstreams, lists.ncalls, len(lists), lists.stream_of()) == (2, 3, 2, [0, 1, 0])
    assert repr(lists) == "StreamLists(2 streams, 3 calls)"
    assert StreamLists([]).rehearse(team, []) == []
    with pytest.raises(gp.InvalidArgumentError, match="3 values"):
        lists.rehearse(team, [0])


@pytest.mark.parametrize(
    ("lists", "message"),
    [
        ([[(0, 1, [], False)], [(0, 1, [], False)]], "each once"),
        ([[(1, 1, [], False)]], "each once"),
        ([[(1, 1, [], False), (0, 1, [], False)]], "ascending"),
        ([[(0, 1, [(1, 1)], False)], [(1, 1, [], True)]], "issued before"),
        ([[(0, 1, [(1, 1)], False)]], "issued before"),
        ([[(0, 1, [(0, 2)], False)]], "issued before"),
        ([[(0, -1, [], False)]], "tasks"),
        ([[]] * (MAX_STREAMS + 1), "at most 64"),
    ],
)
def test_lists_that_could_not_end_are_refused(lists, message):
    with pytest.raises(gp.InvalidArgumentError, match=message):
        StreamLists(lists)
