"""How a group of ops becomes kernel calls: one rule a kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import (
    emit_indexing,
    emit_matmul,
    emit_movement,
    emit_norm,
    emit_parts,
    emit_quantization,
    emit_reduce,
    emit_scan,
    emit_spatial,
)
from .attention import lower_attention
from .region import lower_region
from .support import is_elementwise
from .tables import lower_table

if TYPE_CHECKING:
    from collections.abc import Callable

    from .groups import Group
    from .lowering import Lowering

__all__ = ["lower_group"]

RULES: dict[str, Callable[[Lowering, Group], None]] = {
    **emit_indexing.RULES,
    **emit_matmul.RULES,
    **emit_movement.RULES,
    **emit_norm.RULES,
    **emit_parts.RULES,
    **emit_quantization.RULES,
    **emit_reduce.RULES,
    **emit_scan.RULES,
    **emit_spatial.RULES,
}


def lower_group(lowering: Lowering, group: Group) -> None:
    """Emit the kernel calls of a group: none where all its results are empty, whatever the attributes say."""
    if all(0 in lowering.shapes[tensor.id] for tensor in group.outputs):
        for tensor in group.outputs:
            lowering.finish(tensor.id, lowering.target(tensor.id))
    elif group.attention is not None:
        lower_attention(lowering, group)
    elif group.anchor is not None:
        RULES[group.anchor.kind](lowering, group)
    elif is_elementwise(group.ops[0]):
        if not lower_table(lowering, group.ops):
            lower_region(lowering, group.ops)
    else:
        RULES[group.ops[0].kind](lowering, group)
