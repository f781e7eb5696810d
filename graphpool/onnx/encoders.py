"""LabelEncoders from numbers to numbers: their keys in order, and the values beside them, become constants.

So a table of millions is a weight like others: charged to the budget, and read by kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import to_array
from .long_lists import LongList
from .proto import AttributeProto

if TYPE_CHECKING:
    from .node import Node

__all__ = ["ENCODER_LISTS", "has_table", "listed", "with_table"]

Array = np.ndarray[Any, Any]

_KINDS: dict[str, tuple[int, Any]] = {
    "int64s": (AttributeProto.INTS, np.int64), "floats": (AttributeProto.FLOATS, np.float32),
}  # fmt: skip
"""How names of lists of numbers end -> type of the attribute, type of its elements."""

ENCODER_LISTS = tuple(f"{side}_{kind}" for side in ("keys", "values") for kind in _KINDS)
"""Attributes of a LabelEncoder that are read with `listed`, where they are long."""


def listed(node: Node, name: str) -> Array | None:
    """The numbers that ``keys_*`` or ``values_*`` hold, `name` without its end; None where they are none."""
    given = _given(node, name)
    return None if given is None else _array(*given)


def with_table(node: Node, constants: dict[str, Any]) -> Node:
    """A LabelEncoder of numbers with a table as inputs 1 and 2 in place of its attributes; other ones as they are.

    The table is keys that increase, and a value for each, then that of NaN and that of other elements. `constants` is
    extended. Cost of memory: twice the keys and the values, beside the table.
    """
    of_keys, of_values = _given(node, "keys"), _given(node, "values")
    if of_keys is None or of_values is None or not 0 < len(of_keys[0]) == len(of_values[0]):
        return node
    keys, places, of_nan = _in_order(_array(*of_keys))
    values = _array(*of_values)
    table = np.empty(len(keys) + 2, values.dtype)
    table[:-2] = values if places is None else values[places]
    table[-1] = _default(node, values.dtype)
    table[-2] = table[-1] if of_nan is None else values[of_nan]
    names = [f"{node.output[0]}/{side}" for side in ("keys", "values")]
    constants.update(zip(names, (keys, table), strict=True))
    return node.changed(inputs=[*node.input, *names], without=node.attrs)


def has_table(node: Node) -> bool:
    """Whether a node is what `with_table` makes: a form that ONNX does not know."""
    return node.op_type == "LabelEncoder" and len(node.input) > 1


def _given(node: Node, name: str) -> tuple[Any, str] | None:
    for kind in _KINDS:
        if node.attrs.get(f"{name}_{kind}"):
            return node.attrs[f"{name}_{kind}"], kind
    tensor = node.attrs.get(f"{name}_tensor")
    if tensor is None or node.attrs.get(f"{name}_strings"):
        return None
    array = to_array(tensor).reshape(-1)
    return (array, "") if array.dtype.kind in "iuf" else None


def _array(given: Any, kind: str) -> Array:
    if not kind:
        return np.asarray(given)
    of_attribute, dtype = _KINDS[kind]
    return np.asarray(given.values(of_attribute) if isinstance(given, LongList) else given, dtype)


def _in_order(keys: Array) -> tuple[Array, Array | None, int | None]:
    """The keys that increase, their places, None where these are all, and that of NaN; of equal keys the first counts.

    Of NaNs alone one is a key, which no element equals.
    """
    if bool((keys[1:] > keys[:-1]).all()):
        return keys, None, None if keys[0] == keys[0] else 0
    places = np.argsort(keys, kind="stable").astype(np.int32)  # NaNs are last
    keys = keys[places]
    nnumbers = int((keys == keys).sum())
    of_nan = int(places[nnumbers]) if nnumbers < len(keys) else None
    is_kept = np.append(True, keys[1:] != keys[:-1])
    is_kept[max(nnumbers, 1) :] = False
    return keys[is_kept], places[is_kept], of_nan


def _default(node: Node, dtype: np.dtype[Any]) -> Any:
    """The value of other elements."""
    tensor = node.attrs.get("default_tensor")
    if tensor is not None:
        return to_array(tensor).reshape(-1)[0]
    return node.attrs.get("default_float", -0.0) if dtype.kind == "f" else node.attrs.get("default_int64", -1)
