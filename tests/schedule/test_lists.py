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
    ios,
    list_schedule,
    nimble,
    sequential,
    wavefront,
)
from graphpool.schedule.control import ListedCall, stream_lists
from graphpool.schedule.ordering import happens_before
from tests.cases.schedule_graphs import fork_join, random_graph

POLICIES = (sequential, wavefront, asap, nimble, list_schedule, lambda graph: ios(graph, 3, max_states=64))


def test_a_fork_join_on_two_streams():
    first, second = stream_lists(list_schedule(fork_join(2, 1, (1, 3, 5, 2))))
    assert first == (
        ListedCall((0,), is_event=True),
        ListedCall((2,)),
        ListedCall((3,), waits=((1, 1),)),
    )
    assert second == (ListedCall((1,), waits=((0, 1),), is_event=True),)


def test_a_barrier_waits_for_everything_issued_before():
    program = (Run(0), SetStream(0, 4), Run(1), StreamBarrier(), SetStream(0, 7), Run(2), SetStream(0, 0), Run(3))
    lists = stream_lists(Schedule(DependencyGraph([], num_nodes=4), program))
    assert lists[2] == (ListedCall((2,), waits=((0, 1), (1, 1))),)
    assert lists[0][1] == ListedCall((3,), waits=((1, 1),))


def test_an_event_without_work_carries_what_its_stream_waited_for():
    program = (
        Run(0), AddEvent(0), SetStream(0, 1), WaitEvent(0), AddEvent(1), SetStream(0, 2), WaitEvent(1), Run(1),
    )  # fmt: skip
    lists = stream_lists(Schedule(DependencyGraph([(0, 1)]), program))
    assert lists == ((ListedCall((0,), is_event=True),), (ListedCall((1,), waits=((0, 1),)),))


def test_a_program_that_is_none_is_refused():
    with pytest.raises(ScheduleError, match="never added"):
        stream_lists(Schedule(DependencyGraph([], num_nodes=1), (WaitEvent(3), Run(0))))


def _orders(lists):
    """Happens-before of the lists: stream order and waits, closed under paths."""
    before = {}
    todo = [list(calls) for calls in lists]
    while any(todo):
        for stream, calls in enumerate(todo):
            while calls and all(count <= len(lists[s]) - len(todo[s]) for s, count in calls[0].waits):
                call, place = calls.pop(0), len(lists[stream]) - len(calls) - 1
                direct = [lists[s][count - 1] for s, count in call.waits] + list(
                    lists[stream][max(place - 1, 0) : place]
                )
                before[call.nodes[0]] = set().union(*({d.nodes[0]} | before[d.nodes[0]] for d in direct))
    return before


@pytest.mark.parametrize("seed", range(40))
def test_lists_order_just_what_the_schedule_orders(seed):
    graph = random_graph(seed)
    for policy in POLICIES:
        schedule = policy(graph)
        relation = happens_before(schedule)
        for node, earlier in _orders(stream_lists(schedule)).items():
            assert sum(1 << v for v in earlier) == relation.all_before([node])
