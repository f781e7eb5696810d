"""Reductions accumulate in a wider type than that of their elements and round once; those of integers wrap.

What is expected is computed here, in Python's integers or in float64: the reference backend is tested as well.
"""

import math

import numpy as np
import pytest

from graphpool.typing import DataType
from tests.cases.graphs import GraphBuilder
from tests.helpers.partitions import run_partitions, run_reference

COUNT = 4099
"""Terms: ones of bf16 added one by one stop at 256, those of f16 at 2048."""

FLOATS = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-18}
"""Type -> relative error accepted: one rounding of the narrow ones."""

INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")

RUNNING = {"CumSum": np.cumsum, "CumProd": np.cumprod}
REDUCED = {
    "ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceProd": np.prod, "ReduceMax": np.max, "ReduceMin": np.min,
    "ReduceL1": lambda x, axis: np.abs(x).sum(axis), "ReduceL2": lambda x, axis: np.sqrt(np.square(x).sum(axis)),
}  # fmt: skip
PRODUCTS = ("ReduceProd", "CumProd", "mul")
SCATTERED = {"add": sum, "mul": math.prod, "max": max, "min": min}


def run_one(engine, kind, *arrays, **attrs):
    """What the reference and the partitions compute for one op, whose result has the type of the first array."""
    builder = GraphBuilder()
    ports = [builder.input(array.shape, DataType.parse(array.dtype).value) for array in arrays]
    result = builder.op(kind, *ports, **attrs)
    values = {port.id: array for port, array in zip(ports, arrays, strict=True)}
    partitions = builder.finish()
    return run_reference(builder.graph.ops, values)[result.id], run_partitions(partitions, values, engine)[result.id]


def float_terms(dtype, shape, kind):
    """Ones; to be multiplied, some are a step of bf16 more."""
    terms = np.ones(shape)
    if kind in PRODUCTS:
        terms.flat[::5] += 2.0**-7
    return terms.astype(DataType(dtype).numpy)


def assert_rounded(found, expected, tolerance):
    for result in found:
        np.testing.assert_allclose(result.astype(np.float64), expected, rtol=tolerance)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("kind", [*REDUCED, *RUNNING])
@pytest.mark.parametrize("axis", [0, 2])
def test_lines_of_floats(engine, dtype, kind, axis):
    shape = (COUNT, 2, 3) if axis == 0 else (3, 2, COUNT)
    x = float_terms(dtype, shape, kind)
    wide, attrs = x.astype(np.float64), {"axis": axis} if kind in RUNNING else {"axes": [axis]}
    assert_rounded(run_one(engine, kind, x, **attrs), (REDUCED | RUNNING)[kind](wide, axis=axis), FLOATS[dtype])


def floats_or_integers(dtype, shape, kind):
    if dtype in FLOATS:
        return float_terms(dtype, shape, kind)
    limits = np.iinfo(dtype.replace("s", "int").replace("u", "uint"))
    rng = np.random.default_rng(7)
    x = rng.integers(limits.min, limits.max, shape, limits.dtype, endpoint=True)
    return x | 1 if kind in PRODUCTS else x  # even factors would soon leave nothing


def wrapped(numbers, dtype):
    """Python's integers modulo the range of a type."""
    bits = DataType(dtype).bits
    wide = np.array(numbers, dtype=object) % 2**bits
    return wide.astype(f"uint{bits}").view(DataType(dtype).numpy)


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("kind", ["ReduceSum", "ReduceProd", "ReduceMax", "ReduceMin", *RUNNING])
@pytest.mark.parametrize("axis", [0, 2])
def test_lines_of_integers(engine, dtype, kind, axis):
    x = floats_or_integers(dtype, (300, 2, 3) if axis == 0 else (3, 2, 300), kind)
    attrs = {"axis": axis} if kind in RUNNING else {"axes": [axis]}
    expected = wrapped((REDUCED | RUNNING)[kind](x.astype(object), axis=axis), dtype)
    for result in run_one(engine, kind, x, **attrs):
        np.testing.assert_array_equal(result, expected)


@pytest.mark.parametrize("kind", ["ScatterElements", "ScatterND"])
@pytest.mark.parametrize("reduction", SCATTERED)
@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS])
def test_scattered(engine, dtype, reduction, kind):
    """Every update but three goes to one place."""
    x, updates = floats_or_integers(dtype, (4, 1), reduction), floats_or_integers(dtype, (COUNT, 1), reduction)
    indices = np.ones((COUNT, 1), np.int64)
    indices[[5, 70, 900], 0] = 0, 2, -1
    expected = [
        SCATTERED[reduction](
            [int(n) if dtype in INTEGERS else float(n) for n in (x[k, 0], *updates[indices[:, 0] % 4 == k, 0])]
        )
        for k in range(4)
    ]
    for result in run_one(engine, kind, x, indices, updates, reduction=reduction):
        if dtype in INTEGERS:
            np.testing.assert_array_equal(result[:, 0], wrapped(expected, dtype))
        else:
            np.testing.assert_allclose(result[:, 0].astype(np.float64), expected, rtol=FLOATS[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("data_format", ["NXC", "NCX"])
@pytest.mark.parametrize("kind", ["AvgPool", "MaxPool", "BiasAddBackward"])
def test_windows_and_channels(engine, dtype, kind, data_format):
    shape = (1, 3, COUNT) if data_format == "NCX" else (1, COUNT, 3)
    axis, x = (2 if data_format == "NCX" else 1), float_terms(dtype, shape, kind)
    attrs = {"data_format": data_format}
    if kind != "BiasAddBackward":
        attrs |= {"strides": [1], "pads_begin": [0], "pads_end": [0], "kernel": [COUNT]}
    if kind == "AvgPool":
        attrs |= {"exclude_pad": True}
    wide = x.astype(np.float64)
    expected = {"AvgPool": wide.mean, "MaxPool": wide.max, "BiasAddBackward": wide.sum}[kind](axis)
    for result in run_one(engine, kind, x, **attrs):
        np.testing.assert_allclose(result.astype(np.float64).reshape(-1), expected.reshape(-1), rtol=FLOATS[dtype])


@pytest.mark.parametrize("dtype", FLOATS)
def test_products(engine, dtype):
    x, w = float_terms(dtype, (2, COUNT), ""), np.ones((COUNT, 3), DataType(dtype).numpy)
    expected = np.repeat(x.astype(np.float64).sum(1)[:, None], 3, 1)
    assert_rounded(run_one(engine, "MatMul", x, w), expected, FLOATS[dtype])
    image, filters = x.reshape(2, COUNT, 1), w.reshape(COUNT, 1, 3)
    window = {"strides": [1], "pads_begin": [0], "pads_end": [0], "dilations": [1]}
    assert_rounded(run_one(engine, "Convolution", image, filters, **window), expected[:, None], FLOATS[dtype])
