"""How a group of ops becomes kernel calls: one rule a kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..match.groups import AnchorGroup, GradientGroup
from ..products import convolution, matmul  # noqa: F401  (imported for their rules)
from ..products.attention import lower_attention, lower_gradient
from ..support import ANCHORS, INSTRUCTIONS, RULES, is_elementwise
from . import (  # noqa: F401
    gradients,
    indexing,
    movement,
    norm,
    parts,
    quantization,
    recurrent,
    reduce,
    scan,
    tree,
    weight_gradients,
    windows,
)
from .elementwise import lower_elementwise

if TYPE_CHECKING:
    from ..lower.lowering import Lowering
    from ..match.groups import Group

__all__ = ["ELTWISE", "REDUCTIONS", "lower_group"]

ELTWISE = frozenset(INSTRUCTIONS)
"""Kinds that become instructions of an elementwise program."""

REDUCTIONS = frozenset(kind for kind in ANCHORS if kind.startswith("Reduce"))


def lower_group(lowering: Lowering, group: Group) -> None:
    """Emit the kernel calls of a group: none where all its results are empty, whatever the attributes say."""
    if all(0 in lowering.shapes[tensor.id] for tensor in group.outputs):
        for tensor in group.outputs:
            lowering.finish(tensor.id, lowering.target(tensor.id))
    elif isinstance(group, GradientGroup):
        lower_gradient(lowering, group)
    elif not isinstance(group, AnchorGroup):
        if is_elementwise(group.first):
            lower_elementwise(lowering, group.ops)
        else:
            RULES[group.first.kind](lowering, group.first)
    elif group.attention is not None:
        lower_attention(lowering, group)
    else:
        ANCHORS[group.anchor.kind](lowering, group)
