"""The messages of ONNX's files, read by protobuf without the package onnx, whose import takes as long as NumPy's.

The classes are made of the table below, in a pool of their own, so that they and those of the package onnx do not know
of each other: `as_onnx` and `as_own` turn one into the other. Fields that the table does not have are kept as they are.
Source: onnx-ml.proto of ONNX's IR version 14, for names, numbers and types of the fields.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

if TYPE_CHECKING:
    from google.protobuf.message import Message

__all__ = [
    "AttributeProto", "FunctionProto", "GraphProto", "ModelProto", "NodeProto", "SparseTensorProto", "TensorProto",
    "TypeProto", "ValueInfoProto", "as_onnx", "as_own",
]  # fmt: skip

_MESSAGES = """
AttributeProto name 1 string, ref_attr_name 21 string, doc_string 13 string, type 20 AttributeProto.AttributeType,
    f 2 float, i 3 int64, s 4 bytes, t 5 TensorProto, g 6 GraphProto, sparse_tensor 22 SparseTensorProto,
    tp 14 TypeProto, floats 7 *float, ints 8 *int64, strings 9 *bytes, tensors 10 *TensorProto, graphs 11 *GraphProto,
    sparse_tensors 23 *SparseTensorProto, type_protos 15 *TypeProto
ValueInfoProto name 1 string, type 2 TypeProto, doc_string 3 string
NodeProto input 1 *string, output 2 *string, name 3 string, op_type 4 string, domain 7 string, overload 8 string,
    attribute 5 *AttributeProto, doc_string 6 string, metadata_props 9 *StringStringEntryProto
TrainingInfoProto initialization 1 GraphProto, algorithm 2 GraphProto
ModelProto ir_version 1 int64, opset_import 8 *OperatorSetIdProto, producer_name 2 string, producer_version 3 string,
    domain 4 string, model_version 5 int64, doc_string 6 string, graph 7 GraphProto,
    metadata_props 14 *StringStringEntryProto, training_info 20 *TrainingInfoProto, functions 25 *FunctionProto
StringStringEntryProto key 1 string, value 2 string
GraphProto node 1 *NodeProto, name 2 string, initializer 5 *TensorProto, sparse_initializer 15 *SparseTensorProto,
    doc_string 10 string, input 11 *ValueInfoProto, output 12 *ValueInfoProto, value_info 13 *ValueInfoProto
TensorProto dims 1 *int64, data_type 2 int32, float_data 4 +float, int32_data 5 +int32, string_data 6 *bytes,
    int64_data 7 +int64, name 8 string, doc_string 12 string, raw_data 9 bytes,
    external_data 13 *StringStringEntryProto, data_location 14 TensorProto.DataLocation, double_data 10 +double,
    uint64_data 11 +uint64
SparseTensorProto values 1 TensorProto, indices 2 TensorProto, dims 3 *int64
TensorShapeProto dim 1 *TensorShapeProto.Dimension
TensorShapeProto.Dimension dim_value 1 int64 value, dim_param 2 string value, denotation 3 string
TypeProto tensor_type 1 TypeProto.Tensor value, sequence_type 4 TypeProto.Sequence value,
    map_type 5 TypeProto.Map value, optional_type 9 TypeProto.Optional value,
    sparse_tensor_type 8 TypeProto.SparseTensor value, opaque_type 7 TypeProto.Opaque value, denotation 6 string
TypeProto.Tensor elem_type 1 int32, shape 2 TensorShapeProto
TypeProto.Sequence elem_type 1 TypeProto
TypeProto.Map key_type 1 int32, value_type 2 TypeProto
TypeProto.Optional elem_type 1 TypeProto
TypeProto.SparseTensor elem_type 1 int32, shape 2 TensorShapeProto
TypeProto.Opaque domain 1 string, name 2 string
OperatorSetIdProto domain 1 string, version 2 int64
FunctionProto name 1 string, input 4 *string, output 5 *string, attribute 6 *string,
    attribute_proto 11 *AttributeProto, node 7 *NodeProto, doc_string 8 string, opset_import 9 *OperatorSetIdProto,
    domain 10 string, overload 13 string, value_info 12 *ValueInfoProto, metadata_props 14 *StringStringEntryProto
"""
"""Message, then of each field name, number, type, and the oneof that it belongs to. ``*``: repeated, ``+``: packed."""

_ENUMS = """
AttributeProto.AttributeType UNDEFINED 0 FLOAT 1 INT 2 STRING 3 TENSOR 4 GRAPH 5 FLOATS 6 INTS 7 STRINGS 8 TENSORS 9
    GRAPHS 10 SPARSE_TENSOR 11 SPARSE_TENSORS 12 TYPE_PROTO 13 TYPE_PROTOS 14
TensorProto.DataType UNDEFINED 0 FLOAT 1 UINT8 2 INT8 3 UINT16 4 INT16 5 INT32 6 INT64 7 STRING 8 BOOL 9 FLOAT16 10
    DOUBLE 11 UINT32 12 UINT64 13 COMPLEX64 14 COMPLEX128 15 BFLOAT16 16 FLOAT8E4M3FN 17 FLOAT8E4M3FNUZ 18
    FLOAT8E5M2 19 FLOAT8E5M2FNUZ 20 UINT4 21 INT4 22 FLOAT4E2M1 23 FLOAT8E8M0 24 UINT2 25 INT2 26
    FLOAT6E2M3 27 FLOAT6E3M2 28
TensorProto.DataLocation DEFAULT 0 EXTERNAL 1
"""

_TYPES = {"double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "string": 9, "bytes": 12}
_MESSAGE, _ENUM = 11, 14
"""Numbers of types in a FieldDescriptorProto."""


def _field(number: int, value: int | bytes | str) -> bytes:
    """A field of a descriptor: a number below 128, or bytes."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    data = value.encode() if isinstance(value, str) else value
    length = bytes([len(data)]) if len(data) < 128 else bytes([len(data) & 127 | 128, len(data) >> 7])
    return bytes([number << 3 | 2]) + length + data


def _statements(table: str) -> list[tuple[str, str]]:
    """What each paragraph of a table begins with, and the rest."""
    return [tuple(text.split(maxsplit=1)) for text in table.replace("\n    ", " ").strip().split("\n")]  # type: ignore[misc]


def _file() -> bytes:
    """The FileDescriptorProto of both tables."""
    enums = dict(_statements(_ENUMS))
    made: dict[str, bytes] = {}
    for name, text in reversed(_statements(_MESSAGES)):  # what lies inside a message stands behind it
        outer, _, own = name.rpartition(".")
        oneofs: list[str] = []
        parts = [_field(1, own)]
        for field in text.split(", "):
            label, number, kind, *rest = field.split()
            plain = kind.lstrip("*+")
            code = _TYPES.get(plain, _ENUM if plain in enums else _MESSAGE)
            entry = _field(1, label) + _field(3, int(number)) + _field(4, 1 if plain == kind else 3) + _field(5, code)
            entry += _field(6, f".onnx.{plain}") if code in (_MESSAGE, _ENUM) else b""
            entry += _field(8, _field(2, 1)) if kind.startswith("+") else b""
            if rest and not oneofs:
                oneofs += rest
            parts.append(_field(2, entry + (_field(9, 0) if rest else b"")))
        parts += [_field(8, _field(1, oneof)) for oneof in oneofs]
        for enum, values in enums.items():
            if enum.rpartition(".")[0] == name:
                words = values.split()
                pairs = zip(words[::2], words[1::2], strict=True)
                listed = [_field(2, _field(1, word) + _field(2, int(value))) for word, value in pairs]
                parts.append(_field(4, _field(1, enum.rpartition(".")[2]) + b"".join(listed)))
        parts.append(made.pop(name, b""))
        content = b"".join(parts)
        if outer:
            made[outer] = made.get(outer, b"") + _field(3, content)
        else:
            made[""] = _field(4, content) + made.get("", b"")
    return _field(1, "graphpool/onnx.proto") + _field(2, "onnx") + made[""]


_pool = DescriptorPool()
_pool.AddSerializedFile(_file())


_CLASSES: dict[str, Any] = {
    name: GetMessageClass(_pool.FindMessageTypeByName(f"onnx.{name}")) for name, _ in _statements(_MESSAGES)
}
"""Of each message. All are kept: protobuf makes the class of a message inside another one when it is asked for, and
lets the collector take it apart while another thread is given it, which ends the process."""


if TYPE_CHECKING:
    from onnx import (
        AttributeProto,
        FunctionProto,
        GraphProto,
        ModelProto,
        NodeProto,
        SparseTensorProto,
        TensorProto,
        TypeProto,
        ValueInfoProto,
    )  # fmt: skip
else:
    AttributeProto, FunctionProto = _CLASSES["AttributeProto"], _CLASSES["FunctionProto"]
    GraphProto, ModelProto, NodeProto = _CLASSES["GraphProto"], _CLASSES["ModelProto"], _CLASSES["NodeProto"]
    SparseTensorProto, TensorProto = _CLASSES["SparseTensorProto"], _CLASSES["TensorProto"]
    TypeProto, ValueInfoProto = _CLASSES["TypeProto"], _CLASSES["ValueInfoProto"]


def as_onnx(message: Message) -> Any:
    """The message as one of the package onnx, which is imported: a copy, or itself."""
    import onnx

    wanted = getattr(onnx, message.DESCRIPTOR.name)
    return message if isinstance(message, wanted) else wanted.FromString(message.SerializeToString())


def as_own(message: Message) -> Any:
    """The message as one of this module: a copy, or itself."""
    if message.DESCRIPTOR.file.pool is _pool:
        return message
    return _CLASSES[message.DESCRIPTOR.name].FromString(message.SerializeToString())
