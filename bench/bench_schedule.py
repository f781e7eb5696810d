"""What do streams gain, what does each policy cost, and does `auto` choose well?

    python -m bench.bench_schedule                                # all tables, then the bars
    python -m bench.bench_schedule --model inception_v3.onnx      # and a whole network
    python -m pytest bench/bench_schedule.py -o addopts= --import-mode=importlib

Schedules are compared in blocks of Inception V3 at batch 1 with the same weights and inputs. They run in turns, in
another order each round, so that a slow spell of the machine meets all of them: times are medians, and how two compare
is the median of what they took in the same rounds. The costs of steps are measured before. Two quiet processors are
needed: where others use them too, the first table says so.
"""

from __future__ import annotations

import argparse
import random
import time
from contextlib import ExitStack

import numpy as np
import pytest

import graphpool as gp
from bench.bench_team import best_us
from graphpool._kernels.core._team import Team
from graphpool.profile import profile_ops, random_inputs
from graphpool.runtime import Model
from graphpool.runtime._streams import StreamLists
from graphpool.runtime.model_form import ModelForm
from graphpool.runtime.model_port import ModelPort
from graphpool.runtime.scheduling import POLICIES
from graphpool.schedule import DependencyGraph, ios, list_schedule, sequential, simulate
from graphpool.schedule.control import stream_lists
from tests.cases.graphs import GraphBuilder
from tests.cases.schedule_graphs import BLOCK_COSTS, block, fork_join

THREADS = 2
CONV = {"strides": [1, 1], "dilations": [1, 1], "data_format": "NCX", "weights_format": "OIX"}

# Branches: a kernel and its output channels, in turn; a list in place of a pair forks and is joined by the Concat.
A = [("1x1", 64)], [("1x1", 48), ("5x5", 64)], [("1x1", 64), ("3x3", 96), ("3x3", 96)], ["pool", ("1x1", 32)]
C = (
    [("1x1", 192)],
    [("1x1", 128), ("1x7", 128), ("7x1", 192)],
    [("1x1", 128), ("7x1", 128), ("1x7", 128), ("7x1", 128), ("1x7", 192)],
    ["pool", ("1x1", 192)],
)
E = (
    [("1x1", 320)],
    [("1x1", 384), [("1x3", 384), ("3x1", 384)]],
    [("1x1", 448), ("3x3", 384), [("1x3", 384), ("3x1", 384)]],
    ["pool", ("1x1", 192)],
)
BLOCKS = {"Inception A": (A, 192, 35), "Inception C": (C, 768, 17), "Inception E": (E, 1280, 8)}


def block_form(name):
    """One block as a model form with random weights."""
    branches, channels, size = BLOCKS[name]
    g, constants, rng = GraphBuilder(), {}, np.random.default_rng(0)
    x = g.input((1, channels, size, size))

    def convolve(source, kernel, outputs):
        height, width = map(int, kernel.split("x"))
        shape = (outputs, g.graph_shape(source)[1], height, width)
        weights, bias = g.input(shape, property="constant"), g.input((outputs,), property="constant")
        constants[weights.id] = (rng.standard_normal(shape) * np.prod(shape[1:]) ** -0.5).astype(np.float32)
        constants[bias.id] = rng.standard_normal(outputs).astype(np.float32)
        pads = {"pads_begin": [height // 2, width // 2], "pads_end": [height // 2, width // 2]}
        return g.op("ReLU", g.op("Convolution", source, weights, bias, **pads, **CONV))

    def pool(source):
        return g.op("AvgPool", source, kernel=[3, 3], strides=[1, 1], pads_begin=[1, 1], pads_end=[1, 1],
                    exclude_pad=False, data_format="NCX")  # fmt: skip

    ends = []
    for branch in branches:
        heads = [x]
        for step in branch:
            [head] = heads
            if step == "pool":
                heads = [pool(head)]
            else:
                heads = [convolve(head, *part) for part in (step if isinstance(step, list) else [step])]
        ends += heads
    y = g.op("Concat", *ends, axis=1)
    shape = g.graph_shape(y)
    g.graph.finalize()
    return ModelForm(g.graph, constants, {"x": x.id}, {"y": y.id}, {}), x.shape, shape


def block_model(form, in_shape, out_shape, engine, **options):
    ports = ModelPort("x", gp.DataType.F32, in_shape), ModelPort("y", gp.DataType.F32, out_shape)
    return Model(ports[:1], ports[1:], lambda shapes, values: form, engine, **options)


def rounds_us(calls, seconds):
    """What each call took in each round, in turns; rows are rounds. Unit: microseconds."""
    rng, order, found = random.Random(0), list(range(len(calls))), []
    for call in calls * 4:
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(found) < 3:
        rng.shuffle(order)
        row = [0.0] * len(calls)
        for i in order:
            start = time.perf_counter()
            calls[i]()
            row[i] = (time.perf_counter() - start) * 1e6
        found.append(row)
    return np.array(found)


def compare(make, policies=POLICIES, seconds=6.0, repeats=15):
    """What each policy took in each round, and the streams and memory of each.

    `make` takes an engine and the options of a `Model`, and gives one.
    """
    with ExitStack() as stack:
        engine = stack.enter_context(gp.Engine(threads=THREADS))
        with make(engine, schedule="auto", streams=THREADS) as model:
            profile_ops(model, repeats=repeats)
        models = [stack.enter_context(make(engine, schedule=policy, streams=THREADS)) for policy in policies]
        inputs = random_inputs(models[0])
        rounds = rounds_us([lambda model=model: model.run(inputs) for model in models], seconds)
        return {
            policy: (rounds[:, i], model.stats())
            for i, (policy, model) in enumerate(zip(policies, models, strict=True))
        }


def rehearsal(schedule, seconds, *, spin):
    """A function that runs a schedule of calls which only take time, `seconds` for each unit of their cost."""
    number = {node: k for k, node in enumerate(schedule.order)}
    lists = StreamLists(
        [[(number[c.nodes[0]], 1, c.waits, c.is_event) for c in calls] for calls in stream_lists(schedule)]
    )
    durations_ns = [round(schedule.graph.costs[node] * seconds * 1e9) for node in schedule.order]
    team = Team(THREADS)
    return lambda: lists.rehearse(team, durations_ns, spin=spin)


def fork_join_gain(*, spin, call_s=2e-4):
    """(measured, predicted) gain of two streams over one for a fork-join of four chains of three calls."""
    graph = fork_join(4, 3)
    schedule = list_schedule(graph, THREADS)
    rounds = rounds_us([rehearsal(each, call_s, spin=spin) for each in (sequential(graph), schedule)], 4.0)
    return float(np.median(rounds[:, 0] / rounds[:, 1])), graph.work / simulate(schedule).makespan


def overheads(calls=1000):
    """What one more call costs, and one that waits for another stream each time, the call itself empty. Unit: us."""
    alone = StreamLists([[(k, 1, [], False) for k in range(calls)]])
    turns = StreamLists(
        [[(k, 1, [(1 - side, (k + 1) // 2)] if k else [], True) for k in range(side, calls, 2)] for side in (0, 1)]
    )
    team = Team(THREADS)
    times = best_us([lambda lists=lists: lists.rehearse(team, [0] * calls, spin=True) for lists in (alone, turns)], 2.0)
    return [time_us / calls for time_us in times]


def large_graph(nodes=10_000):
    rng = random.Random(0)
    edges = [(u, v) for v in range(1, nodes) for u in {rng.randrange(max(0, v - 50), v) for _ in range(2)}]
    return DependencyGraph(edges, [rng.uniform(0.1, 1) for _ in range(nodes)])


def processor_time(function):
    start = time.thread_time()
    function()
    return time.thread_time() - start


@pytest.mark.benchmark(group="schedules")
@pytest.mark.parametrize("policy", ["sequential", "list", "ios", "auto"])
@pytest.mark.parametrize("name", BLOCKS)
def test_block(benchmark, name, policy):
    with (
        gp.Engine(threads=THREADS) as engine,
        block_model(*block_form(name), engine, schedule=policy, streams=THREADS) as model,
    ):
        inputs = random_inputs(model)
        benchmark(model.run, inputs)
        benchmark.extra_info["streams"] = model.stats().streams


@pytest.mark.benchmark(group="simulation")
@pytest.mark.parametrize("name", ["A", "C", "E"])
def test_simulated_block(benchmark, name):
    """Calls that sleep; what the simulation says they take stands beside what they took."""
    graph = block(name, BLOCK_COSTS.get(name))
    schedule, unit = list_schedule(graph, THREADS), 0.06 / graph.critical_path
    benchmark.pedantic(rehearsal(schedule, unit, spin=False), rounds=5)
    benchmark.extra_info["predicted_s"] = simulate(schedule).makespan * unit


@pytest.mark.benchmark(group="policy")
def test_list_of_ten_thousand_nodes(benchmark):
    benchmark(list_schedule, large_graph(), THREADS)


@pytest.mark.benchmark(group="policy")
def test_ios_of_eighteen_nodes(benchmark):
    benchmark.pedantic(ios, (fork_join(8, 2), 8), rounds=3)


class Bars:
    """What was asked for beside what was measured."""

    def __init__(self):
        self.rows = []

    def at_least(self, what, measured, wanted):
        """Note a figure that should be large."""
        self.rows.append((what, measured, ">=", wanted, measured >= wanted))

    def at_most(self, what, measured, wanted):
        """Note a figure that should be small."""
        self.rows.append((what, measured, "<=", wanted, measured <= wanted))

    def print(self):
        """One line a bar, and whether it is met."""
        for what, measured, sign, wanted, is_met in self.rows:
            print(f"{what:<72} {measured:8.3f} {sign} {wanted:<6} {'met' if is_met else 'MISSED'}")


def _print_comparison(name, results, bars):
    for policy, (microseconds, stats) in results.items():
        memory = stats.largest_arena_nbytes / stats.sequential_arena_nbytes
        low, middle = np.min(microseconds), np.median(microseconds)
        print(
            f"{name:<14} {policy:<12} {stats.streams} streams {middle:10.0f} us (best {low:.0f})   arena x {memory:.2f}"
        )
    auto = results["auto"][0]
    speed = {policy: float(np.median(t / auto)) for policy, (t, _) in results.items() if policy != "auto"}
    best = min(speed, key=speed.__getitem__)
    least = {policy: t.min() for policy, (t, _) in results.items()}
    others = min(t for policy, t in least.items() if policy != "auto") / least["auto"]
    print(f"{name:<14} auto: {speed[best]:.3f} of the speed of {best}, {speed['sequential']:.3f} of one stream's")
    print(f"{name:<14} by best times {others:.3f} and {least['sequential'] / least['auto']:.3f}\n")
    bars.at_least(f"{name}: speed of auto over that of the best policy", speed[best], 0.98)
    bars.at_least(f"{name}: speed of auto over that of one stream", speed["sequential"], 0.98)


def _bar_of_memory(name, results, bars):
    ratios = [s.largest_arena_nbytes / s.sequential_arena_nbytes for _, s in results.values()]
    bars.at_most(f"{name}: arena on two streams over that on one, worst policy", max(ratios), 1.5)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", action="append", default=[], help="an ONNX file with static inputs")
    parser.add_argument("--seconds", type=float, default=6.0, help="for each comparison (default: 6)")
    arguments = parser.parse_args()
    bars = Bars()
    for spin in (False, True):
        measured, predicted = fork_join_gain(spin=spin)
        kind = "that keep the processor busy" if spin else "that sleep"
        print(f"fork-join 4 x 3 of calls {kind}: {measured:.2f} times as fast on {THREADS} streams ({predicted:.2f})")
        bars.at_least(f"fork-join of calls {kind}: gain of two streams", measured, 1.6)
    plain, turns = overheads()
    print(f"a call: {plain:.2f} us, one that waits for another stream: {turns:.2f} us, Python's list of times included")
    graph = large_graph()
    times = {
        "list on 10,000 nodes: seconds": (processor_time(lambda: list_schedule(graph, THREADS)), 1.0),
        "ios on 18 nodes of width 8: seconds": (processor_time(lambda: ios(fork_join(8, 2), 8)), 2.0),
    }
    for what, (seconds, most) in times.items():
        print(f"{what} {seconds:.2f}")
        bars.at_most(what, seconds, most)
    for name in BLOCKS:
        parts = block_form(name)
        results = compare(
            lambda engine, parts=parts, **how: block_model(*parts, engine, **how), seconds=arguments.seconds
        )
        _print_comparison(name, results, bars)
    for path in arguments.model:
        results = compare(
            lambda engine, path=path, **how: gp.onnx.load(path, engine=engine, **how), seconds=arguments.seconds
        )
        name = path.rpartition("/")[2][:14]
        _print_comparison(name, results, bars)
        _bar_of_memory(name, results, bars)
    bars.print()


if __name__ == "__main__":
    main()
