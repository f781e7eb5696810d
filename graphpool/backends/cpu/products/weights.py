"""Constant weights as kernels read them, kept by the constant tensor cache.

A BatchNorm of constants behind a convolution is folded into its weights: its scale into them, its shift into a bias
that lies behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeVar

from ....typing import DataType
from ..lower.instructions import emit_norm
from ..lower.values import Value
from ..support import FLOATS

if TYPE_CHECKING:
    from collections.abc import Callable

    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from .choice import Site

__all__ = ["PackedWeights", "bias_of", "find_norm", "fold_norm", "pack_floats"]

F = TypeVar("F")


@dataclass(frozen=True)
class PackedWeights(Generic[F]):
    """Weights in a format, and what was made of what surrounds them.

    Attributes
    ----------
    panels : Value
        Where they lie: what the cache keeps, or the weights themselves for kernels that pack them.
    format : ConvFormat, PackedFormat or another
    bias : Value or None
        What is added first: packed with the weights where a BatchNorm was folded, else the anchor's own.
    folded : int
        Ops behind the anchor that were folded into the weights.
    scale : Value or None
        Numbers by which kernels that pack the weights multiply them, one for each output channel.
    zero_point : int
        Of quantised activations; 0 where the run gives it.
    columns : tuple of int
        Zero points of quantised weights as the panels hold them; none where all are 0.
    """

    panels: Value
    format: F
    bias: Value | None = None
    folded: int = 0
    scale: Value | None = None
    zero_point: int = 0
    columns: tuple[int, ...] = ()


def pack_floats(
    site: Site,
    weights_format: F,
    nbytes: int,
    channels: tuple[int | None, int],
    pack: Callable[[Value, Value], None],
    unpack: Callable[[Value, Value], None] | None = None,
) -> PackedWeights[F] | None:
    """The constant weights of an anchor, packed; None where they are no floats.

    Parameters
    ----------
    site : Site
    weights_format : object
    nbytes : int
        Of the packed weights, a multiple of 4. Unit: bytes.
    channels : (int or None, int)
        Axis of the weights that holds the output channels, and how many there are; None: nothing can be folded.
    pack : callable
        Takes the weights in f32 and the packed ones, and emits the steps that fill these.
    unpack : callable, optional
        Takes the packed weights and the plain ones, and emits the inverse, bit for bit.
    """
    lowering, own = site.lowering, site.bias
    weights = lowering.value(site.op.inputs[1].id)
    if weights.dtype not in FLOATS:
        return None
    outer, count = channels
    norm = None if outer is None else find_norm(site)
    folded = [] if norm is None else [lowering.value(tensor.id) for tensor in norm.inputs[1:]]
    sources = [weights, *folded, *([own] if own is not None and folded else [])]

    def fill(panels: Value) -> None:
        source = lowering.typed(weights)
        if norm is not None and outer is not None:
            source = fold_norm(lowering, source, norm, own, outer, bias_of(panels, nbytes, 0, count))
        pack(source, panels)

    def restore(panels: Value) -> None:
        assert unpack is not None  # else nobody asks
        unpack(panels, weights)

    # a folded BatchNorm rounds; what was converted is not what the source was
    is_exact = unpack is not None and not folded and weights.dtype is DataType.F32 and weights.is_whole
    panels = lowering.packed_constant(
        sources, nbytes + (4 * count if folded else 0), fill, restore if is_exact else None
    )
    if not folded:
        return PackedWeights(panels, weights_format, own)
    return PackedWeights(panels, weights_format, bias_of(panels, nbytes, 0, count), 1)


def fold_norm(lowering: Lowering, weights: Value, norm: Op, own: Value | None, outer: int, bias: Value) -> Value:
    """The weights with the scale of a BatchNorm; its shift, with the convolution's own bias, goes to `bias`."""
    weights = lowering.dense(weights)
    scaled = lowering.temporary(weights.shape)
    emit_norm(lowering, norm, scaled, bias, weights=weights, axis=outer, own=own)
    return scaled


def find_norm(site: Site) -> Op | None:
    """The BatchNorm that alone reads the convolution's result, if all its parameters and the bias are constants."""
    lowering, group, own = site.lowering, site.group, site.bias
    op = group.ops[0] if group.ops else None
    if op is None or op.kind != "BatchNormInference":
        return None
    if any(tensor.id == op.inputs[0].id for other in group.ops[1:] for tensor in other.inputs):
        return None
    if not all(map(lowering.has_value, [tensor.id for tensor in op.inputs[1:]])):
        return None
    values = [lowering.value(tensor.id) for tensor in op.inputs[1:]] + ([] if own is None else [own])
    is_known = {value.dtype for value in values} == {DataType.F32} and all(map(lowering.is_constant, values))
    is_alike = op.attrs["data_format"] == site.op.attrs["data_format"]
    return op if is_known and is_alike and op.inputs[0].dtype is DataType.F32 else None


def bias_of(packed: Value, offset: int, start: int, count: int) -> Value:
    """The bias of `count` channels from `start` on, behind packed weights."""
    return Value(DataType.F32, (count,), (1,), packed.buffer, offset // 4 + start)
