"""Schedules on streams and events: none is reported, and each wait that is left out is, where an independent judge says
that it was needed."""

import os
import random

import numpy as np
import pytest
from cuda.bindings import driver as cuda

from graphpool.schedule import DependencyGraph, asap, ios, list_schedule, nimble, replay, wavefront
from tests.helpers.cuda_device import check, synchronize

POLICIES = {"asap": asap, "ios": ios, "list": list_schedule, "nimble": nimble, "wavefront": wavefront}
NODES = 10
GRAPHS = int(os.environ.get("GRAPHPOOL_TEST_GRAPHS", "3"))


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
    """Streams of cuda.core, to which `replay` gives a schedule: the wait of number `left_out` is left out."""

    def __init__(self, kit, edges, streams, left_out=None):
        self.kit, self.judge, self.left_out, self.waits = kit, Judge(edges), left_out, 0
        self.streams = streams
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

    def run(self, number, nodes):
        """The sum of what each node needs, into its own buffer; those that need nothing read ones."""
        for node in nodes:
            first, *rest = [self.out[need] for need in sorted(self.judge.needs[node])] or [self.ones]
            second = rest[0] if rest else first
            self.judge.run(number, node)
            self.kit.add(self.stream(number), self.out[node], first, second)

    def capture(self, schedule):
        """The same into a graph with parallel branches: all streams begin behind the first, and end before its end."""
        first, *others = [self.stream(number) for number in schedule.stream_ids]
        check(cuda.cuStreamBeginCapture(first.handle, cuda.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_GLOBAL))
        start = first.record()
        for stream in others:
            stream.wait(start)
        replay(schedule, self)
        for stream in others:
            first.wait(stream.record())
        return check(cuda.cuStreamEndCapture(first.handle))


@pytest.fixture
def streams():
    found = []
    yield found
    for stream in found:
        stream.close()


def directly(streams, schedule):
    replay(schedule, streams)


def captured(streams, schedule):
    """One capture, two launches."""
    graph = streams.capture(schedule)
    executable = check(cuda.cuGraphInstantiate(graph, 0))
    for _ in range(2):
        check(cuda.cuGraphLaunch(executable, streams.kit.a.handle))
    check(cuda.cuGraphExecDestroy(executable))
    check(cuda.cuGraphDestroy(graph))


def played(driver, kit, policy, seed, streams, how, left_out=None):
    graph, edges = random_graph(seed)
    driver.seed(seed)
    found = Replay(kit, edges, streams, left_out)
    how(found, POLICIES[policy](graph))
    synchronize()
    kinds = {kind for kind in driver.kinds() if kind != "uninitialised read"}
    assert kinds <= {"use without order"}
    return found, bool(kinds)


@pytest.mark.planted
@pytest.mark.parametrize("seed", range(GRAPHS))
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("how", [directly, captured])
def test_each_wait_left_out_is_found_or_harmless(driver, kit, streams, how, policy, seed):
    whole, is_found = played(driver, kit, policy, seed, streams, how)
    assert (whole.judge.is_broken, is_found) == (False, False)
    for left_out in range(whole.waits):
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
        whole, _ = played(driver, kit, policy, seed, streams, how)
        for buffer, value in zip(whole.out, expected(random_graph(seed)[1]), strict=True):
            np.testing.assert_array_equal(kit.read(buffer), np.broadcast_to(value, kit.n))
