import itertools

import pytest

from graphpool.errors import ScheduleError
from graphpool.schedule import (
    DependencyGraph,
    Run,
    Schedule,
    SetStream,
    StreamBarrier,
    asap,
    auto,
    happens_before,
    ios,
    list_schedule,
    nimble,
    replay,
    sequential,
    wavefront,
)
from tests.cases.schedule_graphs import fork_join, random_graph
from tests.helpers.schedule_programs import reachable

POLICIES = [sequential, wavefront, asap, nimble, list_schedule, lambda g: ios(g, 3, max_states=64), auto]


class CaptureDriver:
    """Records a graph by the rules of stream capture and refuses what they forbid.

    A stream carries the set of nodes that its next node depends on; an event is a copy of that set. A stream takes part
    once it waits for an event of one that does, and must be joined to the origin before the end.
    """

    def __init__(self):
        self.pending = {}
        self.capturing = set()
        self.origin = None
        self.unjoined = set()
        self.edges = []
        self.nodes = []
        self.calls = 0

    def create_stream(self):
        self.calls += 1
        stream = f"stream{len(self.pending)}"
        self.pending[stream] = ()
        return stream

    def begin_capture(self, stream):
        assert self.origin is None
        self.origin = stream
        self.capturing.add(stream)

    def record_event(self, stream):
        assert stream in self.capturing
        return stream, self.pending[stream], len(self.nodes)

    def wait_event(self, stream, event):
        source, nodes, _ = event
        assert source in self.capturing
        self.capturing.add(stream)
        if stream != self.origin:
            self.unjoined.add(stream)
        elif event[1] == self.pending[source]:
            self.unjoined.discard(source)
        self.pending[stream] = tuple(dict.fromkeys(self.pending[stream] + nodes))

    def launch(self, stream, work):
        assert stream in self.capturing
        work(stream)

    def add_node(self, nodes, stream):
        self.edges += [(earlier, nodes) for earlier in self.pending[stream]]
        self.pending[stream] = (nodes,)
        self.nodes.append(nodes)
        if stream != self.origin:
            self.unjoined.add(stream)

    def end_capture(self, stream):
        assert stream == self.origin
        assert not self.unjoined
        return self.edges


def captured(schedule):
    driver = CaptureDriver()
    edges = replay(schedule, driver, driver.add_node, capture=True)
    assert sorted(v for nodes in driver.nodes for v in nodes) == list(schedule.graph.nodes)
    return edges


@pytest.mark.parametrize("policy", POLICIES)
def test_the_captured_graph_orders_what_the_schedule_orders(policy):
    for seed in range(60):
        schedule = policy(random_graph(seed))
        edges = [(u, v) for a, b in captured(schedule) for u in a for v in b]
        relation = happens_before(schedule)
        reach = reachable(edges, schedule.graph.num_nodes)
        assert all(relation(u, v) == (v in reach[u]) for u in schedule.graph.nodes for v in schedule.graph.nodes)


@pytest.mark.parametrize("policy", [nimble, asap, list_schedule])
def test_the_captured_edges_are_stream_order_and_waits(policy):
    for seed in range(60):
        schedule = policy(random_graph(seed))
        edges = {(a[0], b[0]) for a, b in captured(schedule)}
        same = {(u, v) for nodes in schedule.streams for u, v in itertools.pairwise(nodes)}
        assert same <= edges
        assert len(edges - same) == schedule.num_waits
        assert edges - same <= set(schedule.graph.edges)


def test_merged_calls_are_launched_once():
    schedule = ios(fork_join(3, 1), 2, merge=lambda nodes: 0.5)
    assert ((0,), (1, 2, 3)) in captured(schedule)


def test_streams_that_open_after_a_barrier_wait_for_it():
    graph = DependencyGraph([(0, 2), (1, 2)])
    program = [SetStream(0, 7), Run(0), SetStream(0, 3), Run(1), StreamBarrier(), SetStream(0, 9), Run(2)]
    assert captured(Schedule(graph, program)) == [((0,), (2,)), ((1,), (2,))]


def test_without_capture_the_origin_ends_last():
    driver = CaptureDriver()
    driver.capturing = {f"stream{i}" for i in range(9)}
    driver.origin = "stream0"
    origin = replay(list_schedule(fork_join(2, 2)), driver, driver.add_node)
    assert origin == "stream0"
    assert not driver.unjoined


def test_an_empty_schedule_is_captured():
    assert captured(sequential(DependencyGraph([]))) == []


def test_nothing_is_issued_of_a_malformed_program():
    driver = CaptureDriver()
    with pytest.raises(ScheduleError, match="never runs"):
        replay(Schedule(fork_join(2, 1), (Run(0),)), driver, driver.add_node, capture=True)
    assert driver.calls == 0
