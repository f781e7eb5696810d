"""Attention as training spells it: the forward pass with what backward needs of it, and backward as one kernel."""

import numpy as np
import pytest

import graphpool as gp
from tests.cases.graphs import GraphBuilder
from tests.cases.training import Training
from tests.helpers.partitions import check_graph, kernels_of, random_array, run_partitions

HEADS = {
    "plain": {}, "three axes": {"heads": (3,)}, "grouped": {"heads": (2, 2, 3), "kv": (2, 2, 1)},
    "one key head": {"heads": (2, 4), "kv": (2, 1)},
}  # fmt: skip
SCORES = {
    "no scale": {"scale": ""}, "factor": {}, "divisor": {"scale": "Divide"}, "mask": {"mask": "full"},
    "mask of keys": {"mask": "keys"}, "causal": {"select": "causal"}, "bottom right": {"select": "bottom_right"},
    "condition": {"select": "condition"}, "mask and causal": {"mask": "full", "select": "causal"},
    "select in front": {"select": "causal", "is_early": True, "mask": "keys"}, "dropout": {"dropout": True},
}  # fmt: skip
TYPES = ("f32", "bf16", "f16")


@pytest.fixture
def engine():
    with gp.Engine() as engine:
        yield engine


def content(rng, lt):
    """Small numbers; single ones, which may be divisors and probabilities, lie between 0.4 and 0.9."""
    is_number = lt.dtype.value in TYPES and len(lt.shape) < 2
    return random_array(lt, rng, low=0.4 if is_number else -1.0, high=0.9 if is_number else 1.0)


def hiding(rng, lt):
    """The same with minus infinity for the number that hidden scores become."""
    return np.array(-np.inf, np.float32) if lt.shape == () and lt.dtype is gp.DataType.F32 else content(rng, lt)


def check(g, engine, dtype, content=content):
    return check_graph(g, engine, np.random.default_rng(0), scale=64 if dtype == "f32" else 512, content=content)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("scores", SCORES)
def test_forward_is_one_kernel(engine, scores, heads, dtype):
    g = GraphBuilder()
    Training(g, dtype=dtype, **HEADS[heads], **SCORES[scores]).forward(is_drawn=scores == "dropout")
    assert kernels_of(check(g, engine, dtype), engine) == ["f32_attention"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("scores", SCORES)
def test_backward_is_one_kernel(engine, scores, heads, dtype):
    g = GraphBuilder()
    Training(g, dtype=dtype, **HEADS[heads], **SCORES[scores]).backward()
    assert kernels_of(check(g, engine, dtype), engine) == ["f32_attention_backward"]


@pytest.mark.parametrize("select", ["causal", "condition"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 70), (70, 70), (65, 200), (200, 200)], ids=str)
def test_long_sequences_and_hidden_keys(engine, queries, keys, select):
    for direction, kernel in (("forward", "f32_attention"), ("backward", "f32_attention_backward")):
        g = GraphBuilder()
        training = Training(g, (2, 2, 2), (2, 2, 1), queries, keys, select=select)
        getattr(training, direction)()
        assert kernels_of(check(g, engine, "f32", hiding), engine) == [kernel]


@pytest.mark.parametrize(
    ("form", "options"),
    [
        ({}, {"reads_scores": True}), ({"heads": (2, 2, 3), "kv": (2, 2, 1)}, {"is_summed": False}),
        ({"turned": True}, {}), ({"heads": (2, 2, 3), "kv": (2, 2, 1), "dtype": "bf16"}, {"reads_scores": True}),
        ({"select": "causal", "queries": 70, "keys": 140}, {"reads_scores": True}),
        ({"heads": (2, 3), "queries": 1, "keys": 1, "depth": 1, "values": 1}, {}),
    ],
    ids=str,
)  # fmt: skip
def test_other_forms_of_backward(engine, form, options):
    g = GraphBuilder()
    Training(g, **form).backward(**options)
    fills = hiding if form.get("select") else content
    found = kernels_of(check(g, engine, form.get("dtype", "f32"), fills), engine)
    assert found == ["f32_attention_backward", "f32_eltwise"][: 1 + ("reads_scores" in options)]


def read_weights(g, training):
    """The exponentials leave the partition."""
    training.backward()
    g.op("Abs", next(op for op in g.graph.ops if op.kind == "Exp").outputs[0])


def read_other_dropout(g, training):
    training.is_dropped = False
    training.draws = [g.input((), "s64"), g.input((), "s64"), g.input((), "f32")]
    training._cast = lambda x: g.op("Dropout", x, *training.draws)
    training.backward()


@pytest.mark.parametrize("build", [read_weights, read_other_dropout])
def test_what_the_kernel_does_not_compute_stays_separate(engine, build):
    g = GraphBuilder()
    build(g, Training(g))
    assert "f32_attention_backward" not in kernels_of(check(g, engine, "f32"), engine)


def test_sums_over_a_shared_batch_follow_the_kernel(engine):
    g = GraphBuilder()
    Training(g, (2, 3), (1, 3)).backward()
    assert kernels_of(check(g, engine, "f32"), engine) == ["f32_attention_backward", "f32_reduce", "f32_reduce"]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_bytes_do_not_depend_on_the_number_of_threads(direction):
    found = []
    for threads in (1, 3):
        g = GraphBuilder()
        getattr(Training(g, (2, 2, 2), (2, 2, 1), 150, 140, dtype="bf16", mask="keys"), direction)()
        [partition] = g.finish()
        values = {lt.id: content(np.random.default_rng(lt.id), lt) for lt in g.inputs}
        with gp.Engine(threads=threads) as engine:
            results = run_partitions([partition], values, engine)
        found.append([results[lt.id].tobytes() for lt in partition.output_ports])
    assert found[0] == found[1]


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize(
    "form", [{}, {"select": "causal"}, {"dropout": True}, {"heads": (128, 4, 3), "kv": (128, 4, 1)}]
)
def test_the_arena_is_small_beside_the_tensors(engine, form, dtype, direction):
    """The largest attention of the training corpora, which is planned only: 24 GB would hold its scores."""
    g = GraphBuilder()
    options = {"heads": (128, 12)} | form
    getattr(Training(g, **options, queries=1370, keys=1370, depth=64, values=64, dtype=dtype), direction)()
    [partition] = g.finish()
    with partition.compile(partition.input_ports, partition.output_ports, engine) as compiled:
        ports = (*partition.input_ports, *partition.output_ports)
        tensors = sum(compiled.query_logical_tensor(lt.id).nbytes for lt in ports)
        assert tensors > 2**29
        assert compiled.scratchpad_nbytes < 0.01 * tensors
