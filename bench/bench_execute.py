"""What does executing a compiled partition cost beyond its kernels, and each further step of a program?

    python -m pytest bench/bench_execute.py -o addopts= --import-mode=importlib
    python -m bench.bench_execute                     # the table alone

The bars: at most 0.8 us for a ReLU on 64 floats with prepared tensors, no allocation, under 20 ns a further step.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import pytest

import graphpool as gp
from tests.cases.graphs import GraphBuilder


def relu_call(engine):
    """execute() of a ReLU on 64 floats, and its prepared arguments."""
    x, y = gp.LogicalTensor(0, "f32", (64,)), gp.LogicalTensor(1, "f32", (64,))
    compiled = gp.Partition.from_op(gp.Op(0, "ReLU", [x], [y])).compile([x], [y], engine)
    ins = [gp.Tensor(x, engine, np.linspace(-1, 1, 64, dtype=np.float32))]
    outs = [gp.Tensor(y, engine, np.empty(64, np.float32))]
    return compiled, gp.Stream(engine), ins, outs


def chain_call(engine, steps):
    """execute() of a program of `steps` kernel calls: softmaxes of a (4, 4) matrix, which never fuse."""
    builder = GraphBuilder()
    x = builder.input((4, 4))
    for _ in range(steps):
        x = builder.op("SoftMax", x, axis=-1)
    builder.graph.finalize()
    partitions = builder.graph.get_partitions()
    partition = builder.graph.merge_partitions(partitions)
    outputs = [port.replace(shape=(4, 4)) for port in partition.output_ports]
    compiled = partition.compile(partition.input_ports, outputs, engine)
    assert len(compiled.program) == steps
    ins = [gp.Tensor(compiled.inputs[0], engine, np.ones((4, 4), np.float32))]
    outs = [gp.Tensor(compiled.outputs[0], engine, np.empty((4, 4), np.float32))]
    return compiled, gp.Stream(engine), ins, outs


pytestmark = pytest.mark.benchmark(group="execution")


def test_execute_relu_64(benchmark):
    with gp.Engine(threads=1) as engine:
        compiled, stream, ins, outs = relu_call(engine)
        compiled.execute(stream, ins, outs)
        before = engine.stats().total_count
        benchmark(compiled.execute, stream, ins, outs)
        benchmark.extra_info["allocations"] = engine.stats().total_count - before


@pytest.mark.parametrize("steps", [1, 17, 65])
def test_execute_steps(benchmark, steps):
    with gp.Engine(threads=1) as engine:
        compiled, stream, ins, outs = chain_call(engine, steps)
        benchmark(compiled.execute, stream, ins, outs)


def nanoseconds(compiled, stream, ins, outs, count=20_000):
    """Median over 15 repeats of the processor time of one execute(), which other processes disturb less."""
    execute = compiled.execute
    samples = []
    for _ in range(15):
        start = time.thread_time_ns()
        for _ in range(count):
            execute(stream, ins, outs)
        samples.append((time.thread_time_ns() - start) / count)
    return statistics.median(samples)


def main():
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with gp.Engine(threads=1) as engine:
        relu = relu_call(engine)
        relu[0].execute(*relu[1:])
        before = engine.stats().total_count
        print(f"execute, ReLU on 64 floats: {nanoseconds(*relu):6.0f} ns")
        print(f"allocations meanwhile:      {engine.stats().total_count - before:6d}")
        times = {steps: nanoseconds(*chain_call(engine, steps), count=5_000) for steps in (1, 33, 65)}
        for steps, value in times.items():
            print(f"program of {steps:3d} steps:      {value:6.0f} ns")
        print(f"each further step, kernel included: {(times[65] - times[1]) / 64:.1f} ns")


if __name__ == "__main__":
    main()
