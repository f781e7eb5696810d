"""Elementwise kinds on bytes, 4-bit numbers and truth values equal the reference, below and above table size."""

import itertools

import numpy as np
import pytest

from graphpool.backends.cpu.emit.rules import ELTWISE
from graphpool.graph.schema import SCHEMAS
from graphpool.typing import DataType
from tests.cases.graphs import GraphBuilder
from tests.helpers.partitions import run_partitions, run_reference
from tests.helpers.schema_cases import CASES

SIZES = (2047, 2048)
"""On both sides of the size from which on a table is looked up."""

NARROW = ("u8", "s8", "u4", "s4", "boolean")
ROUNDING = frozenset({"Quantize", "DynamicQuantize"})
"""Kinds whose results in f32 and f64 may round to neighbours."""


def typings(kind):
    """Ways to give the type variables of a kind narrow types: types of inputs, then that of the output."""
    if kind == "TypeCast":
        return [*itertools.permutations(["u8", "s8", "boolean", "f32"], 2)]
    schema, found = SCHEMAS[kind], set()
    variables = [port.type for port in (*schema.inputs[: len(CASES[kind][1])], schema.outputs[0])]
    for dtype in NARROW:
        chosen = {name: dtype for name, types in schema.types.items() if DataType(dtype) in types}
        others = {
            name: "f32" if DataType.F32 in types else min(map(str, types)) for name, types in schema.types.items()
        }
        if chosen:
            found.add(tuple((others | chosen)[name] for name in variables))
    return sorted(found)


def cases():
    found = []
    for kind in sorted(ELTWISE):
        for *inputs, output in typings(kind):
            masks = [1] if "Quantize" in kind or "Dequantize" in kind else range(1, 2 ** len(inputs))
            for mask in masks if kind != "Select" else range(2, 8):  # a condition alone does not enlarge the result
                name = f"{kind}-{'-'.join(inputs)}-{output}-{mask:b}"
                found.append(pytest.param(kind, inputs, output, mask, id=name))
    return found


def attributes(kind):
    given = dict(CASES[kind][0])
    if kind in ("Quantize", "Dequantize"):
        given |= {"qtype": "per_tensor", "scales": [0.5], "zps": [3]}
    if kind in ("DynamicQuantize", "DynamicDequantize"):
        given = {"qtype": "per_tensor"}
    return given


def content(rng, lt, kind, port):
    if lt.dtype is DataType.BOOLEAN:
        return rng.integers(0, 2, lt.shape).astype(bool)
    if lt.dtype.value == "f32":
        return np.asarray(rng.uniform(0.5, 200, lt.shape), np.float32)
    bits = lt.dtype.bits
    low, high = (-(1 << bits - 1), 1 << bits - 1) if lt.dtype.value[0] == "s" else (0, 1 << bits)
    if kind == "BitShift" and port:
        low, high = 0, 9
    return rng.integers(low, high, lt.shape).astype(lt.dtype.numpy)


@pytest.mark.parametrize(("kind", "inputs", "output", "mask"), cases())
def test_every_kind_and_operand(engine, kind, inputs, output, mask):
    """Bit k of the mask: whether operand k is large; the others are scalars."""
    rng = np.random.default_rng(mask)
    for size in SIZES:
        builder = GraphBuilder()
        ports = [builder.input((size,) if mask >> k & 1 else (1,), dtype) for k, dtype in enumerate(inputs)]
        builder.op(kind, *ports, dtype=output, **attributes(kind))
        partitions = builder.finish()
        assert {p.backend_name for p in partitions} == {"cpu"}
        values = {lt.id: content(rng, lt, kind, port) for port, lt in enumerate(builder.inputs)}
        wanted = run_reference(builder.graph.ops, values)
        found = run_partitions(partitions, values, engine)
        [port] = partitions[-1].output_ports
        tolerance = {"atol": 1.0} if kind in ROUNDING else {"rtol": 2e-6} if output == "f32" else {"atol": 0.0}
        np.testing.assert_allclose(found[port.id].astype(np.float64), wanted[port.id].astype(np.float64), **tolerance)


@pytest.mark.parametrize("dtype", ["u8", "s8"])
def test_chains_wrap_between_their_ops(engine, dtype):
    rng = np.random.default_rng(0)
    for size in SIZES:
        builder = GraphBuilder()
        x, *scalars = builder.input((size,), dtype), *(builder.input((1,), dtype) for _ in range(4))
        for kind, scalar in zip(("Add", "Multiply", "Subtract", "BitwiseXor"), scalars, strict=True):
            x = builder.op(kind, x, scalar)
        x = builder.op("Maximum", x, scalars[0])
        merged = builder.graph.merge_partitions(builder.finish())
        values = {lt.id: content(rng, lt, "Add", 0) for lt in builder.inputs}
        wanted = run_reference(builder.graph.ops, values)
        np.testing.assert_array_equal(run_partitions([merged], values, engine)[x.id], wanted[x.id])


def test_more_scalars_than_a_table_program_holds(engine):
    builder = GraphBuilder()
    x = builder.input((SIZES[1],), "u8")
    for _ in range(90):
        x = builder.op("Add", x, builder.input((1,), "u8"))
    merged = builder.graph.merge_partitions(builder.finish())
    rng = np.random.default_rng(0)
    values = {lt.id: content(rng, lt, "Add", 0) for lt in builder.inputs}
    wanted = run_reference(builder.graph.ops, values)
    np.testing.assert_array_equal(run_partitions([merged], values, engine)[x.id], wanted[x.id])


@pytest.mark.parametrize("dtype", ["u8", "s8"])
@pytest.mark.parametrize("axis", [0, 1, -1])
@pytest.mark.parametrize("kind", ["DynamicQuantize", "DynamicDequantize"])
def test_one_zero_point_for_all_channels(engine, kind, axis, dtype):
    builder, rng = GraphBuilder(), np.random.default_rng(0)
    types = ("f32", dtype) if kind == "DynamicQuantize" else (dtype, "f32")
    shape = (3, 7, 5)
    ports = [builder.input(shape, types[0]), builder.input((shape[axis],)), builder.input((1,), dtype)]
    result = builder.op(kind, *ports, dtype=types[1], qtype="per_channel", axis=axis)
    partitions = builder.finish()
    assert {p.backend_name for p in partitions} == {"cpu"}
    values = {lt.id: content(rng, lt, kind, 0) for lt in builder.inputs}
    wanted, found = run_reference(builder.graph.ops, values), run_partitions(partitions, values, engine)
    tolerance = {"atol": 1.0} if kind in ROUNDING else {"rtol": 2e-6}
    np.testing.assert_allclose(found[result.id].astype(float), wanted[result.id].astype(float), **tolerance)
