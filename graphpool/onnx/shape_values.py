"""Small integer arrays that follow from shapes that may vary, and the nodes that compute with them."""

from __future__ import annotations

from functools import reduce
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from graphpool._sizes import is_variable, largest, least

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .node import Node


class ShapeArray:
    """An array of integers, int64 or int32, of which some elements are sizes that may vary: `items`, of objects.

    Of float32 too, that a Cast made of them, as long as nothing is computed but sums and differences below 2**24,
    which are exact.

    NumPy takes it for the plain array of the values that the sizes have now, which the compilation is then for.
    """

    def __init__(self, items: np.ndarray[Any, Any], dtype: Any) -> None:
        self.items, self.dtype = items, np.dtype(dtype)

    def __eq__(self, other: object) -> bool:
        raise TypeError("compare the plain array")

    __hash__ = None  # type: ignore[assignment]

    @property
    def ndim(self) -> int:
        """Rank."""
        return int(self.items.ndim)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the array."""
        return tuple(self.items.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.items.size)

    @property
    def nbytes(self) -> int:
        """Of the plain array. Unit: bytes."""
        return int(self.size * self.dtype.itemsize)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        plain = np.array([int(item) for item in self.items.reshape(-1)], self.dtype).reshape(self.shape)
        return plain if dtype is None else plain.astype(dtype)


def shape_array(items: Any, dtype: Any = np.int64) -> Any:
    """The array of sizes and ints: a plain one where nothing varies."""
    array = np.asarray(items, object)
    if any(map(is_variable, array.reshape(-1))):
        return ShapeArray(array, dtype)
    return array.astype(dtype)


def sizes_in(content: Any) -> list[Any]:
    """The elements of an array of integers: those that vary as sizes, others as ints."""
    if isinstance(content, ShapeArray):
        return list(content.items.reshape(-1))
    return [int(item) for item in np.asarray(content).reshape(-1)]


def measure(node: Node, shape: tuple[int, ...]) -> Any:
    """What `Shape` or `Size` gives."""
    if node.op_type == "Size":
        return shape_array(prod(shape))
    return shape_array(shape[node.attrs.get("start", 0) : node.attrs.get("end")])


def compute_shapes(node: Node, contents: Sequence[Any], opset: int) -> list[Any] | None:
    """What a node gives of such arrays; None where it takes plain numbers."""
    rule = _RULES.get(node.op_type) if node.domain in ("", "ai.onnx") else None
    is_exact = node.op_type in _EXACT
    if rule is None or not all(_is_small(content, is_exact) for content in contents):
        return None
    dtype = np.dtype(_dtype_of(node, contents))
    kinds = {content.dtype.kind for content in contents if content is not None}
    if "f" in kinds and (len(kinds) > 1 if is_exact else node.op_type not in _MOVES):
        return None
    try:
        found = rule(node, *[_items(content) for content in contents])
        return [_typed(item, dtype) for item in (found if isinstance(found, list) else [found])]
    except (_Unknown, ValueError, LookupError, TypeError, OverflowError):
        return None


def _typed(found: Any, dtype: Any) -> Any:
    """A result of a rule as an array of the type, in which every number lies: others wrap around, as NumPy has them."""
    items = np.asarray(found)
    if items.dtype == bool:
        return items
    if dtype.kind == "f":
        if not all(_is_exact(item) for item in items.reshape(-1)):
            raise _Unknown
        return shape_array(items, dtype)
    most = np.iinfo(dtype).max
    if any(item < ~most or item > most for item in items.reshape(-1)):
        raise _Unknown
    return shape_array(items, dtype)


def _dtype_of(node: Node, contents: Sequence[Any]) -> Any:
    """Of the results but for relations: that of the data, whatever type indices and conditions have."""
    if node.op_type in ("Cast", "Shape", "Size"):
        return _TYPES.get(node.attrs.get("to", _INT64), np.int64)
    return contents[node.op_type == "Where"].dtype


_FLOAT, _INT32, _INT64 = 1, 6, 7
"""Numbers of types in ONNX."""

_TYPES: dict[int, Any] = {_FLOAT: np.float32, _INT32: np.int32, _INT64: np.int64}

_FIRST_BROKEN = 2**24
"""Up to here a float32 holds every integer."""

_MOST = 4096
"""Elements of such an array; larger ones are data."""


class _Unknown(Exception):  # noqa: N818 - a signal inside the module
    """The node takes plain numbers."""


def _is_small(content: Any, takes_reals: bool) -> bool:
    if content is None or isinstance(content, ShapeArray):
        return True
    if not isinstance(content, np.ndarray) or content.size > _MOST:
        return False
    if takes_reals and content.dtype == np.float32:
        return all(map(_is_whole, content.reshape(-1)))
    return content.dtype.kind in "iub"


def _is_whole(number: Any) -> bool:
    """Whether a float32 is an integer that sums with others leave one; -0.0 is another number than 0."""
    return bool(abs(number) < _FIRST_BROKEN and number == int(number) and not (number == 0 and np.signbit(number)))


def _is_exact(size: Any) -> bool:
    """Whether a float32 holds an integer, and all below it."""
    return bool(-_FIRST_BROKEN < size < _FIRST_BROKEN)


def _items(content: Any) -> Any:
    if content is None:
        return None
    if isinstance(content, ShapeArray):
        return content.items
    if content.dtype.kind == "f":
        content = content.astype(np.int64)
    return content if content.dtype == bool else content.astype(object)


def _ints(items: Any) -> list[int]:
    """Numbers that must be plain."""
    return [int(item) for item in np.asarray(items, object).reshape(-1)]


def _gather(node: Node, data: Any, indices: Any) -> Any:
    return np.take(data, np.array(_ints(indices), np.int64).reshape(np.shape(indices)), node.attrs.get("axis", 0))


def _concat(node: Node, *parts: Any) -> Any:
    return np.concatenate(parts, node.attrs["axis"])


def _axes_of(node: Node, axes: Any) -> list[int] | None:
    if axes is not None:
        return _ints(axes)
    return node.attrs.get("axes")


def _unsqueeze(node: Node, data: Any, axes: Any = None) -> Any:
    return np.expand_dims(data, tuple(_axes_of(node, axes) or ()))


def _squeeze(node: Node, data: Any, axes: Any = None) -> Any:
    found = _axes_of(node, axes)
    return np.squeeze(data) if found is None else np.squeeze(data, tuple(found))


def _reshape(node: Node, data: Any, shape: Any) -> Any:
    if node.attrs.get("allowzero", 0):
        raise _Unknown
    wanted = [data.shape[k] if dim == 0 else dim for k, dim in enumerate(_ints(shape))]
    return data.reshape(wanted)


def _slice(node: Node, data: Any, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None) -> Any:
    if starts is None:
        raise _Unknown
    firsts, lasts = _ints(starts), _ints(ends)
    which = _ints(axes) if axes is not None else list(range(len(firsts)))
    by = _ints(steps) if steps is not None else [1] * len(firsts)
    if min(by, default=1) < 1:
        raise _Unknown
    for axis, first, last, step in zip(which, firsts, lasts, by, strict=True):
        data = data[(slice(None),) * (axis % data.ndim) + (slice(first, last, step),)]
    return data


def _cast(node: Node, data: Any) -> Any:
    if node.attrs["to"] not in _TYPES:
        raise _Unknown
    return data


def _elementwise(compute: Callable[..., Any]) -> Callable[..., Any]:
    def rule(node: Node, *operands: Any) -> Any:
        return np.asarray(np.frompyfunc(compute, len(operands), 1)(*operands), object)

    return rule


def _relation(compute: Callable[..., Any]) -> Callable[..., Any]:
    def rule(node: Node, *operands: Any) -> Any:
        return np.asarray(np.frompyfunc(compute, len(operands), 1)(*operands)).astype(bool)

    return rule


def _least(*items: Any) -> Any:
    """A term, where Python's `min` would decide which one it is."""
    return reduce(least, items)


def _largest(*items: Any) -> Any:
    return reduce(largest, items)


def _divide(a: Any, b: Any) -> Any:
    """Towards zero, as ONNX does."""
    if b == 0:
        raise _Unknown
    negative = (a < 0) != (b < 0)
    return -(abs(a) // abs(b)) if negative else abs(a) // abs(b)


def _modulo(node: Node, a: Any, b: Any) -> Any:
    if node.attrs.get("fmod", 0) or np.any(b == 0):
        raise _Unknown
    return a % b


def _where(node: Node, condition: Any, a: Any, b: Any) -> Any:
    return np.where(condition.astype(bool), a, b)


def _reduce(compute: Callable[[Any], Any]) -> Callable[..., Any]:
    def rule(node: Node, data: Any, axes: Any = None) -> Any:
        found = _axes_of(node, axes)
        is_all = found in ([0], [-1]) if found is not None else not node.attrs.get("noop_with_empty_axes", 0)
        if data.ndim != 1 or not is_all:
            raise _Unknown
        result = compute(data.tolist())
        return np.asarray([result] if node.attrs.get("keepdims", 1) else result, object)

    return rule


def _split(node: Node, data: Any, sizes: Any = None) -> Any:
    if sizes is None:
        raise _Unknown
    places = np.cumsum(_ints(sizes))[:-1]
    return list(np.split(data, places, node.attrs.get("axis", 0)))


_MOVES = ("Shape", "Size", "Gather", "Concat", "Unsqueeze", "Squeeze", "Reshape", "Slice", "Cast", "Identity", "Split")
"""Ops that compute nothing with elements."""

_EXACT = ("Add", "Sub")
"""Ops that float32 computes of integers as integers, below 2**24."""

_RULES: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("Shape", "Size"), lambda node, data: np.asarray(measure(node, data.shape))),
    "Gather": _gather, "Concat": _concat, "Unsqueeze": _unsqueeze, "Squeeze": _squeeze, "Reshape": _reshape,
    "Slice": _slice, "Cast": _cast, "Identity": lambda node, data: data, "Split": _split, "Where": _where,
    "Add": _elementwise(lambda a, b: a + b), "Sub": _elementwise(lambda a, b: a - b),
    "Mul": _elementwise(lambda a, b: a * b), "Div": _elementwise(_divide), "Mod": _modulo,
    "Neg": _elementwise(lambda a: -a), "Abs": _elementwise(abs),
    "Min": _elementwise(_least), "Max": _elementwise(_largest),
    "Equal": _relation(lambda a, b: a == b), "Less": _relation(lambda a, b: a < b),
    "Greater": _relation(lambda a, b: a > b), "LessOrEqual": _relation(lambda a, b: a <= b),
    "GreaterOrEqual": _relation(lambda a, b: a >= b), "ReduceProd": _reduce(prod), "ReduceSum": _reduce(sum),
    "ReduceMax": _reduce(lambda items: _largest(*items)), "ReduceMin": _reduce(lambda items: _least(*items)),
}  # fmt: skip
