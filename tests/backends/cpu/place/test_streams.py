"""Which steps read of which, and what a step is taken to cost."""

import pytest

import graphpool as gp
from graphpool.backends.cpu.backend import lower
from graphpool.backends.cpu.place.streams import StepGraph, schedule_steps, step_edges, step_signature
from graphpool.runtime.costs import cost_key, step_costs
from graphpool.runtime.machine import MEMORY_BANDWIDTH, THREAD_FLOPS
from graphpool.runtime.scheduling import SEQUENTIAL, ScheduleOptions
from graphpool.schedule import verify
from tests.cases.graphs import GraphBuilder
from tests.cases.stream_graphs import branches, random_branches


def lowered(build):
    """The lowering of a whole graph, its ops, and its numbers of inputs and outputs."""
    builder = GraphBuilder()
    build(builder)
    whole = builder.graph.merge_partitions(builder.finish())
    outputs = [lt.replace(shape=builder.graph_shape(lt)) for lt in whole.output_ports]
    ports = len(whole.input_ports), len(outputs)
    return lower(whole.ops, whole.input_ports, outputs), whole.ops, ports


def names(steps, edges):
    return sorted((steps[u].name.split(":")[0], steps[v].name.split(":")[0]) for u, v in edges)


def test_readers_come_after_the_writer():
    def build(g):
        x = g.op("SoftMax", g.input((8, 8)), axis=-1)
        y, z = g.op("SoftMax", x, axis=0), g.op("SoftMax", x, axis=1)
        g.op("Concat", y, z, axis=1)

    lowering, _, ports = lowered(build)
    assert step_edges(lowering.steps, *ports) == [(0, 1), (0, 2), (1, 3), (2, 3)]


def test_parts_of_a_joined_tensor_do_not_wait_for_each_other():
    def build(g):
        x = g.op("SoftMax", g.input((8, 8)), axis=-1)
        y, z = g.op("SoftMax", x, axis=0), g.op("SoftMax", x, axis=1)
        joined = g.op("Concat", y, z, axis=0)
        g.op("SoftMax", joined, axis=0)
        g.op("SoftMax", y, axis=0)

    lowering, _, ports = lowered(build)
    assert step_edges(lowering.steps, *ports) == [(0, 1), (1, 2), (0, 3), (1, 4), (3, 4)]


def test_inputs_and_literals_order_nothing():
    def build(g):
        x = g.input((8, 8))
        for axis in (0, 1):
            g.op("SoftMax", x, axis=axis)

    lowering, _, ports = lowered(build)
    assert step_edges(lowering.steps, *ports) == []


def test_readers_come_after_every_step_that_may_have_written():
    """A product runs with weights in panels, or without: neither waits for the other, what follows waits for both."""

    def build(g):
        x = g.op("SoftMax", g.input((8, 160)), axis=-1)
        g.op("SoftMax", g.op("MatMul", x, g.input((160, 160), property="constant")), axis=-1)

    lowering, _, ports = lowered(build)
    first, *products, last = lowering.steps
    assert [step.guard is None for step in lowering.steps] == [True, False, False, True]
    assert sorted(step.guard[1] for step in products) == [False, True]
    assert (first, last) == (lowering.steps[0], lowering.steps[3])
    assert step_edges(lowering.steps, *ports) == [(0, 1), (0, 2), (1, 3), (2, 3)]


@pytest.mark.parametrize("seed", range(10))
def test_schedules_respect_the_edges(seed):
    lowering, ops, ports = lowered(random_branches(seed))
    for policy in ("list", "wavefront", "auto"):
        plan = schedule_steps(lowering, ops, ports, 4, ScheduleOptions(policy, 4))
        verify(plan.schedule)
        assert set(plan.schedule.graph.edges) == set(step_edges(lowering.steps, *ports))
        assert len(plan.speedups) == len(lowering.steps)


def test_nobody_is_asked_about_a_schedule_in_vain():
    lowering, ops, ports = lowered(branches)
    for threads, options in ((1, ScheduleOptions("list", 2)), (4, SEQUENTIAL), (4, ScheduleOptions("auto", 1))):
        plan = schedule_steps(lowering, ops, ports, threads, options)
        assert plan.schedule is None
        assert not plan.is_parallel


def test_costs_follow_the_work_and_give_way_to_measured_ones():
    def build(g):
        for n in (32, 64):
            g.op("MatMul", g.input((n, n)), g.input((n, n)))

    lowering, ops, ports = lowered(build)
    options = ScheduleOptions("list", 2)
    guessed = schedule_steps(lowering, ops, ports, 2, options).schedule.graph.costs
    assert 0 < guessed[0] < guessed[1]
    for threads, seconds in ((1, 8.0), (2, 5.0)):
        step_costs().put(cost_key(step_signature(lowering.steps[0]), threads), seconds)
    plan = schedule_steps(lowering, ops, ports, 2, options)
    assert plan.schedule.graph.costs == (8.0, guessed[1])
    assert plan.speedups[0] == 8 / 5


def test_steps_for_missing_constants_cost_nothing():
    lowering, ops, ports = lowered(branches)
    costs = schedule_steps(lowering, ops, ports, 2, ScheduleOptions("list", 2)).schedule.graph.costs
    free = [step.guard is not None and not step.guard[1] for step in lowering.steps]
    assert [cost == 0 for cost in costs] == free
    assert any(free)


def test_signatures_tell_shapes_types_and_parameters_apart():
    def build(g):
        for shape, axis in (((8, 8), 0), ((8, 8), 1), ((8, 9), 0), ((8, 8), 0)):
            g.op("SoftMax", g.input(shape), axis=axis)

    lowering, _, _ = lowered(build)
    a, b, c, again = map(step_signature, lowering.steps)
    assert len({a, b, c}) == 3
    assert a == again


def test_every_policy_is_offered_for_partitions():
    for policy in ("wavefront", "asap", "nimble", "list", "ios", "auto", "sequential"):
        builder = GraphBuilder()
        branches(builder)
        whole = builder.graph.merge_partitions(builder.finish())
        outputs = [lt.replace(shape=None) for lt in whole.output_ports]
        with (
            gp.Engine(threads=2) as engine,
            whole.compile(whole.input_ports, outputs, engine, schedule=policy, streams=2) as compiled,
        ):
            assert compiled.primitive.details.nodes == tuple(
                compiled.schedule.order if compiled.program.streams is not None else range(len(compiled.program))
            )


def test_alternatives_are_placed_as_one():
    lowering, ops, ports = lowered(branches)
    steps = StepGraph.of(lowering, ops, ports, 2)
    assert sorted(step for unit in steps.units.values() for step in unit) == list(range(len(lowering.steps)))
    for main, unit in steps.units.items():
        guards = {step: lowering.steps[step].guard for step in unit}
        wanted = [step for step, guard in guards.items() if guard is None or guard[1]]
        assert wanted == [main]
        assert len(unit) == 1 or len({base for base, _ in guards.values()}) == 1
    assert max(map(len, steps.units.values())) > 1
    for policy in ("wavefront", "asap", "nimble", "list", "ios"):
        schedule = schedule_steps(lowering, ops, ports, 2, ScheduleOptions(policy, 2)).schedule
        verify(schedule)
        stream_of = {node: stream for stream, nodes in enumerate(schedule.streams) for node in nodes}
        assert all(len({stream_of[step] for step in unit}) == 1 for unit in steps.units.values())


def test_convolutions_on_packed_weights_cost_what_they_compute():
    def build(g):
        for channels in (32, 64):
            x, weights = g.input((1, 16, 16, 32)), g.input((channels, 32, 3, 3), property="constant")
            g.op(
                "Convolution", x, weights, strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1], dilations=[1, 1],
                data_format="NXC", weights_format="OIX",
            )  # fmt: skip

    lowering, ops, ports = lowered(build)
    costs = schedule_steps(lowering, ops, ports, 2, ScheduleOptions("list", 2)).schedule.graph.costs
    narrow, wide = (cost for cost in costs if cost)
    assert 1.8 < wide / narrow < 2.1
    flops = 2 * 16 * 16 * 9 * 32 * 64
    assert wide > flops / max(THREAD_FLOPS.values())


def test_steps_that_caches_do_not_hold_share_main_memory():
    def build(g):
        for n in (64, 2048):
            g.op("SoftMax", g.input((n, 1024)), axis=-1)

    lowering, ops, ports = lowered(build)
    plan = schedule_steps(lowering, ops, ports, 16, ScheduleOptions("list", 16))
    assert plan.traffic == (0.0, 2.0 * 2048 * 1024 * 4)
    assert all(cost / speedup >= nbytes / MEMORY_BANDWIDTH for cost, speedup, nbytes in zip(
        plan.schedule.graph.costs, plan.speedups, plan.traffic, strict=True
    ))  # fmt: skip
