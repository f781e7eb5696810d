"""Types of what some ops give, told without the package onnx, or where its inference tells less than it could."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from .proto import TensorProto, TypeProto
from .types import static_shape, tensor_type

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .build import Value
    from .node import Node

__all__ = ["plain_types", "told_types"]


def told_types(
    node: Node, values: Mapping[str, Value], types: Mapping[str, TypeProto], sizes: dict[str, Any]
) -> dict[str, TypeProto] | None:
    """The types of a node's outputs; None where ONNX's inference is to tell.

    `types` has those of all inputs. Sizes that may vary have names, by which `sizes` has them.
    """
    found = _texts(node, values, types, sizes)
    return plain_types(node, types) if found is None else found


def _texts(
    node: Node, values: Mapping[str, Value], types: Mapping[str, TypeProto], sizes: dict[str, Any]
) -> dict[str, TypeProto] | None:
    """The texts that a node gives."""
    type_ = types.get(node.input[0]) if node.input else None
    if type_ is None or type_.tensor_type.elem_type != TensorProto.STRING:
        return None
    if node.op_type == "StringNormalizer" and not node.attrs.get("stopwords"):
        return {node.output[0]: type_}
    if node.op_type == "Tokenizer" and type_.tensor_type.HasField("shape"):
        found = TypeProto()
        found.CopyFrom(type_)
        found.tensor_type.shape.dim.add()
        return {node.output[0]: found}
    dims = type_.tensor_type.shape.dim
    if node.op_type == "ArrayFeatureExtractor" and len(dims) and values[node.input[1]].is_known:
        found = TypeProto()
        found.tensor_type.elem_type = TensorProto.STRING
        found.tensor_type.shape.dim.extend(dims[:-1])
        if len(dims) == 1:  # one row
            found.tensor_type.shape.dim.add(dim_value=1)
        found.tensor_type.shape.dim.add(dim_value=int(np.size(values[node.input[1]].plain_content)))
        return {node.output[0]: found}
    if node.op_type == "LabelEncoder" and (known := [elem for name, elem in _VALUES.items() if name in node.attrs]):
        found = TypeProto()
        found.CopyFrom(type_)
        found.tensor_type.elem_type = known[0]
        return {node.output[0]: found}
    shape = static_shape(type_, sizes)
    if node.op_type == "Reshape" and shape is not None and values[node.input[1]].is_known:
        wanted = np.asarray(values[node.input[1]].content).reshape(-1).tolist()
        if wanted.count(-1) == 1 and all(dim > 0 or dim == -1 for dim in wanted):
            rest = prod(shape) // -prod(wanted)
            made = tensor_type(TensorProto.STRING, [rest if dim == -1 else dim for dim in wanted], sizes)
            return {node.output[0]: made}
    if node.op_type == "Flatten" and shape is not None and -len(shape) <= node.attrs.get("axis", 1) <= len(shape):
        axis = node.attrs.get("axis", 1)
        sides = shape[:axis], shape[axis:]
        return {node.output[0]: tensor_type(TensorProto.STRING, [prod(side) for side in sides], sizes)}
    indices = values[node.input[1]] if node.op_type == "Gather" else None
    axis = node.attrs.get("axis", 0)
    if indices is not None and indices.is_plain and shape and -len(shape) <= axis < len(shape):
        axis %= len(shape)
        dims_of_result = [*shape[:axis], *indices.shape, *shape[axis + 1 :]]
        return {node.output[0]: tensor_type(TensorProto.STRING, dims_of_result, sizes)}
    return None


_VALUES: dict[str, int] = {
    "values_int64s": TensorProto.INT64, "values_floats": TensorProto.FLOAT, "values_strings": TensorProto.STRING,
}  # fmt: skip
"""Attribute of a LabelEncoder -> what it gives."""

_LISTS = frozenset({"cats_int64s", "cats_strings", "classlabels_int64s", "classlabels_strings"})


def plain_types(node: Node, types: Mapping[str, TypeProto]) -> dict[str, TypeProto] | None:
    """What ops give that scikit-learn's converters write, as ONNX infers it."""
    if (
        node.domain != "ai.onnx.ml"
        or not (node.input and node.output)
        or not types[node.input[0]].HasField("tensor_type")
    ):
        return None
    found, tensor = TypeProto(), types[node.input[0]].tensor_type
    lists = [value for name, value in node.attrs.items() if name in _LISTS]
    if len(lists) != 1:  # ONNX says what is wrong
        return None
    if node.op_type == "OneHotEncoder" and tensor.HasField("shape"):
        found.tensor_type.CopyFrom(tensor)
        found.tensor_type.elem_type = TensorProto.FLOAT
        found.tensor_type.shape.dim.add(dim_value=len(lists[0]))
    elif node.op_type == "ZipMap" and tensor.elem_type == TensorProto.FLOAT:
        entry = found.sequence_type.elem_type.map_type
        entry.key_type = TensorProto.INT64 if "classlabels_int64s" in node.attrs else TensorProto.STRING
        entry.value_type.tensor_type.elem_type = TensorProto.FLOAT
    else:
        return None
    return {node.output[0]: found}
