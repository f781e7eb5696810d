"""Sizes of what common ops give of known arrays, by arithmetic: ONNX's inference takes a tenth of a millisecond."""

from __future__ import annotations

from math import ceil, prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .types import data_type

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .node import Node

    Arrays = Sequence[np.ndarray[Any, Any]]

__all__ = ["known_nbytes"]


def known_nbytes(node: Node, contents: Sequence[Any]) -> int | None:
    """Size of the results of a node that reads these contents; None where ONNX's inference is to tell. Unit: bytes."""
    measure = _SIZES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    read = contents[:1] if measure is _same else contents
    if measure is None or not all(type(item) is np.ndarray and item.dtype.kind in "biuf" for item in read):
        return None
    try:
        return measure(node, contents)
    except (ArithmeticError, IndexError, TypeError, ValueError):  # a malformed node, of which ONNX says what is wrong
        return None


def _same(node: Node, contents: Arrays) -> int:
    return int(contents[0].nbytes)


def _joined(node: Node, contents: Arrays) -> int:
    return sum(int(array.nbytes) for array in contents)


def _broadcast(node: Node, contents: Arrays) -> int:
    return prod(np.broadcast_shapes(*(array.shape for array in contents))) * int(contents[0].itemsize)


def _compared(node: Node, contents: Arrays) -> int:
    return prod(np.broadcast_shapes(*(array.shape for array in contents)))


def _expanded(node: Node, contents: Arrays) -> int:
    array, shape = contents
    return prod(np.broadcast_shapes(array.shape, tuple(shape.tolist()))) * int(array.itemsize)


def _tiled(node: Node, contents: Arrays) -> int | None:
    array, repeats = contents
    counts = [dim * count for dim, count in zip(array.shape, repeats.tolist(), strict=True)]
    return _nbytes_of(counts, int(array.itemsize))


def _gathered(node: Node, contents: Arrays) -> int:
    array, indices = contents
    return int(indices.size * prod(array.shape) // array.shape[node.attrs.get("axis", 0)] * array.itemsize)


def _counted(node: Node, contents: Arrays) -> int:
    start, limit, delta = (array.item() for array in contents)
    return int(max(0, ceil((limit - start) / delta)) * contents[0].itemsize)


def _cast(node: Node, contents: Arrays) -> int | None:
    return _typed_nbytes(contents[0].shape, node.attrs["to"])


def _dequantized(node: Node, contents: Arrays) -> int | None:
    array, scale = contents[:2]
    is_plain = scale.dtype == np.float32 and "output_dtype" not in node.attrs
    return _typed_nbytes(array.shape, _FLOAT) if is_plain else None


def _quantized(node: Node, contents: Arrays) -> int | None:
    if "output_dtype" in node.attrs:
        return None
    return int(contents[0].size * (contents[2].itemsize if len(contents) > 2 else 1))


def _with_scale(node: Node, contents: Arrays) -> int:
    return int(contents[0].size) + 5  # f32 and a byte


def _filled(node: Node, contents: Arrays) -> int | None:
    value = node.attrs.get("value")
    return _typed_nbytes(contents[0].tolist(), _FLOAT if value is None else value.data_type)


def _typed_nbytes(dims: Sequence[int], elem_type: int) -> int | None:
    dtype = data_type(elem_type)
    return None if dtype is None or dtype.bits < 8 else _nbytes_of(dims, dtype.bits // 8)


_FLOAT = 1
"""ONNX's float32, which is that of a ConstantOfShape that names none, too."""


def _sliced(node: Node, contents: Arrays) -> int | None:
    if len(contents) < 3:
        return None  # attributes, in old opsets
    array, starts, ends, *rest = (contents[0], *(item.tolist() for item in contents[1:]))
    axes = rest[0] if rest else range(len(starts))
    steps = rest[1] if len(rest) > 1 else [1] * len(starts)
    dims = list(array.shape)
    for axis, *bounds in zip(axes, starts, ends, steps, strict=True):
        dims[axis] = len(range(*slice(*bounds).indices(dims[axis])))
    return int(prod(dims) * array.itemsize)


def _chosen(node: Node, contents: Arrays) -> int:
    return prod(np.broadcast_shapes(*(array.shape for array in contents))) * int(contents[1].itemsize)


def _flagged(node: Node, contents: Arrays) -> int:
    return int(contents[0].size)


def _multiplied(node: Node, contents: Arrays) -> int:
    one, other = (array.shape for array in contents[:2])
    columns = other[-1:] if len(other) > 1 else ()
    if one[-1] != other[-len(columns) - 1]:
        raise ValueError
    return int(prod((*np.broadcast_shapes(one[:-2], other[:-2]), *one[-2:-1], *columns)) * contents[0].itemsize)


def _added(node: Node, contents: Arrays) -> int:
    one, other = (array.shape for array in contents[:2])
    rows, columns = one[1 if node.attrs.get("transA") else 0], other[0 if node.attrs.get("transB") else 1]
    return int(rows * columns * contents[0].itemsize)


def _padded(node: Node, contents: Arrays) -> int | None:
    array, pads = contents[0], contents[1].tolist()
    axes = contents[-1].tolist() if node.input[3:] and node.input[3] else range(array.ndim)
    dims = list(array.shape)
    for axis, *sides in zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True):
        dims[axis] += sum(sides)
    return _nbytes_of(dims, int(array.itemsize))


def _coded(node: Node, contents: Arrays) -> int:
    places, depth, values = contents
    return int(places.size * depth.item() * values.itemsize)


def _gathered_by_tuples(node: Node, contents: Arrays) -> int | None:
    array, places = contents
    if node.attrs.get("batch_dims", 0):
        return None
    return int(prod((*places.shape[:-1], *array.shape[places.shape[-1] :])) * array.itemsize)


def _normalised(node: Node, contents: Arrays) -> int | None:
    return int(contents[0].nbytes) if len(node.output) == 1 else None


def _normalised_channels(node: Node, contents: Arrays) -> int:
    return int(contents[0].nbytes + sum(contents[3].nbytes for name in node.output[1:] if name))


def _integer_product(node: Node, contents: Arrays) -> int:
    return _multiplied(node, contents) // int(contents[0].itemsize) * 4


def _no_elements(node: Node, contents: Arrays) -> int:
    return 64  # of a list


def _reduced(node: Node, contents: Arrays) -> int | None:
    array, *rest = contents
    axes = rest[0].tolist() if rest else node.attrs.get("axes")
    if not axes:
        return None  # all of them, or none
    dims = list(array.shape)
    for axis in axes:
        dims[axis] = 1
    return int(prod(dims) * array.itemsize)


def _measured(node: Node, contents: Arrays) -> int:
    return 8 * len(range(contents[0].ndim)[node.attrs.get("start", 0) : node.attrs.get("end")])


def _nbytes_of(dims: Sequence[int], itemsize: int) -> int | None:
    return None if min(dims, default=0) < 0 else prod(dims) * itemsize


_SIZES: dict[str, Callable[[Node, Arrays], int | None]] = {
    **dict.fromkeys((
        "Abs", "Ceil", "Clip", "Cos", "CumSum", "Elu", "Erf", "Exp", "Flatten", "Floor", "Gelu", "HardSigmoid",
        "Identity", "LeakyRelu", "Log", "LogSoftmax", "Neg", "Not", "Reciprocal", "Relu", "Reshape", "Round",
        "ScatterElements", "ScatterND", "Sigmoid", "Sign", "Sin", "Softmax", "Softplus", "Split", "Sqrt", "Squeeze",
        "Tanh", "Transpose", "Trilu", "Unsqueeze",
    ), _same),
    **dict.fromkeys(("Add", "And", "Div", "Max", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Xor"), _broadcast),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"), _reduced),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), _compared),
    "BatchNormalization": _normalised_channels,
    "Cast": _cast, "Concat": _joined, "ConstantOfShape": _filled, "DequantizeLinear": _dequantized,
    "DynamicQuantizeLinear": _with_scale, "Expand": _expanded, "Gather": _gathered, "GatherND": _gathered_by_tuples,
    "Gemm": _added, "IsInf": _flagged, "IsNaN": _flagged, "LayerNormalization": _normalised,
    "MatMul": _multiplied, "MatMulInteger": _integer_product, "OneHot": _coded, "Pad": _padded,
    "QuantizeLinear": _quantized, "Range": _counted, "SequenceEmpty": _no_elements, "Shape": _measured,
    "Slice": _sliced, "Tile": _tiled, "Where": _chosen,
}  # fmt: skip
