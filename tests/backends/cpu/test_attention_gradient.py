"""Attention as training spells it: the forward pass with what backward needs of it, and backward as one kernel."""

import numpy as np
import pytest

import graphpool as gp
from tests.cases.graphs import GraphBuilder
from tests.helpers.partitions import check_graph, random_array, run_partitions

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


def kernels(partitions, engine):
    """Names of the kernels of all partitions, without conversions and copies of small tensors."""
    found = []
    for partition in partitions:
        outputs = [lt.replace(shape=None) for lt in partition.output_ports]
        with partition.compile(partition.input_ports, outputs, engine) as compiled:
            found += [name.split(":")[0] for name in compiled.implementations]
    return found


class Training:
    """Adds the scores of attention to a graph, and what forward and backward make of them."""

    def __init__(
        self, g, heads=(2, 3), kv=None, queries=9, keys=11, depth=8, values=6, dtype="f32", scale="Multiply", mask="",
        select="", is_early=False, dropout=False, turned=False,
    ):  # fmt: skip
        self.g, self.dtype, self.heads, self.scale, self.is_dropped = g, dtype, heads, scale, dropout
        kv = kv or heads
        self.shared = [axis for axis, (own, other) in enumerate(zip(heads, kv, strict=True)) if own != other]
        self.turned = turned
        self.q = g.input((*heads, queries, depth), dtype)
        self.k = g.input((*kv, depth, keys) if turned else (*kv, keys, depth), dtype)
        self.v = g.input((*kv, keys, values), dtype)
        self.rows = (*heads, queries)
        self.values = values
        s = g.op("MatMul", self.q, self.k, dtype="f32", transpose_b=not turned)
        if is_early:
            s = self._select(s, select)
        if scale:
            self.factor = g.input((1,), dtype)
            s = g.op(scale, s, self.factor, dtype="f32")
        if mask:
            s = g.op("Add", s, g.input((*[1] * len(heads), 1, keys) if mask == "keys" else (*self.rows, keys), dtype))
        if select and not is_early:
            s = self._select(s, select)
        self.scores = s
        self.draws = [g.input((), "s64"), g.input((), "s64"), g.input((), "f32")] if dropout else []

    def _select(self, s, select):
        g = self.g
        if select == "condition":
            shown = g.input((*[1] * len(self.heads), *g.graph_shape(s)[-2:]), "boolean")
        else:
            rows, columns = (g.op("GenIndex", s, dtype="s32", axis=axis) for axis in (-2, -1))
            if select == "bottom_right":
                rows = g.op("Subtract", g.op("Add", rows, g.input((), "s32")), g.input((), "s32"))
            shown = g.op("GreaterEqual", rows, columns, dtype="boolean")
        return g.op("Select", shown, s, g.input((), "f32"), dtype="f32")

    def _cast(self, x):
        return x if self.dtype == "f32" else self.g.op("TypeCast", x, dtype=self.dtype)

    def forward(self, is_drawn=False):
        g = self.g
        p, _ = g.op("SoftMax", self.scores, axis=-1, mode="inf_as_zero", n=2, dtype=["f32", "f32"])
        if self.is_dropped:
            p = g.op("Dropout", p, *self.draws, n=1 + is_drawn, dtype=["f32", "u8"][: 1 + is_drawn])
            p = p[0] if is_drawn else p
        return g.op("MatMul", self._cast(p), self.v, dtype=self.dtype)

    def backward(self, is_summed=True, reads_scores=False):
        g = self.g
        result, d = (g.input((*self.rows, self.values), self.dtype) for _ in range(2))
        stats = g.input((*self.rows, 1))
        p = g.op("Exp", g.op("Subtract", self.scores, stats))
        dropped = g.op("Dropout", p, *self.draws) if self.is_dropped else p
        d_v = g.op("MatMul", self._cast(dropped), d, dtype=self.dtype, transpose_a=True)
        dp = g.op("MatMul", d, self.v, dtype="f32", transpose_b=True)
        dp = g.op("Dropout", dp, *self.draws) if self.is_dropped else dp
        rank = len(self.rows)
        delta = g.op("ReduceSum", g.op("Multiply", result, d, dtype="f32"), axes=[rank], keep_dims=True)
        ds = g.op("Multiply", p, g.op("Subtract", dp, delta))
        if reads_scores:
            g.op("Abs", ds)
        scaled = self._cast(g.op(self.scale, ds, self.factor, dtype="f32") if self.scale else ds)
        g.op("MatMul", scaled, self.k, dtype=self.dtype, transpose_b=self.turned)
        d_k = g.op("MatMul", scaled, self.q, dtype=self.dtype, transpose_a=True)
        if self.shared and is_summed:
            for x in (d_k, d_v):
                g.op("ReduceSum", x, axes=self.shared, keep_dims=True)


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
    assert kernels(check(g, engine, dtype), engine) == ["f32_attention"]


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("heads", HEADS)
@pytest.mark.parametrize("scores", SCORES)
def test_backward_is_one_kernel(engine, scores, heads, dtype):
    g = GraphBuilder()
    Training(g, dtype=dtype, **HEADS[heads], **SCORES[scores]).backward()
    assert kernels(check(g, engine, dtype), engine) == ["f32_attention_backward"]


@pytest.mark.parametrize("select", ["causal", "condition"])
@pytest.mark.parametrize(("queries", "keys"), [(1, 1), (1, 70), (70, 70), (65, 200), (200, 200)], ids=str)
def test_long_sequences_and_hidden_keys(engine, queries, keys, select):
    for direction, kernel in (("forward", "f32_attention"), ("backward", "f32_attention_backward")):
        g = GraphBuilder()
        training = Training(g, (2, 2, 2), (2, 2, 1), queries, keys, select=select)
        getattr(training, direction)()
        assert kernels(check(g, engine, "f32", hiding), engine) == [kernel]


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
    found = kernels(check(g, engine, form.get("dtype", "f32"), fills), engine)
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
    assert "f32_attention_backward" not in kernels(check(g, engine, "f32"), engine)


def test_sums_over_a_shared_batch_follow_the_kernel(engine):
    g = GraphBuilder()
    Training(g, (2, 3), (1, 3)).backward()
    assert kernels(check(g, engine, "f32"), engine) == ["f32_attention_backward", "f32_reduce", "f32_reduce"]


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
