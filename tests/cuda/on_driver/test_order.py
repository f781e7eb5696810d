"""Schedules on streams and events: none is reported, and each wait that is left out is, where an independent judge says
that it was needed."""

import random

import numpy as np
import pytest

from graphpool.schedule import (
    AddEvent,
    DependencyGraph,
    Run,
    SetStream,
    StreamBarrier,
    WaitEvent,
    asap,
    ios,
    list_schedule,
    nimble,
    wavefront,
)
from tests.helpers.cuda_device import synchronize

POLICIES = {"asap": asap, "ios": ios, "list": list_schedule, "nimble": nimble, "wavefront": wavefront}
NODES = 10


def random_graph(seed):
    rng = random.Random(seed)
    edges = {(rng.randrange(node), node) for node in range(1, NODES) for _ in range(2)}
    return DependencyGraph(sorted(edges), num_nodes=NODES), sorted(edges)


class Judge:
    """Which nodes are behind each stream, as plain sets; knows nothing of the driver."""

    def __init__(self, edges):
        self.needs = {node: {first for first, second in edges if second == node} for node in range(NODES)}
        self.past = {}
        self.is_broken = False

    def run(self, stream, node):
        past = self.past.setdefault(stream, set())
        self.is_broken |= not self.needs[node] <= past
        past.add(node)

    def record(self, stream):
        return set(self.past.setdefault(stream, set()))

    def wait(self, stream, event):
        self.past.setdefault(stream, set()).update(event)


class Replay:
    """Instructions as calls of cuda.core: a wait is counted, and left out if it is the one of number `left_out`."""

    def __init__(self, kit, edges, streams, left_out=None):
        self.kit, self.judge, self.left_out, self.waits = kit, Judge(edges), left_out, 0
        self.streams, self.current, self.events = streams, 0, {}
        self.out = kit.ready(NODES)

    def stream(self, number):
        while len(self.streams) <= number:
            self.streams.append(self.kit.device.create_stream())
        return self.streams[number]

    def record(self, number):
        return self.stream(number).record(), self.judge.record(number)

    def wait(self, number, event):
        self.waits += 1
        if self.waits - 1 != self.left_out:
            self.stream(number).wait(event[0])
            self.judge.wait(number, event[1])

    def barrier(self, count):
        events = [self.record(number) for number in range(count)]
        for number in range(count):
            for other, event in enumerate(events):
                if other != number:
                    self.wait(number, event)

    def run(self, node):
        """The sum of what the node needs, into its own buffer."""
        first, *rest = [self.out[need] for need in sorted(self.judge.needs[node])] or [self.out[node]]
        second = rest[0] if rest else first
        self.judge.run(self.current, node)
        self.kit.add(self.stream(self.current), self.out[node], first, second)

    def play(self, schedule):
        count = 1 + max((step.stream_id for step in schedule.instructions if isinstance(step, SetStream)), default=0)
        for step in schedule.instructions:
            number = getattr(step, "stream_id", None)
            number = self.current if number is None or number < 0 else number
            match step:
                case SetStream():
                    self.current = step.stream_id
                case Run():
                    for node in step.nodes:
                        self.run(node)
                case AddEvent():
                    self.events[step.event_id] = self.record(number)
                case WaitEvent():
                    self.wait(number, self.events[step.event_id])
                case StreamBarrier():
                    self.barrier(count)
        synchronize()


@pytest.fixture
def streams():
    found = []
    yield found
    for stream in found:
        stream.close()


def played(driver, kit, policy, seed, streams, left_out=None):
    graph, edges = random_graph(seed)
    driver.seed(seed)
    replay = Replay(kit, edges, streams, left_out)
    replay.play(POLICIES[policy](graph))
    found = {kind for kind in driver.kinds() if kind != "uninitialised read"}
    assert found <= {"use without order"}
    return replay, bool(found)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", POLICIES)
def test_each_wait_left_out_is_found_or_harmless(driver, kit, streams, policy, seed):
    replay, is_found = played(driver, kit, policy, seed, streams)
    assert (replay.judge.is_broken, is_found) == (False, False)
    for left_out in range(replay.waits):
        broken, is_found = played(driver, kit, policy, seed, streams, left_out)
        assert is_found == broken.judge.is_broken, left_out


def expected(edges):
    """What the nodes compute, in NumPy."""
    values = [np.ones(1, np.float32) for _ in range(NODES)]
    for node in range(NODES):
        needs = sorted(first for first, second in edges if second == node) or [node]
        values[node] = values[needs[0]] + values[needs[1] if len(needs) > 1 else needs[0]]
    return values


@pytest.mark.parametrize("policy", POLICIES)
def test_numbers_do_not_depend_on_the_order(driver, kit, streams, policy):
    for seed in range(4):
        replay, _ = played(driver, kit, policy, seed, streams)
        for buffer, value in zip(replay.out, expected(random_graph(seed)[1]), strict=True):
            np.testing.assert_array_equal(kit.read(buffer), np.broadcast_to(value, kit.n))
