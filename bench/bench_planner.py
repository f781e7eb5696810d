"""Question: how small are plans, and how long do they take.

Greedy passes run on large inputs, the exact search on MiniMalloc's hard cases. ``python -m bench.bench_planner [folder]
[deadline in seconds]`` prints the table; pytest-benchmark runs the rest.
"""

import random
import sys
from pathlib import Path

import pytest

from graphpool.memory import BufferInfo, check_plan, plan, read_csv

ROOT = Path(__file__).parents[1]
CASES = [ROOT / up / "shared" / "data" / "planner" for up in ("..", "../..")]
CAPACITY = 1048576


def case_folder():
    """Where the published cases lie, or None."""
    return next((folder for folder in CASES if folder.exists()), None)


def network(n, seed=1, lifetimes=(1, 2, 3, 5, 10, 50, 400)):
    """Buffers like a deep network's: many short lives, a few long ones, sizes over six orders of magnitude."""
    rng = random.Random(seed)
    return [
        BufferInfo(i, birth, birth + rng.choice(lifetimes), int(2 ** rng.uniform(0, 20)))
        for i, birth in enumerate(rng.randrange(n) for _ in range(n))
    ]


@pytest.mark.parametrize("n", [100, 1000, 18_000])
def test_greedy(benchmark, n):
    buffers = network(n)
    found = benchmark(plan, buffers)
    benchmark.extra_info.update(ratio=found.ratio, method=found.method, nbytes=found.nbytes)


@pytest.mark.parametrize("name", ["A", "C", "E", "G", "I", "K"])
def test_exact(benchmark, name):
    if case_folder() is None:
        pytest.skip("the planner's cases are not beside this checkout")
    buffers = read_csv(case_folder() / f"{name}.csv")
    found = benchmark.pedantic(
        plan, (buffers,), {"method": "exact", "deadline_s": 30, "capacity": CAPACITY}, rounds=1, iterations=1
    )
    benchmark.extra_info.update(ratio=found.ratio, nbytes=found.nbytes)


def print_table(folder, deadline_s):
    """One row for each CSV file: greedy ratio, exact ratio, and the time to the capacity."""
    print(f"{'case':8}{'buffers':>8}{'bound':>10}{'greedy':>8}{'exact':>8}{'optimal':>9}{'seconds':>9}")
    for path in sorted(Path(folder).glob("*.csv")):
        buffers = read_csv(path)
        greedy = plan(buffers)
        found = plan(buffers, method="exact", deadline_s=deadline_s)
        check_plan(found, buffers, 64)
        row = f"{path.stem:8}{len(buffers):8}{found.lower_bound:10}{greedy.ratio:8.3f}{found.ratio:8.3f}"
        print(f"{row}{found.is_optimal!s:>9}{found.seconds:9.3f}", flush=True)


if __name__ == "__main__":
    print_table(sys.argv[1] if len(sys.argv) > 1 else case_folder(), float(sys.argv[2]) if len(sys.argv) > 2 else 30.0)
