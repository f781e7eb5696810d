"""ONNX's element types and ours."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._sizes import is_variable
from graphpool.errors import InvalidArgumentError, explain
from graphpool.runtime.model_port import ModelPort
from graphpool.typing import DataType

from .proto import TensorProto, TypeProto, as_own

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


_PAIRS: dict[int, DataType] = {
    TensorProto.FLOAT: DataType.F32, TensorProto.DOUBLE: DataType.F64, TensorProto.FLOAT16: DataType.F16,
    TensorProto.BFLOAT16: DataType.BF16, TensorProto.FLOAT8E5M2: DataType.F8_E5M2,
    TensorProto.FLOAT8E4M3FN: DataType.F8_E4M3, TensorProto.INT64: DataType.S64, TensorProto.INT32: DataType.S32,
    TensorProto.INT16: DataType.S16, TensorProto.INT8: DataType.S8, TensorProto.INT4: DataType.S4,
    TensorProto.UINT64: DataType.U64, TensorProto.UINT32: DataType.U32, TensorProto.UINT16: DataType.U16,
    TensorProto.UINT8: DataType.U8, TensorProto.UINT4: DataType.U4, TensorProto.BOOL: DataType.BOOLEAN,
}  # fmt: skip
_ELEM_TYPES = frozenset(TensorProto.DataType.values())
_BACK = {ours: theirs for theirs, ours in _PAIRS.items()}


def data_type(elem: int) -> DataType | None:
    """Our type for an ONNX element type; None for strings, complex numbers and types that we do not have."""
    return _PAIRS.get(elem)


def element_type(dtype: DataType) -> int:
    """ONNX's element type for one of ours."""
    return _BACK[dtype]


def make_type(dtype: DataType, shape: tuple[int | None, ...] | None) -> TypeProto:
    """The type of a tensor as ONNX writes it; sizes that may vary are unknown, as None is."""
    dims = None if shape is None else [None if dim is None or is_variable(dim) else int(dim) for dim in shape]
    return array_type(_BACK[dtype], dims)


def array_type(elem: int, shape: Iterable[int | str | None] | None) -> TypeProto:
    """The type of a tensor as ONNX writes it; dimensions are numbers, names, or None."""
    found = TypeProto()
    tensor = found.tensor_type
    tensor.elem_type = elem
    if shape is not None:
        tensor.shape.SetInParent()
        for dim in shape:
            entry = tensor.shape.dim.add()
            if isinstance(dim, str):
                entry.dim_param = dim
            elif dim is not None:
                entry.dim_value = dim
    return found


def make_port(name: str, type_: TypeProto) -> ModelPort:
    """A model's input or output, of a type that may be missing if it is an output."""
    if not type_.HasField("tensor_type"):
        return ModelPort(name, None, None)
    tensor = type_.tensor_type
    if tensor.elem_type not in _ELEM_TYPES:
        what = f"{name!r} has an element type that ONNX does not define"
        raise InvalidArgumentError(explain(what, got=tensor.elem_type), port=name)
    shape = tuple(_dimension(dim) for dim in tensor.shape.dim) if tensor.HasField("shape") else None
    return ModelPort(name, data_type(tensor.elem_type), shape, tensor.elem_type == TensorProto.STRING)


def describe_type(type_: TypeProto) -> str:
    """A type as ONNX Runtime writes it, such as ``seq(map(int64,tensor(float)))``; ``?`` if it is not said."""
    kind = type_.WhichOneof("value")
    if kind in ("tensor_type", "sparse_tensor_type"):
        return f"{kind.removesuffix('_type')}({_element_name(getattr(type_, kind).elem_type)})"
    if kind == "sequence_type":
        return f"seq({describe_type(type_.sequence_type.elem_type)})"
    if kind == "optional_type":
        return f"optional({describe_type(type_.optional_type.elem_type)})"
    if kind == "map_type":
        return f"map({_element_name(type_.map_type.key_type)},{describe_type(type_.map_type.value_type)})"
    return "?"


def _element_name(elem: int) -> str:
    return str(TensorProto.DataType.Name(elem)).lower() if elem in _ELEM_TYPES else "?"


def plain_type(type_: TypeProto) -> TypeProto:
    """A copy in which no dimension is negative: ONNX's shape inference takes those for sizes."""
    copied = TypeProto()
    copied.CopyFrom(as_own(type_))
    inner = copied
    while (kind := inner.WhichOneof("value")) in ("sequence_type", "optional_type"):
        inner = getattr(inner, kind).elem_type
    for dim in inner.tensor_type.shape.dim if kind == "tensor_type" else ():
        if dim.dim_value < 0:
            dim.Clear()
    return copied


def _dimension(dim: Any) -> int | str | None:
    """A dimension: a number, a name, or None. Tools write unknown ones as negative numbers, too."""
    if dim.HasField("dim_value"):
        return int(dim.dim_value) if dim.dim_value >= 0 else None
    return dim.dim_param or None


def tensor_type(elem: int, shape: Sequence[Any], sizes: dict[str, Any]) -> TypeProto:
    """The type of a tensor in which sizes that may vary have names, by which `sizes` has them from now on."""
    names = [f"size {dim.number}" if is_variable(dim) else int(dim) for dim in shape]
    sizes.update((name, dim) for name, dim in zip(names, shape, strict=True) if isinstance(name, str))
    return array_type(elem, names)


def numbered_type(type_: TypeProto, sizes: Mapping[str, Any], number_of: Callable[[Any], int]) -> TypeProto:
    """The type with numbers for the sizes among its dimensions: `int` holds for the whole compilation."""
    numbered = TypeProto()
    numbered.CopyFrom(type_)
    for dim in numbered.tensor_type.shape.dim if numbered.HasField("tensor_type") else ():
        if dim.dim_param in sizes:
            dim.dim_value = number_of(sizes[dim.dim_param])
    return numbered


def static_shape(type_: TypeProto, sizes: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """The shape of a tensor type when every dimension is a number, or one of the sizes by its name."""
    if not type_.HasField("tensor_type") or not type_.tensor_type.HasField("shape"):
        return None
    dims = [_dimension(dim) for dim in type_.tensor_type.shape.dim]
    known = [sizes.get(dim) if isinstance(dim, str) else dim for dim in dims]
    return None if any(dim is None for dim in known) else tuple(known)


def least_shape(type_: TypeProto, sizes: Mapping[str, Any]) -> tuple[int, ...]:
    """The shape of a tensor type, where sizes are numbers by now, and those that are not known 0."""
    known = [_dimension(dim) for dim in type_.tensor_type.shape.dim]
    return tuple([int((sizes.get(dim) if isinstance(dim, str) else dim) or 0) for dim in known])


def is_f32_number(number: float) -> bool:
    """Whether float32, in which our ops hold attributes, has the number; compared exactly, integers too."""
    with np.errstate(over="ignore"):
        return float(np.float32(number)) == number
