"""Random content for inputs, the same in every run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from graphpool.typing import DataType

if TYPE_CHECKING:
    import graphpool as gp
    from tests.cases.graphs import GraphBuilder

__all__ = ["normal", "random_array", "random_inputs"]


def normal(shape, seed=0):
    """Normal numbers in f32."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def random_array(lt: gp.LogicalTensor, rng: np.random.Generator, low: float = -2.0, high: float = 2.0) -> np.ndarray:
    """Random content for a tensor: floats in [low, high), integers and booleans over a small range; a known value."""
    dtype = lt.dtype.numpy
    if lt.value is not None:
        return np.full(lt.shape, lt.value, dtype)
    if lt.dtype is DataType.BOOLEAN:
        return rng.integers(0, 2, lt.shape).astype(bool)
    if lt.dtype.value[0] == "s":
        return rng.integers(-50, 50, lt.shape).astype(dtype)
    if lt.dtype.value[0] == "u":
        return rng.integers(0, 100, lt.shape).astype(dtype)
    return np.asarray(rng.uniform(low, high, lt.shape)).astype(dtype)


def random_inputs(builder: GraphBuilder, rng: np.random.Generator, **bounds: float) -> dict[int, np.ndarray]:
    """Random content of a graph's inputs, by the tensor's id."""
    return {lt.id: random_array(lt, rng, **bounds) for lt in builder.inputs}
