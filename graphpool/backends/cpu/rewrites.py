"""How the ops of a partition are rewritten before they are grouped into kernels: a list of passes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from ...graph.spelling import possible_spellings, respell
from ...graph.view import GraphView
from .match.integers import split_dequantized
from .match.pads import join_pads
from .match.swaps import BYTES_MOVED, QUANTIZED_BEFORE_CONCAT, QUANTIZED_BEFORE_TRANSPOSE, RESHAPES_BEHIND, swap
from .match.undone import drop_undone
from .patterns import SPELLINGS
from .support import supports

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from ...graph.op import Op

    Rewrite: TypeAlias = Callable[[Sequence[Op], dict[int, tuple[int, ...]], Collection[int]], list[Op]]

__all__ = ["REWRITES"]


def replace_spelt(ops: Sequence[Op], shapes: dict[int, tuple[int, ...]], outputs: Collection[int]) -> list[Op]:
    """The ops, in topological order, with one in place of each function that they spell out."""
    spellings = possible_spellings(SPELLINGS, ops)
    return [new.op for new in respell(GraphView(ops), spellings, shapes, supports, outputs)] if spellings else list(ops)


REWRITES: tuple[Rewrite, ...] = (
    replace_spelt,
    join_pads,
    partial(swap, BYTES_MOVED),
    drop_undone,
    split_dequantized,
    partial(swap, QUANTIZED_BEFORE_TRANSPOSE),
    partial(swap, RESHAPES_BEHIND),
    partial(swap, QUANTIZED_BEFORE_CONCAT),
)
"""In this order. A pass takes ops in topological order, the shapes of all tensors, to which it adds those of new ones,
and the ids of tensors that leave the partition, which stay what they are. New ops have the id of one that they are for.
"""
