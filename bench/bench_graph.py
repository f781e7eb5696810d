"""How does the cost of building, finalising and partitioning a graph grow with its ops?

    python -m pytest bench/bench_graph.py -o addopts= --import-mode=importlib
    python -m bench.bench_graph                     # the table alone

The bar: 1,000 ops in under 50 ms, growing linearly.
"""

from __future__ import annotations

import argparse
import statistics
import time

import pytest

import graphpool as gp

SHAPE = (4, 16)


def chain(n):
    """n unary ops, one after another."""
    tensors = [gp.LogicalTensor(i, "f32", SHAPE) for i in range(n + 1)]
    kinds = ("ReLU", "Exp", "Tanh", "Abs", "Sigmoid")
    return [gp.Op(i, kinds[i % 5], [tensors[i]], [tensors[i + 1]]) for i in range(n)]


def layers(n):
    """Blocks of MatMul, Add, ReLU and a residual Add, as networks have them."""
    ops, current, fresh = [], gp.LogicalTensor(0, "f32", SHAPE), 1
    while len(ops) < n:
        w, b = gp.LogicalTensor(fresh, "f32", (16, 16)), gp.LogicalTensor(fresh + 1, "f32", (16,))
        x, y, z, r = (gp.LogicalTensor(fresh + k, "f32", SHAPE) for k in range(2, 6))
        ops += [
            gp.Op(len(ops), "MatMul", [current, w], [x]),
            gp.Op(len(ops) + 1, "Add", [x, b], [y]),
            gp.Op(len(ops) + 2, "ReLU", [y], [z]),
            gp.Op(len(ops) + 3, "Add", [z, current], [r]),
        ]
        current, fresh = r, fresh + 6
    return ops


def partition(make, n):
    """Build, finalise and partition; the number of partitions."""
    graph = gp.Graph()
    for op in make(n):
        graph.add_op(op)
    graph.finalize()
    return len(graph.get_partitions())


pytestmark = pytest.mark.benchmark(group="partitioning")


@pytest.mark.parametrize("n", [100, 1_000, 10_000])
@pytest.mark.parametrize("make", [chain, layers])
def test_partition(benchmark, make, n):
    benchmark.pedantic(partition, (make, n), rounds=3, warmup_rounds=1)


def main():
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    partition(chain, 10)
    print(f"{'graph':8} {'ops':>6} {'partitions':>10} {'ms':>8} {'us/op':>6}")
    for make in (chain, layers):
        for n in (100, 1_000, 10_000):
            samples = []
            for _ in range(5):
                start = time.thread_time()
                count = partition(make, n)
                samples.append((time.thread_time() - start) * 1e3)
            median = statistics.median(samples)
            print(f"{make.__name__:8} {n:6d} {count:10d} {median:8.1f} {median * 1e3 / n:6.1f}")


if __name__ == "__main__":
    main()
