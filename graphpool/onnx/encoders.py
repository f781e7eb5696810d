"""LabelEncoders from numbers to numbers: their keys in order, and the values beside them, become constants.

So a table of millions is a weight like others: charged to the budget, and read by kernels.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool.runtime.heap import trim_heap

from .arrays import to_array
from .long_lists import LONG, LongList
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


_MOST_IN_TREE = 2**12
"""Keys that a tree may lead to, which takes 32 bytes more for each; more of them are found by halves."""


def with_table(node: Node, constants: dict[str, Any]) -> Node:
    """A LabelEncoder of numbers with a table as inputs 1 and 2 in place of its attributes; other ones as they are.

    The table is keys that increase, or the first one alone of 32 or 64 bit integers in a row, and a value for each key,
    then that of NaN and that of other elements; few keys, none of which is rounded in f64, are a tree too, as inputs 3
    and 4. `constants` is extended. Cost of memory: twice the keys and the values, beside the table; of integers in a
    row, as many bytes as the largest one takes.
    """
    of_keys, of_values = _given(node, "keys"), _given(node, "values")
    if of_keys is None or of_values is None or not 0 < len(of_keys[0]) == len(of_values[0]):
        return node.kept()
    keys, places, of_nan = _in_order(*of_keys)
    is_long = len(of_keys[0]) >= LONG
    if is_long:
        trim_heap()  # what keys were read to, before there are values
    values = _array(*of_values)
    table = np.empty((len(of_keys[0]) if places is None else len(places)) + 2, values.dtype)
    table[:-2] = values if places is None else values[places]
    table[-1] = _default(node, values.dtype)
    table[-2] = table[-1] if of_nan is None else values[of_nan]
    del values
    if is_long:
        trim_heap()
    found = {"keys": keys, "values": table}
    if 2 < len(keys) <= _MOST_IN_TREE and abs(keys.astype(np.float64)).max() <= 2**53:
        found["thresholds"], found["nodes"] = _tree(keys)
    names = [f"{node.output[0]}/{side}" for side in found]
    constants.update(zip(names, found.values(), strict=True))
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
    return _narrow(given, kind).astype(_KINDS[kind][1], copy=False) if kind else np.asarray(given)


def _narrow(given: Any, kind: str) -> Array:
    """The numbers, as narrow as they could be read."""
    if isinstance(given, LongList):
        return np.asarray(given.values(_KINDS[kind][0]))
    return np.asarray(given, _KINDS[kind][1] if kind else None)


def _in_order(given: Any, kind: str) -> tuple[Array, Array | None, int | None]:
    """The keys that increase, their places, None where these are all, and that of NaN; of equal keys the first counts.

    Of integers in a row the first one. Of NaNs alone one is a key, which no element equals.
    """
    keys = _narrow(given, kind)
    dtype = np.dtype(_KINDS[kind][1]) if kind else keys.dtype
    increase = bool((keys[1:] > keys[:-1]).all())
    if increase and dtype in (np.int32, np.int64) and int(keys[-1]) - int(keys[0]) == len(keys) - 1 < 2**31 - 2:
        return keys[:1].astype(dtype), None, None
    keys = keys.astype(dtype, copy=False)
    if increase:
        return keys, None, None if keys[0] == keys[0] else 0
    places = np.argsort(keys, kind="stable").astype(np.int32)  # NaNs are last
    keys = keys[places]
    nnumbers = int((keys == keys).sum())
    of_nan = int(places[nnumbers]) if nnumbers < len(keys) else None
    is_kept = np.append(True, keys[1:] != keys[:-1])
    is_kept[max(nnumbers, 1) :] = False
    return keys[is_kept], places[is_kept], of_nan


def _tree(keys: Array) -> tuple[Array, Array]:
    """Thresholds and nodes, as the kind TreeEnsemble has them, of a tree that leads each key to a leaf of its own.

    Leaves have the places of their keys; other elements come to any leaf.
    """
    dtype = keys.dtype if keys.dtype.kind == "f" else np.dtype(np.float64)
    first, last, count = np.array([0]), np.array([len(keys)]), 2 * len(keys) - 1
    thresholds, nodes, begin = np.full(count, np.nan, dtype), np.zeros((count, 3), np.int32), 0
    while first.size:  # of a level, the keys below each node
        is_inner, middle, end = last - first > 1, (first + last) // 2, begin + len(first)
        nodes[begin:end] = np.stack([np.where(is_inner, 0, first), np.zeros_like(first), ~is_inner], 1)
        nodes[begin:end, 1][is_inner] = end + 2 * np.arange(is_inner.sum())
        thresholds[begin:end][is_inner] = keys[middle[is_inner] - 1]
        halves = np.stack([first, middle, middle, last], 1)[is_inner].reshape(-1, 2)
        first, last, begin = halves[:, 0], halves[:, 1], end
    return thresholds, nodes


def _default(node: Node, dtype: np.dtype[Any]) -> Any:
    """The value of other elements."""
    tensor = node.attrs.get("default_tensor")
    if tensor is not None:
        return to_array(tensor).reshape(-1)[0]
    return node.attrs.get("default_float", -0.0) if dtype.kind == "f" else node.attrs.get("default_int64", -1)
