"""Recurrent layers: all steps of all sequences in one call, by weights that are packed once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ...._kernels.rnn.recurrent import RecurrentWeights, recurrent
from ....typing import DataType
from ..support import rule

if TYPE_CHECKING:
    from ...._kernels.rnn.recurrent import Activation
    from ....graph.op import Op
    from ..lower.lowering import Lowering
    from ..lower.steps import Emitter
    from ..lower.values import Value


@rule("Recurrent")
def lower_recurrent(lowering: Lowering, op: Op) -> None:
    """The weights in panels, which the constant tensor cache may keep, and the kernel."""
    src, weights, biases, lengths, *states = (lowering.value(tensor.id) for tensor in op.inputs)
    weights = weights.transposed((0, 2, 1)) if op.attrs["transpose_b"] else weights
    form = _form_of(op, weights)
    places = [lowering.target(tensor.id, dtype=DataType.F32) for tensor in op.outputs]
    call = recurrent(
        form, src.shape[0], src.shape[1], _activations(op), is_reverse=op.attrs["direction"] == "reverse",
        clip=op.attrs.get("clip", math.inf), is_coupled=op.attrs["input_forget"], has_peepholes=len(states) > 2,
        nlengths=lengths.shape[0], state_rows=[states[k].shape[1] if k < len(states) else 1 for k in (0, 1)],
    )  # fmt: skip
    first = lowering.dense(src)
    others = [lowering.dense(value) for value in (biases, *states)]
    others.insert(1, lowering.dense(lengths, DataType.S32))
    others += [lowering.literal(numbers) for numbers in _numbers_of_columns(op, form, weights.dtype)]

    def fill(panels: Value) -> None:
        source = weights if form.dtype == "s8" else lowering.typed(weights)
        for pack, begin, offset in form.pack(source.strides, source.dtype.value):
            part = source._replace(offset=source.offset + begin)
            lowering.emit(pack, [part, panels._replace(offset=panels.offset + offset)])

    def restore(emitter: Emitter, panels: Value) -> None:
        for unpack, begin, offset in form.pack(weights.strides, inverse=True):
            part = weights._replace(offset=weights.offset + begin)
            emitter.emit(unpack, [panels._replace(offset=panels.offset + offset), part])

    def emit(panels: Value) -> None:
        lowering.emit(call, [first, panels, *others, *places])

    if lowering.is_constant(weights):
        is_exact = weights.dtype.value == "f32" and weights.is_whole
        panels = lowering.packed_constant([weights], form.nbytes, fill, restore if is_exact else None)
        lowering.read_packed(panels, lambda: emit(panels))
    else:
        panels = lowering.temporary((form.nbytes,), DataType.U8)
        fill(panels)
        emit(panels)
    for tensor, place in zip(op.outputs, places, strict=True):
        lowering.finish(tensor.id, place)


def _form_of(op: Op, weights: Value) -> RecurrentWeights:
    """What the weights, as (directions, hidden, gates * hidden), are packed to."""
    directions, hidden, _ = weights.shape
    dtype = "s8" if op.attrs["scales"] else "f32"
    return RecurrentWeights(op.attrs["cell"], hidden, directions, dtype, resets_sums=op.attrs["linear_before_reset"])


def _activations(op: Op) -> list[Activation]:
    names = op.attrs["activations"].split()
    alpha, beta = (op.attrs[name] or (0.0,) * len(names) for name in ("alpha", "beta"))
    return list(zip(names, alpha, beta, strict=True))


def _numbers_of_columns(op: Op, form: RecurrentWeights, dtype: DataType) -> list[np.ndarray]:
    """Scales, and zero points of s8, of the columns of weights of 8 bits; none of others."""
    if form.dtype != "s8":
        return []
    shape = form.directions, form.gates * form.hidden
    scales, points = (np.reshape(op.attrs[name], (form.directions, -1)) for name in ("scales", "zps"))
    points = points - 128 if dtype is DataType.U8 else points
    return [np.broadcast_to(scales, shape).astype(np.float32), np.broadcast_to(points, shape).astype(np.int32)]
