"""Numbers at the ends of the range, and comparisons that take NaN, infinities and the smallest numbers as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ml_dtypes
import numpy as np

import graphpool as gp
from graphpool.typing import DataType
from tests.cases.graphs import GraphBuilder
from tests.cases.inputs import random_array
from tests.helpers.partitions import run_partitions, run_reference

__all__ = ["FLOATS", "HUGE", "NOT_FINITE", "SMALL", "assert_alike", "check_special", "special_array"]

FLOATS = frozenset({DataType.F32, DataType.BF16, DataType.F16, DataType.F64})
NOT_FINITE = ("nan", "inf", "-inf")
SMALL = ("0", "-0", "denormal", "-denormal", "least", "-least", "near_0")
HUGE = ("max", "-max", "huge", "-huge")


def number(name: str, dtype: DataType) -> float:
    """A number by name; denormals and the largest ones are the type's own."""
    if name.startswith("-"):
        return -number(name[1:], dtype)
    info = ml_dtypes.finfo(dtype.numpy)
    own = {
        "denormal": float(info.smallest_normal) * 0.375, "least": float(info.smallest_subnormal),
        "near_0": float(info.smallest_normal) * 3, "max": float(info.max), "huge": float(info.max) / 5,
    }  # fmt: skip
    return own[name] if name in own else float(name)


def special_array(
    rng: np.random.Generator, lt: gp.LogicalTensor, names: Sequence[str], share: float, **bounds: float
) -> np.ndarray:
    """Random content in which a share of the elements, where they are floats, are the numbers of these names."""
    array = random_array(lt, rng, **bounds)
    if lt.dtype not in FLOATS or not names:
        return array
    picked = rng.choice([number(name, lt.dtype) for name in names], lt.shape)
    return np.where(rng.uniform(size=lt.shape) < share, picked, array.astype(np.float64)).astype(lt.dtype.numpy)


def check_special(
    builder: GraphBuilder,
    engine: gp.Engine,
    values: Mapping[int, np.ndarray],
    *,
    ulps: float = 4.0,
    wide: float = 0.0,
    floor: float = 0.0,
) -> None:
    """The CPU backend gives NaN where the reference does, the same infinities, and finite results close to it.

    Parameters
    ----------
    builder : GraphBuilder
    engine : Engine
    values : mapping of int to ndarray
        Content of the graph's inputs.
    ulps : float, default=4.0
        Accepted error in units of the last place; as many of the smallest denormal besides. Bytes may differ by 1.
    wide : float, default=0.0
        Accepted error in units of the last place of the largest finite result: for what adds up. For results beyond
        the first, which may be means, also of the largest finite input.
    floor : float, default=0.0
        Accepted absolute error.
    """
    partitions = builder.finish()
    assert {partition.backend_name for partition in partitions} == {"cpu"}
    with np.errstate(all="ignore"):
        expected = run_reference(builder.graph.ops, dict(values))
        actual = run_partitions(partitions, dict(values), engine, scale=256.0)
        greatest = max(_largest(array) for array in values.values())
        for partition in partitions:
            for position, port in enumerate(partition.output_ports):
                scale = max(_largest(expected[port.id]), greatest if position else 0.0)
                assert_alike(actual[port.id], expected[port.id], port.dtype, ulps, wide * scale, floor)


def _largest(array: np.ndarray) -> float:
    """The largest finite magnitude."""
    wide = array.astype(np.float64)
    return float(np.abs(wide[np.isfinite(wide)]).max(initial=0))


def assert_alike(
    actual: np.ndarray, expected: np.ndarray, dtype: DataType, ulps: float, wide: float, floor: float
) -> None:
    """NaN and infinities in equal places, finite numbers close: `wide` is a magnitude; else as `check_special`."""
    assert actual.shape == expected.shape
    assert actual.dtype == expected.dtype
    if dtype.value[0] in "su" or dtype is DataType.BOOLEAN:
        most = 1 if dtype in (DataType.U8, DataType.S8) else 0
        differs = np.abs(actual.astype(np.int64) - expected.astype(np.int64)) > most
        assert not differs.any(), f"got {actual[differs][:6]}, expected {expected[differs][:6]}"
        return
    info, a, e = ml_dtypes.finfo(dtype.numpy), actual.astype(np.float64), expected.astype(np.float64)
    bound = float(info.eps) * (ulps * np.abs(e) + wide) + ulps * float(info.smallest_subnormal) + floor
    equal = np.where(np.isfinite(e), np.abs(a - e) <= bound, (a == e) | (np.isnan(a) & np.isnan(e)))
    assert equal.all(), f"{np.sum(~equal)} of {equal.size} differ: got {a[~equal][:6]}, expected {e[~equal][:6]}"
