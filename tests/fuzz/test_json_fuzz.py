"""Mutated files of graphs: an error of graphpool or a graph that runs inside the engine's limit, and nothing else."""

import copy
import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import graphpool as gp
from bench.graphs import GraphBuilder
from bench.workloads import CASES
from graphpool.graph.schema import SCHEMAS

LIMIT_MB = 8
"""Of the engine on which mutated graphs run."""

ELSEWHERE_MB = 96
"""What Python and NumPy may hold beside it: the reference backend computes in float64."""

JUNK = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.just([]), st.just({}),
    st.sampled_from([-(2**63), 2**63, 10**30, "f32", "any", "opaque", [2**31] * 12, [0] * 13, [1e308], {"a": []}]),
)  # fmt: skip
NUMBERS = st.one_of(
    st.integers(-3, 12),
    st.sampled_from([2**31 - 1, 2**31, 2**40, 2**62, 2**63 - 1, -(2**31), -(2**63), 10**9, 1e308, -1e308, 1e-45,
                     float("nan"), float("inf"), float("-inf"), 0.5]),
)  # fmt: skip
DTYPES = ["f32", "bf16", "f16", "s32", "s64", "s8", "u8", "s4", "u4", "boolean", "f8_e4m3", "f8_e5m2"]
SHAPES = st.one_of(
    st.lists(st.integers(0, 9), max_size=7),
    st.sampled_from([[2**31, 2**31], [2**62], [0, 2**62], [2**20] * 3, [-1], [-(2**63)] * 3, [1] * 12, [1] * 13,
                     [10**5] * 2]),
)  # fmt: skip
LOOSE = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]}


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """The content of the files of many graphs."""
    texts = []
    path = tmp_path_factory.mktemp("seeds") / "a.json"
    for case in CASES:
        builder = GraphBuilder()
        case.build(builder)
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


def survives(path, engine=None):
    """Read the file and go on as far as partitions, or with an engine as far as results."""
    try:
        graph = gp.Graph.from_json(path)
        graph.finalize()
        partitions = graph.get_partitions()
        if engine is not None:
            run(graph, partitions, engine)
    except gp.GraphpoolError:
        pass


def run(graph, partitions, engine):
    """Compile and execute on ones, inside the engine's memory."""
    tensors = {}
    stream = gp.Stream(engine)
    for partition in partitions:
        inputs = [port.replace(layout="strided", shape=graph.shape(port.id)) for port in partition.input_ports]
        outputs = [port.replace(layout="strided") for port in partition.output_ports]
        with partition.compile(inputs, outputs, engine) as compiled:
            for lt in inputs:
                if lt.id not in tensors:
                    tensors[lt.id] = gp.Tensor(lt, engine)
                    tensors[lt.id].fill(np.ones(lt.shape, lt.dtype.numpy))
            results = [gp.Tensor(compiled.query_logical_tensor(lt.id), engine) for lt in outputs]
            compiled.execute(stream, [tensors[lt.id] for lt in inputs], results)
            tensors.update((tensor.lt.id, tensor) for tensor in results)


@settings(max_examples=300, **LOOSE)
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


@settings(max_examples=200, **LOOSE)
@given(data=st.data())
def test_mutated_bytes(seeds, tmp_path, data):
    raw = bytearray(data.draw(st.sampled_from(seeds)).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at : at + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=9))
    path = tmp_path / "a.json"
    path.write_bytes(bytes(raw))
    survives(path)


# ---- mutations that a schema may accept


def _ops(content):
    return content["graph"]


def _tensors(content):
    return [tensor for op in _ops(content) for side in ("inputs", "outputs") for tensor in op[side]]


def _mentions(content, data):
    """All mentions of one tensor, so that they still agree when all are changed."""
    tensors = _tensors(content)
    if not tensors:
        return []
    tensor = data.draw(st.sampled_from(tensors))
    return [other for other in _tensors(content) if other["id"] == tensor["id"]]


def change_shape(content, data):
    shape = data.draw(SHAPES)
    for tensor in _mentions(content, data):
        tensor["shape"], tensor["stride"] = list(shape), [-(2**63)]


def change_dimension(content, data):
    axis, size = data.draw(st.integers(0, 5)), data.draw(NUMBERS)
    for tensor in _mentions(content, data):
        if tensor["shape"]:
            tensor["shape"][axis % len(tensor["shape"])] = size
            tensor["stride"] = [-(2**63)]


def change_strides(content, data):
    for tensor in _mentions(content, data):
        tensor["stride"] = [data.draw(NUMBERS) for _ in tensor["shape"]]


def change_dtype(content, data):
    dtype = data.draw(st.sampled_from(DTYPES))
    for tensor in _mentions(content, data):
        tensor["dtype"] = dtype


def change_attribute(content, data):
    op = data.draw(st.sampled_from(_ops(content)))
    if op["attrs"]:
        attribute = op["attrs"][data.draw(st.sampled_from(sorted(op["attrs"])))]
        if isinstance(attribute["value"], list):
            attribute["value"] = data.draw(st.lists(NUMBERS, max_size=6))
        elif not isinstance(attribute["value"], str):
            attribute["value"] = data.draw(NUMBERS)


def change_kind(content, data):
    data.draw(st.sampled_from(_ops(content)))["kind"] = data.draw(st.sampled_from(sorted(SCHEMAS)))


def rewire(content, data):
    """An op reads some tensor of the graph instead: perhaps a cycle, perhaps another rank."""
    op = data.draw(st.sampled_from(_ops(content)))
    if op["inputs"] and _tensors(content):
        port = data.draw(st.integers(0, len(op["inputs"]) - 1))
        op["inputs"][port] = copy.deepcopy(data.draw(st.sampled_from(_tensors(content))))


def repeat(content, data):
    """An op twice, with the same ids or with others."""
    op = copy.deepcopy(data.draw(st.sampled_from(_ops(content))))
    if data.draw(st.booleans()):
        op["id"] += 10**6
    for tensor in op["outputs"] if data.draw(st.booleans()) else ():
        tensor["id"] += 10**6
    _ops(content).append(op)


def drop_port(content, data):
    op = data.draw(st.sampled_from(_ops(content)))
    side = op[data.draw(st.sampled_from(["inputs", "outputs"]))]
    if side:
        side.pop(data.draw(st.integers(0, len(side) - 1)))


MUTATIONS = [change_shape, change_dimension, change_strides, change_dtype, change_attribute, change_kind, rewire,
             repeat, drop_port]  # fmt: skip


@pytest.mark.timeout(300)
@settings(max_examples=600, **LOOSE)
@given(data=st.data())
def test_mutated_graphs_run_within_the_limit(seeds, tmp_path, data):
    content = json.loads(data.draw(st.sampled_from(seeds)))
    for mutate in data.draw(st.lists(st.sampled_from(MUTATIONS), min_size=1, max_size=3)):
        mutate(content, data)
    path = tmp_path / "a.json"
    path.write_text(json.dumps(content))
    with gp.Engine(threads=1, memory_limit=LIMIT_MB << 20) as engine:
        tracemalloc.start()
        try:
            with np.errstate(all="ignore"):
                survives(path, engine)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < ELSEWHERE_MB << 20
        assert engine.stats().peak_nbytes <= LIMIT_MB << 20


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"{", b"[]", b"null", b"[" * 100_000, b'{"a":' * 100_000, b"\xff\xfe{}", b'{"graph": [\x80]}',
        b"\x00" * 64,
        b'{"graph": [' + b'{"id": 1},' * 10_000 + b"]}", b'{"graph": ' + b"9" * 5000,
        b'{"graph": [], "engine_kind": "tpu"}', b'{"graph": [], "fpmath_mode": "NaN"}', b" " * (17 << 20),
    ],
    ids=lambda raw: repr(raw[:12]),
)  # fmt: skip
def test_files_that_are_no_graph(tmp_path, raw):
    path = tmp_path / "a.json"
    path.write_bytes(raw)
    with pytest.raises(gp.GraphpoolError):
        gp.Graph.from_json(path)


def test_truncated_files(seeds, tmp_path):
    path = tmp_path / "a.json"
    for text in seeds[::9]:
        raw = text.encode().rstrip()
        for end in range(1, len(raw), max(1, len(raw) // 40)):
            path.write_bytes(raw[:end])
            with pytest.raises(gp.GraphpoolError):
                gp.Graph.from_json(path)
