"""Question: what does compiling cost that was compiled before, by the same logical tensors and under other ids.

    python -m bench.bench_compile

The look-up alone is what the caches do in C: one use of an entry of the compiled-partition cache and of the primitive
cache. oneDNN Graph's hit costs 0.44 us, and it misses under other ids.
"""

import argparse
import statistics
import time

import pytest

import graphpool as gp
from graphpool.cache import LruCache


def product(first=0):
    """A partition of one MatMul, and its ports."""
    x, w, y = (gp.LogicalTensor(first + k, "f32", s) for k, s in enumerate([(8, 256), (256, 512), (8, 512)]))
    partition = gp.Partition.from_op(gp.Op(first, "MatMul", [x, w], [y]))
    return partition, [x, w], [y]


def compile_and_close(partition, inputs, outputs, engine):
    """What is timed."""
    partition.compile(inputs, outputs, engine).close()


def nanoseconds(function, count, repeats=15):
    """Median processor time of one call."""
    samples = []
    for _ in range(repeats):
        start = time.thread_time_ns()
        function(count)
        samples.append((time.thread_time_ns() - start) / count)
    return statistics.median(samples)


pytestmark = pytest.mark.benchmark(group="compilation")


def test_same_tensors(benchmark):
    with gp.Engine(threads=1) as engine:
        partition, inputs, outputs = product()
        compile_and_close(partition, inputs, outputs, engine)
        benchmark(compile_and_close, partition, inputs, outputs, engine)


@pytest.mark.parametrize("is_known", [False, True])
def test_other_ids(benchmark, is_known):
    """A partition of its own at every round; `is_known` says whether an equal one was compiled before."""
    with gp.Engine(threads=1) as engine:
        if is_known:
            compile_and_close(*product(), engine)

        def setup():
            if not is_known:
                gp.cache.primitive_cache().clear()
            return (*product(700), engine), {}

        benchmark.pedantic(compile_and_close, setup=setup, rounds=100)


def main():
    """Print the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    with gp.Engine(threads=1) as engine:
        partition, inputs, outputs = product()
        compile_and_close(partition, inputs, outputs, engine)
        cache = LruCache(8)
        cache.get_or_create("key", list)
        get, compile_again = cache.get, partition.compile

        def look_up(count):
            for _ in range(count):
                get("key")

        def same(count):
            for _ in range(count):
                compile_again(inputs, outputs, engine).close()

        def fresh(count):
            made = [product(700 + k) for k in range(count)]
            start = time.thread_time_ns()
            for arguments in made:
                compile_and_close(*arguments, engine)
            return (time.thread_time_ns() - start) / count

        def new(count):
            total = 0
            for k in range(count):
                gp.cache.primitive_cache().clear()
                arguments = product(700 + k)
                start = time.thread_time_ns()
                compile_and_close(*arguments, engine)
                total += time.thread_time_ns() - start
            return total / count

        print(f"LruCache.get, a hit, from Python:           {nanoseconds(look_up, 20_000):8.0f} ns")
        print(f"compile and close, the same tensors:        {nanoseconds(same, 20_000):8.0f} ns")
        print(f"compile and close, equal but other ids:     {min(fresh(300) for _ in range(7)):8.0f} ns")
        print(f"compile and close, not known:               {min(new(50) for _ in range(5)):8.0f} ns")


if __name__ == "__main__":
    main()
