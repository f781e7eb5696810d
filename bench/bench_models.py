"""How well do 50 models live in the memory of 5, beside LRU and beside the best order in hindsight?

    python -m bench.bench_models [models] [requests] [--room 5]

Models of differing sizes are loaded from files into one engine, and requests follow a Zipf law. The bars: no refusal,
and every answer right. What counts as a hit is a request that finds its model compiled, and one that finds all its
packed weights. Both are counted, and depend on measured costs a little; seconds depend on the machine and its load.
What was missing when it was asked for, and what was rebuilt of it, is priced at one set of costs, those that were
measured without a limit.

In hindsight: parts (what was compiled, packed weights) kept by who knows all requests, which bounds every order, see
`graphpool.cache.traces.clairvoyant`. It counts nothing but these parts against the limit.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from time import perf_counter
from typing import NamedTuple
from unittest import mock

import numpy as np

import graphpool as gp
from graphpool.cache import Item, constant_tensor_cache, primitive_cache
from graphpool.cache.traces import clairvoyant, replay
from graphpool.runtime import model_forms
from graphpool.runtime.model_memory import ModelMemory
from tests.cases.many_models import ChainModel, draw_models, draw_requests, limit_for

WIDTHS = (64, 96, 128, 192, 256, 384)


class Cost(NamedTuple):
    """Of a model: bytes and seconds of what was compiled, bytes and seconds per byte of its packed weights."""

    programs_nbytes: int
    compile_s: float
    packed_nbytes: int
    pack_s_per_byte: float


class Result(NamedTuple):
    """What happened: of all requests, and seconds of runs, wrong answers, refusals, and costs as they were measured.

    Of each request there is the model, whether it was compiled anew, bytes that were packed, and bytes of packed
    weights that were there before.
    """

    requests: list[tuple[int, bool, int, int]]
    run_s: float
    wrong: int
    refusals: int
    costs: dict[int, Cost]

    def rebuild_s(self, costs: dict[int, Cost]) -> float:
        """Seconds of making what was missing, at these costs."""
        made = [(costs[i], is_new, nbytes) for i, is_new, nbytes, _ in self.requests]
        return sum(is_new * cost.compile_s + nbytes * cost.pack_s_per_byte for cost, is_new, nbytes in made)

    def missing_s(self, costs: dict[int, Cost]) -> float:
        """Seconds of making what was not there when it was asked for, whether it was made or done without."""
        found = [(costs[i], is_new, had) for i, is_new, _, had in self.requests]
        return sum(c.compile_s * is_new + (c.packed_nbytes - had) * c.pack_s_per_byte for c, is_new, had in found)


def packed_nbytes(model: gp.Model) -> int:
    """Packed weights that the constant tensor cache keeps for a model."""
    return sum(model._memory.packed().values())


def serve(cases: list[ChainModel], paths: list[Path], requests: list[int], limit: int) -> Result:
    """Answer all requests on one engine."""
    constant_tensor_cache("cpu").clear()
    primitive_cache().clear()
    inputs = [case.request(4) for case in cases]
    expected = [case.expected(x) for case, x in zip(cases, inputs, strict=True)]
    whole = [case.layers * case.width**2 * 4 for case in cases]
    done: list[tuple[int, bool, int, int]] = []
    wrong, run_s = 0, 0.0
    with gp.Engine(threads=1, memory_limit=limit) as engine:
        models = [gp.onnx.load(path, engine=engine) for path in paths]
        for i in requests:
            before, had = models[i].stats().compilations, packed_nbytes(models[i])
            start = perf_counter()
            found = models[i].run({"h0": inputs[i]})["y"]
            run_s += perf_counter() - start
            wrong += not np.allclose(found, expected[i], rtol=1e-3, atol=1e-4)
            is_new = models[i].stats().compilations != before
            done.append((i, is_new, max(packed_nbytes(models[i]) - (0 if is_new else had), 0), had))
        usages = {usage.name: usage for usage in engine.models()}
        costs = {}
        for i, model in enumerate(models):
            usage, memory = usages[model.name], model._memory
            programs = usage.programs_nbytes + usage.forms_nbytes
            costs[i] = Cost(programs, memory._compile_s, whole[i], memory.pack_s_per_byte)
        refusals = engine.budget.stats().refusals
        for model in models:
            model.close()
    return Result(done, run_s, wrong, refusals, costs)


def trace_of(requests: list[int], costs: dict[int, Cost]) -> list[Item]:
    """What each request needs: what was compiled, and the packed weights."""
    trace = []
    for i in requests:
        cost = costs[i]
        trace.append(Item(("compiled", i), cost.programs_nbytes, cost.compile_s))
        trace.append(Item(("packed", i), cost.packed_nbytes, cost.packed_nbytes * cost.pack_s_per_byte))
    return trace


class LruMemory(ModelMemory):
    """A model whose parts go by the time of its last use alone, programs after packed weights."""

    def rate(self, now: int) -> float:
        """The later used, the more."""
        return 1.0 / (1 + now - self.count.last)

    def program_worth(self, now: int, packed_nbytes: int) -> float:
        """More than any packed weight of the model."""
        return self.rate(now) * max(packed_nbytes, 1)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("models", nargs="?", type=int, default=50)
    parser.add_argument("requests", nargs="?", type=int, default=2000)
    parser.add_argument("--room", type=int, default=5, help="models that fit on average (default: 5)")
    arguments = parser.parse_args()
    cases = draw_models(arguments.models, 0, WIDTHS)
    requests = draw_requests(len(cases), arguments.requests, 0)
    print(f"{len(cases)} models, {len(requests)} requests, room for {arguments.room}\n")
    with tempfile.TemporaryDirectory() as folder:
        paths = [case.write(Path(folder)) for case in cases]
        limit = limit_for(paths, arguments.room, 4)
        rows = {"graphpool": serve(cases, paths, requests, limit)}
        with mock.patch.object(model_forms, "ModelMemory", LruMemory):
            rows["LRU"] = serve(cases, paths, requests, limit)
        rows["no limit"] = serve(cases, paths, requests, 1 << 40)
    costs, count = rows["no limit"].costs, len(requests)
    print("| order | found compiled | found packed | missing, s | rebuilt, s | runs, s | wrong | refused |")
    print("|---|---:|---:|---:|---:|---:|---:|---:|")
    for name, row in rows.items():
        hits = [(not is_new, had == costs[i].packed_nbytes) for i, is_new, _, had in row.requests]
        shares = " | ".join(f"{sum(column) / count:.1%}" for column in zip(*hits, strict=True))
        seconds = f"{row.missing_s(costs):.2f} | {row.rebuild_s(costs):.2f} | {row.run_s:.1f}"
        print(f"| {name} | {shares} | {seconds} | {row.wrong} | {row.refusals} |")
    trace = trace_of(requests, costs)
    best = clairvoyant(trace, limit)
    least, most = (best.total_cost - cost for cost in (best.bound_cost, best.achievable_cost))
    print(f"| in hindsight | | | {least:.2f} to {most:.2f} | | | | |")
    found = replay(trace, "lru", limit)
    print(f"| LRU of whole parts, replayed | | | {found.total_cost - found.saved_cost:.2f} | | | | |")


if __name__ == "__main__":
    main()
