"""What does waking the threads of a stream cost, a shared step, and what do its threads and Python's gain?

    python -m bench.bench_team                        # all tables
    python -m pytest bench/bench_team.py -o addopts= --import-mode=importlib

Times are the best of many, taken in turns: what a busy machine adds, no thread can give back.
"""

from __future__ import annotations

import argparse
import threading
import time
from contextlib import contextmanager

import numpy as np
import pytest

import graphpool as gp
from graphpool._kernels.core._team import Team
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_array


def product(g):
    """relu(512x1024 @ 1024x1024)."""
    g.op("ReLU", g.op("MatMul", g.input((512, 1024)), g.input((1024, 1024), property="constant")))


def chain(g):
    """Four ops on 4M elements, fused."""
    x = g.input((4 << 20,))
    for kind in ("Exp", "Tanh", "Sigmoid", "Square"):
        x = g.op(kind, x)


def steps_of(count):
    """`count` steps of two tasks each over 128 KiB, which never fuse."""

    def build(g):
        x = g.input((128, 256))
        for _ in range(count):
            x = g.op("SoftMax", x, axis=-1)

    return build


WORKLOADS = {"matmul 512x1024x1024 + ReLU": product, "eltwise chain, 4M elements": chain}


@contextmanager
def prepared(build, threads, **bounds):
    """A function that executes the whole graph once, and the compiled partition."""
    builder = GraphBuilder()
    build(builder)
    whole = builder.graph.merge_partitions(builder.finish())
    outputs = [lt.replace(shape=None) for lt in whole.output_ports]
    rng = np.random.default_rng(0)
    with gp.Engine(threads=threads) as engine, whole.compile(whole.input_ports, outputs, engine) as compiled:
        ins = [gp.Tensor(lt, engine, random_array(lt, rng, **bounds)) for lt in compiled.inputs]

        def bind():
            stream, outs = gp.Stream(engine), [gp.Tensor(lt, engine) for lt in compiled.outputs]
            return lambda: compiled.execute(stream, ins, outs)

        yield bind, compiled


def operand_nbytes(compiled):
    """Bytes of the inputs and outputs: what an execution reads and writes at least."""
    return sum(lt.nbytes for lt in (*compiled.inputs, *compiled.outputs))


def best_us(calls, seconds=3.0):
    """Best time of each call, in turns. Unit: microseconds."""
    best = [float("inf")] * len(calls)
    for call in calls * 4:
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], (time.perf_counter() - start) * 1e6)
    return best


def wake_latency(threads, pause_s):
    """Best time until every thread has answered, after a pause. Unit: microseconds."""
    team = Team(threads)
    best = float("inf")
    for _ in range(300):
        time.sleep(pause_s) if pause_s else team.roll_call(threads)
        start = time.perf_counter()
        team.roll_call(threads)
        best = min(best, (time.perf_counter() - start) * 1e6)
    team.close()
    return best


def throughput(nthreads, seconds=2.0):
    """One compiled product executed by Python threads, each with a stream of its own.

    Returns executions a second, processor time of one in milliseconds, and the processors that were had: on a machine
    that others use too, only the second tells whether threads disturb one another.
    """
    counts, busy_s = [0] * nthreads, [0.0] * nthreads
    with prepared(product, 1) as (bind, _):
        calls = [bind() for _ in counts]
        end = time.perf_counter() + seconds

        def work(i):
            start = time.thread_time()
            while time.perf_counter() < end:
                calls[i]()
                counts[i] += 1
            busy_s[i] = time.thread_time() - start

        workers = [threading.Thread(target=work, args=[i]) for i in range(nthreads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    return sum(counts) / seconds, sum(busy_s) / sum(counts) * 1e3, sum(busy_s) / seconds


def step_cost(threads):
    """What one more shared step costs, a softmax of 128 KiB included. Unit: microseconds."""
    with prepared(steps_of(1), threads) as (one, a), prepared(steps_of(65), threads) as (many, b):
        for compiled in (a, b):
            compiled.program.trials = 0 if compiled.program.nthreads > 1 else -1
        short, long = best_us([one(), many()], 1.0)
    return (long - short) / 64


pytestmark = pytest.mark.benchmark(group="threads")


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", WORKLOADS)
def test_threads(benchmark, name, threads):
    build = WORKLOADS[name]
    with prepared(build, threads) as (bind, compiled):
        benchmark.extra_info.update(threads=threads, nbytes=operand_nbytes(compiled))
        if build is product:
            benchmark.extra_info["flops"] = 2 * 512 * 1024 * 1024
        benchmark(bind())


@pytest.mark.parametrize("threads", [2, 4])
def test_roll_call(benchmark, threads):
    team = Team(threads)
    benchmark(team.roll_call, threads)
    team.close()


def main():
    argparse.ArgumentParser(description=__doc__).parse_args()
    for threads in (2, 4):
        spinning, asleep = wake_latency(threads, 0), wake_latency(threads, 1e-3)
        print(f"{threads} threads answer: {spinning:.1f} us spinning, {asleep:.1f} us asleep")
    print(f"one more step: {step_cost(1):.2f} us on 1 thread, {step_cost(2):.2f} us on 2")
    for name, build in WORKLOADS.items():
        with prepared(build, 1) as (one, _), prepared(build, 2) as (two, _):
            alone, shared = best_us([one(), two()])
        print(f"{name}: {alone:.0f} us on 1 thread, {shared:.0f} us on 2, {alone / shared:.2f} times as fast")
    for nthreads in (1, 2, 8):
        rate, cpu_ms, cpus = throughput(nthreads)
        print(f"{nthreads} Python threads, threads=1: {rate:.1f}/s, {cpu_ms:.1f} ms each, on {cpus:.2f} processors")


if __name__ == "__main__":
    main()
