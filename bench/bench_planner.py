"""Question: how small are plans, and how long do they take.

Greedy passes run on large inputs, the search on MiniMalloc's hard cases and on squares that are cut into buffers.
``python -m bench.bench_planner [folder] [nodes]`` prints the table; pytest-benchmark runs the rest.

Beside the plan without a capacity stands the best of 20 capacities from the bound to the greedy plan, each with a
twentieth of the nodes. Nodes and not seconds limit both, so sizes are the same on every machine; seconds are processor
time.
"""

import argparse
import random
import time
from pathlib import Path

import pytest

from graphpool.errors import OutOfMemoryError
from graphpool.memory import BufferInfo, check_plan, plan, read_csv
from tests.cases.buffers import cut_square

ROOT = Path(__file__).parents[1]
CASES = [ROOT / up / "shared" / "data" / "planner" for up in ("..", "../..")]
CAPACITY = 1048576
STEPS = 20


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


pytestmark = pytest.mark.benchmark(group="planner")


@pytest.mark.parametrize("n", [100, 1000, 18_000])
def test_greedy(benchmark, n):
    buffers = network(n)
    found = benchmark(plan, buffers)
    benchmark.extra_info.update(ratio=found.ratio, method=found.method, nbytes=found.nbytes)


@pytest.mark.parametrize("name", ["A", "C", "E", "G", "K"])
def test_exact(benchmark, name):
    if case_folder() is None:
        pytest.skip("the planner's cases are not beside this checkout")
    buffers = read_csv(case_folder() / f"{name}.csv")
    found = benchmark.pedantic(
        plan, (buffers,), {"method": "exact", "deadline_s": 30, "capacity": CAPACITY}, rounds=1, iterations=1
    )
    benchmark.extra_info.update(ratio=found.ratio, nbytes=found.nbytes)


def problems(folder):
    """Name and buffers of the published cases and of some that are made here."""
    for path in sorted(Path(folder).glob("*.csv")) if folder else []:
        yield path.stem, read_csv(path)
    for n in (160, 250, 400):
        for seed in (3, 5):
            yield f"cut {n}, {seed}", cut_square(n, seed)


def best_of_steps(buffers, greedy, node_limit):
    """The best plan within one of `STEPS` capacities. Unit: bytes."""
    found = greedy.nbytes
    for step in range(STEPS):
        capacity = greedy.lower_bound + (greedy.nbytes - greedy.lower_bound) * step // STEPS
        try:
            made = plan(buffers, 1, node_limit=node_limit // STEPS, capacity=capacity).nbytes
        except OutOfMemoryError as error:
            made = error.smallest_limit
        found = min(found, made)
    return found


def print_table(folder, node_limit):
    """One row for each problem: bound, greedy plan, plan, whether it is the best, and steps of the capacity."""
    print("| problem | buffers | bound | greedy | plan | proved | seconds | first within 1 % of it | capacity steps |")
    print("|---|--:|--:|--:|--:|---|--:|--:|--:|")
    for name, buffers in problems(folder):
        told, start = [], time.process_time()

        def tell(better, told=told, start=start):
            told.append((time.process_time() - start, better))

        found = plan(buffers, 1, node_limit=node_limit, on_improve=tell)
        seconds = time.process_time() - start
        for _, one in told:
            check_plan(one, buffers)
        greedy, near = told[0][1], next(at for at, one in told if one.nbytes <= 1.01 * found.nbytes)
        steps = best_of_steps(buffers, greedy, node_limit)
        print(
            f"| {name} | {len(buffers)} | {found.lower_bound:,} | {greedy.nbytes:,} | {found.nbytes:,} | "
            f"{'yes' if found.is_optimal else 'no'} | {seconds:.2f} | {near:.2f} | {steps:,} |",
            flush=True,
        )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default=case_folder())
    parser.add_argument("nodes", nargs="?", type=int, default=400_000)
    print_table(**vars(parser.parse_args()))
