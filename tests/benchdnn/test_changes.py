"""The small ones of benchdnn's cases under knobs that nobody wrote for them: other types, layouts, batches."""

import contextlib
import random

import pytest

import graphpool as gp
from graphpool.errors import GraphpoolError
from graphpool.graph.dumps.knobs import parse_knobs
from tests.benchdnn.__main__ import DEFAULT
from tests.benchdnn.runner import Record, load, read_manifest, run_graph

MOST_ELEMENTS = 300_000
"""Of all tensors of a graph: what the reference computes in a moment."""


def small_runs():
    """One run a case: the first that is small, with its graph."""
    found = {}
    for row in read_manifest(DEFAULT) if (DEFAULT / "manifest.jsonl").is_file() else ():
        if row["case"] not in found:
            knobs = {name: text for name, text in row.items() if name not in ("suite", "case")}
            graph = load(DEFAULT / "cases" / row["case"]).build(gp.Graph, "cpu", parse_knobs(knobs))
            if sum(lt.size for lt in graph.tensors.values() if lt.is_shape_known) <= MOST_ELEMENTS:
                found[row["case"]] = knobs, graph
    return found


def types(graph, rng):
    return {"dt": rng.choice(["f32", "bf16", "f16"])}


def batch(graph, rng):
    return {"mb": str(rng.choice([1, 2, 3, 5]))}


def layouts(graph, rng):
    """Every input with its axes in some order."""
    written = {lt.id for op in graph.ops for lt in op.outputs}
    shapes = []
    for number, lt in graph.tensors.items():
        if number not in written and lt.shape and len(lt.shape) > 1:
            tag = list("abcdefghijkl"[: len(lt.shape)])
            rng.shuffle(tag)
            shapes.append(f"{number}:{'x'.join(map(str, lt.shape))}*{''.join(tag)}")
    return {"in-shapes": "+".join(shapes)} if shapes else {}


@pytest.mark.skipif(not (DEFAULT / "manifest.jsonl").is_file(), reason=f"no cases at {DEFAULT}")
@pytest.mark.parametrize("change", [types, batch, layouts], ids=lambda change: change.__name__)
@pytest.mark.parametrize("seed", range(2))
def test_changed_cases(change, seed):
    rng = random.Random(seed)
    faults, count = {}, 0
    for case, (knobs, graph) in small_runs().items():
        changed = knobs | change(graph, rng)
        if change is types and "dtm" in knobs:
            continue
        with contextlib.suppress(GraphpoolError):  # a batch that does not fit the attributes, a type that no op takes
            form = load(DEFAULT / "cases" / case).build(gp.Graph, "cpu", parse_knobs(changed))
            form.finalize()
            count += 1
            record = Record("", case, changed, expected_partitions=int(knobs.get("expected-n-partitions", 1)))
            found = run_graph(form, record, seed) + ["fallback"] * record.fallback
            if found:
                faults[case] = changed, found
    assert count > 50
    assert faults == {}
