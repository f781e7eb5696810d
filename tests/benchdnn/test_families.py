"""Every graph of our own: one partition of the CPU backend, whose results are those of the reference."""

import pytest

import graphpool as gp
from tests.benchdnn.families import FAMILIES, FLOATS
from tests.benchdnn.runner import Record, run_graph
from tests.cases.graphs import GraphBuilder


def completed(graph: gp.Graph) -> gp.Graph:
    """The graph with the inferred shapes written into its tensors."""
    tensors = {n: lt.replace(shape=graph.shape(n), layout="strided") for n, lt in graph.tensors.items()}
    made = gp.Graph(graph.engine_kind)
    for op in graph.ops:
        ports = ([tensors[t.id] for t in side] for side in (op.inputs, op.outputs))
        made.add_op(gp.Op(op.id, op.kind, *ports, op.name).with_attrs(op.attrs))
    made.finalize()
    return made


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("family", FAMILIES)
def test_family(family, dtype):
    faults = {}
    for name, build in FAMILIES[family](dtype):
        builder = GraphBuilder()
        build(builder)
        builder.graph.finalize()
        record = Record(family, name, {}, expected_partitions=1)
        faults[name] = run_graph(completed(builder.graph), record, 1) + ["fallback"] * record.fallback
    assert faults
    assert {name: found for name, found in faults.items() if found} == {}
