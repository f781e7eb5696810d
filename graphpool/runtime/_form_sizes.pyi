from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from graphpool._size_program import SizeValues
from graphpool.graph.logical_tensor import LogicalTensor

class Described(NamedTuple):
    """What arrays for a tensor are; `strides` are None where it has no elements of its own to an array's."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    nbytes: int

class SizedArrays:
    """What arrays for tensors are: `made` for each kind of them, of which `numbers` says the one of an id."""

    @property
    def numbers(self) -> dict[int, int]: ...
    @property
    def made(self) -> list[Described]: ...
    def __contains__(self, tensor_id: int) -> bool: ...
    def __getitem__(self, tensor_id: int) -> Described: ...
    def get(self, tensor_id: int) -> Described | None: ...
    def total_nbytes(self, numbers: list[int]) -> int: ...

class FormSizes:
    """Shapes of tensors whose sizes may vary; those that are alike are computed once."""

    def __init__(self, tensors: Mapping[int, LogicalTensor], ids: Iterable[int]) -> None: ...
    def of(self, values: SizeValues | None) -> SizedArrays: ...

def symbol_values(
    places: list[list[tuple[Any, int]]], ranks: dict[Any, int | None], shapes: Mapping[Any, Sequence[Any] | None]
) -> list[Any] | None: ...
