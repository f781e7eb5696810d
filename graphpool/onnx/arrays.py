"""NumPy's types of ONNX's elements, and the arrays that messages hold; what is rare is left to the package onnx."""

from __future__ import annotations

import sys
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from google.protobuf.message import Message

from graphpool.runtime.nibbles import Nibbles
from graphpool.typing import DataType

from .proto import AttributeProto, NodeProto, TensorProto, as_onnx, as_own
from .types import data_type

if TYPE_CHECKING:
    from collections.abc import Sequence

    Array = np.ndarray[Any, np.dtype[Any]]

__all__ = [
    "ELEMENT_FIELDS",
    "elem_type_of",
    "make_attribute",
    "make_message",
    "make_tensor",
    "numpy_type",
    "to_array",
    "unpacked",
]

_NUMPY: dict[int, np.dtype[Any]] = {
    TensorProto.FLOAT: np.dtype(np.float32), TensorProto.UINT8: np.dtype(np.uint8), TensorProto.INT8: np.dtype(np.int8),
    TensorProto.UINT16: np.dtype(np.uint16), TensorProto.INT16: np.dtype(np.int16),
    TensorProto.INT32: np.dtype(np.int32), TensorProto.INT64: np.dtype(np.int64),
    TensorProto.STRING: np.dtype(np.object_), TensorProto.BOOL: np.dtype(np.bool_),
    TensorProto.FLOAT16: np.dtype(np.float16), TensorProto.DOUBLE: np.dtype(np.float64),
    TensorProto.UINT32: np.dtype(np.uint32), TensorProto.UINT64: np.dtype(np.uint64),
    TensorProto.COMPLEX64: np.dtype(np.complex64), TensorProto.COMPLEX128: np.dtype(np.complex128),
}  # fmt: skip
"""Those that NumPy has itself."""

_ELEMENTS = {dtype: elem_type for elem_type, dtype in _NUMPY.items()}

ELEMENT_FIELDS: dict[int, str] = {
    TensorProto.FLOAT: "float_data", TensorProto.DOUBLE: "double_data", TensorProto.INT64: "int64_data",
    TensorProto.UINT32: "uint64_data", TensorProto.UINT64: "uint64_data", TensorProto.STRING: "string_data",
    **dict.fromkeys((
        TensorProto.INT32, TensorProto.INT16, TensorProto.INT8, TensorProto.UINT16, TensorProto.UINT8, TensorProto.BOOL,
    ), "int32_data"),
}  # fmt: skip
"""The field of a tensor that holds its elements where `raw_data` does not, of types that lie there as they are."""


def numpy_type(elem_type: int) -> np.dtype[Any]:
    """NumPy's type of the elements of a type that ONNX defines."""
    found, own = _NUMPY.get(elem_type), data_type(elem_type)
    if found is None and own is not None:
        found = own.numpy
    if found is None:
        from onnx import helper  # knows those of ml_dtypes that we do not have

        found = helper.tensor_dtype_to_np_dtype(elem_type)
    return found


def elem_type_of(dtype: np.dtype[Any]) -> int:
    """ONNX's type of the elements of arrays of a type."""
    found = _ELEMENTS.get(dtype)
    if found is None:
        from onnx import helper

        found = helper.np_dtype_to_tensor_dtype(dtype)
    return int(found)


def to_array(tensor: Any) -> Array:
    """The content of a tensor that lies in its message. Raises ValueError where it does not fit the shape."""
    elem_type, shape = tensor.data_type, tuple(tensor.dims[:])
    field, is_inside = ELEMENT_FIELDS.get(elem_type), tensor.data_location != TensorProto.EXTERNAL
    if is_inside and sys.byteorder == "little":
        if tensor.HasField("raw_data") and (field or elem_type in _HALVES) and field != "string_data":
            return np.frombuffer(tensor.raw_data, numpy_type(elem_type)).reshape(shape)
        if field == "string_data":
            texts = [text.decode() for text in tensor.string_data]
            return np.array(texts, np.object_).reshape(shape)
        if elem_type in _NIBBLES and tensor.int32_data:  # as bytes with two elements each
            raw = np.array(tensor.int32_data[:], np.int32).astype(np.uint8)
            if raw.size == -(-prod(shape) // 2):
                return np.asarray(Nibbles(raw, _NIBBLES[elem_type], shape))
        if field is not None:
            return np.array(getattr(tensor, field)[:], _WIDE[field]).astype(_NUMPY[elem_type]).reshape(shape)
    from onnx import numpy_helper

    return numpy_helper.to_array(as_onnx(tensor))


_NIBBLES = {TensorProto.UINT4: DataType.U4, TensorProto.INT4: DataType.S4}
_HALVES = (TensorProto.FLOAT16, TensorProto.BFLOAT16)

_WIDE = {
    "float_data": np.float32, "double_data": np.float64, "int64_data": np.int64, "uint64_data": np.uint64,
    "int32_data": np.int32,
}  # fmt: skip


def make_tensor(array: Array, name: str) -> Any:
    """A tensor with a content that NumPy's own types hold."""
    elem_type = elem_type_of(array.dtype)
    return TensorProto(name=name, data_type=elem_type, dims=array.shape, raw_data=array.tobytes())


def make_attribute(name: str, value: Any) -> Any:
    """An attribute with a number, a text, a message, or a list of numbers, texts or graphs."""
    if isinstance(value, (int, np.integer)):
        return AttributeProto(name=name, type=AttributeProto.INT, i=int(value))
    if isinstance(value, (float, np.floating)):
        return AttributeProto(name=name, type=AttributeProto.FLOAT, f=float(value))
    if isinstance(value, (str, bytes)):
        return AttributeProto(name=name, type=AttributeProto.STRING, s=_as_bytes(value))
    if isinstance(value, Message):
        kind, field = _MESSAGES[value.DESCRIPTOR.name]
        return AttributeProto(name=name, type=kind, **{field: as_own(value)})
    items = list(value)
    if items and isinstance(items[0], Message):
        return AttributeProto(name=name, type=AttributeProto.GRAPHS, graphs=map(as_own, items))
    if items and isinstance(items[0], (str, bytes)):
        return AttributeProto(name=name, type=AttributeProto.STRINGS, strings=map(_as_bytes, items))
    if any(isinstance(item, (float, np.floating)) for item in items):
        return AttributeProto(name=name, type=AttributeProto.FLOATS, floats=items)
    return AttributeProto(name=name, type=AttributeProto.INTS, ints=items)


_MESSAGES = {
    "TensorProto": (AttributeProto.TENSOR, "t"), "GraphProto": (AttributeProto.GRAPH, "g"),
    "SparseTensorProto": (AttributeProto.SPARSE_TENSOR, "sparse_tensor"),
    "TypeProto": (AttributeProto.TYPE_PROTO, "tp"),
}  # fmt: skip


def _as_bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def make_message(kind: str, inputs: Sequence[str], outputs: Sequence[str], name: str, **attrs: Any) -> Any:
    """The message of a node that no file had; attributes that are None are left out."""
    made = [make_attribute(key, value) for key, value in sorted(attrs.items()) if value is not None]
    return NodeProto(op_type=kind, name=name, input=inputs, output=outputs, attribute=made)


def unpacked(packed: Array, bits: int) -> Array:
    """Numbers of 2, 4 or 8 bits, the first in the low bits of a byte, as bytes along the last axis."""
    parts = [packed >> shift & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, axis=-1).reshape(*packed.shape[:-1], -1)
