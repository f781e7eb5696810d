"""Functions of bytes as tables, and reshapes that would keep ops apart."""

import numpy as np
import pytest

from graphpool.backends.cpu.match.swaps import RESHAPES_BEHIND, swap
from tests.cases.graphs import GraphBuilder
from tests.helpers.partitions import run_partitions, run_reference

SHAPE = (3, 8, 100)


def dequantize(g, x, scale=0.03125, zp=20):
    return g.op("Dequantize", x, dtype="f32", scales=[scale], zps=[zp])


def quantize(g, x, dtype="u8", scale=0.0625, zp=7, **more):
    return g.op("Quantize", x, dtype=dtype, scales=[scale], zps=[zp], **more)


def reshape(g, x, shape):
    return g.op("StaticReshape", x, shape=list(shape), special_zero=False)


def check(build, engine, tolerance=0):
    """Compile all as one partition and compare bytes; returns the names of the steps."""
    g = GraphBuilder()
    build(g)
    merged = g.graph.merge_partitions(g.finish())
    rng = np.random.default_rng(0)
    values = {
        lt.id: rng.integers(0, 128, lt.shape).astype(lt.dtype.numpy)
        if lt.dtype.value in ("u8", "s8") else np.full(lt.shape, 1.5, np.float32)
        for lt in g.inputs
    }  # fmt: skip
    wanted = run_reference(g.graph.ops, values)
    results = run_partitions([merged], values, engine)
    for port in merged.output_ports:
        assert results[port.id].shape == wanted[port.id].shape
        assert np.abs(results[port.id].astype(np.int64) - wanted[port.id].astype(np.int64)).max() <= tolerance
    outputs = [lt.replace(shape=wanted[lt.id].shape) for lt in merged.output_ports]
    with merged.compile(merged.input_ports, outputs, engine) as compiled:
        return compiled.implementations


FUNCTIONS = {
    "gelu": lambda g, x: g.op("GELU", x),
    "silu": lambda g, x: g.op("Multiply", x, g.op("Sigmoid", x)),
    "scalar": lambda g, x: g.op("Multiply", x, g.input((1, 1), "f32")),
    "constant": lambda g, x: g.op("ReLU", x),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize(("source", "result"), [("u8", "u8"), ("s8", "u8"), ("u8", "s8"), ("s8", "s8")])
def test_a_function_of_bytes_is_looked_up(engine, function, source, result):
    def build(g):
        quantize(g, FUNCTIONS[function](g, dequantize(g, g.input(SHAPE, source))), result)

    names = check(build, engine, tolerance=1)
    assert sum(name.startswith("x8_lookup") for name in names) == 1
    assert len(names) == 2


@pytest.mark.parametrize("case", ["few", "two tensors", "a scale a channel", "floats"])
def test_what_is_computed_element_by_element(engine, case):
    def build(g):
        shape = (3, 5) if case == "few" else SHAPE
        x = g.op("Abs", dequantize(g, g.input(shape, "u8")))
        if case == "two tensors":
            x = g.op("Add", x, dequantize(g, g.input(shape, "u8")))
        if case == "a scale a channel":
            scales = [0.0625 * (n + 1) for n in range(shape[1])]
            g.op("Quantize", x, dtype="u8", scales=scales, qtype="per_channel", axis=1)
        elif case != "floats":
            quantize(g, x)

    assert not any("lookup" in name for name in check(build, engine))


def test_reshapes_between_products_do_not_keep_bytes_from_them(engine):
    def multiply(g, x, k, n):
        w = g.input((k, n), "s8", property="constant")
        return g.op("MatMul", x, g.op("Dequantize", w, dtype="f32", scales=[0.0078125], zps=[0]))

    def build(g):
        x = dequantize(g, reshape(g, g.input((4, 8, 24), "u8"), (32, 24)))
        y = dequantize(g, quantize(g, multiply(g, x, 24, 72)), 0.0625, 7)
        y = reshape(g, g.op("HardSwish", reshape(g, y, (4, 8, 72))), (32, 72))
        quantize(g, multiply(g, dequantize(g, quantize(g, y), 0.0625, 7), 72, 16))

    names = check(build, engine, tolerance=1)
    kept = [name for name in names if "lookup" in name or name.startswith("s8_")]
    product = ["s8_matmul_packed"] * 2  # on weights that are kept, and on those that a run packs
    assert [name.partition(":")[0] for name in kept] == [*product, "x8_lookup", *product]


def kinds_after_sinking(build):
    g = GraphBuilder()
    last = build(g)
    g.finish()
    ops = list(g.graph.ops)
    shapes = {tensor.id: tuple(tensor.shape) for tensor in g.inputs}
    shapes |= {tensor.id: tuple(g.graph_shape(tensor)) for op in ops for tensor in op.outputs}
    moved = swap(RESHAPES_BEHIND, ops, shapes, {last.id})
    assert moved[-1].outputs[0].id == last.id
    assert all(shapes[tensor.id] is not None for op in moved for tensor in op.outputs)
    return [op.kind for op in moved]


def test_reshapes_sink_behind_ops_of_one_operand():
    def build(g):
        x = reshape(g, g.op("Exp", g.input((6, 4))), (2, 12))
        return g.op("Abs", reshape(g, g.op("ReLU", x), (24,)))

    assert kinds_after_sinking(build) == ["Exp", "ReLU", "Abs", "StaticReshape", "StaticReshape"]


@pytest.mark.parametrize("case", ["two operands", "channels", "read twice"])
def test_reshapes_stay_where_the_shape_matters(case):
    def build(g):
        x = reshape(g, g.op("Exp", g.input((6, 4))), (2, 12))
        if case == "two operands":
            return g.op("Add", x, g.input((2, 12)))
        if case == "channels":
            scales = [0.5 * (n + 1) for n in range(12)]
            return g.op("Quantize", x, dtype="u8", scales=scales, qtype="per_channel", axis=1)
        g.op("Sqrt", x)
        return g.op("Abs", x)

    assert kinds_after_sinking(build)[1] == "StaticReshape"
