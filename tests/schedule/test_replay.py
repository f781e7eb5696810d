import pytest

from graphpool.errors import InvalidArgumentError, ScheduleError
from graphpool.schedule import (
    AddEvent,
    Run,
    Schedule,
    WaitEvent,
    asap,
    ios,
    list_schedule,
    nimble,
    replay,
    sequential,
    wavefront,
)
from tests.cases.schedule_graphs import random_graph


class Past:
    """Streams that know which nodes are behind each, as plain sets."""

    def __init__(self, left_out=None):
        self.past, self.before, self.waits, self.left_out = {}, {}, 0, left_out

    def run(self, stream, nodes):
        past = self.past.setdefault(stream, set())
        for node in nodes:
            assert node not in self.before
            self.before[node] = set(past)
        past.update(nodes)

    def record(self, stream):
        return set(self.past.setdefault(stream, set()))

    def wait(self, stream, event):
        self.waits += 1
        if self.waits - 1 != self.left_out:
            self.past.setdefault(stream, set()).update(event)

    def broken(self, graph):
        return {(u, v) for u, v in graph.edges if u not in self.before[v]}


@pytest.mark.parametrize("policy", [sequential, wavefront, asap, nimble, list_schedule, ios])
def test_all_nodes_run_behind_what_they_need(policy):
    needed = 0
    for seed in range(20):
        graph = random_graph(seed)
        schedule, whole = policy(graph), Past()
        replay(schedule, whole)
        assert set(whole.before) == set(graph.nodes)
        assert whole.broken(graph) == set()
        for left_out in range(whole.waits):
            other = Past(left_out)
            replay(schedule, other)
            needed += bool(other.broken(graph))
    assert (needed > 0) == (policy is not sequential)


def test_a_wait_for_nothing_is_refused():
    graph = random_graph(0)
    early = Schedule(graph, (WaitEvent(3), *(Run(node) for node in graph.order), AddEvent(3)))
    with pytest.raises(ScheduleError, match="event 3 is waited for before it is added"):
        replay(early, Past())


def test_what_is_no_schedule_is_refused():
    with pytest.raises(InvalidArgumentError, match="schedule"):
        replay(None, None)
