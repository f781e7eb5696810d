"""Zeros around an image that a convolution reads are pads of the convolution.

Exporters of networks that pad as TensorFlow does write a Pad in front of each convolution. It copies every image, and
keeps it as it is declared, where convolutions alone would have turned it round.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from ...._sizes import is_variable
from ....graph.shapes import per_axis, spatial_axes
from .undone import needed

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from ....graph.op import Op

__all__ = ["join_pads"]


def join_pads(ops: Sequence[Op], shapes: dict[int, tuple[int, ...]], outputs: Collection[int]) -> list[Op]:
    """The ops that are needed, with what a Pad adds to a convolution's input among its pads: a pass of `REWRITES`.

    Cost: linear in the ops.
    """
    pads = {op.outputs[0].id: op for op in ops if op.kind == "Pad"}
    if not pads:
        return list(ops)
    return needed([_joined(op, pads[op.inputs[0].id]) if _reads_pad(op, pads) else op for op in ops], outputs)


def _reads_pad(op: Op, pads: Mapping[int, Op]) -> bool:
    """Whether a convolution reads zeros that its own pads can stand for."""
    if op.kind != "Convolution" or op.inputs[0].id not in pads or op.attrs.get("auto_pad", "None") != "None":
        return False
    pad = pads[op.inputs[0].id]
    ndim = len(pad.attrs["pads_begin"])
    space = spatial_axes(ndim, op.attrs.get("data_format", "NXC"))
    sides = pad.attrs["pads_begin"], pad.attrs["pads_end"]
    is_zero = pad.attrs.get("mode", "constant") == "constant" and pad.attrs.get("value", 0.0) == 0
    if not is_zero or any(is_variable(count) for side in sides for count in side):
        return False
    return all(count == 0 or (count > 0 and axis in space) for side in sides for axis, count in enumerate(side))


def _joined(op: Op, pad: Op) -> Op:
    """The convolution on what the Pad reads."""
    space = spatial_axes(len(pad.attrs["pads_begin"]), op.attrs.get("data_format", "NXC"))
    sums: dict[str, Any] = {}
    for name in ("pads_begin", "pads_end"):
        own = per_axis(op.attrs, name, len(space), 0)
        sums[name] = tuple(map(operator.add, own, (pad.attrs[name][axis] for axis in space)))
    read = pad.inputs[0], *op.inputs[1:]
    return op.with_attrs({**op.attrs, **sums}).with_ports(read, op.outputs)
