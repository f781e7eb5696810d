"""What arrays for a tensor are, for one set of sizes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from graphpool._dataclasses import NamedTuple

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Described"]


class Described(NamedTuple):
    """What arrays for a tensor are; `strides` are None where it has no elements of its own to an array's."""

    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    dtype: np.dtype[Any]
    nbytes: int
