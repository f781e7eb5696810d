"""Schedules on streams and events: none is reported, and each wait that is left out is, where an independent judge says
that it was needed."""

import random

import numpy as np
import pytest
from cuda.bindings import driver as cuda

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
from tests.helpers.cuda_device import check, synchronize

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
        *self.out, self.ones = kit.ready(NODES + 1)

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
        """The sum of what the node needs, into its own buffer; those that need nothing read ones."""
        first, *rest = [self.out[need] for need in sorted(self.judge.needs[node])] or [self.ones]
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

    def capture(self, schedule):
        """The same into a graph with parallel branches: all streams begin behind the first, and end before its end."""
        count = 1 + max((step.stream_id for step in schedule.instructions if isinstance(step, SetStream)), default=0)
        origin = self.stream(0)
        check(cuda.cuStreamBeginCapture(origin.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        start = origin.record()
        for number in range(1, count):
            self.stream(number).wait(start)
        self.play(schedule)
        for number in range(1, count):
            origin.wait(self.stream(number).record())
        return check(cuda.cuStreamEndCapture(origin.handle))


@pytest.fixture
def streams():
    found = []
    yield found
    for stream in found:
        stream.close()


def directly(replay, schedule):
    replay.play(schedule)


def captured(replay, schedule):
    """One capture, two launches."""
    graph = replay.capture(schedule)
    executable = check(cuda.cuGraphInstantiate(graph, 0))
    for _ in range(2):
        check(cuda.cuGraphLaunch(executable, replay.kit.a.handle))
    check(cuda.cuGraphExecDestroy(executable))
    check(cuda.cuGraphDestroy(graph))


def played(driver, kit, policy, seed, streams, how, left_out=None):
    graph, edges = random_graph(seed)
    driver.seed(seed)
    replay = Replay(kit, edges, streams, left_out)
    how(replay, POLICIES[policy](graph))
    synchronize()
    found = {kind for kind in driver.kinds() if kind != "uninitialised read"}
    assert found <= {"use without order"}
    return replay, bool(found)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("how", [directly, captured])
def test_each_wait_left_out_is_found_or_harmless(driver, kit, streams, how, policy, seed):
    replay, is_found = played(driver, kit, policy, seed, streams, how)
    assert (replay.judge.is_broken, is_found) == (False, False)
    for left_out in range(replay.waits):
        broken, is_found = played(driver, kit, policy, seed, streams, how, left_out)
        assert is_found == broken.judge.is_broken, left_out


def expected(edges):
    """What the nodes compute, in NumPy."""
    values = [np.ones(1, np.float32) for _ in range(NODES)]
    for node in range(NODES):
        needs = sorted(first for first, second in edges if second == node) or [node]
        values[node] = values[needs[0]] + values[needs[1] if len(needs) > 1 else needs[0]]
    return values


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("how", [directly, captured])
def test_numbers_do_not_depend_on_the_order(driver, kit, streams, how, policy):
    for seed in range(4):
        replay, _ = played(driver, kit, policy, seed, streams, how)
        for buffer, value in zip(replay.out, expected(random_graph(seed)[1]), strict=True):
            np.testing.assert_array_equal(kit.read(buffer), np.broadcast_to(value, kit.n))
