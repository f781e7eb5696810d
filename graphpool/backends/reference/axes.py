"""Axis arithmetic that several groups of operations share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from graphpool.errors import InvalidArgumentError, explain

from .registry import Array


def channel_axis(ndim: int, data_format: str) -> int:
    """Index of the channel axis: the last for NXC, 1 for NCX (0 for a tensor of rank 1)."""
    return ndim - 1 if data_format == "NXC" else min(1, ndim - 1)


def other_axes(ndim: int, axis: int) -> tuple[int, ...]:
    """Every axis but `axis`."""
    return tuple(i for i in range(ndim) if i != axis % ndim)


def along_axis(vector: Array, ndim: int, axis: int) -> Array:
    """`vector` reshaped so that it broadcasts along `axis` of a tensor of rank `ndim`."""
    shape = [1] * ndim
    shape[axis] = vector.size
    return vector.reshape(shape)


def to_ncx(array: Array, data_format: str) -> Array:
    """View of `array` with its channels at axis 1."""
    return np.moveaxis(array, -1, 1) if data_format == "NXC" else array


def from_ncx(array: Array, data_format: str) -> Array:
    """Inverse of `to_ncx`."""
    return np.moveaxis(array, 1, -1) if data_format == "NXC" else array


def mean(array: Array, axes: tuple[int, ...], *, keepdims: bool = False) -> Array:
    """Arithmetic mean; NaN over no elements, without NumPy's warning."""
    count = np.prod([array.shape[axis] for axis in axes], dtype=np.float64)
    return np.asarray(np.sum(array, axis=axes, keepdims=keepdims) / count)


def sum_to_shape(array: Array, shape: Sequence[int]) -> Array:
    """Sum out the axes along which `shape` was broadcast to ``array.shape``: the adjoint of broadcasting."""
    lead = array.ndim - len(shape)
    spread = [lead + i for i, dim in enumerate(shape) if dim == 1]
    return np.asarray(np.sum(array, axis=(*range(lead), *spread))).reshape(tuple(shape))


def within(indices: Array, dim: int) -> Array:
    """Indices of an axis of `dim`, counted from the front; InvalidArgumentError where one lies outside."""
    found = np.where(indices < 0, indices + dim, indices)
    outside = indices[(found < 0) | (found >= dim)]
    if outside.size:
        raise InvalidArgumentError(explain("an index", accepted=f"{-dim} to {dim - 1}", got=int(outside.flat[0])))
    return found
