"""Kernels that find elements (``move/search.c``): of their results a count tells how many there are."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from graphpool.errors import InvalidArgumentError, explain

from ..core.call import KernelCall, pack
from ..core.records import record

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["nonzero", "suppress"]

_BLOCK = 16
"""Boxes that are compared at once, as GP_BLOCK."""


def nonzero(shape: Sequence[int], itemsize: int, *, is_float: bool = False, isa: str | None = None) -> KernelCall:
    """The places of the elements that are not zero; a NaN is not.

    Arguments: src, dense, of elements of `itemsize` bytes; places (s64), a row of coordinates for each dimension, all
    rows as long as elements were found, which are in order, zeros behind them, with room for all elements; count (s64).
    InvalidArgumentError: another size.
    """
    if itemsize not in (1, 2, 4, 8):
        raise InvalidArgumentError(explain("bytes of an element", accepted="1, 2, 4, 8", got=itemsize))
    values = {
        "ndim": len(shape), "dims": list(shape), "nelems": prod(shape), "nbytes": itemsize, "is_float": is_float,
    }  # fmt: skip
    return pack("any_nonzero", values, ntasks=1, isa=isa)


def suppress(
    nbatch: int, nclasses: int, nboxes: int, most: int, *, overlap: float = 0.0, least_score: float | None = None,
    is_centred: bool = False, isa: str | None = None,
) -> tuple[KernelCall, KernelCall]:  # fmt: skip
    """The best boxes of each class, best first, equal ones by index, without those that overlap a better one.

    Arguments of the first: boxes (nbatch, nboxes, 4) of f32, dense; scores (nbatch, nclasses, nboxes); chosen (s64), at
    most `most` for each class, which is at most nboxes; counts (s64), one for each class. Of the second: chosen,
    counts, places (s64), rows of batch, class and box, with zeros behind them and room for all, count (s64).

    `overlap` is the share of the union that two boxes may have in common. Scores must be above `least_score`, if given;
    else a NaN is below all numbers. Boxes are two opposite corners (y, x), in any order, or with `is_centred` centre
    and size (x, y). Tasks: classes.

    Method: a heap of scores; a box is compared with 16 of those taken at once. Cost: O(n log n + n k) a class.
    """
    values = {
        "nboxes": nboxes, "nclasses": nclasses, "most": most, "is_centred": is_centred,
        "has_least": least_score is not None, "overlap": overlap, "least": least_score or 0.0,
    }  # fmt: skip
    room = -(-most // _BLOCK) * _BLOCK
    scratch_nbytes = record("top_k_entry").nbytes * nboxes + 5 * 4 * room
    nrows = nbatch * nclasses
    find = pack("f32_suppress", values, ntasks=nrows, scratch_nbytes=scratch_nbytes, isa=isa)
    return find, pack("any_suppress_pack", {"nrows": nrows, "nclasses": nclasses, "most": most}, ntasks=1, isa=isa)
