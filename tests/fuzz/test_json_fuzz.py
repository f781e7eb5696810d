"""Mutated files of graphs: an error of graphpool or a graph, and nothing else."""

import copy
import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphpool as gp
from bench.graphs import GraphBuilder
from bench.workloads import CASES

SEEDS = [
    case for case in CASES if case.name in ("Attention", "MatMul_int8", "Conv_batch_norm", "ConvTranspose", "Moved")
]
JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just([]), st.just({}),
    st.sampled_from([-(2**63), 2**63, 10**30, "f32", "any", "opaque", [2**31] * 12, [0] * 13, [1e308], {"a": []}]),
)  # fmt: skip


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """The content of the files of some graphs."""
    texts = []
    for case in SEEDS:
        builder = GraphBuilder()
        case.build(builder)
        path = tmp_path_factory.mktemp("seeds") / "a.json"
        builder.graph.to_json(path)
        texts.append(path.read_text())
    return texts


def places(value, found):
    """All (container, key) of nested JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append((value, key))
        places(inner, found)
    return found


def survives(path):
    """Read the file and go on as far as partitions."""
    try:
        graph = gp.Graph.from_json(path)
        graph.finalize()
        graph.get_partitions()
    except gp.GraphpoolError:
        pass


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_structure(seeds, tmp_path, data):
    content = json.loads(data.draw(st.sampled_from(seeds)))
    for _ in range(data.draw(st.integers(1, 3))):
        container, key = data.draw(st.sampled_from(places(content, [])))
        if data.draw(st.booleans()) and isinstance(container, dict):
            del container[key]
        else:
            container[key] = copy.deepcopy(data.draw(JUNK))  # a later change must not reach into the strategy
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    survives(path)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_mutated_bytes(seeds, tmp_path, data):
    raw = bytearray(data.draw(st.sampled_from(seeds)).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    path = tmp_path / "a.json"
    path.write_bytes(bytes(raw))
    survives(path)
