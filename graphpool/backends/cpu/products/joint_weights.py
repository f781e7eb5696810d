"""Packed weights of several convolutions that read one image alike: side by side, by output channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from .conv_weights import FLOATS, ConvOperand, PackedWeights, bias_of, find_norm, find_weights, fold_norm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.values import Value
    from ..match.groups import AnchorGroup
    from .conv_weights import ConvWeights

__all__ = ["Part", "find_part", "join_weights"]


@dataclass(frozen=True)
class Part:
    """What one convolution brings into packed weights that several share.

    Attributes
    ----------
    op : Op
    source : Value
        The plain weights.
    weights : ConvWeights
    bias : Value or None
        The convolution's own.
    norm : Op or None
        The BatchNorm that comes first behind the convolution, if all its parameters and the bias are constants.
    """

    op: Op
    source: Value
    weights: ConvWeights
    bias: Value | None
    norm: Op | None

    def sources(self, lowering: Lowering) -> list[Value]:
        """The constants that are packed, the bias where a BatchNorm takes it in."""
        if self.norm is None:
            return [self.source]
        folded = [lowering.value(tensor.id) for tensor in self.norm.inputs[1:]]
        return [self.source, *folded, *([] if self.bias is None else [self.bias])]


def find_part(lowering: Lowering, group: AnchorGroup) -> Part | None:
    """What a group's convolution brings into joint weights; None where it is not packed, or not known yet."""
    op = group.anchor
    if not all(lowering.has_value(tensor.id) for tensor in op.inputs[1:]):
        return None
    weights, source = find_weights(lowering, group), lowering.value(op.inputs[1].id)
    if weights is None or source.dtype not in FLOATS:
        return None
    own = lowering.value(op.inputs[2].id) if len(op.inputs) > 2 else None
    return Part(op, source, weights, own, find_norm(lowering, group, own))


def join_weights(lowering: Lowering, parts: Sequence[Part], biases: Sequence[Value | None]) -> ConvOperand:
    """The weights of several convolutions, packed side by side by output channels, and their biases.

    Parameters
    ----------
    lowering : Lowering
    parts : sequence of Part
        Alike in all but the number of output channels.
    biases : sequence of Value or None
        What is added to each, constants: None where there is none, or where a BatchNorm is folded in.
    """
    channels = [part.weights.out_channels for part in parts]
    total = sum(channels)
    weights = parts[0].weights.with_out_channels(total)
    starts = [sum(channels[:k]) for k in range(len(parts))]
    offset = weights.format.nbytes
    has_bias = any(part.norm is not None for part in parts) or any(bias is not None for bias in biases)
    sources = [source for part in parts for source in part.sources(lowering)]
    sources += [bias for bias in biases if bias is not None]

    def fill(panels: Value) -> None:
        dims = list(parts[0].source.shape)
        dims[weights.outer] = total
        joint = lowering.temporary(dims)
        for part, bias, start, count in zip(parts, biases, starts, channels, strict=True):
            source, place = lowering.typed(part.source), bias_of(panels, offset, start, count)
            if part.norm is not None:
                source = fold_norm(lowering, source, part.norm, part.bias, weights.outer, place)
            lowering.move(source, joint.cut(weights.outer, start, count))
            if bias is not None:
                lowering.move(bias, place)
        lowering.emit(weights.format.pack(weights.strides(joint)), [joint, panels])

    panels = lowering.packed_constant(sources, offset + (4 * total if has_bias else 0), fill)
    return ConvOperand(PackedWeights(panels, bias_of(panels, offset, 0, total) if has_bias else None, 0), weights)
