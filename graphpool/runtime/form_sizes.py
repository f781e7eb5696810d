"""Shapes of a form's inputs and outputs for each set of sizes."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

from graphpool._sizes import key_of

from .model_step import is_plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import numpy as np

    from graphpool._size_program import SizeValues
    from graphpool.graph.logical_tensor import LogicalTensor

__all__ = ["Described", "FormSizes"]


class Described(NamedTuple):
    """What arrays for a tensor are; `strides` are None where it has no elements of its own to an array's."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    nbytes: int


class FormSizes:
    """Shapes of tensors whose sizes may vary; those that are alike are computed once.

    Parameters
    ----------
    tensors : mapping of int to LogicalTensor
        With sizes where they vary.
    ids : iterable of int
        Of those that are wanted; ones that do not lie in memory are left out.
    """

    def __init__(self, tensors: Mapping[int, LogicalTensor], ids: Iterable[int]) -> None:
        self._numbers: dict[int, int] = {}
        found: dict[Any, int] = {}
        self._kinds: list[LogicalTensor] = []
        for i in ids:
            tensor = tensors.get(i)
            if tensor is not None and is_plain(tensor):
                kind = tensor.dtype, key_of(tensor.shape), key_of(tensor.strides)
                self._numbers[i] = found.setdefault(kind, len(found))
                if len(found) > len(self._kinds):
                    self._kinds.append(tensor)

    def of(self, values: SizeValues | None) -> dict[int, Described]:
        """By id; `values` are None where nothing varies."""
        made = [_described(tensor, values) for tensor in self._kinds]
        return {i: made[number] for i, number in self._numbers.items()}


def _described(tensor: LogicalTensor, values: SizeValues | None) -> Described:
    shape: tuple[int, ...] = tensor.shape or ()
    strides, dtype = tensor.strides if tensor.dtype.bits != 4 else None, tensor.dtype.numpy
    if values is not None:
        shape, strides = values.shape(shape), None if strides is None else values.shape(strides)
    return Described(shape, strides, dtype, prod(shape) * dtype.itemsize)
