"""Rules about an op that no column of the table can say. Each docstring says its rule in words.

A check is ``(Op) -> None`` and raises; it runs after the counts and type variables were found in order, on
complete attributes, and reads shapes only as far as they are known.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NoReturn

from graphpool.errors import InvalidDataTypeError, InvalidShapeError
from graphpool.graph.logical_tensor import describe_shape
from graphpool.typing import UNKNOWN_DIM, DataType

from .schemas.query import refuse

if TYPE_CHECKING:
    from collections.abc import Sequence

    from graphpool.graph.logical_tensor import LogicalTensor
    from graphpool.graph.op import Op


def _refuse_type(op: Op, port: str, tensor: LogicalTensor, accepted: str, hint: str | None = None) -> NoReturn:
    refuse(op, f'"{port}" (tensor {tensor.id}) has a data type that does not fit', error=InvalidDataTypeError,
           accepted=accepted, got=str(tensor.dtype), hint=hint, port=port, tensor_id=tensor.id,
           dtype=tensor.dtype)  # fmt: skip


def _refuse_attribute(op: Op, name: str, what: str, accepted: str, got: object) -> NoReturn:
    refuse(op, f'attribute "{name}" {what}', accepted=accepted, got=got, attribute=name)


def result_types(op: Op) -> None:
    """The type of the result is that of the first input, or f32."""
    first, result = op.inputs[0].dtype, op.outputs[0]
    if result.dtype is not first and result.dtype is not DataType.F32:
        port, source, hint = (
            ("diff_src", "diff_dst", None) if "Backward" in op.kind else ("dst", "src", "insert a TypeCast")
        )
        _refuse_type(op, port, result, f"{first} or f32, as {source} is {first}", hint)


def softmax_types(op: Op) -> None:
    """The types of src and dst are the same, or one of them is f32."""
    src, dst = op.inputs[0].dtype, op.outputs[0]
    if dst.dtype is not src and DataType.F32 not in (src, dst.dtype):
        _refuse_type(op, "dst", dst, f"{src} or f32, as src is {src}")


def typecast_types(op: Op) -> None:
    """The types of src and dst differ."""
    src, dst = op.inputs[0].dtype, op.outputs[0]
    if src is dst.dtype:
        _refuse_type(op, "dst", dst, f"another type than {src}, that of src", "leave the op out")


_MIXED = {
    "Add": "f32 bf16 f16 s32",
    "Subtract": "f32 bf16 f16 s32",
    "Multiply": "f32 bf16 f16",
    "Divide": "f32 bf16 f16",
}


def arithmetic_types(op: Op) -> None:
    """All types are the same, or all of f32, bf16 and f16 (for Add and Subtract: and s32)."""
    tensors = (*op.inputs, *op.outputs)
    mixed = _MIXED[op.kind].split()
    for tensor in tensors[1:]:
        if tensor.dtype is not tensors[0].dtype and not all(t.dtype in mixed for t in (tensor, tensors[0])):
            accepted = f"{tensors[0].dtype}, the type of src_0, or both of {', '.join(mixed)}"
            _refuse_type(op, "src_1 or dst", tensor, accepted, "insert a TypeCast")


def scatter_types(op: Op) -> None:
    """A reduction other than none wants numbers."""
    src = op.inputs[0]
    if op.attrs["reduction"] != "none" and src.dtype in _UNORDERED:
        _refuse_type(op, "src", src, f"a number to {op.attrs['reduction']}")


_UNORDERED = (DataType.BOOLEAN, DataType.F8_E4M3, DataType.F8_E5M2)


def norm_types(op: Op) -> None:
    """Parameters and statistics are f32, or have the type of src where their port accepts it."""
    src = op.inputs[0].dtype
    first = 2 if op.kind in ("BatchNormTrainingBackward", "LayerNormBackward") else 1
    for tensor in (*op.inputs[first:], *op.outputs[1:]):
        if tensor.dtype is not DataType.F32 and tensor.dtype is not src:
            _refuse_type(op, "parameters and statistics", tensor, f"f32 or {src}, as src is {src}")


def norm_outputs(op: Op) -> None:
    """There are three outputs with keep_stats=true (use_affine=true of a gradient), and one with false."""
    name, only = ("use_affine", "diff_src") if "Backward" in op.kind else ("keep_stats", "dst")
    given = op.attrs[name]
    if len(op.outputs) != (3 if given else 1):
        refuse(op, "wrong number of outputs", accepted=f"{3 if given else 1}, as {name}={given}", got=len(op.outputs),
               hint=f"set {name}=False to get {only} only" if given else None, attribute=name)  # fmt: skip


def reduce_axes(op: Op) -> None:
    """The axes come from attribute axes, not empty, or from the second input: exactly one of them."""
    if bool(op.attrs["axes"]) is (len(op.inputs) > 1):
        got = "both" if op.attrs["axes"] else "neither"
        _refuse_attribute(op, "axes", "and the second input exclude one another", "exactly one of them", got)


def interpolate_sizes(op: Op) -> None:
    """The size comes from attribute sizes, attribute scales or the last input: exactly one of them."""
    scales: Sequence[float] = op.attrs.get("scales") or ()
    tensor = len(op.inputs) > (1 if op.kind == "Interpolate" else 2)
    given = [name for name, present in (("attribute sizes", op.attrs.get("sizes")), ("attribute scales", scales),
                                        ("input sizes", tensor)) if present]  # fmt: skip
    if len(given) != 1:
        accepted = "exactly one of attribute sizes, attribute scales, input sizes"
        _refuse_attribute(op, "sizes", "is one of three ways to give the size", accepted, " and ".join(given) or "none")
    if any(not (0 < scale < math.inf) for scale in scales):
        _refuse_attribute(op, "scales", "has a wrong value", "finite numbers above 0", scales)


def shape_source(op: Op) -> None:
    """The shape comes from the attribute, not all zeros, or from the last input: exactly one of them."""
    name, index = next((name, index) for name, index in _SHAPE_SOURCES if name in op.attrs)
    tensor, attribute = len(op.inputs) > index, any(op.attrs[name])
    if not tensor and not attribute:
        refuse(op, f'attribute "{name}" is required', accepted=f'the attribute, or the input "{name}"', got="neither",
               attribute=name)  # fmt: skip
    if tensor and attribute:
        refuse(op, f'attribute "{name}" and the input of that name exclude one another', accepted="exactly one of them",
               got="both", attribute=name)  # fmt: skip


_SHAPE_SOURCES = (("dst_shape", 2), ("weights_shape", 2), ("src_shape", 1))


def _at_least(op: Op, name: str, least: int, count: int | None) -> None:
    """Every element of a list attribute is at least `least`, and there are `count` of them."""
    values = op.attrs.get(name)
    if not values:
        if values is not None and count:
            _refuse_attribute(op, name, "has the wrong length", f"{count}, one for each spatial axis", "an empty list")
        return
    if any(number < least for number in values):
        _refuse_attribute(op, name, "has a value that is too small", f"{least} or more", values)
    if count is not None and len(values) != count and not (len(values) == 12 and len(set(values)) == 1):
        refuse(op, f'attribute "{name}" has the wrong length', error=InvalidShapeError, accepted=
               f"{count}, one for each spatial axis", got=f"{len(values)} in {values}", attribute=name)  # fmt: skip


def windows(op: Op) -> None:
    """Lists have one number a spatial axis: pads and output_padding 0 or more, strides and dilations 1 or more."""
    shape = op.inputs[0].shape
    count = None if shape is None or len(shape) < 3 else len(shape) - 2
    explicit = op.attrs.get("auto_pad", "None") == "None"
    _at_least(op, "strides", 1, count)
    _at_least(op, "dilations", 1, count)
    _at_least(op, "output_padding", 0, count)
    _at_least(op, "pads_begin", 0, count if explicit else None)
    _at_least(op, "pads_end", 0, count if explicit else None)


def groups(op: Op) -> None:
    """The number of groups is 1 or more."""
    if op.attrs["groups"] < 1:
        _refuse_attribute(op, "groups", "is too small", "1 or more", op.attrs["groups"])


def pool_kernel(op: Op) -> None:
    """The kernel is 1 or more along each spatial axis; strides and dilations are as long."""
    _at_least(op, "kernel", 1, None)
    count = len(op.attrs["kernel"])
    if not count:
        _refuse_attribute(op, "kernel", "is empty", "one size for each spatial axis", "an empty list")
    _at_least(op, "dilations", 1, count)
    _at_least(op, "strides", 1, count)


def _channel_count(op: Op) -> int:
    """Length of src along attribute axis, or UNKNOWN_DIM."""
    shape, axis = op.inputs[0].shape, op.attrs["axis"]
    if shape is None:
        return UNKNOWN_DIM
    if not -len(shape) <= axis < len(shape):
        _refuse_attribute(op, "axis", "is out of range", f"{-len(shape)} .. {len(shape) - 1}", axis)
    count: int = shape[axis]
    return count


def quantization(op: Op) -> None:
    """One scale, or one a channel with per_channel; as many zero points or none, and none but 0 for f8 data.

    Weights of a grouped ConvTranspose have a scale for each group and channel: a multiple of the channels is accepted.
    """
    scales, zps = op.attrs["scales"], op.attrs.get("zps") or ()
    count = 1 if op.attrs["qtype"] == "per_tensor" else _channel_count(op)
    grouped = op.attrs["qtype"] == "per_channel" and count > 0 and len(scales) % count == 0
    if not scales or not (grouped or count in (UNKNOWN_DIM, len(scales))):
        _refuse_attribute(op, "scales", "has the wrong length", f'{"1 or more" if count == UNKNOWN_DIM else count} for '
                          f'qtype {op.attrs["qtype"]}', len(scales))  # fmt: skip
    if not all(map(math.isfinite, scales)):
        _refuse_attribute(op, "scales", "has a wrong value", "finite numbers", scales)
    if zps and len(zps) != len(scales):
        _refuse_attribute(op, "zps", "has the wrong length", f"{len(scales)}, as scales has", len(zps))
    quantized = op.outputs[0] if op.kind == "Quantize" else op.inputs[0]
    if any(zps) and quantized.dtype in (DataType.F8_E4M3, DataType.F8_E5M2):
        _refuse_attribute(op, "zps", f"does not go with {quantized.dtype} data", "no zero points", zps)


def dynamic_quantization(op: Op) -> None:
    """One scale and zero point (per_tensor), one a channel, or src / group_shape along each axis (per_group).

    With per_channel and per_group one zero point may stand for all.
    """
    qtype = op.attrs["qtype"]
    expected = _group_counts(op) if qtype == "per_group" else (1 if qtype == "per_tensor" else _channel_count(op),)
    for name, tensor in zip(("scales", "zps"), op.inputs[1:], strict=False):
        shape = tensor.shape
        if shape is None or expected is None:
            continue
        if qtype != "per_group" and UNKNOWN_DIM not in shape:
            shape = (math.prod(shape),)
        if name == "zps" and qtype != "per_tensor" and shape == (1,) * len(expected):
            continue
        if len(shape) != len(expected) or any(a != b and UNKNOWN_DIM not in (a, b)
                                              for a, b in zip(shape, expected, strict=True)):  # fmt: skip
            refuse(op, f'input "{name}" (tensor {tensor.id}) has the wrong shape', error=InvalidShapeError,
                   accepted=f"{describe_shape(expected)} for qtype {qtype}", got=describe_shape(tensor.shape),
                   port=name, tensor_id=tensor.id, expected=expected)  # fmt: skip


def _group_counts(op: Op) -> tuple[int, ...] | None:
    """Groups along each axis of src, or None."""
    shape, group = op.inputs[0].shape, op.attrs.get("group_shape") or ()
    if min(group, default=0) < 1:
        what, accepted = "is required for qtype per_group", "sizes of at least 1"
        _refuse_attribute(op, "group_shape", what, accepted, group or "nothing")
    if shape is None:
        return None
    if len(group) != len(shape) or any(dim != UNKNOWN_DIM and dim % size
                                       for dim, size in zip(shape, group, strict=True)):  # fmt: skip
        _refuse_attribute(op, "group_shape", "does not divide src", f"divisors of {describe_shape(shape)}", group)
    return tuple(UNKNOWN_DIM if dim == UNKNOWN_DIM else dim // size for dim, size in zip(shape, group, strict=True))


_ACTIVATIONS_OF = {"rnn": 1, "gru": 2, "lstm": 3}
_ACTIVATIONS = frozenset({
    "sigmoid", "tanh", "relu", "affine", "leakyrelu", "thresholdedrelu", "scaledtanh", "hardsigmoid", "elu", "softsign",
    "softplus",
})  # fmt: skip


def recurrent(op: Op) -> None:
    """lstm alone has c, which it must have, peepholes, last_c, and weights of 8 bits.

    Those have scales and zps; other weights have the type of src. Activations are those of the cell for each direction;
    alpha and beta, where they are given, are as many.
    """
    cell, weights = op.attrs["cell"], op.inputs[1]
    is_lstm, is_int8 = cell == "lstm", weights.dtype in (DataType.S8, DataType.U8)
    if (len(op.inputs) > 5) != is_lstm or (len(op.outputs) > 2) != is_lstm:
        accepted = "inputs up to c or peepholes, 3 outputs" if is_lstm else "5 inputs, 2 outputs"
        found = len(op.inputs), len(op.outputs)
        refuse(op, f"wrong number of inputs or outputs of {cell}", accepted=accepted, got=found)
    if weights.dtype is not op.inputs[0].dtype and not (is_int8 and is_lstm):
        _refuse_type(op, "weights", weights, f"{op.inputs[0].dtype}, as src is{', s8, u8' if is_lstm else ''}")
    for name in ("scales", "zps"):
        if bool(op.attrs[name]) != is_int8:
            _refuse_attribute(op, name, "does not fit", "some for weights of 8 bits, none for others", op.attrs[name])
    names = op.attrs["activations"].split()
    count = _ACTIVATIONS_OF[cell] * (2 if op.attrs["direction"] == "bidirectional" else 1)
    if names and (len(names) != count or not _ACTIVATIONS.issuperset(names)):
        accepted = f"{count} of {', '.join(sorted(_ACTIVATIONS))}"
        _refuse_attribute(op, "activations", "does not fit", accepted, op.attrs["activations"])
    for name in ("alpha", "beta"):
        if op.attrs[name] and len(op.attrs[name]) != len(names):
            _refuse_attribute(op, name, "does not fit", "a number for each of activations", op.attrs[name])
