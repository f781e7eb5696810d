"""Elementwise kinds in every type of their schema equal the reference, as do casts and chains."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from graphpool.graph.schema import SCHEMAS
from graphpool.typing import DataType
from tests.cases.graphs import GraphBuilder
from tests.helpers.kinds import BINARY, UNARY, fixed_result, is_wide, values
from tests.helpers.partitions import check_graph

KINDS = [kind for kind in (*UNARY, *BINARY, "Select") if is_wide(kind)]
LIMITS = {"min": [-1.0, 3.0], "max": [2.0]}
CASTS = sorted(SCHEMAS["TypeCast"].types["T1"])


def content(rng, lt):
    """Random content that meets the edges of the type."""
    if lt.dtype is DataType.BOOLEAN:
        return rng.integers(0, 2, lt.shape).astype(bool)
    if lt.dtype.value[0] in "su":
        info = np.iinfo(lt.dtype.numpy)
        wide = rng.integers(info.min, info.max, lt.shape, info.dtype, endpoint=True)
        return np.where(rng.integers(0, 2, lt.shape), wide, rng.integers(0, 5, lt.shape)).astype(info.dtype)
    edges = np.array([0.0, -0.0, 1.0, -2.5, np.inf, -np.inf, np.nan])
    picked = edges[rng.integers(0, len(edges), lt.shape)]
    with np.errstate(over="ignore"):
        values = np.where(rng.integers(0, 4, lt.shape) == 0, picked, rng.normal(size=lt.shape) * 3)
        return np.asarray(values).astype(lt.dtype.numpy)


@st.composite
def shapes(draw, count):
    """Shapes that broadcast, perhaps of rank 0 or 6 or without elements."""
    full = draw(st.lists(st.sampled_from([0, 1, 2, 3, 17]), max_size=6).filter(lambda s: np.prod(s) < 3000))
    cut = st.integers(0, len(full))
    return [[1 if draw(st.booleans()) else dim for dim in full[draw(cut) :]] for _ in range(count)]


def check(builder, engine, rng):
    partitions = check_graph(builder, engine, rng, scale=20.0, content=content)
    assert {p.backend_name for p in partitions} == {"cpu"}


@settings(deadline=None, max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), kind=st.sampled_from(KINDS))
def test_every_type_equals_the_reference(engine, data, kind):
    schema, builder = SCHEMAS[kind], GraphBuilder()
    accepted = [schema.types[port.type] for port in schema.inputs]
    dtype = data.draw(st.sampled_from(sorted(accepted[-1])))
    types = [dtype if dtype in types else next(iter(types)) for types in accepted]
    count = len(schema.inputs)
    given = data.draw(shapes(count))
    if kind == "Select":
        given[0] = given[1]
    attrs = {
        name: data.draw(st.sampled_from(LIMITS.get(name) or values(item)))
        for name, item in schema.attributes.items()
        if name != "auto_broadcast"
    }
    out = fixed_result(kind) or dtype
    builder.op(kind, *(builder.input(s, t) for s, t in zip(given, types, strict=True)), dtype=out, **attrs)
    check(builder, engine, np.random.default_rng(data.draw(st.integers(0, 999))))


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(CASTS), min_size=2, max_size=5), st.booleans(), st.integers(0, 999))
def test_casts_between_all_types(engine, types, saturate, seed):
    builder = GraphBuilder()
    x = builder.input((5, 40), types[0])
    for dtype in types[1:]:
        if dtype != x.dtype:
            x = builder.op("TypeCast", x, dtype=dtype, saturate=saturate)
    if builder.ops:
        check(builder, engine, np.random.default_rng(seed))


@settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), st.sampled_from(["s8", "u16", "s32", "u64", "s64"]), st.integers(0, 999))
def test_integer_chains_wrap_as_their_tensors_do(engine, data, dtype, seed):
    builder = GraphBuilder()
    values = [builder.input((30,), dtype) for _ in range(3)]
    kinds = st.sampled_from(["Add", "Multiply", "Divide", "Maximum", "BitwiseXor", "Mod", "Subtract"])
    for _ in range(data.draw(st.integers(1, 12))):
        a, b = (data.draw(st.sampled_from(values)) for _ in range(2))
        values.append(builder.op(data.draw(kinds), a, b))
    builder.op("Greater", values[-1], values[-2], dtype="boolean")
    check(builder, engine, np.random.default_rng(seed))


@pytest.mark.parametrize("width", [12, 20, 30, 40, 70])
@pytest.mark.parametrize("anchor", [False, True])
def test_a_region_of_any_width_compiles(engine, width, anchor):
    """All values are alive before the first of them is used; up to 31 of them one region is grown."""
    builder = GraphBuilder()
    x = builder.input((4, 30))
    x = builder.op("MatMul", x, builder.input((30, 30))) if anchor else builder.op("Abs", x)
    branches = [builder.op("Clamp", x, min=-float(k), max=float(k)) for k in range(1, width + 1)]
    total = branches[0]
    for branch in branches[1:]:
        total = builder.op("Add", total, branch)
    check_graph(builder, engine, np.random.default_rng(0), scale=100.0)


def test_a_chain_with_many_operands_compiles(engine):
    builder = GraphBuilder()
    x = builder.input((4, 30))
    for _ in range(300):
        x = builder.op("Maximum", x, builder.input((30,)))
    check(builder, engine, np.random.default_rng(0))
