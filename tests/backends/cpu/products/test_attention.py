"""Attention as one kernel: which ops are, and that results equal the op-by-op reference."""

import numpy as np
import pytest

import graphpool as gp
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_inputs
from tests.helpers.partitions import assert_close, check_graph, kernels_of, run_partitions, run_reference


@pytest.fixture
def engine():
    with gp.Engine() as engine:
        yield engine


def attend(g, q, k, v, steps=(), dtype="f32", transposed_k=True, transposed_v=False, mode="none",
    between=None, quantized=(),
):  # fmt: skip
    """between(softmax(steps(q k^T))) v of inputs with these shapes; `quantized` are types of q, k, v of one byte."""
    k = k if transposed_k else (*k[:-2], k[-1], k[-2])
    v = (*v[:-2], v[-1], v[-2]) if transposed_v else v
    types = (*quantized, None, None, None)
    numbers = (0.25, 3), (0.5, 100), (0.125, -7)
    q, k, v = (
        g.input(shape, dtype) if stored is None else dequantize(g, g.input(shape, stored), dtype, *number)
        for shape, stored, number in zip((q, k, v), types, numbers, strict=False)
    )
    scores = g.op("MatMul", q, k, transpose_b=transposed_k)
    for step in steps:
        scores = step(g, scores)
    weights = g.op("SoftMax", scores, axis=-1, mode=mode)
    weights = weights if between is None else between(g, weights)
    return g.op("MatMul", weights, v, transpose_b=transposed_v)


def dequantize(g, x, dtype, scale, zero_point):
    """A Dequantize, and a cast behind it where numbers are no f32."""
    more = {} if x.dtype.value.startswith("f8") else {"zps": [zero_point]}
    numbers = g.op("Dequantize", x, dtype="f32", qtype="per_tensor", scales=[scale], **more)
    return numbers if dtype == "f32" else g.op("TypeCast", numbers, dtype=dtype)


def rounding(dtype="u8", scale=1 / 256, back=None, zps=(0,), zps_back=None, through=None, qtype="per_tensor"):
    """A Quantize and a Dequantize, with casts from `through` and back around them."""

    def between(g, p):
        p = p if through is None else g.op("TypeCast", p, dtype="f32")
        scales = [scale] * (7 if qtype == "per_channel" else 1)
        zps_of = [list(given) * len(scales) for given in (zps, zps if zps_back is None else zps_back)]
        given = [{"qtype": qtype, "axis": -1, "scales": s} for s in (scales, [back or scale] * len(scales))]
        given = given if dtype.startswith("f8") else [a | {"zps": z} for a, z in zip(given, zps_of, strict=True)]
        p = g.op("Dequantize", g.op("Quantize", p, dtype=dtype, **given[0]), dtype="f32", **given[1])
        return p if through is None else g.op("TypeCast", p, dtype=through)

    return between


def multiply(g, x):
    return g.op("Multiply", g.input((1,), x.dtype), x)


def divide(g, x):
    return g.op("Divide", x, g.input((1,), x.dtype))


def cap(g, x):
    number = g.input((1, 1), x.dtype)
    return g.op("Multiply", g.op("Tanh", g.op("Divide", x, number)), number)


def mask(*shape):
    return lambda g, x: g.op("Add", x, g.input(shape, x.dtype))


def select(*shape, first=None, hides=False, compare=None):
    """Scores where a condition is true, or false if it `hides`, else a number; `first` is done to them before."""

    def step(g, x):
        x = x if first is None else first(g, x)
        if compare is None:
            shown = g.input(shape, "boolean")
        else:
            rows, columns = (g.op("GenIndex", x, axis=axis, dtype="s32") for axis in (-2, -1))
            shown = g.op(compare, rows, columns, dtype="boolean")
        fill = g.input((1,), x.dtype)
        return g.op("Select", shown, *((fill, x) if hides else (x, fill)), dtype=x.dtype)

    return step


FUSED = {
    "plain": {},
    "condition": {"steps": [multiply, select(7)]},
    "condition in front of the scale": {"steps": [select(5, 7), divide]},
    "condition that hides": {"steps": [multiply, select(2, 1, 1, 7, hides=True)]},
    "condition that hides queries": {"steps": [select(5, 1, hides=True), multiply]},
    "causal": {"steps": [divide, select(compare="GreaterEqual")]},
    "two axes": {"q": (5, 8), "k": (7, 8), "v": (7, 6)},
    "three axes": {"q": (3, 5, 8), "k": (3, 7, 8), "v": (3, 7, 6)},
    "grouped heads": {"q": (2, 3, 4, 5, 8), "k": (2, 3, 1, 7, 8), "v": (2, 3, 1, 7, 6)},
    "one key head": {"q": (2, 4, 5, 8), "k": (2, 1, 7, 8), "v": (2, 1, 7, 6)},
    "one key batch": {"q": (2, 4, 5, 8), "k": (1, 4, 7, 8), "v": (1, 4, 7, 6)},
    "plain keys": {"transposed_k": False},
    "turned values": {"transposed_v": True},
    "factor": {"steps": [multiply]},
    "divisor": {"steps": [divide]},
    "factors of keys": {"steps": [lambda g, x: g.op("Multiply", x, g.input((7,), x.dtype))]},
    "divisors": {"steps": [lambda g, x: g.op("Divide", x, g.input((5, 7), x.dtype)), mask(7)], "dtype": "bf16"},
    "cap": {"steps": [cap]},
    "factor, cap, mask": {"steps": [multiply, cap, mask(2, 1, 5, 7)]},
    "mask of rows": {"steps": [divide, mask(7)]},
    "mask of heads": {"steps": [mask(4, 1, 1)]},
    "grouped mask": {
        "q": (2, 3, 4, 5, 8), "k": (2, 3, 1, 7, 8), "v": (2, 3, 1, 7, 6), "steps": [mask(3, 1, 5, 7)],
    },
    "inf as zero": {"steps": [mask(5, 7)], "mode": "inf_as_zero"},
    "bf16": {"dtype": "bf16", "steps": [multiply]},
    "f16": {"dtype": "f16", "steps": [mask(5, 7)]},
    "one query": {"q": (2, 4, 1, 8)},
}  # fmt: skip
ROUNDED = {
    "rounded": {"between": rounding()}, "rounded to s8": {"between": rounding("s8", 1 / 99, 1 / 50, (-9,))},
    "rounded to f8": {"between": rounding("f8_e4m3", 0.25)},
    "rounded behind a condition that hides": {"between": rounding(), "steps": [divide, select(2, 1, 1, 7, hides=True)]},
    "rounded bf16": {"between": rounding(through="bf16"), "dtype": "bf16", "steps": [divide, mask(7)]},
    "one rounded query": {"between": rounding(), "q": (2, 4, 1, 8)},
}  # fmt: skip
QUANTIZED = {
    "f8": {"quantized": ["f8_e4m3"] * 3, "steps": [divide, mask(5, 7)], "between": rounding("f8_e4m3", 0.25)},
    "f8 of one key head": {"quantized": ["f8_e5m2"] * 3, "q": (2, 4, 5, 8), "k": (2, 1, 7, 8), "v": (2, 1, 7, 6)},
    "plain keys": {"quantized": [None, "f8_e4m3"], "transposed_k": False, "steps": [select(5, 7), divide]},
    "turned values": {"quantized": [None, None, "s8"], "transposed_v": True},
    "bytes through bf16": {"quantized": ["u8", "s8", "u8"], "dtype": "bf16", "between": rounding(through="bf16")},
    "one query": {"quantized": ["f8_e4m3"] * 3, "q": (2, 4, 1, 8)},
}  # fmt: skip
SHAPES = {"q": (2, 4, 5, 8), "k": (2, 4, 7, 8), "v": (2, 4, 7, 6)}


@pytest.mark.parametrize("tail", ["nothing", "gelu", "move"])
@pytest.mark.parametrize("name", [*FUSED, *ROUNDED])
def test_fused(engine, name, tail):
    g = GraphBuilder()
    y = attend(g, **(SHAPES | (FUSED | ROUNDED)[name]))
    if tail == "gelu":
        g.op("GELU", y)
    elif tail == "move":
        rank = len(g.graph_shape(y))
        g.op("StaticTranspose", y, order=[*reversed(range(rank))])
    partitions = check_graph(g, engine, np.random.default_rng(0), scale=4, low=0.5)
    assert kernels_of(partitions, engine).count("f32_attention") == 1
    assert "f32_softmax" not in kernels_of(partitions, engine)


def keep_weights(g):
    q, k, v = (g.input(SHAPES[name]) for name in "qkv")
    weights = g.op("SoftMax", g.op("MatMul", q, k, transpose_b=True), axis=-1)
    g.op("MatMul", weights, v)
    g.op("Abs", weights)


def other_axis(g):
    q, k, v = (g.input((5, 5)) for _ in range(3))
    g.op("MatMul", g.op("SoftMax", g.op("MatMul", q, k), axis=0), v)


def on_the_right(g):
    q, k, v = (g.input((5, 5)) for _ in range(3))
    g.op("MatMul", v, g.op("SoftMax", g.op("MatMul", q, k), axis=-1))


def scaled_after_the_mask(g):
    attend(g, **SHAPES, steps=[mask(5, 7), multiply])


def divisor_is_the_score(g):
    attend(g, **SHAPES, steps=[lambda g, x: g.op("Divide", g.input((1,)), x)])


def other_caps(g):
    def caps(g, x):
        return g.op("Multiply", g.op("Tanh", g.op("Divide", x, g.input((1,)))), g.input((1,)))

    attend(g, **SHAPES, steps=[caps])


def keys_of_every_other_head(g):
    attend(g, (2, 3, 4, 5, 8), (2, 1, 4, 7, 8), (2, 1, 4, 7, 6))


def keys_up_to_the_query_are_hidden(g):
    attend(g, **SHAPES, steps=[divide, select(compare="GreaterEqual", hides=True)])


def no_keys(g):
    attend(g, (2, 5, 8), (2, 7, 8), (2, 7, 0))


def rounded_to_other_zero_points(g):
    attend(g, **SHAPES, between=rounding(zps=(3,), zps_back=(4,)))


def rounded_by_column(g):
    attend(g, **SHAPES, between=rounding(qtype="per_channel"))


@pytest.mark.parametrize(
    "build",
    [rounded_to_other_zero_points, rounded_by_column,
     keep_weights, other_axis, on_the_right, scaled_after_the_mask, divisor_is_the_score, other_caps,
     keys_of_every_other_head, keys_up_to_the_query_are_hidden, no_keys],
)  # fmt: skip
def test_what_the_kernel_does_not_compute_stays_separate(engine, build):
    g = GraphBuilder()
    build(g)
    partitions = check_graph(g, engine, np.random.default_rng(0), scale=4, low=0.5)
    assert "f32_attention" not in kernels_of(partitions, engine)


@pytest.mark.parametrize("name", QUANTIZED)
def test_operands_are_dequantized_by_the_kernel(engine, name):
    g = GraphBuilder()
    attend(g, **(SHAPES | QUANTIZED[name]))
    partitions = check_graph(g, engine, np.random.default_rng(0), scale=0.25, low=0.5)
    assert kernels_of(partitions, engine) == ["f32_attention"]


def test_operands_that_others_read_are_dequantized_in_front(engine):
    g = GraphBuilder()
    x = dequantize(g, g.input((2, 4, 7, 8), "f8_e4m3"), "f32", 0.25, 0)
    weights = g.op("SoftMax", g.op("MatMul", x, g.input((2, 4, 7, 8)), transpose_b=True), axis=-1)
    g.op("Add", g.op("MatMul", weights, g.input((2, 4, 7, 8))), x)
    partitions = check_graph(g, engine, np.random.default_rng(0), low=0.5)
    assert "attention" in [partition.kind for partition in partitions]


def test_long_sequences_need_no_memory_for_scores(engine):
    g = GraphBuilder()
    attend(g, (1, 4, 1024, 16), (1, 4, 1024, 16), (1, 4, 1024, 16), steps=[multiply])
    [partition] = g.finish()
    outputs = [lt.replace(shape=None) for lt in partition.output_ports]
    with partition.compile(partition.input_ports, outputs, engine) as compiled:
        assert compiled.scratchpad_nbytes < 2**18 < 4 * 1024 * 1024 * 4


def repeat(g, x, count, order=None, axis=2):
    """Each head `count` times, as exporters spell it; then axes in another order."""
    batch, heads, *rest = g.graph_shape(x)
    shape = [batch, heads, 1, *rest] if axis == 2 else [batch, 1, heads, *rest]
    one = g.op("StaticReshape", x, shape=shape, special_zero=False)
    many = [batch, heads, count, *rest] if axis == 2 else [batch, count, heads, *rest]
    wide = g.op("Expand", one, shape=many)
    joined = g.op("StaticReshape", wide, shape=[batch, heads * count, *rest], special_zero=False)
    return joined if order is None else g.op("StaticTranspose", joined, order=order)


def repeated(g, turned=False, keys=2, values=2, axis=2, is_read=False, rows=5, tail=()):
    q = g.input((2, 6, rows, 8))
    k = repeat(g, g.input((2, keys, 7, 8)), 6 // keys, [0, 1, 3, 2] if turned else None, axis)
    v = repeat(g, g.input((2, values, 7, 6)), 6 // values, axis=axis)
    scores = g.op("Add", g.op("MatMul", q, k, transpose_b=not turned), g.input((rows, 7)))
    y = g.op("MatMul", g.op("SoftMax", scores, axis=-1), v)
    if is_read:
        g.op("Abs", k)
    for kind in tail:
        y = g.op(kind, y)


@pytest.mark.parametrize(
    ("form", "copies"),
    [
        ({}, 0), ({"turned": True}, 0), ({"turned": True, "rows": 1}, 0), ({"tail": ["GELU", "Abs"]}, 0),
        ({"values": 3}, 2), ({"axis": 1}, 2), ({"is_read": True}, 2), ({"keys": 6, "values": 6}, 0),
    ],
)  # fmt: skip
def test_heads_that_share_keys_are_not_repeated(engine, form, copies):
    """Where keys and values are alike, each head is read once, where it lies."""
    g = GraphBuilder()
    repeated(g, **form)
    whole = g.graph.merge_partitions(g.finish())
    values = random_inputs(g, np.random.default_rng(0), low=0.5)
    expected, actual = run_reference(whole.ops, values), run_partitions([whole], values, engine)
    for port in whole.output_ports:
        assert_close(actual[port.id], expected[port.id], port.dtype, scale=4)
    names = kernels_of([whole], engine)
    assert names.count("f32_attention") == 1
    assert len([name for name in names if "copy" in name]) == copies
