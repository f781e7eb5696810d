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
    from graphpool.typing import DataType

__all__ = ["Described", "FormSizes", "SizedArrays"]


class Described(NamedTuple):
    """What arrays for a tensor are; `strides` are None where it has no elements of its own to an array's."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    nbytes: int


class SizedArrays:
    """What arrays for tensors are: `made` for each kind of them, of which `numbers` says the one of an id."""

    __slots__ = ("made", "numbers")

    def __init__(self, numbers: dict[int, int], made: list[Described]) -> None:
        self.numbers, self.made = numbers, made

    def __contains__(self, tensor_id: int) -> bool:
        return tensor_id in self.numbers

    def __getitem__(self, tensor_id: int) -> Described:
        return self.made[self.numbers[tensor_id]]

    def get(self, tensor_id: int) -> Described | None:
        """That of an id; None where there is none."""
        number = self.numbers.get(tensor_id)
        return None if number is None else self.made[number]


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
        self._kinds: list[tuple[Any, Any, DataType, int]] = []  # shape, strides and bytes with sizes
        for i in ids:
            tensor = tensors.get(i)
            if tensor is not None and is_plain(tensor):
                kind = tensor.dtype, key_of(tensor.shape), key_of(tensor.strides)
                self._numbers[i] = found.setdefault(kind, len(found))
                if len(found) > len(self._kinds):
                    self._kinds.append(_kind_of(tensor))

    def of(self, values: SizeValues | None) -> SizedArrays:
        """By id; `values` are None where nothing varies."""
        made = []
        for shape, strides, data_type, nbytes in self._kinds:
            if values is not None:
                shape, strides = values.shape(shape), None if strides is None else values.shape(strides)
                nbytes = values.of(nbytes)
            made.append(Described(shape, strides, data_type.numpy, nbytes))
        return SizedArrays(self._numbers, made)


def _kind_of(tensor: LogicalTensor) -> tuple[Any, Any, DataType, int]:
    shape, strides = tensor.shape or (), tensor.strides if tensor.dtype.bits != 4 else None
    return shape, strides, tensor.dtype, prod(shape) * tensor.dtype.numpy.itemsize
